//! Whether a participant is called at all.
//!
//! ```text
//! closed ──calls in a row without an answer──► open ──a probe is answered──► closed
//!    ▲ └─any answer: the row ends               │ └─one probe a second, no answer: open
//!    └───────────────────────────────────────────┘
//! ```
//! Relies on its caller to say what counts: a command that was answered `failed` was answered. Never: opens for one
//! command that goes wrong however often, unless nobody was reached at all.

use std::collections::BTreeSet;

use chrono::TimeDelta;
use lapse_sagas::{SagaId, Timestamp};

/// One saga a second goes ahead to see.
pub const PROBE_EVERY: TimeDelta = TimeDelta::seconds(1);
/// A row of calls begins anew after this.
const WINDOW: TimeDelta = TimeDelta::seconds(30);
/// So many calls in a row open it, …
const CALLS: u32 = 2;
/// … if so many sagas were in them: one command that hangs its participant must not stop the others.
const SAGAS: usize = 5;

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// No connection. No command can be the cause, so the number of sagas does not matter.
    Unreachable,
    /// Connected, and no answer.
    Unanswered,
    /// Nobody knows the operation, or may call it.
    Configuration,
}

impl Fault {
    /// The alert's class.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Unreachable => "unreachable",
            Fault::Unanswered => "unanswered",
            Fault::Configuration => "configuration",
        }
    }
}

/// An open breaker.
#[derive(Clone, PartialEq, Debug)]
pub struct Open {
    /// The latest fault.
    pub fault: Fault,
    /// Its words.
    pub error: String,
    /// When the latest call went out that met it.
    pub seen_at: Timestamp,
    /// Since when it is open.
    pub since: Timestamp,
    /// No probe before this.
    next_probe_at: Timestamp,
    /// A probe has met the fault too: it is not over yet.
    pub confirmed: bool,
}

/// One breaker.
#[derive(Debug, Default)]
pub struct Breaker {
    row: Option<Row>,
    open: Option<Open>,
}

/// Calls in a row without an answer.
#[derive(Debug)]
struct Row {
    began_at: Timestamp,
    calls: u32,
    unreached: u32,
    sagas: BTreeSet<SagaId>,
}

impl Breaker {
    /// What is wrong, if it is open.
    pub fn open(&self) -> Option<&Open> {
        self.open.as_ref()
    }

    /// A call was not answered. `sent_at` is when it went out.
    pub fn unanswered(
        &mut self,
        fault: Fault,
        error: &str,
        sagas: impl Iterator<Item = SagaId>,
        sent_at: Timestamp,
        now: Timestamp,
    ) {
        if let Some(open) = &mut self.open {
            if sent_at > open.since {
                open.confirmed = true;
                open.fault = fault;
                error.clone_into(&mut open.error);
                open.seen_at = open.seen_at.max(sent_at);
            }
            return;
        }
        let row = match &mut self.row {
            Some(row) if now - row.began_at <= WINDOW => row,
            row => row.insert(Row {
                began_at: now,
                calls: 0,
                unreached: 0,
                sagas: BTreeSet::new(),
            }),
        };
        row.calls += 1;
        row.unreached += u32::from(fault == Fault::Unreachable);
        let missing = SAGAS.saturating_sub(row.sagas.len());
        row.sagas.extend(sagas.take(missing));
        let enough = row.sagas.len() >= SAGAS || row.unreached >= CALLS;
        if row.calls >= CALLS && enough {
            self.open_at_once(fault, error, sent_at, now);
        }
    }

    /// Opens, or stays open.
    pub fn open_at_once(&mut self, fault: Fault, error: &str, sent_at: Timestamp, now: Timestamp) {
        self.row = None;
        let since = self.open.as_ref().map_or(now, |open| open.since);
        let next_probe_at = self
            .open
            .as_ref()
            .map_or(now + PROBE_EVERY, |open| open.next_probe_at);
        self.open = Some(Open {
            fault,
            error: error.to_owned(),
            seen_at: sent_at,
            since,
            next_probe_at,
            confirmed: sent_at > since,
        });
    }

