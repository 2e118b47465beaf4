//! Where sagas live. One seam ([`Store`]) with two implementations that pass one conformance suite.
//!
//! For: the executor, intake, sweep and relay. Relies on Postgres ([`pg`]) in the product and on plain memory
//! ([`memory`]) in simulations. Never: decides anything; a state changes only by recording a transition.

use std::sync::Arc;

use async_trait::async_trait;
use lapse_participants::kit::{OrderKey, Overdue};
use lapse_sagas::{Cause, Definition, DefinitionHash, Effect, SagaId, State, Timestamp, routing};
use serde_json::Value;

pub mod consequence;
pub mod db;
pub mod history;
pub mod memory;
pub mod ops;
pub mod pg;
#[cfg(feature = "planted")]
mod plant;
pub mod schema;
mod text;
pub mod verify;
pub mod webhooks;

/// One saga as stored and as held in memory by whoever drives it. `version` and `history` are the fence.
#[derive(Clone, Debug, PartialEq)]
pub struct Saga {
    /// Its day of creation (UTC, from the id) is the partition.
    pub id: SagaId,
    /// Raised by every write to the row.
    pub version: i64,
    /// How far it is.
    pub state: State,
    /// The definition it started with, for ever.
    pub definition: DefinitionHash,
    /// The definition's name.
    pub name: Arc<str>,
    /// Tenant, business key and generation: the order it is about.
    pub order: OrderKey,
    /// As in the event.
    pub order_type: Arc<str>,
    /// When the order fell due; none for a start by a buyer or an operator that named none.
    pub due_at: Option<Timestamp>,
    /// The producer's event, kept whole; null for a start by sweep.
    pub event: Arc<Value>,
    /// The end of its history chain.
    pub history: HistoryHead,
}

/// The last entry of a saga's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryHead {
    /// Number of the last entry, from 1.
    pub seq: i32,
    /// SHA-256 over the previous entry's hash and the last entry's stored text.
    pub hash: [u8; 32],
}

/// A saga to be started. `state` comes from [`State::start`], already moved on to `sent` if its command goes out next.
#[derive(Clone, Debug)]
pub struct Start {
    /// The initial state; its `saga_id` is the new saga's id.
    pub state: State,
    /// Hash of the definition.
    pub definition: DefinitionHash,
    /// Name of the definition.
    pub name: Arc<str>,
    /// The order.
    pub order: OrderKey,
    /// As in the event.
    pub order_type: Arc<str>,
    /// When the order fell due.
    pub due_at: Option<Timestamp>,
    /// The producer's event.
    pub event: Arc<Value>,
}

/// What became of a start.
#[derive(Clone, Debug, PartialEq)]
pub enum Started {
    /// It is stored, with one history entry, and in the caller's hand.
    New(Box<Saga>),
    /// A saga of this key exists; nothing was changed.
    Duplicate {
        /// The existing saga.
        saga_id: SagaId,
    },
}

/// A saga with the state it is to have next. Fenced by `saga.version`.
#[derive(Clone, Debug)]
pub struct Move {
    /// As it was loaded or last recorded.
    pub saga: Saga,
    /// The state after the transition.
    pub state: State,
    /// What the transition asked for.
    pub effects: Vec<Effect>,
}

/// What became of a move.
#[derive(Clone, Debug, PartialEq)]
pub enum Moved {
    /// Stored; the saga as it now is.
    Stored(Box<Saga>),
    /// Somebody else moved the row since: nothing was written.
    Fenced,
}

/// Which sagas to revise.
#[derive(Clone, Debug)]
pub enum Which {
    /// Live rows past their wake-up time, earliest first, skipping rows that somebody else has locked.
    Due {
        /// At most so many.
        limit: u32,
    },
    /// These, waiting for their locks, in order of their ids.
    Ids(Vec<SagaId>),
    /// The saga of this definition and order.
    Key {
        /// Name of the definition.
        definition: String,
        /// The order.
        order: OrderKey,
    },
}

/// What to do with a locked saga.
#[derive(Clone, Debug)]
pub enum Decision {
    /// Store this transition.
    Move(State, Vec<Effect>),
    /// Leave the row alone.
    Leave,
    /// Leave the row alone and log a reply that came too late.
    Stale(StaleReply),
}

/// A reply that changed nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct StaleReply {
    /// The step answered.
    pub step: String,
    /// The attempt answered.
    pub attempt: i32,
    /// The outcome's name.
    pub outcome: String,
    /// What made it stale.
    pub why: String,
}

