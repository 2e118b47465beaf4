//! What all cases share: orders, commands, calls, and comparisons that say what was expected and what came.
//!
//! Relies on the first action: every later effect is compared with it. Never: retries what the contract calls final.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use lapse_participants::kit::{CallError, Command, OrderKey, Reply, deadline};
use lapse_sagas::{Cause, CommandId, Direction, Outcome, SagaId, StepId, Timestamp};
use uuid::Uuid;

use super::{Error, Subject, Wire};
use crate::clock::{Clock, Simulated};

/// One call is waited for so long; 500 single commands must fit on a slow machine.
const CALL: Duration = Duration::from_secs(30);
/// So often, or for so long, is a command repeated that was not answered for good, with such a pause.
const TRIES: u32 = 12;
const SETTLES_WITHIN: Duration = Duration::from_secs(45);
const PAUSE: Duration = Duration::from_millis(250);
const STEP: &str = "conform";

/// Why a case ended early.
#[derive(Clone, Debug)]
pub(super) enum Stop {
    /// Not as the contract says.
    Failed { expected: String, came: String },
    /// It can't be tried.
    NotRun(String),
}

pub(super) type Checked<T = ()> = Result<T, Stop>;

pub(super) fn failed<T>(expected: impl Into<String>, came: impl Into<String>) -> Checked<T> {
    Err(Stop::Failed {
        expected: expected.into(),
        came: came.into(),
    })
}

/// Orders to try cases on.
pub(super) struct Scene<'s> {
    subject: &'s Subject,
    clock: Simulated,
    tag: String,
    placed: AtomicU32,
    before: String,
    after: String,
}

impl<'s> Scene<'s> {
    /// Places two orders, which must stand alike, and acts on one: how that ended is the case `plain_action`.
    pub async fn prepare(
        subject: &'s Subject,
        start: Timestamp,
    ) -> Result<(Scene<'s>, Checked), Error> {
        let tag = Uuid::now_v7().simple().to_string();
        let mut scene = Scene {
            subject,
            clock: Simulated::from(start),
            tag: tag[20..].to_owned(),
            placed: AtomicU32::new(0),
            before: String::new(),
            after: String::new(),
        };
        let (one, other) = (scene.new_order(), scene.new_order());
        scene.before = scene.put(&one).await.map_err(Error::Site)?;
        let alike = scene.put(&other).await.map_err(Error::Site)?;
        if alike != scene.before {
            return Err(Error::Site(format!(
                "two orders placed alike don't stand alike, so effects can't be compared: {:?} and {alike:?}; let the state be without times, versions and what orders share",
                scene.before
            )));
        }
        let action = scene.action(&one);
        // Whoever is not there at all is told apart from whoever answers wrongly.
        let first = match scene.call(std::slice::from_ref(&action)).await {
            Err(error @ CallError::Unreachable(_)) => return Err(Error::Participant(error)),
            first => first.ok(),
        };
        let first = first.and_then(|replies| answer_to(&action, &replies));
        let plain = scene.plain(&one, &action, first).await;
        Ok((scene, plain))
    }

    async fn plain(
        &mut self,
        order: &OrderKey,
        action: &Command,
        first: Option<Outcome>,
    ) -> Checked {
        let outcome = match first {
            // Not repeated: what comes of it is the measure for all repetitions.
            Some(outcome) if outcome.is_final() => outcome,
            _ => self.settle(action).await?,
        };
        if !matches!(outcome, Outcome::Done { .. }) {
            return failed(
                format!("{} of a newly placed order is done", action.operation),
                words(&outcome),
            );
        }
        self.after = self.state(order).await?;
        if self.after == self.before {
            return failed(
                "the order stands otherwise after the action",
                format!("it still stands so: {}", self.after),
            );
        }
        Ok(())
    }

    fn new_order(&self) -> OrderKey {
        let n = self.placed.fetch_add(1, Ordering::Relaxed);
        self.order_called(&format!("conform-{}-{n}", self.tag))
    }

    fn order_called(&self, order_id: &str) -> OrderKey {
        OrderKey {
            tenant: self.subject.plan.tenant.clone(),
            order_id: order_id.to_owned(),
            generation: 1,
        }
    }

    /// Places it; how it stands.
    async fn put(&self, order: &OrderKey) -> Result<String, String> {
        let order_id = &order.order_id;
        let site = &self.subject.site;
        site.place(order_id)
            .await
            .map_err(|error| format!("order {order_id} can't be placed: {error:#}"))?;
        self.look(order).await
    }

    async fn look(&self, order: &OrderKey) -> Result<String, String> {
        let order_id = &order.order_id;
        let text = self.subject.site.state(order_id).await;
        let text =
            text.map_err(|error| format!("how order {order_id} stands can't be seen: {error:#}"))?;
        Ok(text.trim().replace(order_id, "ORDER"))
    }

    /// A newly placed order.
    pub async fn place(&self) -> Checked<OrderKey> {
        let order = self.new_order();
        match self.put(&order).await {
            Ok(state) if state == self.before => Ok(order),
            Ok(state) => failed(
                format!("a newly placed order stands so: {}", self.before),
                state,
            ),
            Err(why) => failed("an order can be placed", why),
        }
    }

    /// An order that is not there.
    pub fn nowhere(&self) -> OrderKey {
        self.order_called(&format!("conform-{}-nowhere", self.tag))
    }

    async fn state(&self, order: &OrderKey) -> Checked<String> {
        match self.look(order).await {
            Ok(state) => Ok(state),
            Err(why) => failed("it can be seen how the order stands", why),
        }
    }

    /// The order stands as if nothing had been done to it.
    pub async fn is_untouched(&self, order: &OrderKey, after: &str) -> Checked {
        self.stands(order, &self.before, &format!("untouched after {after}"))
            .await
    }

