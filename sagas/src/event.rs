//! What can happen to a saga ([`Event`]), what follows from it ([`Effect`]) and why it may not ([`Refused`]).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Timestamp;
use crate::ids::StepId;
use crate::outcome::Outcome;
use crate::state::{Direction, Status};

/// Why a saga was started. Ordered: a later start may raise the cause, never lower it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A timer fell due.
    Timeout,
    /// The sweep found the order overdue.
    Sweep,
    /// The buyer asked; the due time is not looked at.
    Buyer,
    /// An operator asked; the due time is not looked at.
    Operator,
}

impl Cause {
    /// Whether the order owner must check the order's due time.
    pub fn respects_due_time(self) -> bool {
        matches!(self, Cause::Timeout | Cause::Sweep)
    }

    /// The name, as in JSON and SQL.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Timeout => "timeout",
            Cause::Sweep => "sweep",
            Cause::Buyer => "buyer",
            Cause::Operator => "operator",
        }
    }
}

/// Something that happened to a saga.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// The poll found the row past its wake-up time: retries fall due, a `taken` step is taken over, a `sent` step
    /// has had no reply in time.
    Due,
    /// The command of this step is about to be sent (again, for the halves of a batch).
    Sending {
        /// Which active step.
        step: StepId,
    },
    /// The same, of a saga that goes ahead alone to find out whether its participant answers again: without an answer
    /// it may have been applied, and the saga waits on at no attempt.
    Probing {
        /// Which active step.
        step: StepId,
    },
    /// The command could not be tried at all (lock time-out, breaker open): wait, at no attempt.
    Deferred {
        /// Which active step.
        step: StepId,
        /// When to try again.
        until: Timestamp,
        /// Why, for people.
        error: String,
    },
    /// There is no room to send it in time: a turn later, at no attempt and at no patience. Nobody failed. Its row may say
    /// `sent` already, as long as whoever wrote that knows that the command has not gone out.
    Queued {
        /// Which active step; in hand.
        step: StepId,
        /// When to look again.
        until: Timestamp,
    },
    /// Nobody knows whether the command has gone out, and its participant can't be blamed for that: what is between them does
    /// not work. It may have been applied, and the saga waits on at no attempt.
    Undelivered {
        /// Which active step; sent.
        step: StepId,
        /// Why, for people.
        error: String,
    },
    /// A participant answered, or the call ended without a usable answer ([`Outcome::Unknown`]). Whoever reads the
    /// reply has compared its command id with [`crate::State::command_id`]: another id is another run's, and stale.
    Replied {
        /// Which step.
        step: StepId,
        /// Action or compensation.
        direction: Direction,
        /// Which attempt is answered, from 1.
        attempt: u32,
        /// The answer.
        outcome: Outcome,
    },
    /// The saga was asked for again. A buyer or an operator wants it now; a timeout or a sweep changes nothing.
    CauseRaised {
        /// The new cause.
        cause: Cause,
    },
    /// An operator starts run + 1 of a parked or compensated saga.
    Retry {
        /// Who.
        actor: String,
        /// Why.
        reason: String,
    },
    /// An operator closes a parked or compensated saga by hand.
    Resolve {
        /// Who.
        actor: String,
        /// Why.
        reason: String,
    },
}

/// What the coordinator has to do, in the same transaction as the new state.
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    /// Append to the saga's history.
    History(Entry),
    /// Raise an alert, grouped with others of the same step, kind and class.
    Alert(AlertRaised),
    /// Close this saga's membership in open alerts.
    AlertSettled,
    /// The saga came to rest; tell the world on the topic of outcomes.
    Ended(Status),
    /// Add one to a counter of this minute.
    Count(Counter),
}

/// One line of a saga's history.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// What happened: `started`, `replied`, `postponed`, `timed_out`, `taken_over`, `deferred`, `probed`,
    /// `undelivered`, `cause_raised`, `retried`, `resolved`.
    pub kind: String,
    /// The step, if it was about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepId>,
    /// Action or compensation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direction: Option<Direction>,
    /// The attempt, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The saga's state afterwards.
    pub state: String,
    /// More: the outcome and its words, the next wake-up time, the actor, the reason.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub detail: Value,
}

/// An alert of one saga.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct AlertRaised {
    /// `compensated`, `parked` or `continued`.
    pub kind: String,
    /// The step that could not be done.
    pub step: StepId,
    /// First word of the error.
    pub class: String,
    /// For people.
    pub message: String,
}

/// Counters of the rollup of one minute.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Counter {
    /// Came to rest as completed.
    Completed,
    /// Came to rest as skipped.
    Skipped,
    /// Came to rest as compensated.
    Compensated,
    /// Waits for a human.
    Parked,
    /// A step will be tried again.
    Retried,
    /// Another coordinator's saga was taken over.
    TakenOver,
    /// The order was not due yet.
    Postponed,
}

/// Why an event changed nothing.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Refused {
    /// A reply that no longer matters; goes to the log of stale replies.
    #[error("stale reply to step {step}, attempt {attempt}: {why}")]
    Stale {
        /// The step answered.
        step: StepId,
        /// The attempt answered.
        attempt: u32,
        /// What makes it stale.
        why: &'static str,
    },
    /// The request conflicts with the saga's state (HTTP 409).
    #[error("the saga is {state}")]
    Conflict {
        /// The saga's state.
        state: &'static str,
    },
    /// Already so: the cause is as high, nothing is due.
    #[error("nothing to change")]
    Unchanged,
    /// The pair of state and event makes no sense: a defect in the caller.
    #[error("illegal event for a saga that is {state}: {what}")]
    Illegal {
        /// The saga's state.
        state: &'static str,
        /// The event.
        what: &'static str,
    },
}
