//! How often a participant is called after an outage: as often as usual, in larger batches.
//!
//! Relies on its caller to count only calls of good times. Never: holds the backlog up; where batches are too small for
//! that, calls come more often.

use chrono::TimeDelta;
use lapse_sagas::Timestamp;

/// What is usual is averaged over about so many seconds.
const OVER_S: f64 = 10.0;
/// The backlog is to go at this many times the usual rate of commands.
const DRAIN: f64 = 5.0;
/// So many calls per second are always allowed.
const FLOOR_PER_S: f64 = 5.0;

/// Calls and commands per second, and when the next call may begin.
#[derive(Debug, Default)]
pub struct Pace {
    calls: Average,
    commands: Average,
    next_at: Option<Timestamp>,
}

impl Pace {
    /// A call of so many commands begins, in good times.
    pub fn usual(&mut self, commands: usize, now: Timestamp) {
        self.calls.add(1.0, now);
        self.commands.add(commands as f64, now);
    }

    /// When the next call may begin.
    pub fn next_at(&self) -> Option<Timestamp> {
        self.next_at
    }

    /// A call begins, of at most `batch_max` commands, after an outage.
    pub fn paced(&mut self, batch_max: usize, now: Timestamp) {
        let drain = DRAIN * self.commands.per_second() / batch_max.max(1) as f64;
        let per_second = self.calls.per_second().max(drain).max(FLOOR_PER_S);
        self.next_at = Some(now + TimeDelta::microseconds((1e6 / per_second) as i64));
    }
}

/// Events per second, the older ones counting less.
#[derive(Debug, Default)]
struct Average {
    weighted: f64,
    first_at: Option<Timestamp>,
    at: Option<Timestamp>,
}

impl Average {
    fn add(&mut self, events: f64, now: Timestamp) {
        let first_at = *self.first_at.get_or_insert(now);
        let at = self.at.replace(now).unwrap_or(first_at);
        let passed_s = (now - at).as_seconds_f64().max(0.0);
        self.weighted = self.weighted * (-passed_s / OVER_S).exp() + events / OVER_S;
    }

    fn per_second(&self) -> f64 {
        let (Some(first_at), Some(at)) = (self.first_at, self.at) else {
            return 0.0;
        };
        // It has not been watched for long: as much as there can be in so short a time.
        let watched_s = (at - first_at).as_seconds_f64().max(1.0);
        self.weighted / (1.0 - (-watched_s / OVER_S).exp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + TimeDelta::milliseconds(ms)
    }

    fn usually(every_ms: i64, commands: usize, seconds: i64) -> Pace {
        let mut pace = Pace::default();
        for ms in (0..seconds * 1_000).step_by(every_ms as usize) {
            pace.usual(commands, at(ms));
        }
        pace
    }

    fn gap_ms(pace: &mut Pace, batch_max: usize) -> i64 {
        pace.paced(batch_max, at(0));
        (pace.next_at().unwrap() - at(0)).num_milliseconds()
    }

    #[test]
    fn as_often_as_usual_whether_watched_for_long_or_not() {
        for seconds in [3, 5, 60] {
            let gap = gap_ms(&mut usually(50, 10, seconds), 500);
            assert!((46..=52).contains(&gap), "{gap} ms after {seconds} s");
        }
    }

    #[test]
    fn more_often_where_batches_are_too_small_for_the_backlog() {
        let gap = gap_ms(&mut usually(100, 1, 60), 1);
        assert!((18..=21).contains(&gap), "{gap} ms");
    }

    #[test]
    fn five_times_a_second_at_least() {
        assert_eq!(gap_ms(&mut Pace::default(), 500), 200);
    }
}
