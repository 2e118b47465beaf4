//! One life of the consumer: a queue per partition, nothing that blocks for long.
//!
//! Partitions are never paused: that throws prefetched records away (measured: 224 times the bytes, p99 850 ms late
//! against 3 ms). A partition whose window is full is just not read.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ::metrics::{counter, gauge};
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::BorrowedMessage;
use rdkafka::{Message, Offset, TopicPartitionList};
use tracing::{info, warn};

use super::Error;
use super::assignment::{Arrival, Place};
use super::context::{Context, Rebalanced, assign, commit};
use super::metrics;
use super::producer::Producer;
use super::record::Record;
use super::settings::{Settings, Topic};
use super::shared::Shared;
use super::statistics::Statistics;
use crate::bus::DueTime;
use crate::timer::name;

/// Longest sleep: rebalances and commits' results come on the main queue, which has no wake-up of its own.
const LONGEST_PARK: Duration = Duration::from_millis(50);
/// Records of one partition, and of all, per round: what is due must not wait for a long read.
const READ_PER_PARTITION: usize = 256;
const READ_PER_ROUND: usize = 2_048;
const TICK: Duration = Duration::from_secs(1);
/// A refused commit, as during every rebalance, is told to nobody: rdkafka 0.39 calls no callback for commits made by hand.
/// So all are repeated; brokers also forget the offsets of a group that doesn't refresh them, by default after 7 days.
const COMMIT_ALL_AGAIN: Duration = Duration::from_secs(10);
const LOOK_FOR_TOPICS: Duration = Duration::from_secs(5);
/// A partition that has records, and room for them, and gives none for so long is dead.
const DEAD_AFTER: Duration = Duration::from_secs(30);
const BROKER_PATIENCE: Duration = Duration::from_secs(3);
const METADATA_PATIENCE: Duration = Duration::from_millis(500);
/// Leaving the group and dropping the client.
const CLOSE_WITHIN: Duration = Duration::from_secs(4);
const FLUSH_WITHIN: Duration = Duration::from_secs(1);

/// Why the consumer must be thrown away.
#[derive(Debug)]
pub(super) struct Broken(pub String);

type Client = BaseConsumer<Context>;

struct Queue {
    place: Place,
    queue: PartitionQueue<Context>,
}

/// What a consumer works with; outlives it.
pub(super) struct Means {
    pub settings: Settings,
    pub inputs: Vec<Topic>,
    pub due_time: DueTime,
    pub shared: Arc<Shared>,
    pub producer: Arc<Producer>,
}

/// Lives on the poll thread until it breaks or the bus stops.
pub(super) struct Consumer {
    means: Arc<Means>,
    client: Arc<Client>,
    queues: Vec<Queue>,
    /// Which queue is read first.
    turn: usize,
    ticked_at: Instant,
    committed_all_at: Instant,
    looked_for_topics_at: Instant,
}

impl Consumer {
    /// Joins the group, in the background.
    pub fn new(means: &Arc<Means>) -> Result<Self, Error> {
        let config = means.settings.consumer_config()?;
        let client = Client::from_config_and_context(&config, Context::new(means.shared.clone()))
            .map_err(|e| Error::Settings(e.to_string()))?;
        let topics: Vec<&str> = means.inputs.iter().map(|topic| &*topic.name).collect();
        client
            .subscribe(&topics)
            .map_err(|e| Error::Settings(format!("subscribe: {e}")))?;
        let now = Instant::now();
        Ok(Consumer {
            means: means.clone(),
            client: Arc::new(client),
            queues: Vec::new(),
            turn: 0,
            ticked_at: now,
            committed_all_at: now,
            looked_for_topics_at: now,
        })
    }

    /// Until the bus stops, or it breaks.
    pub fn read(&mut self) -> Result<(), Broken> {
        while !self.means.shared.is_stopping() {
            self.means.shared.health.polled();
            if !self.round()? {
                self.park();
            }
        }
        Ok(())
    }

    /// Finishes hops under way and leaves the group; what is done is committed when the partitions are revoked.
    pub fn leave(self) {
        self.means.producer.flush(FLUSH_WITHIN);
        self.close();
    }

