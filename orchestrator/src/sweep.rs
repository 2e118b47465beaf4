//! The safety net: asks the order owner what is overdue and starts what has no saga. Needs no Kafka.
//!
//! An owner with a look-ahead is the source of its orders: what falls due within it becomes a saga that sleeps in the table
//! until then. Relies on the owner's keyset pages and on the saga key to make a second start harmless. Never: touches an
//! order that has a saga of its key, whatever became of that of its generation.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use lapse_participants::kit::{CallError, OrderKey, OrderOwner, Overdue};
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
                match self
                    .sweep(&name, owner.as_ref(), &mut left_open, stop)
                    .await
                {
                    Ok(0) => {}
                    Ok(started) => info!(owner = name, started, "the sweep found overdue orders"),
                    Err(error) => warn!(owner = name, %error, "sweep cut short; it comes again"),
                }
                metrics::gauge!("lapse_sweep_last_run_seconds")
                    .set(self.clock.now().timestamp() as f64);
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

    /// All pages, oldest first, unless it is stopped. Gives the number of sagas started.
    async fn sweep(
        &self,
        name: &str,
        owner: &dyn OrderOwner,
        left_open: &mut LeftOpen,
        stop: &CancellationToken,
    ) -> Result<usize, Error> {
        let mut started = 0;
        let mut after: Option<Overdue> = None;
        let ahead = owner.look_ahead();
        while !stop.is_cancelled() {
            let late = self.clock.now() - LATE_BY;
            let mut page = owner.overdue_orders(after.as_ref(), ahead, PAGE).await?;
            let Some(last) = page.last().cloned() else {
                return Ok(started);
            };
            if ahead.is_zero() {
                page.retain(|order| order.due_at <= late);
            }
            started += self
                .start_missing(name, page, late, left_open, stop)
                .await?;
            after = Some(last);
        }
        Ok(started)
    }

    /// By the definitions whose orders this owner has: another owner's may have the same types.
    async fn start_missing(
        &self,
        owner: &str,
        overdue: Vec<Overdue>,
        late: Timestamp,
        left_open: &mut LeftOpen,
        stop: &CancellationToken,
    ) -> Result<usize, Error> {
        let mut started = 0;
        let active = self.definitions.active();
        let of_owner: Vec<_> = active
            .iter()
            .filter(|definition| definition.body.trigger.order_owner == owner)
            .collect();
        tell_uncovered(&of_owner, &overdue);
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
                        if order.due_at <= late && left_open.is_certain(saga_id, now) =>
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
            started += self.start(definition, missing, stop).await?;
        }
        Ok(started)
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

/// Overdue orders of types that no definition is for would stay overdue in silence.
fn tell_uncovered(definitions: &[&Arc<Definition>], overdue: &[Overdue]) {
    let is_covered = |order: &&Overdue| {
        let covers = |definition: &&Arc<Definition>| {
            definition.body.trigger.delay(&order.order_type).is_some()
        };
        definitions.iter().any(covers)
    };
    let uncovered: Vec<&Overdue> = overdue.iter().filter(|order| !is_covered(order)).collect();
    metrics::gauge!("lapse_sweep_uncovered_orders").set(uncovered.len() as f64);
    if let Some(first) = uncovered.first() {
        error!(
            orders = uncovered.len(),
            order_id = first.order.order_id,
            order_type = first.order_type,
            "overdue orders that no active definition is for; deploy one, or start them with lapse start"
        );
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
