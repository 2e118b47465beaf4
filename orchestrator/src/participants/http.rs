//! The HTTP client of participants and order owners: one POST, and what its end says about what may have been applied.
//!
//! Relies on docs/participants.md for what a status means. Never: follows a redirect, goes through a proxy, reads more of an
//! answer than it asked for, retries, or prints a token.

use std::error::Error as _;
use std::time::Duration;

use anyhow::{Context, ensure};
use chrono::DateTime;
use lapse_participants::kit::CallError;
use lapse_sagas::outcome::one_line;
use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};
use reqwest::{Certificate, Client, Response, StatusCode, Url};
use serde::Deserialize;

use crate::config::Secret;
use crate::tls;

mod commands;
mod owner;
mod replies;

pub use commands::{HttpParticipant, Style};
pub use owner::HttpOwner;

/// The header of a single command with its id.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// The header that says how long the answer is waited for.
pub const TIMEOUT_MS: &str = "lapse-timeout-ms";

/// A host that drops packets is as unreachable as one that refuses them.
const CONNECTS_WITHIN: Duration = Duration::from_secs(2);
/// Shorter than the 5 s after which a Node server closes an idle connection: a request must not meet the closing.
const IDLE_FOR: Duration = Duration::from_secs(4);
/// So much of an error's body is read, and so much of its words is kept.
const PROBLEM_MAX: usize = 8 * 1024;
const WORDS_MAX: usize = 200;

/// Where somebody is reached, and as whom.
#[derive(Clone, Debug, Default)]
pub struct Address {
    /// Base URL, without query and user.
    pub url: String,
    /// Sent as bearer token; empty: none.
    pub token: Secret,
    /// PEM of the authorities that are believed instead of this machine's; empty: this machine's.
    pub authorities: Vec<u8>,
}

/// One base URL and the connections to it.
#[derive(Clone)]
pub(crate) struct Endpoint {
    client: Client,
    base: String,
    token: Secret,
}

/// One request.
pub(crate) struct Request {
    /// Below the base URL.
    pub path: &'static str,
    /// Beside those that every request has.
    pub headers: Vec<(&'static str, String)>,
    /// JSON, unless it is wrong on purpose.
    pub body: Vec<u8>,
    /// How long the answer is waited for.
    pub timeout: Duration,
}

impl Endpoint {
    pub(crate) fn new(address: &Address) -> anyhow::Result<Endpoint> {
        tls::install();
        Url::parse(&address.url).context("the URL is none")?;
        let mut client = Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECTS_WITHIN)
            .pool_idle_timeout(IDLE_FOR);
        if !address.authorities.is_empty() {
            let authorities = Certificate::from_pem_bundle(&address.authorities)
                .context("the file of authorities is no PEM")?;
            ensure!(
                !authorities.is_empty(),
                "the file of authorities holds no certificate"
            );
            client = client.tls_certs_only(authorities);
        }
        Ok(Endpoint {
            client: client.build().context("set up the HTTP client")?,
            base: address.url.trim_end_matches('/').to_owned(),
            token: address.token.clone(),
        })
    }

    /// The body of a 200, of so many bytes at most.
    async fn post(&self, request: Request, answer_max: usize) -> Result<Vec<u8>, CallError> {
        let response = self.send(request).await?;
        let status = response.status();
        if status == StatusCode::OK {
            return whole(response, answer_max).await;
        }
        let retry_after = retry_after(response.headers());
        let words = problem(response).await;
        Err(refusal(status, retry_after, &words))
    }

    /// Whatever is answered.
    pub(crate) async fn send(&self, request: Request) -> Result<Response, CallError> {
        let mut post = self
            .client
            .post(format!("{}{}", self.base, request.path))
            .header("content-type", "application/json")
            .header(TIMEOUT_MS, request.timeout.as_millis().to_string())
            .timeout(request.timeout)
            .body(request.body);
        for (name, value) in request.headers {
            post = post.header(name, value);
        }
        if !self.token.is_empty() {
            post = post.bearer_auth(self.token.reveal());
        }
        post.send().await.map_err(not_answered)
    }
}

