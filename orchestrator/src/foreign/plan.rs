//! The settings of an order owner, held against its table: which expression gives what.
//!
//! Relies on [`super::table`]. Never: accepts a column of a type that would be compared as something else.

use chrono_tz::Tz;
use lapse_participants::kit::{CallError, OrderKey};

use super::db::{Row, Session};
use super::dialect::{Dialect, Sql};
use super::due::{DueColumn, Reading};
use super::table::{Column, Kind, Table};
use crate::config::{DueUnit, OrderOwner};

/// What queries are made of.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    dialect: Dialect,
    path: String,
    /// The order's id.
    pub id: Column,
    /// Its status.
    pub status: Column,
    /// The column that holds a time.
    pub time: Column,
    /// What that means.
    pub due: DueColumn,
    /// The time as text of a number.
    pub stored: String,
    /// Times up to here stand for none: zero, 1970, the zero date.
    pub none_before: i64,
    /// Statuses that await payment.
    pub pending: Vec<String>,
    /// Statuses that are paid.
    pub paid: Vec<String>,
    /// Tenant of an order whose row names none.
    pub tenant: String,
    /// What orders rows of one time.
    pub order: String,
    /// Whether an index begins with the status or the time.
    pub is_indexed: bool,
    /// The tenant as text, with that of the settings where there is none.
    tenant_text: Option<String>,
    type_column: Option<Column>,
    generation_column: Option<Column>,
    order_type: String,
    filter: String,
}

/// A row that can't become an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unreadable {
    pub tenant: String,
    pub order_id: String,
    /// The setting whose column holds what can't be.
    pub column: &'static str,
}

/// 1970. Seconds that are taken for milliseconds are in it, too.
const YEAR_S: i64 = 365 * 86_400;

const WORDS: [Kind; 3] = [Kind::Text, Kind::Integer, Kind::Uuid];

impl Plan {
    /// # Errors
    /// [`CallError::Configuration`] in words that name the setting.
    pub async fn make(
        session: &mut Session<'_>,
        name: &str,
        settings: &OrderOwner,
    ) -> Result<Plan, CallError> {
        let dialect = session.dialect();
        let table = Table::look(session, &settings.table)
            .await
            .map_err(|error| {
                said_of(error, || {
                    format!("order_owners.{name}.table ({})", settings.table)
                })
            })?;
        let owner = Owner {
            name,
            table: &table,
        };
        let columns = &settings.columns;
        let id = owner.column("order_id", &columns.order_id, &WORDS)?;
        let status = owner.column("status", &columns.status, &[Kind::Text, Kind::Integer])?;
        for (key, statuses) in [("pending", &settings.pending), ("paid", &settings.paid)] {
            owner.check_statuses(key, statuses, &status)?;
        }
        let (time, due, stored) = owner.time(dialect, settings)?;
        let tenant_column = owner.optional("tenant", &columns.tenant, &WORDS)?;
        let type_column = owner.optional("order_type", &columns.order_type, &WORDS)?;
        let generation_column =
            owner.optional("generation", &columns.generation, &[Kind::Integer])?;
        let tenant = match settings.tenant.as_str() {
            "" => "default".to_owned(),
            tenant => tenant.to_owned(),
        };
        let tenant_text = tenant_column.map(|column| {
            let text = dialect.text(&column.name);
            let none = dialect.literal(&tenant);
            format!("coalesce(nullif({text}, ''), {none})")
        });
        let order = match &tenant_text {
            Some(text) => format!("{text}, {}", id.name),
            None => id.name.clone(),
        };
        let times = [columns.due_at.as_str(), columns.created_at.as_str()];
        Ok(Plan {
            dialect,
            path: table.path()?,
            none_before: match due.reading {
                Reading::Instant | Reading::Local(_) => YEAR_S * 1_000_000,
                Reading::Millis => YEAR_S * 1_000,
                Reading::Seconds => YEAR_S,
            },
            is_indexed: table.is_indexed(&[&columns.status, times[0], times[1]]),
            id,
            status,
            time,
            due,
            stored,
            pending: settings.pending.clone(),
            paid: settings.paid.clone(),
            tenant,
            order,
            tenant_text,
            type_column,
            generation_column,
            order_type: settings.order_type.clone(),
            filter: settings.filter.clone(),
        })
    }

    /// Selects what [`Plan::read`] reads, and more.
    pub fn select(&self, more: &[String]) -> Sql {
        let text = |column: &Option<Column>| match column {
            Some(column) => self.dialect.text(&column.name),
            None => self.dialect.text("null"),
        };
        let columns = [
            self.dialect.text(&self.id.name),
            match &self.tenant_text {
                Some(text) => text.clone(),
                None => text(&None),
            },
            text(&self.generation_column),
            text(&self.type_column),
        ];
        let mut sql = self.dialect.select(&[&columns[..], more].concat());
        sql.push(&format!(" from {}", self.path));
        sql
    }