/// A locked saga and what was done with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Revised {
    /// As it now is.
    pub saga: Saga,
    /// Whether it was moved.
    pub moved: bool,
}

/// Decides under lock. Called with the row as it is and the database's time, which is read after all locks are held.
/// Must not block, and must change nothing: it is called again for the same rows when the transaction is repeated.
pub type Decide = Arc<dyn Fn(&Saga, Timestamp) -> Decision + Send + Sync>;

/// The active definitions, one versioned set.
#[derive(Clone, Debug, Default)]
pub struct ActiveSet {
    /// Raised whenever the set changes.
    pub version: i64,
    /// At most one per name.
    pub definitions: Vec<Arc<Definition>>,
}

/// A record that can't become a saga.
#[derive(Clone, Debug, PartialEq)]
pub struct DeadLetter {
    /// Where it came from.
    pub topic: String,
    /// Its partition.
    pub partition: i32,
    /// Its offset; one dead letter per (topic, partition, offset).
    pub offset: i64,
    /// Its key, as bytes.
    pub key: Option<Vec<u8>>,
    /// Its value; only the beginning if it is larger than any event may be.
    pub value: Option<Vec<u8>>,
    /// Length of the whole value.
    pub whole_bytes: usize,
    /// Its headers, values as UTF-8 with replacement characters.
    pub headers: Value,
    /// When the broker got it.
    pub appended_at: Timestamp,
    /// Stable code, such as `not_json`.
    pub reason: String,
    /// What, where, what to do.
    pub detail: String,
}

/// A message waiting to be produced.
#[derive(Clone, Debug, PartialEq)]
pub struct OutboxMessage {
    /// Its row.
    pub id: i64,
    /// Short name: `outcomes`, `alerts` or `dead-letters`; the bus adds the prefix.
    pub topic: String,
    /// Kafka key.
    pub key: String,
    /// JSON text.
    pub payload: String,
}

/// An open alert that is to be sent now.
#[derive(Clone, Debug, PartialEq)]
pub struct AlertDue {
    /// Stable id over (definition, step, kind, class).
    pub fingerprint: String,
    /// Name of the definition; empty where it is about a participant.
    pub definition: String,
    /// The step, or the participant.
    pub step: String,
    /// `compensated`, `parked`, `continued`, `unresolved`, `participant_down`.
    pub kind: String,
    /// Error class.
    pub class: String,
    /// The latest member's words.
    pub message: String,
    /// How many sagas it stands for.
    pub sagas: i64,
    /// How often it has been sent, this time included.
    pub sends: i32,
}

/// A participant that does not answer, as one coordinator sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct ParticipantDown {
    /// As definitions name it.
    pub participant: String,
    /// Error class: `unreachable`, `unanswered`, `configuration`.
    pub class: String,
    /// For people: since when, the error, what to do.
    pub message: String,
    /// How many sagas wait for it.
    pub sagas: i64,
    /// When the latest call went out that it did not answer.
    pub seen_at: Timestamp,
}

/// How an order stands with the coordinator, for the sweep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// No saga of this definition, key and generation.
    None,
    /// A saga that is live, parked or resolved: leave it.
    InHand,
    /// Skipped, completed or compensated, yet the owner says unpaid, uncancelled and left to nobody: worth an alert.
    Closed {
        /// The saga.
        saga_id: SagaId,
        /// Its state.
        state: String,
    },
}

