//! A broker with topics of its own for one test, producers and buses on it, and waiting for conditions.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lapse::bus::{BadRecord, Bus, Clock, DueTime, Ripe};
use lapse::dev::broker::Broker;
use lapse::kafka::{KafkaBus, Settings, topics};
use lapse_sagas::{Span, Timestamp};
use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};

/// Anything that takes longer has failed.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Runs each named test on the embedded broker and on Apache Kafka.
macro_rules! on_both {
    ($($test:ident),* $(,)?) => {$(
        mod $test {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn embedded() {
                super::$test($crate::kafka::bench::Bench::embedded(stringify!($test))).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn apache_kafka() {
                if let Some(bench) = $crate::kafka::bench::Bench::apache_kafka(stringify!($test)) {
                    super::$test(bench).await;
                }
            }
        }
    )*};
}
pub(crate) use on_both;

/// Where one test runs.
pub struct Bench {
    /// Change them before [`Bench::create_topics`].
    pub settings: Settings,
    /// None on Apache Kafka.
    pub broker: Option<Broker>,
}

impl Bench {
    /// On the in-process broker.
    pub fn embedded(test: &str) -> Self {
        let none = Settings {
            buckets: vec![Span::from_secs(1)],
            ..settings(test, "")
        };
        let broker = Broker::start(&Settings {
            prefix: "unused.".into(),
            ..none
        })
        .expect("in-process broker");
        Bench {
            settings: settings(test, broker.address()),
            broker: Some(broker),
        }
    }

    /// On Apache Kafka, or noted as left out.
    pub fn apache_kafka(test: &str) -> Option<Self> {
        let address = std::env::var("LAPSE_TEST_KAFKA")
            .ok()
            .filter(|address| !address.is_empty());
        let Some(address) = address else {
            eprintln!("LEFT OUT: {test} on Apache Kafka, because LAPSE_TEST_KAFKA is not set");
            if let Ok(path) = std::env::var("LAPSE_TEST_LEFT_OUT") {
                let file = std::fs::OpenOptions::new()
                    .create(true)
                    .append(true)
                    .open(&path);
                writeln!(file.expect("LAPSE_TEST_LEFT_OUT"), "kafka::{test}")
                    .expect("LAPSE_TEST_LEFT_OUT");
            }
            return None;
        };
        Some(Bench {
            settings: settings(test, &address),
            broker: None,
        })
    }

    pub async fn create_topics(&self) {
        match &self.broker {
            Some(broker) => broker.create_topics(&self.settings).expect("topics"),
            None => {
                topics::create(&self.settings).await.expect("topics");
            }
        }
    }

    /// A bus of this group that is ready.
    pub async fn ready_bus(&self) -> KafkaBus {
        let bus = self.bus();
        eventually("the bus is ready", || bus.is_ready()).await;
        bus
    }

    /// A bus of this group.
    pub fn bus(&self) -> KafkaBus {
        KafkaBus::start(&self.settings, due_time(), clock()).expect("bus")
    }

    /// The payloads of an output topic, as numbers, in order within each partition.
    pub async fn read(&self, topic: &str, count: usize) -> Vec<usize> {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &self.settings.brokers)
            .set("group.id", "unused");
        let consumer: StreamConsumer = config.create().expect("consumer");
        let mut partitions = TopicPartitionList::new();
        for partition in 0..self.settings.partitions {
            let start = Offset::Beginning;
            partitions
                .add_partition_offset(&self.settings.topic(topic), partition, start)
                .expect("valid");
        }
        consumer.assign(&partitions).expect("assigned");
        let mut payloads = Vec::new();
        while payloads.len() < count {
            let message = tokio::time::timeout(LIMIT, consumer.recv())
                .await
                .expect("in time")
                .expect("message");
            let payload = message
                .payload_view::<str>()
                .expect("payload")
                .expect("text");
            payloads.push(payload.parse().expect("number"));
        }
        payloads
    }

    pub fn producer(&self) -> Source {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &self.settings.brokers)
            .set("linger.ms", "5");
        Source {
            producer: config.create().expect("producer"),
            prefix: self.settings.prefix.clone(),
        }
    }
}

/// Produces records.
pub struct Source {
    producer: FutureProducer,
    prefix: String,
}

