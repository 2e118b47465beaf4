//! One batch through one call: fence, command, answers; halved where a bad row would sink it.
//!
//! Relies on the participant to say what may have been applied ([`CallError`]). Never: halves after a time-out, or
//! counts an attempt for what was not tried.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use lapse_participants::kit::{CallError, Command, Participant, Reply, deadline};
use lapse_sagas::definition::Call;
use lapse_sagas::{
    Active, CommandId, Definition, Direction, Event, Outcome, Phase, StepId, Timestamp, transition,
    transition::sent_at,
};
use tracing::{Instrument, info_span, warn};

use super::care::{self, Purpose};
use super::ready::{Batch, GroupKey};
use super::{Executor, FRESH_FOR, command, health};
use crate::store::{Move, Moved, Saga};

/// So often is the same batch repeated after a deadlock, within the step's time-out, before it is treated like a lock time-out.
const SERIALIZATION_RETRIES: u32 = 5;
/// How long a command waits that could not get its locks.
const LOCKED_FOR: TimeDelta = TimeDelta::seconds(1);

/// A saga and what happened to it.
pub(super) struct Answered {
    /// As it was when the command went out.
    pub saga: Saga,
    /// The reply, or the deferral.
    pub event: Event,
}

/// What the batch's commands have in common.
pub(super) struct Context<'a> {
    pub(super) executor: &'a Arc<Executor>,
    definition: Arc<Definition>,
    pub(super) key: GroupKey,
    purpose: Purpose,
    pub(super) call: Call,
    participant: Arc<dyn Participant>,
    pub(super) timeout: Duration,
}

/// Runs the batch to its record; what is in hand afterwards is queued at once.
pub(super) async fn run(executor: &Arc<Executor>, batch: Batch) {
    let span = info_span!("batch", step = %batch.key.step, direction = %batch.key.direction, sagas = batch.sagas.len());
    async {
        let Some(context) = context(executor, &batch) else {
            return;
        };
        let mut halves: Vec<Vec<Saga>> = Vec::new();
        let mut part = context.send(batch.sagas).await;
        if context.is_queued() {
            return context.produce(part).await;
        }
        loop {
            if !part.is_empty() {
                match context.call(&part).await {
                    Called::Answered(events) => {
                        executor.submit(executor.record(answered(part, events)).await);
                        executor.tell(&context.key.participant).await;
                    }
                    Called::Halve => {
                        let second = part.split_off(part.len() / 2);
                        halves.extend([second, part]);
                    }
                }
            }
            // A half that waits while others are called must not look unanswered meanwhile.
            for half in &mut halves {
                *half = context.send_again(std::mem::take(half)).await;
            }
            let Some(half) = halves.pop() else { return };
            part = half;
        }
    }
    .instrument(span)
    .await;
}

/// What is needed for the call; without it the rows' wake-up times bring them back.
fn context<'a>(executor: &'a Arc<Executor>, batch: &Batch) -> Option<Context<'a>> {
    let key = &batch.key;
    let definition = executor.definitions.get(&key.definition)?;
    let step = definition.step(&key.step)?;
    let call = step.call(key.direction)?.clone();
    let timeout = step.timeout.into();
    let participant = executor
        .participants
        .operations
        .get(&call.participant)
        .cloned()
        .unwrap_or_else(|| Arc::new(Absent(call.participant.clone())));
    Some(Context {
        executor,
        definition,
        key: key.clone(),
        purpose: batch.purpose,
        call,
        participant,
        timeout,
    })
}

pub(super) fn answered(sagas: Vec<Saga>, events: Vec<Event>) -> Vec<Answered> {
    sagas
        .into_iter()
        .zip(events)
        .map(|(saga, event)| Answered { saga, event })
        .collect()
}

enum Called {
    /// One event per saga, in order.
    Answered(Vec<Event>),
    /// Nothing was applied; find the bad one.
    Halve,
}

