//! The HTTP interface: start now, retry, resolve, dead letters, probes, metrics. Errors are `application/problem+json`.
//!
//! Relies on `admit` before every route, and on the executor and the store for every change. Never: listens on anything
//! but loopback without tokens (settings refuse it).

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Router, middleware};
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::bus::Bus;
use crate::clock::Clock;
use crate::config::Token;
use crate::definitions::Definitions;
use crate::executor::Executor;
use crate::replay::Replay;
use crate::store::Store;
use crate::store::ops::Ops;

mod admit;
mod dead_letters;
mod operate;
mod serve;
mod start;

pub use serve::serve;

/// What the routes need.
#[derive(Clone)]
pub struct Site {
    /// Starts and hurries sagas.
    pub executor: Arc<Executor>,
    /// Looks sagas up.
    pub store: Arc<dyn Store>,
    /// Looks without locking.
    pub ops: Ops,
    /// Readiness.
    pub bus: Arc<dyn Bus>,
    /// By name.
    pub definitions: Arc<Definitions>,
    /// For new ids.
    pub clock: Arc<dyn Clock>,
    /// Replays dead letters.
    pub replay: Replay,
    /// Who may come in.
    pub tokens: BTreeMap<String, Token>,
    /// Renders `/metrics`.
    pub metrics: PrometheusHandle,
    /// Cancelled when a part of the coordinator has ended by itself.
    pub failed: CancellationToken,
}

/// Every route: method, path, what is there. One that is not in this list is not there.
fn routes() -> Vec<(&'static str, &'static str, MethodRouter<Site>)> {
    vec![
        ("GET", "/livez", get(livez)),
        ("GET", "/readyz", get(readyz)),
        ("GET", "/metrics", get(metrics)),
        ("POST", "/v1/sagas/{id}", post(start::start)),
        ("POST", "/v1/sagas/{id}/retry", post(operate::retry)),
        ("POST", "/v1/sagas/{id}/resolve", post(operate::resolve)),
        ("GET", "/v1/dead-letters", get(dead_letters::list)),
        (
            "POST",
            "/v1/dead-letters/{id}/replay",
            post(dead_letters::replay),
        ),
        (
            "POST",
            "/v1/dead-letters/{id}/discard",
            post(dead_letters::discard),
        ),
    ]
}

/// Method and path of every route.
pub fn paths() -> Vec<(&'static str, &'static str)> {
    routes()
        .into_iter()
        .map(|(method, path, _)| (method, path))
        .collect()
}

/// All routes behind `admit`, which nothing gets around: it is the outermost layer, over the fallbacks too.
pub fn router(site: Site) -> Router {
    let gate = admit::Gate::new(&site.tokens);
    let add = |router: Router<Site>, (_, path, route)| router.route(path, route);
    routes()
        .into_iter()
        .fold(Router::new(), add)
        .fallback(|| async {
            Problem::new(StatusCode::NOT_FOUND, "not_found", "there is nothing here")
        })
        .method_not_allowed_fallback(|| async {
            let words = "this path has another method";
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", words)
        })
        .layer(middleware::from_fn_with_state(gate, admit::admit))
        .layer(DefaultBodyLimit::max(admit::LARGEST_BODY))
        .with_state(site)
}

/// What is wrong with a body: 415, 413, or 400 for whatever is wrong inside.
fn bad_body(rejection: JsonRejection) -> Problem {
    let status = match rejection.status() {
        status @ (StatusCode::UNSUPPORTED_MEDIA_TYPE | StatusCode::PAYLOAD_TOO_LARGE) => status,
        _ => StatusCode::BAD_REQUEST,
    };
    Problem::new(status, "bad_body", rejection.body_text())
}

/// Alive: every part of the coordinator runs. Says nothing of Postgres or Kafka: their outage is no reason to restart.
async fn livez(State(site): State<Site>) -> Response {
    if site.failed.is_cancelled() {
        let words = "a part of the coordinator ended by itself; see the log";
        return (StatusCode::INTERNAL_SERVER_ERROR, words).into_response();
    }
    "ok\n".into_response()
}

/// Ready: the database answers and records are being received.
async fn readyz(State(site): State<Site>) -> Response {
    let postgres = site.store.now().await.is_ok();
    let trouble = site.bus.trouble();
    let trouble = trouble.or_else(|| site.executor.deaf());
    let ready = postgres && trouble.is_none();
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let kafka = trouble.unwrap_or_else(|| "ok".to_owned());
    (
        status,
        axum::Json(json!({ "ready": ready, "postgres": postgres, "kafka": kafka })),
    )
        .into_response()
}

async fn metrics(State(site): State<Site>) -> Response {
    metrics::gauge!("lapse_sagas_held").set(site.executor.held() as f64);
    (
        [(header::CONTENT_TYPE, "text/plain; version=0.0.4")],
        site.metrics.render(),
    )
        .into_response()
}

/// An error as `application/problem+json` (RFC 9457).
pub(crate) struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    more: serde_json::Value,
    header: Option<Box<(header::HeaderName, String)>>,
}

impl Problem {
    pub(crate) fn new(
        status: StatusCode,
        code: &'static str,
        detail: impl Into<String>,
    ) -> Problem {
        Problem {
            status,
            code,
            detail: detail.into(),
            more: serde_json::Value::Null,
            header: None,
        }
    }

    fn with(mut self, more: serde_json::Value) -> Problem {
        self.more = more;
        self
    }

    pub(crate) fn with_header(mut self, name: header::HeaderName, value: String) -> Problem {
        self.header = Some(Box::new((name, value)));
        self
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut body = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or("error"),
            "status": self.status.as_u16(),
            "code": self.code,
            "detail": self.detail,
        });
        if let (Some(fields), serde_json::Value::Object(more)) = (body.as_object_mut(), self.more) {
            fields.extend(more);
        }
        (
            self.status,
            [(header::CONTENT_TYPE, "application/problem+json")],
            axum::response::AppendHeaders(self.header.map(|header| *header)),
            body.to_string(),
        )
            .into_response()
    }
}
