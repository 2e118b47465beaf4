//! [`Feed`] on Kafka: a thread that reads topics as a member of a group, or from their ends by itself.
//!
//! ```text
//! reading thread:  partition queue ─► held, a bounded number ─► Feed::next
//!                  Feed::commit ─► one commit at a time, waited for ─► true; after a revocation ─► false
//! ```
//! Relies on the group for who reads what. Members are not static, unlike those that hold timers: nothing here is costly to
//! move, and a member that leaves, or one killed and restarted, must not keep its partitions for a session time-out.
//! Never: pauses a partition, stops polling while its reader is busy, or commits a partition that it gave up since.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use ::metrics::counter;
use async_trait::async_trait;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::BorrowedMessage;
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientContext, Message, Offset, TopicPartitionList};
use tokio::sync::{Notify, oneshot};
use tracing::{error, info, warn};

use super::Error;
use super::assignment::Place;
use super::context::{self, assign, unassign};
use super::metrics;
use super::settings::Settings;
use crate::bus::Origin;
use crate::feed::{Feed, Record};

/// Records held for the reader at most; what is fetched beyond waits in the client.
const HELD_MAX: usize = 2_000;
/// The same in bytes of their keys and values; one record may go over it.
const HELD_BYTES: usize = 16 * 1024 * 1024;
/// Longest sleep: rebalances come on the main queue, which has no wake-up of its own.
const LONGEST_PARK: Duration = Duration::from_millis(50);
/// Where a topic is missing or not to be read, the brokers are asked so often whether it still is.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
const TOPIC_WITHIN: Duration = Duration::from_secs(2);
/// A commit that was refused is tried again after this.
const COMMIT_AGAIN: Duration = Duration::from_millis(200);
/// A consumer that failed for good is built anew after this.
const REBUILD_AFTER: Duration = Duration::from_secs(1);
const BROKER_PATIENCE: Duration = Duration::from_secs(10);
const CLOSE_WITHIN: Duration = Duration::from_secs(4);

/// Topics of Kafka, read by a thread of their own.
pub struct KafkaFeed {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What is read, and as whom.
enum Source {
    /// As a member of this group, from what it committed last or else from the beginning.
    Group { group: String, topics: Vec<String> },
    /// All partitions, from where they ended when reading began. Nothing is committed.
    Tail { ends: TopicPartitionList },
}

struct Shared {
    /// Names of the topics, for people.
    topics: String,
    held: Mutex<Held>,
    trouble: Mutex<Option<Trouble>>,
    arrived: Notify,
    /// None once nobody will look at them any more.
    commits: Mutex<Option<VecDeque<CommitRequest>>>,
    stopping: AtomicBool,
    reading: OnceLock<Thread>,
}

#[derive(Default)]
struct Held {
    records: VecDeque<Record>,
    /// Of their keys and values.
    bytes: usize,
    /// Counts assignments; a partition's number is that of its latest one.
    epoch: u64,
    assigned: BTreeMap<Place, u64>,
}

/// Why nobody can read.
enum Trouble {
    /// A topic is missing, or this user may not read it.
    Topic(String),
    /// This user may not be a member of the group.
    Group(String),
}

struct CommitRequest {
    origins: Vec<Origin>,
    done: oneshot::Sender<Vec<bool>>,
}

impl KafkaFeed {
    /// Reads topics, given by their short names, as a member of the group. Returns at once.
    ///
    /// # Errors
    /// [`Error::Settings`] if the client does not take the settings.
    pub fn group(settings: &Settings, group: &str, topics: &[&str]) -> Result<KafkaFeed, Error> {
        let topics: Vec<String> = topics.iter().map(|short| settings.topic(short)).collect();
        let names = topics.join(", ");
        let source = Source::Group {
            group: group.to_owned(),
            topics,
        };
        KafkaFeed::start(settings, source, names)
    }

    /// Reads a topic, given by its short name, from where it ends now. Blocks until the brokers have said where.
    ///
    /// # Errors
    /// [`Error::Settings`] if the client does not take the settings, [`Error::Broker`] if the topic can't be looked at.
    pub fn tail(settings: &Settings, topic: &str) -> Result<KafkaFeed, Error> {
        let topic = settings.topic(topic);
        let ends = ends(settings, &topic).map_err(|e| Error::Broker {
            doing: format!("look for the end of topic {topic}"),
            error: e.to_string(),
        })?;
        KafkaFeed::start(settings, Source::Tail { ends }, topic)
    }

