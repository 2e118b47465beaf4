//! The thread that reads: keeps a consumer alive until the bus stops.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ::metrics::counter;
use tracing::error;

use super::consumer::{Broken, Consumer, Means};
use super::metrics;

/// A broken consumer is replaced after this, twice as long each time, up to so long.
const REBUILD_AFTER: Duration = Duration::from_secs(1);
const REBUILD_AFTER_AT_MOST: Duration = Duration::from_secs(30);
/// A consumer that lived for so long broke for a new reason.
const LONG_LIFE: Duration = Duration::from_secs(120);
const STOP_POLL: Duration = Duration::from_millis(50);

/// Reads until the bus stops.
pub(super) fn run(means: &Arc<Means>, first: Consumer) {
    means.shared.register_poll_thread();
    let mut consumer = Some(first);
    let mut breakages = 0;
    while let Some(mut current) = consumer.take() {
        let built_at = Instant::now();
        let read = catch_unwind(AssertUnwindSafe(|| current.read()));
        match read.unwrap_or_else(|_| Err(Broken("the poll thread panicked".into()))) {
            Ok(()) => current.leave(),
            Err(Broken(why)) => {
                breakages = if built_at.elapsed() > LONG_LIFE {
                    0
                } else {
                    breakages + 1
                };
                note(means, &why);
                current.close();
                consumer = rebuild(means, breakages);
            }
        }
    }
    means.shared.assignment().clear();
    means.shared.health.stopped();
}

/// Nothing held counts any more; reading starts again from the committed offsets.
fn note(means: &Means, why: &str) {
    error!(why, "the kafka consumer is built anew");
    counter!(metrics::REBUILDS).increment(1);
    means.shared.assignment().clear();
    means.shared.health.left();
    means.shared.health.failed(why.to_string());
}

/// None if the bus stops first.
fn rebuild(means: &Arc<Means>, breakages: u32) -> Option<Consumer> {
    let wait = REBUILD_AFTER
        .saturating_mul(1 << breakages.min(10))
        .min(REBUILD_AFTER_AT_MOST);
    let mut again_at = Instant::now() + wait;
    while !means.shared.is_stopping() {
        means.shared.health.polled();
        if Instant::now() < again_at {
            thread::park_timeout(STOP_POLL);
            continue;
        }
        match Consumer::new(means) {
            Ok(consumer) => return Some(consumer),
            Err(e) => error!(error = %e, "build the kafka consumer anew"),
        }
        again_at = Instant::now() + wait;
    }
    None
}
