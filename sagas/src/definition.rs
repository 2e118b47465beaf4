//! Saga definitions: what starts a saga, what it does step by step, and what happens when a step cannot be done.
//!
//! [`Definition::parse`] reads and checks a text and tells every mistake in one run; the checks are in `validation`,
//! the positions of mistakes in `place`. Relies on the file's text only. Never: reads a file, or talks to a participant.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::duration::Span;
use crate::expression::Expression;
use crate::ids::{DefinitionHash, StepId};

mod place;
mod problem;
mod reading;
mod validation;

pub use problem::Problem;

/// One definition file, checked.
#[derive(Clone, PartialEq, Debug)]
pub struct Definition {
    /// SHA-256 of the text.
    pub hash: DefinitionHash,
    /// The text, as in the file.
    pub text: Arc<str>,
    /// What it says.
    pub body: Body,
    /// What is allowed and yet looks like a mistake, for the person who loads it.
    pub warnings: Vec<Problem>,
}

/// What a definition file says.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Body {
    /// Always `saga/v1`.
    pub format: String,
    /// `[a-z][a-z0-9-]{0,63}`; one active definition per name.
    pub name: String,
    /// Raised with every change: the same version with another content is refused.
    pub version: u32,
    /// For people.
    #[serde(default)]
    pub title: String,
    /// What starts a saga.
    pub trigger: Trigger,
    /// In the order in which they are done; at least one.
    pub steps: Vec<Step>,
    /// How long a command may be repeated under one id before a participant answers `expired`.
    #[serde(default = "one_hour")]
    pub command_ttl: Span,
    /// How long a step may be deferred (locks, an open breaker) before it counts as exhausted.
    #[serde(default = "fifteen_minutes")]
    pub patience: Span,
    /// How often an open alert is repeated until it is acknowledged.
    #[serde(default = "thirty_minutes")]
    pub alert_repeat: Span,
}

/// What starts a saga.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trigger {
    /// Event types that start it. An event without a type counts as any of them.
    pub event_types: Vec<String>,
    /// Order types that start it, each with its delay where the event has no due time of its own.
    pub order_types: BTreeMap<String, Delay>,
    /// The delay of every other order type; without it, other order types don't start this saga.
    #[serde(default)]
    pub other_order_types: Option<Delay>,
    /// The participant that owns the orders: asked by the sweep, and by the guard before a saga starts.
    pub order_owner: String,
    /// Ask the order owner before starting and drop what is paid. Saves a saga per paid order.
    #[serde(default)]
    pub guard: bool,
}

/// How long after `occurred_at` an order falls due if the event does not say.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delay {
    /// The delay.
    pub delay: Span,
}

/// One step.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// `[a-z][a-z0-9_]{0,63}`, unique in the file.
    pub id: StepId,
    /// For people.
    #[serde(default)]
    pub title: String,
    /// What it may be followed by: `compensatable* → pivot? → retriable*`.
    #[serde(default)]
    pub kind: Kind,
    /// What does it.
    pub action: Call,
    /// What undoes it.
    #[serde(default)]
    pub compensation: Option<Call>,
    /// How long one call may take.
    #[serde(default = "five_seconds")]
    pub timeout: Span,
    /// How often and when a failed call is repeated, for the action and for the compensation.
    #[serde(default)]
    pub retries: Retries,
    /// What happens when they are used up; by default `compensate`, after a pivot `park`.
    #[serde(default)]
    pub on_exhausted: Option<OnExhausted>,
}

/// The kind of a step decides which way recovery goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Can be undone.
    #[default]
    Compensatable,
    /// The point of no return.
    Pivot,
    /// After the pivot: must be done in the end.
    Retriable,
}

/// One operation of one participant.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// Which participant.
    pub participant: String,
    /// Which of its operations.
    pub operation: String,
    /// What it is given, beside the order's key, generation and the cause, which every command carries.
    #[serde(default)]
    pub input: BTreeMap<String, Expression>,
}

/// How a failed call is repeated.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retries {
    /// How many calls after the first; at most 50.
    #[serde(default = "three")]
    pub max: u32,
    /// The delay before each; the last one serves for all further. Jitter takes off up to half.
    #[serde(default = "default_delays")]
    pub delays: Vec<Span>,
}

