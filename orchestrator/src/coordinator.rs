//! All parts of one running coordinator, from start to drain.
//!
//! ```text
//! bus ─► intake ─► executor ◄─ poll          relay ─► bus          (all over one store)
//!                     ▲── sweep, start now, replies of participants behind Kafka
//! ```
//! Relies on every part to be restartable at any point: whatever a kill leaves behind comes back through wake-up times,
//! replayed offsets and expiring claims. Never: needs to be stopped in order for correctness; only for calm.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{error, info, warn};

use crate::bus::Bus;
use crate::clock::Clock;
use crate::config::Config;
use crate::definitions::Definitions;
use crate::executor::{self, Executor, Participants, Replies};
use crate::feed::Feed;
use crate::intake::Intake;
use crate::relay::Relay;
use crate::store::Store;
use crate::sweep::Sweep;
use crate::webhooks::Deliverer;

/// How long a drain may take: a container platform's patience is 30 s, ours is a third of it.
pub const DRAIN_WITHIN: Duration = Duration::from_secs(8);
/// How much longer leaving the consumer group may take.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);
/// How often the active definitions are looked at.
const FRESH_EVERY: Duration = Duration::from_secs(2);
const ROUNDS_AN_HOUR: u64 = 1_800;
/// How long the relay pauses when there is nothing to send.
const RELAY_EVERY: Duration = Duration::from_millis(100);
/// Rows per poll at most.
const CLAIM_MAX: usize = 500;

/// What a coordinator is made of.
pub struct Parts {
    /// Sagas.
    pub store: Arc<dyn Store>,
    /// Records and messages.
    pub bus: Arc<dyn Bus>,
    /// The database's time.
    pub clock: Arc<dyn Clock>,
    /// What sagas do.
    pub definitions: Arc<Definitions>,
    /// Who does it.
    pub participants: Participants,
    /// Where alerts go beside the log and the bus.
    pub webhooks: Vec<Deliverer>,
}

/// A running coordinator.
pub struct Coordinator {
    executor: Arc<Executor>,
    bus: Arc<dyn Bus>,
    replies: Option<Arc<dyn Feed>>,
    taking: Side,
    sending: Side,
    failed: CancellationToken,
}

impl Coordinator {
    /// Starts every part.
    pub fn start(parts: Parts, config: &Config) -> Coordinator {
        let Parts {
            store,
            bus,
            clock,
            definitions,
            participants,
            webhooks,
        } = parts;
        let replies = participants.queued.replies.clone();
        let settings = executor::Settings {
            batch_max: config.executor.batch_max,
            slots: config.executor.slots,
            held_max: config.executor.held_max,
        };
        let executor = Executor::new(
            store.clone(),
            bus.clone(),
            clock.clone(),
            definitions.clone(),
            participants,
            settings,
        );
        let failed = CancellationToken::new();
        let (mut taking, mut sending) = (Side::new(&failed), Side::new(&failed));

        let parts = executor.clone();
        sending.spawn("executor", |stop| async move { parts.run(&stop).await });
        let relay = Arc::new(Relay {
            store: store.clone(),
            bus: bus.clone(),
            every: RELAY_EVERY,
        });
        let messages = relay.clone();
        sending.spawn("relay", |stop| async move { messages.produce(&stop).await });
        sending.spawn("alerts", |stop| async move { relay.tell(&stop).await });
        for webhook in webhooks {
            sending.spawn("webhook", |stop| async move { webhook.run(&stop).await });
        }

        if let Some(feed) = replies.clone() {
            let replies = Replies {
                feed,
                store: store.clone(),
                executor: executor.clone(),
                batch_max: config.executor.batch_max,
            };
            taking.spawn("replies", |stop| async move { replies.run(&stop).await });
        }
        let intake = Intake {
            bus: bus.clone(),
            store: store.clone(),
            executor: executor.clone(),
            definitions: definitions.clone(),
            clock: clock.clone(),
            batch_max: config.executor.batch_max,
            unasked: Default::default(),
        };
        taking.spawn("intake", |stop| async move { intake.run(&stop).await });
        let (polling, every) = (executor.clone(), config.poll());
        taking.spawn("poll", move |stop| poll(polling, every, stop));
        let (kept, known) = (store.clone(), definitions.clone());
        taking.spawn("upkeep", |stop| keep_fresh(kept, known, stop));
        if config.sweep.enabled {
            let sweep = Sweep {
                bus: bus.clone(),
                store,
                executor: executor.clone(),
                definitions,
                clock,
                every: config.sweep.every.into(),
            };
            taking.spawn("sweep", |stop| async move { sweep.run(&stop).await });
        }
        Coordinator {
            executor,
            bus,
            replies,
            taking,
            sending,
            failed,
        }
    }

