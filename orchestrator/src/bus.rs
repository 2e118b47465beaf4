//! The seam to Kafka: due timers in, messages out. One implementation on Kafka, one in memory for simulations.
//!
//! Never: decides what a record means; intake does.

use async_trait::async_trait;
use lapse_sagas::Timestamp;

/// Where a record came from and under which assignment; handed back when it is done with.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Origin {
    /// Topic, with prefix.
    pub topic: std::sync::Arc<str>,
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
    pub value: std::sync::Arc<[u8]>,
    /// Header names and values, as text.
    pub headers: Vec<(String, String)>,
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

/// Kafka as the coordinator sees it.
#[async_trait]
pub trait Bus: Send + Sync + 'static {
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

    /// Whether records are being received: assigned and polled lately.
    fn is_ready(&self) -> bool;
}
