//! One post and what became of it.

use std::error::Error as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use chrono::{DateTime, TimeDelta};
use lapse_sagas::Timestamp;
use reqwest::{Certificate, Client, Response, StatusCode, Url, redirect};

use super::signature::{Key, Keys};
use crate::config;

/// So much of an answer is read.
const ANSWER_BYTES: usize = 300;
/// A receiver may put us off for so long.
const PUT_OFF_AT_MOST: TimeDelta = TimeDelta::hours(1);

/// A webhook, ready to be called.
pub struct Webhook {
    /// As in the settings.
    pub name: String,
    /// How long a post may take.
    pub timeout: Duration,
    url: Url,
    keys: Keys,
    client: Client,
}

/// What a receiver said that took the post.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// 2xx.
    pub status: u16,
    /// The beginning of the body.
    pub body: String,
}

/// Why a post was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No answer.
    #[error("{0}")]
    Unreachable(String),
    /// Another answer than 2xx.
    #[error("answered {status}{}{body}", if body.is_empty() { "" } else { ": " })]
    Refused {
        /// Its status.
        status: u16,
        /// The beginning of the body.
        body: String,
        /// How long the receiver wants to be left alone.
        retry_after: Option<TimeDelta>,
    },
}

impl Failure {
    /// 410 Gone: the receiver will never take this one.
    pub fn is_final(&self) -> bool {
        matches!(self, Failure::Refused { status, .. } if *status == StatusCode::GONE.as_u16())
    }

    /// How long the receiver wants to be left alone.
    pub fn retry_after(&self) -> Option<TimeDelta> {
        match self {
            Failure::Refused { retry_after, .. } => *retry_after,
            Failure::Unreachable(_) => None,
        }
    }
}

impl Webhook {
    pub(super) fn open(name: &str, settings: &config::Webhook) -> anyhow::Result<Webhook> {
        let present = key(&settings.secret, &settings.secret_file)?.context("secret is missing")?;
        let before = key(&settings.previous_secret, &settings.previous_secret_file)?;
        let timeout = settings.timeout.into();
        crate::tls::install();
        let mut builder = Client::builder()
            .user_agent(concat!("lapse/", env!("CARGO_PKG_VERSION")))
            .redirect(redirect::Policy::none())
            .no_proxy()
            .timeout(timeout);
        let ca_file = &settings.ca_file;
        if !ca_file.as_os_str().is_empty() {
            let pem =
                std::fs::read(ca_file).with_context(|| format!("read {}", ca_file.display()))?;
            let certificates = Certificate::from_pem_bundle(&pem)
                .ok()
                .filter(|found| !found.is_empty())
                .with_context(|| format!("{} holds no certificate", ca_file.display()))?;
            builder = builder.tls_certs_only(certificates);
        }
        Ok(Webhook {
            name: name.to_owned(),
            timeout,
            url: super::address(&settings.url, settings.plaintext)?,
            keys: Keys::new(present, before),
            client: builder.build().context("make an HTTP client")?,
        })
    }

    /// The host it is at: all that may be known of its address.
    pub fn host(&self) -> &str {
        self.url.host_str().unwrap_or_default()
    }

    /// Posts a body once.
    ///
    /// # Errors
    /// If it was not taken.
    pub async fn post(&self, id: &str, body: &str, now: Timestamp) -> Result<Answer, Failure> {
        let timestamp = now.timestamp();
        let sent = self
            .client
            .post(self.url.clone())
            .header("content-type", "application/json")
            .header("webhook-id", id)
            .header("webhook-timestamp", timestamp)
            .header(
                "webhook-signature",
                self.keys.signature(id, timestamp, body),
            )
            .body(body.to_owned())
            .send()
            .await;
        let mut response = sent.map_err(|error| self.unreachable(error))?;
        let status = response.status();
        let retry_after = retry_after(&response, now);
        let body = beginning(&mut response).await;
        if status.is_success() {
            return Ok(Answer {
                status: status.as_u16(),
                body,
            });
        }
        Err(Failure::Refused {
            status: status.as_u16(),
            body,
            retry_after,
        })
    }

    fn unreachable(&self, error: reqwest::Error) -> Failure {
        if error.is_timeout() {
            return Failure::Unreachable(format!("no answer within {:?}", self.timeout));
        }
        let error = error.without_url();
        let mut words = error.to_string();
        let mut cause = error.source();
        while let Some(deeper) = cause {
            words = format!("{words}: {deeper}");
            cause = deeper.source();
        }
        Failure::Unreachable(words)
    }
}

fn key(secret: &config::Secret, file: &Path) -> anyhow::Result<Option<Key>> {
    if !secret.is_empty() {
        return Key::parse(secret.reveal()).map(Some);
    }
    if file.as_os_str().is_empty() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    Key::parse(&text)
        .with_context(|| file.display().to_string())
        .map(Some)
}

/// Seconds or a date.
fn retry_after(response: &Response, now: Timestamp) -> Option<TimeDelta> {
    let text = response.headers().get("retry-after")?.to_str().ok()?.trim();
    let wait = match text.parse::<i64>() {
        Ok(seconds) => TimeDelta::try_seconds(seconds).unwrap_or(PUT_OFF_AT_MOST),
        Err(_) => DateTime::parse_from_rfc2822(text).ok()?.to_utc() - now,
    };
    Some(wait.clamp(TimeDelta::zero(), PUT_OFF_AT_MOST))
}

/// The beginning of a body, as one line; what can't be read is left out: the status said enough.
async fn beginning(response: &mut Response) -> String {
    let mut bytes = Vec::new();
    while bytes.len() < ANSWER_BYTES
        && let Ok(Some(chunk)) = response.chunk().await
    {
        bytes.extend_from_slice(&chunk[..chunk.len().min(ANSWER_BYTES - bytes.len())]);
    }
    let text = String::from_utf8_lossy(&bytes);
    let words: Vec<&str> = text
        .split(|letter: char| letter.is_control() || letter.is_whitespace())
        .filter(|word| !word.is_empty())
        .collect();
    words.join(" ")
}