    /// Cancelled when a part has ended by itself: the process is of no use then and must be replaced.
    pub fn failed(&self) -> CancellationToken {
        self.failed.clone()
    }

    /// For starts from outside.
    pub fn executor(&self) -> Arc<Executor> {
        self.executor.clone()
    }

    /// Takes nothing more, finishes what is in hand, sends what is to be sent, commits. What is not through in time is
    /// taken over by others at its wake-up time.
    pub async fn drain(mut self, within: Duration) {
        let deadline = tokio::time::Instant::now() + within;
        info!(held = self.executor.held(), "draining");
        let mut in_time = self.taking.end(deadline).await;
        // At once: whoever has the partitions next goes on with the replies that are still to come.
        if let Some(replies) = &self.replies {
            in_time &= tokio::time::timeout_at(deadline, replies.close())
                .await
                .is_ok();
        }
        while self.executor.held() > 0 && tokio::time::Instant::now() < deadline {
            self.executor.progress(Duration::from_millis(50)).await;
        }
        in_time &= self.executor.held() == 0;
        in_time &= self.sending.end(deadline).await;
        // Closing waits for brokers; without one, what is not committed is replayed, which is harmless.
        in_time &= tokio::time::timeout_at(deadline + CLOSE_WITHIN, self.bus.close())
            .await
            .is_ok();
        if in_time {
            info!("drained");
        } else {
            warn!(
                held = self.executor.held(),
                "stopped before everything was through; others take over"
            );
        }
    }
}

/// Parts that run side by side until they are stopped. One that ends though nobody stopped it has panicked, and without the
/// poll or the sweep promises would be broken in silence: that is told.
struct Side {
    stop: CancellationToken,
    failed: CancellationToken,
    parts: JoinSet<()>,
}

impl Side {
    fn new(failed: &CancellationToken) -> Side {
        Side {
            stop: CancellationToken::new(),
            failed: failed.clone(),
            parts: JoinSet::new(),
        }
    }

    /// Runs the part until the token it is given is cancelled; aborted with this.
    fn spawn<F>(&mut self, name: &'static str, part: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (stop, failed) = (self.stop.clone(), self.failed.clone());
        let part = part(stop.clone());
        self.parts.spawn(async move {
            let ended = AbortOnDropHandle::new(tokio::spawn(part)).await;
            if !stop.is_cancelled() {
                let panicked = ended.is_err();
                error!(
                    part = name,
                    panicked, "a part of the coordinator ended by itself"
                );
                failed.cancel();
            }
        });
    }

    /// Stops all parts; whether they ended in time.
    async fn end(&mut self, deadline: tokio::time::Instant) -> bool {
        self.stop.cancel();
        let ended = async { while self.parts.join_next().await.is_some() {} };
        tokio::time::timeout_at(deadline, ended).await.is_ok()
    }
}

/// Retries, postponements, missing replies and crashes come back here.
async fn poll(executor: Arc<Executor>, every: Duration, stop: CancellationToken) {
    while !stop.is_cancelled() {
        match executor.claim(CLAIM_MAX).await {
            Ok(CLAIM_MAX) => continue,
            Ok(_) => {}
            Err(error) => warn!(%error, "poll cut short; it comes again"),
        }
        let _ = tokio::time::timeout(every, stop.cancelled()).await;
    }
}

/// The set of active definitions, and the partitions of the days to come.
async fn keep_fresh(store: Arc<dyn Store>, definitions: Arc<Definitions>, stop: CancellationToken) {
    let mut rounds: u64 = 0;
    while !stop.is_cancelled() {
        if let Err(error) = definitions.refresh().await {
            warn!(%error, "the active definitions could not be looked at");
        }
        if rounds.is_multiple_of(ROUNDS_AN_HOUR)
            && let Err(error) = store.prepare_days().await
        {
            warn!(%error, "partitions of the coming days could not be made; tried again in an hour");
        }
        rounds += 1;
        let _ = tokio::time::timeout(FRESH_EVERY, stop.cancelled()).await;
    }
}
