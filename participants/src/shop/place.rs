//! Placing orders: the order, its holds, the stock they take and the order event, in one transaction.
//!
//! Locks in the order of the whole shop: orders by key, then stock keys ascending; the holds are new. An order gets
//! all of its lines or is refused. Never: places part of an order.

use std::collections::BTreeSet;

use chrono::SubsecRound;
use lapse_sagas::Timestamp;
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{Shop, event};
use crate::kit::{CallError, OrderKey, db};
use crate::stock::{Quantities, Shortage, StockKey, lock_stock, take_in_turn};

/// An order to be placed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NewOrder {
    /// `default` where a shop has only one.
    #[serde(default = "default_tenant")]
    pub tenant: String,
    /// Given by the shop if there is none.
    #[serde(default)]
    pub order_id: Option<String>,
    /// Chooses the saga definition.
    pub order_type: String,
    /// At least one.
    pub lines: Vec<Line>,
    /// When it stops being payable, as the buyer is told.
    pub pay_deadline: Timestamp,
    /// When it is cancelled, if later than the buyer is told.
    #[serde(default)]
    pub enforce_at: Option<Timestamp>,
    /// The price in minor units; above zero, for an order without one never awaits payment.
    #[serde(default = "default_total_minor")]
    pub total_minor: i64,
    /// Its currency.
    #[serde(default = "default_currency")]
    pub currency: String,
}

/// One line of an order; it becomes one hold.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Line {
    /// What.
    pub sku: String,
    /// Where from.
    pub warehouse: String,
    /// How much, up to six decimals.
    pub quantity: Decimal,
}

fn default_tenant() -> String {
    "default".to_owned()
}
fn default_total_minor() -> i64 {
    1_000
}
fn default_currency() -> String {
    "EUR".to_owned()
}

impl NewOrder {
    /// An order of the default tenant at ten euros, with an id from the shop.
    pub fn new(order_type: &str, lines: Vec<Line>, pay_deadline: Timestamp) -> Self {
        NewOrder {
            tenant: default_tenant(),
            order_id: None,
            order_type: order_type.to_owned(),
            lines,
            pay_deadline,
            enforce_at: None,
            total_minor: default_total_minor(),
            currency: default_currency(),
        }
    }
}

/// An order that was placed.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Placed {
    /// Its key.
    pub order: OrderKey,
    /// When it will be cancelled if it is not paid.
    pub due_at: Timestamp,
    /// What it holds, one per line.
    pub hold_ids: Vec<Uuid>,
    /// The event that was put into the outbox.
    pub event: Value,
}

/// Why an order was not placed. Nothing of it was.
#[derive(Clone, PartialEq, Debug, Serialize, thiserror::Error)]
#[serde(tag = "refused", rename_all = "snake_case")]
pub enum Refusal {
    /// The order makes no sense.
    #[error("{reason}")]
    Invalid {
        /// What is wrong with it.
        reason: String,
    },
    /// There is an order of that id.
    #[error("order {order_id} exists")]
    OrderExists {
        /// The id.
        order_id: String,
    },
    /// Nothing of the kind was ever in stock.
    #[error("unknown sku {sku} in {warehouse}")]
    UnknownSku {
        /// What.
        sku: String,
        /// Where.
        warehouse: String,
    },
    /// There is too little of it.
    #[error("{sku} in {warehouse}: {available} available, {wanted} wanted")]
    InsufficientStock {
        /// What.
        sku: String,
        /// Where.
        warehouse: String,
        /// How much there is.
        available: Decimal,
        /// How much the order wants, over all of its lines.
        wanted: Decimal,
    },
}

impl From<Shortage> for Refusal {
    fn from(shortage: Shortage) -> Self {
        match shortage {
            Shortage::Unknown(StockKey { sku, warehouse }) => {
                Refusal::UnknownSku { sku, warehouse }
            }
            Shortage::Insufficient {
                key,
                available,
                wanted,
            } => Refusal::InsufficientStock {
                sku: key.sku,
                warehouse: key.warehouse,
                available,
                wanted,
            },
        }
    }
}

