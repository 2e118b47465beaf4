//! Sagas in hand, grouped by the call that comes next, oldest order first.
//!
//! ```text
//! submit ─► queue of (definition, step, direction, operation, size class) ─► batch when a slot is free ─► call
//!                                                        └─ its participant is left alone ─► back to the table
//! ```
//! Relies on the caller to run the batches it hands out, and on [`Care`] for how each participant is to be treated.
//! Never: holds more than can be sent within five seconds at the measured rate of the group; the rest stays in the
//! windows or in the table. And never so long that its row looks unanswered: then it goes back too.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::TimeDelta;
use lapse_sagas::transition::REPLY_GRACE;
use lapse_sagas::{DefinitionHash, Direction, Event, SagaId, StepId, Timestamp};

use super::care::{Care, Entry, Purpose};
use crate::store::Saga;

/// Sagas whose next commands may share one call.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct GroupKey {
    /// The definition.
    pub definition: DefinitionHash,
    /// The step.
    pub step: StepId,
    /// Action or compensation.
    pub direction: Direction,
    /// How many may go together.
    pub size: SizeClass,
    /// Who is called.
    pub participant: String,
    /// For what.
    pub operation: String,
}

/// How many commands share a call. After a call without an answer they go in smaller and smaller company, and the last
/// attempt goes alone, so that one command that hangs its batch can't exhaust the retries of the others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SizeClass {
    /// One, to see whether the participant answers again.
    Probe,
    /// A whole batch.
    Whole,
    /// Eight.
    Few,
    /// One.
    Alone,
}

/// Company after a first call without an answer: 500 commands are 63 calls then, of which one hangs again.
const FEW: usize = 8;

/// A batch for one call.
pub struct Batch {
    /// The group it comes from.
    pub key: GroupKey,
    /// At least one.
    pub sagas: Vec<Saga>,
    /// Why it goes out.
    pub purpose: Purpose,
}

/// What to do next.
pub enum Next {
    /// This call. Its slot is taken until [`Ready::finished`].
    Call(Batch),
    /// Put these back, by these events: their participant is left alone, or their turn does not come in time.
    PutBack(Vec<(Saga, Event)>),
    /// Something is queued and can't go yet; at this time it may, if no call ends before.
    Later(Option<Timestamp>),
    /// Nothing is queued.
    Nothing,
}

/// All groups, and how their participants are to be treated.
pub struct Ready {
    groups: BTreeMap<GroupKey, Group>,
    cares: BTreeMap<String, Care>,
    batch_max: usize,
    slots: usize,
    held: usize,
}

#[derive(Default)]
struct Group {
    /// By due time; those without one are asked for by somebody and go first.
    queue: BTreeMap<(Option<Timestamp>, SagaId), Saga>,
    calls: usize,
    sagas_in_calls: usize,
    per_second: Option<f64>,
    /// When it was last looked for sagas whose turn does not come in time.
    searched_at: Option<Timestamp>,
}

/// How much a group may hold, in seconds of work at its measured rate.
const HOLD_S: f64 = 5.0;

/// How long a step waits in the table for its turn.
const QUEUED_FOR: TimeDelta = TimeDelta::seconds(2);

/// How often a queue is searched for what has waited too long.
const SEARCH_EVERY: TimeDelta = TimeDelta::milliseconds(100);

impl Ready {
    /// No sagas; `slots` calls at a time per group, of `batch_max` commands at most.
    pub fn new(batch_max: usize, slots: usize) -> Ready {
        Ready {
            groups: BTreeMap::new(),
            cares: BTreeMap::new(),
            batch_max,
            slots,
            held: 0,
        }
    }

    /// How many sagas are queued or in a call.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Those of which anything is known.
    pub fn participants(&self) -> Vec<String> {
        self.cares.keys().cloned().collect()
    }

    /// Where replies come later they are read here; those that have not come by now will not come.
    pub fn give_up(&mut self, now: Timestamp) {
        for care in self.cares.values_mut() {
            care.give_up(now);
        }
    }

    /// Where replies come later, others read them.
    pub fn hear_nothing(&mut self) {
        self.cares.values_mut().for_each(Care::hear_nothing);
    }

