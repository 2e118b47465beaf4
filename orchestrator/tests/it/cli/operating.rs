//! Sagas that stopped go on when an operator says so, and the history says who and why.

use std::time::{Duration, Instant};

use chrono::TimeDelta;
use lapse::operators::{Act, Deed, operate as operate_on};
use lapse::store::ops::{Resting, Story};
use lapse::store::pg::PgStore;
use lapse_participants::fault::Answer;
use lapse_sagas::SagaId;
use serde_json::{Value, json};

use super::{Ended, lapse_with, run};
use crate::support::live::{Live, Running, order_ref};
use crate::support::until;

const SOON: Duration = Duration::from_secs(20);
/// Longer than a poll, shorter than a take-over.
const AT_ONCE: Duration = Duration::from_secs(8);

/// Parks where stock can't be given back, after one try and one retry.
const STRICT: &str = r"
format: saga/v1
name: strict
version: 1
trigger:
  event_types: [order.placed]
  order_types: { normal: { delay: 30m } }
  order_owner: orders
steps:
  - id: cancel_order
    action: { participant: orders, operation: CancelOrder }
    compensation: { participant: orders, operation: ReopenOrder }
  - id: replenish_stock
    action: { participant: stock, operation: ReplenishStock }
    compensation: { participant: stock, operation: WithdrawStock }
    on_exhausted: park
    retries: { max: 1, delays: [100ms] }
";

/// A Lapse whose sagas park.
async fn strict() -> Live {
    let mut live = Live::in_process().await;
    let file = std::env::temp_dir().join(format!("{}.yaml", uuid::Uuid::now_v7()));
    std::fs::write(&file, STRICT).expect("a definition can be written");
    live.config.definitions.paths = vec![file];
    live
}

/// Orders whose stock can't be given back by the first run.
async fn parked(live: &Live, service: &Running, order_ids: &[&str]) {
    for order_id in order_ids {
        stop(live, service, order_id, "ReplenishStock", Answer::Failed, 2).await;
    }
    for order_id in order_ids {
        live.story_in(order_id, "parked", SOON).await;
    }
}

async fn stop(
    live: &Live,
    service: &Running,
    order_id: &str,
    operation: &str,
    answer: Answer,
    times: i32,
) {
    live.shop
        .set_fault(&order_ref(order_id), operation, answer, times)
        .await
        .expect("a fault can be planted");
    let placed = live.place(order_id, TimeDelta::milliseconds(200)).await;
    live.schedule(service, &[placed]).await;
}

fn operate(live: &Live, args: &[&str]) -> Ended {
    let args = [args, &["-o", "json"]].concat();
    run(lapse_with(&live.config, &args))
}

