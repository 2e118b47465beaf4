//! The seam to Kafka: due timers in, messages out. One implementation on Kafka, one in memory for simulations.
//!
//! Never: decides what a record means; intake does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use lapse_sagas::{Span, Timestamp};
use tokio::sync::Notify;

/// Short name of the topic on which participants answer.
pub const REPLIES: &str = "replies";

/// Short name of the topic of a participant's commands.
pub fn commands_topic(participant: &str) -> String {
    format!("commands.{participant}")
}

/// When a record falls due, from its value; given by intake, which knows the definitions. Arguments: value, delay of
/// the bucket topic it came on (none: the schedule topic), time it was appended, now.
pub type DueTime = Arc<
    dyn Fn(&[u8], Option<Span>, Timestamp, Timestamp) -> Result<Timestamp, BadRecord> + Send + Sync,
>;

/// The time that decides: monotonic, anchored to the database's clock.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Where a record came from and under which assignment; handed back when it is done with.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Origin {
    /// Topic, with prefix.
    pub topic: Arc<str>,
    /// Partition.
    pub partition: i32,
    /// Offset.
    pub offset: i64,
    /// Counts assignments of this partition to this process; acknowledgements of an older one are ignored.
    pub epoch: u64,
}

/// A record that needs a decision now: it is due, or it can't be read.
#[derive(Clone, Debug)]
pub struct Ripe {
    /// Where from.
    pub origin: Origin,
    /// Raw key.
    pub key: Option<Vec<u8>>,
    /// Raw value, shared.
    pub value: Arc<[u8]>,
    /// Header names and values, as text.
    pub headers: Vec<(String, String)>,
    /// When the broker got it.
    pub appended_at: Timestamp,
    /// When it fell due, or why it can't be read.
    pub due: Result<Timestamp, BadRecord>,
}

/// Why a record can't become a saga.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRecord {
    /// Stable code, such as `not_json`.
    pub reason: &'static str,
    /// What, where, what to do.
    pub detail: String,
}

/// A message to produce.
#[derive(Clone, Debug, PartialEq)]
pub struct Publish {
    /// Short name: `outcomes`, `alerts`, `dead-letters`; the bus adds the prefix.
    pub topic: String,
    /// Kafka key.
    pub key: String,
    /// Payload.
    pub payload: String,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Delivery {
    /// It is on its topic: there is a delivery report.
    Delivered,
    /// It is certainly on no topic and never will be.
    NotSent,
    /// Nobody knows.
    Unknown,
}

impl Delivery {
    /// The name, as in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Delivery::Delivered => "sent",
            Delivery::NotSent => "not_sent",
            Delivery::Unknown => "unknown",
        }
    }
}

/// Where messages go that are not to be repeated blindly.
#[async_trait]
pub trait Outlet: Send + Sync + 'static {
    /// Produces messages; what became of each. After one that failed, those of its key may not be sent.
    async fn deliver(&self, messages: Vec<Publish>) -> Vec<Delivery>;
}

/// Kafka as the coordinator sees it.
#[async_trait]
pub trait Bus: Outlet {
    /// Up to `max` ripe records, earliest due first; waits until there is at least one. Cancel safe.
    async fn ripe(&self, max: usize) -> Vec<Ripe>;

    /// These are durably dealt with; offsets may move past them once everything before is too.
    fn done(&self, origins: &[Origin]);

    /// Gives records back: they will be handed out again.
    fn put_back(&self, records: Vec<Ripe>);

    /// Produces messages; true for each that has its delivery report. Order within a key is kept.
    async fn publish(&self, messages: Vec<Publish>) -> Vec<bool>;

    /// Whether anything was lost or may have been since the last call: offset gaps, a committed offset below the low
    /// watermark. The sweep runs at once when so.
    fn take_suspicion(&self) -> bool;

    /// Commits what is done and leaves the group; nothing comes out afterwards.
    async fn close(&self);

    /// Why no records are being received, in words; none while partitions are assigned and were polled lately.
    fn trouble(&self) -> Option<String>;

    /// Whether records are being received.
    fn is_ready(&self) -> bool {
        self.trouble().is_none()
    }
}

/// Kafka in memory, on somebody's clock, for simulations. One partition per topic; nothing is ever lost.
pub struct MemoryBus {
    clock: Clock,
    state: Mutex<Memory>,
    changed: Notify,
}

#[derive(Default)]
struct Memory {
    epoch: u64,
    next_offset: i64,
    records: BTreeMap<(Arc<str>, i64), Kept>,
    published: Vec<Publish>,
    refuses_to_publish: bool,
    is_away: bool,
    queued: Vec<Publish>,
    suspicion: bool,
}

struct Kept {
    key: Option<Vec<u8>>,
    value: Arc<[u8]>,
    appended_at: Timestamp,
    due: Result<Timestamp, BadRecord>,
    handed_out: bool,
}

