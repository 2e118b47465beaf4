//! Definitions and a saga in the hand, so that a test reads as given, when, then.

use chrono::TimeDelta;
use lapse_sagas::outcome::Outcome;
use lapse_sagas::state::{Active, Progress};
use lapse_sagas::{
    Cause, Definition, Direction, Effect, Event, Phase, Refused, SagaId, State, Timestamp,
    transition,
};
use serde_json::Value;

/// The definition that ships.
pub fn shipped() -> Definition {
    Definition::parse(
        "cancel-and-replenish.yaml",
        include_str!("../../definitions/cancel-and-replenish.yaml"),
    )
    .expect("the shipped definition is right")
}

/// Every kind of step and every way to be exhausted.
pub fn kinds() -> Definition {
    Definition::parse("kinds.yaml", KINDS).expect("the definition of all kinds is right")
}

const KINDS: &str = "
format: saga/v1
name: kinds
version: 1
trigger: { event_types: [order.placed], order_types: { normal: { delay: 30m } }, order_owner: orders }
steps:
  - id: reserve
    action: { participant: orders, operation: Reserve }
    compensation: { participant: orders, operation: Unreserve }
    retries: { max: 1, delays: [1s] }
    on_exhausted: continue
  - id: charge
    kind: pivot
    action: { participant: payment, operation: Charge }
    retries: { max: 1, delays: [1s] }
  - id: ship
    kind: retriable
    action: { participant: depot, operation: Ship }
    retries: { max: 1, delays: [1s] }
  - id: tell
    kind: retriable
    action: { participant: mail, operation: Tell }
    retries: { max: 0 }
    on_exhausted: continue
";

/// 2026-03-04T09:00:00Z.
pub fn epoch() -> Timestamp {
    Timestamp::from_timestamp(1_772_614_800, 0).expect("a valid time")
}

pub fn saga_id(number: u128) -> SagaId {
    SagaId(uuid::Uuid::from_u128(number))
}

pub fn done() -> Outcome {
    Outcome::Done {
        output: Value::Null,
    }
}

pub fn not_applicable() -> Outcome {
    Outcome::NotApplicable {
        reason: "paid".to_owned(),
    }
}

pub fn not_due(until: Timestamp) -> Outcome {
    Outcome::NotDue { until }
}

pub fn rejected() -> Outcome {
    Outcome::Rejected {
        reason: "closed: by hand".to_owned(),
    }
}

pub fn failed() -> Outcome {
    Outcome::Failed {
        error: "busy: come again".to_owned(),
    }
}

pub fn unknown() -> Outcome {
    Outcome::Unknown {
        error: "timeout: no answer".to_owned(),
    }
}

pub fn mismatch() -> Outcome {
    Outcome::Mismatch {
        error: "other input".to_owned(),
    }
}

/// One saga and a clock.
pub struct Saga {
    pub definition: Definition,
    pub state: State,
    pub now: Timestamp,
    /// What the last event brought.
    pub effects: Vec<Effect>,
}

impl Saga {
    pub fn started(definition: Definition, cause: Cause) -> Saga {
        let state = State::start(&definition, saga_id(7), cause, epoch());
        Saga {
            definition,
            state,
            now: epoch(),
            effects: Vec::new(),
        }
    }

    pub fn tries(&mut self, event: Event) -> Result<(), Refused> {
        let (state, effects) = transition(&self.definition, self.state.clone(), event, self.now)?;
        self.state = state;
        self.effects = effects;
        Ok(())
    }

    pub fn when(&mut self, event: Event) -> &mut Self {
        let shown = format!("{event:?}");
        self.tries(event)
            .unwrap_or_else(|refused| panic!("{shown}: {refused}, in {:?}", self.state));
        self
    }

    /// The one open step.
    pub fn open(&self) -> (&str, &Active) {
        let (step, active) = self.state.earliest().expect("a live saga");
        (step.as_str(), active)
    }

    pub fn sent(&mut self) -> &mut Self {
        let step = self.open().0.into();
        self.when(Event::Sending { step })
    }

    /// The open step's current attempt is answered.
    pub fn answered(&mut self, outcome: Outcome) -> &mut Self {
        let event = self.reply(outcome);
        self.when(event)
    }

    pub fn reply(&self, outcome: Outcome) -> Event {
        let (step, active) = self.open();
        Event::Replied {
            step: step.into(),
            direction: active.direction,
            attempt: active.attempt,
            outcome,
        }
    }

    pub fn reply_to(
        &self,
        step: &str,
        direction: Direction,
        attempt: u32,
        outcome: Outcome,
    ) -> Event {
        Event::Replied {
            step: step.into(),
            direction,
            attempt,
            outcome,
        }
    }

    pub fn sent_and_answered(&mut self, outcome: Outcome) -> &mut Self {
        self.sent().answered(outcome)
    }

    /// The clock goes on to the wake-up time, and the poll finds the saga.
    pub fn woken(&mut self) -> &mut Self {
        self.now = self.now.max(self.open().1.wake_at);
        self.when(Event::Due)
    }

    pub fn after(&mut self, delta: TimeDelta) -> &mut Self {
        self.now += delta;
        self
    }

    /// So many attempts, each answered like this, until the step is given up.
    pub fn exhausted_by(&mut self, outcome: fn() -> Outcome) -> &mut Self {
        let (step, direction) = (self.open().0.to_owned(), self.open().1.direction);
        for _ in 0..51 {
            self.sent_and_answered(outcome());
            if self.state.active.is_empty()
                || self.open().0 != step
                || self.open().1.direction != direction
            {
                return self;
            }
            self.woken();
        }
        panic!("{step} was never given up");
    }

    pub fn deferred(&mut self, until: Timestamp) -> &mut Self {
        let step = self.open().0.into();
        self.when(Event::Deferred {
            step,
            until,
            error: "open: the breaker is open".to_owned(),
        })
    }

    pub fn raised(&mut self, cause: Cause) -> &mut Self {
        self.when(Event::CauseRaised { cause })
    }

    pub fn retried(&mut self) -> &mut Self {
        self.when(Event::Retry {
            actor: "ann".to_owned(),
            reason: "fixed".to_owned(),
        })
    }

    pub fn is_at(&self, step: &str, direction: Direction, phase: Phase, attempt: u32) {
        let (open, active) = self.open();
        assert_eq!(
            (open, active.direction, active.phase, active.attempt),
            (step, direction, phase, attempt)
        );
    }

    pub fn stands_at(&self, status: &str) {
        assert_eq!(self.state.status.name(), status, "{:?}", self.state);
    }

    pub fn progress(&self, step: &str) -> Progress {
        self.state.steps[&step.into()].progress
    }

    pub fn command(&self, step: &str, direction: Direction) -> String {
        self.state.command_id(&step.into(), direction).to_string()
    }

    pub fn alerts(&self) -> Vec<&str> {
        let kind = |effect: &'_ Effect| match effect {
            Effect::Alert(alert) => Some(alert.kind.clone()),
            _ => None,
        };
        let kinds: Vec<String> = self.effects.iter().filter_map(kind).collect();
        ["compensated", "parked", "continued"]
            .into_iter()
            .filter(|known| kinds.iter().any(|kind| kind == known))
            .collect()
    }
}