/// What happened in the history under this name.
fn entry(story: &Story, kind: &str) -> Value {
    let entry = story.timeline.iter().find(|entry| entry.kind == kind);
    let entry = entry.unwrap_or_else(|| panic!("no {kind} in {:?}", story.timeline));
    entry.detail.clone().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_saga_retried_while_coordinators_run_completes_in_run_2_at_once() {
    let live = strict().await;
    let service = live.start().await;
    let other = Running::start(&live.another()).await;
    parked(&live, &service, &["stuck"]).await;
    assert_eq!(live.ops.open_alerts().await.unwrap()[0].sagas, 1);

    let why = ["--reason", "stock was down", "--actor", "ann"];
    let retry = [&["retry", "--order", "stuck"], &why[..]].concat();
    let answer = operate(&live, &retry).with_code(0).object("retry");

    assert_eq!(answer["sagas"][0]["result"], "retried");
    assert_eq!(answer["sagas"][0]["state"], "running");
    let story = live.story_in("stuck", "completed", AT_ONCE).await;
    assert_eq!(story.saga.run, 2);
    let expected = json!({ "actor": "ann", "reason": "stock was down", "run": 2 });
    assert_eq!(entry(&story, "retried"), expected);
    let kinds: Vec<_> = story
        .timeline
        .iter()
        .map(|entry| entry.kind.as_str())
        .collect();
    assert!(
        !kinds.contains(&"taken_over"),
        "in nobody's hand: {kinds:?}"
    );
    assert_eq!(story.alerts[0].state, "resolved", "the alert settles");
    let again = operate(&live, &retry).with_code(5).saying("is completed");
    assert_eq!(again.object("retry")["sagas"][0]["result"], "conflict");
    live.verified().await;
    service.stop().await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_saga_retried_while_no_coordinator_runs_goes_on_with_the_next_one() {
    let live = strict().await;
    let service = live.start().await;
    parked(&live, &service, &["waits"]).await;
    let id = live.story("waits").await.unwrap().saga.saga_id.to_string();
    service.stop().await;

    let retry = [
        "retry",
        "--saga",
        &id,
        "--reason",
        "night shift",
        "--actor",
        "bob",
    ];
    operate(&live, &retry).with_code(0);
    assert_eq!(live.story("waits").await.unwrap().saga.state, "running");
    let next = live.start().await;

    let story = live.story_in("waits", "completed", AT_ONCE).await;
    assert_eq!(
        (story.saga.run, &entry(&story, "retried")["actor"]),
        (2, &json!("bob"))
    );
    live.verified().await;
    next.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compensated_saga_retried_begins_with_its_first_step() {
    let live = strict().await;
    let service = live.start().await;
    stop(
        &live,
        &service,
        "undone",
        "CancelOrder",
        Answer::Rejected,
        1,
    )
    .await;
    live.story_in("undone", "compensated", SOON).await;

    operate(
        &live,
        &["retry", "--order", "undone", "--reason", "it was a mistake"],
    )
    .with_code(0);

    let story = live.story_in("undone", "completed", AT_ONCE).await;
    assert_eq!(story.saga.run, 2);
    let steps: Vec<_> = story
        .timeline
        .iter()
        .skip_while(|entry| entry.kind != "retried")
        .filter_map(|entry| entry.step.as_deref())
        .collect();
    assert_eq!(steps, ["cancel_order", "replenish_stock"]);
    assert_eq!(live.order("undone").await.status, "cancelled");
    live.verified().await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_lay_parked_for_an_hour_is_late_only_by_what_its_retry_took() {
    let live = strict().await;
    let service = live.start().await;
    let rejected = Answer::Rejected;
    stop(&live, &service, "lay", "CancelOrder", rejected, 1).await;
    live.story_in("lay", "compensated", SOON).await;
    sqlx::query(
        "update shop.orders set placed_at = placed_at - interval '1 hour',
           pay_deadline = pay_deadline - interval '1 hour'",
    )
    .execute(&mut live.database().await)
    .await
    .unwrap();

    operate(&live, &["retry", "--order", "lay", "--reason", "mended"]).with_code(0);
    live.story_in("lay", "completed", AT_ONCE).await;
    operate(&live, &["verify"]).with_code(0);

    sqlx::query(
        r#"update lapse.history set at = at - interval '31 seconds' where entry like '%"retried"%'"#,
    )
    .execute(&mut live.database().await)
    .await
    .unwrap();
    let ended = operate(&live, &["verify"]).with_code(1);
    let report = ended.object("verify");
    let late = report["checks"].as_array().unwrap();
    let late = late.iter().find(|check| check["id"] == "late").unwrap();
    assert_eq!(
        (&late["checked"], &late["violations"]),
        (&json!(1), &json!(1))
    );
    let seconds = late["rows"][0]["late_s"].as_f64().unwrap();
    assert!((31.0..60.0).contains(&seconds), "since the retry: {late}");
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_are_chosen_listed_first_and_resolved_at_a_rate() {
    let live = strict().await;
    let service = live.start().await;
    let ids: Vec<String> = (0..6).map(|n| format!("many-{n}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    parked(&live, &service, &ids).await;
    stop(&live, &service, "other", "CancelOrder", Answer::Rejected, 1).await;
    live.story_in("other", "compensated", SOON).await;
    service.stop().await;
    let class = live.story("many-0").await.unwrap().saga.reason.unwrap();
    let class = lapse_sagas::outcome::error_class(&class);
    let alert = live.story("many-0").await.unwrap().alerts[0]
        .fingerprint
        .clone();
    let count = |args: &[&str]| {
        let args = [&["resolve"], args, &["--dry-run"]].concat();
        operate(&live, &args).with_code(0).object("resolve")["matched"].clone()
    };

    assert_eq!(count(&["--state", "parked"]), 6);
    assert_eq!(count(&["--state", "compensated"]), 1);
    assert_eq!(count(&["--state", "parked", "--class", &class]), 6);
    assert_eq!(count(&["--state", "parked", "--class", "nonesuch"]), 0);
    assert_eq!(count(&["--state", "parked", "--step", "cancel_order"]), 0);
    assert_eq!(
        count(&[
            "--state",
            "parked",
            "--step",
            "replenish_stock",
            "--limit",
            "4"
        ]),
        4
    );
    assert_eq!(count(&["--state", "parked", "--definition", "nonesuch"]), 0);
    assert_eq!(count(&["--alert", &alert]), 6);
    assert_eq!(count(&["--order", "other"]), 1);
    assert_eq!(
        live.story("many-0").await.unwrap().saga.state,
        "parked",
        "nothing was changed"
    );

    let began = Instant::now();
    let all = [
        "resolve", "--state", "parked", "--reason", "by hand", "--rate", "5/s",
    ];
    let answer = operate(&live, &all).with_code(0).object("resolve");

    assert!(
        began.elapsed() >= Duration::from_secs(1),
        "six at five a second: {:?}",
        began.elapsed()
    );
    assert_eq!(
        (&answer["matched"], &answer["done"]),
        (&json!(6), &json!(6))
    );
    for id in ids {
        let story = live.story(id).await.unwrap();
        assert_eq!(story.saga.state, "resolved");
        assert_eq!(entry(&story, "resolved")["reason"], "by hand");
    }
    let open = live.ops.open_alerts().await.unwrap();
    assert_eq!(open.len(), 1, "only the compensated one's: {open:?}");
    operate(&live, &all).with_code(0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_operated_on_is_refused_with_its_state() {
    let live = strict().await;
    let service = live.start().await;
    let placed = live.place("fine", TimeDelta::milliseconds(200)).await;
    live.schedule(&service, &[placed]).await;
    live.story_in("fine", "completed", SOON).await;
    let why = ["--reason", "because"];
    let with_why = |args: &[&str]| operate(&live, &[args, &why].concat());

    with_why(&["resolve", "--order", "fine"])
        .with_code(5)
        .saying("is completed");
    with_why(&["retry", "--order", "nonesuch"])
        .with_code(4)
        .saying("nonesuch");
    let nobody = uuid::Uuid::now_v7().to_string();
    with_why(&["retry", "--saga", &nobody])
        .with_code(4)
        .saying(&nobody);
    with_why(&["retry", "--order", "fine", "--tenant", "other"]).with_code(4);
    with_why(&["retry", "--order", "fine", "--generation", "2"]).with_code(4);
    operate(&live, &["retry", "--order", "fine", "--reason", " "])
        .with_code(3)
        .saying("reason is empty");
    run(lapse_with(&live.config, &["retry", "--order", "fine"]))
        .with_code(2)
        .saying("--reason");
    run(lapse_with(
        &live.config,
        &["retry", "--reason", "all of them"],
    ))
    .with_code(2);
    run(lapse_with(
        &live.config,
        &["retry", "--state", "running", "--reason", "x"],
    ))
    .with_code(2);
    run(lapse_with(
        &live.config,
        &["retry", "--state", "parked", "--rate", "0", "--reason", "x"],
    ))
    .with_code(2);
    service.stop().await;
}

/// Whoever is second finds it moved; here between the choice and the act.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_the_ones_that_moved_meanwhile_are_left_and_told() {
    let live = strict().await;
    let service = live.start().await;
    parked(&live, &service, &["a", "b", "c", "d", "e"]).await;
    service.stop().await;
    let ten = Resting {
        limit: 10,
        ..Resting::default()
    };
    let last = live
        .ops
        .resting(ten)
        .await
        .unwrap()
        .pop()
        .expect("five of them");
    let slow = [
        "retry", "--state", "parked", "--reason", "slowly", "--rate", "1/s",
    ];
    let slow = lapse_with(&live.config, &[&slow[..], &["-o", "json"]].concat());
    let slow = tokio::task::spawn_blocking(move || run(slow));
    until("the first is retried", SOON, || async {
        let sagas = live.sagas().await;
        sagas
            .iter()
            .any(|saga| saga.state == "running")
            .then_some(())
    })
    .await;
    let store =
        PgStore::new(lapse::service::database(&live.config).expect("the test's URL is right"));
    let deed = Deed::new(Act::Resolve, "ann", "quickly").expect("it says something");
    operate_on(&store, &[SagaId(last.saga_id)], &deed)
        .await
        .expect("it is parked still");

    let ended = slow.await.expect("it ends").with_code(7).saying("1 of 5");

    let answer = ended.object("retry");
    assert_eq!((&answer["done"], &answer["left"]), (&json!(4), &json!(1)));
    assert_eq!(answer["sagas"][4]["state"], "resolved");
}
