//! `POST /v1/sagas/{id}/retry`, `/resolve` with `{"reason"}`: what operators do to sagas that stopped.
//!
//! Relies on the row's lock: of two at once one gets 200, the other 409. Never: works without a reason.

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use lapse_sagas::SagaId;
use serde::Deserialize;
use serde_json::json;

use super::admit::Caller;
use super::start::{unavailable, view};
use super::{Problem, Site, bad_body};
use crate::operators::{Act, Deed, Operated, operate};

/// Why, and who where no tokens are set.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Body {
    reason: String,
    actor: Option<String>,
}

pub(super) async fn retry(
    State(site): State<Site>,
    Path(id): Path<String>,
    Extension(caller): Extension<Caller>,
    body: Result<Json<Body>, JsonRejection>,
) -> Response {
    let done = done(&site, Act::Retry, &id, &caller, body).await;
    done.unwrap_or_else(IntoResponse::into_response)
}

pub(super) async fn resolve(
    State(site): State<Site>,
    Path(id): Path<String>,
    Extension(caller): Extension<Caller>,
    body: Result<Json<Body>, JsonRejection>,
) -> Response {
    let done = done(&site, Act::Resolve, &id, &caller, body).await;
    done.unwrap_or_else(IntoResponse::into_response)
}

async fn done(
    site: &Site,
    act: Act,
    id: &str,
    caller: &Caller,
    body: Result<Json<Body>, JsonRejection>,
) -> Result<Response, Problem> {
    let Json(body) = body.map_err(bad_body)?;
    let nothing = || {
        Problem::new(
            StatusCode::NOT_FOUND,
            "no_saga",
            format!("there is no saga {id:?}"),
        )
    };
    let id: SagaId = id.parse().map_err(|_| nothing())?;
    let deed = Deed::new(act, &caller.actor(body.actor)?, &body.reason)
        .map_err(|words| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", words))?;
    let mut operated = operate(site.store.as_ref(), &[id], &deed)
        .await
        .map_err(unavailable)?;
    match operated.pop() {
        None => Err(nothing()),
        Some(Operated {
            saga,
            refused: None,
        }) => Ok(Json(view(&saga)).into_response()),
        Some(Operated {
            saga,
            refused: Some(why),
        }) => Err(
            Problem::new(StatusCode::CONFLICT, "conflict", why.to_string())
                .with(json!({ "saga": view(&saga) })),
        ),
    }
}
