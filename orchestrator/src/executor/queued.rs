//! Commands for participants behind Kafka: produced once per attempt, answered some time by [`super::Replies`].
//!
//! ```text
//! fenced "sent" ─► one record per command ─┬─ delivered ─► stays sent; a reply or the time-out moves it
//!                                          ├─ nobody knows ─► undelivered, at no attempt; a reply moves it all the same
//!                                          └─ certainly not sent, or nobody can read replies ─► deferred, at no attempt
//! ```
//! How many may be without an answer is up to the participant's care. Relies on the row's wake-up time as the only timer.
//! Never: produces one sending of a command twice, or holds a saga until its answer comes; another coordinator may read that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lapse_participants::kit::{CallError, Command};
use lapse_sagas::{Event, Timestamp};

use super::batch::{self, Context};
use crate::bus::{Delivery, Publish, commands_topic};
use crate::feed::Feed;
use crate::store::Saga;

/// The participants behind Kafka.
#[derive(Clone, Default)]
pub struct Queued {
    /// Their names.
    pub names: BTreeSet<String>,
    /// Their replies; needed as soon as there are names.
    pub replies: Option<Arc<dyn Feed>>,
}

impl Queued {
    /// Whether replies are read here. Else nothing is known of who answers how fast: there may be more coordinators than
    /// partitions of replies.
    pub(super) fn are_heard(&self) -> bool {
        let replies = self.replies.as_ref();
        replies.is_some_and(|replies| replies.has_partitions())
    }

    /// Why nobody can read replies, in words.
    pub(super) fn deaf(&self) -> Option<String> {
        let trouble = self.replies.as_ref()?.trouble()?;
        Some(format!("nobody can read replies: {trouble}"))
    }
}

impl Context<'_> {
    pub(super) fn is_queued(&self) -> bool {
        let queued = &self.executor.participants.queued;
        queued.names.contains(&self.call.participant)
    }

    /// Produces a batch whose rows say `sent`, and gives back what was not sent, as far as anybody knows.
    pub(super) async fn produce(&self, sagas: Vec<Saga>) {
        if let Some(words) = self.executor.deaf() {
            // Without replies every attempt would time out.
            let now = self.executor.clock.now();
            return self.unreached(sagas, Delivery::NotSent, words, now).await;
        }
        let (sagas, messages): (Vec<Saga>, Vec<Publish>) = sagas
            .into_iter()
            .filter_map(|saga| {
                let message = self.message(&self.command(&saga)?);
                Some((saga, message))
            })
            .unzip();
        self.await_replies(&sagas);
        let began_at = self.executor.clock.now();
        // Not longer than the rows say `sent`: what is given back must not be with somebody else already.
        let producing = tokio::time::timeout(self.timeout, self.executor.bus.deliver(messages));
        let deliveries = producing.await;
        let deliveries = deliveries.unwrap_or_else(|_| vec![Delivery::Unknown; sagas.len()]);
        let mut by_delivery: BTreeMap<Delivery, Vec<Saga>> = BTreeMap::new();
        for (saga, delivery) in sagas.into_iter().zip(deliveries) {
            by_delivery.entry(delivery).or_default().push(saga);
        }
        for (delivery, sagas) in by_delivery {
            metrics::counter!("lapse_commands_produced_total",
                "participant" => self.call.participant.clone(), "fate" => delivery.name())
            .increment(sagas.len() as u64);
            let words = match delivery {
                Delivery::Delivered => continue,
                Delivery::NotSent => {
                    let topic = commands_topic(&self.call.participant);
                    format!(
                        "kafka did not take the command; see that {topic} is there and may be written to"
                    )
                }
                Delivery::Unknown => "kafka has not said whether it has the command".to_owned(),
            };
            self.await_no_reply(&sagas);
            self.unreached(sagas, delivery, words, began_at).await;
        }
    }

    /// These reached nobody, as far as anybody knows.
    async fn unreached(
        &self,
        sagas: Vec<Saga>,
        delivery: Delivery,
        words: String,
        sent_at: Timestamp,
    ) {
        let error = CallError::Unreachable(words);
        self.hear(&sagas, &Err(error.clone()), sent_at);
        let events = match delivery {
            Delivery::NotSent | Delivery::Delivered => self.not_applied(&sagas, &error),
            Delivery::Unknown => {
                let event = Event::Undelivered {
                    step: self.key.step.clone(),
                    error: error.to_string(),
                };
                vec![event; sagas.len()]
            }
        };
        let answered = batch::answered(sagas, events);
        self.executor.submit(self.executor.record(answered).await);
        self.executor.tell(&self.call.participant).await;
    }

    /// Counts the commands as awaited before the first reply can come.
    fn await_replies(&self, sagas: &[Saga]) {
        if !self.executor.participants.queued.are_heard() {
            return;
        }
        let mut ready = self.executor.lock();
        let care = ready.care(&self.call.participant);
        for active in sagas.iter().filter_map(|saga| self.active(saga)) {
            care.awaits(self.sent_at(active), active.wake_at);
        }
    }

    fn await_no_reply(&self, sagas: &[Saga]) {
        let mut ready = self.executor.lock();
        let care = ready.care(&self.call.participant);
        for active in sagas.iter().filter_map(|saga| self.active(saga)) {
            care.withdrawn(self.sent_at(active));
        }
    }

    fn message(&self, command: &Command) -> Publish {
        Publish {
            topic: commands_topic(&self.call.participant),
            key: command.order.order_id.clone(),
            payload: serde_json::to_string(command).expect("a command has only text for keys"),
        }
    }
}
