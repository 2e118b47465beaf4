//! The tables in memory, and what each method of the store does to them.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use chrono::TimeDelta;
use lapse_participants::kit::OrderKey;
use lapse_sagas::{Definition, DefinitionHash, SagaId, Status, Timestamp, transition};

use super::alerts::Alerts;
use crate::store::consequence::{
    alert_message, consequences, dead_letter_message, digest, outcome_message,
};
use crate::store::history::Line;
use crate::store::{
    ActiveSet, AlertDue, DeadLetter, Decide, Decision, Error, HistoryHead, Move, Moved,
    OutboxMessage, Revised, Saga, StaleReply, Standing, Start, Started, Which,
};

const OUTBOX_CLAIM: TimeDelta = TimeDelta::seconds(45);
const ALERT_REPEAT: TimeDelta = TimeDelta::minutes(30);

type Place = (String, i32, i64, [u8; 32]);

#[derive(Default)]
pub struct Tables {
    pub sagas: BTreeMap<SagaId, Saga>,
    pub history: HashMap<SagaId, Vec<Line>>,
    /// With the end of the claim, if it is claimed.
    pub outbox: BTreeMap<i64, (OutboxMessage, Option<Timestamp>)>,
    pub alerts: Alerts,
    pub dead_letters: BTreeMap<Place, DeadLetter>,
    pub stale_replies: Vec<(SagaId, StaleReply)>,
    pub counts: BTreeMap<(String, String, String), i64>,
    keys: HashMap<(String, OrderKey), SagaId>,
    wake_ats: BTreeSet<(Timestamp, SagaId)>,
    definitions: BTreeMap<(String, u32), Arc<Definition>>,
    active: BTreeMap<String, Arc<Definition>>,
    active_version: i64,
    last_outbox_id: i64,
}

impl Tables {
    pub fn deploy(&mut self, definitions: &[Arc<Definition>]) -> Result<ActiveSet, Error> {
        let key = |definition: &Definition| (definition.name().to_owned(), definition.body.version);
        for definition in definitions {
            let (name, version) = key(definition);
            match self.definitions.get(&(name.clone(), version)) {
                Some(known) if known.hash != definition.hash => {
                    return Err(Error::VersionTaken { name, version });
                }
                _ => {}
            }
        }
        self.active().refuse_overlaps(definitions)?;
        let mut changed = false;
        for definition in definitions {
            self.definitions
                .entry(key(definition))
                .or_insert_with(|| Arc::clone(definition));
            let before = self
                .active
                .insert(definition.name().to_owned(), Arc::clone(definition));
            changed |= before.is_none_or(|before| before.hash != definition.hash);
        }
        self.active_version += i64::from(changed);
        Ok(self.active())
    }

    pub fn active(&self) -> ActiveSet {
        ActiveSet {
            version: self.active_version,
            definitions: self.active.values().cloned().collect(),
        }
    }

    pub fn definitions(&self, hashes: &[DefinitionHash]) -> Vec<Arc<Definition>> {
        self.definitions
            .values()
            .filter(|known| hashes.contains(&known.hash))
            .cloned()
            .collect()
    }

    pub fn start(&mut self, start: Start) -> Started {
        let key = (start.name.to_string(), start.order.clone());
        if let Some(&saga_id) = self.keys.get(&key) {
            self.count(&start.name, &start.order_type, "duplicate", 1);
            return Started::Duplicate { saga_id };
        }
        let line = HistoryHead::EMPTY.append(&transition::started(&start.state, &start.event));
        let saga = Saga {
            id: start.state.saga_id,
            version: 1,
            state: start.state,
            definition: start.definition,
            name: start.name,
            order: start.order,
            order_type: start.order_type,
            due_at: start.due_at,
            event: start.event,
            history: (&line).into(),
        };
        self.keys.insert(key, saga.id);
        self.history.insert(saga.id, vec![line]);
        self.put(saga.clone());
        self.count(&saga.name, &saga.order_type, "started", 1);
        Started::New(Box::new(saga))
    }

    pub fn record(&mut self, moved: Move, now: Timestamp) -> Moved {
        let passes = |stored: &Saga| stored.version == moved.saga.version;
        if !self.sagas.get(&moved.saga.id).is_some_and(passes) {
            return Moved::Fenced;
        }
        let all = consequences(&moved);
        let id = moved.saga.id;
        if all.settled {
            self.alerts.settle(id);
        }
        for raised in all.raised {
            self.alerts.raise(id, raised, now);
        }
        if let Some(ended) = &all.ended {
            let message = outcome_message(&moved, ended, now);
            self.put_message("outcomes", moved.saga.order.order_id.clone(), message);
        }
        for counter in all.counters {
            self.count(&moved.saga.name, &moved.saga.order_type, counter, 1);
        }
        let history = all
            .lines
            .last()
            .map_or(moved.saga.history.clone(), HistoryHead::from);
        self.history.entry(id).or_default().extend(all.lines);
        let version = moved.saga.version + 1;
        let saga = Saga {
            version,
            state: moved.state,
            history,
            ..moved.saga
        };
        self.put(saga.clone());
        Moved::Stored(Box::new(saga))
    }

