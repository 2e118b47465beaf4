//! The HTTP interface keeps its promises: starts now, says what is wrong, says how it is.

mod admitting;
mod operating;

use std::time::Duration;

use chrono::TimeDelta;
use lapse_participants::fault::Answer;
use reqwest::{Response, StatusCode};
use rust_decimal::Decimal;
use serde_json::{Value, json};

use crate::support::live::{Live, Running, STOCK, on_both_brokers, order_ref};
use crate::support::until;

const SOON: Duration = Duration::from_secs(20);
const START: &str = "/v1/sagas/cancel-and-replenish?wait_ms=5000";

on_both_brokers! {
    a_buyer_cancels_before_the_deadline_and_asking_again_conflicts,
    a_raised_cause_wakes_a_postponed_saga,
}

async fn a_buyer_cancels_before_the_deadline_and_asking_again_conflicts(live: Live) {
    let service = live.start().await;
    let placed = live.place("regretted", TimeDelta::hours(1)).await;
    live.schedule(&service, &[placed]).await;
    let body = json!({ "order_id": "regretted", "order_type": "normal", "cause": "buyer" });

    let started = post(&live, START, &body).await;

    assert_eq!(started.status(), StatusCode::CREATED);
    let saga: Value = started.json().await.unwrap();
    assert_eq!(saga["state"], "completed", "{saga}");
    let order = live.order("regretted").await;
    assert_eq!(order.status, "cancelled");
    assert_eq!(order.cancel_reason.as_deref(), Some("buyer"));
    assert_eq!(live.stock().await.available, Decimal::from(STOCK));

    let again = post(&live, START, &body).await;
    let problem = problem(again, StatusCode::CONFLICT).await;
    assert_eq!(problem["saga"]["state"], "completed");
    assert_eq!(problem["saga"]["saga_id"], saga["saga_id"]);
    assert_eq!(live.sagas().await.len(), 1);
    live.verified().await;
    service.stop().await;
}

