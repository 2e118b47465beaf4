//! A participant over Kafka as the suite calls it: commands produced, replies awaited.
//!
//! Relies on reading all replies from where they ended, apart from any group: coordinators read them too, and pass over what
//! is for no saga of theirs. Never: produces one sending of a command twice.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lapse_participants::kit::answer::Answer;
use lapse_participants::kit::{CallError, Command, Participant, Reply, deadline};
use lapse_sagas::{CommandId, Outcome};
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use super::{Cut, Taken, Wire};
use crate::bus::{Delivery, Outlet, Publish, REPLIES, commands_topic};
use crate::feed::Feed;
use crate::kafka::{Error, KafkaFeed, KafkaOutlet, Settings};

/// So long are replies awaited by a caller that does not say.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);
const REPLIES_MAX: usize = 500;

type Waiting = HashMap<CommandId, VecDeque<oneshot::Sender<Outcome>>>;

/// Calls a participant over its topic of commands.
pub struct KafkaCaller {
    outlet: Arc<KafkaOutlet>,
    topic: String,
    waiting: Arc<Mutex<Waiting>>,
    _hearing: AbortOnDropHandle<()>,
}

impl KafkaCaller {
    /// Reads replies from now on.
    ///
    /// # Errors
    /// If the brokers or the topic of replies can't be reached.
    pub async fn start(settings: &Settings, participant: &str) -> Result<KafkaCaller, Error> {
        let outlet = Arc::new(KafkaOutlet::new(settings)?);
        let settings = settings.clone();
        let looking = tokio::task::spawn_blocking(move || KafkaFeed::tail(&settings, REPLIES));
        let feed = looking.await.map_err(|e| Error::Broker {
            doing: "read replies".to_owned(),
            error: e.to_string(),
        })??;
        let waiting: Arc<Mutex<Waiting>> = Arc::default();
        let hearing = tokio::spawn(hear(feed, waiting.clone()));
        Ok(KafkaCaller {
            outlet,
            topic: commands_topic(participant),
            waiting,
            _hearing: AbortOnDropHandle::new(hearing),
        })
    }

    /// The same participant for what is no command.
    pub fn wire(&self) -> KafkaWire {
        KafkaWire {
            outlet: self.outlet.clone(),
            topic: self.topic.clone(),
        }
    }
}

/// Hands each reply to the call that has waited for it longest.
async fn hear(feed: KafkaFeed, waiting: Arc<Mutex<Waiting>>) {
    loop {
        for record in feed.next(REPLIES_MAX).await {
            let value = record.value.unwrap_or_default();
            let Ok(Answer { about, outcome }) = serde_json::from_slice(&value) else {
                continue;
            };
            let mut waiting = locked(&waiting);
            let Some(callers) = waiting.get_mut(&about.command_id) else {
                continue;
            };
            // Some have given up.
            while let Some(caller) = callers.pop_front() {
                if caller.send(outcome.clone().received()).is_ok() {
                    break;
                }
            }
        }
    }
}

#[async_trait]
impl Participant for KafkaCaller {
    async fn call(&self, _: &str, commands: &[Command]) -> Result<Vec<Reply>, CallError> {
        let until = tokio::time::Instant::now() + deadline::time_left().unwrap_or(ANSWERS_WITHIN);
        let mut answers = Vec::with_capacity(commands.len());
        for command in commands {
            let (caller, answer) = oneshot::channel();
            let mut waiting = locked(&self.waiting);
            waiting
                .entry(command.command_id.clone())
                .or_default()
                .push_back(caller);
            answers.push(answer);
        }
        let messages = commands.iter().map(|command| {
            let key = command.order.order_id.clone();
            let text = serde_json::to_string(command);
            text.map(|payload| self.message(key, payload))
                .map_err(|error| CallError::Data(error.to_string()))
        });
        let deliveries = self
            .outlet
            .deliver(messages.collect::<Result<_, _>>()?)
            .await;
        if deliveries
            .iter()
            .all(|delivery| *delivery == Delivery::NotSent)
        {
            return Err(not_taken(&self.topic));
        }
        let mut replies = Vec::with_capacity(commands.len());
        for (command, answer) in commands.iter().zip(answers) {
            if let Ok(Ok(outcome)) = tokio::time::timeout_at(until, answer).await {
                replies.push(Reply {
                    command_id: command.command_id.clone(),
                    outcome,
                });
            }
        }
        if replies.is_empty() && !commands.is_empty() {
            return Err(CallError::unanswered("timeout: no reply"));
        }
        Ok(replies)
    }
}

impl KafkaCaller {
    fn message(&self, key: String, payload: String) -> Publish {
        Publish {
            topic: self.topic.clone(),
            key,
            payload,
        }
    }
}

/// Records that are no commands.
pub struct KafkaWire {
    outlet: Arc<KafkaOutlet>,
    topic: String,
}

impl KafkaWire {
    async fn produce(&self, payloads: Vec<String>) -> Result<Taken, CallError> {
        let message = |payload| Publish {
            topic: self.topic.clone(),
            key: "conform".to_owned(),
            payload,
        };
        let messages: Vec<Publish> = payloads.into_iter().map(message).collect();
        let deliveries = self.outlet.deliver(messages).await;
        if deliveries.contains(&Delivery::Unknown) {
            return Err(CallError::unanswered("kafka did not report a delivery"));
        }
        // What Kafka itself refuses, such as a record that is too large, no participant will see.
        Ok(Taken::Ignored)
    }
}

#[async_trait]
impl Wire for KafkaWire {
    async fn bytes(&self, bytes: Vec<u8>) -> Result<Taken, CallError> {
        // Messages are text; what is none is garbage either way.
        self.produce(vec![String::from_utf8_lossy(&bytes).into_owned()])
            .await
    }

    async fn batch(&self, entries: &[String]) -> Result<Taken, CallError> {
        self.produce(entries.to_vec()).await
    }

    async fn cut(&self, _: &[String], _: Cut) -> Option<std::io::Result<()>> {
        None
    }
}

fn not_taken(topic: &str) -> CallError {
    CallError::Unreachable(format!(
        "kafka did not take commands for {topic}; is there such a topic?"
    ))
}

fn locked(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}
