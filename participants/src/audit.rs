//! What `lapse verify` checks in the shop: every promise about orders and stock, recomputed from the shop's tables.
//!
//! Relies on one snapshot for all checks, so that it can run beside traffic; what is merely under way is told from
//! what is wrong by the spans in [`Bounds`]. Never: believes a stored total that can be recomputed, or repairs.

use chrono::TimeDelta;
use lapse_sagas::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::types::Json;
use sqlx::{PgConnection, PgPool};

use crate::kit::{CallError, db};

/// So many examples per check.
pub const MAX_ROWS: usize = 20;

/// What to look at, and from when on something is wrong and not just under way.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bounds {
    /// Orders placed from then on; stock is always recomputed as a whole.
    pub since: Timestamp,
    /// So long after its due time an order may be cancelled.
    pub late_after: TimeDelta,
    /// So long an order may await payment past its due time, or be cancelled with open holds.
    pub settled_after: TimeDelta,
}

impl Default for Bounds {
    /// Everything; 30 s (guarantee G7) for both.
    fn default() -> Self {
        Bounds {
            since: Timestamp::UNIX_EPOCH,
            late_after: TimeDelta::seconds(30),
            settled_after: TimeDelta::seconds(30),
        }
    }
}

/// The result of one check.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Check {
    /// Stable name.
    pub id: String,
    /// No violations.
    pub ok: bool,
    /// How many rows were looked at.
    pub checked: i64,
    /// How many of them break the promise.
    pub violations: i64,
    /// The first 20 of those.
    pub rows: Vec<Value>,
}

impl Check {
    /// The check `late`, which looked at so many orders and found these.
    pub fn late(checked: i64, late: &[Late]) -> Check {
        Check {
            id: "late".to_owned(),
            ok: late.is_empty(),
            checked,
            violations: i64::try_from(late.len()).unwrap_or(i64::MAX),
            rows: late.iter().take(MAX_ROWS).map(|late| json!(late)).collect(),
        }
    }
}

/// An order that a timer or the sweep cancelled late.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Late {
    pub tenant: String,
    pub order_id: String,
    pub due_at: Timestamp,
    pub cancelled_at: Timestamp,
    /// The command that did it.
    pub cancelled_by: String,
    pub cancel_reason: String,
    /// Seconds past the due time, or past its placing or re-opening if that was later.
    pub late_s: f64,
}

/// How late orders were cancelled by timers and the sweep, in milliseconds past their due time.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Lateness {
    /// How many orders that is from.
    pub orders: i64,
    /// Median.
    pub p50: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// The latest.
    pub max: Option<f64>,
}

/// All checks, and the lateness.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Audit {
    /// In a fixed order.
    pub checks: Vec<Check>,
    /// All orders of the check `late`, the latest first. That a human had one of them tried again in between is for
    /// those to say who keep the sagas.
    pub late: Vec<Late>,
    /// Of the same orders.
    pub lateness: Lateness,
}

/// Runs every check on one snapshot.
///
/// # Errors
/// [`CallError`] from the database: then nothing was checked.
pub async fn run(pool: &PgPool, bounds: &Bounds) -> Result<Audit, CallError> {
    let bounds = *bounds;
    db::tx(pool, move |connection| {
        Box::pin(async move {
            snapshot(connection).await?;
            let (on_time, late) = late(connection, &bounds).await?;
            let checks = vec![
                doubled_stock(connection, &bounds).await?,
                stock_conserved(connection).await?,
                early(connection, &bounds).await?,
                on_time,
                cancelled_after_paid(connection, &bounds).await?,
                paid_after_cancelled(connection, &bounds).await?,
                paid_but_not_sold(connection, &bounds).await?,
                hold_left_open(connection, &bounds).await?,
                lost(connection, &bounds).await?,
            ];
            let lateness = measure_lateness(connection, &bounds).await?;
            Ok(Audit {
                checks,
                late,
                lateness,
            })
        })
    })
    .await
}

/// Only the lateness.
///
/// # Errors
/// [`CallError`] from the database.
pub async fn lateness(pool: &PgPool, bounds: &Bounds) -> Result<Lateness, CallError> {
    let bounds = *bounds;
    db::tx(pool, move |connection| {
        Box::pin(async move {
            snapshot(connection).await?;
            Ok(measure_lateness(connection, &bounds).await?)
        })
    })
    .await
}

