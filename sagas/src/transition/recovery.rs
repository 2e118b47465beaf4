//! What a saga does about a step that cannot be done, and what an operator can do about the saga.
//!
//! ```text
//!  exhausted ─┬─ compensate ─► every step that was or may have been applied, last first ─► compensated
//!  rejected ──┤                 one that may have been applied and cannot be undone ─► parked
//!             ├─ park, or after the pivot ─► parked
//!             └─ continue (exhausted only) ─► next step
//! ```
//! Relies on the records of the steps. Never: undoes a step that was certainly not applied.

use serde_json::json;

use super::{Change, Changed};
use crate::definition::{OnExhausted, Step};
use crate::event::{Effect, Refused};
use crate::ids::StepId;
use crate::outcome::error_class;
use crate::state::{Direction, Failure, Progress, Record, Status};

impl Change<'_> {
    pub(super) fn exhausted(&mut self, step: &StepId, direction: Direction, error: &str) {
        if direction == Direction::Undo {
            return self.park(step, direction, error);
        }
        match self.definition.on_exhausted(self.step(step)) {
            OnExhausted::Park => self.park(step, direction, error),
            OnExhausted::Continue => {
                self.settle_exhausted(step);
                self.alert("continued", step, error);
                self.go_on(step);
            }
            OnExhausted::Compensate => {
                self.settle_exhausted(step);
                self.give_up(step, direction, error);
            }
        }
    }

    /// Closes the step and keeps in mind that it may have been applied.
    fn settle_exhausted(&mut self, step: &StepId) {
        self.state.active.remove(step);
        if let Some(record) = self.state.steps.get_mut(step) {
            record.progress = Progress::Exhausted;
        }
    }

    /// Undo everything, unless the point of no return lies behind, or perhaps behind: a pivot that may have been
    /// applied can neither be undone nor taken for not done.
    pub(super) fn give_up(&mut self, step: &StepId, direction: Direction, error: &str) {
        let maybe_applied = self
            .state
            .steps
            .get(step)
            .is_some_and(|record| record.maybe_applied);
        let cannot_be_undone = maybe_applied && self.step(step).compensation.is_none();
        if cannot_be_undone || self.definition.is_after_pivot(step) {
            return self.park(step, direction, error);
        }
        self.state.failure = Some(failure(step, direction, error));
        self.state.status = Status::Compensating;
        self.compensate_next();
    }

    /// The last step that was or may have been applied and can be undone; without one, compensated.
    pub(super) fn compensate_next(&mut self) {
        let applied = |step: &Step| {
            self.state
                .steps
                .get(&step.id)
                .is_some_and(Record::is_applied)
        };
        let next = self
            .definition
            .body
            .steps
            .iter()
            .rev()
            .find(|step| step.compensation.is_some() && applied(step));
        if let Some(step) = next {
            return self.state.activate(&step.id, Direction::Undo, self.now);
        }
        if let Some(failure) = self.state.failure.clone() {
            self.alert("compensated", &failure.step, &failure.message);
        }
        self.end(Status::Compensated);
    }

    pub(super) fn park(&mut self, step: &StepId, direction: Direction, error: &str) {
        let failure = Some(failure(step, direction, error));
        match direction {
            Direction::Do => self.state.failure = failure,
            // Why it compensates is still the step that failed first.
            Direction::Undo => self.state.stuck = failure,
        }
        self.state.active.clear();
        self.alert("parked", step, error);
        self.end(Status::Parked);
    }

    pub(super) fn retry(&mut self, actor: String, reason: String) -> Changed {
        let from = self.state.status.clone();
        match from {
            Status::Parked => self.resume_parked()?,
            Status::Compensated => {
                self.state.run += 1;
                self.state.steps.clear();
                self.state.failure = None;
                self.state.status = Status::Running;
                self.state
                    .activate(self.definition.first_step(), Direction::Do, self.now);
            }
            _ => return Err(Refused::Conflict { state: from.name() }),
        }
        self.effects.push(Effect::AlertSettled);
        self.note_saga(
            "retried",
            json!({ "actor": actor, "reason": reason, "run": self.state.run }),
        );
        Ok(())
    }

    /// Same step, same direction; what is done stays done. The command id is new only where the participant has
    /// answered the old one finally: it would answer the same again.
    fn resume_parked(&mut self) -> Changed {
        let Some(stuck) = self.state.trouble().cloned() else {
            return Err(self.illegal("parked without a failure"));
        };
        self.state.stuck = None;
        self.state.run += 1;
        let run = self.state.run;
        self.state.activate(&stuck.step, stuck.direction, self.now);
        let Some(record) = self.state.steps.get_mut(&stuck.step) else {
            return Err(self.illegal("parked at a step that was never sent"));
        };
        match stuck.direction {
            Direction::Do => {
                record.progress = Progress::Open;
                self.state.status = Status::Running;
                self.state.failure = None;
                if stuck.answered {
                    record.run = run;
                }
            }
            // It still compensates for a reason, and will have to tell it.
            Direction::Undo => {
                self.state.status = Status::Compensating;
                if stuck.answered {
                    record.undo_run = Some(run);
                }
            }
        }
        Ok(())
    }

    pub(super) fn resolve(&mut self, actor: String, reason: String) -> Changed {
        if !matches!(self.state.status, Status::Parked | Status::Compensated) {
            return Err(Refused::Conflict {
                state: self.state.status.name(),
            });
        }
        self.state.stuck = None;
        self.state.status = Status::Resolved;
        self.effects.push(Effect::AlertSettled);
        self.effects.push(Effect::Ended(Status::Resolved));
        self.note_saga("resolved", json!({ "actor": actor, "reason": reason }));
        Ok(())
    }
}

fn failure(step: &StepId, direction: Direction, error: &str) -> Failure {
    Failure {
        step: step.clone(),
        direction,
        class: error_class(error),
        message: error.to_owned(),
        answered: false,
    }
}
