//! The safety net: asks the order owner what is overdue and starts what has no saga. Needs no Kafka.
//!
//! An owner with a look-ahead is the source of its orders: what falls due within it becomes a saga that sleeps in the table
//! until then. Relies on the owner's keyset pages and on the saga key to make a second start harmless. Never: touches an
//! order that has a saga of its key, whatever became of that of its generation; or stops at an order that can't become one.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use lapse_participants::kit::{CallError, OrderKey, OrderOwner, Overdue};
use lapse_sagas::order_event::check_order;
use lapse_sagas::{Cause, Definition, SagaId, Timestamp};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::bus::Bus;
use crate::clock::Clock;
use crate::definitions::Definitions;
use crate::executor::Executor;
use crate::intake;
use crate::store::{self, Standing, Started, Store};

/// Orders later than this are the sweep's business, whoever else should have started them.
const LATE_BY: TimeDelta = TimeDelta::seconds(5);
/// Orders per page.
const PAGE: u32 = 500;
/// An owner that takes longer for a page is asked again in the next round.
const PAGE_WITHIN: Duration = Duration::from_secs(15);

/// Looks for overdue orders.
pub struct Sweep {
    /// Says when a record may have been lost: then the sweep runs at once.
    pub bus: Arc<dyn Bus>,
    /// Knows which orders have a saga.
    pub store: Arc<dyn Store>,
    /// Drives what is started.
    pub executor: Arc<Executor>,
    /// Routes orders by their type.
    pub definitions: Arc<Definitions>,
    /// For late orders.
    pub clock: Arc<dyn Clock>,
    /// How often.
    pub every: Duration,
}

