//! Every case of the suite is planted as a bug once, and found by that case.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use lapse::conform::{self, CASES, Subject, Verdict};

use super::model::{Bug, Model};
use super::served::{behind, direct, http, plan, serve};

/// The cases that fail.
async fn failed(subject: &Subject) -> Vec<&'static str> {
    let report = conform::run(subject, chrono::Utc::now()).await.unwrap();
    assert!(!report.ok, "{report:#?}");
    let cases = report.cases.iter();
    let failed = cases.filter(|case| case.result == Verdict::Failed);
    failed
        .map(|case| {
            assert!(case.expected.is_some() && case.came.is_some(), "{case:?}");
            case.case
        })
        .collect()
}

async fn failed_in_process(bug: Bug) -> Vec<&'static str> {
    let model = Arc::new(Model::with(bug));
    let subject = direct(model.clone(), model, plan("CancelOrder", "ReopenOrder"));
    failed(&subject).await
}

async fn failed_over_http(model: Model, spoil: impl FnOnce(Router) -> Router) -> Vec<&'static str> {
    let model = Arc::new(model);
    let server = serve(spoil(http(model.clone()))).await;
    let subject = behind(server, model, plan("CancelOrder", "ReopenOrder"));
    failed(&subject).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_bug_of_a_participant_is_found_by_its_own_case() {
    for (bug, case) in [
        (Bug::DoesNothing, "plain_action"),
        (Bug::RepeatsEffects, "repeated_action"),
        (Bug::IgnoresPayload, "other_payload"),
        (Bug::UndoesTwice, "undone_action"),
        (Bug::UndoesBlindly, "compensation_first"),
        (Bug::ForgetsBlocked, "late_action"),
        (Bug::ChecksThenActs, "concurrent_pair"),
        (Bug::IgnoresExpiry, "expired"),
        (Bug::StoresLater, "slow"),
        (Bug::AppliesHalfABatch, "batch_with_one_bad_command"),
        (Bug::KnowsEverything, "unknown_operation"),
        (Bug::LosesSome, "huge"),
    ] {
        let failed = failed_in_process(bug).await;
        assert!(failed.contains(&case), "{bug:?}: {failed:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_bug_of_a_server_is_found_by_its_own_case() {
    let strict = |router: Router| router.layer(middleware::from_fn(refuse_unknown_fields));
    let failed = failed_over_http(Model::right(), strict).await;
    assert_eq!(failed, ["unknown_fields"]);

    let lenient = |router: Router| router.layer(middleware::from_fn(swallow_garbage));
    let failed = failed_over_http(Model::right(), lenient).await;
    assert_eq!(failed, ["garbage"]);

    let crashing = |router: Router| router.layer(middleware::from_fn(crash_on_large_bodies));
    let failed = failed_over_http(Model::right(), crashing).await;
    assert_eq!(failed, ["huge"]);

    let failed = failed_over_http(Model::with(Bug::StoresLater), |router| router).await;
    assert!(failed.contains(&"reset_in_the_middle"), "{failed:?}");
}

/// A case that no bug is planted for could be one that can't fail.
#[test]
fn every_case_has_its_bug() {
    let source = include_str!("planted.rs");
    for case in CASES {
        let quoted = format!("\"{}\"", case.name);
        assert!(source.contains(&quoted), "no bug for {}", case.name);
    }
}

async fn whole(request: Request) -> (Bytes, Request) {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
    let request = Request::from_parts(parts, Body::from(body.clone()));
    (body, request)
}

async fn refuse_unknown_fields(request: Request, next: Next) -> Response {
    let (body, request) = whole(request).await;
    if String::from_utf8_lossy(&body).contains("conform_later_version") {
        return StatusCode::BAD_REQUEST.into_response();
    }
    next.run(request).await
}

async fn swallow_garbage(request: Request, next: Next) -> Response {
    let (body, request) = whole(request).await;
    if serde_json::from_slice::<serde_json::Value>(&body).is_err() {
        return axum::Json(serde_json::json!([])).into_response();
    }
    next.run(request).await
}

async fn crash_on_large_bodies(request: Request, next: Next) -> Response {
    let (body, request) = whole(request).await;
    if body.len() > 1024 * 1024 {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    next.run(request).await
}
