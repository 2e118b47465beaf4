//! Steps that cannot be done: compensating, parking, going on; and what operators do then.

use lapse_sagas::event::AlertRaised;
use lapse_sagas::outcome::Outcome;
use lapse_sagas::state::{Failure, Progress};
use lapse_sagas::{Cause, Direction, Effect, Event, Phase, Refused, Status};

use crate::given::{Saga, done, failed, kinds, not_applicable, rejected, shipped, unknown};

use Direction::{Do, Undo};

fn overdue() -> Saga {
    Saga::started(shipped(), Cause::Timeout)
}

fn charging() -> Saga {
    let mut saga = Saga::started(kinds(), Cause::Timeout);
    saga.sent_and_answered(done());
    saga.is_at("charge", Do, Phase::Taken, 1);
    saga
}

fn resolve() -> Event {
    Event::Resolve {
        actor: "ann".to_owned(),
        reason: "done by hand".to_owned(),
    }
}

#[test]
fn a_step_that_certainly_failed_compensates_only_the_others() {
    let mut saga = overdue();
    saga.sent_and_answered(done()).exhausted_by(failed);
    saga.is_at("cancel_order", Undo, Phase::Taken, 1);
    saga.sent_and_answered(done());
    saga.stands_at("compensated");
    assert_eq!(saga.alerts(), ["compensated"]);
    assert_eq!(saga.progress("cancel_order"), Progress::Undone);
    assert_eq!(saga.progress("replenish_stock"), Progress::Exhausted);
}

#[test]
fn a_step_that_was_unknown_once_is_compensated_even_if_it_failed_in_the_end() {
    let mut saga = overdue();
    saga.sent_and_answered(done())
        .sent_and_answered(unknown())
        .woken()
        .exhausted_by(failed);
    saga.is_at("replenish_stock", Undo, Phase::Taken, 1);
    saga.sent_and_answered(done());
    saga.is_at("cancel_order", Undo, Phase::Taken, 1);
    saga.sent_and_answered(not_applicable());
    saga.stands_at("compensated");
}

#[test]
fn a_rejection_is_final_and_burns_no_further_attempt() {
    let mut saga = overdue();
    saga.sent_and_answered(done()).sent_and_answered(rejected());
    saga.is_at("cancel_order", Undo, Phase::Taken, 1);
}

#[test]
fn a_compensation_that_cannot_be_done_parks_with_an_alert() {
    let mut saga = overdue();
    saga.sent_and_answered(done())
        .exhausted_by(failed)
        .exhausted_by(failed);
    saga.stands_at("parked");
    assert_eq!(saga.alerts(), ["parked"]);
    assert!(saga.effects.contains(&Effect::Ended(Status::Parked)));
}

#[test]
fn a_resumed_compensation_still_alerts_when_it_is_through_and_names_the_step_that_failed() {
    let step = |failure: Option<&Failure>| failure.map(|failure| failure.step.to_string());
    let mut saga = overdue();
    saga.sent_and_answered(done()).exhausted_by(failed);
    let first = saga.state.failure.clone();
    assert_eq!(step(first.as_ref()).as_deref(), Some("replenish_stock"));

    for _ in 0..2 {
        saga.is_at("cancel_order", Undo, Phase::Taken, 1);
        saga.exhausted_by(unknown);
        saga.stands_at("parked");
        assert_eq!(saga.state.failure, first);
        assert_eq!(
            step(saga.state.trouble()).as_deref(),
            Some("cancel_order"),
            "where a person has to look"
        );
        saga.retried();
        assert_eq!((&saga.state.failure, &saga.state.stuck), (&first, &None));
    }
    saga.sent_and_answered(done());

    saga.stands_at("compensated");
    assert_eq!(saga.state.failure, first);
    let told = AlertRaised {
        kind: "compensated".to_owned(),
        step: "replenish_stock".into(),
        class: "busy".to_owned(),
        message: "busy: come again".to_owned(),
    };
    assert!(
        saga.effects.contains(&Effect::Alert(told)),
        "{:?}",
        saga.effects
    );
}

#[test]
fn a_saga_that_was_parked_in_undoing_before_it_told_where_is_resumed_there() {
    let mut saga = overdue();
    saga.sent_and_answered(done())
        .exhausted_by(failed)
        .exhausted_by(failed);
    saga.state.failure = saga.state.stuck.take();
    saga.retried();
    saga.is_at("cancel_order", Undo, Phase::Taken, 1);
}

#[test]
fn after_the_pivot_a_step_parks_instead_of_compensating() {
    for outcome in [failed as fn() -> Outcome, unknown, rejected] {
        let mut saga = charging();
        saga.sent_and_answered(done()).exhausted_by(outcome);
        saga.stands_at("parked");
        assert_eq!(saga.progress("charge"), Progress::Done);
    }
}

#[test]
fn a_pivot_that_certainly_failed_compensates() {
    let mut saga = charging();
    saga.exhausted_by(failed);
    saga.is_at("reserve", Undo, Phase::Taken, 1);
}

