//! What one participant's care promises, call by call.

use std::time::Duration;

use chrono::TimeDelta;
use lapse_sagas::{SagaId, Timestamp};
use uuid::Uuid;

use super::*;

fn at(ms: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + TimeDelta::milliseconds(ms)
}

fn saga(n: u128) -> SagaId {
    SagaId(Uuid::from_u128(n * 40_503))
}

/// A participant and the calls made to it.
struct Given {
    care: Care,
}

impl Given {
    fn new() -> Given {
        Given {
            care: Care::new("orders", 2_000),
        }
    }

    fn call(&mut self, purpose: Purpose, sagas: std::ops::Range<u128>, verdict: Verdict, ms: i64) {
        let sagas: Vec<SagaId> = sagas.map(saga).collect();
        let call = Call {
            operation: "CancelOrder",
            sagas: &sagas,
            sent_at: at(ms),
            purpose,
        };
        self.care.began(sagas.len(), 500, at(ms));
        self.care.heard(&call, verdict, at(ms));
        self.care.ended(sagas.len());
    }

    fn down(&mut self, ms: i64) -> &mut Given {
        self.call(Purpose::First, 0..100, lost(None), ms - 1);
        self.call(Purpose::First, 100..200, lost(None), ms);
        self
    }

    fn entry(&mut self, n: u128, ms: i64) -> Entry {
        self.care.admit("CancelOrder", saga(n), at(ms))
    }

    /// How long it waits.
    fn waits(&mut self, n: u128, ms: i64) -> TimeDelta {
        match self.entry(n, ms) {
            Entry::Wait(wait) => wait.until - at(ms),
            other => panic!("saga {n} does not wait: {other:?}"),
        }
    }
}

fn lost(retry_after: Option<Duration>) -> Verdict {
    Verdict::Lost {
        fault: Fault::Unanswered,
        error: "timeout: no answer in 5s".to_owned(),
        retry_after,
    }
}

fn misconfigured() -> Verdict {
    Verdict::Misconfigured {
        error: "404".to_owned(),
    }
}

#[test]
fn an_open_breaker_lets_one_saga_a_second_ahead_and_makes_the_others_wait() {
    let mut given = Given::new();
    assert_eq!(given.entry(1, 0), Entry::Free);
    given.down(0);
    let entries: Vec<Entry> = (0..500).map(|n| given.entry(n, 1_000)).collect();
    let probes = entries.iter().filter(|entry| **entry == Entry::Probe);
    assert_eq!(probes.count(), 1);
    assert!(!entries.contains(&Entry::Free));
    assert_eq!(given.care.waiting(), 499);
}

#[test]
fn what_waits_comes_back_within_a_quarter_of_the_outage_and_not_all_at_once() {
    let mut given = Given::new();
    given.down(0);
    given.entry(0, 40_000);
    let mut waits: Vec<TimeDelta> = (1..1_000).map(|n| given.waits(n, 40_000)).collect();
    waits.sort();
    assert!(waits[0] >= TimeDelta::seconds(5), "{}", waits[0]);
    assert!(waits[998] <= TimeDelta::seconds(10), "{}", waits[998]);
    let first_half = waits
        .iter()
        .filter(|wait| **wait < TimeDelta::milliseconds(7_500));
    let first_half = first_half.count();
    assert!((400..600).contains(&first_half), "{first_half} of 999");
}

#[test]
fn the_wait_is_never_under_half_a_second_and_never_over_half_a_minute() {
    let mut given = Given::new();
    given.down(0);
    assert!(given.waits(1, 10) >= TimeDelta::milliseconds(500));
    given.entry(0, 3_600_000);
    assert!(given.waits(1, 3_600_000) <= TimeDelta::seconds(30));
}

#[test]
fn after_an_answered_probe_it_begins_with_a_tenth_of_the_usual() {
    let mut given = Given::new();
    given.down(0);
    given.call(Purpose::Probe, 7..8, Verdict::Answered, 5_000);
    assert_eq!(given.entry(1, 5_000), Entry::Free);
    assert_eq!(given.care.room(), 10);
    assert_eq!(given.care.level(), 1);
    for n in 1..9 {
        given.call(Purpose::First, 0..5, Verdict::Answered, 5_000 + n * 250);
    }
    assert_eq!((given.care.room(), given.care.level()), (usize::MAX, 0));
}