    fn start(settings: &Settings, source: Source, topics: String) -> Result<KafkaFeed, Error> {
        let shared = Arc::new(Shared {
            topics,
            held: Mutex::default(),
            trouble: Mutex::default(),
            arrived: Notify::new(),
            commits: Mutex::new(Some(VecDeque::new())),
            stopping: AtomicBool::new(false),
            reading: OnceLock::new(),
        });
        let first = Reader::new(settings, &source, &shared)?;
        let (settings, on_thread) = (settings.clone(), shared.clone());
        let thread = thread::Builder::new()
            .name("kafka-feed".into())
            .spawn(move || run(&settings, &source, &on_thread, first))
            .map_err(|e| Error::Settings(format!("start the reading thread: {e}")))?;
        Ok(KafkaFeed {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }
}

fn ends(settings: &Settings, topic: &str) -> Result<TopicPartitionList, KafkaError> {
    let client: BaseConsumer = settings.admin_config().create()?;
    let metadata = client.fetch_metadata(Some(topic), BROKER_PATIENCE)?;
    let mut ends = TopicPartitionList::new();
    for partition in metadata
        .topics()
        .iter()
        .flat_map(|topic| topic.partitions())
    {
        let (_, end) = client.fetch_watermarks(topic, partition.id(), BROKER_PATIENCE)?;
        ends.add_partition_offset(topic, partition.id(), Offset::Offset(end))?;
    }
    Ok(ends)
}

impl Drop for KafkaFeed {
    /// Tells the thread to leave, without waiting for it.
    fn drop(&mut self) {
        self.shared.stop();
    }
}

#[async_trait]
impl Feed for KafkaFeed {
    async fn next(&self, max: usize) -> Vec<Record> {
        loop {
            let records = self.shared.held().take(max);
            if !records.is_empty() {
                self.shared.wake();
                return records;
            }
            self.shared.arrived.notified().await;
        }
    }

    fn has_partitions(&self) -> bool {
        !self.shared.held().assigned.is_empty()
    }

    fn trouble(&self) -> Option<String> {
        if self.has_partitions() {
            return None;
        }
        let trouble = locked(&self.shared.trouble);
        trouble.as_ref().map(|trouble| match trouble {
            Trouble::Topic(words) | Trouble::Group(words) => words.clone(),
        })
    }

    async fn commit(&self, origins: &[Origin]) -> Vec<bool> {
        let (done, committed) = oneshot::channel();
        let request = CommitRequest {
            origins: origins.to_vec(),
            done,
        };
        match locked(&self.shared.commits).as_mut() {
            Some(commits) => commits.push_back(request),
            // Nobody looks any more: that is told.
            None => drop(request),
        }
        self.shared.wake();
        committed
            .await
            .unwrap_or_else(|_| vec![false; origins.len()])
    }

    async fn close(&self) {
        self.shared.stop();
        let thread = locked(&self.thread).take();
        if let Some(thread) = thread {
            // A panic was reported by the thread itself.
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

impl Shared {
    fn held(&self) -> MutexGuard<'_, Held> {
        locked(&self.held)
    }

    fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.wake();
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    fn wake(&self) {
        if let Some(thread) = self.reading.get() {
            thread.unpark();
        }
    }

    fn next_commit(&self) -> Option<CommitRequest> {
        locked(&self.commits).as_mut()?.pop_front()
    }

    fn commit_again(&self, request: CommitRequest) {
        if let Some(commits) = locked(&self.commits).as_mut() {
            commits.push_front(request);
        }
    }

    /// These partitions are read from now on; with none of them, others may read.
    fn assigned(&self, places: Vec<Place>) {
        let mut trouble = locked(&self.trouble);
        if !places.is_empty() || matches!(*trouble, Some(Trouble::Group(_))) {
            *trouble = None;
        }
        let mut held = self.held();
        held.epoch += 1;
        let epoch = held.epoch;
        held.assigned
            .extend(places.into_iter().map(|place| (place, epoch)));
    }

    /// Most errors pass by themselves; these only when somebody does something.
    fn failed(&self, error: &KafkaError, reason: &str) {
        use RDKafkaErrorCode as Code;
        let trouble = match error.rdkafka_error_code() {
            Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => {
                let words = "is missing; create it with `lapse topics create`";
                Trouble::Topic(format!("{} {words}", self.topics))
            }
            Some(Code::TopicAuthorizationFailed) => {
                Trouble::Topic(format!("{} may not be read by this user", self.topics))
            }
            Some(Code::GroupAuthorizationFailed) => {
                Trouble::Group(format!("{}: this user may not join its group", self.topics))
            }
            _ => {
                warn!(%error, reason, "kafka feed");
                return;
            }
        };
        let mut known = locked(&self.trouble);
        if known.is_none() {
            warn!(%error, reason, "a feed can't be read");
        }
        *known = Some(trouble);
    }

    /// Somebody else reads these now; what is held of them would only be read twice.
    fn gave_up(&self, places: &[Place]) {
        let mut held = self.held();
        held.assigned.retain(|place, _| !places.contains(place));
        let Held {
            records,
            assigned,
            bytes,
            ..
        } = &mut *held;
        records.retain(|record| is_current(assigned, &record.origin));
        *bytes = records.iter().map(size).sum();
    }

    fn gave_up_all(&self) {
        let places: Vec<Place> = self.held().assigned.keys().cloned().collect();
        self.gave_up(&places);
    }
}

impl Held {
    fn has_room(&self) -> bool {
        self.records.len() < HELD_MAX && self.bytes < HELD_BYTES
    }

    fn push(&mut self, record: Record) {
        self.bytes += size(&record);
        self.records.push_back(record);
    }

    fn take(&mut self, max: usize) -> Vec<Record> {
        let count = max.min(self.records.len());
        let taken: Vec<Record> = self.records.drain(..count).collect();
        self.bytes -= taken.iter().map(size).sum::<usize>();
        taken
    }
}

fn size(record: &Record) -> usize {
    let bytes = |part: &Option<Vec<u8>>| part.as_ref().map_or(0, Vec::len);
    bytes(&record.key) + bytes(&record.value)
}

fn is_current(assigned: &BTreeMap<Place, u64>, origin: &Origin) -> bool {
    assigned.get(&(origin.topic.clone(), origin.partition)) == Some(&origin.epoch)
}

fn run(settings: &Settings, source: &Source, shared: &Arc<Shared>, first: Reader) {
    // Set once: there is one thread per feed.
    let _ = shared.reading.set(thread::current());
    let mut reader = Some(first);
    while !shared.is_stopping() {
        match reader.take() {
            Some(mut current) => {
                if let Err(why) = current.read() {
                    error!(why, "the consumer of a feed is built anew");
                    counter!(metrics::REBUILDS).increment(1);
                }
                current.close();
            }
            None => {
                thread::park_timeout(REBUILD_AFTER);
                let built = Reader::new(settings, source, shared);
                reader = built
                    .inspect_err(|e| error!(error = %e, "build the consumer of a feed anew"))
                    .ok();
            }
        }
        shared.gave_up_all();
    }
    // Whoever waits for a commit is told that there will be none.
    *locked(&shared.commits) = None;
}

type Client = BaseConsumer<Context>;

struct Reader {
    shared: Arc<Shared>,
    client: Arc<Client>,
    queues: Vec<(Place, PartitionQueue<Context>)>,
    refused_at: Option<Instant>,
    commits: bool,
    looked_at: Instant,
}

impl Reader {
    fn new(settings: &Settings, source: &Source, shared: &Arc<Shared>) -> Result<Reader, Error> {
        let group = match source {
            Source::Group { group, .. } => group,
            Source::Tail { .. } => "lapse-tail",
        };
        let config = settings.feed_config(group)?;
        let context = Context {
            shared: shared.clone(),
            rebalanced: Mutex::default(),
        };
        let refused = |e: KafkaError| Error::Settings(e.to_string());
        let client = Client::from_config_and_context(&config, context).map_err(refused)?;
        match source {
            Source::Group { topics, .. } => {
                let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
                client.subscribe(&topics).map_err(refused)?;
            }
            Source::Tail { ends } => {
                locked(&client.context().rebalanced).push_back(Rebalanced::Assigned(ends.clone()));
            }
        }
        Ok(Reader {
            shared: shared.clone(),
            client: Arc::new(client),
            queues: Vec::new(),
            refused_at: None,
            looked_at: Instant::now(),
            commits: matches!(source, Source::Group { .. }),
        })
    }

    /// Until the feed stops, or the client has failed for good.
    fn read(&mut self) -> Result<(), String> {
        while !self.shared.is_stopping() {
            self.serve_main_queue()?;
            self.look_again();
            self.commit();
            if self.read_queues() == 0 {
                thread::park_timeout(LONGEST_PARK);
            }
        }
        Ok(())
    }

    /// A topic that is there again is not missing any more; whether it is read here is up to the group.
    fn look_again(&mut self) {
        let is_topic = matches!(*locked(&self.shared.trouble), Some(Trouble::Topic(_)));
        if !is_topic || self.looked_at.elapsed() < LOOK_AGAIN {
            return;
        }
        self.looked_at = Instant::now();
        let subscribed = self.client.subscription().unwrap_or_default();
        let is_there = subscribed.elements().iter().all(|topic| {
            let metadata = self
                .client
                .fetch_metadata(Some(topic.topic()), TOPIC_WITHIN);
            metadata.is_ok_and(|metadata| {
                let topics = metadata.topics();
                !topics.is_empty() && topics.iter().all(|topic| topic.error().is_none())
            })
        });
        if is_there {
            *locked(&self.shared.trouble) = None;
            info!("a feed can be read again");
        }
    }

    /// Leaves the group. Dropping the client may hang when no broker answers: it happens on a thread of its own.
    fn close(self) {
        let Reader { client, queues, .. } = self;
        // Each queue holds on to the client.
        drop(queues);
        let dropping = thread::spawn(move || drop(client));
        let deadline = Instant::now() + CLOSE_WITHIN;
        while !dropping.is_finished() && Instant::now() < deadline {
            thread::park_timeout(LONGEST_PARK / 10);
        }
        if !dropping.is_finished() {
            warn!("the consumer of a feed did not close in time and is left behind");
        }
    }

    /// Rebalances and errors; records come on the queues of their partitions.
    fn serve_main_queue(&mut self) -> Result<(), String> {
        let client = self.client.clone();
        loop {
            match client.poll(Duration::ZERO) {
                Some(Ok(message)) => {
                    counter!(metrics::STRAYS).increment(1);
                    self.hold(&message);
                }
                Some(Err(e)) => self.shared.failed(&e, &e.to_string()),
                None if !self.rebalance()? => break,
                None => {}
            }
        }
        match client.client().fatal_error() {
            Some((code, reason)) => Err(format!("{code}: {reason}")),
            None => Ok(()),
        }
    }

    fn rebalance(&mut self) -> Result<bool, String> {
        let mut any = false;
        loop {
            let next = locked(&self.client.context().rebalanced).pop_front();
            let Some(rebalanced) = next else {
                return Ok(any);
            };
            any = true;
            match rebalanced {
                Rebalanced::Assigned(partitions) => self.assign(&partitions)?,
                Rebalanced::Revoked(places) => {
                    self.queues.retain(|(place, _)| !places.contains(place))
                }
            }
        }
    }

    /// Each partition has its queue before the assignment takes effect, so that none of its records comes past it.
    fn assign(&mut self, partitions: &TopicPartitionList) -> Result<(), String> {
        let places = places(partitions);
        for place in &places {
            let mut queue = self
                .client
                .split_partition_queue(&place.0, place.1)
                .ok_or_else(|| format!("no queue for {}/{}", place.0, place.1))?;
            let reading = thread::current();
            queue.set_nonempty_callback(move || reading.unpark());
            self.queues.retain(|(known, _)| known != place);
            self.queues.push((place.clone(), queue));
        }
        self.shared.assigned(places);
        let assigned = if self.commits {
            assign(&self.client, partitions)
        } else {
            self.client.assign(partitions)
        };
        assigned.map_err(|e| format!("assign partitions: {e}"))?;
        info!(
            partitions = partitions.count(),
            "partitions of a feed assigned"
        );
        Ok(())
    }

    /// Gives how many were read.
    fn read_queues(&mut self) -> usize {
        let mut read = 0;
        for (_, queue) in &self.queues {
            while self.shared.held().has_room() {
                match queue.poll(Duration::ZERO) {
                    Some(Ok(message)) => {
                        self.hold(&message);
                        read += 1;
                    }
                    Some(Err(e)) => self.shared.failed(&e, &e.to_string()),
                    None => break,
                }
            }
        }
        // The next look begins with another partition.
        if !self.queues.is_empty() {
            self.queues.rotate_left(1);
        }
        if read > 0 {
            self.shared.arrived.notify_one();
        }
        read
    }

    fn hold(&self, message: &BorrowedMessage<'_>) {
        let mut held = self.shared.held();
        let place: Place = (message.topic().into(), message.partition());
        let Some(epoch) = held.assigned.get(&place).copied() else {
            return;
        };
        counter!(metrics::RECORDS, "topic" => place.0.clone()).increment(1);
        held.push(Record {
            origin: Origin {
                topic: place.0,
                partition: place.1,
                offset: message.offset(),
                epoch,
            },
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
        });
    }

    /// Commits what was asked for. What Kafka refuses, as during a rebalance, is asked for again until it is accepted or its
    /// partition has gone.
    fn commit(&mut self) {
        if self
            .refused_at
            .is_some_and(|at| at.elapsed() < COMMIT_AGAIN)
        {
            return;
        }
        self.refused_at = None;
        loop {
            let next = self.shared.next_commit();
            let Some(request) = next else { return };
            let (is_ours, positions) = self.positions(&request.origins);
            if self.commits && !positions.is_empty() {
                let committed = self.client.commit(&list(&positions), CommitMode::Sync);
                if let Err(e) = committed {
                    counter!(metrics::COMMIT_ERRORS).increment(1);
                    warn!(error = %e, partitions = positions.len(), "offsets were not committed; again at once");
                    self.refused_at = Some(Instant::now());
                    self.shared.commit_again(request);
                    return;
                }
            }
            // Nobody may be waiting any more.
            let _ = request.done.send(is_ours);
        }
    }

    /// Which of them are still ours, and the offset to read next of each partition.
    fn positions(&self, origins: &[Origin]) -> (Vec<bool>, BTreeMap<Place, i64>) {
        let held = self.shared.held();
        let mut positions = BTreeMap::new();
        let is_ours = |origin: &Origin| {
            let is_ours = is_current(&held.assigned, origin);
            if is_ours {
                let place = (origin.topic.clone(), origin.partition);
                let position: &mut i64 = positions.entry(place).or_default();
                *position = (*position).max(origin.offset + 1);
            }
            is_ours
        };
        (origins.iter().map(is_ours).collect(), positions)
    }
}

fn list(positions: &BTreeMap<Place, i64>) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(positions.len());
    for ((topic, partition), position) in positions {
        if let Err(e) = list.add_partition_offset(topic, *partition, Offset::Offset(*position)) {
            error!(%topic, partition, position, error = %e, "commit offset");
        }
    }
    list
}

fn places(partitions: &TopicPartitionList) -> Vec<Place> {
    let elements = partitions.elements();
    elements
        .iter()
        .map(|of| (of.topic().into(), of.partition()))
        .collect()
}

/// A rebalance that the reading thread has to act on.
enum Rebalanced {
    /// To be split into queues and assigned.
    Assigned(TopicPartitionList),
    /// Already given up; their queues can go.
    Revoked(Vec<Place>),
}

struct Context {
    shared: Arc<Shared>,
    rebalanced: Mutex<VecDeque<Rebalanced>>,
}

impl ConsumerContext for Context {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        event: RDKafkaRespErr,
        partitions: &mut TopicPartitionList,
    ) {
        let carried_out = match event {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS if self.shared.is_stopping() => {
                assign(consumer, partitions)
            }
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => {
                locked(&self.rebalanced).push_back(Rebalanced::Assigned(partitions.clone()));
                return;
            }
            _ => {
                let places = places(partitions);
                self.shared.gave_up(&places);
                info!(partitions = places.len(), "partitions of a feed revoked");
                locked(&self.rebalanced).push_back(Rebalanced::Revoked(places));
                unassign(consumer, partitions)
            }
        };
        if let Err(e) = carried_out {
            error!(error = %e, "carry out a rebalance");
        }
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        context::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.shared.failed(&error, reason);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(bytes: usize) -> Record {
        Record {
            origin: Origin {
                topic: "lapse.replies".into(),
                partition: 0,
                offset: 0,
                epoch: 1,
            },
            key: None,
            value: Some(vec![b'x'; bytes]),
        }
    }

    #[test]
    fn what_is_held_is_bounded_in_records_and_in_bytes() {
        let mut small = Held::default();
        while small.has_room() {
            small.push(record(100));
        }
        assert_eq!(small.records.len(), HELD_MAX);

        let mut large = Held::default();
        while large.has_room() {
            large.push(record(1_000_000));
        }
        assert_eq!(large.records.len(), 17);
        assert_eq!(large.take(1).len(), 1);
        assert!(large.has_room());
    }
}
