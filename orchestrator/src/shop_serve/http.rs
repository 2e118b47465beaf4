//! A participant and an order owner over HTTP, as docs/participants.md says.
//!
//! Relies on the participant for every answer and for knowing repetitions. Never: applies a part of a request that it
//! can't read, or answers 200 to what it did not understand.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use lapse_participants::kit::{
    CallError, Command, OrderKey, OrderOwner, Overdue, Participant, Reply,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::http::Problem;
use crate::participants::http::{IDEMPOTENCY_KEY, TIMEOUT_MS};

/// The largest request that is read.
pub const BODY_MAX: usize = 16 * 1024 * 1024;
/// A caller that does not say how long it waits is answered within this.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);

/// What is served.
#[derive(Clone)]
pub struct Served {
    /// Does the operations.
    pub participant: Arc<dyn Participant>,
    /// Knows the orders.
    pub owner: Arc<dyn OrderOwner>,
}

/// All routes.
pub fn router(served: Served) -> Router {
    Router::new()
        .route("/v1/commands", post(commands))
        .route("/v1/overdue-orders", post(overdue_orders))
        .route("/v1/paid-orders", post(paid_orders))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .fallback(|| async {
            Problem::new(StatusCode::NOT_FOUND, "not_found", "there is nothing here")
        })
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .with_state(served)
}

/// Ready: the database answers.
async fn readyz(State(served): State<Served>) -> Result<&'static str, Problem> {
    served.owner.paid(&[]).await.map_err(refused)?;
    Ok("ok\n")
}

/// A batch, or one command.
async fn commands(
    State(served): State<Served>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    if body.trim_ascii_start().first() == Some(&b'{') {
        let command = read_command(read(&body)?)?;
        same_id(&headers, &command)?;
        let replies = call(&served, &headers, std::slice::from_ref(&command)).await?;
        return match replies.into_iter().next() {
            Some(reply) => Ok(axum::Json(reply).into_response()),
            None => Err(refused(CallError::Unknown("no answer".to_owned()))),
        };
    }
    let entries: Vec<&RawValue> = read(&body)?;
    let commands = entries
        .into_iter()
        .map(read_command)
        .collect::<Result<Vec<Command>, Problem>>()?;
    Ok(axum::Json(call(&served, &headers, &commands).await?).into_response())
}

async fn call(
    served: &Served,
    headers: &HeaderMap,
    commands: &[Command],
) -> Result<Vec<Reply>, Problem> {
    let Some(first) = commands.first() else {
        return Ok(Vec::new());
    };
    if let Some(stray) = commands.iter().find(|c| c.operation != first.operation) {
        return Err(unprocessable(format!(
            "command {} is for {}, the first one for {}: a batch has one operation",
            stray.command_id, stray.operation, first.operation
        )));
    }
    let called = served.participant.call(&first.operation, commands);
    match tokio::time::timeout(patience(headers), called).await {
        Ok(answered) => answered.map_err(refused),
        Err(_) => Err(refused(CallError::unanswered("timeout: not done in time"))),
    }
}

/// How long the caller waits: working on for nobody helps nobody.
fn patience(headers: &HeaderMap) -> Duration {
    let header = headers
        .get(TIMEOUT_MS)
        .and_then(|value| value.to_str().ok());
    let told = header.and_then(|text| text.parse().ok());
    told.map_or(ANSWERS_WITHIN, Duration::from_millis)
        .min(ANSWERS_WITHIN)
}

fn read<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, Problem> {
    serde_json::from_slice(body)
        .map_err(|error| Problem::new(StatusCode::BAD_REQUEST, "unreadable", error.to_string()))
}

fn read_command(entry: &RawValue) -> Result<Command, Problem> {
    super::read_command(entry.get().as_bytes()).map_err(unprocessable)
}

fn same_id(headers: &HeaderMap, command: &Command) -> Result<(), Problem> {
    match headers.get(IDEMPOTENCY_KEY) {
        Some(key) if key.as_bytes() != command.command_id.as_str().as_bytes() => Err(
            unprocessable(format!("{IDEMPOTENCY_KEY} is not the command's id")),
        ),
        _ => Ok(()),
    }
}

/// Body of `overdue-orders`.
#[derive(Serialize, Deserialize)]
pub struct OverdueQuery {
    /// Strictly after this position.
    pub after: Option<Position>,
    /// Due at most so long from now.
    #[serde(default)]
    pub ahead_ms: u64,
    /// So many at most.
    pub limit: u32,
}

/// Where a page ended.
#[derive(Serialize, Deserialize)]
pub struct Position {
    /// Due time of the last order.
    pub due_at: lapse_sagas::Timestamp,
    /// The last order.
    pub order: OrderKey,
}

async fn overdue_orders(
    State(served): State<Served>,
    body: Bytes,
) -> Result<axum::Json<Vec<Overdue>>, Problem> {
    let query: OverdueQuery = read(&body)?;
    let after = query.after.map(|position| Overdue {
        order: position.order,
        order_type: String::new(),
        due_at: position.due_at,
    });
    let ahead = Duration::from_millis(query.ahead_ms);
    let page = served
        .owner
        .overdue_orders(after.as_ref(), ahead, query.limit)
        .await;
    Ok(axum::Json(page.map_err(refused)?))
}

async fn paid_orders(
    State(served): State<Served>,
    body: Bytes,
) -> Result<axum::Json<Vec<bool>>, Problem> {
    let orders: Vec<OrderKey> = read(&body)?;
    Ok(axum::Json(
        served.owner.paid(&orders).await.map_err(refused)?,
    ))
}

fn unprocessable(detail: String) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "data", detail)
}

/// The status that tells the caller what may have been applied.
fn refused(error: CallError) -> Problem {
    let (status, code) = match &error {
        CallError::Data(_) => (StatusCode::UNPROCESSABLE_ENTITY, "data"),
        CallError::Locked(_) => (StatusCode::LOCKED, "lock_timeout"),
        CallError::Serialization(_) => (StatusCode::CONFLICT, "serialization"),
        CallError::Configuration(_) => (StatusCode::NOT_FOUND, "configuration"),
        CallError::Busy { .. } => (StatusCode::TOO_MANY_REQUESTS, "busy"),
        CallError::Unreachable(_) => (StatusCode::SERVICE_UNAVAILABLE, "unreachable"),
        CallError::Unanswered { .. } => (StatusCode::GATEWAY_TIMEOUT, "unanswered"),
        CallError::Unknown(_) | CallError::Partly { .. } => {
            (StatusCode::INTERNAL_SERVER_ERROR, "unknown")
        }
    };
    let retry_after = match &error {
        CallError::Busy { retry_after, .. } | CallError::Unanswered { retry_after, .. } => {
            *retry_after
        }
        _ => None,
    };
    let problem = Problem::new(status, code, error.to_string());
    match retry_after {
        Some(wait) => problem.with_header(header::RETRY_AFTER, wait.as_secs().max(1).to_string()),
        None => problem,
    }
}