#[test]
fn while_the_backlog_comes_it_is_called_no_more_often_than_usual() {
    let mut given = Given::new();
    for n in 0..100 {
        given.call(Purpose::First, 0..20, Verdict::Answered, n * 100);
    }
    given.down(10_000);
    given.call(Purpose::Probe, 7..8, Verdict::Answered, 50_000);
    let mut calls = 0;
    for ms in 50_000..55_000 {
        if given.care.next_at(at(ms)).is_none() {
            given.call(Purpose::First, 0..500, Verdict::Answered, ms);
            calls += 1;
        }
    }
    assert!((45..=55).contains(&calls), "{calls} calls in five seconds");
    assert_eq!(given.care.next_at(at(80_000)), None, "that is over");
}

#[test]
fn an_answer_to_what_went_out_before_does_not_close_it() {
    let mut given = Given::new();
    given.down(0);
    given.call(Purpose::First, 0..5, Verdict::Answered, 10);
    assert!(given.waits(1, 20) > TimeDelta::zero());
}

#[test]
fn it_is_left_alone_for_as_long_as_it_asks_and_a_minute_at_most() {
    let busy = |seconds| Verdict::Busy {
        retry_after: Some(Duration::from_secs(seconds)),
    };
    let mut given = Given::new();
    given.call(Purpose::First, 0..5, busy(20), 0);
    assert!(given.waits(1, 100) >= TimeDelta::milliseconds(19_900));
    assert_eq!(given.entry(1, 20_000), Entry::Free);
    given.call(Purpose::First, 0..5, busy(86_400), 20_000);
    assert_eq!(given.entry(1, 80_000), Entry::Free);
}

#[test]
fn probes_too_keep_to_what_it_asks_for() {
    let mut given = Given::new();
    given.down(0);
    given.call(
        Purpose::Probe,
        7..8,
        lost(Some(Duration::from_secs(10))),
        1_000,
    );
    assert!(given.waits(1, 10_999) > TimeDelta::zero());
    assert_eq!(given.entry(1, 11_000), Entry::Probe);
}

#[test]
fn an_operation_that_is_not_known_stops_only_its_own_commands() {
    let mut given = Given::new();
    given.call(Purpose::First, 0..1, misconfigured(), 0);
    assert!(given.waits(1, 10) > TimeDelta::zero());
    let other = given.care.admit("ReopenOrder", saga(2), at(10));
    assert_eq!(other, Entry::Free);
    assert!(
        matches!(given.care.news(at(10)), Some(News::Down(down)) if down.class == "configuration")
    );
    given.call(Purpose::Probe, 7..8, Verdict::Answered, 2_000);
    assert_eq!(given.entry(1, 2_000), Entry::Free);
    assert_eq!(given.care.news(at(2_000)), Some(News::Up));
}

#[test]
fn people_are_told_once_it_is_certain_then_now_and_then_and_when_it_is_over() {
    let mut given = Given::new();
    given.down(0);
    assert_eq!(given.care.news(at(1)), None, "it may be a moment's trouble");
    given.waits(1, 10);
    given.call(Purpose::Probe, 7..8, lost(None), 1_000);
    let Some(News::Down(down)) = given.care.news(at(1_001)) else {
        panic!("nobody is told")
    };
    assert_eq!(
        (&*down.participant, &*down.class, down.sagas),
        ("orders", "unanswered", 1)
    );
    assert_eq!(given.care.news(at(11_000)), None);
    assert!(given.care.news(at(11_001)).is_some(), "it still holds");
    given.care.untold();
    assert!(
        given.care.news(at(11_002)).is_some(),
        "what could not be told is told again"
    );
    given.call(Purpose::Probe, 8..9, Verdict::Answered, 12_000);
    assert_eq!(given.care.news(at(12_000)), Some(News::Up));
    assert_eq!(given.care.news(at(12_001)), None);
}

