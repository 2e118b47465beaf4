//! The participant `orders`: closes orders that were not paid in time, re-opens them, and says which are overdue.
//!
//! ```text
//!  awaiting_payment ──CancelOrder──► cancelled ──ReopenOrder──► awaiting_payment, needs_attention
//!        └──pay──► paid
//! ```
//! Relies on [`crate::kit::barrier`] for repetitions and on the database's clock for due times. Every change is
//! conditional on the order's own status; "0 rows changed" is never an answer by itself, the order is read again to
//! tell why. Never: touches holds or stock, or compares the event's version.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use async_trait::async_trait;
use lapse_sagas::{Outcome, Timestamp};
use serde_json::json;
use sqlx::{PgConnection, PgPool};

use crate::kit::db::{self, Work};
use crate::kit::{CallError, Command, OrderKey, OrderOwner, Overdue, Participant, Reply, barrier};

/// The shop's orders as a participant and as the order owner.
#[derive(Clone)]
pub struct Orders {
    pool: PgPool,
}

impl Orders {
    /// On a pool to the primary, made with [`db::options`].
    pub fn new(pool: PgPool) -> Self {
        Orders { pool }
    }
}

#[async_trait]
impl Participant for Orders {
    /// `CancelOrder` and its compensation `ReopenOrder`.
    async fn call(&self, operation: &str, commands: &[Command]) -> Result<Vec<Reply>, CallError> {
        let effect: barrier::Effect = match operation {
            "CancelOrder" => cancel,
            "ReopenOrder" => reopen,
            _ => {
                let words = format!("operation: orders don't know {operation}");
                return Err(CallError::Configuration(words));
            }
        };
        barrier::call(&self.pool, operation, commands, effect).await
    }
}

#[async_trait]
impl OrderOwner for Orders {
    async fn overdue_orders(
        &self,
        after: Option<&Overdue>,
        ahead: Duration,
        limit: u32,
    ) -> Result<Vec<Overdue>, CallError> {
        let after = after.cloned();
        db::statement(&self.pool, move |connection| {
            Box::pin(async move {
                let (due_at, tenant, order_id) = match &after {
                    Some(last) => (
                        last.due_at,
                        last.order.tenant.as_str(),
                        last.order.order_id.as_str(),
                    ),
                    None => (Timestamp::UNIX_EPOCH, "", ""),
                };
                // Not clock_timestamp(), which no index can serve: this would read every order that is not due yet.
                let rows = sqlx::query!(
                    r#"select tenant, order_id, generation, order_type, due_at as "due_at!"
                       from shop.orders
                       where status = 'awaiting_payment' and not needs_attention
                         and due_at <= statement_timestamp() + make_interval(secs => $5)
                         and (due_at, tenant, order_id) > ($1, $2, $3)
                       order by due_at, tenant, order_id
                       limit $4"#,
                    due_at,
                    tenant,
                    order_id,
                    i64::from(limit),
                    ahead.as_secs_f64(),
                )
                .fetch_all(connection)
                .await?;
                let overdue = rows.into_iter().map(|row| Overdue {
                    order: OrderKey {
                        tenant: row.tenant,
                        order_id: row.order_id,
                        generation: row.generation,
                    },
                    order_type: row.order_type,
                    due_at: row.due_at,
                });
                Ok(overdue.collect())
            })
        })
        .await
    }

    /// An order counts as paid only in the generation asked for.
    async fn paid(&self, orders: &[OrderKey]) -> Result<Vec<bool>, CallError> {
        let asked = orders.to_vec();
        let paid: HashSet<OrderKey> = db::statement(&self.pool, move |connection| {
            Box::pin(async move { find_paid(connection, &asked).await })
        })
        .await?;
        Ok(orders.iter().map(|order| paid.contains(order)).collect())
    }
}

async fn find_paid(
    connection: &mut PgConnection,
    asked: &[OrderKey],
) -> Result<HashSet<OrderKey>, CallError> {
    let keys = Keys::of(asked.iter());
    let paid = sqlx::query_as!(
        OrderKey,
        "select o.tenant, o.order_id, o.generation
         from unnest($1::text[], $2::text[], $3::integer[]) as wanted (tenant, order_id, generation)
         join shop.orders o using (tenant, order_id, generation)
         where o.status = 'paid'",
        &keys.tenants as &[&str],
        &keys.order_ids as &[&str],
        &keys.generations,
    )
    .fetch_all(connection)
    .await?;
    Ok(paid.into_iter().collect())
}

