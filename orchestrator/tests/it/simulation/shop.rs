//! The participants as a model: orders and their stock behind the barrier's rules, with an answer that goes wrong now and
//! then. It panics the moment an effect happens twice, out of order, or after its own compensation.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::TimeDelta;
use lapse::clock::Clock;
use lapse_participants::kit::{CallError, Command, OrderKey, Overdue, Reply};
use lapse_sagas::{CommandId, Direction, Outcome, Timestamp};
use serde_json::json;

/// Tries per step and direction that the definition allows.
pub const TRIES: u32 = 4;

/// The model.
pub struct Shop {
    clock: Arc<dyn Clock>,
    tables: Mutex<Tables>,
}

struct Tables {
    dice: fastrand::Rng,
    /// One answer in so many goes wrong; 0: none does.
    wrong_one_in: u32,
    orders: BTreeMap<String, Order>,
    /// The barrier: what was answered for good under each command id.
    answered: HashMap<CommandId, (String, Outcome)>,
    /// Actions whose compensation came first.
    blocked: HashSet<CommandId>,
    seen: Answers,
}

/// How often each answer was given.
#[derive(Clone, Copy, Debug, Default)]
pub struct Answers {
    pub failed: u32,
    pub rejected: u32,
    pub unknown: u32,
    pub hung: u32,
    pub not_due: u32,
    pub superseded: u32,
    pub repeated: u32,
}

/// One order.
#[derive(Clone, Debug)]
pub struct Order {
    /// When it may be cancelled.
    pub due_at: Timestamp,
    /// As it stands.
    pub status: Status,
    /// By which command it is cancelled.
    cancelled_by: Option<CommandId>,
    /// By which command its stock is back.
    pub released_by: Option<CommandId>,
    /// Left to a human.
    needs_attention: bool,
}

/// How an order stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    Awaiting,
    Paid,
    Cancelled,
}

/// What becomes of one call.
enum Called {
    /// This is the answer.
    Answered(Result<Vec<Reply>, CallError>),
    /// There is no answer, whether it was applied or not.
    Lost,
    /// It arrives so much later.
    OnItsWay(Duration),
}

/// What becomes of one command.
enum Fate {
    /// As it should.
    Right,
    /// This answer, and nothing is applied.
    Refused(Outcome),
    /// Applied or not, the answer is lost.
    Lost { applied: bool, left_out: bool },
}

impl Shop {
    /// Without orders.
    pub fn new(clock: Arc<dyn Clock>, dice: fastrand::Rng, wrong_one_in: u32) -> Shop {
        let tables = Tables {
            dice,
            wrong_one_in,
            orders: BTreeMap::new(),
            answered: HashMap::new(),
            blocked: HashSet::new(),
            seen: Answers::default(),
        };
        Shop {
            clock,
            tables: Mutex::new(tables),
        }
    }

    /// A new order.
    pub fn place(&self, order_id: &str, due_at: Timestamp) {
        let order = Order {
            due_at,
            status: Status::Awaiting,
            cancelled_by: None,
            released_by: None,
            needs_attention: false,
        };
        self.tables().orders.insert(order_id.to_owned(), order);
    }

    /// Its deadline moves.
    pub fn extend(&self, order_id: &str, by: TimeDelta) {
        if let Some(order) = self.tables().orders.get_mut(order_id)
            && order.status == Status::Awaiting
        {
            order.due_at += by;
        }
    }

    /// It is paid, unless it was cancelled.
    pub fn pay(&self, order_id: &str) {
        if let Some(order) = self.tables().orders.get_mut(order_id)
            && order.status == Status::Awaiting
        {
            assert!(
                order.released_by.is_none(),
                "order {order_id} is paid, and its stock is given away"
            );
            order.status = Status::Paid;
        }
    }

    /// From now on every answer is right.
    pub fn calm(&self) {
        self.tables().wrong_one_in = 0;
    }

    /// All orders.
    pub fn orders(&self) -> BTreeMap<String, Order> {
        self.tables().orders.clone()
    }

    /// What was answered so far.
    pub fn answers(&self) -> Answers {
        self.tables().seen
    }

