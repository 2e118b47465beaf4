//! The reference shop's own side: placing, paying, looking. What a real shop does around its sagas.
//!
//! Placing writes the order, its holds, the stock it takes and the order event in one transaction; paying is
//! conditional on the order's status alone. Relies on schema `shop`, which [`migrate`] creates. Never: cancels; that
//! is the participants', behind the barrier.

mod event;
mod pay;
mod place;
mod view;

use lapse_sagas::Timestamp;
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use sqlx::migrate::Migrator;
use sqlx::{ConnectOptions, PgPool};

pub use pay::PayOutcome;
pub use place::{Line, NewOrder, Placed, Refusal};
pub use view::{HoldView, LedgerView, OrderView, StockView, Totals};

use crate::fault::Answer;
use crate::kit::{CallError, db};
use crate::stock::StockKey;

/// The shop.
#[derive(Clone)]
pub struct Shop {
    pool: PgPool,
}

/// Which order: within a tenant its id is unique over all generations.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct OrderRef {
    /// `default` where a shop has only one.
    pub tenant: String,
    /// The order's id.
    pub order_id: String,
}

/// What became of an extension.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum ExtendOutcome {
    /// The order has a new deadline.
    Extended {
        /// From now on it is due then.
        due_at: Timestamp,
    },
    /// It no longer awaits payment.
    Refused {
        /// `paid` or `cancelled`.
        status: String,
    },
    /// There is no such order.
    UnknownOrder,
}

/// An order event that waits for the broker.
#[derive(Clone, PartialEq, Debug)]
pub struct OutboxRow {
    /// To delete it by.
    pub outbox_id: i64,
    /// Kafka key: the order id.
    pub key: String,
    /// To choose the definition, and so the topic, by.
    pub order_type: String,
    /// When the order falls due.
    pub due_at: Timestamp,
    /// The event, JSON.
    pub payload: String,
}

/// Creates or updates schema `shop`. Its table of migrations is in that schema too, so that the coordinator's can be in
/// the same database.
///
/// # Errors
/// [`CallError`] from the database; an applied migration that has changed since is a fault of configuration.
pub async fn migrate(pool: &PgPool) -> Result<(), CallError> {
    // Not one of the pool's connections: theirs wait at most a second for another coordinator that is migrating.
    let options = (*pool.connect_options())
        .clone()
        .options([("lock_timeout", "60s"), ("statement_timeout", "0")]);
    let done = tokio::spawn(async move {
        let mut connection = options.connect().await?;
        let mut migrator: Migrator = sqlx::migrate!();
        migrator.create_schema("shop");
        migrator.dangerous_set_table_name("shop.migration");
        migrator.run_direct(None, &mut connection, false).await?;
        Ok(())
    });
    done.await
        .unwrap_or_else(|_| Err(sqlx::Error::WorkerCrashed.into()))
}

impl Shop {
    /// On a pool made with [`db::options`].
    pub fn new(pool: PgPool) -> Self {
        Shop { pool }
    }

    /// The time by the shop's clock, which decides what is due.
    ///
    /// # Errors
    /// [`CallError`] from the database.
    pub async fn now(&self) -> Result<Timestamp, CallError> {
        db::statement(&self.pool, |connection| {
            Box::pin(async move {
                let now = sqlx::query_scalar!(r#"select clock_timestamp() as "now!""#);
                Ok(now.fetch_one(connection).await?)
            })
        })
        .await
    }

    /// New units arrive.
    ///
    /// # Errors
    /// [`CallError::Data`] if the quantity is not above zero or has more than six decimals.
    pub async fn stock_up(
        &self,
        sku: &str,
        warehouse: &str,
        quantity: Decimal,
    ) -> Result<(), CallError> {
        let key = StockKey {
            sku: sku.to_owned(),
            warehouse: warehouse.to_owned(),
        };
        self.stock_up_many(&[(key, quantity)]).await
    }

    /// New units of many kinds arrive, all or none.
    ///
    /// # Errors
    /// As [`Shop::stock_up`].
    pub async fn stock_up_many(&self, units: &[(StockKey, Decimal)]) -> Result<(), CallError> {
        let units = units.to_vec();
        db::tx(&self.pool, move |connection| {
            Box::pin(async move {
                let skus: Vec<&str> = units.iter().map(|(key, _)| key.sku.as_str()).collect();
                let warehouses: Vec<&str> =
                    units.iter().map(|(key, _)| key.warehouse.as_str()).collect();
                let quantities: Vec<Decimal> =
                    units.iter().map(|(_, quantity)| *quantity).collect();
                sqlx::query!(
                    "with supplied as (
                         insert into shop.supply (sku, warehouse, quantity)
                         select sku, warehouse, quantity
                         from unnest($1::text[], $2::text[], $3::numeric[]) as given (sku, warehouse, quantity)
                         returning sku, warehouse, quantity
                     )
                     insert into shop.stock (sku, warehouse, available)
                     select sku, warehouse, sum(quantity) from supplied
                     group by sku, warehouse order by sku, warehouse
                     on conflict (sku, warehouse) do update set available = stock.available + excluded.available",
                    &skus as &[&str],
                    &warehouses as &[&str],
                    &quantities,
                )
                .execute(connection)
                .await?;
                Ok(())
            })
        })
        .await
    }

