//! Messages out: hops of timers and whatever the coordinator publishes. Idempotent, acknowledged by all replicas.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::metrics::counter;
use chrono::TimeDelta;
use lapse_sagas::Timestamp;
use rdkafka::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{
    BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer,
};
use tokio::sync::oneshot;
use tracing::{error, warn};

use super::Error;
use super::assignment::Hop;
use super::context;
use super::metrics;
use super::settings::Settings;
use super::shared::Shared;
use crate::bus::{BadRecord, Delivery, Publish};
use crate::timer::name;

/// A hop that failed is tried again after this.
const HOP_AGAIN: TimeDelta = TimeDelta::seconds(1);

/// How often a full queue is looked at, and for how long.
const QUEUE_POLL: Duration = Duration::from_millis(5);
const QUEUE_PATIENCE: Duration = Duration::from_secs(10);

/// What a delivery report is about.
enum Sent {
    Hop(Box<Hop>),
    Publish(oneshot::Sender<Delivery>),
}

type Client = ThreadedProducer<Reports>;

/// Cheap to share; builds its client anew after a fatal error.
pub(super) struct Producer {
    settings: Settings,
    shared: Arc<Shared>,
    client: Mutex<Arc<Client>>,
}

impl Producer {
    pub fn new(settings: &Settings, shared: Arc<Shared>) -> Result<Self, Error> {
        let client = Mutex::new(Arc::new(client(settings, shared.clone())?));
        Ok(Producer {
            settings: settings.clone(),
            shared,
            client,
        })
    }

    /// Moves a timer to another bucket. It is done at its delivery report; if it fails, it is looked at again.
    pub fn hop(&self, hop: Hop, now: Timestamp) {
        let topic = self.settings.bucket_topic(hop.to);
        let (key, value) = (hop.record.key.clone(), hop.record.value.clone());
        let headers = hop.record.headers_after_hop(hop.due, now);
        let mut record = BaseRecord::with_opaque_to(&topic, Box::new(Sent::Hop(Box::new(hop))))
            .payload(&value[..])
            .headers(headers);
        if let Some(key) = &key {
            record = record.key(&key[..]);
        }
        if let Err((error, record)) = self.client().send(record) {
            self.renew_after(&error);
            report(&self.shared, *record.delivery_opaque, Err(error));
        }
    }

    /// Produces messages in order; true for each that has its delivery report. Once one of a key has failed, those
    /// after it count as failed too, so that a repetition keeps their order.
    pub async fn publish(&self, messages: Vec<Publish>) -> Vec<bool> {
        let mut broken = HashSet::new();
        let mut delivered = Vec::with_capacity(messages.len());
        let deliveries = self.deliver(&messages).await;
        for (message, delivery) in messages.iter().zip(deliveries) {
            let lane = (message.topic.as_str(), message.key.as_str());
            if delivery != Delivery::Delivered {
                broken.insert(lane);
            }
            delivered.push(!broken.contains(&lane));
        }
        let failed = delivered.iter().filter(|delivered| !**delivered).count();
        counter!(metrics::PUBLISH_ERRORS).increment(failed as u64);
        delivered
    }

    /// Produces messages in order; what became of each.
    pub async fn deliver(&self, messages: &[Publish]) -> Vec<Delivery> {
        let mut receipts = Vec::with_capacity(messages.len());
        for message in messages {
            receipts.push(self.enqueue(message).await);
        }
        let mut deliveries = Vec::with_capacity(messages.len());
        for receipt in receipts {
            deliveries.push(match receipt {
                Some(receipt) => receipt.await.unwrap_or(Delivery::Unknown),
                None => Delivery::NotSent,
            });
        }
        deliveries
    }

    /// Waits for what is under way.
    pub fn flush(&self, limit: Duration) {
        if let Err(e) = self.client().flush(limit) {
            warn!(error = %e, "flush the producer");
        }
    }

    /// None if the queue stayed full or the message can't be sent.
    async fn enqueue(&self, message: &Publish) -> Option<oneshot::Receiver<Delivery>> {
        let topic = self.settings.topic(&message.topic);
        let deadline = tokio::time::Instant::now() + QUEUE_PATIENCE;
        loop {
            let (receipt, arrival) = oneshot::channel();
            let sent = Box::new(Sent::Publish(receipt));
            let record = BaseRecord::with_opaque_to(&topic, sent)
                .key(message.key.as_str())
                .payload(message.payload.as_str());
            let error = match self.client().send(record) {
                Ok(()) => return Some(arrival),
                Err((error, _)) => error,
            };
            let full = error.rdkafka_error_code() == Some(RDKafkaErrorCode::QueueFull);
            if !full || tokio::time::Instant::now() >= deadline {
                self.renew_after(&error);
                warn!(topic, error = %error, "publish");
                return None;
            }
            tokio::time::sleep(QUEUE_POLL).await;
        }
    }