    /// Dropping the client may hang when no broker answers: it happens on a thread of its own, with a deadline.
    pub fn close(self) {
        self.client.context().close();
        // Each queue holds on to the client.
        drop(self.queues);
        let client = self.client;
        let (dropped, wait) = mpsc::channel();
        thread::spawn(move || {
            drop(client);
            // Nobody may be waiting any more.
            let _ = dropped.send(());
        });
        if wait.recv_timeout(CLOSE_WITHIN).is_err() {
            warn!(
                seconds = CLOSE_WITHIN.as_secs(),
                "the kafka consumer did not close in time and is left behind"
            );
        }
    }

    /// One look at everything; true if there may be more to do at once.
    fn round(&mut self) -> Result<bool, Broken> {
        let mut arrivals = Vec::new();
        let rebalanced = self.serve_main_queue(&mut arrivals)?;
        self.read_queues(&mut arrivals)?;
        let read = arrivals.len();
        self.take_in(arrivals)?;
        let now = self.means.shared.now();
        let (hops, has_ripe) = {
            let mut assignment = self.means.shared.assignment();
            (assignment.wake(now), assignment.has_ripe())
        };
        for hop in hops {
            self.means.producer.hop(hop, now);
        }
        if has_ripe {
            self.means.shared.ripened.notify_one();
        }
        if self.ticked_at.elapsed() >= TICK {
            self.ticked_at = Instant::now();
            self.tick()?;
        }
        Ok(rebalanced || read > 0)
    }

    /// Rebalances, results, errors. A record here is a stray: split queues should get them all.
    fn serve_main_queue(&mut self, arrivals: &mut Vec<Arrival>) -> Result<bool, Broken> {
        let mut rebalanced = false;
        let client = self.client.clone();
        for _ in 0..READ_PER_PARTITION {
            match client.poll(Duration::ZERO) {
                Some(Ok(message)) => {
                    counter!(metrics::STRAYS).increment(1);
                    warn!(
                        topic = message.topic(),
                        partition = message.partition(),
                        offset = message.offset(),
                        "record on the main queue"
                    );
                    arrivals.extend(self.arrival(&message, None));
                }
                Some(Err(e)) => self.look_at(e)?,
                None if !self.rebalance()? => break,
                None => rebalanced = true,
            }
        }
        Ok(rebalanced)
    }

    /// Acts on what the group decided; false if there was nothing.
    fn rebalance(&mut self) -> Result<bool, Broken> {
        let mut any = false;
        while let Some(rebalanced) = self.client.context().next_rebalanced() {
            any = true;
            match rebalanced {
                Rebalanced::Assigned(partitions) => self.assign(partitions)?,
                Rebalanced::Revoked(places) => {
                    self.queues.retain(|queue| !places.contains(&queue.place))
                }
            }
        }
        Ok(any)
    }

    /// Gives each partition its queue, and only then lets the assignment take effect: records fetched in between would
    /// come on the main queue (measured: 1,000 of 1,000 the other way round, none this way).
    fn assign(&mut self, partitions: TopicPartitionList) -> Result<(), Broken> {
        let partitions = match self
            .client
            .committed_offsets(partitions.clone(), BROKER_PATIENCE)
        {
            Ok(committed) => committed,
            Err(e) => {
                warn!(error = %e, "look up committed offsets; gaps before the first record will not be noticed");
                partitions
            }
        };
        for of in partitions.elements() {
            let Some(topic) = self
                .means
                .inputs
                .iter()
                .find(|topic| *topic.name == *of.topic())
            else {
                continue;
            };
            let place = (topic.name.clone(), of.partition());
            let mut queue = self
                .client
                .split_partition_queue(of.topic(), of.partition())
                .ok_or_else(|| Broken(format!("no queue for {}/{}", of.topic(), of.partition())))?;
            let poll_thread = thread::current();
            queue.set_nonempty_callback(move || poll_thread.unpark());
            self.queues.retain(|queue| queue.place != place);
            self.queues.push(Queue {
                place: place.clone(),
                queue,
            });
            let committed = match of.offset() {
                Offset::Offset(offset) => Some(offset),
                _ => None,
            };
            self.means
                .shared
                .assignment()
                .assign(place, topic.bucket, committed);
        }
        assign(&self.client, &partitions).map_err(|e| Broken(format!("assign partitions: {e}")))?;
        info!(
            partitions = partitions.count(),
            in_all = self.queues.len(),
            "partitions assigned"
        );
        self.means.shared.health.joined();
        Ok(())
    }

