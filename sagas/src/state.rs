//! How far one saga is. One JSON column in the store; the columns beside it are extracts for indexes and views.
//!
//! ```text
//!            ┌────────► skipped        (before any step was done: paid, exempt …)
//! running ───┼────────► completed
//!   │  ▲     └────────► parked         (a human is needed)      parked, compensated ─operator─► running again (run+1) | resolved
//!   │  └ retry, postponed (wake_at)
//!   └── rejected, or retries used up ──► compensating ──► compensated   (alert)
//!                                              └── its own retries used up ──► parked (alert)
//! ```
//! Relies on [`crate::transition()`] for every change. Never: changes itself.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Timestamp;
use crate::definition::Definition;
use crate::event::Cause;
use crate::ids::{CommandId, SagaId, StepId};

/// One saga, as far as the state machine knows it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct State {
    /// Whose state this is; seeds the retry jitter and names the commands.
    pub saga_id: SagaId,
    /// Where the saga stands as a whole.
    pub status: Status,
    /// 1, and one more with every retry by an operator.
    pub run: u32,
    /// The highest cause it was started or hurried with.
    pub cause: Cause,
    /// Every step that was ever sent or settled.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub steps: BTreeMap<StepId, Record>,
    /// The steps that are open now; empty exactly when the saga rests.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub active: BTreeMap<StepId, Active>,
    /// Why it compensates, compensated or parked: the step that failed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The compensation at which it is parked, if it is; without one, it is parked at `failure`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stuck: Option<Failure>,
}

/// Where a saga stands as a whole.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Status {
    /// Steps are being done.
    Running,
    /// Steps are being undone.
    Compensating,
    /// All steps are done. Terminal.
    Completed,
    /// Nothing was done, rightly. Terminal.
    Skipped {
        /// One word, such as `paid`.
        reason: String,
    },
    /// Everything that was done is undone. Terminal unless an operator retries or resolves it.
    Compensated,
    /// A human is needed; an alert repeats until then.
    Parked,
    /// An operator closed it by hand. Terminal.
    Resolved,
}

impl Status {
    /// The name, as in JSON and SQL.
    pub fn name(&self) -> &'static str {
        match self {
            Status::Running => "running",
            Status::Compensating => "compensating",
            Status::Completed => "completed",
            Status::Skipped { .. } => "skipped",
            Status::Compensated => "compensated",
            Status::Parked => "parked",
            Status::Resolved => "resolved",
        }
    }

    /// Whether the saga moves by itself, and so must have a wake-up time.
    pub fn is_live(&self) -> bool {
        matches!(self, Status::Running | Status::Compensating)
    }
}

/// Which way a command goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// The step's action.
    Do,
    /// The step's compensation.
    Undo,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::Do => "do",
            Direction::Undo => "undo",
        })
    }
}

/// What is known of a step over all of its attempts.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The run in which the action was first sent: part of its command id.
    pub run: u32,
    /// The same for the compensation, once an operator had to renew it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo_run: Option<u32>,
    /// How it stands.
    pub progress: Progress,
    /// Some attempt of the action ended in `unknown` and none has been answered finally: it must be compensated like a
    /// done one.
    #[serde(default, skip_serializing_if = "is_false")]
    pub maybe_applied: bool,
    /// What the action returned.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub output: Value,
}

impl Record {
    /// Whether the action was applied, for certain or perhaps, and not undone.
    pub fn is_applied(&self) -> bool {
        self.progress == Progress::Done || (self.maybe_applied && self.progress != Progress::Undone)
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

/// How one step stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// Not answered finally.
    Open,
    /// The action was applied.
    Done,
    /// There was nothing to do.
    NotApplicable,
    /// The participant refused for good.
    Rejected,
    /// Its retries are used up.
    Exhausted,
    /// The compensation was applied.
    Undone,
}

/// One open step.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Active {
    /// Action or compensation.
    pub direction: Direction,
    /// What it waits for.
    pub phase: Phase,
    /// The attempt in hand or next to be made, from 1.
    pub attempt: u32,
    /// When somebody must look at it again.
    pub wake_at: Timestamp,
    /// How often it was taken over without an outcome in between.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub takeovers: u32,
    /// How often the order was not due yet.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub postponements: u32,
    /// When this command id was first sent, since the last postponement: its time to live counts from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_sent_at: Option<Timestamp>,
    /// Since when it could not even be tried; `patience` counts from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deferred_since: Option<Timestamp>,
    /// The last error, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// It was sent to find out whether its participant answers again; only while it is under way.
    #[serde(default, skip_serializing_if = "is_false")]
    pub probe: bool,
    /// A higher cause came while the command was under way.
    #[serde(default, skip_serializing_if = "is_false")]
    pub hurried: bool,
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}