impl Context<'_> {
    /// Commits `sent` for every saga whose row does not say so freshly; drops those that somebody else moved.
    async fn send(&self, sagas: Vec<Saga>) -> Vec<Saga> {
        let now = self.executor.clock.now();
        let (mut sent, waited): (Vec<Saga>, Vec<Saga>) =
            sagas.into_iter().partition(|saga| self.is_fresh(saga, now));
        sent.extend(self.send_again(waited).await);
        sent
    }

    /// Commits `sent` for every saga.
    async fn send_again(&self, sagas: Vec<Saga>) -> Vec<Saga> {
        let now = self.executor.clock.now();
        let moves: Vec<Move> = sagas
            .into_iter()
            .filter_map(|saga| self.sending(saga, now))
            .collect();
        if moves.is_empty() {
            return Vec::new();
        }
        let count = moves.len();
        let stored = |moved| match moved {
            Moved::Stored(saga) => Some(*saga),
            Moved::Fenced => None,
        };
        match self.executor.store.record(moves).await {
            Ok(moved) => moved.into_iter().filter_map(stored).collect(),
            Err(error) => {
                warn!(%error, sagas = count, "not sent; the poll takes over");
                Vec::new()
            }
        }
    }

    fn is_fresh(&self, saga: &Saga, now: Timestamp) -> bool {
        self.active(saga).is_some_and(|active| {
            active.phase == Phase::Sent && now - self.sent_at(active) < FRESH_FOR
        })
    }

    pub(super) fn sent_at(&self, active: &Active) -> Timestamp {
        let step = self.definition.step(&self.key.step);
        step.map_or(active.wake_at, |step| sent_at(step, active))
    }

    fn sending(&self, saga: Saga, now: Timestamp) -> Option<Move> {
        let step = self.key.step.clone();
        let event = match self.purpose {
            Purpose::Probe => Event::Probing { step },
            Purpose::First | Purpose::Retry => Event::Sending { step },
        };
        let (state, effects) = transition(&self.definition, saga.state.clone(), event, now).ok()?;
        Some(Move {
            saga,
            state,
            effects,
        })
    }

    /// One call and what it means for each saga.
    async fn call(&self, sagas: &[Saga]) -> Called {
        let commands: Vec<Command> = sagas.iter().filter_map(|saga| self.command(saga)).collect();
        let sent_at = self.executor.clock.now();
        let began = std::time::Instant::now();
        let result = deadline::within(self.timeout, self.call_undisturbed(&commands))
            .await
            .unwrap_or_else(|_| {
                let words = format!("timeout: no answer in {:?}", self.timeout);
                Err(CallError::unanswered(words))
            });
        metrics::histogram!("lapse_call_duration_seconds", "participant" => self.call.participant.clone(),
            "operation" => self.call.operation.clone())
        .record(began.elapsed().as_secs_f64());
        self.hear(sagas, &result, sent_at);
        match result {
            Ok(replies) => Called::Answered(self.events(sagas, replies)),
            Err(CallError::Partly { replies, rest }) => {
                Called::Answered(self.partly(sagas, replies, &rest))
            }
            Err(CallError::Data(_) | CallError::Locked(_)) if sagas.len() > 1 => Called::Halve,
            Err(CallError::Data(error)) => Called::Answered(self.all(
                sagas,
                &Outcome::Failed {
                    error: format!("data: {error}"),
                },
            )),
            Err(error @ (CallError::Locked(_) | CallError::Serialization(_))) => {
                Called::Answered(self.locked(sagas, &error))
            }
            Err(
                error @ (CallError::Configuration(_)
                | CallError::Busy { .. }
                | CallError::Unreachable(_)),
            ) => Called::Answered(self.not_applied(sagas, &error)),
            Err(CallError::Unanswered { error, .. } | CallError::Unknown(error)) => {
                Called::Answered(self.all(sagas, &Outcome::Unknown { error }))
            }
        }
    }

    /// The same batch again after a deadlock or a serialization failure.
    async fn call_undisturbed(&self, commands: &[Command]) -> Result<Vec<Reply>, CallError> {
        let mut repeated = 0;
        loop {
            match self.participant.call(&self.call.operation, commands).await {
                Err(CallError::Serialization(error)) if repeated < SERIALIZATION_RETRIES => {
                    repeated += 1;
                    warn!(%error, repeated, "the same batch again");
                }
                result => return result,
            }
        }
    }

    pub(super) fn command(&self, saga: &Saga) -> Option<Command> {
        let active = self.active(saga)?;
        let now = self.executor.clock.now();
        Some(command::build(
            &self.definition,
            saga,
            &self.key.step,
            active,
            &self.call,
            now,
        ))
    }

    /// Replies to events; a command without a reply is unknown.
    fn events(&self, sagas: &[Saga], replies: Vec<Reply>) -> Vec<Event> {
        let mut outcomes: HashMap<CommandId, Outcome> = replies
            .into_iter()
            .map(|reply| (reply.command_id, reply.outcome))
            .collect();
        sagas
            .iter()
            .map(|saga| {
                let id = saga.state.command_id(&self.key.step, self.key.direction);
                let missing = || Outcome::Unknown {
                    error: "no_reply: the answer left this command out".to_owned(),
                };
                self.replied(saga, outcomes.remove(&id).unwrap_or_else(missing))
            })
            .collect()
    }

    /// Replies to events; a command without a reply waits, nothing of it was applied.
    fn partly(&self, sagas: &[Saga], replies: Vec<Reply>, rest: &CallError) -> Vec<Event> {
        let answered: HashSet<CommandId> = replies
            .iter()
            .map(|reply| reply.command_id.clone())
            .collect();
        let is_answered = |saga: &&Saga| {
            let id = saga.state.command_id(&self.key.step, self.key.direction);
            answered.contains(&id)
        };
        let told: Vec<Saga> = sagas.iter().filter(is_answered).cloned().collect();
        let mut told = self.events(&told, replies).into_iter();
        let mut held = self.not_applied(sagas, rest).into_iter();
        let event = |saga: &Saga| {
            let held = held.next();
            if is_answered(&saga) {
                told.next()
            } else {
                held
            }
        };
        sagas.iter().filter_map(event).collect()
    }

    fn all(&self, sagas: &[Saga], outcome: &Outcome) -> Vec<Event> {
        sagas
            .iter()
            .map(|saga| self.replied(saga, outcome.clone()))
            .collect()
    }

    fn locked(&self, sagas: &[Saga], error: &CallError) -> Vec<Event> {
        let until = self.executor.clock.now() + LOCKED_FOR;
        sagas.iter().map(|_| self.deferred(until, error)).collect()
    }

    /// Nothing was applied, and none of the commands can help it: again when the participant may be called.
    pub(super) fn not_applied(&self, sagas: &[Saga], error: &CallError) -> Vec<Event> {
        let now = self.executor.clock.now();
        let mut ready = self.executor.lock();
        let care = ready.care(&self.key.participant);
        sagas
            .iter()
            .map(|saga| self.deferred(care.again_at(&self.key.operation, saga.id, now), error))
            .collect()
    }

    pub(super) fn deferred(&self, until: Timestamp, error: &CallError) -> Event {
        Event::Deferred {
            step: self.key.step.clone(),
            until,
            error: error.to_string(),
        }
    }

    /// The participant's care hears of every call; what it makes of it is for the calls to come.
    pub(super) fn hear(
        &self,
        sagas: &[Saga],
        result: &Result<Vec<Reply>, CallError>,
        sent_at: Timestamp,
    ) {
        let ids: Vec<_> = sagas.iter().map(|saga| saga.id).collect();
        let call = care::Call {
            operation: &self.key.operation,
            sagas: &ids,
            sent_at,
            purpose: self.purpose,
        };
        let now = self.executor.clock.now();
        let mut ready = self.executor.lock();
        ready
            .care(&self.key.participant)
            .heard(&call, health::verdict(result), now);
    }

    fn replied(&self, saga: &Saga, outcome: Outcome) -> Event {
        count(&self.call, self.key.direction, &outcome);
        Event::Replied {
            step: self.key.step.clone(),
            direction: self.key.direction,
            attempt: self.active(saga).map_or(1, |active| active.attempt),
            outcome: outcome.received(),
        }
    }

    pub(super) fn active<'s>(&self, saga: &'s Saga) -> Option<&'s Active> {
        let step: &StepId = &self.key.step;
        saga.state.active.get(step)
    }
}

/// Counts an answer.
pub(super) fn count(call: &Call, direction: Direction, outcome: &Outcome) {
    metrics::counter!("lapse_replies_total", "operation" => call.operation.clone(), "outcome" => outcome.name())
        .increment(1);
    let is_error = matches!(
        outcome,
        Outcome::Failed { .. } | Outcome::Unknown { .. } | Outcome::Rejected { .. }
    );
    if is_error && direction == Direction::Do && call.operation == "ReplenishStock" {
        metrics::counter!("inventory_release_errors_total", "outcome" => outcome.name())
            .increment(1);
    }
}

/// Stands in for a participant that nobody registered.
struct Absent(String);

#[async_trait::async_trait]
impl Participant for Absent {
    async fn call(&self, operation: &str, _: &[Command]) -> Result<Vec<Reply>, CallError> {
        Err(CallError::Configuration(format!(
            "no participant {:?} is set up for {operation}; name it in the settings",
            self.0
        )))
    }
}