    /// The rows asked for, in order of locking.
    pub fn lock(&self, which: Which, now: Timestamp) -> Vec<Saga> {
        let ids: Vec<SagaId> = match which {
            Which::Due { limit } => {
                let due = self
                    .wake_ats
                    .iter()
                    .take_while(|(wake_at, _)| *wake_at <= now);
                due.take(limit as usize).map(|(_, id)| *id).collect()
            }
            Which::Ids(ids) => ids
                .into_iter()
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect(),
            Which::Key { definition, order } => self
                .keys
                .get(&(definition, order))
                .copied()
                .into_iter()
                .collect(),
        };
        ids.iter()
            .filter_map(|id| self.sagas.get(id))
            .cloned()
            .collect()
    }

    pub fn revise(&mut self, saga: Saga, decide: &Decide, now: Timestamp) -> Revised {
        match decide(&saga, now) {
            Decision::Move(state, effects) => {
                let unchanged = saga.clone();
                match self.record(
                    Move {
                        saga,
                        state,
                        effects,
                    },
                    now,
                ) {
                    Moved::Stored(saga) => Revised {
                        saga: *saga,
                        moved: true,
                    },
                    Moved::Fenced => Revised {
                        saga: unchanged,
                        moved: false,
                    },
                }
            }
            Decision::Leave => Revised { saga, moved: false },
            Decision::Stale(reply) => {
                self.stale_replies.push((saga.id, reply));
                self.count(&saga.name, &saga.order_type, "stale_reply", 1);
                Revised { saga, moved: false }
            }
        }
    }

    pub fn dead_letter(&mut self, letter: DeadLetter) {
        let place = (
            letter.topic.clone(),
            letter.partition,
            letter.offset,
            digest(&letter),
        );
        let (key, message) = dead_letter_message(&letter);
        let Entry::Vacant(free) = self.dead_letters.entry(place) else {
            return;
        };
        free.insert(letter);
        self.put_message("dead-letters", key, message);
        self.count("", "", "dead_letter", 1);
    }

    pub fn claim_outbox(&mut self, limit: u32, now: Timestamp) -> Vec<OutboxMessage> {
        let free = self
            .outbox
            .values_mut()
            .filter(|(_, until)| until.is_none_or(|until| until <= now));
        free.take(limit as usize)
            .map(|(message, until)| {
                *until = Some(now + OUTBOX_CLAIM);
                message.clone()
            })
            .collect()
    }

    pub fn claim_alerts(&mut self, limit: u32, now: Timestamp) -> Vec<AlertDue> {
        let active = &self.active;
        let repeat = |name: &str| {
            active
                .get(name)
                .map_or(ALERT_REPEAT, |known| known.body.alert_repeat.delta())
        };
        let due = self.alerts.claim(limit, now, repeat);
        for alert in &due {
            self.put_message(
                "alerts",
                alert.fingerprint.clone(),
                alert_message(alert, now),
            );
        }
        due
    }

    pub fn standing(&self, definition: &str, order: &OrderKey) -> Standing {
        let id = self.keys.get(&(definition.to_owned(), order.clone()));
        match id.and_then(|id| self.sagas.get(id)) {
            None => Standing::None,
            Some(Saga { id, state, .. }) => match state.status {
                Status::Completed | Status::Skipped { .. } | Status::Compensated => {
                    Standing::Closed {
                        saga_id: *id,
                        state: state.status.name().to_owned(),
                    }
                }
                _ => Standing::InHand,
            },
        }
    }

    pub fn count(&mut self, definition: &str, order_type: &str, counter: &str, by: i64) {
        let key = (
            definition.to_owned(),
            order_type.to_owned(),
            counter.to_owned(),
        );
        *self.counts.entry(key).or_default() += by;
    }

    /// Stores a row and what finds it by its wake-up time.
    fn put(&mut self, saga: Saga) {
        let id = saga.id;
        let wake_at = saga.state.wake_at();
        let before = self
            .sagas
            .insert(id, saga)
            .and_then(|before| before.state.wake_at());
        if let Some(before) = before {
            self.wake_ats.remove(&(before, id));
        }
        self.wake_ats.extend(wake_at.map(|wake_at| (wake_at, id)));
    }

    fn put_message(&mut self, topic: &str, key: String, payload: String) {
        self.last_outbox_id += 1;
        let id = self.last_outbox_id;
        let message = OutboxMessage {
            id,
            topic: topic.to_owned(),
            key,
            payload,
        };
        self.outbox.insert(id, (message, None));
    }
}
