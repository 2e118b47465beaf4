//! The participant `stock`: gives back what an order held, and takes it back if the saga is undone.
//!
//! ```text
//!  hold:  open ──ReplenishStock──► released ──WithdrawStock──► open, hold_generation + 1
//!           └──pay──► sold
//! ```
//! Relies on [`crate::kit::barrier`] for repetitions; behind it every hold is its own compare-and-set and the ledger
//! is unique per hold, hold generation and direction. Locks are taken in the order holds, then stock keys ascending.
//! What is given back is what the recorded holds say, never what the event's lines say. Never: looks at orders.

use std::collections::{BTreeMap, HashMap};

use async_trait::async_trait;
use lapse_sagas::Outcome;
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use crate::kit::db::Work;
use crate::kit::{CallError, Command, OrderKey, Participant, Reply, barrier};

/// The shop's stock as a participant.
#[derive(Clone)]
pub struct Stock {
    pool: PgPool,
}

impl Stock {
    /// On a pool made with [`crate::kit::db::options`].
    pub fn new(pool: PgPool) -> Self {
        Stock { pool }
    }
}

#[async_trait]
impl Participant for Stock {
    /// `ReplenishStock` and its compensation `WithdrawStock`.
    async fn call(&self, operation: &str, commands: &[Command]) -> Result<Vec<Reply>, CallError> {
        let effect: barrier::Effect = match operation {
            "ReplenishStock" => replenish,
            "WithdrawStock" => withdraw,
            _ => {
                let words = format!("operation: stock doesn't know {operation}");
                return Err(CallError::Configuration(words));
            }
        };
        barrier::call(&self.pool, operation, commands, effect).await
    }
}

/// Where units are counted.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct StockKey {
    /// What.
    pub sku: String,
    /// Where.
    pub warehouse: String,
}

/// Quantities by stock key, in the order in which stock rows are locked.
pub(crate) type Quantities = BTreeMap<StockKey, Decimal>;

/// Why somebody gets nothing of what he wants.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Shortage {
    /// There is no such stock row.
    Unknown(StockKey),
    /// There is less than that.
    Insufficient {
        key: StockKey,
        available: Decimal,
        wanted: Decimal,
    },
}

/// Lets each in turn take all he wants from what is available, or nothing.
pub(crate) fn take_in_turn(
    mut available: Quantities,
    wanted: &[Quantities],
) -> Vec<Result<(), Shortage>> {
    let mut take = |wants: &Quantities| {
        for (key, quantity) in wants {
            let there = *available
                .get(key)
                .ok_or_else(|| Shortage::Unknown(key.clone()))?;
            if there < *quantity {
                let (key, wanted) = (key.clone(), *quantity);
                return Err(Shortage::Insufficient {
                    key,
                    available: there,
                    wanted,
                });
            }
        }
        for (key, quantity) in wants {
            if let Some(there) = available.get_mut(key) {
                *there -= quantity;
            }
        }
        Ok(())
    };
    wanted.iter().map(&mut take).collect()
}

/// Locks these stock rows in order and says what each has; unknown ones are missing from the answer.
pub(crate) async fn lock_stock(
    connection: &mut PgConnection,
    keys: impl Iterator<Item = &StockKey>,
) -> Result<Quantities, sqlx::Error> {
    let (skus, warehouses): (Vec<&str>, Vec<&str>) = keys
        .map(|key| (key.sku.as_str(), key.warehouse.as_str()))
        .unzip();
    let rows = sqlx::query!(
        "select s.sku, s.warehouse, s.available
         from unnest($1::text[], $2::text[]) as wanted (sku, warehouse)
         join shop.stock s using (sku, warehouse)
         order by s.sku, s.warehouse
         for update of s",
        &skus as &[&str],
        &warehouses as &[&str],
    )
    .fetch_all(connection)
    .await?;
    let available = rows.into_iter().map(|row| {
        let key = StockKey {
            sku: row.sku,
            warehouse: row.warehouse,
        };
        (key, row.available)
    });
    Ok(available.collect())
}

/// A hold that a command is about to move.
struct Hold {
    hold_id: Uuid,
    hold_generation: i32,
    key: StockKey,
    quantity: Decimal,
    known: bool,
}

fn sum(holds: &[Hold]) -> Quantities {
    let mut sums = Quantities::new();
    for hold in holds {
        *sums.entry(hold.key.clone()).or_default() += hold.quantity;
    }
    sums
}

/// Holds with the command that moves them, as the columns that `unnest` takes.
#[derive(Default)]
struct Moves {
    moves: Vec<(Uuid, i32, String)>,
    sums: Quantities,
}

impl Moves {
    fn add(&mut self, command: &Command, holds: &[Hold]) {
        let id = command.command_id.as_str();
        self.moves.extend(
            holds
                .iter()
                .map(|hold| (hold.hold_id, hold.hold_generation, id.to_owned())),
        );
        for (key, quantity) in sum(holds) {
            *self.sums.entry(key).or_default() += quantity;
        }
    }