impl MemoryBus {
    /// An empty bus.
    pub fn new(clock: Clock) -> Self {
        MemoryBus {
            clock,
            state: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Appends a record that falls due then, or can't be read.
    pub fn append(&self, topic: &str, key: &str, value: &[u8], due: Result<Timestamp, BadRecord>) {
        let mut state = self.state();
        let kept = Kept {
            key: Some(key.as_bytes().to_vec()),
            value: value.into(),
            appended_at: (self.clock)(),
            due,
            handed_out: false,
        };
        let offset = state.next_offset;
        state.next_offset += 1;
        state.records.insert((topic.into(), offset), kept);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Says that the clock has moved.
    pub fn tick(&self) {
        self.changed.notify_waiters();
    }

    /// As after a crash: what is not done is handed out again, and acknowledgements from before are ignored.
    pub fn restart(&self) {
        let mut state = self.state();
        state.epoch += 1;
        state
            .records
            .values_mut()
            .for_each(|kept| kept.handed_out = false);
        drop(state);
        self.changed.notify_waiters();
    }

    /// From now on publishing fails, or works again.
    pub fn set_refuses_to_publish(&self, refuses: bool) {
        self.state().refuses_to_publish = refuses;
    }

    /// From now on nothing is delivered and nothing said, as by a client without a broker, or all of it at once.
    pub fn set_is_away(&self, is_away: bool) {
        let mut state = self.state();
        state.is_away = is_away;
        if !is_away {
            let queued = std::mem::take(&mut state.queued);
            state.published.extend(queued);
        }
    }

    /// As after an offset gap.
    pub fn suspect(&self) {
        self.state().suspicion = true;
    }

    /// Everything published so far.
    pub fn published(&self) -> Vec<Publish> {
        self.state().published.clone()
    }

    /// Records that are not done.
    pub fn open(&self) -> usize {
        self.state().records.len()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_ripe(&self, max: usize) -> Vec<Ripe> {
        let now = (self.clock)();
        let mut state = self.state();
        let epoch = state.epoch;
        let is_ripe =
            |kept: &Kept| !kept.handed_out && kept.due.as_ref().map_or(true, |due| *due <= now);
        let mut ripe: Vec<_> = state
            .records
            .iter_mut()
            .filter(|(_, kept)| is_ripe(kept))
            .collect();
        ripe.sort_by_key(|(_, kept)| kept.due.clone().ok());
        ripe.truncate(max);
        let hand_out = |((topic, offset), kept): (&(Arc<str>, i64), &mut Kept)| {
            kept.handed_out = true;
            let origin = Origin {
                topic: topic.clone(),
                partition: 0,
                offset: *offset,
                epoch,
            };
            Ripe {
                origin,
                key: kept.key.clone(),
                value: kept.value.clone(),
                headers: Vec::new(),
                appended_at: kept.appended_at,
                due: kept.due.clone(),
            }
        };
        ripe.into_iter().map(hand_out).collect()
    }
}

#[async_trait]
impl Outlet for MemoryBus {
    async fn deliver(&self, messages: Vec<Publish>) -> Vec<Delivery> {
        if self.state().is_away {
            self.state().queued.extend(messages);
            return std::future::pending().await;
        }
        let delivery = |arrived| match arrived {
            true => Delivery::Delivered,
            false => Delivery::NotSent,
        };
        let delivered = self.publish(messages).await;
        delivered.into_iter().map(delivery).collect()
    }
}

#[async_trait]
impl Bus for MemoryBus {
    async fn ripe(&self, max: usize) -> Vec<Ripe> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let ripe = self.take_ripe(max);
            if !ripe.is_empty() {
                return ripe;
            }
            changed.await;
        }
    }

    fn done(&self, origins: &[Origin]) {
        let mut state = self.state();
        for origin in origins
            .iter()
            .filter(|origin| origin.epoch == state.epoch)
            .cloned()
            .collect::<Vec<_>>()
        {
            state.records.remove(&(origin.topic, origin.offset));
        }
    }

    fn put_back(&self, records: Vec<Ripe>) {
        let mut state = self.state();
        let epoch = state.epoch;
        for Ripe { origin, .. } in records
            .into_iter()
            .filter(|ripe| ripe.origin.epoch == epoch)
        {
            if let Some(kept) = state.records.get_mut(&(origin.topic, origin.offset)) {
                kept.handed_out = false;
            }
        }
        drop(state);
        self.changed.notify_waiters();
    }

    async fn publish(&self, messages: Vec<Publish>) -> Vec<bool> {
        let mut state = self.state();
        let takes = !state.refuses_to_publish && !state.is_away;
        let delivered = vec![takes; messages.len()];
        if takes {
            state.published.extend(messages);
        }
        delivered
    }

    fn take_suspicion(&self) -> bool {
        std::mem::take(&mut self.state().suspicion)
    }

    async fn close(&self) {}

    fn trouble(&self) -> Option<String> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;

    #[tokio::test]
    async fn records_in_memory_ripen_with_the_clock_and_come_again_after_a_restart() {
        let ms = Arc::new(AtomicI64::new(0));
        let clock = ms.clone();
        let at_ms = |ms| Timestamp::from_timestamp_millis(ms).expect("in range");
        let bus = MemoryBus::new(Arc::new(move || at_ms(clock.load(Ordering::Relaxed))));
        let bus = Arc::new(bus);
        bus.append("schedule", "late", b"{}", Ok(at_ms(20)));
        bus.append("schedule", "early", b"{}", Ok(at_ms(10)));
        let waiting = tokio::spawn({
            let bus = bus.clone();
            async move { bus.ripe(10).await }
        });
        ms.store(20, Ordering::Relaxed);
        while !waiting.is_finished() {
            bus.tick();
            tokio::task::yield_now().await;
        }
        let ripe = waiting.await.expect("ripe");
        let keys: Vec<_> = ripe.iter().filter_map(|ripe| ripe.key.as_deref()).collect();
        assert_eq!(keys, [&b"early"[..], b"late"]);

        bus.done(&[ripe[0].origin.clone()]);
        bus.restart();
        bus.done(&[ripe[1].origin.clone()]);

        let again = bus.ripe(10).await;
        assert_eq!(again.len(), 1, "what was not done before the restart");
        bus.put_back(again);
        bus.done(&[bus.ripe(10).await.remove(0).origin]);
        assert_eq!(bus.open(), 0);
    }
}
