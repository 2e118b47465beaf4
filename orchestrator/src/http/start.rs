//! `POST /v1/sagas/{definition}?wait_ms=`: start now, or hurry what is already on its way.
//!
//! ```text
//! no saga of this key            started                                   201
//! running, lower cause           the cause is raised; a postponed one wakes  200
//! running, same or higher cause  nothing to change                         200
//! compensating, parked, at rest  refused with its state                    409
//! ```
//! Relies on the saga key: asking twice starts once. Never: shortens a retry delay.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use lapse_participants::kit::OrderKey;
use lapse_sagas::{Cause, OrderEvent, Refused};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Problem, Site, bad_body};
use crate::intake;
use crate::store::{self, Decision, Saga, Started, Which};

/// The longest `wait_ms`.
const WAIT_MAX_MS: u64 = 30_000;
/// How often a waiting request looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The body of a start.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Body {
    #[serde(default)]
    order_id: Value,
    #[serde(default)]
    order_type: Value,
    #[serde(default)]
    tenant: Value,
    #[serde(default)]
    generation: Value,
    cause: Cause,
    /// Kept as the saga's event.
    #[serde(default)]
    event: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wait {
    #[serde(default)]
    wait_ms: u64,
}

impl Body {
    /// What names the order, as an event would: an order must have one key, whoever names it.
    fn naming(&self) -> Value {
        let named = [
            ("order_id", &self.order_id),
            ("order_type", &self.order_type),
            ("tenant", &self.tenant),
            ("generation", &self.generation),
        ];
        named
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(field, value)| (field.to_owned(), value.clone()))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }
}

pub(super) async fn start(
    State(site): State<Site>,
    Path(definition): Path<String>,
    wait: Result<Query<Wait>, QueryRejection>,
    body: Result<Json<Body>, JsonRejection>,
) -> Response {
    let answer = match (wait, body) {
        (Ok(Query(wait)), Ok(Json(body))) => {
            start_checked(&site, &definition, body, wait.wait_ms.min(WAIT_MAX_MS)).await
        }
        (Err(rejection), _) => {
            let words = rejection.body_text();
            Err(Problem::new(StatusCode::BAD_REQUEST, "bad_query", words))
        }
        (_, Err(rejection)) => Err(bad_body(rejection)),
    };
    answer.unwrap_or_else(IntoResponse::into_response)
}

async fn start_checked(
    site: &Site,
    name: &str,
    body: Body,
    wait_ms: u64,
) -> Result<Response, Problem> {
    let invalid = |detail: &str| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail);
    let named = OrderEvent::parse(body.naming().to_string().as_bytes())
        .map_err(|bad| invalid(&format!("{}: {}", bad.reason, bad.detail)))?;
    if body.cause.respects_due_time() {
        return Err(invalid(
            "cause must be buyer or operator; timers and the sweep start by themselves",
        ));
    }
    let definition = site.definitions.named(name).ok_or_else(|| {
        Problem::new(
            StatusCode::NOT_FOUND,
            "no_definition",
            format!("there is no active definition {name:?}"),
        )
    })?;
    let order_type = named.order_type.unwrap_or_default();
    if !order_type.is_empty() && definition.body.trigger.delay(&order_type).is_none() {
        return Err(invalid(&format!(
            "{name} does not start for orders of type {order_type}"
        )));
    }
    let order = OrderKey {
        tenant: named.tenant,
        order_id: named.order_id,
        generation: named.generation,
    };
    let event = if body.event.is_null() {
        named.raw
    } else {
        body.event
    };
    let now = site.clock.now();
    let start = intake::start(
        &definition,
        order.clone(),
        &order_type,
        body.cause,
        None,
        event,
        now,
    );
    let started = site
        .executor
        .start(vec![start])
        .await
        .map_err(unavailable)?;
    let (status, saga) = match started.into_iter().next() {
        Some(Started::New(saga)) => (StatusCode::CREATED, *saga),
        _ => (StatusCode::OK, raise(site, name, &order, body.cause).await?),
    };
    let saga = wait_for_rest(site, saga, wait_ms).await?;
    Ok((status, Json(view(&saga))).into_response())
}

/// The saga exists: its cause may be raised.
async fn raise(
    site: &Site,
    definition: &str,
    order: &OrderKey,
    cause: Cause,
) -> Result<Saga, Problem> {
    let which = Which::Key {
        definition: definition.to_owned(),
        order: order.clone(),
    };
    match site
        .executor
        .raise(which.clone(), cause)
        .await
        .map_err(unavailable)?
    {
        Some(Ok(saga)) => Ok(saga),
        Some(Err(Refused::Unchanged)) => look(site, which).await,
        Some(Err(why)) => {
            let saga = look(site, which).await?;
            Err(
                Problem::new(StatusCode::CONFLICT, "conflict", why.to_string())
                    .with(json!({ "saga": view(&saga) })),
            )
        }
        None => Err(gone()),
    }
}

/// The saga at rest, or as it is when the time is up.
async fn wait_for_rest(site: &Site, saga: Saga, wait_ms: u64) -> Result<Saga, Problem> {
    let deadline = tokio::time::Instant::now() + Duration::from_millis(wait_ms);
    if wait_ms == 0 || !saga.state.status.is_live() {
        return Ok(saga);
    }
    while site.ops.is_live(saga.id).await.map_err(unavailable)?
        && tokio::time::Instant::now() < deadline
    {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    look(site, Which::Ids(vec![saga.id])).await
}

async fn look(site: &Site, which: Which) -> Result<Saga, Problem> {
    let leave: store::Decide = std::sync::Arc::new(|_, _| Decision::Leave);
    let mut found = site.store.revise(which, leave).await.map_err(unavailable)?;
    found.pop().map(|revised| revised.saga).ok_or_else(gone)
}

fn gone() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "gone", "the saga is gone; ask again")
}

pub(super) fn unavailable(error: store::Error) -> Problem {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "unavailable",
        error.to_string(),
    )
}

pub(super) fn view(saga: &Saga) -> Value {
    json!({
        "saga_id": saga.id,
        "definition": saga.name,
        "tenant": saga.order.tenant,
        "order_id": saga.order.order_id,
        "generation": saga.order.generation,
        "state": saga.state.status.name(),
        "reason": match &saga.state.status {
            lapse_sagas::Status::Skipped { reason } => Some(reason),
            _ => None,
        },
        "cause": saga.state.cause,
        "run": saga.state.run,
        "wake_at": saga.state.wake_at(),
        "failure": saga.state.failure,
        "stuck": saga.state.stuck,
    })
}