    fn columns(&mut self) -> (Vec<Uuid>, Vec<i32>, Vec<&str>) {
        self.moves.sort();
        let ids = self.moves.iter().map(|(id, _, _)| *id).collect();
        let generations = self
            .moves
            .iter()
            .map(|(_, generation, _)| *generation)
            .collect();
        let commands = self
            .moves
            .iter()
            .map(|(_, _, command)| command.as_str())
            .collect();
        (ids, generations, commands)
    }

    /// Whether as many holds and stock rows changed as were meant to: if not, somebody else moved one in between.
    fn check(&self, holds: i64, stock_rows: i64) -> Result<(), CallError> {
        let expected = (self.moves.len() as i64, self.sums.len() as i64);
        if expected == (holds, stock_rows) {
            return Ok(());
        }
        Err(CallError::Serialization(format!(
            "moved {holds} holds and {stock_rows} stock rows instead of {} and {}",
            expected.0, expected.1
        )))
    }
}

fn output(holds: &[Hold]) -> Outcome {
    let quantities: Vec<_> = sum(holds)
        .into_iter()
        .map(|(key, quantity)| {
            json!({ "sku": key.sku, "warehouse": key.warehouse, "quantity": quantity })
        })
        .collect();
    Outcome::Done {
        output: json!({ "holds": holds.len(), "quantities": quantities }),
    }
}

fn rejected(shortage: &Shortage) -> Outcome {
    let reason = match shortage {
        Shortage::Unknown(StockKey { sku, warehouse }) => {
            format!("unknown_sku {sku} in {warehouse}")
        }
        Shortage::Insufficient {
            key,
            available,
            wanted,
        } => {
            let StockKey { sku, warehouse } = key;
            format!(
                "insufficient_stock {sku} in {warehouse}: {available} available, {wanted} to take back"
            )
        }
    };
    Outcome::Rejected { reason }
}

fn replenish<'t>(
    connection: &'t mut PgConnection,
    commands: &'t [Command],
) -> Work<'t, Vec<Outcome>, CallError> {
    Box::pin(async move {
        let mut open = open_holds(connection, commands).await?;
        let mut moves = Moves::default();
        let mut outcomes = Vec::with_capacity(commands.len());
        for command in commands {
            let holds = open.remove(&command.order).unwrap_or_default();
            if let Some(unknown) = holds.iter().find(|hold| !hold.known) {
                outcomes.push(rejected(&Shortage::Unknown(unknown.key.clone())));
                open.insert(command.order.clone(), holds);
            } else {
                moves.add(command, &holds);
                outcomes.push(output(&holds));
            }
        }
        release(connection, moves).await?;
        Ok(outcomes)
    })
}

/// The open holds of these orders. Not locked: the release is conditional on what was read here.
async fn open_holds(
    connection: &mut PgConnection,
    commands: &[Command],
) -> Result<HashMap<OrderKey, Vec<Hold>>, sqlx::Error> {
    let tenants: Vec<&str> = commands.iter().map(|c| c.order.tenant.as_str()).collect();
    let order_ids: Vec<&str> = commands.iter().map(|c| c.order.order_id.as_str()).collect();
    let generations: Vec<i32> = commands.iter().map(|c| c.order.generation).collect();
    let rows = sqlx::query!(
        r#"select h.tenant, h.order_id, h.generation, h.hold_id, h.hold_generation, h.sku, h.warehouse, h.quantity,
               s.sku is not null as "known!"
           from (select distinct tenant, order_id, generation
                 from unnest($1::text[], $2::text[], $3::integer[]) as given (tenant, order_id, generation)) wanted
           join shop.hold h using (tenant, order_id, generation)
           left join shop.stock s on s.sku = h.sku and s.warehouse = h.warehouse
           where h.state = 'open'"#,
        &tenants as &[&str],
        &order_ids as &[&str],
        &generations,
    )
    .fetch_all(connection)
    .await?;
    let mut holds: HashMap<OrderKey, Vec<Hold>> = HashMap::new();
    for row in rows {
        let order = OrderKey {
            tenant: row.tenant,
            order_id: row.order_id,
            generation: row.generation,
        };
        holds.entry(order).or_default().push(Hold {
            hold_id: row.hold_id,
            hold_generation: row.hold_generation,
            key: StockKey {
                sku: row.sku,
                warehouse: row.warehouse,
            },
            quantity: row.quantity,
            known: row.known,
        });
    }
    Ok(holds)
}

async fn release(connection: &mut PgConnection, mut moves: Moves) -> Result<(), CallError> {
    if moves.moves.is_empty() {
        return Ok(());
    }
    let (ids, generations, commands) = moves.columns();
    let moved = sqlx::query_file!(
        "src/sql/release_holds.sql",
        &ids,
        &generations,
        &commands as &[&str]
    )
    .fetch_one(connection)
    .await?;
    moves.check(moved.holds, moved.stock_rows)
}

