//! What retries may cost: calls that would not be made if everything went well.
//!
//! Relies on its caller for the time. Never: counts first calls; they are the work itself.

use lapse_sagas::Timestamp;

/// Retry calls per second that are always allowed: a participant without other traffic gets its retries too.
const FLOOR_PER_S: f64 = 2.0;
/// What a first call that was answered earns.
const EARNED: f64 = 0.1;
/// Retry calls at once, after quiet times.
const BURST: f64 = 20.0;

/// A bucket of tokens, one per retry call.
#[derive(Debug)]
pub struct Budget {
    tokens: f64,
    at: Option<Timestamp>,
}

impl Budget {
    /// A full one.
    pub fn new() -> Budget {
        Budget {
            tokens: BURST,
            at: None,
        }
    }

    /// Retry calls that may begin within so many seconds from now, if nothing is earned meanwhile.
    pub fn within(&self, seconds: f64, now: Timestamp) -> usize {
        (self.tokens_at(now) + seconds * FLOOR_PER_S) as usize
    }

    /// A retry call is about to begin; false if there is no token for it.
    pub fn take(&mut self, now: Timestamp) -> bool {
        self.tokens = self.tokens_at(now);
        self.at = Some(now);
        let enough = self.tokens >= 1.0;
        if enough {
            self.tokens -= 1.0;
        }
        enough
    }

    /// A first call was answered.
    pub fn earn(&mut self, now: Timestamp) {
        self.tokens = (self.tokens_at(now) + EARNED).min(BURST);
        self.at = Some(now);
    }

    fn tokens_at(&self, now: Timestamp) -> f64 {
        let passed = self
            .at
            .map_or(0.0, |at| (now - at).as_seconds_f64().max(0.0));
        (self.tokens + passed * FLOOR_PER_S).min(BURST)
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + TimeDelta::milliseconds(ms)
    }

    fn taken(budget: &mut Budget, now: Timestamp) -> usize {
        (0..1_000).take_while(|_| budget.take(now)).count()
    }

    #[test]
    fn a_burst_of_twenty_then_two_a_second() {
        let mut budget = Budget::new();
        assert_eq!(taken(&mut budget, at(0)), 20);
        assert_eq!(taken(&mut budget, at(400)), 0);
        assert_eq!(taken(&mut budget, at(3_000)), 6);
        assert_eq!(taken(&mut budget, at(3_600_000)), 20, "no more is saved up");
    }

    #[test]
    fn ten_first_calls_that_are_answered_earn_one_retry() {
        let mut budget = Budget::new();
        taken(&mut budget, at(0));
        for _ in 0..21 {
            budget.earn(at(0));
        }
        assert_eq!(taken(&mut budget, at(0)), 2);
    }

    #[test]
    fn what_may_begin_soon_counts_the_floor() {
        let mut budget = Budget::new();
        taken(&mut budget, at(0));
        assert_eq!(budget.within(5.0, at(0)), 10);
    }
}