    /// How a participant is treated.
    pub fn care(&mut self, participant: &str) -> &mut Care {
        let full = 2 * self.batch_max * self.slots;
        self.cares
            .entry(participant.to_owned())
            .or_insert_with(|| Care::new(participant, full))
    }

    /// Whether a saga may go on to this call.
    pub fn admit(&mut self, key: &GroupKey, saga: SagaId, now: Timestamp) -> Entry {
        self.care(&key.participant).admit(&key.operation, saga, now)
    }

    /// How many more sagas this group can send within five seconds.
    pub fn room(&self, key: &GroupKey, now: Timestamp) -> usize {
        let cap = self.cap(key);
        let (limit, has) = self.groups.get(key).map_or((2 * cap, 0), |group| {
            let limit = group.per_second.map_or(2 * cap, |per_second| {
                ((per_second * HOLD_S) as usize).max(cap)
            });
            (limit, group.queue.len() + group.sagas_in_calls)
        });
        let own = limit.saturating_sub(has);
        let Some(care) = self.cares.get(&key.participant) else {
            return own;
        };
        let retries = match key.size {
            SizeClass::Whole | SizeClass::Probe => usize::MAX,
            SizeClass::Few | SizeClass::Alone => {
                care.retries(now).saturating_mul(cap).saturating_sub(has)
            }
        };
        let under_limit = care
            .may_hold()
            .saturating_sub(self.held_for(&key.participant));
        own.min(retries).min(under_limit)
    }

    /// Whether a call could start at once, with so many sagas before it that are not queued yet.
    pub fn has_free_slot(&self, key: &GroupKey, before: usize, now: Timestamp) -> bool {
        let group = self.groups.get(key);
        let (calls, queued) = group.map_or((0, 0), |group| (group.calls, group.queue.len()));
        let room = self
            .cares
            .get(&key.participant)
            .map_or(usize::MAX, Care::room);
        let ahead = queued + before;
        calls < self.slots && ahead < self.cap(key) && ahead < room && self.room(key, now) > before
    }

    /// When a saga that finds no room looks again.
    pub fn turn_at(&self, key: &GroupKey, saga: SagaId, now: Timestamp) -> Timestamp {
        let care = self.cares.get(&key.participant);
        turn_at(care, saga, now)
    }

    /// Queues a saga; in place of an older state of it.
    pub fn push(&mut self, key: GroupKey, saga: Saga) {
        let group = self.groups.entry(key).or_default();
        let older = group.queue.insert((saga.due_at, saga.id), saga);
        self.held += usize::from(older.is_none());
    }

    /// What to do next.
    pub fn next(&mut self, now: Timestamp) -> Next {
        let queued: Vec<GroupKey> = self
            .groups
            .iter()
            .filter(|(_, group)| !group.queue.is_empty())
            .map(|(key, _)| key.clone())
            .collect();
        let mut later = None;
        for key in &queued {
            match self.next_of(key, now) {
                Next::Later(at) => later = later.into_iter().chain(at).min(),
                next => return next,
            }
        }
        if queued.is_empty() {
            Next::Nothing
        } else {
            Next::Later(later)
        }
    }

    /// A batch of so many sagas is through after so long: frees its slot and measures the group's rate.
    pub fn finished(&mut self, key: &GroupKey, sagas: usize, took: Duration) {
        self.held -= sagas;
        self.care(&key.participant).ended(sagas);
        let slots = self.slots as f64;
        let Some(group) = self.groups.get_mut(key) else {
            return;
        };
        group.calls -= 1;
        group.sagas_in_calls -= sagas;
        let seen = sagas as f64 / took.as_secs_f64().max(0.000_1) * slots;
        group.per_second = Some(
            group
                .per_second
                .map_or(seen, |before| before * 0.7 + seen * 0.3),
        );
        if group.calls == 0 && group.queue.is_empty() && key.size != SizeClass::Whole {
            self.groups.remove(key);
        }
    }