/// What an open step waits for. The first three only for their wake-up time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// A retry delay.
    Retrying,
    /// The order's new due time.
    Postponed,
    /// It could not be tried at all.
    Deferred,
    /// A coordinator has it and has not sent it.
    Taken,
    /// The command is under way.
    Sent,
}

impl Phase {
    /// The name, as in JSON and SQL.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Retrying => "retrying",
            Phase::Postponed => "postponed",
            Phase::Deferred => "deferred",
            Phase::Taken => "taken",
            Phase::Sent => "sent",
        }
    }
}

/// Why a saga left the straight way.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// The step.
    pub step: StepId,
    /// Action or compensation.
    pub direction: Direction,
    /// First word of the error.
    pub class: String,
    /// For people.
    pub message: String,
    /// The participant's final answer stands in the way: a retry needs a new command id.
    #[serde(default, skip_serializing_if = "is_false")]
    pub answered: bool,
}

impl State {
    /// A new saga, taken: its first step is in the hand of whoever commits this.
    pub fn start(definition: &Definition, saga_id: SagaId, cause: Cause, now: Timestamp) -> State {
        let mut state = State {
            saga_id,
            status: Status::Running,
            run: 1,
            cause,
            steps: BTreeMap::new(),
            active: BTreeMap::new(),
            failure: None,
            stuck: None,
        };
        state.activate(definition.first_step(), Direction::Do, now);
        state
    }

    /// A new saga that waits in the table until its order falls due.
    pub fn start_later(
        definition: &Definition,
        saga_id: SagaId,
        cause: Cause,
        due_at: Timestamp,
        now: Timestamp,
    ) -> State {
        let mut state = State::start(definition, saga_id, cause, now);
        for active in state.active.values_mut() {
            active.phase = Phase::Postponed;
            active.wake_at = due_at;
        }
        state
    }

    /// The earliest wake-up time of the open steps; none exactly when the saga rests.
    pub fn wake_at(&self) -> Option<Timestamp> {
        self.earliest().map(|(_, active)| active.wake_at)
    }

    /// The open step that must be looked at first: what the extracted columns show.
    pub fn earliest(&self) -> Option<(&StepId, &Active)> {
        self.active.iter().min_by_key(|(_, active)| active.wake_at)
    }

    /// The id under which the participant knows this step's command.
    pub fn command_id(&self, step: &StepId, direction: Direction) -> CommandId {
        let record = self.steps.get(step);
        let run = match direction {
            Direction::Do => record.map(|record| record.run),
            Direction::Undo => record.map(|record| record.undo_run.unwrap_or(record.run)),
        };
        CommandId::new(self.saga_id, run.unwrap_or(self.run), step, direction)
    }

    /// Where a person has to look: the compensation at which it is parked, or else the step that failed.
    pub fn trouble(&self) -> Option<&Failure> {
        self.stuck.as_ref().or(self.failure.as_ref())
    }

    /// Whether any step has been applied, for certain or perhaps, and not undone.
    pub fn any_step_done(&self) -> bool {
        self.steps.values().any(Record::is_applied)
    }

    pub(crate) fn activate(&mut self, step: &StepId, direction: Direction, now: Timestamp) {
        let run = self.run;
        self.steps.entry(step.clone()).or_insert(Record {
            run,
            undo_run: None,
            progress: Progress::Open,
            maybe_applied: false,
            output: Value::Null,
        });
        self.active.insert(
            step.clone(),
            Active {
                direction,
                phase: Phase::Taken,
                attempt: 1,
                wake_at: now + crate::transition::TAKEN_FOR,
                takeovers: 0,
                postponements: 0,
                first_sent_at: None,
                deferred_since: None,
                error: None,
                probe: false,
                hurried: false,
            },
        );
    }
}
