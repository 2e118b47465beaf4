//! How many commands may be under way to one participant: as many as there are, until a call goes wrong.
//!
//! ```text
//! none ──bad call──► half of what is under way ──bad──► half ──…──► 1
//!  ▲ │                    │ ▲                                        │
//!  │ └─breaker closes─► a tenth of the usual                         │
//!  └───full────────── doubled by good calls, four times a second ◄───┘
//! ```
//! Relies on its caller to report every call twice, at its beginning and at its end. Never: goes below one.

use chrono::TimeDelta;
use lapse_sagas::Timestamp;

/// At most one doubling in this time: from a tenth to all of it takes a second, from 1 to 2,000 three.
const DOUBLED_EVERY: TimeDelta = TimeDelta::milliseconds(250);
/// A participant that comes back begins with this share of what it usually had under way.
const SLOW_START: f64 = 0.1;
/// What is usual is the most there was, forgotten by so much with each call.
const REMEMBERED: f64 = 0.999;

/// Commands under way, and how many there may be.
#[derive(Debug)]
pub struct Limit {
    in_flight: usize,
    usual: f64,
    commands: Option<usize>,
    raised_at: Option<Timestamp>,
    lowered_at: Option<Timestamp>,
    full: usize,
}

impl Limit {
    /// No limit yet; one that has grown to `full` commands is dropped again.
    pub fn new(full: usize) -> Limit {
        Limit {
            in_flight: 0,
            usual: 1.0,
            commands: None,
            raised_at: None,
            lowered_at: None,
            full,
        }
    }

    /// Commands under way.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// From how many on there is no limit.
    pub fn full(&self) -> usize {
        self.full
    }

    /// How many there may be.
    pub fn commands(&self) -> Option<usize> {
        self.commands
    }

    /// How many more may go out now.
    pub fn room(&self) -> usize {
        self.commands
            .map_or(usize::MAX, |limit| limit.saturating_sub(self.in_flight))
    }

    /// A call of so many commands begins.
    pub fn began(&mut self, commands: usize) {
        self.in_flight += commands;
        if self.commands.is_none() {
            self.usual = (self.usual * REMEMBERED).max(self.in_flight as f64);
        }
    }

    /// They are through, whatever came of it.
    pub fn ended(&mut self, commands: usize) {
        self.in_flight = self.in_flight.saturating_sub(commands);
    }

    /// A call was answered.
    pub fn good(&mut self, now: Timestamp) {
        let Some(limit) = self.commands else { return };
        if self.raised_at.is_some_and(|at| now - at < DOUBLED_EVERY) {
            return;
        }
        self.raised_at = Some(now);
        self.commands = Some(limit * 2).filter(|limit| *limit < self.full);
    }

    /// A call had no answer, or the participant has too much to do. What went out before the limit was lowered can't tell
    /// whether that was enough. Where replies come later nothing may be under way by then; what is usual tells.
    pub fn bad(&mut self, sent_at: Timestamp, now: Timestamp) {
        if self.lowered_at.is_some_and(|at| sent_at < at) {
            return;
        }
        let under_way = match self.in_flight {
            0 => self.usual as usize,
            commands => commands,
        };
        let had = self.commands.unwrap_or(under_way).min(under_way);
        self.commands = Some((had / 2).max(1));
        self.raised_at = Some(now);
        self.lowered_at = Some(now);
    }

    /// What was learnt is too old to go by.
    pub fn forget(&mut self) {
        self.commands = None;
    }

    /// It answers again after a while without.
    pub fn slow_start(&mut self, now: Timestamp) {
        self.commands = Some(((self.usual * SLOW_START) as usize).max(1));
        self.raised_at = Some(now);
        self.lowered_at = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + TimeDelta::milliseconds(ms)
    }

    fn busy(commands: usize) -> Limit {
        let mut limit = Limit::new(2_000);
        limit.began(commands);
        limit
    }

    #[test]
    fn there_is_no_limit_until_a_call_goes_wrong() {
        let mut limit = busy(1_500);
        assert_eq!(limit.room(), usize::MAX);
        limit.bad(at(0), at(0));
        assert_eq!((limit.commands(), limit.room()), (Some(750), 0));
    }

    #[test]
    fn bad_calls_halve_it_down_to_one_and_good_ones_double_it_until_it_is_gone() {
        let mut limit = busy(8);
        for _ in 0..9 {
            limit.bad(at(0), at(0));
        }
        assert_eq!(limit.commands(), Some(1));
        for n in 1..11 {
            limit.good(at(n * 250));
            assert_eq!(limit.commands(), Some(1 << n));
        }
        limit.good(at(11 * 250));
        assert_eq!(limit.commands(), None);
    }

    #[test]
    fn a_reply_that_is_missed_halves_what_is_usual() {
        let mut limit = busy(400);
        limit.ended(400);
        limit.bad(at(0), at(0));
        assert_eq!(limit.commands(), Some(200));
    }

    #[test]
    fn all_that_was_under_way_together_lowers_it_once() {
        let mut limit = busy(1_000);
        for ms in 5_000..5_100 {
            limit.bad(at(0), at(ms));
        }
        assert_eq!(limit.commands(), Some(500));
        limit.bad(at(5_000), at(10_000));
        assert_eq!(limit.commands(), Some(250));
    }

    #[test]
    fn it_grows_no_faster_than_four_times_a_second() {
        let mut limit = busy(40);
        limit.slow_start(at(0));
        for ms in 0..1_000 {
            limit.good(at(ms));
        }
        assert_eq!(
            limit.commands(),
            Some(4 * 8),
            "a tenth, doubled three times"
        );
    }

    #[test]
    fn what_is_under_way_counts_until_it_is_through() {
        let mut limit = busy(10);
        limit.bad(at(0), at(0));
        limit.ended(8);
        assert_eq!((limit.in_flight(), limit.room()), (2, 3));
    }
}