/// A record to produce.
#[derive(Clone, Default)]
pub struct Sample {
    pub topic: &'static str,
    pub partition: i32,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(&'static str, Option<Vec<u8>>)>,
}

impl Source {
    /// In order; returns when all are stored.
    pub async fn produce(&self, samples: Vec<Sample>) {
        let mut sent = Vec::new();
        for sample in samples {
            let topic = format!("{}{}", self.prefix, sample.topic);
            let add = |headers: OwnedHeaders, (key, value): &(&str, Option<Vec<u8>>)| {
                headers.insert(Header {
                    key,
                    value: value.as_deref(),
                })
            };
            let headers = sample.headers.iter().fold(OwnedHeaders::new(), add);
            let mut record = FutureRecord::to(&topic)
                .key("order-1")
                .partition(sample.partition)
                .headers(headers);
            if let Some(value) = &sample.value {
                record = record.payload(value);
            }
            sent.push(
                self.producer
                    .send_result(record)
                    .map_err(|(e, _)| e)
                    .expect("queued"),
            );
        }
        for report in sent {
            report.await.expect("report").expect("stored");
        }
    }
}

/// `{"id":…}` due then.
pub fn due_at(topic: &'static str, partition: i32, id: usize, due: Timestamp) -> Sample {
    let value = format!("{{\"id\":{id},\"due_ms\":{}}}", due.timestamp_millis());
    Sample {
        topic,
        partition,
        value: Some(value.into_bytes()),
        headers: Vec::new(),
    }
}

/// The id in a value.
pub fn id(ripe: &Ripe) -> usize {
    let value: serde_json::Value = serde_json::from_slice(&ripe.value).expect("json");
    value["id"]
        .as_u64()
        .and_then(|id| usize::try_from(id).ok())
        .expect("id")
}

pub fn now() -> Timestamp {
    Timestamp::from(std::time::SystemTime::now())
}

/// To the millisecond, as records say it.
pub fn in_ms(ms: i64) -> Timestamp {
    Timestamp::from_timestamp_millis(now().timestamp_millis() + ms).expect("in range")
}

/// So many ripe records with the time each was handed out; they are not done.
pub async fn take(bus: &KafkaBus, count: usize) -> Vec<(Timestamp, Ripe)> {
    let mut taken = Vec::new();
    let deadline = Instant::now() + LIMIT;
    while taken.len() < count {
        let left = deadline.saturating_duration_since(Instant::now());
        let ripe = tokio::time::timeout(left, bus.ripe(500)).await;
        let Ok(ripe) = ripe else {
            panic!(
                "only {} of {count} records came; {:?}",
                taken.len(),
                bus.trouble()
            );
        };
        let at = now();
        taken.extend(ripe.into_iter().map(|ripe| (at, ripe)));
    }
    taken
}

/// As [`take`], and done.
pub async fn take_done(bus: &KafkaBus, count: usize) -> Vec<Ripe> {
    let ripe: Vec<Ripe> = take(bus, count)
        .await
        .into_iter()
        .map(|(_, ripe)| ripe)
        .collect();
    let origins: Vec<_> = ripe.iter().map(|ripe| ripe.origin.clone()).collect();
    bus.done(&origins);
    ripe
}

/// Waits for a condition.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {LIMIT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn settings(test: &str, brokers: &str) -> Settings {
    // RUST_LOG=lapse=info shows what the bus does; a second test finds it set up already.
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_test_writer()
        .try_init();
    static TESTS: AtomicU32 = AtomicU32::new(0);
    let number = TESTS.fetch_add(1, Ordering::Relaxed);
    let name = format!("t{}-{number}-{test}", std::process::id());
    Settings {
        prefix: format!("{name}."),
        group: name,
        memory_mb: 16,
        buckets: vec![Span::from_secs(1), Span::from_secs(3)],
        partitions: 2,
        replication: 1,
        // The in-process broker waits for a second member for a second less than this.
        extra: BTreeMap::from([
            ("consumer.session.timeout.ms".into(), "6000".into()),
            ("consumer.heartbeat.interval.ms".into(), "500".into()),
            (
                "consumer.topic.metadata.refresh.interval.ms".into(),
                "1000".into(),
            ),
        ]),
        ..Settings::new(brokers)
    }
}

/// As intake does it: the value's time, else the bucket's delay from the append time.
fn due_time() -> DueTime {
    Arc::new(|value, bucket, appended, _now| {
        let bad = |reason, detail: &str| BadRecord {
            reason,
            detail: detail.into(),
        };
        let value: serde_json::Value =
            serde_json::from_slice(value).map_err(|e| bad("not_json", &e.to_string()))?;
        match (
            value
                .get("due_ms")
                .map(|due| due.as_i64().and_then(Timestamp::from_timestamp_millis)),
            bucket,
        ) {
            (Some(Some(due)), _) => Ok(due),
            (Some(None), _) => Err(bad("due_unreadable", "due_ms is not a number")),
            (None, Some(bucket)) => Ok(appended + bucket.delta()),
            (None, None) => Err(bad("no_due_time", "neither a due time nor a delay")),
        }
    })
}

fn clock() -> Clock {
    Arc::new(now)
}
