//! Records in and out of a topic, by a client of the test's own.

use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message as _;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

/// How long a broker may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// One record.
#[derive(Clone, Debug)]
pub struct Message {
    /// Its key.
    pub key: Option<Vec<u8>>,
    /// Its value.
    pub value: Vec<u8>,
}

/// Appends records in this order, each with its key and value.
pub async fn produce(brokers: &str, topic: &str, records: &[(&str, Vec<u8>)]) {
    let producer: FutureProducer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("partitioner", "murmur2_random")
        .create()
        .expect("a producer");
    let sent: Vec<_> = records
        .iter()
        .map(|(key, value)| {
            let record = FutureRecord::to(topic).key(*key).payload(value);
            producer.send_result(record).expect("there is room")
        })
        .collect();
    for report in sent {
        report
            .await
            .expect("a delivery report")
            .expect("the record is appended");
    }
}

/// Everything that is on a topic now.
pub async fn read(brokers: &str, topic: &str) -> Vec<Message> {
    let (brokers, topic) = (brokers.to_owned(), topic.to_owned());
    blocking(move || {
        let consumer = consumer(&brokers, "lapse-test-reader");
        let ends = ends(&consumer, &topic);
        let mut assigned = TopicPartitionList::new();
        for (partition, _, _) in &ends {
            assigned
                .add_partition_offset(&topic, *partition, Offset::Beginning)
                .expect("an offset");
        }
        consumer.assign(&assigned).expect("partitions");
        let count: i64 = ends.iter().map(|(_, low, high)| high - low).sum();
        let mut messages = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        while (messages.len() as i64) < count {
            assert!(
                Instant::now() < deadline,
                "{topic}: {count} records not read in {PATIENCE:?}"
            );
            let Some(polled) = consumer.poll(Duration::from_millis(100)) else {
                continue;
            };
            let polled = polled.expect("a record");
            messages.push(Message {
                key: polled.key().map(<[u8]>::to_vec),
                value: polled.payload().unwrap_or_default().to_vec(),
            });
        }
        messages
    })
    .await
}

/// How many records of a topic a group has not committed yet.
pub async fn uncommitted(brokers: &str, group: &str, topic: &str) -> i64 {
    let (brokers, group, topic) = (brokers.to_owned(), group.to_owned(), topic.to_owned());
    blocking(move || {
        let consumer = consumer(&brokers, &group);
        let ends = ends(&consumer, &topic);
        let mut asked = TopicPartitionList::new();
        for (partition, _, _) in &ends {
            asked.add_partition(&topic, *partition);
        }
        let committed = consumer
            .committed_offsets(asked, PATIENCE)
            .expect("committed offsets");
        let behind = ends.iter().map(|(partition, low, high)| {
            let found = committed.find_partition(&topic, *partition);
            match found.map(|found| found.offset()) {
                Some(Offset::Offset(offset)) => high - offset,
                _ => high - low,
            }
        });
        behind.sum()
    })
    .await
}

/// Partition, first offset, next offset.
fn ends(consumer: &BaseConsumer, topic: &str) -> Vec<(i32, i64, i64)> {
    let metadata = consumer
        .fetch_metadata(Some(topic), PATIENCE)
        .expect("metadata");
    let partitions = metadata
        .topics()
        .iter()
        .flat_map(|topic| topic.partitions());
    partitions
        .map(|partition| {
            let (low, high) = consumer
                .fetch_watermarks(topic, partition.id(), PATIENCE)
                .expect("watermarks");
            (partition.id(), low, high)
        })
        .collect()
}

fn consumer(brokers: &str, group: &str) -> BaseConsumer {
    ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", group)
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "earliest")
        .create()
        .expect("a consumer")
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work)
        .await
        .expect("the client does not panic")
}