/// One snapshot, and the limits of the hot path lifted: whole tables are read here.
async fn snapshot(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(
        "set transaction isolation level repeatable read, read only;
         set local statement_timeout = 0;
         set local enable_seqscan = on",
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// What every check's statement returns.
struct Found {
    checked: i64,
    violations: i64,
    rows: Value,
}

impl Found {
    fn check(self, id: &str) -> Check {
        Check {
            id: id.to_owned(),
            ok: self.violations == 0,
            checked: self.checked,
            violations: self.violations,
            rows: match self.rows {
                Value::Array(rows) => rows,
                _ => Vec::new(),
            },
        }
    }
}

/// Every hold's state, generation and quantity agree with its movements in the ledger.
async fn doubled_stock(
    connection: &mut PgConnection,
    bounds: &Bounds,
) -> Result<Check, sqlx::Error> {
    let found = sqlx::query_file_as!(Found, "src/sql/audit/doubled_stock.sql", bounds.since)
        .fetch_one(connection)
        .await?;
    Ok(found.check("doubled_stock"))
}

/// For every stock key: what came in = available + sold + what open holds hold.
async fn stock_conserved(connection: &mut PgConnection) -> Result<Check, sqlx::Error> {
    let found = sqlx::query_file_as!(Found, "src/sql/audit/stock_conserved.sql")
        .fetch_one(connection)
        .await?;
    Ok(found.check("stock_conserved"))
}

/// No timer and no sweep cancelled an order before its due time.
async fn early(connection: &mut PgConnection, bounds: &Bounds) -> Result<Check, sqlx::Error> {
    let found = sqlx::query_file_as!(Found, "src/sql/audit/early.sql", bounds.since)
        .fetch_one(connection)
        .await?;
    Ok(found.check("early"))
}

/// No timer and no sweep cancelled an order long after its due time, or after it was placed or re-opened if that was
/// later.
async fn late(
    connection: &mut PgConnection,
    bounds: &Bounds,
) -> Result<(Check, Vec<Late>), sqlx::Error> {
    let found = sqlx::query_file!(
        "src/sql/audit/late.sql",
        bounds.since,
        bounds.late_after.as_seconds_f64()
    )
    .fetch_one(connection)
    .await?;
    let Json(late) = found.orders;
    Ok((Check::late(found.checked, &late), late))
}

/// No order that was paid is or was cancelled afterwards.
async fn cancelled_after_paid(
    connection: &mut PgConnection,
    bounds: &Bounds,
) -> Result<Check, sqlx::Error> {
    let found = sqlx::query_file_as!(
        Found,
        "src/sql/audit/cancelled_after_paid.sql",
        bounds.since
    )
    .fetch_one(connection)
    .await?;
    Ok(found.check("cancelled_after_paid"))
}

/// No order that was cancelled, and not re-opened, is paid.
async fn paid_after_cancelled(
    connection: &mut PgConnection,
    bounds: &Bounds,
) -> Result<Check, sqlx::Error> {
    let found = sqlx::query_file_as!(
        Found,
        "src/sql/audit/paid_after_cancelled.sql",
        bounds.since
    )
    .fetch_one(connection)
    .await?;
    Ok(found.check("paid_after_cancelled"))
}

/// Every hold of a paid order is sold, and no hold of any other is.
async fn paid_but_not_sold(
    connection: &mut PgConnection,
    bounds: &Bounds,
) -> Result<Check, sqlx::Error> {
    let found = sqlx::query_file_as!(Found, "src/sql/audit/paid_but_not_sold.sql", bounds.since)
        .fetch_one(connection)
        .await?;
    Ok(found.check("paid_but_not_sold"))
}

/// No order that was cancelled a while ago still holds stock.
async fn hold_left_open(
    connection: &mut PgConnection,
    bounds: &Bounds,
) -> Result<Check, sqlx::Error> {
    let found = sqlx::query_file_as!(
        Found,
        "src/sql/audit/hold_left_open.sql",
        bounds.since,
        bounds.settled_after.as_seconds_f64()
    )
    .fetch_one(connection)
    .await?;
    Ok(found.check("hold_left_open"))
}

/// No order awaits payment long past its due time, unless it was left to a human.
async fn lost(connection: &mut PgConnection, bounds: &Bounds) -> Result<Check, sqlx::Error> {
    let found = sqlx::query_file_as!(
        Found,
        "src/sql/audit/lost.sql",
        bounds.since,
        bounds.settled_after.as_seconds_f64()
    )
    .fetch_one(connection)
    .await?;
    Ok(found.check("lost"))
}

async fn measure_lateness(
    connection: &mut PgConnection,
    bounds: &Bounds,
) -> Result<Lateness, sqlx::Error> {
    sqlx::query_as!(
        Lateness,
        r#"with measured as (
               select extract(epoch from cancelled_at - greatest(due_at, placed_at, reopened_at))::float8 * 1000 as ms
               from shop.orders
               where status = 'cancelled' and cancel_reason in ('timeout', 'sweep') and placed_at >= $1
           )
           select count(*) as "orders!",
               percentile_disc(0.5) within group (order by ms) as p50,
               percentile_disc(0.99) within group (order by ms) as p99,
               max(ms) as max
           from measured"#,
        bounds.since,
    )
    .fetch_one(connection)
    .await
}