/// What happens when a step's retries are used up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExhausted {
    /// Undo what was done, in reverse, and alert.
    Compensate,
    /// Leave it as it is, and alert until a human decides.
    Park,
    /// Go on without it, and alert.
    Continue,
}

impl Default for Retries {
    /// 1 s, 4 s, 16 s.
    fn default() -> Self {
        Retries {
            max: three(),
            delays: default_delays(),
        }
    }
}

fn three() -> u32 {
    3
}
fn default_delays() -> Vec<Span> {
    [1, 4, 16].map(Span::from_secs).to_vec()
}
fn five_seconds() -> Span {
    Span::from_secs(5)
}
fn fifteen_minutes() -> Span {
    Span::from_secs(15 * 60)
}
fn thirty_minutes() -> Span {
    Span::from_secs(30 * 60)
}
fn one_hour() -> Span {
    Span::from_secs(3_600)
}

impl Definition {
    /// Reads and checks a definition. `file` is what the problems call it.
    ///
    /// # Errors
    /// Everything that is wrong, in the order of the file; one problem only if the text is not readable YAML of this
    /// shape.
    pub fn parse(file: &str, text: &str) -> Result<Definition, Vec<Problem>> {
        let body = reading::read(file, text).map_err(|problem| vec![problem])?;
        let findings = validation::check(&body);
        let (errors, warnings) = place::locate(file, text, findings);
        if errors.is_empty() {
            Ok(Definition::new(text, body, warnings))
        } else {
            Err(errors)
        }
    }

    fn new(text: &str, body: Body, warnings: Vec<Problem>) -> Definition {
        let hash = DefinitionHash::from(hex::encode(Sha256::digest(text)).as_str());
        Definition {
            hash,
            text: text.into(),
            body,
            warnings,
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.body.name
    }

    /// The step that is done first.
    pub fn first_step(&self) -> &StepId {
        &self.body.steps[0].id
    }

    /// The step after this one.
    pub fn next_step(&self, step: &StepId) -> Option<&StepId> {
        let at = self.position(step)?;
        self.body.steps.get(at + 1).map(|next| &next.id)
    }

    /// A step by its id.
    pub fn step(&self, step: &StepId) -> Option<&Step> {
        self.body
            .steps
            .iter()
            .find(|candidate| candidate.id == *step)
    }

    /// What happens when this step's retries are used up.
    pub fn on_exhausted(&self, step: &Step) -> OnExhausted {
        let default = if self.is_after_pivot(&step.id) {
            OnExhausted::Park
        } else {
            OnExhausted::Compensate
        };
        step.on_exhausted.unwrap_or(default)
    }

    /// Whether the point of no return lies before this step: a pivot does, or it is retriable itself.
    pub fn is_after_pivot(&self, step: &StepId) -> bool {
        let at = self.position(step).unwrap_or(0);
        self.body.is_after_pivot(at)
    }

    fn position(&self, step: &StepId) -> Option<usize> {
        self.body
            .steps
            .iter()
            .position(|candidate| candidate.id == *step)
    }
}

impl Body {
    fn is_after_pivot(&self, at: usize) -> bool {
        let retriable = self
            .steps
            .get(at)
            .is_some_and(|step| step.kind == Kind::Retriable);
        retriable
            || self
                .steps
                .iter()
                .take(at)
                .any(|step| step.kind == Kind::Pivot)
    }
}

impl Step {
    /// What is called in a direction; a compensation may be absent.
    pub fn call(&self, direction: crate::state::Direction) -> Option<&Call> {
        match direction {
            crate::state::Direction::Do => Some(&self.action),
            crate::state::Direction::Undo => self.compensation.as_ref(),
        }
    }
}

impl Trigger {
    /// The delay of an order type, if it starts this saga.
    pub fn delay(&self, order_type: &str) -> Option<Span> {
        self.order_types
            .get(order_type)
            .or(self.other_order_types.as_ref())
            .map(|delay| delay.delay)
    }

    /// Whether an event of this type starts this saga; an event without a type does.
    pub fn takes_event_type(&self, event_type: Option<&str>) -> bool {
        event_type.is_none_or(|event_type| self.event_types.iter().any(|known| known == event_type))
    }
}
