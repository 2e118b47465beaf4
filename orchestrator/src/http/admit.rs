//! Who may come in, and with how much: before any route sees a request.
//!
//! ```text
//! tokens are set, none or an unknown one     401, always the same body      (but /livez and /readyz)
//! none are set, for another host             421   no foreign web page whose name was made to mean this machine comes in
//! a read-only one, anything but GET or HEAD  403
//! a POST that is not JSON                    415   no form of a foreign web page comes in
//! over a mebibyte, or not here in 10 s       413, 408
//! ```
//! Looking a secret up by its hash is safe: how long it takes tells at most something of the hash, and nobody can make a
//! secret whose hash begins as wished and so feel his way. Relies on [`crate::config::Token`]. Never: logs a secret.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Problem;
use crate::config::{Access, Token};
use crate::operators;

/// Largest body; an event may have 256 KiB.
pub(super) const LARGEST_BODY: usize = 1024 * 1024;
/// A body must be here within this.
const BODY_WITHIN: Duration = Duration::from_secs(10);
/// Probes carry no secrets.
const OPEN: [&str; 2] = ["/livez", "/readyz"];

/// Who asks, for histories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// Whoever holds the token of this name.
    Token(Arc<str>),
    /// No tokens are set: anybody on this machine.
    Loopback,
}

impl Caller {
    /// The actor of histories. Without tokens the caller may say who it is, and is `operator` otherwise; with them it is
    /// the token's name.
    pub(super) fn actor(&self, claimed: Option<String>) -> Result<String, Problem> {
        match (self, claimed) {
            (Caller::Token(name), None) => Ok(name.to_string()),
            (Caller::Token(_), Some(_)) => Err(Problem::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "invalid",
                "the actor is the token's name; leave actor out",
            )),
            (Caller::Loopback, None) => Ok("operator".to_owned()),
            (Caller::Loopback, Some(claimed)) => operators::name(&claimed)
                .map_err(|words| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", words)),
        }
    }
}

/// The tokens by hash: whose, and what they may do.
#[derive(Clone)]
pub(super) struct Gate(Arc<HashMap<[u8; 32], Holder>>);

type Holder = (Arc<str>, Access);

impl Gate {
    pub(super) fn new(tokens: &BTreeMap<String, Token>) -> Gate {
        let by_hash =
            |(name, token): (&String, &Token)| (token.hash, (name.as_str().into(), token.access));
        Gate(Arc::new(tokens.iter().map(by_hash).collect()))
    }

    fn admit(&self, request: &Request) -> Result<Caller, Refusal> {
        if OPEN.contains(&request.uri().path()) {
            return Ok(Caller::Loopback);
        }
        if self.0.is_empty() {
            let is_ours = host(request).is_none_or(is_loopback);
            return is_ours
                .then_some(Caller::Loopback)
                .ok_or(Refusal::Elsewhere);
        }
        let secret = bearer(request.headers()).ok_or(Refusal::Unknown)?;
        let (name, access) = self
            .0
            .get(&Token::hash_of(secret))
            .ok_or(Refusal::Unknown)?;
        let looks = matches!(*request.method(), Method::GET | Method::HEAD);
        if *access == Access::ReadOnly && !looks {
            return Err(Refusal::ReadOnly);
        }
        Ok(Caller::Token(name.clone()))
    }
}

/// Why a request may not come in.
#[derive(Clone, Copy)]
enum Refusal {
    Unknown,
    ReadOnly,
    Elsewhere,
}

impl Refusal {
    fn name(self) -> &'static str {
        match self {
            Refusal::Unknown => "unknown",
            Refusal::ReadOnly => "read_only",
            Refusal::Elsewhere => "elsewhere",
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, code, words) = match self {
            Refusal::Unknown => (
                StatusCode::UNAUTHORIZED,
                "unauthorised",
                "a token is needed: Authorization: Bearer …; make one with: lapse token new NAME",
            ),
            Refusal::ReadOnly => (
                StatusCode::FORBIDDEN,
                "read_only",
                "this token may only look",
            ),
            Refusal::Elsewhere => (
                StatusCode::MISDIRECTED_REQUEST,
                "elsewhere",
                "without tokens only requests to localhost, 127.0.0.1 or [::1] are answered; set tokens for others",
            ),
        };
        let mut response = Problem::new(status, code, words).into_response();
        if let Refusal::Unknown = self {
            let realm = HeaderValue::from_static("Bearer realm=\"lapse\"");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, realm);
        }
        response
    }
}

/// The layer over all routes.
pub(super) async fn admit(State(gate): State<Gate>, mut request: Request, next: Next) -> Response {
    let caller = match gate.admit(&request) {
        Ok(caller) => caller,
        Err(refusal) => {
            metrics::counter!("lapse_http_refused_total", "why" => refusal.name()).increment(1);
            return refusal.into_response();
        }
    };
    request.extensions_mut().insert(caller);
    match take_body(request).await {
        Ok(request) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// The request with its body in memory, within limits of size and time.
async fn take_body(request: Request) -> Result<Request, Problem> {
    if *request.method() == Method::POST && !is_json(request.headers()) {
        let words = "send JSON: content-type: application/json";
        return Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "not_json",
            words,
        ));
    }
    let (parts, body) = request.into_parts();
    let whole = Request::from_parts(parts.clone(), body);
    let taken = tokio::time::timeout(BODY_WITHIN, Bytes::from_request(whole, &()));
    match taken.await {
        Ok(Ok(bytes)) => Ok(Request::from_parts(parts, Body::from(bytes))),
        Ok(Err(rejection)) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            let words = format!("a body may have {LARGEST_BODY} bytes");
            Err(Problem::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "too_large",
                words,
            ))
        }
        Ok(Err(rejection)) => Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "bad_body",
            rejection.body_text(),
        )),
        Err(_) => {
            let words = format!("the body was not here within {} s", BODY_WITHIN.as_secs());
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "too_slow", words))
        }
    }
}

/// Whom the request is for; nobody sends none but by hand.
fn host(request: &Request) -> Option<&str> {
    let header = request.headers().get(header::HOST);
    let header = header.map(|host| host.to_str().unwrap_or_default());
    request.uri().authority().map(Authority::as_str).or(header)
}

fn is_loopback(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else {
        return false;
    };
    let name = authority.host().trim_matches(['[', ']']);
    let is_ours = |ip: IpAddr| ip.is_loopback();
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(is_ours)
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, secret) = headers
        .get(header::AUTHORIZATION)?
        .to_str()
        .ok()?
        .split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}

fn is_json(headers: &HeaderMap) -> bool {
    let media_type = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let essence = media_type.and_then(|text| text.split(';').next());
    essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json"))
}
