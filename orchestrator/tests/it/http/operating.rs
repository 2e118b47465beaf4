//! Operators over HTTP: retry, resolve, dead letters; the token's name is the actor.

use std::time::Duration;

use chrono::TimeDelta;
use lapse::config::{Access, Token};
use lapse::store::ops::LetterFilter;
use lapse_participants::fault::Answer;
use reqwest::{Response, StatusCode};
use serde_json::{Value, json};

use super::{get, metric, post, problem, url};
use crate::support::live::{Live, Running, order_ref};
use crate::support::{topic, until};

const SOON: Duration = Duration::from_secs(20);

/// An order whose saga was compensated, because its owner refused to cancel it once.
async fn compensated(live: &Live, service: &Running, order_id: &str) -> String {
    live.shop
        .set_fault(&order_ref(order_id), "CancelOrder", Answer::Rejected, 1)
        .await
        .unwrap();
    let placed = live.place(order_id, TimeDelta::milliseconds(200)).await;
    live.schedule(service, &[placed]).await;
    let story = live.story_in(order_id, "compensated", SOON).await;
    story.saga.saga_id.to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_operators_at_once_one_is_done_and_one_conflicts() {
    let live = Live::in_process().await;
    let service = live.start().await;
    let id = compensated(&live, &service, "contested").await;
    let path = format!("/v1/sagas/{id}/retry");
    let (ann, bob) = (
        json!({ "reason": "ann saw it", "actor": "ann" }),
        json!({ "reason": "bob saw it", "actor": "bob" }),
    );

    let (first, second) = tokio::join!(post(&live, &path, &ann), post(&live, &path, &bob));

    let mut statuses = [first.status().as_u16(), second.status().as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409]);
    let (done, refused) = if first.status() == StatusCode::OK {
        (first, second)
    } else {
        (second, first)
    };
    let saga: Value = done.json().await.unwrap();
    assert_eq!((&saga["saga_id"], &saga["run"]), (&json!(id), &json!(2)));
    let refused = problem(refused, StatusCode::CONFLICT).await;
    assert_eq!(refused["saga"]["saga_id"], json!(id));
    let story = live.story_in("contested", "completed", SOON).await;
    let retries = story
        .timeline
        .iter()
        .filter(|entry| entry.kind == "retried");
    assert_eq!(retries.count(), 1);
    live.verified().await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_operator_may_not_do_is_answered_with_a_problem() {
    let live = Live::in_process().await;
    let service = live.start().await;
    let id = compensated(&live, &service, "refused").await;
    let resolve = format!("/v1/sagas/{id}/resolve");
    let why = json!({ "reason": "by hand" });
    for (body, status) in [
        (json!({}), 400),
        (json!({ "reason": " " }), 422),
        (json!({ "reason": "x", "actor": "" }), 422),
        (json!({ "reason": "x".repeat(1_001) }), 422),
        (json!({ "reason": "x", "surprise": 1 }), 400),
    ] {
        problem(
            post(&live, &resolve, &body).await,
            StatusCode::from_u16(status).unwrap(),
        )
        .await;
    }
    let nobody = uuid::Uuid::now_v7();
    for unknown in [
        nobody.to_string(),
        uuid::Uuid::nil().to_string(),
        "x".to_owned(),
    ] {
        let path = format!("/v1/sagas/{unknown}/retry");
        problem(post(&live, &path, &why).await, StatusCode::NOT_FOUND).await;
    }

    let done = post(&live, &resolve, &why).await;

    assert_eq!(done.status(), StatusCode::OK);
    let saga: Value = done.json().await.unwrap();
    assert_eq!(saga["state"], "resolved");
    let again = problem(post(&live, &resolve, &why).await, StatusCode::CONFLICT).await;
    assert_eq!(again["saga"]["state"], "resolved");
    assert!(
        live.ops.open_alerts().await.unwrap().is_empty(),
        "its alert settles"
    );
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_tokens_the_actor_is_the_token_s_name_and_nobody_else() {
    let mut live = Live::in_process().await;
    let (secret, token) = Token::generate(Access::Full).expect("there is randomness");
    live.config
        .http
        .tokens
        .insert("night-shift".to_owned(), token);
    let service = live.start().await;
    let id = compensated(&live, &service, "signed").await;
    let retry = |body: Value| {
        let request = reqwest::Client::new().post(url(&live, &format!("/v1/sagas/{id}/retry")));
        let request = request.bearer_auth(&secret).json(&body);
        async move { request.send().await.expect("it answers") }
    };

    let forged = retry(json!({ "reason": "x", "actor": "somebody" })).await;
    problem(forged, StatusCode::UNPROCESSABLE_ENTITY).await;
    let done: Response = retry(json!({ "reason": "x" })).await;

    assert_eq!(done.status(), StatusCode::OK);
    let story = live.story_in("signed", "completed", SOON).await;
    let retried = story.timeline.iter().find(|entry| entry.kind == "retried");
    let detail = retried
        .and_then(|entry| entry.detail.clone())
        .unwrap_or_default();
    assert_eq!(detail["actor"], "night-shift");
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_are_listed_replayed_and_discarded() {
    let mut live = Live::in_process().await;
    live.config.sweep.enabled = false;
    let service = live.start().await;
    let bad = [("bad", b"{".to_vec())];
    topic::produce(&live.config.kafka.brokers, &live.topic("schedule"), &bad).await;
    let letter = until("a dead letter", SOON, || async {
        let filter = LetterFilter {
            limit: 2,
            ..LetterFilter::default()
        };
        live.ops.dead_letters(filter).await.unwrap().pop()
    })
    .await;
    let none = json!({});

    let listed = get(&live, "/v1/dead-letters?state=open&reason=not_json").await;
    let listed: Value = listed.json().await.unwrap();
    assert_eq!(listed["letters"][0]["id"], letter.id);
    problem(
        get(&live, "/v1/dead-letters?colour=red").await,
        StatusCode::BAD_REQUEST,
    )
    .await;
    let replay = format!("/v1/dead-letters/{}/replay", letter.id);
    for state in ["open", "open", "quarantined"] {
        let refused = problem(
            post(&live, &replay, &none).await,
            StatusCode::UNPROCESSABLE_ENTITY,
        )
        .await;
        assert_eq!(refused["letter"]["replay"]["state"], state);
        assert_eq!(refused["letter"]["replay"]["reason"], "not_json");
    }
    problem(post(&live, &replay, &none).await, StatusCode::CONFLICT).await;
    let forced = json!({ "force": true });
    problem(
        post(&live, &replay, &forced).await,
        StatusCode::UNPROCESSABLE_ENTITY,
    )
    .await;
    until("the gauge follows", SOON, || async {
        (metric(&live, "lapse_dead_letters{state=\"quarantined\"}").await >= 1.0).then_some(())
    })
    .await;
    let discard = format!("/v1/dead-letters/{}/discard", letter.id);
    for actor in [" ", "ann\nbob"] {
        let forged = json!({ "reason": "nobody's", "actor": actor });
        problem(
            post(&live, &discard, &forged).await,
            StatusCode::UNPROCESSABLE_ENTITY,
        )
        .await;
    }
    let why = json!({ "reason": "nobody's" });
    assert_eq!(post(&live, &discard, &why).await.status(), StatusCode::OK);
    let discarded = live.ops.dead_letter(letter.id).await.unwrap().unwrap().row;
    assert_eq!(discarded.resolved_by.as_deref(), Some("operator"));
    problem(post(&live, &discard, &why).await, StatusCode::CONFLICT).await;
    problem(
        post(&live, "/v1/dead-letters/77/replay", &none).await,
        StatusCode::NOT_FOUND,
    )
    .await;
    problem(
        post(&live, "/v1/dead-letters/x/discard", &why).await,
        StatusCode::NOT_FOUND,
    )
    .await;
    service.stop().await;
}