fn withdraw<'t>(
    connection: &'t mut PgConnection,
    commands: &'t [Command],
) -> Work<'t, Vec<Outcome>, CallError> {
    Box::pin(async move {
        let mut released = released_holds(connection, commands).await?;
        let holds: Vec<Vec<Hold>> = commands
            .iter()
            .map(|command| {
                let action = command.action_id.as_ref();
                action
                    .and_then(|id| released.remove(id.as_str()))
                    .unwrap_or_default()
            })
            .collect();
        let wanted: Vec<Quantities> = holds.iter().map(|holds| sum(holds)).collect();
        let keys: BTreeMap<&StockKey, ()> = wanted
            .iter()
            .flat_map(|wants| wants.keys().map(|key| (key, ())))
            .collect();
        let available = lock_stock(connection, keys.into_keys()).await?;
        let mut moves = Moves::default();
        let mut outcomes = Vec::with_capacity(commands.len());
        for ((command, holds), taken) in commands
            .iter()
            .zip(&holds)
            .zip(take_in_turn(available, &wanted))
        {
            match taken {
                Ok(()) => {
                    moves.add(command, holds);
                    outcomes.push(output(holds));
                }
                Err(shortage) => outcomes.push(rejected(&shortage)),
            }
        }
        take_back(connection, moves).await?;
        Ok(outcomes)
    })
}

/// What each action released and nobody has moved since, by the action's command id; locked in order.
async fn released_holds(
    connection: &mut PgConnection,
    commands: &[Command],
) -> Result<HashMap<String, Vec<Hold>>, sqlx::Error> {
    let tenants: Vec<&str> = commands.iter().map(|c| c.order.tenant.as_str()).collect();
    let order_ids: Vec<&str> = commands.iter().map(|c| c.order.order_id.as_str()).collect();
    let generations: Vec<i32> = commands.iter().map(|c| c.order.generation).collect();
    let actions: Vec<Option<&str>> = commands
        .iter()
        .map(|c| c.action_id.as_ref().map(|id| id.as_str()))
        .collect();
    let rows = sqlx::query!(
        "select l.command_id, h.hold_id, h.hold_generation, h.sku, h.warehouse, h.quantity
         from unnest($1::text[], $2::text[], $3::integer[], $4::text[])
             as wanted (tenant, order_id, generation, action_id)
         join shop.hold h using (tenant, order_id, generation)
         join shop.ledger l on l.hold_id = h.hold_id and l.hold_generation = h.hold_generation
             and l.direction = 'release' and l.command_id = wanted.action_id
         where h.state = 'released'
         order by h.hold_id
         for update of h",
        &tenants as &[&str],
        &order_ids as &[&str],
        &generations,
        &actions as &[Option<&str>],
    )
    .fetch_all(connection)
    .await?;
    let mut holds: HashMap<String, BTreeMap<Uuid, Hold>> = HashMap::new();
    for row in rows {
        let hold = Hold {
            hold_id: row.hold_id,
            hold_generation: row.hold_generation,
            key: StockKey {
                sku: row.sku,
                warehouse: row.warehouse,
            },
            quantity: row.quantity,
            known: true,
        };
        holds
            .entry(row.command_id)
            .or_default()
            .insert(hold.hold_id, hold);
    }
    Ok(holds
        .into_iter()
        .map(|(action, holds)| (action, holds.into_values().collect()))
        .collect())
}

async fn take_back(connection: &mut PgConnection, mut moves: Moves) -> Result<(), CallError> {
    if moves.moves.is_empty() {
        return Ok(());
    }
    let (ids, generations, commands) = moves.columns();
    let moved = sqlx::query_file!(
        "src/sql/withdraw_holds.sql",
        &ids,
        &generations,
        &commands as &[&str]
    )
    .fetch_one(connection)
    .await?;
    moves.check(moved.holds, moved.stock_rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(sku: &str) -> StockKey {
        StockKey {
            sku: sku.to_owned(),
            warehouse: "w".to_owned(),
        }
    }

    fn quantities(pairs: &[(&str, i64)]) -> Quantities {
        pairs
            .iter()
            .map(|(sku, quantity)| (key(sku), Decimal::from(*quantity)))
            .collect()
    }

    #[test]
    fn each_takes_all_or_nothing_in_turn() {
        let available = quantities(&[("a", 5), ("b", 1)]);
        let wanted = [
            quantities(&[("a", 3)]),
            quantities(&[("a", 1), ("b", 2)]),
            quantities(&[("a", 2)]),
            quantities(&[("a", 1)]),
            quantities(&[("c", 1)]),
        ];
        let taken = take_in_turn(available, &wanted);
        assert_eq!(taken[0], Ok(()));
        assert!(
            matches!(&taken[1], Err(Shortage::Insufficient { key: short, .. }) if *short == key("b"))
        );
        assert_eq!(
            taken[2],
            Ok(()),
            "the one before took nothing, so 2 of a are left"
        );
        assert!(matches!(&taken[3], Err(Shortage::Insufficient { .. })));
        assert_eq!(taken[4], Err(Shortage::Unknown(key("c"))));
    }
}
