//! Drives sagas: one call per batch of equal commands, one record per batch of answers.
//!
//! ```text
//! start, claim ─► Ready ─► fenced "sent" ─► participant ─► transition ─► record ─► Ready (next step) | at rest
//!                                       └─► Kafka … replies ─► settled under the row's lock ─┘
//! ```
//! Relies on the store's fence: a saga that somebody else moved is dropped from memory here and now. Never: keeps
//! a timer; retries, missing replies, postponements and crashes all come back through [`Executor::claim`]. How much a
//! participant is called is up to its `care::Care`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lapse_participants::kit::{OrderOwner, Participant};
use lapse_sagas::event::Counter;
use lapse_sagas::{
    Definition, DefinitionHash, Direction, Effect, Event, Phase, Refused, SagaId, State, Status,
    StepId, Timestamp, transition,
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use crate::bus::Bus;
use crate::clock::Clock;
use crate::definitions::Definitions;
use crate::store::{self, Decision, Saga, Start, Started, Store, Which};

mod batch;
mod care;
mod command;
mod health;
mod queued;
mod raise;
mod ready;
mod record;
mod replies;

use care::{Entry, Wait};
pub use health::describe as describe_health;
pub use queued::Queued;
use ready::{Batch, Next, Ready};
pub use ready::{GroupKey, SizeClass};
pub use replies::Replies;

/// A command that waited longer than this since its row said `sent` is fenced again before it goes out.
const FRESH_FOR: chrono::TimeDelta = chrono::TimeDelta::milliseconds(250);

/// How often what is queued and can't go yet is looked at again, if no call ends meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
const TICK: Duration = Duration::from_millis(1);

/// The participants by the names that definitions use.
#[derive(Clone, Default)]
pub struct Participants {
    /// Who does operations.
    pub operations: HashMap<String, Arc<dyn Participant>>,
    /// Who gets commands over Kafka and answers there, some time: a reply that the poll misses is theirs to miss. With the
    /// others it is their coordinator's, which is gone or slow.
    pub queued: Queued,
    /// Who owns orders.
    pub owners: HashMap<String, Arc<dyn OrderOwner>>,
}

impl Participants {
    /// What a definition names and nobody serves, as in the settings: participants of its steps, its order owner.
    pub fn missing(&self, definition: &Definition) -> BTreeSet<String> {
        let calls = definition.body.steps.iter().flat_map(|step| {
            [Some(&step.action), step.compensation.as_ref()]
                .into_iter()
                .flatten()
        });
        let participants = calls.map(|call| &call.participant);
        let absent = participants.filter(|name| {
            !self.operations.contains_key(*name) && !self.queued.names.contains(*name)
        });
        let absent = absent.map(|name| format!("participants.{name}"));
        let owner = &definition.body.trigger.order_owner;
        let owner = (!self.owners.contains_key(owner)).then(|| format!("order_owners.{owner}"));
        absent.chain(owner).collect()
    }
}

/// How much at a time.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Commands per call; 500 was best on two cores (postgres-hot-path measurements: 500 to 1,000).
    pub batch_max: usize,
    /// Calls at a time per group.
    pub slots: usize,
    /// Sagas in hand at most, over all groups.
    pub held_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            batch_max: 500,
            slots: 2,
            held_max: 20_000,
        }
    }
}

/// Drives the sagas in hand.
pub struct Executor {
    store: Arc<dyn Store>,
    bus: Arc<dyn Bus>,
    clock: Arc<dyn Clock>,
    definitions: Arc<Definitions>,
    participants: Participants,
    settings: Settings,
    ready: Mutex<Ready>,
    work: Notify,
    progress: Notify,
}

impl Executor {
    /// An executor with nothing in hand. [`Executor::run`] makes it work.
    pub fn new(
        store: Arc<dyn Store>,
        bus: Arc<dyn Bus>,
        clock: Arc<dyn Clock>,
        definitions: Arc<Definitions>,
        participants: Participants,
        settings: Settings,
    ) -> Arc<Executor> {
        Arc::new(Executor {
            store,
            bus,
            clock,
            definitions,
            participants,
            settings,
            ready: Mutex::new(Ready::new(settings.batch_max, settings.slots)),
            work: Notify::new(),
            progress: Notify::new(),
        })
    }