    fn client(&self) -> Arc<Client> {
        self.client
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn renew_after(&self, error: &KafkaError) {
        if error.rdkafka_error_code() != Some(RDKafkaErrorCode::Fatal) {
            return;
        }
        error!(error = %error, "the producer failed for good and is built anew");
        match client(&self.settings, self.shared.clone()) {
            Ok(new) => {
                let old = std::mem::replace(
                    &mut *self.client.lock().unwrap_or_else(PoisonError::into_inner),
                    Arc::new(new),
                );
                // Dropping waits for the old client's thread.
                std::thread::spawn(move || drop(old));
            }
            Err(e) => error!(error = %e, "build the producer anew"),
        }
    }
}

fn client(settings: &Settings, shared: Arc<Shared>) -> Result<Client, Error> {
    Client::from_config_and_context(&settings.producer_config()?, Reports { shared })
        .map_err(|e| Error::Settings(e.to_string()))
}

/// Receives delivery reports on the producer's own thread.
struct Reports {
    shared: Arc<Shared>,
}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<Sent>;

    fn delivery(&self, result: &DeliveryResult<'_>, sent: Box<Sent>) {
        let result = match result {
            Ok(_) => Ok(()),
            Err((error, _)) => Err(error.clone()),
        };
        report(&self.shared, *sent, result);
    }
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        context::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        warn!(error = %error, reason, "kafka producer");
    }
}

fn report(shared: &Shared, sent: Sent, result: Result<(), KafkaError>) {
    match (sent, result) {
        (Sent::Publish(receipt), result) => {
            let delivery = match &result {
                Ok(()) => Delivery::Delivered,
                Err(e) => {
                    warn!(error = %e, "publish");
                    failed(e)
                }
            };
            // Nobody may be waiting any more.
            let _ = receipt.send(delivery);
        }
        (Sent::Hop(hop), Ok(())) => {
            counter!(metrics::HOPS, "bucket" => name(hop.to)).increment(1);
            shared.assignment().done(&hop.origin);
        }
        (Sent::Hop(hop), Err(error)) => {
            let Hop {
                to, origin, record, ..
            } = *hop;
            counter!(metrics::HOP_ERRORS).increment(1);
            warn!(?origin, bucket = name(to), error = %error, "move timer to a shorter bucket");
            let now = shared.now();
            if is_final(&error) {
                let detail = format!(
                    "kafka refuses the record in topic delay.{}: {error}",
                    name(to)
                );
                shared.assignment().refuse_hop(
                    &origin,
                    record,
                    BadRecord {
                        reason: "hop_refused",
                        detail,
                    },
                    now,
                );
                shared.wake_poll_thread();
            } else {
                shared
                    .assignment()
                    .hop_again(&origin, record, now + HOP_AGAIN);
            }
        }
    }
}

/// What a failure says about where the record is. A time-out may come after brokers have stored it.
fn failed(error: &KafkaError) -> Delivery {
    use RDKafkaErrorCode::{
        PurgeQueue, TopicAuthorizationFailed, UnknownPartition, UnknownTopic,
        UnknownTopicOrPartition,
    };
    let code = error.rdkafka_error_code();
    let not_sent = [
        PurgeQueue,
        TopicAuthorizationFailed,
        UnknownPartition,
        UnknownTopic,
        UnknownTopicOrPartition,
    ];
    if is_final(error) || not_sent.map(Some).contains(&code) {
        Delivery::NotSent
    } else {
        Delivery::Unknown
    }
}

/// Whether the same record will never be accepted.
fn is_final(error: &KafkaError) -> bool {
    use RDKafkaErrorCode::{
        InvalidMessage, InvalidMessageSize, InvalidRecord, MessageBatchTooLarge,
        MessageSizeTooLarge,
    };
    let code = error.rdkafka_error_code();
    [
        InvalidMessage,
        InvalidMessageSize,
        InvalidRecord,
        MessageBatchTooLarge,
        MessageSizeTooLarge,
    ]
    .map(Some)
    .contains(&code)
}
