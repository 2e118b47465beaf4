//! The time that decides: the coordinator database's, carried forward by a monotonic clock between looks at it.
//!
//! Never early: the anchor is the database's time when it answered, taken as the time when the answer arrived, so this
//! clock is behind the database's by at most one round trip and never ahead of it. Never steps back.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use chrono::TimeDelta;
use lapse_sagas::Timestamp;

use crate::store::{self, Store};

/// Tells the time.
pub trait Clock: Send + Sync + 'static {
    /// Now, by the clock that decides.
    fn now(&self) -> Timestamp;
}

/// The database's clock. Call [`Anchored::look`] every few seconds.
pub struct Anchored {
    store: Arc<dyn Store>,
    anchor: Mutex<Anchor>,
}

struct Anchor {
    at: Instant,
    time: Timestamp,
    latest: Timestamp,
}

impl Anchored {
    /// Asks the database for the time.
    ///
    /// # Errors
    /// Those of [`Store::now`].
    pub async fn new(store: Arc<dyn Store>) -> Result<Anchored, store::Error> {
        let time = store.now().await?;
        let anchor = Anchor {
            at: Instant::now(),
            time,
            latest: time,
        };
        Ok(Anchored {
            store,
            anchor: Mutex::new(anchor),
        })
    }

    /// Looks again. The time shown never steps back: after a step of the database's clock it waits for it.
    ///
    /// # Errors
    /// Those of [`Store::now`]; the old anchor stays.
    pub async fn look(&self) -> Result<(), store::Error> {
        let time = self.store.now().await?;
        let mut anchor = self.anchor.lock().unwrap_or_else(PoisonError::into_inner);
        anchor.at = Instant::now();
        anchor.time = time;
        Ok(())
    }
}

impl Clock for Anchored {
    fn now(&self) -> Timestamp {
        let mut anchor = self.anchor.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = TimeDelta::from_std(anchor.at.elapsed()).unwrap_or(TimeDelta::MAX);
        let now = anchor
            .time
            .checked_add_signed(passed)
            .unwrap_or(anchor.latest);
        anchor.latest = anchor.latest.max(now);
        anchor.latest
    }
}

/// A clock that follows tokio's, which tests can stop and let jump: simulations run on it.
pub struct Simulated {
    began: tokio::time::Instant,
    time: Timestamp,
}

impl Simulated {
    /// A clock that shows `start` now.
    pub fn from(start: Timestamp) -> Simulated {
        Simulated {
            began: tokio::time::Instant::now(),
            time: start,
        }
    }
}

impl Clock for Simulated {
    fn now(&self) -> Timestamp {
        self.time + TimeDelta::from_std(self.began.elapsed()).unwrap_or(TimeDelta::MAX)
    }
}
