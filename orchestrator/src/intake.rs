//! From a ripe record to a saga: one definition, business key, due time; everything else is a dead letter.
//!
//! Relies on the bus to hold back what is not due. A record is done (its offset may be passed) only when it is durably
//! a saga, a known duplicate, a dead letter, or dropped because the order owner's primary said paid. Never: fires a
//! record whose time is in doubt.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::TimeDelta;
use lapse_participants::kit::{CallError, OrderKey};
use lapse_sagas::order_event::LARGEST_BYTES;
use lapse_sagas::{Cause, Definition, OrderEvent, Span, State, Timestamp};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, info_span, warn};
use uuid::Uuid;

use crate::bus::{BadRecord, Bus, Origin, Ripe};
use crate::clock::Clock;
use crate::definitions::Definitions;
use crate::executor::Executor;
use crate::store::{self, DeadLetter, Start, Store};

/// A dead letter keeps so much of a value that no event may have: who sent it can be seen, and nothing else is of use.
const OVERSIZED_KEPT: usize = 64 * 1024;
/// The guard waits so long for an order owner, …
const GUARD_WITHIN: Duration = Duration::from_secs(1);
/// … and is left out for so long after one that did not answer.
const GUARD_LEFT_OUT_FOR: TimeDelta = TimeDelta::seconds(10);
/// Pause after the store refused a whole batch.
const STORE_PAUSE: Duration = Duration::from_millis(500);

/// Turns ripe records into sagas.
pub struct Intake {
    /// Where records come from.
    pub bus: Arc<dyn Bus>,
    /// Where sagas and dead letters go.
    pub store: Arc<dyn Store>,
    /// Drives what is started; says how much it can take.
    pub executor: Arc<Executor>,
    /// Routes events.
    pub definitions: Arc<Definitions>,
    /// For the ids of new sagas and their first wake-up time.
    pub clock: Arc<dyn Clock>,
    /// Records per batch at most.
    pub batch_max: usize,
    /// Order owners that did not answer the guard, and until when it is left out for them; none at first.
    pub unasked: Mutex<BTreeMap<String, Timestamp>>,
}

/// A record on its way to become a saga.
struct Candidate {
    ripe: Ripe,
    read: Read,
}

/// What a record says, once nothing in it is in doubt.
pub struct Read {
    /// The one that its event starts.
    pub definition: Arc<Definition>,
    /// The order.
    pub event: OrderEvent,
    /// When the order falls due.
    pub due_at: Timestamp,
}

/// What intake takes a record for.
///
/// # Errors
/// [`BadRecord`] if it can't become a saga: a dead letter.
pub fn read(
    definitions: &Definitions,
    value: &[u8],
    due: Result<Timestamp, BadRecord>,
) -> Result<Read, BadRecord> {
    let due_at = due?;
    let event = OrderEvent::parse(value).map_err(bad_event)?;
    let definition = definitions.route(&event)?;
    Ok(Read {
        definition,
        event,
        due_at,
    })
}

impl Read {
    /// The saga of this record.
    pub fn start(&self, now: Timestamp) -> Start {
        let order_type = self.event.order_type.as_deref().unwrap_or_default();
        start(
            &self.definition,
            self.order(),
            order_type,
            Cause::Timeout,
            Some(self.due_at),
            self.event.raw.clone(),
            now,
        )
    }

    /// The order it is about.
    pub fn order(&self) -> OrderKey {
        OrderKey {
            tenant: self.event.tenant.clone(),
            order_id: self.event.order_id.clone(),
            generation: self.event.generation,
        }
    }
}

impl Intake {
    /// Takes records as long as the executor has room, until stopped; what it has taken it finishes.
    pub async fn run(&self, stop: &CancellationToken) {
        while !stop.is_cancelled() {
            let room = self.room();
            if room == 0 {
                self.executor.progress(Duration::from_millis(50)).await;
                continue;
            }
            let ripe = tokio::select! {
                ripe = self.bus.ripe(room.min(self.batch_max)) => ripe,
                () = stop.cancelled() => return,
            };
            let span = info_span!("intake", records = ripe.len());
            self.take(ripe).instrument(span).await;
        }
    }

    /// The room of the definition that has most of it: what does not fit is deferred by the executor.
    fn room(&self) -> usize {
        let active = self.definitions.active();
        active
            .iter()
            .map(|definition| self.executor.room(definition))
            .max()
            .unwrap_or(self.batch_max)
    }