    /// Somebody answered: the row ends. An open breaker closes only by [`Breaker::close`].
    pub fn answered(&mut self) {
        self.row = None;
    }

    /// A probe was answered; false if it was closed already.
    pub fn close(&mut self) -> bool {
        self.row = None;
        self.open.take().is_some()
    }

    /// Whether a saga that comes now is to go ahead as a probe.
    pub fn is_probe_due(&mut self, now: Timestamp) -> bool {
        let Some(open) = self.open.as_mut().filter(|open| now >= open.next_probe_at) else {
            return false;
        };
        open.next_probe_at = now + PROBE_EVERY;
        true
    }

    /// No probe before this.
    pub fn leave_alone(&mut self, until: Timestamp) {
        if let Some(open) = &mut self.open {
            open.next_probe_at = open.next_probe_at.max(until);
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + TimeDelta::milliseconds(ms)
    }

    fn sagas(ids: std::ops::Range<u128>) -> impl Iterator<Item = SagaId> {
        ids.map(|id| SagaId(Uuid::from_u128(id)))
    }

    fn unanswered(breaker: &mut Breaker, ids: std::ops::Range<u128>, ms: i64) {
        breaker.unanswered(Fault::Unanswered, "timeout", sagas(ids), at(ms), at(ms));
    }

    #[test]
    fn it_opens_for_several_calls_over_several_sagas_without_an_answer_in_between() {
        let mut breaker = Breaker::default();
        unanswered(&mut breaker, 0..500, 0);
        assert_eq!(breaker.open(), None, "one batch may hang for one command");
        breaker.answered();
        unanswered(&mut breaker, 0..500, 10);
        assert_eq!(breaker.open(), None, "the row begins anew");
        unanswered(&mut breaker, 0..8, 20);
        assert!(breaker.open().is_some());
    }

    #[test]
    fn one_saga_that_hangs_again_and_again_does_not_open_it() {
        let mut breaker = Breaker::default();
        for n in 0..20 {
            unanswered(&mut breaker, 7..8, n * 1_000);
        }
        assert_eq!(breaker.open(), None);
    }

    #[test]
    fn calls_far_apart_are_no_row() {
        let mut breaker = Breaker::default();
        unanswered(&mut breaker, 0..10, 0);
        unanswered(&mut breaker, 10..20, 31_000);
        assert_eq!(breaker.open(), None);
    }

    #[test]
    fn nobody_reached_twice_opens_it_for_whatever_saga() {
        let mut breaker = Breaker::default();
        for ms in [0, 1_000] {
            assert_eq!(breaker.open(), None);
            breaker.unanswered(Fault::Unreachable, "refused", sagas(7..8), at(ms), at(ms));
        }
        assert!(breaker.open().is_some());
    }

    #[test]
    fn an_open_one_lets_one_probe_a_second_through_and_closes_by_its_answer() {
        let mut breaker = Breaker::default();
        breaker.open_at_once(Fault::Configuration, "404", at(0), at(0));
        let probes = (0..10_000)
            .filter(|ms| breaker.is_probe_due(at(*ms)))
            .count();
        assert_eq!(probes, 9);
        breaker.answered();
        assert!(
            breaker.open().is_some(),
            "what went out before says nothing"
        );
        assert!(breaker.close());
        assert!(!breaker.is_probe_due(at(20_000)));
    }

    #[test]
    fn a_call_from_before_it_opened_confirms_nothing() {
        let mut breaker = Breaker::default();
        breaker.open_at_once(Fault::Unanswered, "timeout", at(0), at(5_000));
        breaker.unanswered(
            Fault::Unanswered,
            "timeout",
            sagas(0..9),
            at(100),
            at(5_100),
        );
        assert!(!breaker.open().unwrap().confirmed);
        breaker.unanswered(
            Fault::Unreachable,
            "refused",
            sagas(9..10),
            at(6_000),
            at(6_001),
        );
        let open = breaker.open().unwrap();
        assert!(open.confirmed);
        assert_eq!((open.fault, open.seen_at), (Fault::Unreachable, at(6_000)));
    }
}
