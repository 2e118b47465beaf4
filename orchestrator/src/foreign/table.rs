//! What a table of somebody else's looks like: its columns, their types, and which columns an index begins with.
//!
//! Never: reads a row of it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use lapse_participants::kit::CallError;

use super::db::Session;
use super::dialect::{Dialect, Sql};

/// A table as its database describes it.
#[derive(Clone, Debug)]
pub(super) struct Table {
    dialect: Dialect,
    /// As it was named.
    pub name: String,
    columns: BTreeMap<String, Column>,
    indexed: BTreeSet<String>,
}

/// A column.
#[derive(Clone, Debug)]
pub(super) struct Column {
    /// Quoted.
    pub name: String,
    /// What it holds.
    pub kind: Kind,
    /// What a bound text is cast to, to be compared with it.
    pub cast: String,
    /// As the database calls the type.
    pub type_name: String,
}

/// What a column holds, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Integer,
    Uuid,
    Bytes,
    /// With a zone, or in UTC whatever the session's.
    Instant,
    /// Date and time without a zone.
    LocalTime,
    Other,
}

impl Table {
    /// # Errors
    /// If there is no such table, or none that may be read.
    pub async fn look(session: &mut Session<'_>, name: &str) -> Result<Table, CallError> {
        let dialect = session.dialect();
        let (schema, table) = match name.split_once('.') {
            Some((schema, table)) => (Some(schema), table),
            None => (None, name),
        };
        let rows = session.rows(columns_query(dialect, schema, table)).await?;
        if rows.is_empty() {
            return Err(CallError::Configuration(format!(
                "there is no table {name}, or this user may not read it; write schema.table, or grant select on it"
            )));
        }
        let mut columns = BTreeMap::new();
        for row in rows {
            let mut cells = row.into_iter().map(Option::unwrap_or_default);
            let [column, data_type, type_schema, type_name] =
                std::array::from_fn(|_| cells.next().unwrap_or_default());
            // One whose name can't be quoted can't be named in the settings either.
            if let Ok(known) = describe(dialect, &column, data_type, &type_schema, &type_name) {
                columns.insert(column, known);
            }
        }
        let indexed = session.rows(index_query(dialect, schema, table)).await?;
        Ok(Table {
            dialect,
            name: name.to_owned(),
            columns,
            indexed: indexed.into_iter().flatten().flatten().collect(),
        })
    }

    /// A column of one of these kinds, which a setting named.
    ///
    /// # Errors
    /// In words: no such column, or another type.
    pub fn column(&self, setting: &str, name: &str, kinds: &[Kind]) -> Result<&Column, CallError> {
        let Some(column) = self.columns.get(name) else {
            let there: Vec<&str> = self.columns.keys().map(String::as_str).collect();
            return Err(CallError::Configuration(format!(
                "{setting}: table {} has no column {name:?}; it has {}",
                self.name,
                there.join(", ")
            )));
        };
        if kinds.contains(&column.kind) {
            return Ok(column);
        }
        let wanted: Vec<String> = kinds.iter().map(|kind| format!("{kind:?}")).collect();
        Err(CallError::Configuration(format!(
            "{setting}: column {name:?} of table {} is of type {}; this needs {}",
            self.name,
            column.type_name,
            wanted.join(" or ").to_lowercase()
        )))
    }

    /// Whether an index begins with one of these columns.
    pub fn is_indexed(&self, columns: &[&str]) -> bool {
        columns.iter().any(|column| self.indexed.contains(*column))
    }

    /// Quoted.
    pub fn path(&self) -> Result<String, CallError> {
        self.dialect
            .quoted_path(&self.name)
            .map_err(CallError::Configuration)
    }
}

impl Column {
    /// The numbers that fit into it, if it is an integer.
    pub fn integers(&self) -> RangeInclusive<i128> {
        let name = self.type_name.to_ascii_lowercase();
        let bits = match name.split([' ', '(']).next().unwrap_or_default() {
            "tinyint" => 8,
            "smallint" => 16,
            "mediumint" => 24,
            "int" | "integer" => 32,
            _ => 64,
        };
        if name.contains("unsigned") {
            return 0..=(1 << bits) - 1;
        }
        -(1 << (bits - 1))..=(1 << (bits - 1)) - 1
    }
}

