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
use lapse_sagas::{CommandId, Outcome};
use serde::Serialize;
use tokio::sync::{Semaphore, SemaphorePermit};
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

    /// A place among the requests, in time.
    async fn slot(&self, times: Times) -> Option<SemaphorePermit<'_>> {
        let slot = tokio::time::timeout_at(times.sent, self.slots.acquire());
        let slot = slot.await.ok()?.ok()?;
        (Instant::now() < times.sent).then_some(slot)
    }

    async fn post(
        &self,
        times: Times,
        headers: Vec<(&'static str, String)>,
        body: &impl Serialize,
        commands: usize,
    ) -> Result<Vec<u8>, CallError> {
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
        let Some(_slot) = self.slot(times).await else {
            return Err(self.too_late());
        };
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

    /// None if it was not sent in time.
    async fn one(
        &self,
        command: &Command,
        times: Times,
    ) -> (CommandId, Option<Result<Reply, CallError>>) {
        let id = command.command_id.clone();
        let Some(_slot) = self.slot(times).await else {
            return (id, None);
        };
        let key = (IDEMPOTENCY_KEY, id.to_string());
        let answer = self.post(times, vec![key], command, 1).await;
        let reply = answer.and_then(|body| replies::read_one(&body, command));
        (id, Some(reply))
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
        while let Some((id, end)) = sent.next().await {
            match end {
                Some(end) => ends.note(id, end),
                None => ends.not_sent = Some(self.too_late()),
            }
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
    not_sent: Option<CallError>,
    stop: bool,
}

impl Ends {
    fn note(&mut self, id: CommandId, end: Result<Reply, CallError>) {
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
                self.answered |= !matches!(error, CallError::Unreachable(_));
                self.stop |= !matches!(error, CallError::Locked(_) | CallError::Serialization(_));
                self.held_back = self.held_back.take().or(Some(error));
                return;
            }
        };
        self.replies.push(Reply {
            command_id: id,
            outcome,
        });
    }

    fn sum_up(self) -> Result<Vec<Reply>, CallError> {
        let nobody = self.silence.filter(|_| !self.answered);
        let rest = self.held_back.or(self.not_sent);
        match (rest, nobody) {
            (Some(rest), _) if self.replies.is_empty() => Err(rest),
            (Some(rest), nobody) => Err(CallError::Partly {
                replies: self.replies,
                rest: Box::new(nobody.unwrap_or(rest)),
            }),
            (None, Some(silence)) => Err(silence),
            (None, None) => Ok(self.replies),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(all: [Result<Reply, CallError>; 2]) -> Result<Vec<Reply>, CallError> {
        let mut ends = Ends::default();
        for (id, end) in ["a:do", "b:do"].into_iter().zip(all) {
            ends.note(CommandId::from(id), end);
        }
        ends.sum_up()
    }

    fn reset() -> Result<Reply, CallError> {
        Err(CallError::unanswered("reset"))
    }

    fn refused() -> Result<Reply, CallError> {
        Err(CallError::Unreachable("refused".to_owned()))
    }

    #[test]
    fn whoever_dies_in_the_middle_has_answered_nothing() {
        let Err(CallError::Partly { replies, rest }) = ends([reset(), refused()]) else {
            panic!("the first may have been applied, the second was not");
        };
        assert_eq!(replies.len(), 1);
        assert!(matches!(*rest, CallError::Unanswered { .. }), "{rest:?}");
    }

    #[test]
    fn one_answer_shows_that_somebody_is_there() {
        let done = Reply {
            command_id: CommandId::from("a:do"),
            outcome: Outcome::Superseded,
        };
        let Err(CallError::Partly { rest, .. }) = ends([Ok(done), refused()]) else {
            panic!("the second was not applied");
        };
        assert!(matches!(*rest, CallError::Unreachable(_)), "{rest:?}");
    }
}
