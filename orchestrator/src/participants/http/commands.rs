//! A participant behind HTTP: `POST {base}/v1/commands` with a batch, or one request per command.
//!
//! Relies on [`deadline::time_left`] for how long an answer is waited for. Never: sends a command of a refused call to find
//! out more; that is the executor's.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use lapse_participants::kit::{CallError, Command, Participant, Reply, deadline};
use lapse_sagas::Outcome;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::{Address, Endpoint, IDEMPOTENCY_KEY, Request, replies};

const PATH: &str = "/v1/commands";
/// Where nobody says how long an answer is waited for.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How commands are put into requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// All commands of a call in one request.
    Batch,
    /// Each command in a request of its own.
    Single,
}

/// A participant behind HTTP.
pub struct HttpParticipant {
    name: String,
    endpoint: Endpoint,
    style: Style,
    in_flight: usize,
    slots: Arc<Semaphore>,
}

/// By when a request must be on its way, and by when its answer must be there.
#[derive(Clone, Copy)]
struct Times {
    sent: Instant,
    answered: Instant,
}

impl Times {
    /// What was not sent after three quarters of the time is told apart from what was not answered; and an answer is
    /// waited for a little shorter than the caller waits, so that it hears of the others.
    fn from_now() -> Times {
        let left = deadline::time_left().unwrap_or(TIMEOUT);
        let now = Instant::now();
        Times {
            sent: now + left * 3 / 4,
            answered: now + left * 19 / 20,
        }
    }
}

impl HttpParticipant {
    /// `name` as in definitions; `in_flight` requests at a time at most.
    ///
    /// # Errors
    /// If the address is none.
    pub fn new(
        name: &str,
        address: &Address,
        style: Style,
        in_flight: usize,
    ) -> anyhow::Result<HttpParticipant> {
        Ok(HttpParticipant {
            name: name.to_owned(),
            endpoint: Endpoint::new(address)?,
            style,
            in_flight,
            slots: Arc::new(Semaphore::new(in_flight)),
        })
    }

    async fn post(
        &self,
        times: Times,
        headers: Vec<(&'static str, String)>,
        body: &impl Serialize,
        commands: usize,
    ) -> Result<Vec<u8>, CallError> {
        let slot = tokio::time::timeout_at(times.sent, self.slots.acquire()).await;
        let Ok(Ok(_slot)) = slot else {
            return Err(self.too_late());
        };
        if Instant::now() >= times.sent {
            return Err(self.too_late());
        }
        let body = serde_json::to_vec(body)
            .map_err(|error| CallError::Data(format!("command: {error}")))?;
        let request = Request {
            path: PATH,
            headers,
            body,
            timeout: times.answered.saturating_duration_since(Instant::now()),
        };
        let answer_max = replies::max_bytes(commands);
        self.endpoint.post(request, answer_max).await
    }

    fn too_late(&self) -> CallError {
        CallError::Busy {
            error: format!(
                "in_flight: all {} requests to {} took too long to send another",
                self.in_flight, self.name
            ),
            retry_after: None,
        }
    }

    async fn batch(&self, commands: &[Command], times: Times) -> Result<Vec<Reply>, CallError> {
        let body = self
            .post(times, Vec::new(), &commands, commands.len())
            .await?;
        let read = replies::read(&body, commands)?;
        if read.strays > 0 {
            metrics::counter!("lapse_stray_replies_total", "participant" => self.name.clone())
                .increment(read.strays);
        }
        Ok(read.replies)
    }

    async fn one<'c>(
        &self,
        command: &'c Command,
        times: Times,
    ) -> (&'c Command, Result<Reply, CallError>) {
        let key = (IDEMPOTENCY_KEY, command.command_id.to_string());
        let answer = self.post(times, vec![key], command, 1).await;
        (
            command,
            answer.and_then(|body| replies::read_one(&body, command)),
        )
    }

    /// As many at a time as there are slots. Whoever is busy or away is not sent the rest.
    async fn one_by_one(
        &self,
        commands: &[Command],
        times: Times,
    ) -> Result<Vec<Reply>, CallError> {
        let mut unsent = commands.iter();
        let first = unsent.by_ref().take(self.in_flight);
        let mut sent: FuturesUnordered<_> = first.map(|command| self.one(command, times)).collect();
        let mut ends = Ends::default();
        while let Some((command, end)) = sent.next().await {
            ends.note(command, end);
            if !ends.stop
                && let Some(next) = unsent.next()
            {
                sent.push(self.one(next, times));
            }
        }
        ends.sum_up()
    }
}

#[async_trait]
impl Participant for HttpParticipant {
    async fn call(&self, _: &str, commands: &[Command]) -> Result<Vec<Reply>, CallError> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let times = Times::from_now();
        match self.style {
            Style::Batch => self.batch(commands, times).await,
            Style::Single => self.one_by_one(commands, times).await,
        }
    }
}

/// How the single commands of one call ended.
#[derive(Default)]
struct Ends {
    replies: Vec<Reply>,
    answered: bool,
    silence: Option<CallError>,
    held_back: Option<CallError>,
    stop: bool,
}

impl Ends {
    fn note(&mut self, command: &Command, end: Result<Reply, CallError>) {
        let outcome = match end {
            Ok(reply) => {
                self.answered = true;
                reply.outcome
            }
            Err(CallError::Data(error)) => {
                self.answered = true;
                Outcome::Failed {
                    error: format!("data: {error}"),
                }
            }
            Err(CallError::Unknown(error)) => {
                self.answered = true;
                Outcome::Unknown { error }
            }
            Err(CallError::Unanswered { error, retry_after }) => {
                let outcome = Outcome::Unknown {
                    error: error.clone(),
                };
                self.silence = Some(CallError::Unanswered { error, retry_after });
                outcome
            }
            Err(error) => {
                self.stop |= !matches!(error, CallError::Locked(_) | CallError::Serialization(_));
                self.held_back = self.held_back.take().or(Some(error));
                return;
            }
        };
        self.replies.push(Reply {
            command_id: command.command_id.clone(),
            outcome,
        });
    }

    fn sum_up(self) -> Result<Vec<Reply>, CallError> {
        match (self.held_back, self.silence) {
            (Some(rest), _) if self.replies.is_empty() => Err(rest),
            (Some(rest), _) => Err(CallError::Partly {
                replies: self.replies,
                rest: Box::new(rest),
            }),
            (None, Some(silence)) if !self.answered => Err(silence),
            (None, _) => Ok(self.replies),
        }
    }
}