#[test]
fn people_are_told_while_the_first_probe_still_hangs() {
    let mut given = Given::new();
    given.down(0);
    assert_eq!(given.care.news(at(1_999)), None);
    assert!(matches!(given.care.news(at(2_000)), Some(News::Down(_))));
}

#[test]
fn a_limit_that_nobody_has_tested_for_a_minute_is_forgotten() {
    let mut given = Given::new();
    given.call(Purpose::First, 0..500, lost(None), 0);
    assert_eq!(given.care.room(), 250);
    given.call(Purpose::First, 0..500, Verdict::Answered, 61_000);
    assert_eq!(given.care.room(), usize::MAX);
}

#[test]
fn replies_that_come_later_close_the_breaker_and_raise_the_limit_again() {
    let mut given = Given::new();
    given.down(0);
    assert!(given.care.is_shut("CancelOrder", at(1)));
    let reply = Call {
        operation: "CancelOrder",
        sagas: &[],
        sent_at: at(2_000),
        purpose: Purpose::First,
    };
    given.care.replied(&reply, at(2_000));
    assert!(!given.care.is_shut("CancelOrder", at(2_000)));
    let begins_with = given.care.room();

    for n in 1..20 {
        given.care.replied(&reply, at(2_000 + n * 250));
    }

    assert!(begins_with < 100, "slowly: {begins_with}");
    assert_eq!(given.care.room(), usize::MAX, "and then freely");
}

/// Commands of one call, all without a reply.
fn awaiting(given: &mut Given, commands: usize) {
    given.care.began(commands, 500, at(0));
    for _ in 0..commands {
        given.care.awaits(at(0), at(6_000));
    }
    assert_eq!(given.care.in_flight(), commands, "while it is produced");
    given.care.ended(commands);
}

#[test]
fn where_replies_come_later_no_more_is_sent_than_is_answered_in_time() {
    let mut given = Given::new();
    awaiting(&mut given, 500);
    assert_eq!((given.care.room(), given.care.may_hold()), (0, 500));

    given.care.waited(at(0), TimeDelta::seconds(5), at(100));
    given.care.waited(at(0), TimeDelta::seconds(5), at(4_000));
    assert_eq!(given.care.room(), 0, "they take too long");

    given.care.give_up(at(12_000));
    assert_eq!(given.care.in_flight(), 0);
    assert_eq!(
        given.care.room(),
        8,
        "two in four seconds: as few as possible"
    );
}

#[test]
fn whoever_hears_no_replies_is_not_bound_by_what_it_heard() {
    let mut given = Given::new();
    awaiting(&mut given, 500);
    given.care.waited(at(0), TimeDelta::seconds(5), at(100));
    given.care.waited(at(0), TimeDelta::seconds(5), at(4_000));

    given.care.hear_nothing();
    assert_eq!(given.care.in_flight(), 0);
    assert_eq!(given.care.room(), usize::MAX);

    given.care.give_up(at(5_000));
    assert_eq!(given.care.room(), 8, "as it was");
}

#[test]
fn a_fault_of_configuration_that_stays_is_no_news_with_each_probe_and_is_waited_for_longer_and_longer()
 {
    let mut given = Given::new();
    given.call(Purpose::First, 0..1, misconfigured(), 0);
    assert!(matches!(given.care.news(at(0)), Some(News::Down(_))));
    for second in 1..40 {
        given.call(Purpose::Probe, 1..2, misconfigured(), second * 1_000);
        let news = given.care.news(at(second * 1_000));
        assert_eq!(
            news.is_some(),
            second % 10 == 0,
            "after {second} s: {news:?}"
        );
    }
    assert_eq!(given.entry(2, 40_000), Entry::Probe);
    let waits = given.waits(3, 40_000);
    assert!(waits >= TimeDelta::seconds(5), "as after 40 s: {waits}");

    given.call(Purpose::Probe, 2..3, Verdict::Answered, 40_000);
    assert_eq!(given.care.news(at(40_000)), Some(News::Up));
}
