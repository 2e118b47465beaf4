//! A dead letter again: what intake would make of its record now, and the saga if it is one by now.
//!
//! ```text
//! open ──► replayed      its saga is there: started now, to sleep until the due time, or there before
//!   └────► open          refused again, with the reason
//!            └───► quarantined   refused for the third time: only by force again
//! ```
//! Relies on the store's keys: replaying twice starts once. The due time counts from when the broker got the record, never
//! from now. Never: speaks to Kafka, so it works with every coordinator down; replays a value of which only the beginning
//! was kept.

use std::sync::Arc;

use lapse_sagas::{Event, SagaId, Timestamp, transition};
use serde::Serialize;
use serde_json::Value;

use crate::bus::{BadRecord, REPLIES};
use crate::definitions::Definitions;
use crate::intake::{self, Read};
use crate::kafka;
use crate::store::ops::{Closing, Ops, StoredLetter};
use crate::store::{self, Start, Started, Store};

/// Replays dead letters.
#[derive(Clone)]
pub struct Replay {
    store: Arc<dyn Store>,
    ops: Ops,
    definitions: Arc<Definitions>,
    settings: kafka::Settings,
}

/// What became of one letter, or would.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum Replayed {
    /// Its saga is stored; one that is due is taken at the next poll.
    Started {
        /// The saga.
        saga_id: SagaId,
        /// When the order falls due, or fell.
        due_at: Timestamp,
    },
    /// Its order has its saga already.
    Duplicate {
        /// The saga.
        saga_id: SagaId,
    },
    /// Only asked: a saga would be started.
    WouldStart {
        /// By this definition.
        definition: String,
        /// The order.
        order_id: String,
        /// When the order falls due, or fell.
        due_at: Timestamp,
    },
    /// It still can't become a saga.
    Refused {
        /// Stable code.
        reason: String,
        /// What, where, what to do.
        detail: String,
        /// The letter's state now.
        state: String,
    },
    /// It was not looked at: replayed or discarded before, or quarantined and not forced.
    Closed {
        /// Its state.
        state: String,
    },
}

/// Whether quarantined letters are replayed too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quarantine {
    /// They are left.
    Respected,
    /// They are replayed.
    Overruled,
}

impl Replay {
    /// With the definitions that are active now.
    pub fn new(
        store: Arc<dyn Store>,
        ops: Ops,
        definitions: Arc<Definitions>,
        settings: kafka::Settings,
    ) -> Replay {
        Replay {
            store,
            ops,
            definitions,
            settings,
        }
    }

    /// What intake would make of the record now.
    ///
    /// # Errors
    /// [`BadRecord`] as intake says it, or `cut`, `header_not_text`, `a_reply`, `unknown_topic` where the record can't be had again as
    /// it was.
    fn read(&self, letter: &StoredLetter, now: Timestamp) -> Result<Read, BadRecord> {
        let bad = |reason, detail: String| Err(BadRecord { reason, detail });
        let row = &letter.row;
        let value = letter.raw_value.as_deref().unwrap_or_default();
        if row.is_cut {
            let kept = value.len();
            let words =
                format!("only the first {kept} bytes were kept; the producer has to send it again");
            return bad("cut", words);
        }
        if row.reason == "header_not_text" {
            let words = "its headers could not be kept, and one may say when it is due; the producer has to send it again";
            return bad("header_not_text", words.to_owned());
        }
        if row.topic == self.settings.topic(REPLIES) {
            let words = "it is a reply, and what it was to has been sent again or is listed by its alert; discard it";
            return bad("a_reply", words.to_owned());
        }
        let Some(bucket) = self.settings.bucket_of(&row.topic) else {
            let words = format!(
                "{} is no topic of timers under the prefix {:?}; set kafka.prefix as the coordinators have it",
                row.topic, self.settings.prefix
            );
            return bad("unknown_topic", words);
        };
        let due = match header(&row.headers, kafka::DUE_HEADER) {
            Some(text) => kafka::parse_due(text, now),
            None => {
                // Without it, when it was buried: later, so never early.
                let appended_at = row.appended_at.unwrap_or(row.at);
                intake::due_time(&self.definitions, value, bucket, appended_at, now)
            }
        };
        intake::read(&self.definitions, value, due)
    }

    /// What a replay would give; changes nothing.
    ///
    /// # Errors
    /// Those of the store; none inside if there is no such letter.
    pub async fn ask(
        &self,
        id: i64,
        quarantine: Quarantine,
    ) -> Result<Option<Replayed>, store::Error> {
        let Some(letter) = self.ops.dead_letter(id).await? else {
            return Ok(None);
        };
        if let Some(closed) = closed(&letter, quarantine) {
            return Ok(Some(closed));
        }
        self.foretell(&letter).await.map(Some)
    }