    /// As the sweep asks.
    pub fn overdue_orders(
        &self,
        after: Option<&Overdue>,
        ahead: Duration,
        limit: u32,
    ) -> Vec<Overdue> {
        let until = self.clock.now() + ahead;
        let mut overdue: Vec<Overdue> = self
            .tables()
            .orders
            .iter()
            .filter(|(_, order)| {
                order.status == Status::Awaiting && !order.needs_attention && order.due_at <= until
            })
            .map(|(order_id, order)| Overdue {
                order: crate::support::world::order(order_id),
                order_type: "normal".to_owned(),
                due_at: order.due_at,
            })
            .collect();
        overdue.sort_by(|a, b| (a.due_at, &a.order).cmp(&(b.due_at, &b.order)));
        overdue
            .into_iter()
            .filter(|found| {
                after
                    .is_none_or(|after| (found.due_at, &found.order) > (after.due_at, &after.order))
            })
            .take(limit as usize)
            .collect()
    }

    /// As the guard asks.
    pub fn paid(&self, orders: &[OrderKey]) -> Vec<bool> {
        let tables = self.tables();
        let is_paid = |key: &OrderKey| {
            let order = tables.orders.get(&key.order_id);
            order.is_some_and(|order| order.status == Status::Paid)
        };
        orders.iter().map(is_paid).collect()
    }

    /// One call, which may go wrong as a whole, and command by command.
    pub async fn call(
        self: &Arc<Self>,
        operation: &str,
        commands: &[Command],
    ) -> Result<Vec<Reply>, CallError> {
        let now = self.clock.now();
        let called = self.tables().call(operation, commands, now);
        match called {
            Called::Answered(result) => return result,
            Called::Lost => {}
            Called::OnItsWay(delay) => self.deliver_late(commands.to_vec(), delay),
        }
        std::future::pending().await
    }

    /// What nobody waits for any more arrives all the same. A panic poisons the tables, and so ends the story.
    fn deliver_late(self: &Arc<Self>, commands: Vec<Command>, delay: Duration) {
        let shop = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            let now = shop.clock.now();
            shop.tables().answer_all(&commands, now);
        });
    }

    fn tables(&self) -> std::sync::MutexGuard<'_, Tables> {
        self.tables.lock().unwrap()
    }
}

impl Tables {
    fn goes_wrong(&mut self) -> bool {
        self.wrong_one_in > 0 && self.dice.u32(0..self.wrong_one_in) == 0
    }

    fn call(&mut self, operation: &str, commands: &[Command], now: Timestamp) -> Called {
        for command in commands {
            assert_eq!(command.operation, operation, "a batch is of one operation");
            assert!(
                command.attempt <= TRIES,
                "attempt {} of {command:?}",
                command.attempt
            );
        }
        if !self.goes_wrong() {
            return Called::Answered(Ok(self.answer_all(commands, now)));
        }
        let purpose = || "on purpose".to_owned();
        Called::Answered(Err(match self.dice.u32(0..11) {
            0 => CallError::Data(purpose()),
            1 => CallError::Locked(purpose()),
            2 => CallError::Serialization(purpose()),
            3 => CallError::Configuration(purpose()),
            4 => CallError::Unknown(purpose()),
            5 => {
                self.answer_all(commands, now);
                CallError::Unknown(purpose())
            }
            6 => {
                self.seen.hung += 1;
                return Called::Lost;
            }
            7 => {
                self.seen.hung += 1;
                self.answer_all(commands, now);
                return Called::Lost;
            }
            _ => {
                self.seen.hung += 1;
                let delay = self.dice.u64(0..20_000);
                return Called::OnItsWay(Duration::from_millis(delay));
            }
        }))
    }

    fn answer_all(&mut self, commands: &[Command], now: Timestamp) -> Vec<Reply> {
        let mut replies = Vec::new();
        for command in commands {
            if let Some(outcome) = self.answer(command, now) {
                replies.push(Reply {
                    command_id: command.command_id.clone(),
                    outcome,
                });
            }
        }
        self.dice.shuffle(&mut replies);
        replies
    }

    /// One answer, or none.
    fn answer(&mut self, command: &Command, now: Timestamp) -> Option<Outcome> {
        match self.fate() {
            Fate::Right => Some(self.apply(command, now)),
            Fate::Refused(outcome) => Some(self.refuse(command, outcome)),
            Fate::Lost { applied, left_out } => {
                self.seen.unknown += 1;
                if applied {
                    self.apply(command, now);
                }
                let unknown = Outcome::Unknown {
                    error: "lost: on purpose".to_owned(),
                };
                (!left_out).then_some(unknown)
            }
        }
    }