async fn a_raised_cause_wakes_a_postponed_saga(live: Live) {
    let service = live.start().await;
    let placed = live.place("extended", TimeDelta::milliseconds(500)).await;
    live.schedule(&service, std::slice::from_ref(&placed)).await;
    let later = placed.due_at + TimeDelta::hours(1);
    live.shop
        .extend(&order_ref("extended"), later)
        .await
        .unwrap();
    until("the saga is postponed", SOON, || async {
        let story = live.story("extended").await?;
        (story.saga.phase.as_deref() == Some("postponed")).then_some(())
    })
    .await;
    let body = json!({ "order_id": "extended", "cause": "operator" });

    let raised = post(&live, START, &body).await;

    assert_eq!(raised.status(), StatusCode::OK);
    let saga: Value = raised.json().await.unwrap();
    assert_eq!(saga["state"], "completed", "{saga}");
    let order = live.order("extended").await;
    assert_eq!(order.cancel_reason.as_deref(), Some("operator"));
    live.verified().await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_request_is_answered_with_a_problem_that_says_what_is_wrong() {
    let live = Live::in_process().await;
    let service = Running::at_once(&live.config).await;
    let good = json!({ "order_id": "o1", "cause": "buyer" });
    let wrong = |change: Value| {
        let mut body = good.clone();
        body.as_object_mut()
            .unwrap()
            .extend(change.as_object().unwrap().clone());
        body
    };
    let long = "x".repeat(201);

    let refused = [
        ("/v1/sagas/nonesuch", good.clone(), 404),
        ("/v1/sagas", good.clone(), 404),
        (START, json!({ "cause": "buyer" }), 422),
        (START, json!([]), 400),
        (START, wrong(json!({ "cause": "boredom" })), 400),
        (START, wrong(json!({ "surprise": 1 })), 400),
        (START, wrong(json!({ "cause": "timeout" })), 422),
        (START, wrong(json!({ "cause": "sweep" })), 422),
        (START, wrong(json!({ "order_id": " " })), 422),
        (START, wrong(json!({ "order_id": long })), 422),
        (START, wrong(json!({ "order_id": "a\u{0}b" })), 422),
        (START, wrong(json!({ "tenant": "a\u{0}b" })), 422),
        (START, wrong(json!({ "order_type": "a\u{0}b" })), 422),
        (START, wrong(json!({ "tenant": "" })), 422),
        (START, wrong(json!({ "generation": 0 })), 422),
        (
            "/v1/sagas/cancel-and-replenish?wait_ms=soon",
            good.clone(),
            400,
        ),
    ];
    for (path, body, status) in refused {
        let answer = post(&live, path, &body).await;
        let status = StatusCode::from_u16(status).unwrap();
        let problem = problem_of(answer, status, &format!("{path} {body}")).await;
        assert!(
            problem["detail"]
                .as_str()
                .is_some_and(|words| words.len() > 5),
            "{problem}"
        );
    }
    let not_json = reqwest::Client::new()
        .post(url(&live, START))
        .header("content-type", "application/json")
        .body("order 17, please")
        .send()
        .await
        .unwrap();
    problem(not_json, StatusCode::BAD_REQUEST).await;
    let no_such_method = get(&live, "/v1/sagas/cancel-and-replenish").await;
    problem(no_such_method, StatusCode::METHOD_NOT_ALLOWED).await;
    let nothing_here = get(&live, "/v2").await;
    problem(nothing_here, StatusCode::NOT_FOUND).await;
    assert!(live.sagas().await.is_empty(), "nothing was started");
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readiness_follows_the_broker_and_says_why() {
    let live = Live::in_process().await;
    let broker = live.broker().expect("it is in this process");
    let service = live.start().await;
    assert_eq!(ready(&live).await.0, StatusCode::OK);

    broker.down();
    let words = until("not ready", SOON, || async {
        let (status, body) = ready(&live).await;
        (status == StatusCode::SERVICE_UNAVAILABLE).then_some(body)
    })
    .await;

    assert_eq!(
        (&words["ready"], &words["postgres"]),
        (&json!(false), &json!(true))
    );
    let kafka = words["kafka"].as_str().expect("words");
    assert!(kafka.starts_with("kafka: "), "{kafka}");
    assert_eq!(
        get(&live, "/livez").await.status(),
        StatusCode::OK,
        "it lives all the same"
    );
    broker.up();
    until("ready again", SOON, || async {
        (ready(&live).await.0 == StatusCode::OK).then_some(())
    })
    .await;
    service.stop().await;
}

/// The recorder is shared by all tests of this process: what is promised is that the counts grow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lateness_and_release_errors_are_counted_in_the_metrics() {
    let live = Live::in_process().await;
    let service = live.start().await;
    let (lateness, errors) = (
        "order_cancel_duration_seconds_count",
        "inventory_release_errors_total{outcome=\"failed\"}",
    );
    let before = (metric(&live, lateness).await, metric(&live, errors).await);
    live.shop
        .set_fault(&order_ref("stumbles"), "ReplenishStock", Answer::Failed, 1)
        .await
        .unwrap();
    let placed = live.place("stumbles", TimeDelta::milliseconds(500)).await;
    live.schedule(&service, &[placed]).await;

    live.story_in("stumbles", "completed", SOON).await;

    assert!(metric(&live, lateness).await > before.0);
    assert!(metric(&live, errors).await > before.1);
    let text = get(&live, "/metrics").await.text().await.unwrap();
    for name in [
        "order_cancel_duration_seconds",
        "inventory_release_errors_total",
        "lapse_sagas_ended_total",
    ] {
        assert!(
            text.contains(&format!("# HELP {name} ")),
            "{name} has a line of help"
        );
    }
    assert!(text.contains("order_cancel_duration_seconds_bucket{le=\"1\"}"));
    service.stop().await;
}

fn url(live: &Live, path: &str) -> String {
    format!("http://{}{path}", live.config.http.listen)
}

async fn get(live: &Live, path: &str) -> Response {
    reqwest::get(url(live, path)).await.expect("it answers")
}

async fn post(live: &Live, path: &str, body: &Value) -> Response {
    let request = reqwest::Client::new().post(url(live, path)).json(body);
    request.send().await.expect("it answers")
}

async fn ready(live: &Live) -> (StatusCode, Value) {
    let answer = get(live, "/readyz").await;
    (answer.status(), answer.json().await.expect("JSON"))
}

/// A sample of `/metrics`; 0 before its first event.
async fn metric(live: &Live, name: &str) -> f64 {
    let text = get(live, "/metrics").await.text().await.unwrap();
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
        .unwrap_or_default()
}

async fn problem(answer: Response, status: StatusCode) -> Value {
    problem_of(answer, status, "the request").await
}

async fn problem_of(answer: Response, status: StatusCode, request: &str) -> Value {
    let (found, content_type) = (
        answer.status(),
        answer.headers().get("content-type").cloned(),
    );
    let text = answer.text().await.unwrap();
    assert_eq!(found, status, "{request}: {text}");
    let content_type = content_type.and_then(|value| value.to_str().ok().map(str::to_owned));
    assert_eq!(
        content_type.as_deref(),
        Some("application/problem+json"),
        "{request}: {text}"
    );
    let problem: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(problem["status"], status.as_u16(), "{request}: {problem}");
    problem
}
