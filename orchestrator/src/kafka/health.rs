//! What stands between the coordinator and its records, in words.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A poll thread that was silent for longer is taken for hung.
const LONGEST_SILENCE: Duration = Duration::from_secs(1);

/// Kept by the poll thread, read by anybody.
#[derive(Debug)]
pub(super) struct Health {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    polled_at: Instant,
    stopped: bool,
    joined: bool,
    brokers_down: bool,
    missing_topics: BTreeSet<String>,
    last_error: Option<String>,
}

impl Health {
    pub fn new() -> Self {
        let state = State {
            polled_at: Instant::now(),
            stopped: false,
            joined: false,
            brokers_down: false,
            missing_topics: BTreeSet::new(),
            last_error: None,
        };
        Health {
            state: Mutex::new(state),
        }
    }

    pub fn polled(&self) {
        self.state().polled_at = Instant::now();
    }

    pub fn stopped(&self) {
        self.state().stopped = true;
    }

    /// The group has given this coordinator its partitions, or none.
    pub fn joined(&self) {
        let mut state = self.state();
        state.joined = true;
        state.brokers_down = false;
        state.last_error = None;
    }

    /// A new consumer starts from the beginning.
    pub fn left(&self) {
        self.state().joined = false;
    }

    pub fn brokers_down(&self, down: bool) {
        self.state().brokers_down = down;
    }

    pub fn failed(&self, error: String) {
        self.state().last_error = Some(error);
    }

    pub fn missing_topics(&self, missing: BTreeSet<String>) {
        self.state().missing_topics = missing;
    }

    pub fn trouble(&self) -> Option<String> {
        let state = self.state();
        let silence = state.polled_at.elapsed();
        if state.stopped {
            return Some("kafka: stopped".into());
        }
        if silence > LONGEST_SILENCE {
            return Some(format!(
                "kafka: the poll thread has been silent for {:.1} s",
                silence.as_secs_f64()
            ));
        }
        if !state.missing_topics.is_empty() {
            let names: Vec<&str> = state.missing_topics.iter().map(String::as_str).collect();
            return Some(format!(
                "kafka: topics are missing: {}; create them with `lapse topics create`",
                names.join(", ")
            ));
        }
        if state.brokers_down {
            return Some(format!("kafka: no broker can be reached{}", state.error()));
        }
        if !state.joined {
            return Some(format!(
                "kafka: not yet a member of the consumer group{}",
                state.error()
            ));
        }
        None
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn error(&self) -> String {
        self.last_error
            .as_ref()
            .map(|error| format!(" ({error})"))
            .unwrap_or_default()
    }
}