    /// Starts calls as their slots become free, until stopped.
    pub async fn run(self: Arc<Self>, stop: &CancellationToken) {
        while !stop.is_cancelled() {
            let next = self.lock().next(self.clock.now());
            match next {
                Next::Call(batch) => drop(tokio::spawn(Arc::clone(&self).run_batch(batch))),
                Next::PutBack(sagas) => {
                    drop(tokio::spawn(Arc::clone(&self).put_back(sagas)));
                }
                Next::Later(at) => {
                    let wait = at.and_then(|at| (at - self.clock.now()).to_std().ok());
                    let wait = wait.unwrap_or(LOOK_AGAIN).clamp(TICK, LOOK_AGAIN);
                    tokio::select! {
                        () = self.work.notified() => {}
                        () = tokio::time::sleep(wait) => {}
                        () = stop.cancelled() => {}
                    }
                }
                Next::Nothing => tokio::select! {
                    () = self.work.notified() => {}
                    () = stop.cancelled() => {}
                },
            }
        }
    }

    /// How many sagas a new start of this definition may bring now.
    pub fn room(&self, definition: &Definition) -> usize {
        let step = definition.first_step();
        let key = group(definition, step, Direction::Do, SizeClass::Whole);
        let ready = self.lock();
        ready
            .room(&key, self.clock.now())
            .min(self.settings.held_max.saturating_sub(ready.held()))
    }

    /// How many sagas are in hand.
    pub fn held(&self) -> usize {
        self.lock().held()
    }

    /// The owner of the orders that a definition names.
    pub fn owner(&self, name: &str) -> Option<Arc<dyn OrderOwner>> {
        self.participants.owners.get(name).cloned()
    }

    /// Why nobody can read replies that come later, in words.
    pub fn deaf(&self) -> Option<String> {
        self.participants.queued.deaf()
    }

    /// Waits until a call has ended, so that there may be room now; at most so long.
    pub async fn progress(&self, at_most: Duration) {
        let _ = tokio::time::timeout(at_most, self.progress.notified()).await;
    }

    /// Stores new sagas and drives them. The answers are in the order of the starts.
    ///
    /// # Errors
    /// Those of [`Store::start`]; nothing was started.
    pub async fn start(&self, starts: Vec<Start>) -> Result<Vec<Started>, store::Error> {
        let (now, promised) = (self.clock.now(), Promised::default());
        let on_its_way = |mut start: Start| {
            if let Some(definition) = self.definitions.get(&start.definition) {
                (start.state, _) = self.go_on(
                    &definition,
                    start.state,
                    now,
                    &promised,
                    Vec::new(),
                    // Its history has no place yet for why it waits; that is told when it first looks again.
                    |step, wait| Event::Queued {
                        step,
                        until: wait.until,
                    },
                );
            }
            start
        };
        let starts = starts.into_iter().map(on_its_way).collect();
        let started = self.store.start(starts).await?;
        for started in &started {
            if let Started::New(saga) = started {
                metrics::counter!("lapse_sagas_started_total", "definition" => saga.name.to_string(),
                    "cause" => saga.cause().name())
                .increment(1);
            }
        }
        self.submit(started.iter().filter_map(|started| match started {
            Started::New(saga) => Some((**saga).clone()),
            Started::Duplicate { .. } => None,
        }));
        Ok(started)
    }

    /// Takes over rows past their wake-up time: retries, postponements, missing replies, other coordinators' crashes.
    /// Gives the number of rows looked at.
    ///
    /// # Errors
    /// Those of [`Store::revise`] and [`Store::definitions`].
    pub async fn claim(self: &Arc<Self>, limit: usize) -> Result<usize, store::Error> {
        if self.participants.queued.are_heard() {
            self.lock().give_up(self.clock.now());
        } else {
            self.lock().hear_nothing();
        }
        let room = self
            .settings
            .held_max
            .saturating_sub(self.held())
            .min(limit);
        if room == 0 {
            return Ok(0);
        }
        let unknown: Arc<Mutex<BTreeSet<DefinitionHash>>> = Arc::default();
        let promised = Promised::default();
        let decide: store::Decide = {
            let (executor, unknown) = (Arc::clone(self), Arc::clone(&unknown));
            Arc::new(
                move |saga, now| match executor.definitions.get(&saga.definition) {
                    Some(definition) => executor.decide_due(&definition, saga, now, &promised),
                    None => {
                        unknown
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .insert(saga.definition.clone());
                        Decision::Leave
                    }
                },
            )
        };
        let limit = u32::try_from(room).unwrap_or(u32::MAX);
        let revised = self.store.revise(Which::Due { limit }, decide).await?;
        let looked_at = revised.len();
        self.submit(
            revised
                .into_iter()
                .filter(|revised| revised.moved)
                .map(|revised| revised.saga),
        );
        self.tell_all().await;
        let unknown: Vec<_> = unknown
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .cloned()
            .collect();
        if !unknown.is_empty() {
            warn!(
                ?unknown,
                "fetching definitions of sagas that were started elsewhere"
            );
            self.definitions.fetch(&unknown).await?;
        }
        Ok(looked_at)
    }

