//! The only way from one state of a saga to the next.
//!
//! Relies on its arguments alone: the same arguments give the same answer, retry jitter included. Every pair of state
//! and event is either named here or refused. What follows from a step that cannot be done is in `recovery`, how long to
//! wait in `delay`. Never: decides what time it is.
//!
//! ```text
//!  Taken ──Sending, Probing──► Sent ──Replied──► (settled: next step | skipped | compensating | …)
//!    ▲ │                         │  └─not_due──► Postponed ─┐
//!    │ └─Deferred, Queued──────────┴─► Deferred ─┐  └─failed, unknown─► Retrying ─┐
//!    └────────────Due────────────────────────────┴────────────────────────────────┘
//!  Due on Taken: take-over. Due on Sent: unknown. Unknown of a probe, Undelivered: Deferred, at no attempt.
//! ```

use chrono::TimeDelta;
use serde_json::{Value, json};

use crate::Timestamp;
use crate::definition::{Definition, Step};
use crate::event::{AlertRaised, Cause, Counter, Effect, Entry, Event, Refused};
use crate::ids::StepId;
use crate::outcome::{Outcome, error_class};
use crate::state::{Active, Direction, Phase, Progress, State, Status};

mod delay;
mod recovery;

/// How long a coordinator may hold a taken saga before another one takes it over.
pub const TAKEN_FOR: TimeDelta = TimeDelta::seconds(10);
/// So many take-overs without an outcome in between are a crash loop: the saga parks.
pub const MAX_TAKEOVERS: u32 = 10;
/// How long a saga waits before it is looked at again that went ahead as a probe and had no answer, or whose command may not
/// have gone out.
pub const UNPROVEN_FOR: TimeDelta = TimeDelta::seconds(5);
/// Added to a step's time-out before a missing reply counts as unknown.
pub const REPLY_GRACE: TimeDelta = TimeDelta::seconds(1);

/// When the command of an active step went out, where its phase is `sent`.
pub fn sent_at(step: &Step, active: &Active) -> Timestamp {
    active.wake_at - step.timeout.delta() - REPLY_GRACE
}

/// What an event makes of a state.
///
/// # Errors
/// [`Refused`] if it changes nothing; the state is then as it was.
pub fn transition(
    definition: &Definition,
    state: State,
    event: Event,
    now: Timestamp,
) -> Result<(State, Vec<Effect>), Refused> {
    let mut change = Change {
        definition,
        state,
        now,
        effects: Vec::new(),
    };
    match event {
        Event::Due => change.due(),
        Event::Sending { step } => change.sending(&step),
        Event::Probing { step } => change.probing(&step),
        Event::Deferred { step, until, error } => change.deferred(&step, until, error),
        Event::Queued { step, until } => change.queued(&step, until),
        Event::Undelivered { step, error } => change.undelivered(&step, &error),
        Event::Replied {
            step,
            direction,
            attempt,
            outcome,
        } => change.replied(&step, direction, attempt, outcome),
        Event::CauseRaised { cause } => change.cause_raised(cause),
        Event::Retry { actor, reason } => change.retry(actor, reason),
        Event::Resolve { actor, reason } => change.resolve(actor, reason),
    }?;
    Ok((change.state, change.effects))
}

/// The first entry of every history: what started it. `event` is the producer's text, kept whole.
pub fn started(state: &State, event: &Value) -> Entry {
    Entry {
        kind: "started".to_owned(),
        step: None,
        direction: None,
        attempt: None,
        state: state.status.name().to_owned(),
        detail: json!({ "cause": state.cause, "event": event }),
    }
}

struct Change<'a> {
    definition: &'a Definition,
    state: State,
    now: Timestamp,
    effects: Vec<Effect>,
}

type Changed = Result<(), Refused>;