    /// The order stands as after one action.
    pub async fn is_acted_on_once(&self, order: &OrderKey, after: &str) -> Checked {
        self.stands(order, &self.after, &format!("acted on once after {after}"))
            .await
    }

    async fn stands(&self, order: &OrderKey, expected: &str, what: &str) -> Checked {
        let state = self.state(order).await?;
        if state == expected {
            return Ok(());
        }
        failed(format!("the order is {what}: {expected}"), state)
    }

    /// The action on an order, of a saga of its own.
    pub fn action(&self, order: &OrderKey) -> Command {
        let now = self.clock.now();
        let saga_id = SagaId(Uuid::now_v7());
        let step = StepId::from(STEP);
        Command {
            command_id: CommandId::new(saga_id, 1, &step, Direction::Do),
            action_id: None,
            saga_id,
            step,
            direction: Direction::Do,
            operation: self.subject.plan.action.clone(),
            order: order.clone(),
            input: self.subject.plan.input.clone(),
            cause: Cause::Operator,
            attempt: 1,
            first_sent_at: now,
            expires_at: now + TimeDelta::hours(1),
        }
    }

    /// The compensation of an action.
    pub fn compensation(&self, action: &Command) -> Checked<Command> {
        let Some(operation) = &self.subject.plan.compensation else {
            return Err(Stop::NotRun("no compensation was named".to_owned()));
        };
        Ok(Command {
            command_id: CommandId::new(action.saga_id, 1, &action.step, Direction::Undo),
            action_id: Some(action.command_id.clone()),
            direction: Direction::Undo,
            operation: operation.clone(),
            ..action.clone()
        })
    }

    /// The same command as it comes the next time.
    pub fn again(&self, command: &Command) -> Command {
        Command {
            attempt: command.attempt + 1,
            cause: Cause::Buyer,
            ..command.clone()
        }
    }

    /// The same command, sent and expired long ago.
    pub fn expired(&self, command: &Command) -> Command {
        let now = self.clock.now();
        Command {
            first_sent_at: now - TimeDelta::hours(25),
            expires_at: now - TimeDelta::hours(24),
            ..command.clone()
        }
    }

    /// One call.
    pub async fn call(&self, commands: &[Command]) -> Result<Vec<Reply>, CallError> {
        let Some(first) = commands.first() else {
            return Ok(Vec::new());
        };
        let call = self.subject.participant.call(&first.operation, commands);
        let in_time = deadline::within(CALL, call).await;
        in_time.unwrap_or_else(|_| Err(CallError::unanswered(format!("no answer in {CALL:?}"))))
    }

    /// One call that is given up after `limit`, answered or not.
    pub async fn call_briefly(&self, command: &Command, limit: Duration) {
        let call = self.call(std::slice::from_ref(command));
        let _ = tokio::time::timeout(limit, call).await;
    }

    /// The command until it is answered for good, as a coordinator would repeat it.
    pub async fn settle(&self, command: &Command) -> Checked<Outcome> {
        let mut came = String::new();
        let began = Instant::now();
        for tried in 0..TRIES {
            if began.elapsed() > SETTLES_WITHIN {
                break;
            }
            if tried > 0 {
                tokio::time::sleep(PAUSE).await;
            }
            match self.call(std::slice::from_ref(command)).await {
                Ok(replies) => match answer_to(command, &replies) {
                    Some(outcome @ (Outcome::Failed { .. } | Outcome::Unknown { .. })) => {
                        came = words(&outcome);
                    }
                    Some(outcome) => return Ok(outcome),
                    None => came = "an answer without this command".to_owned(),
                },
                Err(error @ (CallError::Data(_) | CallError::Configuration(_))) => {
                    return failed(
                        format!("an answer to {}", command.operation),
                        error.to_string(),
                    );
                }
                Err(error) => came = error.to_string(),
            }
        }
        failed(format!("an answer to {} in time", command.operation), came)
    }

    /// The command is done; its answer.
    pub async fn done(&self, command: &Command) -> Checked<Outcome> {
        let outcome = self.settle(command).await?;
        if matches!(outcome, Outcome::Done { .. }) {
            return Ok(outcome);
        }
        failed(format!("{} is done", command.operation), words(&outcome))
    }

    /// The command has this answer.
    pub async fn answers(&self, command: &Command, expected: &Outcome, why: &str) -> Checked {
        let outcome = self.settle(command).await?;
        if outcome == *expected {
            return Ok(());
        }
        failed(format!("{} {why}", words(expected)), words(&outcome))
    }

    /// The service does its work on an order of its own.
    pub async fn works_on(&self, after: &str) -> Checked {
        let order = self.place().await?;
        self.done(&self.action(&order)).await?;
        self.is_acted_on_once(&order, after).await
    }

    /// Bytes and connections.
    pub fn wire(&self) -> Checked<&dyn Wire> {
        self.subject.wire.as_deref().ok_or_else(|| {
            Stop::NotRun("this transport has no bytes or connections to spoil".to_owned())
        })
    }

    /// Whether a call can be refused as a whole.
    pub fn has_refusals(&self) -> bool {
        self.subject.plan.refusals
    }
}

pub(super) fn answer_to(command: &Command, replies: &[Reply]) -> Option<Outcome> {
    let own = |reply: &&Reply| reply.command_id == command.command_id;
    replies.iter().find(own).map(|reply| reply.outcome.clone())
}

/// An answer as JSON, which is how its author knows it.
pub(super) fn words(outcome: &Outcome) -> String {
    serde_json::to_string(outcome).unwrap_or_else(|_| outcome.name().to_owned())
}