impl Shop {
    /// Places one order.
    ///
    /// # Errors
    /// [`CallError`] from the database; a refusal is no error.
    pub async fn place(&self, order: &NewOrder) -> Result<Result<Placed, Refusal>, CallError> {
        let mut placed = self.place_many(std::slice::from_ref(order)).await?;
        Ok(placed.swap_remove(0))
    }

    /// Places orders in one transaction, each wholly or not at all, earlier ones first where stock is short. The answers
    /// are in the order asked.
    ///
    /// # Errors
    /// [`CallError`] from the database; then none was placed.
    pub async fn place_many(
        &self,
        orders: &[NewOrder],
    ) -> Result<Vec<Result<Placed, Refusal>>, CallError> {
        let drafts: Vec<Result<Draft, Refusal>> = orders.iter().map(Draft::of).collect();
        let (wanted, positions): (Vec<Draft>, Vec<usize>) = drafts
            .iter()
            .enumerate()
            .filter_map(|(at, draft)| Some((draft.as_ref().ok()?.clone(), at)))
            .unzip();
        let placed = db::tx(&self.pool, move |connection| {
            Box::pin(place(connection, wanted))
        })
        .await?;
        let mut answers: Vec<Result<Placed, Refusal>> = Vec::with_capacity(orders.len());
        let mut placed = positions.into_iter().zip(placed).peekable();
        for (at, draft) in drafts.into_iter().enumerate() {
            match (draft, placed.next_if(|(position, _)| *position == at)) {
                (Err(refusal), _) => answers.push(Err(refusal)),
                (Ok(_), Some((_, answer))) => answers.push(answer),
                (Ok(draft), None) => answers.push(Err(draft.exists())),
            }
        }
        Ok(answers)
    }
}

/// An order that makes sense, with its ids.
#[derive(Clone)]
struct Draft {
    order: NewOrder,
    order_id: String,
    hold_ids: Vec<Uuid>,
    wants: Quantities,
}

impl Draft {
    fn of(order: &NewOrder) -> Result<Draft, Refusal> {
        let mut order = order.clone();
        let order_id = order
            .order_id
            .clone()
            .unwrap_or_else(|| format!("ord_{}", Uuid::now_v7().simple()));
        if let Some(reason) = what_is_wrong(&order, &order_id) {
            return Err(Refusal::Invalid { reason });
        }
        order.pay_deadline = order.pay_deadline.trunc_subsecs(6);
        order.enforce_at = order.enforce_at.map(|at| at.trunc_subsecs(6));
        let mut wants = Quantities::new();
        for line in &order.lines {
            let key = StockKey {
                sku: line.sku.clone(),
                warehouse: line.warehouse.clone(),
            };
            *wants.entry(key).or_default() += line.quantity;
        }
        let hold_ids = order.lines.iter().map(|_| Uuid::now_v7()).collect();
        Ok(Draft {
            order,
            order_id,
            hold_ids,
            wants,
        })
    }

    fn exists(&self) -> Refusal {
        Refusal::OrderExists {
            order_id: self.order_id.clone(),
        }
    }
}

fn what_is_wrong(order: &NewOrder, order_id: &str) -> Option<String> {
    let limit = Decimal::from(1_000_000_000_000_000_i64);
    if order.tenant.trim().is_empty() || order_id.trim().is_empty() {
        return Some("tenant and order id must not be empty".to_owned());
    }
    if order_id.chars().count() > 200 {
        return Some("the order id is longer than 200 characters".to_owned());
    }
    if order.lines.is_empty() {
        return Some("an order has at least one line".to_owned());
    }
    if order.total_minor <= 0 {
        return Some("an order without a price never awaits payment".to_owned());
    }
    if order.enforce_at.is_some_and(|at| at < order.pay_deadline) {
        return Some("enforce_at lies before the payment deadline".to_owned());
    }
    let odd = |line: &&Line| {
        line.quantity <= Decimal::ZERO || line.quantity >= limit || line.quantity.scale() > 6
    };
    let line = order.lines.iter().find(odd)?;
    Some(format!(
        "quantity {} of {} is not above zero, not below 1e15 or has more than six decimals",
        line.quantity, line.sku
    ))
}

