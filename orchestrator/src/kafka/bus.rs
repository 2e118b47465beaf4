//! [`Bus`] on Kafka.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use ::metrics::counter;
use async_trait::async_trait;
use tracing::info;

use super::Error;
use super::assignment::{Assignment, PartitionView};
use super::consumer::{Consumer, Means};
use super::metrics;
use super::poll_thread;
use super::producer::Producer;
use super::settings::Settings;
use super::shared::Shared;
use crate::bus::{Bus, Clock, Delivery, DueTime, Origin, Outlet, Publish, Ripe};

/// Kafka as the coordinator sees it: a poll thread, a producer, and what they share.
pub struct KafkaBus {
    shared: Arc<Shared>,
    producer: Arc<Producer>,
    poll_thread: Mutex<Option<JoinHandle<()>>>,
}

impl KafkaBus {
    /// Starts reading. Returns at once; [`Bus::trouble`] says how far it is.
    pub fn start(settings: &Settings, due_time: DueTime, clock: Clock) -> Result<Self, Error> {
        let shares = settings.shares()?;
        let assignment = Assignment::new(settings.checked_buckets()?, shares.window);
        let shared = Arc::new(Shared::new(assignment, clock));
        let producer = Arc::new(Producer::new(settings, shared.clone())?);
        let means = Arc::new(Means {
            settings: settings.clone(),
            inputs: settings.inputs(),
            due_time,
            shared: shared.clone(),
            producer: producer.clone(),
        });
        let consumer = Consumer::new(&means)?;
        info!(
            memory_mb = settings.memory_mb,
            prefetch_kb_per_partition = shares.prefetch_kb,
            window_records_per_partition = shares.window.records,
            window_kb_per_partition = shares.window.bytes / 1_024,
            brokers = settings.brokers,
            group = settings.group,
            "reading timers from kafka"
        );
        let handle = thread::Builder::new()
            .name("kafka-poll".into())
            .spawn(move || poll_thread::run(&means, consumer))
            .map_err(|e| Error::Settings(format!("start the poll thread: {e}")))?;
        Ok(KafkaBus {
            shared,
            producer,
            poll_thread: Mutex::new(Some(handle)),
        })
    }

    /// Commits what is done, leaves the group and returns, within a few seconds. Acknowledgements after it are ignored.
    pub async fn stop(&self) {
        self.shared.stop();
        let handle = self
            .poll_thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(handle) = handle {
            // A panic on the poll thread was caught and logged there.
            let _ = tokio::task::spawn_blocking(move || handle.join()).await;
        }
    }

    /// What is held of each partition.
    pub fn partitions(&self) -> Vec<PartitionView> {
        self.shared.assignment().view(self.shared.now())
    }
}

impl Drop for KafkaBus {
    /// Tells the poll thread to leave, without waiting for it.
    fn drop(&mut self) {
        self.shared.stop();
    }
}

#[async_trait]
impl Outlet for KafkaBus {
    async fn deliver(&self, messages: Vec<Publish>) -> Vec<Delivery> {
        self.producer.deliver(&messages).await
    }
}

#[async_trait]
impl Bus for KafkaBus {
    async fn ripe(&self, max: usize) -> Vec<Ripe> {
        loop {
            let (ripe, more) = {
                let mut assignment = self.shared.assignment();
                (assignment.take_ripe(max), assignment.has_ripe())
            };
            if more {
                self.shared.ripened.notify_one();
            }
            if !ripe.is_empty() {
                return ripe;
            }
            self.shared.ripened.notified().await;
        }
    }

    fn done(&self, origins: &[Origin]) {
        let mut assignment = self.shared.assignment();
        let stale = origins
            .iter()
            .filter(|origin| !assignment.done(origin))
            .count();
        drop(assignment);
        counter!(metrics::STALE_DONE).increment(stale as u64);
        self.shared.wake_poll_thread();
    }

    fn put_back(&self, records: Vec<Ripe>) {
        let mut assignment = self.shared.assignment();
        records
            .into_iter()
            .for_each(|ripe| assignment.put_back(ripe));
        drop(assignment);
        self.shared.ripened.notify_one();
    }

    async fn publish(&self, messages: Vec<Publish>) -> Vec<bool> {
        self.producer.publish(messages).await
    }

    fn take_suspicion(&self) -> bool {
        self.shared.take_suspicion()
    }

    async fn close(&self) {
        self.stop().await;
    }

    fn trouble(&self) -> Option<String> {
        self.shared.health.trouble()
    }
}
