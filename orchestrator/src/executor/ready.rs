//! Sagas in hand, grouped by the call that comes next.
//!
//! ```text
//! submit ─► queue of (definition, step, direction, size class) ─► batch when a slot is free ─► call
//! ```
//! Relies on the caller to run the batches it hands out. Never: holds more than can be sent within five seconds at the
//! measured rate of the group; the rest stays in the windows or in the table.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use lapse_sagas::{DefinitionHash, Direction, StepId};

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
}

/// How many commands share a call. After a call without an answer they go in smaller and smaller company, and the last
/// attempt goes alone, so that one command that hangs its batch can't exhaust the retries of the others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SizeClass {
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
}

/// All groups.
pub struct Ready {
    groups: BTreeMap<GroupKey, Group>,
    batch_max: usize,
    slots: usize,
    held: usize,
}

#[derive(Default)]
struct Group {
    queue: VecDeque<Saga>,
    calls: usize,
    sagas_in_calls: usize,
    per_second: Option<f64>,
}

/// How much a group may hold, in seconds of work at its measured rate.
const HOLD_S: f64 = 5.0;

impl Ready {
    /// No sagas; `slots` calls at a time per group, of `batch_max` commands at most.
    pub fn new(batch_max: usize, slots: usize) -> Ready {
        Ready {
            groups: BTreeMap::new(),
            batch_max,
            slots,
            held: 0,
        }
    }

    /// How many sagas are queued or in a call.
    pub fn held(&self) -> usize {
        self.held
    }

    /// How many more sagas this group can send within five seconds.
    pub fn room(&self, key: &GroupKey) -> usize {
        let Some(group) = self.groups.get(key) else {
            return 2 * self.cap(key);
        };
        let limit = group.per_second.map_or(2 * self.cap(key), |per_second| {
            ((per_second * HOLD_S) as usize).max(self.cap(key))
        });
        limit.saturating_sub(group.queue.len() + group.sagas_in_calls)
    }

    /// Whether a call could start at once, with so many sagas before it that are not queued yet.
    pub fn has_free_slot(&self, key: &GroupKey, before: usize) -> bool {
        let group = self.groups.get(key);
        let (calls, queued) = group.map_or((0, 0), |group| (group.calls, group.queue.len()));
        calls < self.slots && queued + before < self.cap(key)
    }

    /// Queues a saga.
    pub fn push(&mut self, key: GroupKey, saga: Saga) {
        self.held += 1;
        self.groups.entry(key).or_default().queue.push_back(saga);
    }

    /// The next batch whose group has a free slot; its slot is taken until [`Ready::finished`].
    pub fn pop(&mut self) -> Option<Batch> {
        let slots = self.slots;
        let (key, group) = self
            .groups
            .iter_mut()
            .find(|(_, group)| !group.queue.is_empty() && group.calls < slots)?;
        let key = key.clone();
        let size = cap(self.batch_max, &key).min(group.queue.len());
        let sagas: Vec<Saga> = group.queue.drain(..size).collect();
        group.calls += 1;
        group.sagas_in_calls += sagas.len();
        Some(Batch { key, sagas })
    }

    /// A batch of so many sagas is through after so long: frees its slot and measures the group's rate.
    pub fn finished(&mut self, key: &GroupKey, sagas: usize, took: Duration) {
        self.held -= sagas;
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

    fn cap(&self, key: &GroupKey) -> usize {
        cap(self.batch_max, key)
    }
}

fn cap(batch_max: usize, key: &GroupKey) -> usize {
    match key.size {
        SizeClass::Whole => batch_max,
        SizeClass::Few => FEW.min(batch_max),
        SizeClass::Alone => 1,
    }
}