async fn place(
    connection: &mut PgConnection,
    drafts: Vec<Draft>,
) -> Result<Vec<Result<Placed, Refusal>>, CallError> {
    if drafts.is_empty() {
        return Ok(Vec::new());
    }
    let placed_at = insert_orders(connection, &drafts).await?;
    let fresh: Vec<usize> = (0..drafts.len())
        .filter(|at| placed_at[*at].is_some())
        .collect();
    let wanted: Vec<Quantities> = fresh.iter().map(|at| drafts[*at].wants.clone()).collect();
    let keys: BTreeSet<&StockKey> = wanted.iter().flat_map(Quantities::keys).collect();
    let available = lock_stock(connection, keys.into_iter()).await?;
    let mut taken = fresh
        .iter()
        .zip(take_in_turn(available, &wanted))
        .peekable();
    let mut answers = Vec::with_capacity(drafts.len());
    for (at, draft) in drafts.iter().enumerate() {
        let took = taken.next_if(|(position, _)| **position == at);
        answers.push(match (placed_at[at], took) {
            (Some(placed_at), Some((_, Ok(())))) => Ok(placed(draft, placed_at)),
            (_, Some((_, Err(shortage)))) => Err(Refusal::from(shortage)),
            _ => Err(draft.exists()),
        });
    }
    let refused: Vec<&Draft> = fresh
        .iter()
        .filter(|at| answers[**at].is_err())
        .map(|at| &drafts[*at])
        .collect();
    delete_orders(connection, &refused).await?;
    let accepted: Vec<(&Draft, &Placed)> = drafts
        .iter()
        .zip(&answers)
        .filter_map(|(draft, answer)| Some((draft, answer.as_ref().ok()?)))
        .collect();
    take(connection, &accepted).await?;
    publish(connection, &accepted).await?;
    Ok(answers)
}

fn placed(draft: &Draft, placed_at: Timestamp) -> Placed {
    let order = &draft.order;
    Placed {
        order: OrderKey {
            tenant: order.tenant.clone(),
            order_id: draft.order_id.clone(),
            generation: 1,
        },
        due_at: order.enforce_at.unwrap_or(order.pay_deadline),
        hold_ids: draft.hold_ids.clone(),
        event: event::placed(&draft.order_id, order, &draft.hold_ids, placed_at),
    }
}

/// When each was placed; none where an order of that id exists, or comes twice in this batch.
async fn insert_orders(
    connection: &mut PgConnection,
    drafts: &[Draft],
) -> Result<Vec<Option<Timestamp>>, sqlx::Error> {
    let tenants: Vec<&str> = drafts.iter().map(|d| d.order.tenant.as_str()).collect();
    let order_ids: Vec<&str> = drafts.iter().map(|d| d.order_id.as_str()).collect();
    let order_types: Vec<&str> = drafts.iter().map(|d| d.order.order_type.as_str()).collect();
    let totals: Vec<i64> = drafts.iter().map(|d| d.order.total_minor).collect();
    let currencies: Vec<&str> = drafts.iter().map(|d| d.order.currency.as_str()).collect();
    let deadlines: Vec<Timestamp> = drafts.iter().map(|d| d.order.pay_deadline).collect();
    let enforce_at: Vec<Option<Timestamp>> = drafts.iter().map(|d| d.order.enforce_at).collect();
    let rows = sqlx::query_file!(
        "src/sql/place_orders.sql",
        &tenants as &[&str],
        &order_ids as &[&str],
        &order_types as &[&str],
        &totals,
        &currencies as &[&str],
        &deadlines,
        &enforce_at as &[Option<Timestamp>],
    )
    .fetch_all(connection)
    .await?;
    let mut at: std::collections::HashMap<(String, String), Timestamp> = rows
        .into_iter()
        .map(|row| ((row.tenant, row.order_id), row.placed_at))
        .collect();
    let found = drafts
        .iter()
        .map(|d| at.remove(&(d.order.tenant.clone(), d.order_id.clone())));
    Ok(found.collect())
}