    /// Which order a row is about.
    pub fn read(&self, row: Row) -> Result<(OrderKey, String), Unreadable> {
        let mut cells = row.into_iter();
        let [id, tenant, generation, order_type] =
            std::array::from_fn(|_| cells.next().unwrap_or_default());
        let tenant = tenant.unwrap_or_else(|| self.tenant.clone());
        let order_id = id.unwrap_or_default();
        let generation = match generation.as_deref().map(str::parse) {
            Some(Ok(generation)) => generation,
            None => 1,
            Some(Err(_)) => {
                return Err(Unreadable {
                    tenant,
                    order_id,
                    column: "generation",
                });
            }
        };
        let order = OrderKey {
            tenant,
            order_id,
            generation,
        };
        Ok((order, order_type.unwrap_or_else(|| self.order_type.clone())))
    }

    /// Rows of one time after this order.
    pub fn past(&self, sql: &mut Sql, tenant: &str, order_id: &str) {
        let Some(text) = &self.tenant_text else {
            sql.push(&format!("{} > ", self.id.name))
                .bind(order_id, &self.id.cast);
            return;
        };
        sql.push(&format!("({text} > "))
            .bind(tenant, "")
            .push(&format!(" or {text} = "))
            .bind(tenant, "")
            .push(&format!(" and {} > ", self.id.name))
            .bind(order_id, &self.id.cast)
            .push(")");
    }

    /// Adds what is required of every row. One without an id is nothing that could be told to anybody.
    pub fn restrict(&self, sql: &mut Sql) {
        sql.push(&format!(" and {} is not null", self.id.name));
        if !self.filter.is_empty() {
            sql.push(&format!(" and ({})", self.filter));
        }
    }

    /// Whether the table can have an order of this id at all: in the column's range, and written as it would be read from it.
    pub fn is_id(&self, order_id: &str) -> bool {
        match self.id.kind {
            Kind::Integer => order_id.parse().is_ok_and(|number: i128| {
                number.to_string() == order_id && self.id.integers().contains(&number)
            }),
            Kind::Uuid => order_id
                .parse::<uuid::Uuid>()
                .is_ok_and(|id| id.to_string() == order_id),
            _ => !order_id.contains('\0'),
        }
    }
}

/// Looks up what the settings of one owner name.
struct Owner<'a> {
    name: &'a str,
    table: &'a Table,
}

impl Owner<'_> {
    fn column(&self, key: &str, name: &str, kinds: &[Kind]) -> Result<Column, CallError> {
        let setting = format!("order_owners.{}.columns.{key}", self.name);
        self.table.column(&setting, name, kinds).cloned()
    }

    fn optional(&self, key: &str, name: &str, kinds: &[Kind]) -> Result<Option<Column>, CallError> {
        if name.is_empty() {
            return Ok(None);
        }
        self.column(key, name, kinds).map(Some)
    }

    fn check_statuses(
        &self,
        key: &str,
        statuses: &[String],
        column: &Column,
    ) -> Result<(), CallError> {
        let is_no_number = |status: &&String| status.parse::<i64>().is_err();
        match statuses.iter().find(is_no_number) {
            Some(status) if column.kind == Kind::Integer => Err(CallError::Configuration(format!(
                "order_owners.{}.{key}: {status:?} is no number, and the status column is {}",
                self.name, column.type_name
            ))),
            _ => Ok(()),
        }
    }

    /// The column with the time, what it means, and the expression that gives it.
    fn time(
        &self,
        dialect: Dialect,
        settings: &OrderOwner,
    ) -> Result<(Column, DueColumn, String), CallError> {
        let columns = &settings.columns;
        let kinds = [Kind::Instant, Kind::LocalTime, Kind::Integer];
        let time = match columns.due_at.as_str() {
            "" => self.column("created_at", &columns.created_at, &kinds)?,
            due_at => self.column("due_at", due_at, &kinds)?,
        };
        let (reading, stored) = match time.kind {
            Kind::Instant => (Reading::Instant, dialect.micros(&time.name)),
            Kind::LocalTime => (
                Reading::Local(self.zone(&settings.time_zone, &time)?),
                dialect.micros(&time.name),
            ),
            _ => (
                self.unit(settings.due_unit, &time)?,
                dialect.text(&time.name),
            ),
        };
        let due = DueColumn {
            reading,
            pay_within: settings.pay_within.delta(),
        };
        Ok((time, due, stored))
    }

    fn zone(&self, zone: &str, time: &Column) -> Result<Tz, CallError> {
        zone.parse().map_err(|_| {
            CallError::Configuration(format!(
                "order_owners.{}.time_zone is {zone:?}; column {} is {}, which has no zone: name the one it is meant in, such as Asia/Shanghai or UTC",
                self.name, time.name, time.type_name
            ))
        })
    }

    fn unit(&self, unit: DueUnit, time: &Column) -> Result<Reading, CallError> {
        match unit {
            DueUnit::S => Ok(Reading::Seconds),
            DueUnit::Ms => Ok(Reading::Millis),
            DueUnit::None => Err(CallError::Configuration(format!(
                "order_owners.{}.due_unit is not set; column {} is {}: say s or ms since 1970",
                self.name, time.name, time.type_name
            ))),
        }
    }
}

/// Puts before a fault of configuration what it is about.
fn said_of(error: CallError, about: impl FnOnce() -> String) -> CallError {
    match error {
        CallError::Configuration(words) => {
            CallError::Configuration(format!("{}: {words}", about()))
        }
        other => other,
    }
}
