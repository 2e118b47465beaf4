//! One step and its answers: retries, postponements, causes, take-overs, late replies.

use chrono::TimeDelta;
use lapse_sagas::event::Counter;
use lapse_sagas::outcome::Outcome;
use lapse_sagas::state::Progress;
use lapse_sagas::{Cause, Direction, Effect, Event, Phase, Refused, State, transition};

use crate::given::{
    Saga, done, epoch, failed, mismatch, not_applicable, not_due, saga_id, shipped, unknown,
};

use Direction::{Do, Undo};

fn overdue() -> Saga {
    Saga::started(shipped(), Cause::Timeout)
}

fn ms(ms: i64) -> TimeDelta {
    TimeDelta::milliseconds(ms)
}

#[test]
fn an_unpaid_order_is_cancelled_and_its_stock_comes_back() {
    let mut saga = overdue();
    saga.is_at("cancel_order", Do, Phase::Taken, 1);
    saga.sent_and_answered(done());
    saga.is_at("replenish_stock", Do, Phase::Taken, 1);
    saga.sent_and_answered(done());
    saga.stands_at("completed");
    assert!(saga.effects.contains(&Effect::Count(Counter::Completed)));
}

#[test]
fn a_paid_order_is_skipped() {
    let mut saga = overdue();
    saga.sent_and_answered(not_applicable());
    saga.stands_at("skipped");
    assert!(saga.alerts().is_empty());
}

#[test]
fn nothing_to_do_later_skips_only_that_step() {
    let mut saga = overdue();
    saga.sent_and_answered(done())
        .sent_and_answered(not_applicable());
    saga.stands_at("completed");
}

#[test]
fn a_failed_step_is_tried_once_and_three_times_more_with_growing_delays() {
    let mut saga = overdue();
    for (attempt, full) in [(1, 1_000), (2, 4_000), (3, 16_000)] {
        saga.sent_and_answered(failed());
        saga.is_at("cancel_order", Do, Phase::Retrying, attempt + 1);
        let waits = saga.open().1.wake_at - saga.now;
        assert!(
            waits >= ms(full / 2) && waits <= ms(full),
            "{waits} before attempt {}",
            attempt + 1
        );
        saga.woken();
        saga.is_at("cancel_order", Do, Phase::Taken, attempt + 1);
    }
    saga.sent_and_answered(failed());
    saga.stands_at("compensated");
}

#[test]
fn retry_delays_spread_over_the_upper_half_and_are_always_the_same_for_one_saga() {
    let delay = |number| {
        let mut saga = overdue();
        saga.state.saga_id = saga_id(number);
        saga.sent_and_answered(failed());
        saga.open().1.wake_at - saga.now
    };
    let delays: Vec<TimeDelta> = (0..200).map(delay).collect();
    assert_eq!(delays, (0..200).map(delay).collect::<Vec<_>>());
    assert!(
        delays.iter().any(|delay| *delay < ms(600)) && delays.iter().any(|delay| *delay > ms(900))
    );
    assert!(
        delays
            .iter()
            .all(|delay| (ms(500)..=ms(1_000)).contains(delay))
    );
}

#[test]
fn a_missing_reply_counts_as_an_attempt_and_as_perhaps_applied() {
    let mut saga = overdue();
    saga.sent();
    assert_eq!(
        saga.open().1.wake_at,
        epoch() + TimeDelta::seconds(6),
        "time-out and one second of grace"
    );
    saga.woken();
    saga.is_at("cancel_order", Do, Phase::Retrying, 2);
    assert!(saga.state.steps[&"cancel_order".into()].maybe_applied);
}

#[test]
fn the_same_command_id_goes_out_on_every_attempt() {
    let mut saga = overdue();
    let first = saga.command("cancel_order", Do);
    saga.sent_and_answered(unknown())
        .woken()
        .sent_and_answered(failed())
        .woken();
    assert_eq!(saga.command("cancel_order", Do), first);
    assert_eq!(
        first,
        "00000000-0000-0000-0000-000000000007:1:cancel_order:do"
    );
}