/// Keys of orders as the columns that `unnest` takes.
struct Keys<'a> {
    tenants: Vec<&'a str>,
    order_ids: Vec<&'a str>,
    generations: Vec<i32>,
}

impl<'a> Keys<'a> {
    fn of(orders: impl Iterator<Item = &'a OrderKey>) -> Self {
        let mut keys = Keys {
            tenants: Vec::new(),
            order_ids: Vec::new(),
            generations: Vec::new(),
        };
        for order in orders {
            keys.tenants.push(&order.tenant);
            keys.order_ids.push(&order.order_id);
            keys.generations.push(order.generation);
        }
        keys
    }
}

/// Splits a batch so that no part names an order twice, each part in the order of the orders' keys: a statement
/// changes a row only once, and locks are always taken in that order.
fn rounds(commands: &[Command]) -> Vec<Vec<&Command>> {
    let mut rounds: Vec<Vec<&Command>> = Vec::new();
    let mut uses: HashMap<(&str, &str), usize> = HashMap::new();
    for command in commands {
        let key = (
            command.order.tenant.as_str(),
            command.order.order_id.as_str(),
        );
        let round = uses.entry(key).or_default();
        if *round == rounds.len() {
            rounds.push(Vec::new());
        }
        rounds[*round].push(command);
        *round += 1;
    }
    for round in &mut rounds {
        round.sort_by(|a, b| a.order.cmp(&b.order));
    }
    rounds
}

/// Outcomes by command id, as the effect has to return them.
fn in_order(commands: &[Command], mut outcomes: HashMap<String, Outcome>) -> Vec<Outcome> {
    let lost = || Outcome::Failed {
        error: "lost_order: the order changed while it was read".to_owned(),
    };
    commands
        .iter()
        .map(|command| {
            outcomes
                .remove(command.command_id.as_str())
                .unwrap_or_else(lost)
        })
        .collect()
}

fn cancel<'t>(
    connection: &'t mut PgConnection,
    commands: &'t [Command],
) -> Work<'t, Vec<Outcome>, CallError> {
    Box::pin(async move {
        let mut outcomes = HashMap::new();
        for round in rounds(commands) {
            outcomes.extend(close(connection, &round).await?);
            let refused: Vec<&Command> = round
                .into_iter()
                .filter(|command| !outcomes.contains_key(command.command_id.as_str()))
                .collect();
            for (command, order) in look_at(connection, &refused).await? {
                outcomes.insert(
                    command.command_id.to_string(),
                    why_not_closed(command, order),
                );
            }
        }
        Ok(in_order(commands, outcomes))
    })
}

/// Closes those that may be closed.
async fn close(
    connection: &mut PgConnection,
    round: &[&Command],
) -> Result<HashMap<String, Outcome>, sqlx::Error> {
    let keys = Keys::of(round.iter().map(|command| &command.order));
    let ids: Vec<&str> = round
        .iter()
        .map(|command| command.command_id.as_str())
        .collect();
    let causes: Vec<&str> = round.iter().map(|command| command.cause.name()).collect();
    let heed_due_time: Vec<bool> = round
        .iter()
        .map(|command| command.cause.respects_due_time())
        .collect();
    let closed = sqlx::query_file!(
        "src/sql/cancel_orders.sql",
        &keys.tenants as &[&str],
        &keys.order_ids as &[&str],
        &keys.generations,
        &ids as &[&str],
        &causes as &[&str],
        &heed_due_time,
    )
    .fetch_all(connection)
    .await?;
    let outcomes = closed.into_iter().map(|row| {
        let output = json!({
            "already": false,
            "due_at": row.due_at,
            "cancelled_at": row.cancelled_at,
        });
        (row.command_id, Outcome::Done { output })
    });
    Ok(outcomes.collect())
}

/// An order as it stands.
struct Standing {
    tenant: String,
    order_id: String,
    generation: i32,
    status: String,
    due_at: Timestamp,
    cancelled_at: Option<Timestamp>,
    cancelled_by: Option<String>,
}