/// The request ended without a status.
fn not_answered(error: reqwest::Error) -> CallError {
    let cause = cause(&error);
    if error.is_builder() {
        return CallError::Configuration(format!("request: {cause}"));
    }
    if error.is_connect() {
        return CallError::Unreachable(cause);
    }
    if error.is_timeout() {
        return CallError::unanswered(format!("timeout: {cause}"));
    }
    CallError::unanswered(format!("connection: {cause}"))
}

/// What lies at the bottom of an error: the URL on its top may be long, and is known.
fn cause(error: &reqwest::Error) -> String {
    let mut words = String::new();
    let mut source = error.source();
    while let Some(error) = source {
        words = error.to_string();
        source = error.source();
    }
    if words.is_empty() {
        "the request failed".to_owned()
    } else {
        words
    }
}

/// The whole answer, unless it is larger than any right answer.
pub(crate) async fn whole(mut response: Response, answer_max: usize) -> Result<Vec<u8>, CallError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(not_answered)? {
        if body.len() + chunk.len() > answer_max {
            return Err(CallError::Unknown(format!(
                "garbage: the answer has more than {answer_max} bytes"
            )));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// The words of an error, for operators: its `detail`, its `title`, or how it begins.
pub(crate) async fn problem(mut response: Response) -> String {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        body.extend_from_slice(&chunk);
        if body.len() > PROBLEM_MAX {
            break;
        }
    }
    body.truncate(PROBLEM_MAX);
    let text = match serde_json::from_slice(&body) {
        Ok(Problem {
            detail: Some(words),
            ..
        })
        | Ok(Problem {
            title: Some(words), ..
        }) => words,
        _ => String::from_utf8_lossy(&body).into_owned(),
    };
    one_line(&text, WORDS_MAX)
}

#[derive(Deserialize)]
struct Problem {
    detail: Option<String>,
    title: Option<String>,
}

/// Seconds, or a date by the clock of whoever sent it.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let then = DateTime::parse_from_rfc2822(text).ok()?;
    let now = DateTime::parse_from_rfc2822(headers.get(DATE)?.to_str().ok()?).ok()?;
    (then - now).max(chrono::TimeDelta::zero()).to_std().ok()
}

/// What a status says about what may have been applied.
fn refusal(status: StatusCode, retry_after: Option<Duration>, words: &str) -> CallError {
    let code = status.as_u16();
    let words = match words {
        "" => format!("http_{code}"),
        words => format!("http_{code}: {words}"),
    };
    match code {
        400 | 413 | 422 => CallError::Data(words),
        423 => CallError::Locked(words),
        409 => CallError::Serialization(words),
        401 | 403 | 404 | 405 => CallError::Configuration(words),
        300..=399 => CallError::Configuration(format!(
            "{words}: redirects are not followed; set the final URL, or see who answers in its place"
        )),
        429 => CallError::Busy {
            error: words,
            retry_after,
        },
        408 | 502 | 503 | 504 => CallError::Unanswered {
            error: words,
            retry_after,
        },
        _ => CallError::Unknown(words),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(list: &[(reqwest::header::HeaderName, &str)]) -> Option<u64> {
        let pairs = list.iter().cloned();
        let headers = pairs.map(|(name, value)| (name, value.parse().expect("a header")));
        retry_after(&headers.collect()).map(|wait| wait.as_secs())
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_by_the_senders_clock() {
        let date = (DATE, "Sat, 14 Feb 2026 18:00:00 GMT");
        assert_eq!(wait(&[(RETRY_AFTER, "7")]), Some(7));
        let later = (RETRY_AFTER, "Sat, 14 Feb 2026 18:00:30 GMT");
        assert_eq!(wait(&[later.clone(), date.clone()]), Some(30));
        let past = (RETRY_AFTER, "Sat, 14 Feb 2026 17:00:00 GMT");
        assert_eq!(wait(&[past, date.clone()]), Some(0));
        assert_eq!(wait(&[later]), None, "by whose clock?");
        assert_eq!(wait(&[(RETRY_AFTER, "soon"), date]), None);
        assert_eq!(wait(&[]), None);
    }
}
