//! A batch of states as one array per column: the extracts of a state that indexes and views need.
//!
//! Never: the other way round. A state is read back from its JSON alone.

use chrono::NaiveDate;
use lapse_sagas::{State, Timestamp};
use uuid::Uuid;

use crate::store::consequence::{is_finished, reason};
use crate::store::schema::day;
use crate::store::text::json_text;

/// One entry per saga in each.
#[derive(Default)]
pub struct Columns<'a> {
    pub days: Vec<NaiveDate>,
    pub saga_ids: Vec<Uuid>,
    pub causes: Vec<&'static str>,
    pub runs: Vec<i32>,
    pub states: Vec<&'static str>,
    pub reasons: Vec<Option<String>>,
    pub steps: Vec<Option<&'a str>>,
    pub directions: Vec<Option<String>>,
    pub phases: Vec<Option<&'static str>>,
    pub attempts: Vec<Option<i32>>,
    pub wake_ats: Vec<Option<Timestamp>>,
    pub bodies: Vec<String>,
    pub finished: Vec<bool>,
}

impl<'a> Columns<'a> {
    pub fn of(states: impl Iterator<Item = &'a State>) -> Columns<'a> {
        let mut all = Columns::default();
        for state in states {
            all.push(state);
        }
        all
    }

    /// The first day; of no rows, any.
    pub fn first_day(&self) -> NaiveDate {
        first_day(&self.days)
    }

    fn push(&mut self, state: &'a State) {
        let earliest = state.earliest();
        let active = earliest.map(|(_, active)| active);
        self.days.push(day(state.saga_id));
        self.saga_ids.push(state.saga_id.0);
        self.causes.push(state.cause.name());
        self.runs.push(int(state.run));
        self.states.push(state.status.name());
        self.reasons.push(reason(state));
        self.steps.push(earliest.map(|(step, _)| step.as_str()));
        self.directions
            .push(active.map(|active| active.direction.to_string()));
        self.phases.push(active.map(|active| active.phase.name()));
        self.attempts.push(active.map(|active| int(active.attempt)));
        self.wake_ats.push(active.map(|active| active.wake_at));
        self.bodies.push(json_text(state));
        self.finished.push(is_finished(&state.status));
    }
}

/// The first of these days; of none, any.
pub fn first_day(days: &[NaiveDate]) -> NaiveDate {
    days.iter().min().copied().unwrap_or_default()
}

/// Runs and attempts stay far below.
fn int(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
