//! The executor keeps its promises about attempts, batches and take-overs. On the store in memory and tokio's stopped
//! clock, so that hours pass in milliseconds.

use std::sync::Arc;
use std::time::Duration;

use chrono::DateTime;
use lapse::clock::{Clock, Simulated};
use lapse::store::memory::MemoryStore;
use lapse_sagas::state::Progress;
use lapse_sagas::{Outcome, Status, StepId};

use crate::support::scripted::Answer;
use crate::support::world::{QUICK, World};

const HOUR: Duration = Duration::from_secs(3_600);

async fn world() -> World {
    world_of(QUICK).await
}

async fn world_of(definition: &str) -> World {
    let clock: Arc<dyn Clock> = Arc::new(Simulated::from(
        DateTime::from_timestamp(1_780_000_000, 0).unwrap(),
    ));
    let time = clock.clone();
    let store = Arc::new(MemoryStore::new(Arc::new(move || time.now())));
    World::new(store, clock, definition).await
}

fn failed() -> Answer {
    Answer::Outcome(Outcome::Failed {
        error: "broken: on purpose".to_owned(),
    })
}

fn unknown() -> Answer {
    Answer::Outcome(Outcome::Unknown {
        error: "garbage: on purpose".to_owned(),
    })
}

#[tokio::test(start_paused = true)]
async fn an_order_is_cancelled_and_its_stock_comes_back() {
    let world = world().await;
    let coordinator = world.coordinator();
    world.start(&coordinator, &["o1"]).await;
    let saga = world.at_rest("o1", HOUR).await;
    assert_eq!(saga.state.status, Status::Completed);
    assert_eq!(world.participant.commands("CancelOrder", "o1").len(), 1);
    assert_eq!(world.participant.commands("ReplenishStock", "o1").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_step_that_always_fails_is_tried_four_times_and_the_rest_is_undone() {
    let world = world().await;
    world.participant.answer("ReplenishStock", "o1", [failed()]);
    let coordinator = world.coordinator();
    world.start(&coordinator, &["o1"]).await;

    let saga = world.at_rest("o1", HOUR).await;

    assert_eq!(saga.state.status, Status::Compensated);
    let tries = world.participant.commands("ReplenishStock", "o1");
    assert_eq!(
        tries
            .iter()
            .map(|command| command.attempt)
            .collect::<Vec<_>>(),
        [1, 2, 3, 4]
    );
    assert!(
        tries
            .iter()
            .all(|command| command.command_id == tries[0].command_id),
        "one id over all attempts"
    );
    assert_eq!(world.participant.commands("ReopenOrder", "o1").len(), 1);
    assert_eq!(
        world.participant.commands("WithdrawStock", "o1").len(),
        0,
        "what was not applied is not undone"
    );
    let alerts = world.store.claim_alerts(10).await.unwrap();
    assert!(alerts.len() <= 1, "one alert: {alerts:?}");
}

#[tokio::test(start_paused = true)]
async fn a_step_that_was_ever_unknown_is_undone_too() {
    let world = world().await;
    world
        .participant
        .answer("ReplenishStock", "o1", [unknown(), failed()]);
    let coordinator = world.coordinator();
    world.start(&coordinator, &["o1"]).await;

    let saga = world.at_rest("o1", HOUR).await;

    assert_eq!(saga.state.status, Status::Compensated);
    let undone = world.participant.commands("WithdrawStock", "o1");
    assert_eq!(undone.len(), 1);
    let action = world.participant.commands("ReplenishStock", "o1").remove(0);
    assert_eq!(undone[0].action_id.as_ref(), Some(&action.command_id));
}

#[tokio::test(start_paused = true)]
async fn a_bad_row_does_not_sink_its_batch() {
    let world = world().await;
    world
        .participant
        .answer("CancelOrder", "o7", [Answer::BadData]);
    let coordinator = world.coordinator();
    let orders: Vec<String> = (0..64).map(|n| format!("o{n}")).collect();
    world
        .start(
            &coordinator,
            &orders.iter().map(String::as_str).collect::<Vec<_>>(),
        )
        .await;

    for order in orders.iter().filter(|order| *order != "o7") {
        let saga = world.at_rest(order, HOUR).await;
        assert_eq!(saga.state.status, Status::Completed, "{order}");
        assert_eq!(
            saga.state.steps[&StepId::from("cancel_order")].progress,
            Progress::Done
        );
    }
    let saga = world.at_rest("o7", HOUR).await;
    assert_eq!(saga.state.status, Status::Compensated);
    let alone: Vec<_> = world
        .participant
        .commands("CancelOrder", "o7")
        .iter()
        .map(|c| c.attempt)
        .collect();
    assert_eq!(
        alone.iter().max(),
        Some(&4),
        "halving costs no attempt: {alone:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn one_command_that_hangs_its_batch_does_not_exhaust_the_others() {
    let world = world().await;
    world
        .participant
        .answer("ReplenishStock", "o7", [Answer::Hang]);
    let coordinator = world.coordinator();
    let orders: Vec<String> = (0..64).map(|n| format!("o{n}")).collect();
    world
        .start(
            &coordinator,
            &orders.iter().map(String::as_str).collect::<Vec<_>>(),
        )
        .await;

    for order in orders.iter().filter(|order| *order != "o7") {
        assert_eq!(
            world.at_rest(order, HOUR).await.state.status,
            Status::Completed,
            "{order}"
        );
    }
    assert_eq!(
        world.at_rest("o7", HOUR).await.state.status,
        Status::Compensated
    );
}

#[tokio::test(start_paused = true)]
async fn the_last_attempt_goes_alone_however_few_there_are() {
    let world = world_of(&QUICK.replace("max: 3", "max: 1")).await;
    world
        .participant
        .answer("CancelOrder", "o7", [Answer::Hang]);
    let coordinator = world.coordinator();
    let orders: Vec<String> = (0..12).map(|n| format!("o{n}")).collect();
    world
        .start(
            &coordinator,
            &orders.iter().map(String::as_str).collect::<Vec<_>>(),
        )
        .await;

    for order in orders.iter().filter(|order| *order != "o7") {
        assert_eq!(
            world.at_rest(order, HOUR).await.state.status,
            Status::Completed,
            "{order}"
        );
    }
    assert_eq!(
        world.at_rest("o7", HOUR).await.state.status,
        Status::Compensated
    );
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_not_to_be_had_burns_no_attempt() {
    let world = world().await;
    let locked = (0..20).map(|_| Answer::Locked);
    world.participant.answer("CancelOrder", "o1", locked);
    world.participant.answer(
        "CancelOrder",
        "o1",
        [Answer::Outcome(Outcome::Done {
            output: serde_json::Value::Null,
        })],
    );
    let coordinator = world.coordinator();
    world.start(&coordinator, &["o1"]).await;

    let saga = world.at_rest("o1", HOUR).await;

    assert_eq!(saga.state.status, Status::Completed);
    assert!(
        world
            .participant
            .commands("CancelOrder", "o1")
            .iter()
            .all(|command| command.attempt == 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_command_left_out_of_the_answer_is_sent_again_under_the_same_id() {
    let world = world().await;
    let done = Answer::Outcome(Outcome::Done {
        output: serde_json::Value::Null,
    });
    world
        .participant
        .answer("CancelOrder", "o1", [Answer::LeftOut, done]);
    let coordinator = world.coordinator();
    world.start(&coordinator, &["o1"]).await;

    assert_eq!(
        world.at_rest("o1", HOUR).await.state.status,
        Status::Completed
    );
    let sent = world.participant.commands("CancelOrder", "o1");
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[0].command_id, sent[1].command_id);
}

#[tokio::test(start_paused = true)]
async fn an_order_that_is_not_due_waits_for_its_new_time() {
    let world = world().await;
    let until = world.clock.now() + chrono::TimeDelta::minutes(10);
    let done = Answer::Outcome(Outcome::Done {
        output: serde_json::Value::Null,
    });
    world.participant.answer(
        "CancelOrder",
        "o1",
        [Answer::Outcome(Outcome::NotDue { until }), done],
    );
    let coordinator = world.coordinator();
    world.start(&coordinator, &["o1"]).await;

    let saga = world.at_rest("o1", HOUR).await;

    assert_eq!(saga.state.status, Status::Completed);
    assert!(world.clock.now() >= until, "never early");
    assert!(
        world
            .participant
            .commands("CancelOrder", "o1")
            .iter()
            .all(|command| command.attempt == 1)
    );
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_coordinator_left_is_taken_over() {
    let world = world().await;
    let done = Answer::Outcome(Outcome::Done {
        output: serde_json::Value::Null,
    });
    world
        .participant
        .answer("CancelOrder", "o1", [Answer::Hang, done]);
    let dead = world.coordinator();
    world.start(&dead, &["o1"]).await;
    drop(dead);
    let _alive = world.coordinator();

    let saga = world.at_rest("o1", HOUR).await;

    assert_eq!(saga.state.status, Status::Completed);
    let sent = world.participant.commands("CancelOrder", "o1");
    assert!(
        sent.iter()
            .all(|command| command.command_id == sent[0].command_id)
    );
}
