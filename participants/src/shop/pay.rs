//! Paying: conditional on the order's status alone, so that the last moment belongs to whoever locks the row first.
//!
//! Locks orders by key, then their holds, then stock keys ascending. Never: looks at the deadline; an order that was not
//! cancelled yet can be paid.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};
use sqlx::PgConnection;

use super::{OrderRef, Shop};
use crate::kit::{CallError, db};

/// How often a payment that met a saga in the middle of its work is repeated before the buyer is told.
const TRIES: u32 = 5;

/// What became of a payment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PayOutcome {
    /// The order is paid now and its holds are sold.
    Paid,
    /// It was paid before.
    AlreadyPaid,
    /// Refused: it was cancelled before.
    OrderCancelled,
    /// Refused: there is no such order.
    UnknownOrder,
}

impl Shop {
    /// Pays one order.
    ///
    /// # Errors
    /// [`CallError`] from the database.
    pub async fn pay(&self, order: &OrderRef) -> Result<PayOutcome, CallError> {
        let outcomes = self.pay_many(std::slice::from_ref(order)).await?;
        Ok(outcomes[0])
    }

    /// Pays orders in one transaction. The answers are in the order asked.
    ///
    /// # Errors
    /// [`CallError`] from the database; then none was paid, unless it is `Unknown`.
    pub async fn pay_many(&self, orders: &[OrderRef]) -> Result<Vec<PayOutcome>, CallError> {
        let distinct: BTreeSet<OrderRef> = orders.iter().cloned().collect();
        let mut tries = 0;
        let outcomes = loop {
            let batch: Vec<OrderRef> = distinct.iter().cloned().collect();
            let paid = db::tx(&self.pool, move |connection| {
                Box::pin(pay(connection, batch))
            })
            .await;
            match paid {
                Err(CallError::Serialization(_)) if tries < TRIES => tries += 1,
                paid => break paid?,
            }
        };
        let answer = |order| {
            let outcome = outcomes.get(order).copied();
            outcome.unwrap_or(PayOutcome::UnknownOrder)
        };
        Ok(orders.iter().map(answer).collect())
    }
}

async fn pay(
    connection: &mut PgConnection,
    orders: Vec<OrderRef>,
) -> Result<HashMap<OrderRef, PayOutcome>, CallError> {
    let tenants: Vec<&str> = orders.iter().map(|order| order.tenant.as_str()).collect();
    let order_ids: Vec<&str> = orders.iter().map(|order| order.order_id.as_str()).collect();
    let rows = sqlx::query!(
        "update shop.orders o
         set status = 'paid', version = o.version + 1, paid_at = clock_timestamp(), needs_attention = false
         from (select tenant, order_id
               from unnest($1::text[], $2::text[]) as given (tenant, order_id)
               order by tenant, order_id) wanted
         where o.tenant = wanted.tenant and o.order_id = wanted.order_id and o.status = 'awaiting_payment'
         returning o.tenant, o.order_id, o.generation",
        &tenants as &[&str],
        &order_ids as &[&str],
    )
    .fetch_all(&mut *connection)
    .await?;
    let mut outcomes = HashMap::new();
    let (mut paid_tenants, mut paid_ids, mut generations) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        paid_tenants.push(row.tenant.clone());
        paid_ids.push(row.order_id.clone());
        generations.push(row.generation);
        let order = OrderRef {
            tenant: row.tenant,
            order_id: row.order_id,
        };
        outcomes.insert(order, PayOutcome::Paid);
    }
    if !paid_ids.is_empty() {
        sqlx::query_file!(
            "src/sql/sell_holds.sql",
            &paid_tenants,
            &paid_ids,
            &generations
        )
        .execute(&mut *connection)
        .await?;
    }
    let refused: Vec<&OrderRef> = orders
        .iter()
        .filter(|order| !outcomes.contains_key(order))
        .collect();
    let why = why_refused(connection, &refused).await?;
    outcomes.extend(why);
    Ok(outcomes)
}

async fn why_refused(
    connection: &mut PgConnection,
    refused: &[&OrderRef],
) -> Result<HashMap<OrderRef, PayOutcome>, CallError> {
    if refused.is_empty() {
        return Ok(HashMap::new());
    }
    let tenants: Vec<&str> = refused.iter().map(|order| order.tenant.as_str()).collect();
    let order_ids: Vec<&str> = refused
        .iter()
        .map(|order| order.order_id.as_str())
        .collect();
    let rows = sqlx::query!(
        "select o.tenant, o.order_id, o.status
         from unnest($1::text[], $2::text[]) as wanted (tenant, order_id)
         join shop.orders o using (tenant, order_id)",
        &tenants as &[&str],
        &order_ids as &[&str],
    )
    .fetch_all(connection)
    .await?;
    let mut outcomes = HashMap::new();
    for row in rows {
        let outcome = match row.status.as_str() {
            "paid" => PayOutcome::AlreadyPaid,
            "cancelled" => PayOutcome::OrderCancelled,
            // Re-opened between the two statements: again.
            status => {
                let id = &row.order_id;
                let words = format!("order {id} became {status} while it was paid");
                return Err(CallError::Serialization(words));
            }
        };
        let order = OrderRef {
            tenant: row.tenant,
            order_id: row.order_id,
        };
        outcomes.insert(order, outcome);
    }
    Ok(outcomes)
}
