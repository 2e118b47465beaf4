//! Answers of participants behind Kafka, whoever sent the command: read, settled under the row's lock, then committed.
//!
//! ```text
//! feed ─► answers ─┬─ rounds without a saga twice ─► settled, or logged as stale ─► next step in hand ─┬─► offset committed
//!                  └─ can't be read ─► dead letter ────────────────────────────────────────────────────┘
//! ```
//! Relies on the state machine to know which answers still matter: they come in any order, late, and any number of times.
//! Never: commits an answer that is not in the store, or lets one that can't be stored block those behind it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use lapse_participants::kit::answer::Answer;
use lapse_sagas::order_event::LARGEST_BYTES;
use lapse_sagas::{Definition, DefinitionHash, Event, SagaId};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::record::Reply;
use super::{Executor, Promised, batch};
use crate::feed::{Feed, Record, rounds};
use crate::intake;
use crate::store::{self, DeadLetter, Store, Which};

/// What the database refused because of its own state is tried again after this.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// Reads answers and settles them.
pub struct Replies {
    /// Where they come from.
    pub feed: Arc<dyn Feed>,
    /// Where those go that can't be read.
    pub store: Arc<dyn Store>,
    /// Who goes on with their sagas.
    pub executor: Arc<Executor>,
    /// Answers per transaction.
    pub batch_max: usize,
}

/// An answer and the record it was read from.
#[derive(Clone)]
struct Heard {
    record: Record,
    answer: Answer,
}