#[test]
fn an_order_that_is_not_due_yet_is_asked_again_at_its_new_due_time() {
    let mut saga = overdue();
    let until = epoch() + TimeDelta::minutes(20);
    saga.sent_and_answered(not_due(until));
    saga.is_at("cancel_order", Do, Phase::Postponed, 1);
    assert_eq!(saga.open().1.wake_at, until);
    assert_eq!(
        saga.open().1.first_sent_at,
        None,
        "the command's time to live starts again"
    );
}

#[test]
fn repeated_not_due_backs_off_from_250_ms_to_5_s_and_never_asks_before_the_due_time() {
    let mut saga = overdue();
    for expected in [250, 500, 1_000, 2_000, 4_000, 5_000, 5_000, 5_000] {
        let past = saga.now - TimeDelta::seconds(1);
        saga.sent_and_answered(not_due(past));
        assert_eq!(saga.open().1.wake_at - saga.now, ms(expected));
        saga.woken();
    }
    let until = saga.now + TimeDelta::days(3);
    saga.sent_and_answered(not_due(until));
    assert_eq!(saga.open().1.wake_at, until);
    assert_eq!(saga.open().1.attempt, 1, "postponing burns no attempt");
}

#[test]
fn an_absurd_new_due_time_does_not_put_a_saga_to_sleep_for_ever() {
    let mut saga = overdue();
    saga.sent_and_answered(not_due(chrono::DateTime::<chrono::Utc>::MAX_UTC));
    assert_eq!(saga.open().1.wake_at, epoch() + TimeDelta::days(31));
}

#[test]
fn a_buyer_wakes_a_postponed_saga_now() {
    let mut saga = overdue();
    saga.sent_and_answered(not_due(epoch() + TimeDelta::hours(2)))
        .after(ms(10))
        .raised(Cause::Buyer);
    assert_eq!(saga.open().1.wake_at, saga.now);
    assert_eq!(saga.state.cause, Cause::Buyer);
}

#[test]
fn a_buyer_does_not_shorten_a_retry_delay_or_an_open_breaker() {
    let mut saga = overdue();
    saga.sent_and_answered(failed());
    let wakes = saga.open().1.wake_at;
    saga.raised(Cause::Buyer);
    assert_eq!(saga.open().1.wake_at, wakes);

    let mut saga = overdue();
    saga.deferred(epoch() + TimeDelta::seconds(30))
        .raised(Cause::Operator);
    assert_eq!(saga.open().1.wake_at, epoch() + TimeDelta::seconds(30));
}

#[test]
fn not_due_for_the_old_cause_is_followed_at_once_by_a_new_sending() {
    let mut saga = overdue();
    saga.sent()
        .raised(Cause::Buyer)
        .answered(not_due(epoch() + TimeDelta::hours(2)));
    saga.is_at("cancel_order", Do, Phase::Taken, 1);
    saga.sent_and_answered(done());
    saga.is_at("replenish_stock", Do, Phase::Taken, 1);
}

#[test]
fn a_cause_is_raised_and_never_lowered() {
    let mut saga = overdue();
    saga.raised(Cause::Operator);
    for cause in [Cause::Timeout, Cause::Sweep, Cause::Buyer, Cause::Operator] {
        assert_eq!(
            saga.tries(Event::CauseRaised { cause }),
            Err(Refused::Unchanged)
        );
    }
    assert_eq!(saga.state.cause, Cause::Operator);
}

#[test]
fn a_sweep_that_meets_a_postponed_saga_changes_nothing() {
    let mut saga = overdue();
    saga.sent_and_answered(not_due(epoch() + TimeDelta::hours(2)));
    assert_eq!(
        saga.tries(Event::CauseRaised {
            cause: Cause::Sweep
        }),
        Err(Refused::Unchanged)
    );
    assert_eq!(saga.open().1.wake_at, epoch() + TimeDelta::hours(2));
    assert_eq!(saga.state.cause, Cause::Timeout);
}

