//! What librdkafka calls back: rebalances, statistics, errors, logs. The results of commits are not among it: rdkafka 0.39
//! hands on none of those that are made by hand and not waited for.
//!
//! A new assignment is only noted here: its partitions must have their own queues before it takes effect, and that needs
//! the consumer's own handle. A revocation is carried out at once, because dropping the consumer waits for it.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::metrics::counter;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientContext, Offset, TopicPartitionList};
use tracing::{debug, error, info, warn};

use super::assignment::{Commit, Place};
use super::metrics;
use super::shared::Shared;
use super::statistics::Statistics;

/// A rebalance that the poll thread has to act on.
pub(super) enum Rebalanced {
    /// To be split into queues and assigned.
    Assigned(TopicPartitionList),
    /// Already given up; their queues can go.
    Revoked(Vec<Place>),
}

/// The consumer's.
pub(super) struct Context {
    shared: Arc<Shared>,
    rebalanced: Mutex<VecDeque<Rebalanced>>,
    statistics: Mutex<Option<Statistics>>,
    topics_are_missing: AtomicBool,
    closing: AtomicBool,
}

impl Context {
    pub fn new(shared: Arc<Shared>) -> Self {
        Context {
            shared,
            rebalanced: Mutex::default(),
            statistics: Mutex::default(),
            topics_are_missing: AtomicBool::new(false),
            closing: AtomicBool::new(false),
        }
    }

    pub fn next_rebalanced(&self) -> Option<Rebalanced> {
        locked(&self.rebalanced).pop_front()
    }

    pub fn take_statistics(&self) -> Option<Statistics> {
        locked(&self.statistics).take()
    }

    pub fn topics_are_missing(&self) -> bool {
        self.topics_are_missing.load(Ordering::Relaxed)
    }

    pub fn set_topics_are_missing(&self, missing: bool) {
        self.topics_are_missing.store(missing, Ordering::Relaxed);
    }

    /// From now on the consumer is being dropped.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    fn revoke(&self, consumer: &BaseConsumer<Self>, partitions: &TopicPartitionList) {
        let lost = consumer.assignment_lost();
        let places: Vec<Place> = partitions
            .elements()
            .iter()
            .map(|of| (of.topic().into(), of.partition()))
            .collect();
        let commits = self.shared.assignment().positions(&places);
        if !lost {
            // While closing, the client itself waits for commits under way.
            let mode = if self.is_closing() {
                CommitMode::Async
            } else {
                CommitMode::Sync
            };
            commit(consumer, &commits, mode);
        }
        let mut assignment = self.shared.assignment();
        places.iter().for_each(|place| assignment.revoke(place));
        drop(assignment);
        if lost {
            self.shared.health.left();
        }
        info!(partitions = places.len(), lost, "partitions revoked");
        if let Err(e) = unassign(consumer, partitions) {
            error!(error = %e, "give up revoked partitions");
        }
        locked(&self.rebalanced).push_back(Rebalanced::Revoked(places));
    }
}

/// Makes an assignment effective.
pub(super) fn assign<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    partitions: &TopicPartitionList,
) -> KafkaResult<()> {
    match consumer.rebalance_protocol() {
        RebalanceProtocol::Cooperative => consumer.incremental_assign(partitions),
        _ => consumer.assign(partitions),
    }
}

/// Makes a revocation effective.
pub(super) fn unassign<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    partitions: &TopicPartitionList,
) -> KafkaResult<()> {
    match consumer.rebalance_protocol() {
        RebalanceProtocol::Cooperative => consumer.incremental_unassign(partitions),
        _ => consumer.unassign(),
    }
}

/// Commits offsets. Always by list and with the offset to read next, never through the client's stored offsets.
pub(super) fn commit<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    commits: &[Commit],
    mode: CommitMode,
) {
    if commits.is_empty() {
        return;
    }
    let mut list = TopicPartitionList::with_capacity(commits.len());
    for Commit {
        place: (topic, partition),
        position,
    } in commits
    {
        if let Err(e) = list.add_partition_offset(topic, *partition, Offset::Offset(*position)) {
            error!(%topic, partition, position, error = %e, "commit offset");
        }
    }
    if let Err(e) = consumer.commit(&list, mode) {
        counter!(metrics::COMMIT_ERRORS).increment(1);
        warn!(partitions = commits.len(), error = %e, "commit offsets");
    }
}

impl ConsumerContext for Context {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        event: RDKafkaRespErr,
        partitions: &mut TopicPartitionList,
    ) {
        match event {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS if self.is_closing() => {
                if let Err(e) = assign(consumer, partitions) {
                    error!(error = %e, "accept an assignment while closing");
                }
            }
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => {
                locked(&self.rebalanced).push_back(Rebalanced::Assigned(partitions.clone()));
            }
            _ => self.revoke(consumer, partitions),
        }
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }

    fn stats_raw(&self, statistics: &[u8]) {
        match serde_json::from_slice(statistics) {
            Ok(statistics) => *locked(&self.statistics) = Some(statistics),
            Err(e) => warn!(error = %e, "read client statistics"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::AllBrokersDown) => self.shared.health.brokers_down(true),
            Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => {
                self.set_topics_are_missing(true)
            }
            _ => {}
        }
        self.shared.health.failed(reason.to_string());
        warn!(error = %error, reason, "kafka client");
    }
}

/// A client without more to say than its log. One that is not answered tries many times a second; what it says of a
/// broker each time is said once in a while.
#[derive(Default)]
pub(super) struct Logs {
    said: Mutex<HashMap<String, Instant>>,
}

/// How long the same is not said again.
const SAID_AGAIN_AFTER: Duration = Duration::from_secs(30);

impl Logs {
    fn is_news(&self, kind: String, now: Instant) -> bool {
        let mut said = locked(&self.said);
        said.retain(|_, at| now.duration_since(*at) < SAID_AGAIN_AFTER);
        if said.contains_key(&kind) {
            return false;
        }
        said.insert(kind, now);
        true
    }
}

impl ClientContext for Logs {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        // Before this is the thread, which is the broker's.
        let of = message.split("]:").next().unwrap_or_default();
        if self.is_news(format!("{facility} {of}"), Instant::now()) {
            log(level, facility, message);
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let of = reason.split_whitespace().next().unwrap_or_default();
        if self.is_news(format!("{error} {of}"), Instant::now()) {
            warn!(error = %error, reason, "kafka client");
        }
    }
}

pub(super) fn log(level: RDKafkaLogLevel, facility: &str, message: &str) {
    match level {
        RDKafkaLogLevel::Emerg
        | RDKafkaLogLevel::Alert
        | RDKafkaLogLevel::Critical
        | RDKafkaLogLevel::Error => {
            error!(target: "librdkafka", facility, "{message}");
        }
        RDKafkaLogLevel::Warning => warn!(target: "librdkafka", facility, "{message}"),
        RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
            info!(target: "librdkafka", facility, "{message}")
        }
        RDKafkaLogLevel::Debug => debug!(target: "librdkafka", facility, "{message}"),
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_said_again_only_after_a_while() {
        let (logs, began) = (Logs::default(), Instant::now());
        let said = |kind: &str, after: Duration| logs.is_news(kind.to_owned(), began + after);
        assert!(said("FAIL a", Duration::ZERO));
        assert!(said("FAIL b", Duration::ZERO));
        assert!(!said("FAIL a", Duration::from_secs(29)));
        assert!(said("FAIL a", Duration::from_secs(30)));
    }
}
