//! The owner of orders that are in a table of somebody else's: which await payment past their due time, which are paid.
//!
//! Pages follow the column that holds the time, so that an index on (status, time) serves them; `offset` never. "Now" is that
//! database's own. Relies on the settings to say which statuses mean what. Never: writes. Around a change of the clock a
//! page may end before local times that the change left out; the next sweep has them.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta};
use lapse_participants::kit::{CallError, OrderKey, OrderOwner, Overdue};
use lapse_sagas::Timestamp;
use tokio::sync::OnceCell;
use tracing::warn;

use super::db::{Access, Db, Row, Session, refuses_login};
use super::dialect::Sql;
use super::plan::{Plan, Unreadable};
use crate::config;

/// The sweep of one coordinator, and its guard.
const CONNECTIONS: u32 = 2;
/// Orders per question about what is paid.
const ASKED_AT_ONCE: usize = 500;

/// Reads orders from Postgres or MySQL.
pub struct SqlOwner {
    name: String,
    settings: config::OrderOwner,
    db: Db,
    plan: OnceCell<Plan>,
    /// Whether a row that can't be read was told.
    told: Once,
    /// The last order of the latest page, and its time as stored: a local time that a change of the clock leaves out can't
    /// be had back from when the order falls due.
    last: Mutex<Option<(Overdue, i64)>>,
}

impl SqlOwner {
    /// Connects when it is first asked.
    ///
    /// # Errors
    /// In words, if the URL can't be read.
    pub fn open(name: &str, settings: &config::OrderOwner) -> Result<SqlOwner, String> {
        let db = Db::open(&settings.database_url, Access::Read, CONNECTIONS)
            .map_err(|words| format!("order_owners.{name}.database_url: {words}"))?;
        Ok(SqlOwner {
            name: name.to_owned(),
            settings: settings.clone(),
            db,
            plan: OnceCell::new(),
            told: Once::new(),
            last: Mutex::default(),
        })
    }

    /// Looks at the table, and asks once what will be asked again and again.
    ///
    /// # Errors
    /// [`CallError::Configuration`] in words that name the setting; others if the database does not answer.
    pub async fn check(&self) -> Result<(), CallError> {
        let plan = self.plan().await?;
        if !plan.is_indexed {
            warn!(
                owner = self.name,
                table = self.settings.table,
                "no index of the order table begins with its status or its time: every sweep reads all of it; add one on (status, time)"
            );
        }
        self.overdue_orders(None, Duration::ZERO, 1).await?;
        let nobody = OrderKey {
            tenant: plan.tenant.clone(),
            order_id: "0".to_owned(),
            generation: 1,
        };
        self.paid(&[nobody]).await.map(drop)
    }

    fn last(&self) -> MutexGuard<'_, Option<(Overdue, i64)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stored(&self, order: &Overdue) -> Option<i64> {
        let last = self.last();
        last.as_ref()
            .filter(|(last, _)| last == order)
            .map(|(_, stored)| *stored)
    }

    /// Counts rows that could not be read; the first is told, once.
    fn tell(&self, passed_over: &[Unreadable]) {
        let Some(first) = passed_over.first() else {
            return;
        };
        metrics::counter!("lapse_sweep_unreadable_rows_total", "owner" => self.name.clone())
            .increment(passed_over.len() as u64);
        self.told.call_once(|| {
            warn!(
                owner = self.name,
                table = self.settings.table,
                tenant = first.tenant,
                order_id = first.order_id,
                column = first.column,
                "an order is passed over, its row can't be read: a generation is 1 to 2147483647, a due time what a clock can show; lapse_sweep_unreadable_rows_total counts the others"
            );
        });
    }

    /// Made once, when the database first answers.
    async fn plan(&self) -> Result<Plan, CallError> {
        let looked = self.plan.get_or_try_init(|| async {
            let (name, settings) = (self.name.clone(), self.settings.clone());
            self.db
                .tx(move |mut session| {
                    Box::pin(async move { Plan::make(&mut session, &name, &settings).await })
                })
                .await
                .map_err(|error| self.named(error))
        });
        looked.await.cloned()
    }

    /// Puts before what the database refuses the setting that it is about.
    fn named(&self, error: CallError) -> CallError {
        let words = match error {
            CallError::Configuration(words) | CallError::Data(words) => words,
            other => return other,
        };
        let owner = format!("order_owners.{}", self.name);
        if words.starts_with(&owner) {
            return CallError::Configuration(words);
        }
        let setting = if refuses_login(&words) {
            "database_url"
        } else if words.contains("denied") {
            "table"
        } else if self.settings.filter.is_empty() {
            "pending, paid or table"
        } else {
            "filter, pending or paid"
        };
        CallError::Configuration(format!("{owner}.{setting}: {words}"))
    }
}

#[async_trait]
impl OrderOwner for SqlOwner {
    async fn overdue_orders(
        &self,
        after: Option<&Overdue>,
        ahead: Duration,
        limit: u32,
    ) -> Result<Vec<Overdue>, CallError> {
        let plan = self.plan().await?;
        let ahead = TimeDelta::from_std(ahead)
            .map_err(|error| CallError::Configuration(format!("look-ahead: {error}")))?;
        let after = after.map(|last| Position {
            stored: self
                .stored(last)
                .unwrap_or_else(|| plan.due.stored(last.due_at)),
            tenant: last.order.tenant.clone(),
            order_id: last.order.order_id.clone(),
        });
        let page = self
            .db
            .tx(move |mut session| {
                Box::pin(async move {
                    let until = now(&mut session).await? + ahead;
                    page(&mut session, &plan, after, until, limit).await
                })
            })
            .await
            .map_err(|error| self.named(error))?;
        self.tell(&page.passed_over);
        if let Some(last) = page.last {
            *self.last() = Some(last);
        }
        Ok(page.due)
    }