/// The coordinator's state.
///
/// Every method is one transaction (or none for reads), sorted by key before it locks, repeated by itself on a
/// deadlock or a serialization failure. Results come in the order of the input unless said otherwise.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The database's time: the one that decides.
    async fn now(&self) -> Result<Timestamp, Error>;

    /// Adds definitions and makes them the active ones of their names, unless one order could then start two.
    async fn deploy(&self, definitions: &[Arc<Definition>]) -> Result<ActiveSet, Error>;

    /// The active set.
    async fn active(&self) -> Result<ActiveSet, Error>;

    /// Definitions by hash, active or not; unknown hashes are left out.
    async fn definitions(&self, hashes: &[DefinitionHash]) -> Result<Vec<Arc<Definition>>, Error>;

    /// Starts sagas: one row, one key and one history entry each; an existing key changes nothing.
    async fn start(&self, batch: Vec<Start>) -> Result<Vec<Started>, Error>;

    /// Writes the moved states of sagas in hand with history, alerts, outbox and rollups. Fenced by version; of two
    /// moves of one saga in a batch, the first counts.
    async fn record(&self, batch: Vec<Move>) -> Result<Vec<Moved>, Error>;

    /// Locks rows, lets `decide` look at each, stores what it says; in one transaction. In order of locking.
    async fn revise(&self, which: Which, decide: Decide) -> Result<Vec<Revised>, Error>;

    /// Stores dead letters, each with its outbox message; one that is already there changes nothing.
    async fn dead_letter(&self, batch: Vec<DeadLetter>) -> Result<(), Error>;

    /// Claims outbox messages for 45 s, oldest first.
    async fn claim_outbox(&self, limit: u32) -> Result<Vec<OutboxMessage>, Error>;

    /// Forgets outbox messages that are produced.
    async fn delete_outbox(&self, ids: &[i64]) -> Result<(), Error>;

    /// Claims alerts that are due, sets their next time one repeat interval ahead and puts each in the outbox. One about
    /// a participant that nobody has said anything of for ten minutes is settled instead: who raised it is gone.
    async fn claim_alerts(&self, limit: u32) -> Result<Vec<AlertDue>, Error>;

    /// How overdue orders stand under a definition.
    async fn standing(&self, definition: &str, orders: &[OrderKey])
    -> Result<Vec<Standing>, Error>;

    /// Raises an `unresolved` alert for orders that a closed saga left unpaid and uncancelled.
    async fn alert_unresolved(
        &self,
        definition: &str,
        orders: &[(SagaId, Overdue)],
    ) -> Result<(), Error>;

    /// Opens the one `participant_down` alert of this participant, or says that it still holds: then only its words and
    /// numbers change. What was seen before the alert was settled changes nothing.
    async fn participant_down(&self, down: &ParticipantDown) -> Result<(), Error>;

    /// Settles the participant's alert, if there is one.
    async fn participant_up(&self, participant: &str) -> Result<(), Error>;

    /// Makes what the coming days' rows need (partitions); harmless to repeat.
    async fn prepare_days(&self) -> Result<(), Error>;

    /// Adds to counters of this minute that belong to no saga, such as `dropped_paid`. What the other methods write they
    /// count themselves, `started`, `duplicate` and `dead_letter` included.
    async fn count(&self, definition: &str, counter: &str, by: i64) -> Result<(), Error>;
}

/// Why the store could not do it. Nothing was written unless said.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Postgres is not reachable or went away; nobody knows whether a commit under way was stored.
    #[error("postgres is unreachable: {0}")]
    Unreachable(String),
    /// Postgres does not let this user in.
    #[error("not authorised by postgres: {0}")]
    NotAuthorised(String),
    /// A lock or a statement took too long.
    #[error("postgres was too slow: {0}")]
    Slow(String),
    /// A definition of the same name and version has another content.
    #[error(
        "definition {name} version {version} is already deployed with other content; raise its version"
    )]
    VersionTaken {
        /// The name.
        name: String,
        /// The version.
        version: u32,
    },
    /// One order would start two active definitions; names both and says what to do.
    #[error("{0}")]
    Overlap(String),
    /// Postgres refuses the data: a row of the batch can't be stored as it is.
    #[error("{0}")]
    Data(String),
    /// Something that should not happen, whatever the data.
    #[error("{0}")]
    Defect(String),
}

impl Saga {
    /// Why it was started or hurried.
    pub fn cause(&self) -> Cause {
        self.state.cause
    }
}

impl ActiveSet {
    /// Refuses `deployed` if with it, each in place of the one of its name, one order could start two definitions.
    fn refuse_overlaps(&self, deployed: &[Arc<Definition>]) -> Result<(), Error> {
        let replaced = |known: &Definition| deployed.iter().any(|new| new.name() == known.name());
        let deployed = deployed.iter().map(AsRef::as_ref);
        let kept = self.definitions.iter().map(AsRef::as_ref);
        let kept: Vec<&Definition> = kept.filter(|known| !replaced(known)).collect();
        let all: Vec<&Definition> = deployed.chain(kept.iter().copied()).collect();
        let mut words: Vec<String> = routing::overlaps(&all)
            .into_iter()
            .map(|problem| problem.message)
            .collect();
        if words.is_empty() {
            return Ok(());
        }
        let meets = |known: &&Definition, other: &&Definition| {
            other.name() != known.name() && !routing::overlaps(&[known, other]).is_empty()
        };
        let in_the_way = kept
            .iter()
            .filter(|known| all.iter().any(|other| meets(known, other)));
        words.extend(in_the_way.map(|known| {
            let name = known.name();
            format!(
                "{name} is active already and can't be retired yet: deploy its replacement under the name {name}, \
                 with a higher version"
            )
        }));
        Err(Error::Overlap(words.join("; ")))
    }
}