async fn delete_orders(
    connection: &mut PgConnection,
    refused: &[&Draft],
) -> Result<(), sqlx::Error> {
    if refused.is_empty() {
        return Ok(());
    }
    let tenants: Vec<&str> = refused.iter().map(|d| d.order.tenant.as_str()).collect();
    let order_ids: Vec<&str> = refused.iter().map(|d| d.order_id.as_str()).collect();
    sqlx::query!(
        "delete from shop.orders o
         using unnest($1::text[], $2::text[]) as refused (tenant, order_id)
         where o.tenant = refused.tenant and o.order_id = refused.order_id",
        &tenants as &[&str],
        &order_ids as &[&str],
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Writes the holds and takes their sums from stock, whose rows are locked.
async fn take(
    connection: &mut PgConnection,
    accepted: &[(&Draft, &Placed)],
) -> Result<(), CallError> {
    let mut holds = Holds::default();
    let mut sums = Quantities::new();
    for (draft, _) in accepted {
        for (at, line) in draft.order.lines.iter().enumerate() {
            holds.add(draft, at, line);
        }
        for (key, quantity) in &draft.wants {
            *sums.entry(key.clone()).or_default() += quantity;
        }
    }
    sqlx::query!(
        "insert into shop.hold (hold_id, tenant, order_id, generation, line, sku, warehouse, quantity)
         select hold_id, tenant, order_id, 1, line, sku, warehouse, quantity
         from unnest($1::uuid[], $2::text[], $3::text[], $4::integer[], $5::text[], $6::text[], $7::numeric[])
             as given (hold_id, tenant, order_id, line, sku, warehouse, quantity)",
        &holds.ids,
        &holds.tenants as &[&str],
        &holds.order_ids as &[&str],
        &holds.lines,
        &holds.skus as &[&str],
        &holds.warehouses as &[&str],
        &holds.quantities,
    )
    .execute(&mut *connection)
    .await?;
    let skus: Vec<&str> = sums.keys().map(|key| key.sku.as_str()).collect();
    let warehouses: Vec<&str> = sums.keys().map(|key| key.warehouse.as_str()).collect();
    let quantities: Vec<Decimal> = sums.values().copied().collect();
    sqlx::query!(
        "update shop.stock s set available = s.available - given.quantity
         from unnest($1::text[], $2::text[], $3::numeric[]) as given (sku, warehouse, quantity)
         where s.sku = given.sku and s.warehouse = given.warehouse",
        &skus as &[&str],
        &warehouses as &[&str],
        &quantities,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Holds as the columns that `unnest` takes.
#[derive(Default)]
struct Holds<'a> {
    ids: Vec<Uuid>,
    tenants: Vec<&'a str>,
    order_ids: Vec<&'a str>,
    lines: Vec<i32>,
    skus: Vec<&'a str>,
    warehouses: Vec<&'a str>,
    quantities: Vec<Decimal>,
}

impl<'a> Holds<'a> {
    fn add(&mut self, draft: &'a Draft, at: usize, line: &'a Line) {
        self.ids.push(draft.hold_ids[at]);
        self.tenants.push(&draft.order.tenant);
        self.order_ids.push(&draft.order_id);
        self.lines.push(i32::try_from(at + 1).unwrap_or(i32::MAX));
        self.skus.push(&line.sku);
        self.warehouses.push(&line.warehouse);
        self.quantities.push(line.quantity);
    }
}

async fn publish(
    connection: &mut PgConnection,
    accepted: &[(&Draft, &Placed)],
) -> Result<(), sqlx::Error> {
    let keys: Vec<&str> = accepted.iter().map(|(d, _)| d.order_id.as_str()).collect();
    let order_types: Vec<&str> = accepted
        .iter()
        .map(|(d, _)| d.order.order_type.as_str())
        .collect();
    let due_at: Vec<Timestamp> = accepted.iter().map(|(_, placed)| placed.due_at).collect();
    let payloads: Vec<String> = accepted
        .iter()
        .map(|(_, placed)| placed.event.to_string())
        .collect();
    sqlx::query!(
        "insert into shop.outbox (key, order_type, due_at, payload)
         select key, order_type, due_at, payload
         from unnest($1::text[], $2::text[], $3::timestamptz[], $4::text[]) as given (key, order_type, due_at, payload)",
        &keys as &[&str],
        &order_types as &[&str],
        &due_at,
        &payloads,
    )
    .execute(connection)
    .await?;
    Ok(())
}
