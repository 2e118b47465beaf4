//! From an outbox of somebody else's to Kafka: for producers that write their events into a table and have no Debezium.
//!
//! Relies on [`crate::foreign::outbox`] for rows and on [`crate::kafka::plain`] for what became of them. What can't be sent
//! is told, stays where it is and is tried again ever more seldom; only its own key waits for it, or its topic if that is
//! not there. Never: looks into a payload.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lapse_participants::kit::CallError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::foreign::outbox::{Lane, LeftAlone, Message, Outbox, Round, lane};
use crate::kafka;
use crate::kafka::plain::{self, Fate, Plain};

/// Pause when there is nothing.
const IDLE: Duration = Duration::from_millis(200);
/// Pause after a round in which database or brokers did not answer.
const TROUBLE: Duration = Duration::from_secs(1);
/// First pause of what can't be sent; each failure doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
/// Longest pause of it.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// More keys than this are not left alone: the statement that leaves them out would be too long.
const KEYS_LEFT_ALONE: usize = 1_000;

/// One relay; any number of them may work on one table.
pub struct OutboxRelay {
    outbox: Outbox,
    producer: Arc<Plain>,
    troubled: Arc<Mutex<Troubled>>,
    report_every: Duration,
}

/// What could not be sent.
#[derive(Default)]
struct Troubled {
    topics: HashMap<String, Pause>,
    lanes: HashMap<Lane, Pause>,
}

#[derive(Clone, Copy)]
struct Pause {
    failures: u32,
    until: Instant,
}

impl OutboxRelay {
    /// A line in the log every so often says what was done.
    pub fn new(outbox: Outbox, producer: Plain, report_every: Duration) -> OutboxRelay {
        OutboxRelay {
            outbox,
            producer: Arc::new(producer),
            troubled: Arc::default(),
            report_every,
        }
    }

    /// Sends until stopped; a round that has begun is finished.
    pub async fn run(&self, stop: &CancellationToken) {
        let (mut sent, mut reported) = (0, Instant::now());
        while !stop.is_cancelled() {
            let pause = match self.round().await {
                Ok(round) => {
                    sent += round.delivered;
                    match round {
                        Round {
                            delivered: 0,
                            left: 0,
                        } => IDLE,
                        Round { delivered: 0, .. } => TROUBLE,
                        _ => Duration::ZERO,
                    }
                }
                Err(error) => {
                    warn!(%error, "outbox round cut short; it comes again");
                    TROUBLE
                }
            };
            if reported.elapsed() >= self.report_every {
                self.report(sent);
                (sent, reported) = (0, Instant::now());
            }
            let _ = tokio::time::timeout(pause, stop.cancelled()).await;
        }
        self.report(sent);
    }

    /// Sends until nothing that can be sent is left. Gives the number of rows sent, and of those of the last round that
    /// were not.
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn until_empty(&self) -> Result<Round, CallError> {
        let mut sent = 0;
        loop {
            let round = self.round().await?;
            sent += round.delivered;
            if round.delivered == 0 {
                return Ok(Round {
                    delivered: sent,
                    left: round.left,
                });
            }
        }
    }

    /// Waits until a broker has answered.
    ///
    /// # Errors
    /// Those of [`Plain::reach`].
    pub async fn reach(&self) -> Result<(), kafka::Error> {
        self.producer.reach().await
    }

    /// Keys and topics that wait because something of theirs can't be sent.
    pub fn troubled(&self) -> usize {
        let troubled = locked(&self.troubled);
        troubled.lanes.len() + troubled.topics.len()
    }

    async fn round(&self) -> Result<Round, CallError> {
        let left_alone = locked(&self.troubled).left_alone(Instant::now());
        let (producer, troubled) = (self.producer.clone(), self.troubled.clone());
        self.outbox
            .round(left_alone, move |messages| {
                Box::pin(async move { send(&producer, &troubled, messages).await })
            })
            .await
    }

    fn report(&self, sent: usize) {
        let troubled = self.troubled();
        info!(sent, troubled, "outbox");
    }
}