    fn next_of(&mut self, key: &GroupKey, now: Timestamp) -> Next {
        let (batch_max, slots) = (self.batch_max, self.slots);
        self.care(&key.participant);
        let (Some(care), Some(group)) = (
            self.cares.get_mut(&key.participant),
            self.groups.get_mut(key),
        ) else {
            return Next::Later(None);
        };
        let late = group.take_late(&key.step, now);
        if !late.is_empty() {
            self.held -= late.len();
            let queued = |saga: Saga| {
                let until = turn_at(Some(care), saga.id, now);
                let step = key.step.clone();
                (saga, Event::Queued { step, until })
            };
            return Next::PutBack(late.into_iter().map(queued).collect());
        }
        let is_probe = key.size == SizeClass::Probe;
        if !is_probe && care.is_shut(&key.operation, now) {
            let sagas = group.take(batch_max);
            self.held -= sagas.len();
            let put_back = sagas.into_iter().filter_map(|saga| {
                let wait = care.wait(&key.operation, saga.id, now)?;
                let event = Event::Deferred {
                    step: key.step.clone(),
                    until: wait.until,
                    error: wait.why,
                };
                Some((saga, event))
            });
            return Next::PutBack(put_back.collect());
        }
        // Probes are bounded by their number per second; if they hang, the next one may still find somebody.
        if !is_probe && (group.calls >= slots || care.room() == 0) {
            return Next::Later(None);
        }
        if let Some(next_at) = care.next_at(now).filter(|_| !is_probe) {
            return Next::Later(Some(next_at));
        }
        let room = if is_probe { 1 } else { care.room() };
        let size = cap(batch_max, key).min(room);
        let purpose = match key.size {
            SizeClass::Probe => Purpose::Probe,
            _ if group.first(size).all(|saga| is_retry(saga, key)) => Purpose::Retry,
            _ => Purpose::First,
        };
        if purpose == Purpose::Retry && !care.may_retry(now) {
            count("lapse_retry_budget_refusals_total", &key.participant);
            return Next::Later(None);
        }
        if is_probe {
            count("lapse_participant_probes_total", &key.participant);
        }
        let sagas = group.take(size);
        group.calls += 1;
        group.sagas_in_calls += sagas.len();
        care.began(sagas.len(), cap(batch_max, key), now);
        Next::Call(Batch {
            key: key.clone(),
            sagas,
            purpose,
        })
    }

    /// Sagas queued and in calls for a participant, over all of its groups.
    fn held_for(&self, participant: &str) -> usize {
        let own = self
            .groups
            .iter()
            .filter(|(key, _)| key.participant == participant);
        own.map(|(_, group)| group.queue.len() + group.sagas_in_calls)
            .sum()
    }

    fn cap(&self, key: &GroupKey) -> usize {
        cap(self.batch_max, key)
    }
}

impl Group {
    fn first(&self, size: usize) -> impl Iterator<Item = &Saga> {
        self.queue.values().take(size)
    }

    /// Takes out what would look unanswered, or be taken over, before it could go out.
    fn take_late(&mut self, step: &StepId, now: Timestamp) -> Vec<Saga> {
        if self.searched_at.is_some_and(|at| now - at < SEARCH_EVERY) {
            return Vec::new();
        }
        self.searched_at = Some(now);
        let is_late = |_: &_, saga: &mut Saga| {
            let active = saga.state.active.get(step);
            active.is_some_and(|active| active.wake_at - now < REPLY_GRACE)
        };
        self.queue
            .extract_if(.., is_late)
            .map(|(_, saga)| saga)
            .collect()
    }

    fn take(&mut self, size: usize) -> Vec<Saga> {
        let size = size.min(self.queue.len());
        std::iter::from_fn(|| self.queue.pop_first())
            .take(size)
            .map(|(_, saga)| saga)
            .collect()
    }
}

fn turn_at(care: Option<&Care>, saga: SagaId, now: Timestamp) -> Timestamp {
    let turn_at = care.and_then(|care| care.turn_at(saga, now));
    turn_at.unwrap_or(now + QUEUED_FOR)
}

fn count(counter: &'static str, participant: &str) {
    metrics::counter!(counter, "participant" => participant.to_owned()).increment(1);
}

fn is_retry(saga: &Saga, key: &GroupKey) -> bool {
    let active = saga.state.active.get(&key.step);
    active.is_some_and(|active| active.attempt > 1)
}

fn cap(batch_max: usize, key: &GroupKey) -> usize {
    match key.size {
        SizeClass::Whole => batch_max,
        SizeClass::Few => FEW.min(batch_max),
        SizeClass::Alone | SizeClass::Probe => 1,
    }
}
