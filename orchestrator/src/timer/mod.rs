//! Windows, watermarks and hops: pure, tested on a virtual clock.
//!
//! For: the Kafka consumer, which fills a [`Window`] per partition, asks [`decide`] what to do with a record that woke
//! up, and commits what the [`Watermark`] says. Relies on nothing but its arguments: the time is one of them. Never:
//! touches Kafka, waits, or fires a timer early; whatever is rounded is rounded up.

mod bucket;
mod hop;
mod watermark;
mod window;

#[cfg(test)]
mod simulation;

pub use bucket::{Buckets, LONGEST_DELAY, MAX_HOPS, name};
pub use hop::{Next, Refusal, Stay, decide, wake_at};
pub use watermark::{Receipt, Watermark};
pub use window::{Held, Limits, Window};