    fn read_queues(&mut self, arrivals: &mut Vec<Arrival>) -> Result<(), Broken> {
        if self.queues.is_empty() {
            return Ok(());
        }
        let rooms: Vec<_> = {
            let mut assignment = self.means.shared.assignment();
            self.queues
                .iter()
                .map(|queue| assignment.room(&queue.place))
                .collect()
        };
        self.turn = (self.turn + 1) % self.queues.len();
        let (mut errors, mut left) = (Vec::new(), READ_PER_ROUND);
        for index in (self.turn..self.queues.len()).chain(0..self.turn) {
            let Queue { place, queue } = &self.queues[index];
            let mut room = rooms[index];
            room.records = room.records.min(READ_PER_PARTITION).min(left);
            while !room.is_none() {
                match queue.poll(Duration::ZERO) {
                    Some(Ok(message)) => {
                        let arrival = self.arrival(&message, Some(place));
                        let bytes = arrival
                            .as_ref()
                            .and_then(|arrival| arrival.record.as_ref())
                            .map_or(0, Record::bytes);
                        room.records -= 1;
                        room.bytes = room.bytes.saturating_sub(bytes);
                        left -= 1;
                        arrivals.extend(arrival);
                    }
                    Some(Err(e)) => errors.push(e),
                    None => break,
                }
            }
        }
        errors.into_iter().try_for_each(|e| self.look_at(e))
    }

    /// None for a topic that wasn't asked for.
    fn arrival(&self, message: &BorrowedMessage<'_>, place: Option<&Place>) -> Option<Arrival> {
        let topic = self
            .means
            .inputs
            .iter()
            .find(|topic| *topic.name == *message.topic())?;
        counter!(metrics::RECORDS, "topic" => topic.name.clone()).increment(1);
        let record = Record::read(
            message,
            topic.bucket,
            &self.means.due_time,
            self.means.shared.now(),
        );
        let place = place
            .cloned()
            .unwrap_or_else(|| (topic.name.clone(), message.partition()));
        Some(Arrival {
            place,
            offset: message.offset(),
            record,
        })
    }

    fn take_in(&mut self, arrivals: Vec<Arrival>) -> Result<(), Broken> {
        if arrivals.is_empty() {
            return Ok(());
        }
        let taken_in = self
            .means
            .shared
            .assignment()
            .take_in(arrivals, self.means.shared.now());
        counter!(metrics::TOMBSTONES).increment(taken_in.tombstones);
        counter!(metrics::OFFSET_GAPS).increment(taken_in.gaps);
        if taken_in.gaps > 0 || taken_in.resets > 0 {
            warn!(
                gaps = taken_in.gaps,
                resets = taken_in.resets,
                "records were deleted before they were read"
            );
            self.means.shared.suspect();
        }
        match taken_in.rewound {
            Some((topic, partition)) => {
                self.means.shared.suspect();
                Err(Broken(format!("the log of {topic}/{partition} went back")))
            }
            None => Ok(()),
        }
    }

    /// Every second: commit, measure, look for trouble.
    fn tick(&mut self) -> Result<(), Broken> {
        if self.committed_all_at.elapsed() >= COMMIT_ALL_AGAIN {
            self.committed_all_at = Instant::now();
            self.means.shared.assignment().commit_all_again();
        }
        if !self.client.assignment_lost() {
            let commits = self.means.shared.assignment().commits();
            commit(&self.client, &commits, CommitMode::Async);
        }
        self.measure();
        let context = self.client.context().clone();
        if context.topics_are_missing() && self.looked_for_topics_at.elapsed() >= LOOK_FOR_TOPICS {
            self.looked_for_topics_at = Instant::now();
            let missing = self.missing_topics();
            context.set_topics_are_missing(!missing.is_empty());
            self.means.shared.health.missing_topics(missing);
        }
        if let Some((code, reason)) = self.client.client().fatal_error() {
            return Err(self.fatal(code, &reason));
        }
        context
            .take_statistics()
            .map_or(Ok(()), |statistics| self.examine(&statistics))
    }