/// Why a sweep stopped early.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("the order owner does not answer: {0}")]
    Owner(#[from] CallError),
    #[error(transparent)]
    Store(#[from] store::Error),
}

impl Sweep {
    /// Sweeps every few seconds until stopped.
    pub async fn run(&self, stop: &CancellationToken) {
        let mut left_open = LeftOpen::default();
        loop {
            tokio::select! {
                () = self.pause() => {}
                () = stop.cancelled() => return,
            }
            for name in self.owners() {
                let Some(owner) = self.executor.owner(&name) else {
                    continue;
                };
                let mut round = Round::of(&name, &mut left_open, stop);
                match self.sweep(owner.as_ref(), &mut round).await {
                    Ok(()) => round.tell(self.clock.now()),
                    Err(error) => warn!(owner = name, %error, "sweep cut short; it comes again"),
                }
            }
            left_open.forget_others();
        }
    }

    /// Until the next sweep is due or something may have been lost.
    async fn pause(&self) {
        let mut left = self.every;
        let step = Duration::from_millis(250);
        while !left.is_zero() && !self.bus.take_suspicion() {
            tokio::time::sleep(left.min(step)).await;
            left = left.saturating_sub(step);
        }
    }

    fn owners(&self) -> BTreeSet<String> {
        self.definitions
            .active()
            .iter()
            .map(|definition| definition.body.trigger.order_owner.clone())
            .collect()
    }

    /// All pages, oldest first, unless it is stopped.
    async fn sweep(&self, owner: &dyn OrderOwner, round: &mut Round<'_>) -> Result<(), Error> {
        let mut after: Option<Overdue> = None;
        let ahead = owner.look_ahead();
        while !round.stop.is_cancelled() {
            round.late = self.clock.now() - LATE_BY;
            let asked = owner.overdue_orders(after.as_ref(), ahead, PAGE);
            let page = tokio::time::timeout(PAGE_WITHIN, asked).await;
            let mut page = page.unwrap_or_else(|_| {
                let words = format!("timeout: no page in {PAGE_WITHIN:?}");
                Err(CallError::unanswered(words))
            })?;
            let Some(last) = page.last().cloned() else {
                return Ok(());
            };
            if !round.goes_on(&page)? {
                return Ok(());
            }
            if ahead.is_zero() {
                page.retain(|order| order.due_at <= round.late);
            }
            page.retain(|order| round.is_usable(order));
            self.start_all(page, round).await?;
            after = Some(last);
        }
        Ok(())
    }

    /// A page that can't be stored as it is is halved down to the order that is in the way: those behind it must not wait for
    /// it.
    async fn start_all(&self, page: Vec<Overdue>, round: &mut Round<'_>) -> Result<(), Error> {
        let mut parts = vec![page];
        while let Some(mut part) = parts.pop() {
            match self.start_missing(&part, round).await {
                Ok(()) => {}
                Err(Error::Store(store::Error::Data(_))) if part.len() > 1 => {
                    let second = part.split_off(part.len() / 2);
                    parts.extend([second, part]);
                }
                Err(Error::Store(store::Error::Data(detail))) => {
                    part.iter().for_each(|order| round.unusable(order, &detail));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// By the definitions whose orders this owner has: another owner's may have the same types.
    async fn start_missing(&self, overdue: &[Overdue], round: &mut Round<'_>) -> Result<(), Error> {
        let active = self.definitions.active();
        let of_owner: Vec<_> = active
            .iter()
            .filter(|definition| definition.body.trigger.order_owner == round.owner)
            .collect();
        round.note_uncovered(&of_owner, overdue);
        for definition in of_owner {
            let trigger = &definition.body.trigger;
            let own: Vec<&Overdue> = overdue
                .iter()
                .filter(|order| trigger.delay(&order.order_type).is_some())
                .collect();
            if own.is_empty() {
                continue;
            }
            let keys: Vec<OrderKey> = own.iter().map(|order| order.order.clone()).collect();
            let standing = self.store.standing(definition.name(), &keys).await?;
            let mut missing = Vec::new();
            let mut unresolved: Vec<(SagaId, Overdue)> = Vec::new();
            let now = self.clock.now();
            for (order, standing) in own.into_iter().zip(standing) {
                match standing {
                    Standing::None => missing.push(order.clone()),
                    Standing::Closed { saga_id, .. }
                        if order.due_at <= round.late
                            && round.left_open.is_certain(saga_id, now) =>
                    {
                        unresolved.push((saga_id, order.clone()));
                    }
                    Standing::InHand | Standing::Closed { .. } => {}
                }
            }
            if !unresolved.is_empty() {
                self.store
                    .alert_unresolved(definition.name(), &unresolved)
                    .await?;
            }
            round.started += self.start(definition, missing, round.stop).await?;
        }
        Ok(())
    }

    /// As many at a time as the executor has room for, however little that is.
    async fn start(
        &self,
        definition: &Arc<Definition>,
        mut missing: Vec<Overdue>,
        stop: &CancellationToken,
    ) -> Result<usize, Error> {
        let mut new = 0;
        while !missing.is_empty() && !stop.is_cancelled() {
            let room = self.executor.room(definition);
            if room == 0 {
                self.executor.progress(Duration::from_millis(50)).await;
                continue;
            }
            let later = missing.split_off(room.min(missing.len()));
            new += self.start_now(definition, missing).await?;
            missing = later;
        }
        metrics::counter!("lapse_sweep_found_total").increment(new as u64);
        Ok(new)
    }

    async fn start_now(
        &self,
        definition: &Arc<Definition>,
        overdue: Vec<Overdue>,
    ) -> Result<usize, Error> {
        let now = self.clock.now();
        let starts = overdue
            .into_iter()
            .map(|overdue| {
                let event =
                    json!({ "order_id": overdue.order.order_id, "order_type": overdue.order_type });
                let due_at = Some(overdue.due_at);
                intake::start(
                    definition,
                    overdue.order,
                    &overdue.order_type,
                    Cause::Sweep,
                    due_at,
                    event,
                    now,
                )
            })
            .collect();
        let started = self.executor.start(starts).await?;
        let is_new = |started: &&Started| matches!(started, Started::New(_));
        Ok(started.iter().filter(is_new).count())
    }
}

/// Closed sagas whose orders are listed as overdue, and since when. A saga may have ended after the owner was asked, and the owner
/// may answer from a copy that lags behind: only what is still listed some time later was left open by it.
#[derive(Default)]
struct LeftOpen {
    since: HashMap<SagaId, Timestamp>,
    seen: HashSet<SagaId>,
}

impl LeftOpen {
    fn is_certain(&mut self, saga_id: SagaId, now: Timestamp) -> bool {
        self.seen.insert(saga_id);
        now - *self.since.entry(saga_id).or_insert(now) >= LATE_BY
    }

    /// What was not listed in this round is not open any more.
    fn forget_others(&mut self) {
        let seen = std::mem::take(&mut self.seen);
        self.since.retain(|saga_id, _| seen.contains(saga_id));
    }
}

/// One look at all that an owner lists, and what it found.
struct Round<'r> {
    owner: &'r str,
    left_open: &'r mut LeftOpen,
    stop: &'r CancellationToken,
    late: Timestamp,
    /// The page before.
    page: HashSet<OrderKey>,
    started: usize,
    /// By order, so that a page that is looked at again in halves counts once: the types that no definition is for, …
    uncovered: BTreeMap<OrderKey, String>,
    /// … and why it can't become a saga.
    unusable: BTreeMap<OrderKey, String>,
}

impl<'r> Round<'r> {
    fn of(owner: &'r str, left_open: &'r mut LeftOpen, stop: &'r CancellationToken) -> Round<'r> {
        Round {
            owner,
            left_open,
            stop,
            late: Timestamp::MIN_UTC,
            page: HashSet::new(),
            started: 0,
            uncovered: BTreeMap::new(),
            unusable: BTreeMap::new(),
        }
    }

    /// An owner that knows milliseconds only lists what is as old as the last order again. If that is all, it was the last
    /// page, unless it is full: then nothing behind it would ever be seen.
    fn goes_on(&mut self, page: &[Overdue]) -> Result<bool, CallError> {
        let orders: HashSet<OrderKey> = page.iter().map(|order| order.order.clone()).collect();
        let is_new = !orders.is_subset(&self.page);
        self.page = orders;
        if !is_new && page.len() >= PAGE as usize {
            let words = "garbage: a page of overdue orders is the same as the one before";
            return Err(CallError::Unknown(words.to_owned()));
        }
        Ok(is_new)
    }

    /// Whether an event could have named it.
    fn is_usable(&mut self, overdue: &Overdue) -> bool {
        let order = &overdue.order;
        let checked = check_order(&order.tenant, &order.order_id, order.generation);
        if let Err(bad) = &checked {
            self.unusable(overdue, &bad.detail);
        }
        checked.is_ok()
    }

    fn unusable(&mut self, overdue: &Overdue, why: &str) {
        self.unusable.insert(overdue.order.clone(), why.to_owned());
    }

    fn note_uncovered(&mut self, definitions: &[&Arc<Definition>], overdue: &[Overdue]) {
        let is_covered = |order: &&Overdue| {
            let covers = |definition: &&Arc<Definition>| {
                definition.body.trigger.delay(&order.order_type).is_some()
            };
            definitions.iter().any(covers)
        };
        let uncovered = overdue.iter().filter(|order| !is_covered(order));
        self.uncovered
            .extend(uncovered.map(|order| (order.order.clone(), order.order_type.clone())));
    }

    /// What would stay overdue in silence is told.
    fn tell(&self, now: Timestamp) {
        let gauge = |name: &'static str, value: f64| {
            metrics::gauge!(name, "owner" => self.owner.to_owned()).set(value);
        };
        gauge("lapse_sweep_last_run_seconds", now.timestamp() as f64);
        gauge("lapse_sweep_uncovered_orders", self.uncovered.len() as f64);
        gauge("lapse_sweep_unusable_orders", self.unusable.len() as f64);
        let (owner, started) = (self.owner, self.started);
        if started > 0 {
            info!(owner, started, "the sweep found overdue orders");
        }
        if let Some((order, order_type)) = self.uncovered.first_key_value() {
            error!(
                owner,
                orders = self.uncovered.len(),
                order_id = order.order_id,
                order_type,
                "overdue orders that no active definition is for; deploy one, or start them with lapse start"
            );
        }
        if let Some((order, why)) = self.unusable.first_key_value() {
            error!(
                owner,
                orders = self.unusable.len(),
                tenant = ?order.tenant,
                order_id = ?order.order_id,
                generation = order.generation,
                why,
                "overdue orders that can't become sagas are passed over; correct or cancel them where they are"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn at(s: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + TimeDelta::seconds(s)
    }

    #[test]
    fn an_order_is_left_open_only_if_it_is_still_listed_in_a_later_round() {
        let mut left_open = LeftOpen::default();
        let [ending, open] = [1, 2].map(|n| SagaId(Uuid::from_u128(n)));
        assert!(!left_open.is_certain(ending, at(0)));
        assert!(!left_open.is_certain(open, at(0)));
        left_open.forget_others();

        assert!(left_open.is_certain(open, at(5)));
        left_open.forget_others();
        assert!(
            !left_open.is_certain(ending, at(10)),
            "it was not listed meanwhile"
        );
    }
}