    /// Deals with one batch durably, or gives it back.
    async fn take(&self, ripe: Vec<Ripe>) {
        let (mut candidates, mut dead) = (Vec::new(), Vec::new());
        for record in ripe {
            match read(&self.definitions, &record.value, record.due.clone()) {
                Ok(read) => candidates.push(Candidate { ripe: record, read }),
                Err(bad) => dead.push((record, bad)),
            }
        }
        self.bury(dead).await;
        let candidates = self.guard(candidates).await;
        self.start(candidates).await;
    }

    /// Dead letters are rows in Postgres first; their records are done only then.
    async fn bury(&self, dead: Vec<(Ripe, BadRecord)>) {
        if dead.is_empty() {
            return;
        }
        let letters = dead
            .iter()
            .map(|(ripe, bad)| dead_letter(ripe, bad))
            .collect();
        match self.store.dead_letter(letters).await {
            Ok(()) => {
                for (ripe, bad) in &dead {
                    warn!(topic = %ripe.origin.topic, partition = ripe.origin.partition, offset = ripe.origin.offset,
                        reason = bad.reason, detail = bad.detail, "dead letter");
                    metrics::counter!("lapse_dead_letters_total", "reason" => bad.reason)
                        .increment(1);
                }
                self.done(dead.iter().map(|(ripe, _)| ripe));
            }
            Err(error) => {
                self.put_back(dead.into_iter().map(|(ripe, _)| ripe).collect(), &error)
                    .await
            }
        }
    }

    /// Drops what the order owner says is paid, where the definition asks for it. An owner that can't answer soon drops
    /// nothing and is not asked for a while: CancelOrder decides, and nobody waits for an answer that nobody needs.
    async fn guard(&self, candidates: Vec<Candidate>) -> Vec<Candidate> {
        let (guarded, mut kept): (Vec<_>, Vec<_>) = candidates
            .into_iter()
            .partition(|candidate| candidate.read.definition.body.trigger.guard);
        let mut by_definition: BTreeMap<_, Vec<Candidate>> = BTreeMap::new();
        for candidate in guarded {
            by_definition
                .entry(candidate.read.definition.hash.clone())
                .or_default()
                .push(candidate);
        }
        for candidates in by_definition.into_values() {
            kept.extend(self.drop_paid(candidates).await);
        }
        kept
    }

    fn unasked(&self) -> MutexGuard<'_, BTreeMap<String, Timestamp>> {
        self.unasked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn drop_paid(&self, candidates: Vec<Candidate>) -> Vec<Candidate> {
        let Some(definition) = candidates
            .first()
            .map(|candidate| candidate.read.definition.clone())
        else {
            return candidates;
        };
        let name = &definition.body.trigger.order_owner;
        let is_left_out = |until: &Timestamp| self.clock.now() < *until;
        if self.unasked().get(name).is_some_and(is_left_out) {
            return candidates;
        }
        let Some(owner) = self.executor.owner(name) else {
            return candidates;
        };
        let orders: Vec<OrderKey> = candidates
            .iter()
            .map(|candidate| candidate.read.order())
            .collect();
        let asked = tokio::time::timeout(GUARD_WITHIN, owner.paid(&orders)).await;
        let paid = match asked.unwrap_or_else(|_| Err(CallError::unanswered("timeout"))) {
            Ok(paid) => paid,
            Err(error) => {
                warn!(owner = name, %error, "the guard could not ask; nothing is dropped for a while");
                let until = self.clock.now() + GUARD_LEFT_OUT_FOR;
                self.unasked().insert(name.clone(), until);
                return candidates;
            }
        };
        let (mut dropped, mut kept) = (Vec::new(), Vec::new());
        for (candidate, paid) in candidates.into_iter().zip(paid) {
            if paid {
                dropped.push(candidate)
            } else {
                kept.push(candidate)
            }
        }
        if !dropped.is_empty() {
            let count = i64::try_from(dropped.len()).unwrap_or(i64::MAX);
            if let Err(error) = self
                .store
                .count(definition.name(), "dropped_paid", count)
                .await
            {
                warn!(%error, count, "paid orders were dropped uncounted");
            }
            self.done(dropped.iter().map(|candidate| &candidate.ripe));
        }
        kept
    }

