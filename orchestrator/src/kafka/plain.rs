//! Messages to any topic by its full name, for outboxes of others: idempotent, acknowledged by all replicas, in order per
//! key.
//!
//! Never: makes a topic, or holds up other keys for one that can't be sent.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{DeliveryFuture, FutureProducer, FutureRecord, Producer as _};

use super::context::Logs;
use super::settings::Settings;
use super::{Error, reach};

/// How long a broker may take to say whether there is a topic.
const TOPIC_WITHIN: Duration = Duration::from_secs(5);
/// How often a full queue is looked at.
const QUEUE_POLL: Duration = Duration::from_millis(5);

/// A message.
#[derive(Clone, Debug)]
pub struct Message {
    /// Its topic, by its full name.
    pub topic: String,
    /// Its key.
    pub key: String,
    /// Its value, or none.
    pub payload: Option<Vec<u8>>,
    /// Its headers.
    pub headers: Vec<(String, String)>,
}

/// What became of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// All replicas have it.
    Delivered,
    /// Not now: the brokers don't answer.
    Later(String),
    /// Not before another one of its key, which was not delivered.
    Behind,
    /// Not as it is: too big, or the broker refuses it.
    Refused(String),
    /// Not to this topic: it is not there, or this user may not write to it.
    NoTopic(String),
}

/// A producer without timers.
pub struct Plain {
    settings: Settings,
    client: Mutex<FutureProducer<Logs>>,
    known: Mutex<HashSet<String>>,
}

impl Plain {
    /// # Errors
    /// What the client does not take of the settings.
    pub fn new(settings: &Settings) -> Result<Plain, Error> {
        Ok(Plain {
            client: Mutex::new(client(settings)?),
            settings: settings.clone(),
            known: Mutex::default(),
        })
    }

    /// Waits until a broker has answered.
    ///
    /// # Errors
    /// [`Error::NotAuthorised`] if none lets us in, [`Error::Broker`] if none answers.
    pub async fn reach(&self) -> Result<(), Error> {
        reach::reach(&self.settings).await
    }

    /// Sends messages in this order and waits for every delivery report. Once one of a key is not delivered, those after it
    /// count as not delivered too, so that a repetition keeps their order.
    pub async fn send(&self, messages: &[Message]) -> Vec<Fate> {
        let topics: HashSet<&str> = messages.iter().map(|message| &*message.topic).collect();
        let mut missing = Vec::new();
        for topic in topics {
            if let Err(fate) = self.know(topic).await {
                missing.push((topic, fate));
            }
        }
        let mut sent = Vec::with_capacity(messages.len());
        let mut broken = HashSet::new();
        for message in messages {
            let lane = (&message.topic, &message.key);
            let outcome = match missing.iter().find(|(topic, _)| *topic == message.topic) {
                Some((_, fate)) => Err(fate.clone()),
                None if broken.contains(&lane) => Err(Fate::Behind),
                None => self.enqueue(message).await,
            };
            if outcome.is_err() {
                broken.insert(lane);
            }
            sent.push(outcome);
        }
        let mut fates = Vec::with_capacity(messages.len());
        let mut broken = HashSet::new();
        for (message, sent) in messages.iter().zip(sent) {
            let lane = (&message.topic, &message.key);
            let mut fate = match sent {
                Ok(report) => self.reported(&message.topic, report).await,
                Err(fate) => fate,
            };
            if fate == Fate::Delivered && broken.contains(&lane) {
                fate = Fate::Behind;
            }
            if fate != Fate::Delivered {
                broken.insert(lane);
            }
            fates.push(fate);
        }
        fates
    }

    /// Asked once per topic: a message to one that is not there would wait for it for half a minute.
    async fn know(&self, topic: &str) -> Result<(), Fate> {
        if locked(&self.known).contains(topic) {
            return Ok(());
        }
        let (client, name) = (locked(&self.client).clone(), topic.to_owned());
        let asked = tokio::task::spawn_blocking(move || {
            let metadata = client.client().fetch_metadata(Some(&name), TOPIC_WITHIN)?;
            let error = metadata.topics().iter().find_map(|topic| topic.error());
            Ok(error.map(RDKafkaErrorCode::from))
        });
        let known: Result<Option<RDKafkaErrorCode>, KafkaError> = match asked.await {
            Ok(known) => known,
            Err(error) => return Err(Fate::Later(error.to_string())),
        };
        match known {
            Ok(None) => {
                locked(&self.known).insert(topic.to_owned());
                Ok(())
            }
            Ok(Some(code)) => Err(fate_of(code, format!("topic {topic}: {code}"))),
            Err(error) => Err(Fate::Later(format!("topic {topic}: {error}"))),
        }
    }

    /// Waits while the queue is full.
    async fn enqueue(&self, message: &Message) -> Result<DeliveryFuture, Fate> {
        loop {
            let headers = message.headers.iter().fold(
                OwnedHeaders::new_with_capacity(message.headers.len()),
                |headers, (key, value)| {
                    headers.insert(Header {
                        key,
                        value: Some(value),
                    })
                },
            );
            let mut record = FutureRecord::<str, [u8]>::to(&message.topic)
                .key(&message.key)
                .headers(headers);
            if let Some(payload) = &message.payload {
                record = record.payload(payload);
            }
            let client = locked(&self.client).clone();
            match client.send_result(record) {
                Ok(report) => return Ok(report),
                Err((error, _)) => {
                    if error.rdkafka_error_code() != Some(RDKafkaErrorCode::QueueFull) {
                        return Err(self.failed(&message.topic, &error));
                    }
                }
            }
            tokio::time::sleep(QUEUE_POLL).await;
        }
    }

    async fn reported(&self, topic: &str, report: DeliveryFuture) -> Fate {
        match report.await {
            Ok(Ok(_)) => Fate::Delivered,
            Ok(Err((error, _))) => self.failed(topic, &error),
            Err(_) => Fate::Later("the producer was built anew".to_owned()),
        }
    }

    fn failed(&self, topic: &str, error: &KafkaError) -> Fate {
        let code = error.rdkafka_error_code();
        if code == Some(RDKafkaErrorCode::Fatal) {
            if let Ok(new) = client(&self.settings) {
                let old = std::mem::replace(&mut *locked(&self.client), new);
                // Dropping waits for the old client's thread.
                std::thread::spawn(move || drop(old));
            }
            return Fate::Later(error.to_string());
        }
        let fate = match code {
            Some(code) => fate_of(code, error.to_string()),
            None => Fate::Later(error.to_string()),
        };
        if matches!(fate, Fate::NoTopic(_)) {
            locked(&self.known).remove(topic);
        }
        fate
    }
}

fn fate_of(code: RDKafkaErrorCode, words: String) -> Fate {
    use RDKafkaErrorCode as Code;
    match code {
        Code::UnknownTopic
        | Code::UnknownTopicOrPartition
        | Code::UnknownPartition
        | Code::InvalidTopic
        | Code::TopicAuthorizationFailed => Fate::NoTopic(words),
        Code::MessageSizeTooLarge
        | Code::InvalidMessage
        | Code::InvalidMessageSize
        | Code::InvalidRecord
        | Code::MessageBatchTooLarge
        | Code::InvalidTimestamp
        | Code::PolicyViolation => Fate::Refused(words),
        _ => Fate::Later(words),
    }
}

fn client(settings: &Settings) -> Result<FutureProducer<Logs>, Error> {
    FutureProducer::from_config_and_context(&settings.producer_config()?, Logs::default())
        .map_err(|error| Error::Settings(error.to_string()))
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