    fn fate(&mut self) -> Fate {
        if !self.goes_wrong() {
            return Fate::Right;
        }
        match self.dice.u32(0..8) {
            0..3 => Fate::Refused(Outcome::Failed {
                error: "failed: on purpose".to_owned(),
            }),
            3 => Fate::Refused(Outcome::Rejected {
                reason: "rejected: on purpose".to_owned(),
            }),
            _ => Fate::Lost {
                applied: self.dice.bool(),
                left_out: self.dice.bool(),
            },
        }
    }

    /// `failed` leaves no trace; `rejected` is final, unless the command was answered or blocked before.
    fn refuse(&mut self, command: &Command, outcome: Outcome) -> Outcome {
        if let Outcome::Failed { .. } = outcome {
            self.seen.failed += 1;
            return outcome;
        }
        if let Some(before) = self.before(command) {
            return before;
        }
        self.seen.rejected += 1;
        self.settle(command, outcome)
    }

    fn apply(&mut self, command: &Command, now: Timestamp) -> Outcome {
        if let Some(before) = self.before(command) {
            return before;
        }
        let outcome = match command.direction {
            Direction::Do => self.act(command, now),
            Direction::Undo => self.undo(command),
        };
        match outcome {
            Outcome::NotDue { .. } => outcome,
            outcome => self.settle(command, outcome),
        }
    }

    /// The barrier: the stored answer, or `superseded`.
    fn before(&mut self, command: &Command) -> Option<Outcome> {
        if let Some((operation, outcome)) = self.answered.get(&command.command_id) {
            assert_eq!(operation, &command.operation, "one id, one operation");
            self.seen.repeated += 1;
            return Some(outcome.clone());
        }
        if self.blocked.contains(&command.command_id) {
            self.seen.superseded += 1;
            return Some(Outcome::Superseded);
        }
        None
    }

    fn settle(&mut self, command: &Command, outcome: Outcome) -> Outcome {
        let row = (command.operation.clone(), outcome.clone());
        let before = self.answered.insert(command.command_id.clone(), row);
        assert!(before.is_none(), "answered twice: {command:?}");
        outcome
    }

    fn act(&mut self, command: &Command, now: Timestamp) -> Outcome {
        let order_id = &command.order.order_id;
        let order = self.orders.get_mut(order_id).expect("only known orders");
        let done = Outcome::Done {
            output: json!({ "by": command.command_id }),
        };
        match command.operation.as_str() {
            "CancelOrder" if order.status == Status::Paid => Outcome::NotApplicable {
                reason: "paid".to_owned(),
            },
            "CancelOrder" if command.cause.respects_due_time() && now < order.due_at => {
                self.seen.not_due += 1;
                Outcome::NotDue {
                    until: order.due_at,
                }
            }
            "CancelOrder" => {
                assert_eq!(
                    order.status,
                    Status::Awaiting,
                    "cancelled twice: {command:?}"
                );
                order.status = Status::Cancelled;
                order.cancelled_by = Some(command.command_id.clone());
                done
            }
            "ReplenishStock" => {
                assert_eq!(
                    order.status,
                    Status::Cancelled,
                    "stock of an order that stands: {command:?}"
                );
                assert_eq!(order.released_by, None, "released twice: {command:?}");
                order.released_by = Some(command.command_id.clone());
                done
            }
            other => panic!("no such action: {other}"),
        }
    }

    /// Undoes its own action, or sees to it that it never happens.
    fn undo(&mut self, command: &Command) -> Outcome {
        let action = command
            .action_id
            .clone()
            .expect("a compensation names its action");
        let order_id = &command.order.order_id;
        let order = self.orders.get_mut(order_id).expect("only known orders");
        let undone = match command.operation.as_str() {
            "ReopenOrder" => {
                assert_eq!(
                    order.released_by, None,
                    "the last step is undone first: {command:?}"
                );
                let own = order.cancelled_by.take_if(|by| *by == action).is_some();
                if own {
                    order.status = Status::Awaiting;
                    order.needs_attention = true;
                }
                own
            }
            "WithdrawStock" => order.released_by.take_if(|by| *by == action).is_some(),
            other => panic!("no such compensation: {other}"),
        };
        if !self.answered.contains_key(&action) {
            assert!(!undone, "undone without an answer: {command:?}");
            self.blocked.insert(action);
        }
        Outcome::Done {
            output: json!({ "undone": undone }),
        }
    }
}