    /// Starts sagas; a batch that can't be stored as it is is halved down to the record that is in the way. What is wrong
    /// with the database is no reason to bury a record.
    async fn start(&self, candidates: Vec<Candidate>) {
        let mut parts = vec![candidates];
        while let Some(mut part) = parts.pop() {
            if part.is_empty() {
                continue;
            }
            let starts = part
                .iter()
                .map(|candidate| candidate.read.start(self.clock.now()))
                .collect();
            match self.executor.start(starts).await {
                Ok(_) => {
                    self.done(part.iter().map(|candidate| &candidate.ripe));
                }
                Err(store::Error::Data(_)) if part.len() > 1 => {
                    let second = part.split_off(part.len() / 2);
                    parts.push(second);
                    parts.push(part);
                }
                Err(store::Error::Data(detail)) => {
                    let bad = BadRecord {
                        reason: "not_storable",
                        detail,
                    };
                    self.bury(
                        part.into_iter()
                            .map(|candidate| (candidate.ripe, bad.clone()))
                            .collect(),
                    )
                    .await;
                }
                Err(error) => {
                    self.put_back(
                        part.into_iter().map(|candidate| candidate.ripe).collect(),
                        &error,
                    )
                    .await;
                }
            }
        }
    }

    fn done<'a>(&self, records: impl Iterator<Item = &'a Ripe>) {
        let origins: Vec<Origin> = records.map(|ripe| ripe.origin.clone()).collect();
        self.bus.done(&origins);
    }

    async fn put_back(&self, records: Vec<Ripe>, error: &store::Error) {
        warn!(%error, records = records.len(), "not stored; the records stay where they are");
        self.bus.put_back(records);
        tokio::time::sleep(STORE_PAUSE).await;
    }
}

/// A saga to be started: now, or at its due time where its cause respects one that is still to come. Its id carries the
/// time of its creation, so its day is known from it.
pub fn start(
    definition: &Arc<Definition>,
    order: OrderKey,
    order_type: &str,
    cause: Cause,
    due_at: Option<Timestamp>,
    event: Value,
    now: Timestamp,
) -> Start {
    let saga_id = lapse_sagas::SagaId(new_id(now));
    let state = match due_at.filter(|due_at| *due_at > now && cause.respects_due_time()) {
        Some(due_at) => State::start_later(definition, saga_id, cause, due_at, now),
        None => State::start(definition, saga_id, cause, now),
    };
    Start {
        state,
        definition: definition.hash.clone(),
        name: definition.name().into(),
        order,
        order_type: order_type.into(),
        due_at,
        event: Arc::new(event),
    }
}

fn bad_event(bad: lapse_sagas::order_event::BadEvent) -> BadRecord {
    BadRecord {
        reason: bad.reason,
        detail: bad.detail,
    }
}

fn new_id(now: Timestamp) -> Uuid {
    let seconds = u64::try_from(now.timestamp()).unwrap_or_default();
    Uuid::new_v7(uuid::Timestamp::from_unix(
        uuid::NoContext,
        seconds,
        now.timestamp_subsec_nanos(),
    ))
}

/// What a dead letter keeps of a value: all of it, unless it is larger than any event may be.
pub fn kept(value: &[u8]) -> &[u8] {
    if value.len() > LARGEST_BYTES {
        &value[..OVERSIZED_KEPT]
    } else {
        value
    }
}

fn dead_letter(ripe: &Ripe, bad: &BadRecord) -> DeadLetter {
    let headers = ripe
        .headers
        .iter()
        .map(|(name, value)| (name.clone(), Value::from(value.as_str())))
        .collect();
    DeadLetter {
        topic: ripe.origin.topic.to_string(),
        partition: ripe.origin.partition,
        offset: ripe.origin.offset,
        key: ripe.key.clone(),
        value: Some(kept(&ripe.value).to_vec()),
        whole_bytes: ripe.value.len(),
        headers: Value::Object(headers),
        appended_at: ripe.appended_at,
        reason: bad.reason.to_owned(),
        detail: bad.detail.clone(),
    }
}

/// When a record falls due, as the bus asks when it arrives. `bucket` is the delay of the topic; none for the schedule
/// topic, where the definition's delay for the order type counts from `occurred_at`.
///
/// # Errors
/// [`BadRecord`] if the time is missing, malformed, without a zone, in the wrong unit or absurd.
pub fn due_time(
    definitions: &Definitions,
    value: &[u8],
    bucket: Option<Span>,
    appended_at: Timestamp,
    now: Timestamp,
) -> Result<Timestamp, BadRecord> {
    let event = OrderEvent::parse(value).map_err(bad_event)?;
    if event.due.is_some() {
        return event.due_at(None, now).map_err(bad_event);
    }
    match bucket {
        Some(delay) => Ok(appended_at + delay.delta()),
        None => {
            let definition = definitions.route(&event)?;
            let order_type = event.order_type.as_deref().unwrap_or_default();
            event
                .due_at(definition.body.trigger.delay(order_type), now)
                .map_err(bad_event)
        }
    }
}