async fn send(producer: &Plain, troubled: &Mutex<Troubled>, messages: Vec<Message>) -> Vec<bool> {
    let is_next = locked(troubled).next_of_each(&messages);
    let mut behind = HashSet::new();
    let goes: Vec<bool> = messages
        .iter()
        .zip(&is_next)
        .map(|(message, is_next)| {
            if *is_next && message.fault.is_some() {
                behind.insert(lane(message));
            }
            *is_next && !behind.contains(&lane(message))
        })
        .collect();
    let to_send: Vec<plain::Message> = messages
        .iter()
        .zip(&goes)
        .filter(|(_, goes)| **goes)
        .map(|(message, _)| plain::Message {
            topic: message.topic.clone(),
            key: message.key.clone(),
            payload: message.payload.clone(),
            headers: message.headers.clone(),
        })
        .collect();
    let mut fates = producer.send(&to_send).await.into_iter();
    let mut troubled = locked(troubled);
    let delivered = messages.iter().zip(goes).zip(is_next);
    let delivered = delivered.map(|((message, goes), is_next)| {
        let fate = match &message.fault {
            Some(fault) if is_next => Some(Fate::Refused(fault.clone())),
            _ if goes => fates.next(),
            _ => None,
        };
        fate.is_some_and(|fate| troubled.learn(message, fate, Instant::now()))
    });
    delivered.collect()
}

impl Troubled {
    /// What has to wait for its next try.
    fn left_alone(&self, now: Instant) -> LeftAlone {
        let topics = self.topics.iter().filter(|(_, pause)| pause.until > now);
        let lanes = self.lanes.iter().filter(|(_, pause)| pause.until > now);
        LeftAlone {
            topics: topics.map(|(topic, _)| topic.clone()).collect(),
            lanes: lanes
                .map(|(lane, _)| lane.clone())
                .take(KEYS_LEFT_ALONE)
                .collect(),
        }
    }

    /// Of a key or topic that failed before only the first is tried.
    fn next_of_each(&self, messages: &[Message]) -> Vec<bool> {
        let (mut lanes, mut topics) = (HashSet::new(), HashSet::new());
        messages
            .iter()
            .map(|message| {
                let lane = lane(message);
                let topic_is_free =
                    !self.topics.contains_key(&lane.0) || topics.insert(lane.0.clone());
                topic_is_free && (!self.lanes.contains_key(&lane) || lanes.insert(lane))
            })
            .collect()
    }

    /// Whether it was delivered.
    fn learn(&mut self, message: &Message, fate: Fate, now: Instant) -> bool {
        match fate {
            Fate::Delivered => {
                self.topics.remove(&message.topic);
                self.lanes.remove(&lane(message));
                true
            }
            Fate::Behind => false,
            Fate::Later(reason) => {
                warn!(
                    id = message.id,
                    topic = message.topic,
                    reason,
                    "not sent yet"
                );
                false
            }
            Fate::Refused(reason) => {
                let pause = longer(self.lanes.get(&lane(message)), now);
                self.lanes.insert(lane(message), pause);
                let (id, key) = (&message.id, &message.key);
                error!(
                    id,
                    topic = message.topic,
                    key,
                    reason,
                    failures = pause.failures,
                    "a row of the outbox can't be sent and its key waits for it; correct or delete the row"
                );
                false
            }
            Fate::NoTopic(reason) => {
                let known = self
                    .topics
                    .get(&message.topic)
                    .filter(|known| known.until > now);
                if known.is_none() {
                    let pause = longer(self.topics.get(&message.topic), now);
                    self.topics.insert(message.topic.clone(), pause);
                    error!(
                        id = message.id,
                        topic = message.topic,
                        reason,
                        failures = pause.failures,
                        "the topic of a row of the outbox can't be written to; create it, or allow it"
                    );
                }
                false
            }
        }
    }
}

fn longer(before: Option<&Pause>, now: Instant) -> Pause {
    let failures = before.map_or(0, |pause| pause.failures) + 1;
    let pause = FIRST_PAUSE * 2_u32.pow((failures - 1).min(10));
    Pause {
        failures,
        until: now + pause.min(LONGEST_PAUSE),
    }
}

fn locked(troubled: &Mutex<Troubled>) -> MutexGuard<'_, Troubled> {
    troubled.lock().unwrap_or_else(PoisonError::into_inner)
}