    /// Queues what is in hand: every saga with a taken or freshly sent step.
    fn submit(&self, sagas: impl IntoIterator<Item = Saga>) {
        let mut ready = self.lock();
        for saga in sagas {
            // Without its definition nobody here can send it; its wake-up time brings it back.
            let Some(definition) = self.definitions.get(&saga.definition) else {
                continue;
            };
            for step in in_hand(&saga.state) {
                ready.push(key_of(&definition, &saga.state, &step), saga.clone());
            }
        }
        drop(ready);
        self.work.notify_one();
    }

    /// Due, and at once on its way; or back to the table for a moment where its group has no room.
    fn decide_due(
        &self,
        definition: &Definition,
        saga: &Saga,
        now: Timestamp,
        promised: &Promised,
    ) -> Decision {
        match transition(definition, saga.state.clone(), Event::Due, now) {
            Ok((state, effects)) => {
                observe(saga, &effects, now);
                self.missed(definition, saga, now);
                let (state, effects) =
                    self.go_on(definition, state, now, promised, effects, deferred);
                Decision::Move(state, effects)
            }
            Err(Refused::Unchanged) => Decision::Leave,
            Err(why) => {
                error!(saga_id = %saga.id, error = %why, "a due saga can't be taken");
                Decision::Leave
            }
        }
    }

    /// Every step that is now taken is sent with the same commit if its call can start at once, stays taken if its
    /// turn comes within seconds, and goes back to the table otherwise; where its participant is left alone, as
    /// `put_off` says.
    fn go_on(
        &self,
        definition: &Definition,
        mut state: State,
        now: Timestamp,
        promised: &Promised,
        mut effects: Vec<Effect>,
        put_off: fn(StepId, Wait) -> Event,
    ) -> (State, Vec<Effect>) {
        let saga_id = state.saga_id;
        for step in in_hand(&state) {
            let key = key_of(definition, &state, &step);
            let entry = self.lock().admit(&key, saga_id, now);
            let event = match entry {
                Entry::Probe => Event::Probing { step },
                Entry::Wait(wait) => {
                    count_put_back(&key.participant, "left_alone");
                    put_off(step, wait)
                }
                Entry::Free => match self.turn(&key, saga_id, now, promised) {
                    Turn::Now => Event::Sending { step },
                    Turn::Soon => continue,
                    Turn::At(until) => Event::Queued { step, until },
                },
            };
            match transition(definition, state.clone(), event, now) {
                Ok((next, more)) => {
                    state = next;
                    effects.extend(more);
                }
                Err(why) => error!(%saga_id, error = %why, "a taken step can't go on"),
            }
        }
        (state, effects)
    }

    fn turn(&self, key: &GroupKey, saga: SagaId, now: Timestamp, promised: &Promised) -> Turn {
        let before = promised.to_others(key, saga);
        let ready = self.lock();
        let turn = if ready.has_free_slot(key, before, now) {
            Turn::Now
        } else if ready.room(key, now) > before {
            Turn::Soon
        } else {
            count_put_back(&key.participant, "no_room");
            return Turn::At(ready.turn_at(key, saga, now));
        };
        drop(ready);
        promised.promise(key.clone(), saga);
        turn
    }

    /// Back to the table, at no attempt.
    async fn put_back(self: Arc<Self>, sagas: Vec<(Saga, Event)>) {
        let put_back = sagas.into_iter();
        let put_back = put_back.map(|(saga, event)| batch::Answered { saga, event });
        let in_hand = self.record(put_back.collect()).await;
        self.submit(in_hand);
    }

