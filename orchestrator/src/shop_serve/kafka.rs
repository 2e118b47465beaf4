//! A participant over Kafka, as docs/participants.md says.
//!
//! ```text
//! commands ─► by operation ─► participant, patiently ─► offsets committed ─► answers produced
//! ```
//! Relies on the participant for knowing repetitions. A crash between commit and answer costs the coordinator a time-out,
//! nothing else. Never: produces an answer before the offset of its command is committed: a copy of a command that was
//! answered `failed` would come again after a crash and apply when nobody expects it to.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use lapse_participants::kit::answer::{About, Answer};
use lapse_participants::kit::{CallError, Command, Participant, deadline};
use lapse_sagas::Outcome;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use crate::bus::{Delivery, Origin, Outlet, Publish, REPLIES};
use crate::feed::{Feed, Record, rounds};

/// Commands per batch at most.
const BATCH_MAX: usize = 500;
/// A call that hangs for longer is made again.
const CALL_WITHIN: Duration = Duration::from_secs(5);
/// The first pause before a batch is tried again; twice as long each time, up to so long.
const AGAIN_AFTER: Duration = Duration::from_millis(50);
const AGAIN_AFTER_AT_MOST: Duration = Duration::from_secs(2);
/// So often is a single command tried whose locks are not to be had, and a batch of which nobody knows what becomes of it,
/// before those behind it go on.
const TRIES: u32 = 5;
/// So often, for about a minute, where nothing else is answered either.
const LONE_TRIES: u32 = 30;
/// A batch in hand has so long after the stop.
const FINISH_WITHIN: Duration = Duration::from_secs(6);

/// Takes commands from topics and answers them.
pub struct Server {
    /// The topics of commands.
    pub feed: Arc<dyn Feed>,
    /// Where answers go.
    pub outlet: Arc<dyn Outlet>,
    /// Does the operations.
    pub participant: Arc<dyn Participant>,
    /// The operations it knows.
    pub operations: &'static [&'static str],
}

/// A command and where it came from.
#[derive(Clone)]
struct Received {
    origin: Origin,
    command: Command,
}

/// An answer, to be produced once its command is committed.
struct Ready {
    origin: Origin,
    key: String,
    answer: Answer,
}

impl Server {
    /// Serves until stopped; a batch in hand is finished then.
    pub async fn run(&self, stop: &CancellationToken) {
        loop {
            let records = tokio::select! {
                records = self.feed.next(BATCH_MAX) => records,
                () = stop.cancelled() => break,
            };
            let too_late = async {
                stop.cancelled().await;
                tokio::time::sleep(FINISH_WITHIN).await;
            };
            tokio::select! {
                () = self.serve(records) => {}
                () = too_late => {
                    warn!("a batch is not finished; whoever has its partitions next does it again");
                    break;
                }
            }
        }
        self.feed.close().await;
    }

    /// One batch, from its records to its answers.
    async fn serve(&self, records: Vec<Record>) {
        let origins: Vec<Origin> = records.iter().map(|record| record.origin.clone()).collect();
        let (mut received, mut ready) = (Vec::new(), Vec::new());
        for record in records {
            match read(&record) {
                Ok(command) => received.push(Received {
                    origin: record.origin,
                    command,
                }),
                Err(error) => ready.extend(unreadable(record, &error)),
            }
        }
        for round in rounds(received, |one| one.command.command_id.clone()) {
            for batch in by_operation(round) {
                ready.extend(self.answer(batch).await);
            }
        }
        let committed = self.feed.commit(&origins).await;
        let committed: HashSet<Origin> = origins
            .into_iter()
            .zip(committed)
            .filter(|(_, committed)| *committed)
            .map(|(origin, _)| origin)
            .collect();
        // What is not committed comes again, to whoever has its partition by now.
        ready.retain(|ready| committed.contains(&ready.origin));
        let messages = ready.iter().map(message).collect();
        let deliveries = self.outlet.deliver(messages).await;
        let lost = deliveries
            .iter()
            .filter(|delivery| **delivery != Delivery::Delivered)
            .count();
        if lost > 0 {
            warn!(
                answers = lost,
                topic = REPLIES,
                "kafka did not take answers; their commands come again after a time-out"
            );
            metrics::counter!("lapse_shop_lost_answers_total").increment(lost as u64);
        }
    }