    /// Gives an order that still awaits payment a new payment deadline, earlier or later. What lay between deadline
    /// and enforcement stays between them.
    ///
    /// # Errors
    /// [`CallError`] from the database.
    pub async fn extend(
        &self,
        order: &OrderRef,
        pay_deadline: Timestamp,
    ) -> Result<ExtendOutcome, CallError> {
        let order = order.clone();
        db::tx(&self.pool, move |connection| {
            Box::pin(async move {
                let extended = sqlx::query_scalar!(
                    r#"update shop.orders
                       set pay_deadline = $3::timestamptz, enforce_at = $3::timestamptz + (enforce_at - pay_deadline),
                           deadline_version = deadline_version + 1, version = version + 1
                       where tenant = $1 and order_id = $2 and status = 'awaiting_payment'
                       returning due_at as "due_at!""#,
                    order.tenant,
                    order.order_id,
                    pay_deadline,
                )
                .fetch_optional(&mut *connection)
                .await?;
                if let Some(due_at) = extended {
                    return Ok(ExtendOutcome::Extended { due_at });
                }
                let status = sqlx::query_scalar!(
                    "select status from shop.orders where tenant = $1 and order_id = $2",
                    order.tenant,
                    order.order_id,
                )
                .fetch_optional(connection)
                .await?;
                Ok(match status {
                    Some(status) => ExtendOutcome::Refused { status },
                    None => ExtendOutcome::UnknownOrder,
                })
            })
        })
        .await
    }

    /// Plants a fault: the next `times` calls of this operation for this order go wrong. Replaces an earlier one; zero
    /// removes it.
    ///
    /// # Errors
    /// [`CallError`] from the database.
    pub async fn set_fault(
        &self,
        order: &OrderRef,
        operation: &str,
        answer: Answer,
        times: i32,
    ) -> Result<(), CallError> {
        let (order, operation) = (order.clone(), operation.to_owned());
        db::statement(&self.pool, move |connection| {
            Box::pin(async move {
                sqlx::query!(
                    "insert into shop.fault (tenant, order_id, operation, answer, remaining)
                     values ($1, $2, $3, $4, $5)
                     on conflict (tenant, order_id, operation)
                     do update set answer = excluded.answer, remaining = excluded.remaining",
                    order.tenant,
                    order.order_id,
                    operation,
                    answer.name(),
                    times,
                )
                .execute(connection)
                .await?;
                Ok(())
            })
        })
        .await
    }

    /// Takes order events to produce, oldest first; for half a minute nobody else gets them. Delete each once the
    /// broker has acknowledged it: a crash in between only produces it twice.
    ///
    /// # Errors
    /// [`CallError`] from the database.
    pub async fn claim_outbox(&self, limit: u32) -> Result<Vec<OutboxRow>, CallError> {
        db::statement(&self.pool, move |connection| {
            Box::pin(async move {
                let mut rows = sqlx::query_as!(
                    OutboxRow,
                    "update shop.outbox set claimed_until = clock_timestamp() + interval '30 s'
                     where outbox_id in (
                         select outbox_id from shop.outbox where claimed_until <= clock_timestamp()
                         order by outbox_id limit $1 for update skip locked)
                     returning outbox_id, key, order_type, due_at, payload",
                    i64::from(limit),
                )
                .fetch_all(connection)
                .await?;
                rows.sort_by_key(|row| row.outbox_id);
                Ok(rows)
            })
        })
        .await
    }

    /// Removes order events that the broker has.
    ///
    /// # Errors
    /// [`CallError`] from the database.
    pub async fn delete_outbox(&self, outbox_ids: &[i64]) -> Result<(), CallError> {
        let outbox_ids = outbox_ids.to_vec();
        db::statement(&self.pool, move |connection| {
            Box::pin(async move {
                sqlx::query!(
                    "delete from shop.outbox where outbox_id = any($1)",
                    &outbox_ids
                )
                .execute(connection)
                .await?;
                Ok(())
            })
        })
        .await
    }
}
