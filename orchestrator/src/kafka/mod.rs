//! The only code that speaks to Kafka.
//!
//! For: timers in, messages out ([`KafkaBus`] behind [`crate::bus::Bus`]), replies and commands in
//! ([`KafkaFeed`] behind [`crate::feed::Feed`]) and the topics they need ([`topics`]). Relies
//! on librdkafka, on [`crate::timer`] for every decision about time, and on a function from intake for the due time in
//! a value. Never: knows a definition, touches Postgres, or commits an offset before everything up to it is done.
//!
//! ```text
//! poll thread:  partition queue ─► Assignment (window, watermark per partition) ─► ripe ─► Bus::ripe
//!                     ▲ only while there is room        │ not due yet
//!                     │                                 └─► hop: produced to a shorter bucket, done at its report
//!               Bus::done ─► watermark ─► commit every second, and before a partition is given up
//! ```

mod assignment;
mod bus;
mod consumer;
mod context;
mod feed;
mod health;
mod metrics;
mod outlet;
pub mod plain;
#[cfg(feature = "planted")]
mod plant;
mod poll_thread;
mod producer;
mod reach;
mod record;
mod settings;
mod shared;
mod statistics;
pub mod topics;

pub use assignment::PartitionView;
pub use bus::KafkaBus;
pub use feed::KafkaFeed;
pub use metrics::describe_metrics;
pub use outlet::KafkaOutlet;
pub use record::{DUE_HEADER, HOPPED_AT_HEADER, HOPS_HEADER, parse_due};
pub use settings::Settings;

/// Why Kafka can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The settings contradict themselves or are not accepted by the client.
    #[error("kafka settings: {0}")]
    Settings(String),
    /// The brokers don't accept our name or password.
    #[error("{0}")]
    NotAuthorised(String),
    /// The brokers didn't answer or refused.
    #[error("{doing}: {error}")]
    Broker {
        /// What was being done.
        doing: String,
        /// What the client says.
        error: String,
    },
}