impl Replies {
    /// Settles what comes in until stopped.
    pub async fn run(&self, stop: &CancellationToken) {
        loop {
            let records = tokio::select! {
                records = self.feed.next(self.batch_max) => records,
                () = stop.cancelled() => return,
            };
            let origins: Vec<_> = records.iter().map(|record| record.origin.clone()).collect();
            tokio::select! {
                () = self.settle(records) => {}
                () = stop.cancelled() => return,
            }
            tokio::select! {
                // What is not committed comes again, and changes nothing.
                _ = self.feed.commit(&origins) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Until all of them are in the store: an outage of the database only delays them.
    async fn settle(&self, records: Vec<Record>) {
        let (mut heard, mut dead) = (Vec::new(), Vec::new());
        let mut texts = HashSet::new();
        for record in records {
            // A copy changes nothing, and would take a round of its own.
            if !texts.insert(record.value.clone()) {
                continue;
            }
            match read(&record) {
                Ok(Answer { about, outcome }) => {
                    let outcome = outcome.received();
                    let answer = Answer { about, outcome };
                    heard.push(Heard { record, answer });
                }
                Err(error) => dead.push(self.dead_letter(&record, "bad_reply", error)),
            }
        }
        for round in rounds(heard, |heard| heard.answer.about.saga_id) {
            dead.extend(self.settle_round(round).await);
        }
        self.bury(dead).await;
    }

    /// Settles answers of different sagas. A batch that can't be stored as it is is halved down to the answer that is in the
    /// way.
    async fn settle_round(&self, round: Vec<Heard>) -> Vec<DeadLetter> {
        let mut dead = Vec::new();
        let mut parts = vec![round];
        while let Some(mut part) = parts.pop() {
            let answers = part.iter().map(|heard| heard.answer.clone()).collect();
            match self.executor.hear(answers).await {
                Ok(()) => {}
                Err(store::Error::Data(_)) if part.len() > 1 => {
                    let second = part.split_off(part.len() / 2);
                    parts.extend([second, part]);
                }
                Err(store::Error::Data(detail)) => {
                    dead.extend(part.iter().map(|heard| {
                        self.dead_letter(&heard.record, "not_storable", detail.clone())
                    }))
                }
                Err(error) => {
                    warn!(%error, replies = part.len(), "replies are settled again");
                    tokio::time::sleep(AGAIN_AFTER).await;
                    parts.push(part);
                }
            }
        }
        dead
    }

    async fn bury(&self, dead: Vec<DeadLetter>) {
        while !dead.is_empty() {
            match self.store.dead_letter(dead.clone()).await {
                Ok(()) => break,
                Err(error) => {
                    warn!(%error, dead_letters = dead.len(), "dead letters are stored again");
                    tokio::time::sleep(AGAIN_AFTER).await;
                }
            }
        }
        for letter in &dead {
            warn!(
                topic = letter.topic,
                partition = letter.partition,
                offset = letter.offset,
                reason = letter.reason,
                detail = letter.detail,
                "dead letter"
            );
            metrics::counter!("lapse_dead_letters_total", "reason" => letter.reason.clone())
                .increment(1);
        }
    }

    /// Found now: a feed does not say when the broker got a record.
    fn dead_letter(&self, record: &Record, reason: &str, detail: String) -> DeadLetter {
        DeadLetter {
            topic: record.origin.topic.to_string(),
            partition: record.origin.partition,
            offset: record.origin.offset,
            key: record.key.clone(),
            value: record
                .value
                .as_deref()
                .map(|value| intake::kept(value).to_vec()),
            whole_bytes: record.value.as_ref().map_or(0, Vec::len),
            headers: Value::Object(serde_json::Map::new()),
            appended_at: self.executor.clock.now(),
            reason: reason.to_owned(),
            detail,
        }
    }
}

fn read(record: &Record) -> Result<Answer, String> {
    let text = record.value.as_deref().unwrap_or_default();
    if text.len() > LARGEST_BYTES {
        let bytes = text.len();
        return Err(format!(
            "it has {bytes} bytes; the largest reply has {LARGEST_BYTES}"
        ));
    }
    serde_json::from_slice(text).map_err(|error| error.to_string())
}

impl Executor {
    /// Settles answers, each of another saga, and goes on with what is in hand then.
    ///
    /// # Errors
    /// Those of [`Store::revise`] and [`Store::definitions`]. Whatever was stored all the same is stale the next time.
    async fn hear(self: &Arc<Self>, answers: Vec<Answer>) -> Result<(), store::Error> {
        let elsewhere = self.settle_answers(answers).await?;
        if elsewhere.is_empty() {
            return Ok(());
        }
        let hashes: HashSet<DefinitionHash> =
            elsewhere.iter().map(|(hash, _)| hash.clone()).collect();
        self.definitions
            .fetch(&hashes.into_iter().collect::<Vec<_>>())
            .await?;
        let answers = elsewhere.into_iter().map(|(_, answer)| answer).collect();
        for (definition, answer) in self.settle_answers(answers).await? {
            // Its wake-up time hands the saga to a coordinator that has the definition.
            warn!(saga_id = %answer.about.saga_id, %definition, "no definition for the saga of a reply");
            ignored("no_definition");
        }
        Ok(())
    }

    /// Gives back the answers whose sagas were started elsewhere, by a definition that is not known here.
    async fn settle_answers(
        self: &Arc<Self>,
        answers: Vec<Answer>,
    ) -> Result<Vec<(DefinitionHash, Answer)>, store::Error> {
        let ids: Vec<SagaId> = answers.iter().map(|answer| answer.about.saga_id).collect();
        let replies: HashMap<SagaId, Reply> = answers
            .iter()
            .map(|answer| (answer.about.saga_id, reply(answer)))
            .collect();
        let decide: store::Decide = {
            let (executor, promised) = (Arc::clone(self), Promised::default());
            Arc::new(move |saga, now| {
                executor.decide_reply(saga, replies.get(&saga.id), now, &promised)
            })
        };
        let mut answers: HashMap<SagaId, Answer> = answers
            .into_iter()
            .map(|answer| (answer.about.saga_id, answer))
            .collect();
        let (mut elsewhere, mut moved) = (Vec::new(), Vec::new());
        for revised in self.store.revise(Which::Ids(ids), decide).await? {
            let Some(answer) = answers.remove(&revised.saga.id) else {
                continue;
            };
            match self.definitions.get(&revised.saga.definition) {
                None => elsewhere.push((revised.saga.definition, answer)),
                Some(definition) => {
                    count(&definition, &answer);
                    moved.extend(revised.moved.then_some(revised.saga));
                }
            }
        }
        for answer in answers.into_values() {
            // Of another installation, of the conformance suite, or of a day whose sagas were dropped.
            debug!(saga_id = %answer.about.saga_id, command_id = %answer.about.command_id, "a reply for no saga");
            ignored("no_saga");
        }
        self.submit(moved);
        Ok(elsewhere)
    }
}

fn reply(answer: &Answer) -> Reply {
    let about = &answer.about;
    Reply {
        command_id: Some(about.command_id.clone()),
        event: Event::Replied {
            step: about.step.clone(),
            direction: about.direction,
            attempt: about.attempt,
            outcome: answer.outcome.clone(),
        },
    }
}

fn count(definition: &Definition, answer: &Answer) {
    let about = &answer.about;
    let step = definition.step(&about.step);
    if let Some(call) = step.and_then(|step| step.call(about.direction)) {
        batch::count(call, about.direction, &answer.outcome);
    }
}

fn ignored(why: &'static str) {
    metrics::counter!("lapse_replies_ignored_total", "why" => why).increment(1);
}
