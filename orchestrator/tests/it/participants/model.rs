//! The smallest participant that is right, in memory; and one bug of every kind that the suite is there for.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use lapse::conform::Site;
use lapse_participants::kit::{
    CallError, Command, OrderKey, OrderOwner, Overdue, Participant, Reply,
};
use lapse_sagas::{CommandId, Direction, Outcome};
use serde_json::{Value, json};

/// One way to be wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// Answers `done` and does nothing.
    DoesNothing,
    /// Does a known action again.
    RepeatsEffects,
    /// Answers a known id whatever comes with it.
    IgnoresPayload,
    /// Undoes a known compensation again.
    UndoesTwice,
    /// Undoes what was never done.
    UndoesBlindly,
    /// Does an action after its compensation.
    ForgetsBlocked,
    /// Looks whether the id is known, and acts some time later.
    ChecksThenActs,
    /// Does a command that is long over.
    IgnoresExpiry,
    /// Stores the answer some time after the effect, unless the caller left meanwhile.
    StoresLater,
    /// Does the good ones before it finds the bad one and refuses all.
    AppliesHalfABatch,
    /// Does an operation that it does not know.
    KnowsEverything,
    /// Answers the first 100 commands.
    LosesSome,
}

/// What is known of an id.
#[derive(Clone)]
enum Row {
    Blocked,
    Answered(Value, Outcome),
}

#[derive(Default)]
struct Tables {
    /// Effects by order: 1 is done, 0 is not.
    orders: HashMap<String, i32>,
    barrier: HashMap<CommandId, Row>,
}

/// The participant, its orders and their owner.
#[derive(Default)]
pub struct Model {
    bug: Option<Bug>,
    tables: Mutex<Tables>,
}

/// How long everything takes: long enough to be in the middle of it.
const WORK: Duration = Duration::from_millis(5);
/// Longer than a caller that gives up, and than a cut connection needs to be seen.
const GAP: Duration = Duration::from_millis(200);

impl Model {
    pub fn right() -> Model {
        Model::default()
    }