    fn look_ahead(&self) -> Duration {
        self.settings.look_ahead.into()
    }

    async fn paid(&self, orders: &[OrderKey]) -> Result<Vec<bool>, CallError> {
        let plan = self.plan().await?;
        if plan.paid.is_empty() {
            return Ok(vec![false; orders.len()]);
        }
        let ids: Vec<String> = orders
            .iter()
            .filter(|order| plan.is_id(&order.order_id))
            .map(|order| order.order_id.clone())
            .collect();
        let paid: HashSet<OrderKey> = self
            .db
            .tx(move |mut session| {
                Box::pin(async move { find_paid(&mut session, &plan, &ids).await })
            })
            .await
            .map_err(|error| self.named(error))?;
        Ok(orders.iter().map(|order| paid.contains(order)).collect())
    }
}

/// Where a page begins, as the table has it.
struct Position {
    stored: i64,
    tenant: String,
    order_id: String,
}

async fn now(session: &mut Session<'_>) -> Result<Timestamp, CallError> {
    let dialect = session.dialect();
    let rows = session
        .rows(Sql::new(dialect, format!("select {}", dialect.now())))
        .await?;
    let micros = rows.into_iter().flatten().flatten().next();
    micros
        .and_then(|text| text.parse().ok())
        .and_then(DateTime::from_timestamp_micros)
        .ok_or_else(|| CallError::Unknown("the database does not tell the time".to_owned()))
}

/// A page, and which rows on the way could not be read.
#[derive(Default)]
struct Page {
    due: Vec<Overdue>,
    last: Option<(Overdue, i64)>,
    passed_over: Vec<Unreadable>,
}

/// What is stored as due and is not (a local time that comes twice) is passed over, and so are rows that can't be read:
/// the next rows are those after the last row, whatever is in it.
async fn page(
    session: &mut Session<'_>,
    plan: &Plan,
    mut after: Option<Position>,
    until: Timestamp,
    limit: u32,
) -> Result<Page, CallError> {
    let mut page = Page::default();
    loop {
        let rows = session
            .rows(page_query(plan, after.as_ref(), until, limit))
            .await?;
        let is_last = rows.len() < limit as usize;
        for row in rows {
            let (stored, order) = read(plan, row)?;
            let (tenant, order_id) = match &order {
                Ok(order) => (&order.order.tenant, &order.order.order_id),
                Err(row) => (&row.tenant, &row.order_id),
            };
            after = Some(Position {
                stored,
                tenant: tenant.clone(),
                order_id: order_id.clone(),
            });
            match order {
                Ok(order) if order.due_at <= until => {
                    page.last = Some((order.clone(), stored));
                    page.due.push(order);
                }
                Ok(_) => {}
                Err(row) => page.passed_over.push(row),
            }
        }
        if is_last || !page.due.is_empty() {
            return Ok(page);
        }
    }
}

fn page_query(plan: &Plan, after: Option<&Position>, until: Timestamp, limit: u32) -> Sql {
    let time = &plan.time;
    let stored = |sql: &mut Sql, comparison: &str, stored: i64| {
        sql.push(&format!("{}{comparison}", time.name));
        sql.bind(plan.due.literal(stored), &time.cast);
    };
    let mut sql = plan.select(std::slice::from_ref(&plan.stored));
    sql.push(&format!(" where {} in ", plan.status.name))
        .bind_list(&plan.pending, &plan.status.cast)
        .push(" and ");
    stored(&mut sql, " <= ", plan.due.stored(until));
    sql.push(" and ");
    match after {
        None => stored(&mut sql, " > ", plan.none_before),
        Some(after) => {
            stored(&mut sql, " >= ", after.stored);
            sql.push(" and (");
            stored(&mut sql, " > ", after.stored);
            sql.push(" or ");
            stored(&mut sql, " = ", after.stored);
            sql.push(" and ");
            plan.past(&mut sql, &after.tenant, &after.order_id);
            sql.push(")");
        }
    }
    plan.restrict(&mut sql);
    sql.push(&format!(
        " order by {}, {} limit {limit}",
        time.name, plan.order
    ));
    sql
}

/// The stored time of a row, and its order.
///
/// # Errors
/// If the database gives no number for a time that it compared.
fn read(plan: &Plan, mut row: Row) -> Result<(i64, Result<Overdue, Unreadable>), CallError> {
    let stored: i64 = row
        .pop()
        .flatten()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| CallError::Unknown("a due time is no number".to_owned()))?;
    let order = plan.read(row).and_then(|(order, order_type)| {
        let Some(due_at) = plan.due.due_at(stored) else {
            return Err(Unreadable {
                tenant: order.tenant,
                order_id: order.order_id,
                column: "due_at",
            });
        };
        Ok(Overdue {
            order,
            order_type,
            due_at,
        })
    });
    Ok((stored, order))
}

async fn find_paid(
    session: &mut Session<'_>,
    plan: &Plan,
    ids: &[String],
) -> Result<HashSet<OrderKey>, CallError> {
    let mut paid = HashSet::new();
    for ids in ids.chunks(ASKED_AT_ONCE) {
        let mut sql = plan.select(&[]);
        sql.push(&format!(" where {} in ", plan.id.name))
            .bind_list(ids, &plan.id.cast)
            .push(&format!(" and {} in ", plan.status.name))
            .bind_list(&plan.paid, &plan.status.cast);
        let rows = session.rows(sql).await?;
        paid.extend(
            rows.into_iter()
                .filter_map(|row| plan.read(row).ok().map(|(key, _)| key)),
        );
    }
    Ok(paid)
}