    /// Answers commands of one operation, no id twice. As long as nothing can be done they are tried again: they wait on
    /// their topic as well as here. One that always ends with nobody knowing how, where others are answered, is left
    /// unanswered, so that it does not hold up those behind it.
    async fn answer(&self, batch: Vec<Received>) -> Vec<Ready> {
        let Some(operation) = batch.first().map(|one| one.command.operation.clone()) else {
            return Vec::new();
        };
        if !self.operations.contains(&operation.as_str()) {
            let error = format!("configuration: nobody here knows operation {operation}");
            error!(error, commands = batch.len(), "commands are refused");
            return all(batch, &Outcome::Failed { error });
        }
        let mut ready = Vec::with_capacity(batch.len());
        let mut parts = VecDeque::from([(batch, 0)]);
        while let Some((mut part, tries)) = parts.pop_back() {
            let commands: Vec<Command> = part.iter().map(|one| one.command.clone()).collect();
            let called = self.participant.call(&operation, &commands);
            let called = deadline::within(CALL_WITHIN, called)
                .await
                .unwrap_or_else(|_| Err(CallError::unanswered("timeout: not done in time")));
            match called {
                Ok(replies) => {
                    for reply in replies {
                        let of = |one: &&Received| one.command.command_id == reply.command_id;
                        ready.extend(
                            part.iter()
                                .find(of)
                                .and_then(|one| answered(one, reply.outcome)),
                        );
                    }
                }
                Err(CallError::Data(_) | CallError::Locked(_)) if part.len() > 1 => {
                    let second = part.split_off(part.len() / 2);
                    parts.extend([(second, 0), (part, 0)]);
                }
                Err(error @ CallError::Data(_)) => ready.extend(all(part, &failed(&error))),
                Err(error @ CallError::Locked(_)) if tries >= TRIES => {
                    ready.extend(all(part, &failed(&error)));
                }
                Err(error) if is_uncertain(&error) && part.len() > 1 && tries >= TRIES => {
                    warn!(%error, operation, commands = part.len(), "one half after the other");
                    let second = part.split_off(part.len() / 2);
                    parts.extend([(second, tries), (part, tries)]);
                }
                Err(error) if is_uncertain(&error) && tries >= enough(&ready) => {
                    warn!(%error, operation, "a command is left unanswered");
                }
                Err(error) => {
                    warn!(%error, operation, commands = part.len(), tries, "the same batch again");
                    let pause = AGAIN_AFTER.saturating_mul(1 << tries.min(10));
                    tokio::time::sleep(pause.min(AGAIN_AFTER_AT_MOST)).await;
                    parts.push_front((part, tries + 1));
                }
            }
        }
        ready
    }
}

/// Something was tried, and nobody knows whether it was done.
fn is_uncertain(error: &CallError) -> bool {
    matches!(
        error,
        CallError::Unanswered { .. } | CallError::Unknown(_) | CallError::Serialization(_)
    )
}

/// Tries of a single command of which nobody knows: if others are answered it is the command, not the database.
fn enough(ready: &[Ready]) -> u32 {
    if ready.is_empty() { LONE_TRIES } else { TRIES }
}

fn read(record: &Record) -> Result<Command, String> {
    let value = record.value.as_deref().ok_or("it has no value")?;
    super::read_command(value)
}

/// A command that can't be read is answered where it still says which one it is.
fn unreadable(record: Record, error: &str) -> Option<Ready> {
    let Origin {
        topic,
        partition,
        offset,
        ..
    } = &record.origin;
    warn!(%topic, partition, offset, error, "a command can't be read; skipped");
    metrics::counter!("lapse_shop_unreadable_commands_total").increment(1);
    let about: About = serde_json::from_slice(record.value.as_deref()?).ok()?;
    let error = format!("unreadable: {error}");
    Some(Ready {
        key: String::from_utf8_lossy(&record.key.unwrap_or_default()).into_owned(),
        origin: record.origin,
        answer: Answer {
            about,
            outcome: Outcome::Failed { error },
        },
    })
}

/// Batches of one operation each, in the order in which operations appear.
fn by_operation(received: Vec<Received>) -> Vec<Vec<Received>> {
    let mut batches: Vec<Vec<Received>> = Vec::new();
    for one in received {
        let of = |batch: &&mut Vec<Received>| batch[0].command.operation == one.command.operation;
        match batches.iter_mut().find(of) {
            Some(batch) => batch.push(one),
            None => batches.push(vec![one]),
        }
    }
    batches
}

fn all(batch: Vec<Received>, outcome: &Outcome) -> Vec<Ready> {
    let ready = |one: &Received| answered(one, outcome.clone());
    batch.iter().filter_map(ready).collect()
}

/// An answer that says nothing is not sent: the coordinator's time-out says the same.
fn answered(one: &Received, outcome: Outcome) -> Option<Ready> {
    let command = &one.command;
    if let Outcome::Unknown { error } = outcome {
        debug!(command_id = %command.command_id, error, "left unanswered");
        return None;
    }
    Some(Ready {
        origin: one.origin.clone(),
        key: command.order.order_id.clone(),
        answer: Answer {
            about: About::from(command),
            outcome,
        },
    })
}

fn failed(error: &CallError) -> Outcome {
    Outcome::Failed {
        error: error.to_string(),
    }
}

fn message(ready: &Ready) -> Publish {
    Publish {
        topic: REPLIES.to_owned(),
        key: ready.key.clone(),
        payload: serde_json::to_string(&ready.answer).expect("an answer has only text for keys"),
    }
}
