//! The seam to what is read once and in order: replies, and commands on their way to a participant. One implementation on
//! Kafka, one in memory for simulations. Timers have their own seam, [`crate::bus::Bus`].
//!
//! ```text
//! next ─► a batch of records ─► whatever it takes ─► commit ─► next
//! ```
//! Relies on its reader to finish a batch before it asks for the next one. Never: forgets a record that was not committed:
//! it comes again, here after a restart or to whoever has its partition then, so whatever follows from it must bear
//! repetition.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tokio::sync::Notify;

use crate::bus::Origin;

/// A record as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Where from.
    pub origin: Origin,
    /// Raw key.
    pub key: Option<Vec<u8>>,
    /// Raw value; none for a tombstone.
    pub value: Option<Vec<u8>>,
}

/// Topics read as a member of a group.
#[async_trait]
pub trait Feed: Send + Sync + 'static {
    /// Up to `max` records, those of one partition in order; waits until there is at least one. Cancel safe.
    async fn next(&self, max: usize) -> Vec<Record>;

    /// Whether any partition is read here now. A member of a group may have none: others read what answers it.
    fn has_partitions(&self) -> bool;

    /// Why nobody can read the topics, in words; none where they are read, here or by another member.
    fn trouble(&self) -> Option<String>;

    /// Commits everything up to these, and waits for it; true for each that is committed. False: its partition was given
    /// up meanwhile, or the feed is closed, and somebody else gets the record again.
    async fn commit(&self, origins: &[Origin]) -> Vec<bool>;

    /// Leaves the group; nothing comes out afterwards.
    async fn close(&self);
}

/// Splits items into rounds: in each, no key comes twice, and items of one key keep their order.
pub fn rounds<T, K: Eq + Hash>(
    items: impl IntoIterator<Item = T>,
    key: impl Fn(&T) -> K,
) -> Vec<Vec<T>> {
    let mut rounds: Vec<(HashSet<K>, Vec<T>)> = Vec::new();
    for item in items {
        let key = key(&item);
        // A key is in every round up to its last one.
        let at = rounds.partition_point(|(seen, _)| seen.contains(&key));
        if at == rounds.len() {
            rounds.push(Default::default());
        }
        let (seen, round) = &mut rounds[at];
        seen.insert(key);
        round.push(item);
    }
    rounds.into_iter().map(|(_, round)| round).collect()
}

/// A feed in memory: one partition per topic, any number of readers one after the other.
#[derive(Default)]
pub struct MemoryFeed {
    state: Mutex<Memory>,
    arrived: Notify,
}

#[derive(Default)]
struct Memory {
    epoch: u64,
    appended: BTreeMap<Arc<str>, i64>,
    waiting: VecDeque<Record>,
    handed_out: VecDeque<Record>,
}

impl MemoryFeed {
    /// Appends a record.
    pub fn append(&self, topic: &str, key: &str, value: &[u8]) {
        let mut state = self.state();
        let topic: Arc<str> = topic.into();
        let next = state.appended.entry(topic.clone()).or_default();
        let offset = *next;
        *next += 1;
        let epoch = state.epoch;
        state.waiting.push_back(Record {
            origin: Origin {
                topic,
                partition: 0,
                offset,
                epoch,
            },
            key: Some(key.as_bytes().to_vec()),
            value: Some(value.to_vec()),
        });
        drop(state);
        self.arrived.notify_one();
    }

    /// As after a crash of the reader: what is not committed comes again, and commits from before are refused.
    pub fn restart(&self) {
        let mut state = self.state();
        state.epoch += 1;
        let epoch = state.epoch;
        let again: Vec<Record> = state.handed_out.drain(..).collect();
        again
            .into_iter()
            .rev()
            .for_each(|record| state.waiting.push_front(record));
        for record in &mut state.waiting {
            record.origin.epoch = epoch;
        }
        drop(state);
        self.arrived.notify_one();
    }

    /// Records that are not committed.
    pub fn open(&self) -> usize {
        let state = self.state();
        state.waiting.len() + state.handed_out.len()
    }

    fn take(&self, max: usize) -> Vec<Record> {
        let mut state = self.state();
        let count = max.min(state.waiting.len());
        let records: Vec<Record> = state.waiting.drain(..count).collect();
        state.handed_out.extend(records.iter().cloned());
        records
    }

    fn state(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Feed for MemoryFeed {
    async fn next(&self, max: usize) -> Vec<Record> {
        loop {
            let records = self.take(max);
            if !records.is_empty() {
                return records;
            }
            self.arrived.notified().await;
        }
    }

    fn has_partitions(&self) -> bool {
        true
    }

    fn trouble(&self) -> Option<String> {
        None
    }

    async fn commit(&self, origins: &[Origin]) -> Vec<bool> {
        let mut state = self.state();
        let current = state.epoch;
        let is_current = |origin: &Origin| origin.epoch == current;
        for origin in origins.iter().filter(|origin| is_current(origin)) {
            state.handed_out.retain(|record| {
                record.origin.topic != origin.topic || record.origin.offset > origin.offset
            });
        }
        origins.iter().map(is_current).collect()
    }

    async fn close(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_comes_once_a_round_and_keeps_its_order() {
        let items = [("a", 1), ("b", 1), ("a", 2), ("a", 3), ("b", 2)];
        let rounds = rounds(items, |(key, _)| *key);
        assert_eq!(
            rounds,
            [
                vec![("a", 1), ("b", 1)],
                vec![("a", 2), ("b", 2)],
                vec![("a", 3)]
            ]
        );
    }

    #[tokio::test]
    async fn what_is_not_committed_comes_again_and_an_old_commit_is_refused() {
        let feed = MemoryFeed::default();
        for value in [b"1", b"2", b"3"] {
            feed.append("replies", "k", value);
        }
        let first = feed.next(2).await;
        assert_eq!(feed.commit(&[first[0].origin.clone()]).await, [true]);

        feed.restart();

        assert_eq!(feed.commit(&[first[1].origin.clone()]).await, [false]);
        let again = feed.next(10).await;
        let values: Vec<_> = again.iter().filter_map(|r| r.value.as_deref()).collect();
        assert_eq!(values, [&b"2"[..], b"3"]);
        assert_eq!(feed.commit(&[again[1].origin.clone()]).await, [true]);
        assert_eq!(feed.open(), 0);
    }
}