    pub fn with(bug: Bug) -> Model {
        Model {
            bug: Some(bug),
            ..Model::default()
        }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// How often the action is in effect for an order.
    pub fn effects(&self, order_id: &str) -> Option<i32> {
        self.tables.lock().unwrap().orders.get(order_id).copied()
    }

    /// An order that nothing was done to.
    pub fn insert(&self, order_id: &str) {
        let mut tables = self.tables.lock().unwrap();
        tables.orders.insert(order_id.to_owned(), 0);
    }

    fn one(&self, command: &Command) -> Outcome {
        self.known(command).unwrap_or_else(|| self.act(command))
    }

    /// A command that is alone in its call: there is time for what is slow.
    async fn alone(&self, command: &Command) -> Outcome {
        if self.has(Bug::ChecksThenActs) && self.known(command).is_none() {
            tokio::time::sleep(WORK).await;
            return self.act(command);
        }
        if self.has(Bug::StoresLater) && self.known(command).is_none() {
            let outcome = self.act(command);
            let row = self
                .tables
                .lock()
                .unwrap()
                .barrier
                .remove(&command.command_id);
            tokio::time::sleep(GAP).await;
            let rows = row.map(|row| (command.command_id.clone(), row));
            self.tables.lock().unwrap().barrier.extend(rows);
            return outcome;
        }
        self.one(command)
    }

    /// The answer of the barrier, if it has one.
    fn known(&self, command: &Command) -> Option<Outcome> {
        let tables = self.tables.lock().unwrap();
        match tables.barrier.get(&command.command_id)? {
            Row::Blocked => Some(Outcome::Superseded),
            Row::Answered(payload, _)
                if *payload != self::payload(command) && !self.has(Bug::IgnoresPayload) =>
            {
                let error = "input: not what came with this id before".to_owned();
                Some(Outcome::Mismatch { error })
            }
            Row::Answered(_, outcome) => {
                let again = match command.direction {
                    Direction::Do => self.has(Bug::RepeatsEffects),
                    Direction::Undo => self.has(Bug::UndoesTwice),
                };
                (!again).then(|| outcome.clone())
            }
        }
    }

    /// What the command does, and its row.
    fn act(&self, command: &Command) -> Outcome {
        let mut tables = self.tables.lock().unwrap();
        let now: lapse_sagas::Timestamp = std::time::SystemTime::now().into();
        if command.expires_at < now && !self.has(Bug::IgnoresExpiry) {
            return Outcome::Expired;
        }
        let id = command.command_id.clone();
        let outcome = match &command.action_id {
            Some(action) if !tables.barrier.contains_key(action) => {
                if !self.has(Bug::ForgetsBlocked) {
                    tables.barrier.insert(action.clone(), Row::Blocked);
                }
                if self.has(Bug::UndoesBlindly) {
                    *tables
                        .orders
                        .entry(command.order.order_id.clone())
                        .or_default() -= 1;
                }
                Outcome::Done {
                    output: json!({ "undone": false }),
                }
            }
            action => {
                let Some(effects) = tables.orders.get_mut(&command.order.order_id) else {
                    let error = "unknown_order".to_owned();
                    return Outcome::Failed { error };
                };
                let already = *effects > 0 && !self.tolerates_doubles();
                match action {
                    Some(_) => *effects -= 1,
                    None if already || self.has(Bug::DoesNothing) => {}
                    None => *effects += 1,
                }
                Outcome::Done {
                    output: json!({ "already": already }),
                }
            }
        };
        let row = Row::Answered(payload(command), outcome.clone());
        tables.barrier.insert(id, row);
        outcome
    }

    /// A second effect is only seen where nothing else prevents it.
    fn tolerates_doubles(&self) -> bool {
        self.has(Bug::RepeatsEffects) || self.has(Bug::ChecksThenActs) || self.has(Bug::StoresLater)
    }
}

fn payload(command: &Command) -> Value {
    json!([command.operation, command.order, command.input])
}

#[async_trait]
impl Participant for Model {
    async fn call(&self, operation: &str, commands: &[Command]) -> Result<Vec<Reply>, CallError> {
        let is_known = matches!(operation, "CancelOrder" | "ReopenOrder");
        if !is_known && !self.has(Bug::KnowsEverything) {
            return Err(CallError::Configuration(format!("no {operation} here")));
        }
        tokio::time::sleep(WORK).await;
        let most = if self.has(Bug::LosesSome) {
            100
        } else {
            commands.len()
        };
        let mut replies = Vec::new();
        for command in commands.iter().take(most) {
            let outcome = if commands.len() == 1 {
                self.alone(command).await
            } else {
                self.one(command)
            };
            if self.has(Bug::AppliesHalfABatch) && matches!(outcome, Outcome::Failed { .. }) {
                return Err(CallError::Data("unknown_order".to_owned()));
            }
            replies.push(Reply {
                command_id: command.command_id.clone(),
                outcome,
            });
        }
        Ok(replies)
    }
}

#[async_trait]
impl OrderOwner for Model {
    async fn overdue_orders(
        &self,
        _: Option<&Overdue>,
        _: Duration,
        _: u32,
    ) -> Result<Vec<Overdue>, CallError> {
        Ok(Vec::new())
    }

    async fn paid(&self, orders: &[OrderKey]) -> Result<Vec<bool>, CallError> {
        Ok(vec![false; orders.len()])
    }
}

#[async_trait]
impl Site for Model {
    async fn place(&self, order_id: &str) -> anyhow::Result<()> {
        self.insert(order_id);
        Ok(())
    }

    async fn state(&self, order_id: &str) -> anyhow::Result<String> {
        let effects = self.effects(order_id);
        let effects = effects.ok_or_else(|| anyhow::anyhow!("no such order"))?;
        Ok(format!("order {order_id}: {effects} effects"))
    }
}
