//! The participant kit: commands in, one outcome per command out, and the barrier that makes repetition harmless.
//!
//! Relies on [`lapse_sagas`] for the words. Never: retries, or decides what happens next; that is the coordinator's.

pub mod answer;
pub mod barrier;
pub mod db;
pub mod deadline;

use std::time::Duration;

use async_trait::async_trait;
use lapse_sagas::{Cause, CommandId, Direction, Outcome, SagaId, StepId, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One command, as every transport carries it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Command {
    /// Constant over all attempts; the barrier's key.
    pub command_id: CommandId,
    /// For a compensation: the id of the action that it undoes, which it blocks if that has not arrived yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action_id: Option<CommandId>,
    /// The saga, for logs and for the mark of who closed an order.
    pub saga_id: SagaId,
    /// The step.
    pub step: StepId,
    /// Action or compensation.
    pub direction: Direction,
    /// The participant's operation.
    pub operation: String,
    /// Business input: part of what must not differ between repetitions.
    pub order: OrderKey,
    /// What the definition's `input` says; business input too.
    #[serde(default)]
    pub input: Value,
    /// Why; not part of the fingerprint.
    pub cause: Cause,
    /// From 1; not part of the fingerprint.
    pub attempt: u32,
    /// When this id was first sent.
    pub first_sent_at: Timestamp,
    /// From then on a participant that does not know the id answers `expired`.
    pub expires_at: Timestamp,
}

/// One holding period of one order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct OrderKey {
    /// `default` where a shop has only one.
    pub tenant: String,
    /// The order's id, text.
    pub order_id: String,
    /// The owner raises it when an order is revived or a payment is reversed; starts at 1.
    pub generation: i32,
}

/// The answer to one command.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Reply {
    /// Which command.
    pub command_id: CommandId,
    /// The answer.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Somebody who does operations, in batches.
#[async_trait]
pub trait Participant: Send + Sync {
    /// Does one operation for a batch of commands, all of the same `operation`. A command without a reply counts as
    /// unknown; the order of the replies does not matter.
    ///
    /// # Errors
    /// [`CallError`] if the call as a whole had no usable answer; its variants say what may have been applied.
    async fn call(&self, operation: &str, commands: &[Command]) -> Result<Vec<Reply>, CallError>;
}

/// Why a call as a whole had no usable answer.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum CallError {
    /// Some command's data cannot be processed (SQLSTATE 22, 23, P0; HTTP 400, 413, 422). Nothing was applied; the
    /// caller halves the batch to find the bad one.
    #[error("data: {0}")]
    Data(String),
    /// A lock was not to be had in time (55P03). Nothing was applied.
    #[error("lock_timeout: {0}")]
    Locked(String),
    /// A deadlock or a serialization failure (40P01, 40001). Nothing was applied; the same batch goes again.
    #[error("serialization: {0}")]
    Serialization(String),
    /// Nobody knows the operation, or may call it (HTTP 401, 403, 404, 405). Nothing was applied; a configuration fault.
    #[error("configuration: {0}")]
    Configuration(String),
    /// It has too much to do (HTTP 429). Nothing was applied.
    #[error("busy: {error}")]
    Busy {
        /// What it said.
        error: String,
        /// How long it asks to be left alone.
        retry_after: Option<Duration>,
    },
    /// It was not reached: no address, no connection. Nothing was applied.
    #[error("unreachable: {0}")]
    Unreachable(String),
    /// Reached, and no answer came (time-out, reset, HTTP 408, 502 to 504): anything may have been applied.
    #[error("unanswered: {error}")]
    Unanswered {
        /// What is known.
        error: String,
        /// How long it asks to be left alone.
        retry_after: Option<Duration>,
    },
    /// Answered, and not understood (garbage, other 5xx): anything may have been applied.
    #[error("{0}")]
    Unknown(String),
    /// Some commands were answered, or may have been applied; of the rest nothing was.
    #[error("{rest}")]
    Partly {
        /// Of those that were answered or may have been applied.
        replies: Vec<Reply>,
        /// Why the others were not done: one of the errors after which nothing was applied; or [`CallError::Unanswered`] if
        /// nobody has answered at all, though nothing of the others was applied then either.
        rest: Box<CallError>,
    },
}

impl CallError {
    /// No answer, and no wish about when to come again.
    pub fn unanswered(error: impl Into<String>) -> CallError {
        CallError::Unanswered {
            error: error.into(),
            retry_after: None,
        }
    }
}

/// What the sweep and the guard ask the owner of the orders.
#[async_trait]
pub trait OrderOwner: Send + Sync {
    /// Orders that await payment, fall due within `ahead` from now and are not left to a human, oldest first, strictly
    /// after the given position, by the owner's clock.
    async fn overdue_orders(
        &self,
        after: Option<&Overdue>,
        ahead: Duration,
        limit: u32,
    ) -> Result<Vec<Overdue>, CallError>;

    /// How far ahead the sweep is to ask: orders that fall due within it are taken over before they are late.
    fn look_ahead(&self) -> Duration {
        Duration::ZERO
    }

    /// Which of these are paid, in the same order as asked; answered by the primary.
    async fn paid(&self, orders: &[OrderKey]) -> Result<Vec<bool>, CallError>;
}

/// An order past its due time, or near it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Overdue {
    /// The order.
    pub order: OrderKey,
    /// Its type, which chooses the definition.
    pub order_type: String,
    /// `enforce_at`, else the payment deadline.
    pub due_at: Timestamp,
}