impl Change<'_> {
    fn due(&mut self) -> Changed {
        let due: Vec<(StepId, Active)> = self
            .state
            .active
            .iter()
            .filter(|(_, active)| active.wake_at <= self.now)
            .map(|(step, active)| (step.clone(), active.clone()))
            .collect();
        if due.is_empty() {
            return Err(Refused::Unchanged);
        }
        for (step, active) in due {
            match active.phase {
                Phase::Retrying | Phase::Postponed | Phase::Deferred => self.take(&step),
                Phase::Taken => self.take_over(&step, active),
                Phase::Sent => {
                    let error = "timeout: no reply in time".to_owned();
                    self.unanswered(&step, active, "timed_out", Outcome::Unknown { error });
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, step: &StepId) {
        let wake_at = self.now + TAKEN_FOR;
        self.with_active(step, |active| {
            active.phase = Phase::Taken;
            active.wake_at = wake_at;
        });
    }

    fn take_over(&mut self, step: &StepId, active: Active) {
        let takeovers = active.takeovers + 1;
        self.with_active(step, |active| active.takeovers = takeovers);
        self.effects.push(Effect::Count(Counter::TakenOver));
        if takeovers >= MAX_TAKEOVERS {
            let error = format!("crash_loop: taken over {takeovers} times without an outcome");
            self.park(step, active.direction, &error);
        } else {
            self.take(step);
        }
        self.note(
            "taken_over",
            step,
            &active,
            json!({ "takeovers": takeovers }),
        );
    }

    fn sending(&mut self, step: &StepId) -> Changed {
        let active = self.open(step)?;
        if !matches!(active.phase, Phase::Taken | Phase::Sent) {
            return Err(self.illegal("sending what is not in hand"));
        }
        let wake_at = self.now + self.step(step).timeout.delta() + REPLY_GRACE;
        let now = self.now;
        self.with_active(step, |active| {
            active.phase = Phase::Sent;
            active.wake_at = wake_at;
            active.first_sent_at.get_or_insert(now);
            active.probe = false;
        });
        Ok(())
    }

    fn probing(&mut self, step: &StepId) -> Changed {
        self.sending(step)?;
        self.with_active(step, |active| active.probe = true);
        Ok(())
    }

    fn deferred(&mut self, step: &StepId, until: Timestamp, error: String) -> Changed {
        let active = self.open(step)?;
        if !matches!(active.phase, Phase::Taken | Phase::Sent) {
            return Err(self.illegal("deferring what is not in hand"));
        }
        let goes_on = self.wait_on(step, &active, until, &error);
        // Waiting on is not worth a line every two seconds; that it began and how it ended is.
        if active.deferred_since.is_none() || !goes_on {
            let detail = json!({ "error": error, "wake_at": self.wake_at(step) });
            self.note("deferred", step, &active, detail);
        }
        Ok(())
    }

    /// Waits at no attempt, or is exhausted: false, once it has waited for all of the definition's patience.
    fn wait_on(&mut self, step: &StepId, active: &Active, until: Timestamp, error: &str) -> bool {
        let since = active.deferred_since.unwrap_or(self.now);
        let patience_ends = since + self.definition.body.patience.delta();
        if self.now >= patience_ends {
            self.exhausted(step, active.direction, error);
            return false;
        }
        let wake_at = until.clamp(self.now, patience_ends);
        self.with_active(step, |active| {
            active.phase = Phase::Deferred;
            active.wake_at = wake_at;
            active.deferred_since = Some(since);
            active.error = Some(error.to_owned());
            active.probe = false;
        });
        true
    }

    fn undelivered(&mut self, step: &StepId, error: &str) -> Changed {
        let active = self.open(step)?;
        if active.phase != Phase::Sent {
            return Err(self.illegal("what was not sent is undelivered anyway"));
        }
        self.unproven(step, &active, "undelivered", error);
        Ok(())
    }

    /// It may have been applied, and nobody knows yet whether its participant is there, or can be reached.
    fn unproven(&mut self, step: &StepId, sent: &Active, kind: &str, error: &str) {
        self.mark_maybe_applied(step, sent.direction);
        self.with_active(step, |active| active.takeovers = 0);
        self.wait_on(step, sent, self.now + UNPROVEN_FOR, error);
        let detail = json!({ "error": error, "wake_at": self.wake_at(step) });
        self.note(kind, step, sent, detail);
    }

    fn queued(&mut self, step: &StepId, until: Timestamp) -> Changed {
        let active = self.open(step)?;
        if !matches!(active.phase, Phase::Taken | Phase::Sent) {
            return Err(self.illegal("queueing what is not in hand"));
        }
        let wake_at = until.max(self.now);
        self.with_active(step, |active| {
            active.phase = Phase::Deferred;
            active.wake_at = wake_at;
            active.probe = false;
        });
        Ok(())
    }

    fn replied(
        &mut self,
        step: &StepId,
        direction: Direction,
        attempt: u32,
        outcome: Outcome,
    ) -> Changed {
        let stale = |why| Refused::Stale {
            step: step.clone(),
            attempt,
            why,
        };
        let Some(active) = self.state.active.get(step).cloned() else {
            return Err(stale("the step is settled"));
        };
        if active.direction != direction {
            return Err(stale("the step goes the other way by now"));
        }
        if !outcome.is_final() && (active.phase != Phase::Sent || active.attempt != attempt) {
            return Err(stale("another attempt is current"));
        }
        let answered = Active { attempt, ..active };
        match outcome {
            Outcome::NotDue { until } if direction == Direction::Do => {
                self.postponed(step, answered, until)
            }
            Outcome::Failed { .. } | Outcome::Unknown { .. } => {
                self.unanswered(step, answered, "replied", outcome)
            }
            outcome => self.settled(step, answered, outcome),
        }
        Ok(())
    }

    /// A final answer, or one that makes no sense and parks the saga.
    fn settled(&mut self, step: &StepId, answered: Active, outcome: Outcome) {
        let detail = json!(outcome);
        match (answered.direction, outcome) {
            (Direction::Do, Outcome::Done { output }) => self.action_done(step, output),
            (Direction::Do, Outcome::NotApplicable { reason }) => self.not_applicable(step, reason),
            (Direction::Do, Outcome::Rejected { reason }) => self.rejected(step, &reason),
            (Direction::Undo, Outcome::Done { .. } | Outcome::NotApplicable { .. }) => {
                self.settle(step, Progress::Undone);
                self.compensate_next();
            }
            (direction, outcome) => {
                if matches!(outcome, Outcome::Mismatch { .. } | Outcome::Expired) {
                    self.mark_maybe_applied(step, direction);
                }
                let words = outcome
                    .error()
                    .unwrap_or("the answer makes no sense here")
                    .to_owned();
                self.park(step, direction, &format!("{}: {words}", outcome.name()));
                if matches!(outcome, Outcome::Rejected { .. }) {
                    self.mark_answered();
                }
            }
        }
        self.note("replied", step, &answered, detail);
    }

    fn action_done(&mut self, step: &StepId, output: Value) {
        self.settle(step, Progress::Done);
        if let Some(record) = self.state.steps.get_mut(step) {
            record.output = output;
        }
        self.go_on(step);
    }

    fn not_applicable(&mut self, step: &StepId, reason: String) {
        self.settle(step, Progress::NotApplicable);
        if self.state.any_step_done() {
            self.go_on(step);
        } else {
            self.end(Status::Skipped { reason });
        }
    }

    fn rejected(&mut self, step: &StepId, reason: &str) {
        self.settle(step, Progress::Rejected);
        self.give_up(step, Direction::Do, reason);
        self.mark_answered();
    }

    fn mark_maybe_applied(&mut self, step: &StepId, direction: Direction) {
        if direction == Direction::Do
            && let Some(record) = self.state.steps.get_mut(step)
        {
            record.maybe_applied = true;
        }
    }

    /// What was just noted is the participant's final answer.
    fn mark_answered(&mut self) {
        if let Some(failure) = self.state.stuck.as_mut().or(self.state.failure.as_mut()) {
            failure.answered = true;
        }
    }

    /// The next step, or the end.
    fn go_on(&mut self, step: &StepId) {
        match self.definition.next_step(step) {
            Some(next) => self.state.activate(next, Direction::Do, self.now),
            None => self.end(Status::Completed),
        }
    }

    fn postponed(&mut self, step: &StepId, answered: Active, until: Timestamp) {
        let (phase, wake_at) = if answered.hurried {
            (Phase::Taken, self.now + TAKEN_FOR)
        } else {
            (
                Phase::Postponed,
                delay::postponed_until(until, answered.postponements, self.now),
            )
        };
        self.with_active(step, |active| {
            active.phase = phase;
            active.wake_at = wake_at;
            active.hurried = false;
            active.probe = false;
            active.postponements += 1;
            active.takeovers = 0;
            active.deferred_since = None;
            active.first_sent_at = None;
        });
        self.effects.push(Effect::Count(Counter::Postponed));
        self.note(
            "postponed",
            step,
            &answered,
            json!({ "outcome": "not_due", "until": until, "wake_at": wake_at }),
        );
    }

    /// `failed` or `unknown`: again after a delay, or exhausted.
    fn unanswered(&mut self, step: &StepId, answered: Active, kind: &str, outcome: Outcome) {
        let error = outcome.error().unwrap_or_default().to_owned();
        if matches!(outcome, Outcome::Unknown { .. }) {
            if answered.probe {
                return self.unproven(step, &answered, "probed", &error);
            }
            self.mark_maybe_applied(step, answered.direction);
        }
        let retries = &self.step(step).retries;
        if answered.attempt > retries.max {
            self.exhausted(step, answered.direction, &error);
        } else {
            let wake_at =
                self.now + delay::retry_delay(&self.state, step, answered.attempt, &retries.delays);
            self.with_active(step, |active| {
                active.phase = Phase::Retrying;
                active.attempt = answered.attempt + 1;
                active.wake_at = wake_at;
                active.takeovers = 0;
                active.deferred_since = None;
                active.error = Some(error.clone());
                active.probe = false;
            });
            self.effects.push(Effect::Count(Counter::Retried));
        }
        let mut detail = json!(outcome);
        if let (Value::Object(fields), Some(wake_at)) = (&mut detail, self.wake_at(step)) {
            fields.insert("wake_at".to_owned(), json!(wake_at));
        }
        self.note(kind, step, &answered, detail);
    }

    fn end(&mut self, status: Status) {
        let counter = match status {
            Status::Completed => Some(Counter::Completed),
            Status::Skipped { .. } => Some(Counter::Skipped),
            Status::Compensated => Some(Counter::Compensated),
            Status::Parked => Some(Counter::Parked),
            Status::Running | Status::Compensating | Status::Resolved => None,
        };
        self.effects.extend(counter.map(Effect::Count));
        self.effects.push(Effect::Ended(status.clone()));
        self.state.status = status;
    }

    fn cause_raised(&mut self, cause: Cause) -> Changed {
        if cause.respects_due_time() {
            return Err(Refused::Unchanged);
        }
        if self.state.status != Status::Running {
            return Err(Refused::Conflict {
                state: self.state.status.name(),
            });
        }
        if cause <= self.state.cause {
            return Err(Refused::Unchanged);
        }
        self.state.cause = cause;
        let now = self.now;
        for active in self.state.active.values_mut() {
            match active.phase {
                Phase::Postponed => active.wake_at = now,
                Phase::Taken | Phase::Sent => active.hurried = true,
                Phase::Retrying | Phase::Deferred => {}
            }
        }
        self.note_saga("cause_raised", json!({ "cause": cause }));
        Ok(())
    }

    fn settle(&mut self, step: &StepId, progress: Progress) {
        self.state.active.remove(step);
        if let Some(record) = self.state.steps.get_mut(step) {
            record.progress = progress;
            record.maybe_applied = false;
        }
    }

    fn open(&self, step: &StepId) -> Result<Active, Refused> {
        self.state
            .active
            .get(step)
            .cloned()
            .ok_or_else(|| self.illegal("the step is not open"))
    }

    fn illegal(&self, what: &'static str) -> Refused {
        Refused::Illegal {
            state: self.state.status.name(),
            what,
        }
    }

    /// A step that is open was put there from this definition.
    fn step(&self, step: &StepId) -> &'_ Step {
        self.definition
            .step(step)
            .expect("open steps come from the definition the saga started with")
    }

    fn wake_at(&self, step: &StepId) -> Option<Timestamp> {
        self.state.active.get(step).map(|active| active.wake_at)
    }

    fn with_active(&mut self, step: &StepId, change: impl FnOnce(&mut Active)) {
        if let Some(active) = self.state.active.get_mut(step) {
            change(active);
        }
    }

    fn alert(&mut self, kind: &str, step: &StepId, error: &str) {
        self.effects.push(Effect::Alert(AlertRaised {
            kind: kind.to_owned(),
            step: step.clone(),
            class: error_class(error),
            message: error.to_owned(),
        }));
    }

    fn note(&mut self, kind: &str, step: &StepId, active: &Active, detail: Value) {
        self.effects.push(Effect::History(Entry {
            kind: kind.to_owned(),
            step: Some(step.clone()),
            direction: Some(active.direction),
            attempt: Some(active.attempt),
            state: self.state.status.name().to_owned(),
            detail,
        }));
    }

    fn note_saga(&mut self, kind: &str, detail: Value) {
        self.effects.push(Effect::History(Entry {
            kind: kind.to_owned(),
            step: None,
            direction: None,
            attempt: None,
            state: self.state.status.name().to_owned(),
            detail,
        }));
    }
}
