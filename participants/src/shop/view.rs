//! Looking at one order, with everything that hangs on it.
//!
//! One statement per part in one transaction with one snapshot. Never: changes anything.

use lapse_sagas::Timestamp;
use rust_decimal::Decimal;
use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{OrderRef, Shop};
use crate::kit::{CallError, db};

/// An order as it stands.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct OrderView {
    /// Whose shop.
    pub tenant: String,
    /// Its id.
    pub order_id: String,
    /// The holding period.
    pub generation: i32,
    /// Chooses the saga definition.
    pub order_type: String,
    /// `awaiting_payment`, `paid` or `cancelled`.
    pub status: String,
    /// The price in minor units.
    pub total_minor: i64,
    /// Its currency.
    pub currency: String,
    /// When it stops being payable.
    pub pay_deadline: Timestamp,
    /// When it is cancelled, if that is not the same.
    pub enforce_at: Option<Timestamp>,
    /// The later two in one.
    pub due_at: Timestamp,
    /// Raised with every change.
    pub version: i64,
    /// When it was placed.
    pub placed_at: Timestamp,
    /// When it was paid.
    pub paid_at: Option<Timestamp>,
    /// When it was cancelled.
    pub cancelled_at: Option<Timestamp>,
    /// By which command.
    pub cancelled_by: Option<String>,
    /// `timeout`, `sweep`, `buyer` or `operator`.
    pub cancel_reason: Option<String>,
    /// When a saga that could not be finished re-opened it.
    pub reopened_at: Option<Timestamp>,
    /// A human has to decide; the sweep leaves it alone.
    pub needs_attention: bool,
    /// What it took out of stock.
    pub holds: Vec<HoldView>,
    /// What was given back and taken back.
    pub ledger: Vec<LedgerView>,
    /// The stock rows of its holds.
    pub stock: Vec<StockView>,
}

/// One hold.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct HoldView {
    /// Its id.
    pub hold_id: Uuid,
    /// The holding period of the order.
    pub generation: i32,
    /// The order's line, from 1.
    pub line: i32,
    /// What.
    pub sku: String,
    /// Where.
    pub warehouse: String,
    /// How much.
    pub quantity: Decimal,
    /// `open`, `released` or `sold`.
    pub state: String,
    /// Raised each time it is taken back.
    pub hold_generation: i32,
}

/// One movement.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LedgerView {
    /// Of which hold.
    pub hold_id: Uuid,
    /// In which of its generations.
    pub hold_generation: i32,
    /// `release` or `withdraw`.
    pub direction: String,
    /// How much.
    pub quantity: Decimal,
    /// By which command.
    pub command_id: String,
    /// When.
    pub at: Timestamp,
}

/// One stock row.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct StockView {
    /// What.
    pub sku: String,
    /// Where.
    pub warehouse: String,
    /// Free to be ordered.
    pub available: Decimal,
    /// Paid for.
    pub sold: Decimal,
}

/// All stock, summed.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Totals {
    /// Free to be ordered.
    pub available: Decimal,
    /// Paid for.
    pub sold: Decimal,
    /// In open holds.
    pub held: Decimal,
}

impl Shop {
    /// One order, or none.
    ///
    /// # Errors
    /// [`CallError`] from the database.
    pub async fn show(&self, order: &OrderRef) -> Result<Option<OrderView>, CallError> {
        let order = order.clone();
        db::tx(&self.pool, move |connection| {
            Box::pin(async move {
                sqlx::query!("set transaction isolation level repeatable read read only")
                    .execute(&mut *connection)
                    .await?;
                let Some(mut view) = order_alone(connection, &order).await? else {
                    return Ok(None);
                };
                view.holds = holds(connection, &order).await?;
                view.ledger = ledger(connection, &order).await?;
                view.stock = stock(connection, &order).await?;
                Ok(Some(view))
            })
        })
        .await
    }

    /// Sums over all stock. Reads all of it, and all holds.
    ///
    /// # Errors
    /// [`CallError`] from the database.
    pub async fn totals(&self) -> Result<Totals, CallError> {
        db::statement(&self.pool, |connection| {
            Box::pin(async move {
                let totals = sqlx::query_as!(
                    Totals,
                    r#"select coalesce(sum(available), 0) as "available!", coalesce(sum(sold), 0) as "sold!",
                           (select coalesce(sum(quantity), 0) from shop.hold where state = 'open') as "held!"
                       from shop.stock"#
                )
                .fetch_one(connection)
                .await?;
                Ok(totals)
            })
        })
        .await
    }
}

async fn order_alone(
    connection: &mut PgConnection,
    order: &OrderRef,
) -> Result<Option<OrderView>, sqlx::Error> {
    let row = sqlx::query!(
        r#"select tenant, order_id, generation, order_type, status, total_minor, currency, pay_deadline, enforce_at,
               due_at as "due_at!", version, placed_at, paid_at, cancelled_at, cancelled_by, cancel_reason,
               reopened_at, needs_attention
           from shop.orders where tenant = $1 and order_id = $2"#,
        order.tenant,
        order.order_id,
    )
    .fetch_optional(connection)
    .await?;
    Ok(row.map(|row| OrderView {
        tenant: row.tenant,
        order_id: row.order_id,
        generation: row.generation,
        order_type: row.order_type,
        status: row.status,
        total_minor: row.total_minor,
        currency: row.currency,
        pay_deadline: row.pay_deadline,
        enforce_at: row.enforce_at,
        due_at: row.due_at,
        version: row.version,
        placed_at: row.placed_at,
        paid_at: row.paid_at,
        cancelled_at: row.cancelled_at,
        cancelled_by: row.cancelled_by,
        cancel_reason: row.cancel_reason,
        reopened_at: row.reopened_at,
        needs_attention: row.needs_attention,
        holds: Vec::new(),
        ledger: Vec::new(),
        stock: Vec::new(),
    }))
}

async fn holds(
    connection: &mut PgConnection,
    order: &OrderRef,
) -> Result<Vec<HoldView>, sqlx::Error> {
    sqlx::query_as!(
        HoldView,
        "select hold_id, generation, line, sku, warehouse, quantity, state, hold_generation
         from shop.hold where tenant = $1 and order_id = $2 order by generation, line",
        order.tenant,
        order.order_id,
    )
    .fetch_all(connection)
    .await
}

async fn ledger(
    connection: &mut PgConnection,
    order: &OrderRef,
) -> Result<Vec<LedgerView>, sqlx::Error> {
    sqlx::query_as!(
        LedgerView,
        "select l.hold_id, l.hold_generation, l.direction, l.quantity, l.command_id, l.at
         from shop.hold h join shop.ledger l using (hold_id)
         where h.tenant = $1 and h.order_id = $2
         order by l.at, h.line, l.hold_generation, l.direction",
        order.tenant,
        order.order_id,
    )
    .fetch_all(connection)
    .await
}

async fn stock(
    connection: &mut PgConnection,
    order: &OrderRef,
) -> Result<Vec<StockView>, sqlx::Error> {
    sqlx::query_as!(
        StockView,
        "select s.sku, s.warehouse, s.available, s.sold
           from (select distinct sku, warehouse from shop.hold where tenant = $1 and order_id = $2) own
           join shop.stock s using (sku, warehouse)
           order by s.sku, s.warehouse",
        order.tenant,
        order.order_id,
    )
    .fetch_all(connection)
    .await
}