fn columns_query(dialect: Dialect, schema: Option<&str>, table: &str) -> Sql {
    let mut sql = Sql::new(dialect, "select ");
    let names = match dialect {
        Dialect::Postgres => ["column_name", "data_type", "udt_schema", "udt_name"],
        Dialect::MySql => ["column_name", "data_type", "''", "column_type"],
    };
    sql.push(&names.map(|name| dialect.text(name)).join(", "))
        .push(" from information_schema.columns where table_name = ")
        .bind(table, "")
        .push(" and table_schema = ");
    in_schema(&mut sql, dialect, schema);
    sql
}

fn index_query(dialect: Dialect, schema: Option<&str>, table: &str) -> Sql {
    let mut sql = match dialect {
        Dialect::Postgres => Sql::new(
            dialect,
            "select a.attname::text from pg_index i join pg_class c on c.oid = i.indrelid
             join pg_namespace n on n.oid = c.relnamespace
             join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
             where i.indisvalid and c.relname = ",
        ),
        Dialect::MySql => Sql::new(
            dialect,
            "select cast(column_name as char) from information_schema.statistics
             where seq_in_index = 1 and table_name = ",
        ),
    };
    sql.bind(table, "").push(match dialect {
        Dialect::Postgres => " and n.nspname = ",
        Dialect::MySql => " and table_schema = ",
    });
    in_schema(&mut sql, dialect, schema);
    sql
}

fn in_schema(sql: &mut Sql, dialect: Dialect, schema: Option<&str>) {
    match (schema, dialect) {
        (Some(schema), _) => sql.bind(schema, ""),
        (None, Dialect::Postgres) => sql.push("current_schema()"),
        (None, Dialect::MySql) => sql.push("database()"),
    };
}

fn describe(
    dialect: Dialect,
    name: &str,
    data_type: String,
    type_schema: &str,
    type_name: &str,
) -> Result<Column, String> {
    let quoted = |name: &str| dialect.quoted(name);
    let kind = match (dialect, data_type.to_ascii_lowercase().as_str()) {
        (_, "text" | "character varying" | "character" | "varchar" | "char" | "enum")
        | (Dialect::MySql, "tinytext" | "mediumtext" | "longtext")
        | (Dialect::Postgres, "USER-DEFINED" | "user-defined")
        | (_, "json" | "jsonb") => Kind::Text,
        (_, "smallint" | "integer" | "bigint" | "int" | "tinyint" | "mediumint") => Kind::Integer,
        (Dialect::Postgres, "uuid") => Kind::Uuid,
        (Dialect::Postgres, "timestamp with time zone") | (Dialect::MySql, "timestamp") => {
            Kind::Instant
        }
        (Dialect::Postgres, "timestamp without time zone") | (Dialect::MySql, "datetime") => {
            Kind::LocalTime
        }
        (_, "bytea" | "blob" | "tinyblob" | "mediumblob" | "longblob" | "binary" | "varbinary") => {
            Kind::Bytes
        }
        (Dialect::MySql, "uuid") => Kind::Text,
        _ => Kind::Other,
    };
    let cast = match (dialect, kind) {
        (Dialect::Postgres, _) => format!("{}.{}", quoted(type_schema)?, quoted(type_name)?),
        (Dialect::MySql, Kind::Integer) if type_name.contains("unsigned") => "unsigned".to_owned(),
        (Dialect::MySql, Kind::Integer) => "signed".to_owned(),
        (Dialect::MySql, Kind::Instant | Kind::LocalTime) => "datetime(6)".to_owned(),
        (Dialect::MySql, _) => String::new(),
    };
    Ok(Column {
        name: quoted(name)?,
        kind,
        cast,
        type_name: if dialect == Dialect::MySql {
            type_name.to_owned()
        } else {
            data_type
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_the_range_of_their_type() {
        for (type_name, first, last) in [
            ("smallint", -32_768, 32_767),
            ("integer", -2_147_483_648, 2_147_483_647),
            ("bigint", i128::from(i64::MIN), i128::from(i64::MAX)),
            ("tinyint(4)", -128, 127),
            ("mediumint(8) unsigned zerofill", 0, 16_777_215),
            ("int(10) unsigned", 0, 4_294_967_295),
            ("bigint(20) unsigned", 0, i128::from(u64::MAX)),
            ("bigint unsigned", 0, i128::from(u64::MAX)),
        ] {
            let column = Column {
                name: "id".to_owned(),
                kind: Kind::Integer,
                cast: String::new(),
                type_name: type_name.to_owned(),
            };
            assert_eq!(column.integers(), first..=last, "{type_name}");
        }
    }
}