    /// What a replay by force would give, whatever the letter's state; changes nothing.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn foretell(&self, letter: &StoredLetter) -> Result<Replayed, store::Error> {
        let now = self.store.now().await?;
        let read = match self.read(letter, now) {
            Ok(read) => read,
            Err(BadRecord { reason, detail }) => {
                return Ok(Replayed::Refused {
                    reason: reason.to_owned(),
                    detail,
                    state: letter.row.state.clone(),
                });
            }
        };
        let definition = read.definition.name();
        Ok(match self.ops.saga_of(definition, &read.order()).await? {
            Some(saga_id) => Replayed::Duplicate { saga_id },
            None => Replayed::WouldStart {
                definition: definition.to_owned(),
                order_id: read.event.order_id,
                due_at: read.due_at,
            },
        })
    }

    /// Replays one letter. The saga first, then the letter's state: after a crash in between it is a duplicate.
    ///
    /// # Errors
    /// Those of the store; none inside if there is no such letter.
    pub async fn replay(
        &self,
        id: i64,
        quarantine: Quarantine,
        actor: &str,
    ) -> Result<Option<Replayed>, store::Error> {
        let Some(letter) = self.ops.dead_letter(id).await? else {
            return Ok(None);
        };
        if let Some(closed) = closed(&letter, quarantine) {
            return Ok(Some(closed));
        }
        let now = self.store.now().await?;
        let replayed = match self.read(&letter, now) {
            Ok(read) => self.start(&read, now).await?,
            Err(bad) => Err(bad),
        };
        let closing = match &replayed {
            Ok(started) => Closing::Replayed {
                saga_id: started.saga_id(),
            },
            Err(BadRecord { reason, detail }) => Closing::Refused {
                error: format!("{reason}: {detail}"),
            },
        };
        let state = self.ops.close_letter(id, closing, actor).await?;
        metrics::counter!("lapse_dead_letter_replays_total",
            "result" => replayed.as_ref().map_or("refused", Fresh::name))
        .increment(1);
        Ok(Some(match replayed {
            Ok(Fresh::Started(saga_id, due_at)) => Replayed::Started { saga_id, due_at },
            Ok(Fresh::Duplicate(saga_id)) => Replayed::Duplicate { saga_id },
            Err(BadRecord { reason, detail }) => Replayed::Refused {
                reason: reason.to_owned(),
                detail,
                state: state.unwrap_or(letter.row.state),
            },
        }))
    }

    /// Data that Postgres refuses is the record's fault; anything else is not.
    async fn start(
        &self,
        read: &Read,
        now: Timestamp,
    ) -> Result<Result<Fresh, BadRecord>, store::Error> {
        let start = at_rest_until_polled(read, now)?;
        let saga_id = start.state.saga_id;
        match self.store.start(vec![start]).await.map(|mut all| all.pop()) {
            Ok(Some(Started::Duplicate { saga_id })) => Ok(Ok(Fresh::Duplicate(saga_id))),
            Ok(_) => Ok(Ok(Fresh::Started(saga_id, read.due_at))),
            Err(store::Error::Data(detail)) => Ok(Err(BadRecord {
                reason: "not_storable",
                detail,
            })),
            Err(error) => Err(error),
        }
    }

    /// Closes a letter that nobody needs; its state afterwards, or what it is instead.
    ///
    /// # Errors
    /// Those of the store; none inside if there is no such letter.
    pub async fn discard(
        &self,
        id: i64,
        reason: &str,
        actor: &str,
    ) -> Result<Option<Result<(), String>>, store::Error> {
        let note = reason.to_owned();
        let closed = self
            .ops
            .close_letter(id, Closing::Discarded { note }, actor)
            .await?;
        if closed.is_some() {
            return Ok(Some(Ok(())));
        }
        let letter = self.ops.dead_letter(id).await?;
        Ok(letter.map(|letter| Err(letter.row.state)))
    }
}

/// A saga that is there now.
enum Fresh {
    Started(SagaId, Timestamp),
    Duplicate(SagaId),
}

impl Fresh {
    fn saga_id(&self) -> SagaId {
        match self {
            Fresh::Started(saga_id, _) | Fresh::Duplicate(saga_id) => *saga_id,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Fresh::Started(..) => "started",
            Fresh::Duplicate(_) => "duplicate",
        }
    }
}

/// What is due is in nobody's hand here: the next poll takes it.
fn at_rest_until_polled(read: &Read, now: Timestamp) -> Result<Start, store::Error> {
    let mut start = read.start(now);
    for step in crate::executor::taken(&start.state) {
        let queued = Event::Queued { step, until: now };
        (start.state, _) = transition(&read.definition, start.state.clone(), queued, now)
            .map_err(|why| store::Error::Defect(format!("a new saga can't wait: {why}")))?;
    }
    Ok(start)
}

fn closed(letter: &StoredLetter, quarantine: Quarantine) -> Option<Replayed> {
    let state = letter.row.state.as_str();
    let is_open = state == "open" || state == "quarantined" && quarantine == Quarantine::Overruled;
    (!is_open).then(|| Replayed::Closed {
        state: state.to_owned(),
    })
}

fn header<'a>(headers: &'a Value, name: &str) -> Option<&'a str> {
    headers.get(name)?.as_str()
}