    async fn run_batch(self: Arc<Self>, batch: Batch) {
        let _slot = Slot::new(Arc::clone(&self), &batch);
        batch::run(&self, batch).await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Ready> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When a step that is taken can be sent.
enum Turn {
    Now,
    Soon,
    At(Timestamp),
}

/// Places that sagas of one transaction were given and will take once it is committed: without this, each of them would
/// see the room that is there for one. Kept by saga, because a transaction that is repeated decides again.
#[derive(Default)]
struct Promised(Mutex<BTreeMap<GroupKey, BTreeSet<SagaId>>>);

impl Promised {
    fn to_others(&self, key: &GroupKey, saga_id: SagaId) -> usize {
        let promised = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        promised.get(key).map_or(0, |sagas| {
            sagas.len() - usize::from(sagas.contains(&saga_id))
        })
    }

    fn promise(&self, key: GroupKey, saga_id: SagaId) {
        let mut promised = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        promised.entry(key).or_default().insert(saga_id);
    }
}

/// Frees the batch's place when it is through, and when a participant panicked: its sagas come back by their wake-up
/// times, and ten such take-overs park them.
struct Slot {
    executor: Arc<Executor>,
    key: GroupKey,
    sagas: usize,
    began: Instant,
}

impl Slot {
    fn new(executor: Arc<Executor>, batch: &Batch) -> Slot {
        Slot {
            executor,
            key: batch.key.clone(),
            sagas: batch.sagas.len(),
            began: Instant::now(),
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut ready = self.executor.lock();
        ready.finished(&self.key, self.sagas, self.began.elapsed());
        health::show(&self.key.participant, ready.care(&self.key.participant));
        drop(ready);
        self.executor.work.notify_one();
        self.executor.progress.notify_waiters();
    }
}

/// Counts what a transition means for the outside.
fn observe(saga: &Saga, effects: &[Effect], now: Timestamp) {
    for effect in effects {
        match effect {
            Effect::Ended(status) => {
                metrics::counter!("lapse_sagas_ended_total", "definition" => saga.name.to_string(),
                    "state" => status.name())
                .increment(1);
                if let (Status::Completed, Some(due_at)) = (status, saga.due_at) {
                    let late_s = (now - due_at).as_seconds_f64().max(0.0);
                    metrics::histogram!("order_cancel_duration_seconds").record(late_s);
                }
            }
            Effect::Count(Counter::TakenOver) => {
                metrics::counter!("lapse_takeovers_total").increment(1)
            }
            Effect::Count(_) | Effect::History(_) | Effect::Alert(_) | Effect::AlertSettled => {}
        }
    }
}

/// The steps that are in somebody's hand and not sent.
pub fn taken(state: &State) -> Vec<StepId> {
    state
        .active
        .iter()
        .filter(|(_, active)| active.phase == Phase::Taken)
        .map(|(step, _)| step.clone())
        .collect()
}

/// The steps whose commands are for this coordinator to send.
fn in_hand(state: &State) -> Vec<StepId> {
    state
        .active
        .iter()
        .filter(|(_, active)| matches!(active.phase, Phase::Taken | Phase::Sent))
        .map(|(step, _)| step.clone())
        .collect()
}

fn deferred(step: StepId, wait: Wait) -> Event {
    Event::Deferred {
        step,
        until: wait.until,
        error: wait.why,
    }
}

fn count_put_back(participant: &str, reason: &'static str) {
    metrics::counter!("lapse_participant_put_back_total", "participant" => participant.to_owned(),
        "reason" => reason)
    .increment(1);
}

fn key_of(definition: &Definition, state: &State, step: &StepId) -> GroupKey {
    let active = state.active.get(step);
    let direction = active.map_or(Direction::Do, |active| active.direction);
    // Only actions are marked by an unanswered attempt; a compensation that goes out again counts as one.
    let unanswered = direction == Direction::Undo
        || state
            .steps
            .get(step)
            .is_some_and(|record| record.maybe_applied);
    let attempt = active.map_or(1, |active| active.attempt);
    let is_last = definition
        .step(step)
        .is_some_and(|step| attempt > step.retries.max);
    let size = match attempt {
        _ if active.is_some_and(|active| active.probe) => SizeClass::Probe,
        0 | 1 => SizeClass::Whole,
        _ if !unanswered => SizeClass::Whole,
        _ if is_last => SizeClass::Alone,
        2 => SizeClass::Few,
        _ => SizeClass::Alone,
    };
    group(definition, step, direction, size)
}

fn group(
    definition: &Definition,
    step: &StepId,
    direction: Direction,
    size: SizeClass,
) -> GroupKey {
    let call = definition.step(step).and_then(|step| step.call(direction));
    let (participant, operation) = call.map_or_else(Default::default, |call| {
        (call.participant.clone(), call.operation.clone())
    });
    GroupKey {
        definition: definition.hash.clone(),
        step: step.clone(),
        direction,
        size,
        participant,
        operation,
    }
}