#[test]
fn a_pivot_that_may_have_been_applied_parks_instead_of_undoing_the_rest() {
    let mut saga = charging();
    saga.sent_and_answered(unknown())
        .woken()
        .exhausted_by(failed);
    saga.stands_at("parked");
    assert_eq!(saga.alerts(), ["parked"]);
}

#[test]
fn continue_goes_on_without_the_step_and_alerts() {
    let mut saga = Saga::started(kinds(), Cause::Timeout);
    saga.exhausted_by(failed);
    assert_eq!(saga.alerts(), ["continued"]);
    saga.is_at("charge", Do, Phase::Taken, 1);
}

#[test]
fn a_step_that_was_left_behind_perhaps_applied_is_compensated_later() {
    let mut saga = Saga::started(kinds(), Cause::Timeout);
    saga.exhausted_by(unknown).sent_and_answered(rejected());
    saga.is_at("reserve", Undo, Phase::Taken, 1);
}

#[test]
fn nothing_is_skipped_after_a_step_that_may_have_been_applied() {
    let mut saga = Saga::started(kinds(), Cause::Timeout);
    saga.exhausted_by(unknown)
        .sent_and_answered(not_applicable());
    saga.is_at("ship", Do, Phase::Taken, 1);
}

#[test]
fn a_retriable_step_is_never_undone_even_without_a_pivot() {
    let text = "
format: saga/v1
name: no-pivot
version: 1
trigger: { event_types: [a], order_types: { normal: { delay: 30m } }, order_owner: orders }
steps:
  - { id: one, kind: retriable, action: { participant: orders, operation: One } }
  - { id: two, kind: retriable, action: { participant: orders, operation: Two } }
";
    let definition =
        lapse_sagas::Definition::parse("no-pivot.yaml", text).expect("a right definition");
    let mut saga = Saga::started(definition, Cause::Timeout);
    saga.sent_and_answered(done()).sent_and_answered(rejected());
    saga.stands_at("parked");
}

#[test]
fn an_answer_that_makes_no_sense_parks() {
    let mismatch = || Outcome::Mismatch {
        error: "other input".to_owned(),
    };
    for outcome in [mismatch(), Outcome::Expired, Outcome::Superseded] {
        let mut saga = overdue();
        saga.sent_and_answered(outcome);
        saga.stands_at("parked");
    }
}

#[test]
fn an_expired_command_may_have_been_applied() {
    let mut saga = overdue();
    saga.sent_and_answered(Outcome::Expired)
        .retried()
        .exhausted_by(failed);
    saga.is_at("cancel_order", Undo, Phase::Taken, 1);
}

#[test]
fn an_operator_resumes_a_parked_saga_at_its_step_under_the_same_command_id() {
    let mut saga = charging();
    saga.sent_and_answered(done()).exhausted_by(unknown);
    let before = saga.command("ship", Do);
    saga.retried();
    saga.is_at("ship", Do, Phase::Taken, 1);
    assert_eq!((saga.state.run, saga.command("ship", Do)), (2, before));
    assert_eq!(
        saga.progress("charge"),
        Progress::Done,
        "what is done stays done"
    );
    assert!(saga.effects.contains(&Effect::AlertSettled));
    saga.sent_and_answered(done()).sent_and_answered(done());
    saga.stands_at("completed");
}

#[test]
fn a_retry_of_a_refused_command_gets_a_new_command_id() {
    let mut saga = charging();
    saga.sent_and_answered(done()).sent_and_answered(rejected());
    let before = saga.command("ship", Do);
    saga.retried();
    assert_ne!(saga.command("ship", Do), before);

    let mut saga = overdue();
    saga.sent_and_answered(done())
        .exhausted_by(failed)
        .sent_and_answered(rejected());
    let (action, compensation) = (
        saga.command("cancel_order", Do),
        saga.command("cancel_order", Undo),
    );
    saga.retried();
    assert_eq!(saga.command("cancel_order", Do), action);
    assert_ne!(saga.command("cancel_order", Undo), compensation);
}

#[test]
fn an_operator_restarts_a_compensated_saga_at_its_first_step_with_new_command_ids() {
    let mut saga = overdue();
    let before = saga.command("cancel_order", Do);
    saga.sent_and_answered(done())
        .sent_and_answered(rejected())
        .sent_and_answered(done());
    saga.stands_at("compensated");
    saga.retried();
    saga.is_at("cancel_order", Do, Phase::Taken, 1);
    assert_eq!(saga.state.run, 2);
    assert_ne!(saga.command("cancel_order", Do), before);
}

#[test]
fn an_operator_resolves_what_stopped_and_nothing_else() {
    let mut saga = overdue();
    assert_eq!(
        saga.tries(resolve()),
        Err(Refused::Conflict { state: "running" })
    );
    saga.sent_and_answered(rejected());
    saga.stands_at("compensated");
    saga.when(resolve());
    saga.stands_at("resolved");
    assert!(saga.effects.contains(&Effect::AlertSettled));
    let retry = Event::Retry {
        actor: "ann".to_owned(),
        reason: "again".to_owned(),
    };
    assert_eq!(
        saga.tries(retry),
        Err(Refused::Conflict { state: "resolved" })
    );
    assert_eq!(
        saga.tries(resolve()),
        Err(Refused::Conflict { state: "resolved" })
    );
}