async fn look_at<'a>(
    connection: &mut PgConnection,
    commands: &[&'a Command],
) -> Result<Vec<(&'a Command, Option<Standing>)>, sqlx::Error> {
    if commands.is_empty() {
        return Ok(Vec::new());
    }
    let keys = Keys::of(commands.iter().map(|command| &command.order));
    let rows = sqlx::query_as!(
        Standing,
        r#"select o.tenant, o.order_id, o.generation, o.status, o.due_at as "due_at!",
               o.cancelled_at, o.cancelled_by
           from unnest($1::text[], $2::text[]) as wanted (tenant, order_id)
           join shop.orders o using (tenant, order_id)"#,
        &keys.tenants as &[&str],
        &keys.order_ids as &[&str],
    )
    .fetch_all(connection)
    .await?;
    let mut standings: HashMap<(String, String), Standing> = rows
        .into_iter()
        .map(|row| ((row.tenant.clone(), row.order_id.clone()), row))
        .collect();
    let found = commands.iter().map(|command| {
        let key = (command.order.tenant.clone(), command.order.order_id.clone());
        (*command, standings.remove(&key))
    });
    Ok(found.collect())
}

/// Why the conditional update passed it by.
fn why_not_closed(command: &Command, order: Option<Standing>) -> Outcome {
    let Some(order) = order else {
        return unknown_order(command);
    };
    if order.generation != command.order.generation {
        return Outcome::NotApplicable {
            reason: "generation".to_owned(),
        };
    }
    match order.status.as_str() {
        "paid" => Outcome::NotApplicable {
            reason: "paid".to_owned(),
        },
        "cancelled" => Outcome::Done {
            output: json!({
                "already": true,
                "due_at": order.due_at,
                "cancelled_at": order.cancelled_at,
                "cancelled_by": order.cancelled_by,
            }),
        },
        _ => Outcome::NotDue {
            until: order.due_at,
        },
    }
}

/// An event may be here before its order's transaction has committed: the command is worth its retries.
fn unknown_order(command: &Command) -> Outcome {
    let OrderKey {
        tenant, order_id, ..
    } = &command.order;
    Outcome::Failed {
        error: format!("unknown_order {tenant}/{order_id}"),
    }
}

fn reopen<'t>(
    connection: &'t mut PgConnection,
    commands: &'t [Command],
) -> Work<'t, Vec<Outcome>, CallError> {
    Box::pin(async move {
        let mut outcomes = HashMap::new();
        for round in rounds(commands) {
            let keys = Keys::of(round.iter().map(|command| &command.order));
            let actions: Vec<Option<&str>> = round
                .iter()
                .map(|command| command.action_id.as_ref().map(|id| id.as_str()))
                .collect();
            let ids: Vec<&str> = round
                .iter()
                .map(|command| command.command_id.as_str())
                .collect();
            let reopened = sqlx::query_file_scalar!(
                "src/sql/reopen_orders.sql",
                &keys.tenants as &[&str],
                &keys.order_ids as &[&str],
                &keys.generations,
                &actions as &[Option<&str>],
                &ids as &[&str],
            )
            .fetch_all(&mut *connection)
            .await?;
            outcomes.extend(reopened.into_iter().map(|id| {
                let output = json!({ "undone": true });
                (id, Outcome::Done { output })
            }));
            let refused: Vec<&Command> = round
                .into_iter()
                .filter(|command| !outcomes.contains_key(command.command_id.as_str()))
                .collect();
            for (command, order) in look_at(connection, &refused).await? {
                outcomes.insert(
                    command.command_id.to_string(),
                    why_not_reopened(command, order),
                );
            }
        }
        Ok(in_order(commands, outcomes))
    })
}

/// Somebody else's closing, or a re-opening that already happened, is left as it is.
fn why_not_reopened(command: &Command, order: Option<Standing>) -> Outcome {
    let Some(order) = order else {
        return unknown_order(command);
    };
    Outcome::Done {
        output: json!({
            "undone": false,
            "status": order.status,
            "cancelled_by": order.cancelled_by,
        }),
    }
}
