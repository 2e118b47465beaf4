//! What Postgres and MySQL write differently. Values go in and come out as text, so that one query serves both.
//!
//! Never: lets a name into a statement unquoted, or a value unbound.

use std::fmt::Write as _;

/// Whose SQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// PostgreSQL.
    Postgres,
    /// MySQL and MariaDB.
    MySql,
}

impl Dialect {
    /// A name as the statement needs it.
    ///
    /// # Errors
    /// Names that are empty or hold a quote or NUL.
    pub fn quoted(self, name: &str) -> Result<String, String> {
        if name.is_empty() || name.contains(['"', '`', '\0']) {
            return Err(format!(
                "{name:?} is no name of a table or column: it is empty or holds a quote or NUL"
            ));
        }
        Ok(match self {
            Dialect::Postgres => format!("\"{name}\""),
            Dialect::MySql => format!("`{name}`"),
        })
    }

    /// `table` or `schema.table`.
    ///
    /// # Errors
    /// As [`Dialect::quoted`].
    pub fn quoted_path(self, path: &str) -> Result<String, String> {
        let parts: Result<Vec<String>, String> =
            path.splitn(2, '.').map(|part| self.quoted(part)).collect();
        Ok(parts?.join("."))
    }

    /// Begins a statement. The expressions get names of their own: Postgres would name a cast column after the column, and
    /// then order rows by their text.
    pub fn select(self, expressions: &[String]) -> Sql {
        let named = expressions.iter().enumerate();
        let named: Vec<String> = named
            .map(|(n, expression)| format!("{expression} as lapse_{n}"))
            .collect();
        Sql::new(self, format!("select {}", named.join(", ")))
    }

    /// An expression as text.
    pub fn text(self, expression: &str) -> String {
        match self {
            Dialect::Postgres => format!("({expression})::text"),
            Dialect::MySql => format!("cast({expression} as char)"),
        }
    }

    /// Text as a literal, where it can't be bound because it is part of an order.
    pub fn literal(self, text: &str) -> String {
        let text = text.replace('\'', "''");
        match self {
            Dialect::Postgres => format!("'{text}'"),
            Dialect::MySql => format!("'{}'", text.replace('\\', "\\\\")),
        }
    }

    /// A time without fraction lost, in microseconds since 1970, as text; without a zone, as if it were UTC.
    pub fn micros(self, expression: &str) -> String {
        match self {
            Dialect::Postgres => {
                format!("((extract(epoch from {expression}) * 1000000)::bigint)::text")
            }
            Dialect::MySql => {
                format!("cast(timestampdiff(microsecond, '1970-01-01', {expression}) as char)")
            }
        }
    }

    /// The database's clock, read as [`Dialect::micros`].
    pub fn now(self) -> String {
        match self {
            Dialect::Postgres => self.micros("clock_timestamp()"),
            Dialect::MySql => self.micros("utc_timestamp(6)"),
        }
    }
}

/// A statement with its values while it is written.
#[derive(Clone, Debug)]
pub(super) struct Sql {
    dialect: Dialect,
    /// With placeholders.
    pub text: String,
    /// One for each placeholder.
    pub values: Vec<String>,
}

impl Sql {
    pub fn new(dialect: Dialect, text: impl Into<String>) -> Sql {
        Sql {
            dialect,
            text: text.into(),
            values: Vec::new(),
        }
    }

    pub fn push(&mut self, text: &str) -> &mut Sql {
        self.text.push_str(text);
        self
    }

    /// A value, as of this type in its database (`"pg_catalog"."int8"`; `signed`). Empty: text.
    pub fn bind(&mut self, value: impl ToString, cast: &str) -> &mut Sql {
        self.values.push(value.to_string());
        let n = self.values.len();
        // Writing to a String can't fail.
        let _ = match (self.dialect, cast) {
            (Dialect::Postgres, "") => write!(self.text, "${n}::text"),
            (Dialect::Postgres, cast) => write!(self.text, "${n}::text::{cast}"),
            (Dialect::MySql, "") => write!(self.text, "?"),
            (Dialect::MySql, cast) => write!(self.text, "cast(? as {cast})"),
        };
        self
    }

    /// Values in parentheses, for `in`.
    pub fn bind_list<T: ToString>(
        &mut self,
        values: impl IntoIterator<Item = T>,
        cast: &str,
    ) -> &mut Sql {
        self.push("(");
        for (index, value) in values.into_iter().enumerate() {
            if index > 0 {
                self.push(", ");
            }
            self.bind(value, cast);
        }
        self.push(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_and_those_that_could_end_the_quote_are_refused() {
        assert_eq!(
            Dialect::Postgres.quoted_path("shop.t order"),
            Ok("\"shop\".\"t order\"".to_owned())
        );
        assert_eq!(
            Dialect::MySql.quoted_path("orders"),
            Ok("`orders`".to_owned())
        );
        for name in ["", "a`b", "a\"b", "a\0", ".a", "a."] {
            assert!(Dialect::Postgres.quoted_path(name).is_err(), "{name:?}");
            assert!(Dialect::MySql.quoted_path(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn values_are_bound_and_never_part_of_the_text() {
        let mut sql = Sql::new(Dialect::Postgres, "x in ");
        sql.bind_list(["a'; drop", "b"], "").push(" and y = ");
        sql.bind(7, "\"pg_catalog\".\"int8\"");
        assert_eq!(
            sql.text,
            "x in ($1::text, $2::text) and y = $3::text::\"pg_catalog\".\"int8\""
        );
        assert_eq!(sql.values, ["a'; drop", "b", "7"]);
        let mut sql = Sql::new(Dialect::MySql, "y = ");
        sql.bind(7, "signed").push(" or z = ").bind("t", "");
        assert_eq!(sql.text, "y = cast(? as signed) or z = ?");
    }
}
