//! `GET /v1/dead-letters`, `POST /v1/dead-letters/{id}/replay`, `/discard`: records that could not become sagas.
//!
//! Relies on [`crate::replay`]. Never: replays more than one at a time; `lapse dead-letters replay` does many, at a rate.

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Extension, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use lapse_sagas::Timestamp;
use serde::Deserialize;
use serde_json::json;

use super::admit::Caller;
use super::start::unavailable;
use super::{Problem, Site, bad_body};
use crate::operators;
use crate::replay::{Quarantine, Replayed};
use crate::store::ops::LetterFilter;

/// Which letters; the newest first.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    state: Option<String>,
    topic: Option<String>,
    reason: Option<String>,
    since: Option<Timestamp>,
    before: Option<i64>,
    limit: Option<u32>,
}

/// The body of a replay.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Replaying {
    #[serde(default)]
    force: bool,
    actor: Option<String>,
}

/// The body of a discard.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Discarding {
    reason: String,
    actor: Option<String>,
}

pub(super) async fn list(
    State(site): State<Site>,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(asked) = asked.map_err(|rejection| {
        Problem::new(StatusCode::BAD_REQUEST, "bad_query", rejection.body_text())
    })?;
    let filter = LetterFilter {
        states: LetterFilter::states_named(asked.state.as_deref().unwrap_or("all")),
        topic: asked.topic,
        reason: asked.reason,
        since: asked.since,
        before: asked.before,
        limit: asked.limit.unwrap_or(50),
    };
    let letters = site.ops.dead_letters(filter).await.map_err(unavailable)?;
    Ok(Json(json!({ "letters": letters })).into_response())
}

pub(super) async fn replay(
    State(site): State<Site>,
    Path(id): Path<String>,
    Extension(caller): Extension<Caller>,
    body: Result<Json<Replaying>, JsonRejection>,
) -> Result<Response, Problem> {
    let Json(body) = body.map_err(bad_body)?;
    let number = id.parse().map_err(|_| no_letter(&id))?;
    let quarantine = if body.force {
        Quarantine::Overruled
    } else {
        Quarantine::Respected
    };
    let actor = caller.actor(body.actor)?;
    let replayed = site.replay.replay(number, quarantine, &actor).await;
    let replayed = replayed
        .map_err(unavailable)?
        .ok_or_else(|| no_letter(&id))?;
    match &replayed {
        Replayed::Refused { reason, detail, .. } => Err(Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "refused",
            format!("{reason}: {detail}"),
        )
        .with(json!({ "letter": { "id": number, "replay": replayed } }))),
        Replayed::Closed { state } => Err(Problem::new(
            StatusCode::CONFLICT,
            "conflict",
            format!("the letter is {state}"),
        )),
        _ => Ok(Json(json!({ "id": number, "replay": replayed })).into_response()),
    }
}

pub(super) async fn discard(
    State(site): State<Site>,
    Path(id): Path<String>,
    Extension(caller): Extension<Caller>,
    body: Result<Json<Discarding>, JsonRejection>,
) -> Result<Response, Problem> {
    let Json(body) = body.map_err(bad_body)?;
    let number = id.parse().map_err(|_| no_letter(&id))?;
    let reason = operators::line("reason", &body.reason, 1_000)
        .map_err(|words| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", words))?;
    let actor = caller.actor(body.actor)?;
    let discarded = site.replay.discard(number, &reason, &actor).await;
    match discarded.map_err(unavailable)? {
        Some(Ok(())) => Ok(Json(json!({ "id": number, "state": "discarded" })).into_response()),
        Some(Err(state)) => Err(Problem::new(
            StatusCode::CONFLICT,
            "conflict",
            format!("the letter is {state}"),
        )),
        None => Err(no_letter(&id)),
    }
}

fn no_letter(id: &str) -> Problem {
    Problem::new(
        StatusCode::NOT_FOUND,
        "no_letter",
        format!("there is no dead letter {id:?}"),
    )
}