#[test]
fn a_buyer_cannot_hurry_a_saga_that_compensates_or_rests() {
    let mut saga = overdue();
    saga.sent_and_answered(done()).exhausted_by(failed);
    saga.stands_at("compensating");
    let raise = || Event::CauseRaised {
        cause: Cause::Buyer,
    };
    assert_eq!(
        saga.tries(raise()),
        Err(Refused::Conflict {
            state: "compensating"
        })
    );
    saga.sent_and_answered(done());
    assert_eq!(
        saga.tries(raise()),
        Err(Refused::Conflict {
            state: "compensated"
        })
    );
}

#[test]
fn the_tenth_take_over_parks_a_crash_loop() {
    let mut saga = overdue();
    for _ in 1..10 {
        saga.woken();
        saga.is_at("cancel_order", Do, Phase::Taken, 1);
    }
    saga.woken();
    saga.stands_at("parked");
    assert_eq!(saga.alerts(), ["parked"]);
    assert_eq!(
        saga.state
            .failure
            .as_ref()
            .map(|failure| failure.class.as_str()),
        Some("crash_loop")
    );
}

#[test]
fn a_recorded_outcome_forgives_earlier_take_overs() {
    let mut saga = overdue();
    saga.woken().woken().sent_and_answered(failed());
    assert_eq!(saga.open().1.takeovers, 0);
}

#[test]
fn done_of_an_older_attempt_settles_the_step() {
    let mut saga = overdue();
    saga.sent().woken().woken().sent();
    saga.is_at("cancel_order", Do, Phase::Sent, 2);
    let late = saga.reply_to("cancel_order", Do, 1, done());
    saga.when(late);
    assert_eq!(saga.progress("cancel_order"), Progress::Done);
}

#[test]
fn failed_and_not_due_of_an_older_attempt_are_stale() {
    let mut saga = overdue();
    saga.sent().woken().woken().sent();
    for outcome in [
        failed(),
        not_due(epoch()),
        unknown(),
        Outcome::Expired,
        mismatch(),
    ] {
        let late = saga.reply_to("cancel_order", Do, 1, outcome);
        assert!(matches!(
            saga.tries(late),
            Err(Refused::Stale { attempt: 1, .. })
        ));
    }
}

#[test]
fn any_reply_for_a_settled_step_is_stale() {
    let mut saga = overdue();
    saga.sent_and_answered(done());
    for outcome in [done(), failed(), not_applicable()] {
        let late = saga.reply_to("cancel_order", Do, 1, outcome);
        assert!(matches!(saga.tries(late), Err(Refused::Stale { .. })));
    }
    let other_way = saga.reply_to("replenish_stock", Undo, 1, done());
    assert!(matches!(saga.tries(other_way), Err(Refused::Stale { .. })));
}

#[test]
fn waiting_for_a_breaker_burns_no_attempt_until_patience_ends() {
    let mut saga = overdue();
    for _ in 0..3 {
        let soon = saga.now + TimeDelta::minutes(4);
        saga.sent().deferred(soon);
        saga.is_at("cancel_order", Do, Phase::Deferred, 1);
        saga.woken();
    }
    let far = saga.now + TimeDelta::days(1);
    saga.deferred(far);
    assert_eq!(
        saga.open().1.wake_at,
        epoch() + TimeDelta::minutes(15),
        "not later than patience"
    );
    saga.woken().deferred(far);
    saga.stands_at("compensated");
}

#[test]
fn an_answer_ends_the_wait_that_patience_counts() {
    let mut saga = overdue();
    saga.deferred(epoch() + TimeDelta::minutes(14))
        .woken()
        .sent_and_answered(failed());
    assert_eq!(saga.open().1.deferred_since, None);
}

#[test]
fn a_clock_before_the_wake_up_time_changes_nothing() {
    let definition = shipped();
    let state = State::start(&definition, saga_id(1), Cause::Timeout, epoch());
    let early = transition(&definition, state, Event::Due, epoch() + ms(9_999));
    assert_eq!(early, Err(Refused::Unchanged));
}

#[test]
fn a_stored_state_is_read_back_as_it_was() {
    let mut saga = overdue();
    saga.sent_and_answered(done()).sent_and_answered(unknown());
    let stored = serde_json::to_string(&saga.state).expect("a state has a JSON form");
    assert_eq!(
        serde_json::from_str::<State>(&stored).expect("and is read from it"),
        saga.state
    );
}