    fn measure(&self) {
        let view = self.means.shared.assignment().view(self.means.shared.now());
        gauge!(metrics::ASSIGNED_PARTITIONS).set(view.len() as f64);
        for topic in &self.means.inputs {
            let of_topic = || {
                view.iter()
                    .filter(|partition| partition.topic == topic.name)
            };
            let overdue_ms = of_topic()
                .map(|partition| partition.overdue.num_milliseconds())
                .max()
                .unwrap_or(0);
            let bucket = topic.bucket.map_or("schedule".to_string(), name);
            gauge!(metrics::OVERDUE_SECONDS, "bucket" => bucket).set(overdue_ms as f64 / 1_000.0);
            gauge!(metrics::WINDOW_RECORDS, "topic" => topic.name.clone())
                .set(of_topic().map(|of| of.records).sum::<usize>() as f64);
            gauge!(metrics::WINDOW_BYTES, "topic" => topic.name.clone())
                .set(of_topic().map(|of| of.bytes).sum::<usize>() as f64);
            gauge!(metrics::WINDOW_FULL, "topic" => topic.name.clone())
                .set(of_topic().filter(|of| of.full).count() as f64);
        }
    }

    fn examine(&self, statistics: &Statistics) -> Result<(), Broken> {
        if statistics.some_broker_is_up() {
            self.means.shared.health.brokers_down(false);
        }
        let findings = statistics.findings(&self.means.shared.assignment(), DEAD_AFTER);
        if !findings.deleted.is_empty() {
            warn!(partitions = ?findings.deleted, "records were deleted before they were done");
            self.means.shared.suspect();
        }
        match findings.dead.first() {
            Some((topic, partition)) => Err(Broken(format!(
                "{topic}/{partition} has records and gave none for {} s",
                DEAD_AFTER.as_secs()
            ))),
            None => Ok(()),
        }
    }

    fn missing_topics(&self) -> BTreeSet<String> {
        let is_missing = |topic: &&Topic| match self
            .client
            .fetch_metadata(Some(&topic.name), METADATA_PATIENCE)
        {
            Ok(metadata) => metadata
                .topics()
                .iter()
                .all(|found| found.error().is_some() || found.partitions().is_empty()),
            Err(_) => false,
        };
        self.means
            .inputs
            .iter()
            .filter(is_missing)
            .map(|topic| topic.name.to_string())
            .collect()
    }

    /// An error that came instead of a record. Most pass by themselves.
    fn look_at(&mut self, e: KafkaError) -> Result<(), Broken> {
        match &e {
            KafkaError::MessageConsumptionFatal(code) => Err(self.fatal(*code, &e.to_string())),
            KafkaError::PartitionEOF(_) => Ok(()),
            KafkaError::MessageConsumption(
                RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic,
            ) => {
                let context = self.client.context();
                if !context.topics_are_missing() {
                    context.set_topics_are_missing(true);
                }
                self.looked_for_topics_at = Instant::now()
                    .checked_sub(LOOK_FOR_TOPICS)
                    .unwrap_or(self.looked_for_topics_at);
                warn!(error = %e, "kafka consumer");
                Ok(())
            }
            _ => {
                warn!(error = %e, "kafka consumer");
                Ok(())
            }
        }
    }

    fn fatal(&self, code: RDKafkaErrorCode, reason: &str) -> Broken {
        let instance_id = self
            .means
            .settings
            .instance_id
            .as_deref()
            .unwrap_or_default();
        match code {
            RDKafkaErrorCode::FencedInstanceId => Broken(format!(
                "another coordinator has the instance id {instance_id:?}; give each its own: {reason}"
            )),
            _ => Broken(format!("{reason} ({code})")),
        }
    }

    fn park(&self) {
        let until_wake = self
            .means
            .shared
            .assignment()
            .next_wake_at()
            .map(|at| (at - self.means.shared.now()).to_std().unwrap_or_default());
        thread::park_timeout(until_wake.map_or(LONGEST_PARK, |until| until.min(LONGEST_PARK)));
    }
}
