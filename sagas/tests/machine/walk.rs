//! Every state that a definition's sagas can reach, and what must be true in each.
//!
//! Times are abstract: every time that is set is one and the same instant, a wake-up time is past or it isn't, patience
//! is over or it isn't; take-overs count as none, some, one too few. Beside each state goes what the participants'
//! world looks like ([`World`]), so that the state's own bookkeeping is judged by something else than itself.

use std::collections::{BTreeMap, HashSet};

use chrono::TimeDelta;
use lapse_sagas::event::Entry;
use lapse_sagas::outcome::Outcome;
use lapse_sagas::state::{Failure, Progress};
use lapse_sagas::transition::MAX_TAKEOVERS;
use lapse_sagas::{
    Cause, Definition, Direction, Effect, Event, Phase, Refused, State, Status, StepId, Timestamp,
    transition,
};
use serde_json::Value;

use crate::given::{
    done, epoch, failed, kinds, mismatch, not_applicable, not_due, rejected, saga_id, shipped,
    unknown,
};

/// Whether a step's action is in effect out there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Applied {
    No,
    Perhaps,
    Yes,
}

type World = BTreeMap<StepId, Applied>;

/// One legal transition, for the picture.
pub struct Arrow<'a> {
    pub before: &'a State,
    pub event: &'a Event,
    pub after: &'a State,
}

/// Walks everything up to a run; gives the number of states and of legal transitions.
pub fn walk(
    definition: &Definition,
    last_run: u32,
    mut seen_arrow: impl FnMut(Arrow<'_>),
) -> (usize, usize) {
    let world: World = definition
        .body
        .steps
        .iter()
        .map(|step| (step.id.clone(), Applied::No))
        .collect();
    let mut seen = HashSet::new();
    let mut open = Vec::new();
    for cause in [Cause::Timeout, Cause::Sweep, Cause::Buyer, Cause::Operator] {
        let state = canonical(State::start(definition, saga_id(7), cause, epoch()));
        seen.insert(key(&state, &world));
        open.push((state, world.clone()));
    }
    let mut arrows = 0;
    while let Some((state, world)) = open.pop() {
        for (event, now) in events(definition, &state) {
            let (after, effects) = match transition(definition, state.clone(), event.clone(), now) {
                Ok(changed) => changed,
                Err(refused) => {
                    refusal_is_right(&state, &event, now, &refused);
                    continue;
                }
            };
            arrows += 1;
            let world = consequence(&world, &state, &event);
            let told = || {
                format!("{event:?}\n before {state:?}\n after {after:?}\n {effects:?}\n {world:?}")
            };
            state_is_sound(definition, &after, &told);
            rest_is_right(definition, &after, &world, &told);
            effects_are_right(&state, &event, &after, &effects, &told);
            command_ids_last(definition, &state, &after, &told);
            a_probe_burns_no_attempt(&state, &event, &after, &told);
            seen_arrow(Arrow {
                before: &state,
                event: &event,
                after: &after,
            });
            let after = canonical(after);
            if after.run <= last_run && seen.insert(key(&after, &world)) {
                open.push((after, world));
            }
        }
    }
    (seen.len(), arrows)
}

fn key(state: &State, world: &World) -> String {
    format!(
        "{} {world:?}",
        serde_json::to_string(state).expect("a state has a JSON form")
    )
}

fn canonical(mut state: State) -> State {
    for active in state.active.values_mut() {
        active.wake_at = epoch();
        active.first_sent_at = active.first_sent_at.map(|_| epoch());
        active.deferred_since = active.deferred_since.map(|_| epoch());
        active.postponements = active.postponements.min(1);
        active.error = None;
        if (1..MAX_TAKEOVERS - 2).contains(&active.takeovers) {
            active.takeovers = MAX_TAKEOVERS - 2;
        }
    }
    for record in state.steps.values_mut() {
        record.output = Value::Null;
    }
    for failure in state.failure.iter_mut().chain(&mut state.stuck) {
        failure.message.clear();
        failure.class.clear();
    }
    state
}

/// Everything that can happen, sensible or not.
fn events(definition: &Definition, state: &State) -> Vec<(Event, Timestamp)> {
    let now = epoch();
    let second = TimeDelta::seconds(1);
    let text = |text: &str| text.to_owned();
    let mut events = vec![
        (Event::Due, now),
        (Event::Due, now - second),
        (
            Event::Retry {
                actor: text("ann"),
                reason: text("fixed"),
            },
            now,
        ),
        (
            Event::Resolve {
                actor: text("ann"),
                reason: text("done by hand"),
            },
            now,
        ),
    ];
    for cause in [Cause::Timeout, Cause::Sweep, Cause::Buyer, Cause::Operator] {
        events.push((Event::CauseRaised { cause }, now));
    }
    for step in definition.body.steps.iter().map(|step| &step.id) {
        let deferred = |until| Event::Deferred {
            step: step.clone(),
            until,
            error: text("open: breaker"),
        };
        let patience_over = now + definition.body.patience.delta();
        events.push((Event::Sending { step: step.clone() }, now));
        events.push((Event::Probing { step: step.clone() }, now));
        events.push((deferred(now + second), now));
        let until = now + second;
        events.push((
            Event::Queued {
                step: step.clone(),
                until,
            },
            now,
        ));
        events.push((deferred(patience_over), patience_over));
        for at in [now, patience_over] {
            let error = text("no delivery report");
            let step = step.clone();
            events.push((Event::Undelivered { step, error }, at));
        }
        for direction in [Direction::Do, Direction::Undo] {
            let replies = replies(state, step, direction);
            let reply = |(attempt, outcome)| Event::Replied {
                step: step.clone(),
                direction,
                attempt,
                outcome,
            };
            events.extend(replies.into_iter().map(|given| (reply(given), now)));
        }
    }
    events
}

/// Every answer to this attempt and to the one before; for a step that isn't open this way, two are enough.
fn replies(state: &State, step: &StepId, direction: Direction) -> Vec<(u32, Outcome)> {
    match state
        .active
        .get(step)
        .filter(|active| active.direction == direction)
    {
        None => vec![(1, done()), (1, failed())],
        Some(active) => (active.attempt.saturating_sub(1).max(1)..=active.attempt)
            .flat_map(|attempt| {
                outcomes(epoch() + TimeDelta::seconds(1)).map(|outcome| (attempt, outcome))
            })
            .collect(),
    }
}

fn outcomes(until: Timestamp) -> [Outcome; 9] {
    [
        done(),
        not_applicable(),
        not_due(until),
        rejected(),
        failed(),
        unknown(),
        Outcome::Superseded,
        mismatch(),
        Outcome::Expired,
    ]
}

/// What an event that was taken says about the world.
fn consequence(world: &World, before: &State, event: &Event) -> World {
    let mut world = world.clone();
    match event {
        Event::Due => {
            let unanswered = before
                .active
                .iter()
                .filter(|(_, active)| active.phase == Phase::Sent);
            for (step, _) in unanswered.filter(|(_, active)| active.direction == Direction::Do) {
                world.insert(step.clone(), Applied::Perhaps);
            }
        }
        Event::Undelivered { step, .. } if before.active[step].direction == Direction::Do => {
            world.insert(step.clone(), Applied::Perhaps);
        }
        Event::Replied {
            step,
            direction,
            outcome,
            ..
        } => {
            let applied = match (direction, outcome) {
                (Direction::Do, Outcome::Done { .. }) => Some(Applied::Yes),
                (Direction::Do, Outcome::NotApplicable { .. } | Outcome::Rejected { .. }) => {
                    Some(Applied::No)
                }
                (
                    Direction::Do,
                    Outcome::Unknown { .. } | Outcome::Mismatch { .. } | Outcome::Expired,
                ) => Some(Applied::Perhaps),
                (Direction::Undo, Outcome::Done { .. } | Outcome::NotApplicable { .. }) => {
                    Some(Applied::No)
                }
                _ => None,
            };
            world.extend(applied.map(|applied| (step.clone(), applied)));
        }
        _ => {}
    }
    world
}

fn refusal_is_right(state: &State, event: &Event, now: Timestamp, refused: &Refused) {
    let right = match event {
        Event::Due => *refused == Refused::Unchanged && (!state.status.is_live() || now < epoch()),
        Event::Replied { .. } => matches!(refused, Refused::Stale { .. }),
        Event::Sending { .. }
        | Event::Probing { .. }
        | Event::Deferred { .. }
        | Event::Queued { .. }
        | Event::Undelivered { .. } => matches!(refused, Refused::Illegal { .. }),
        Event::CauseRaised { .. } => {
            matches!(refused, Refused::Unchanged | Refused::Conflict { .. })
        }
        Event::Retry { .. } | Event::Resolve { .. } => matches!(refused, Refused::Conflict { .. }),
    };
    assert!(right, "{event:?} was refused with {refused:?} in {state:?}");
}

fn state_is_sound(definition: &Definition, state: &State, told: &dyn Fn() -> String) {
    assert_eq!(
        state.status.is_live(),
        state.wake_at().is_some(),
        "live exactly with a wake-up time: {}",
        told()
    );
    assert_eq!(
        state.active.len(),
        usize::from(state.status.is_live()),
        "one open step at a time: {}",
        told()
    );
    let way = if state.status == Status::Running {
        Direction::Do
    } else {
        Direction::Undo
    };
    for (step, active) in &state.active {
        assert_eq!(active.direction, way, "{}", told());
        let max = definition
            .step(step)
            .expect("a step of the definition")
            .retries
            .max;
        assert!(
            (1..=max + 1).contains(&active.attempt),
            "attempts over the policy: {}",
            told()
        );
        assert!(active.takeovers < MAX_TAKEOVERS, "{}", told());
        assert!(
            state.steps.contains_key(step),
            "an open step has a record: {}",
            told()
        );
        let sent = active.phase == Phase::Sent;
        assert!(
            sent || !active.probe,
            "only what is sent is a probe: {}",
            told()
        );
        assert!(
            !sent || active.first_sent_at.is_some(),
            "what is sent was first sent at some time: {}",
            told()
        );
    }
    let failing = matches!(
        state.status,
        Status::Compensating | Status::Compensated | Status::Parked
    );
    assert!(
        !failing || state.failure.is_some(),
        "a failing saga knows why: {}",
        told()
    );
    let undoing = |failure: &Failure| failure.direction == Direction::Undo;
    assert!(
        !state.failure.as_ref().is_some_and(undoing),
        "why it failed is never that undoing failed: {}",
        told()
    );
    assert!(
        state
            .stuck
            .as_ref()
            .is_none_or(|stuck| state.status == Status::Parked && undoing(stuck)),
        "only a parked saga is stuck, and only in undoing: {}",
        told()
    );
}

fn rest_is_right(definition: &Definition, state: &State, world: &World, told: &dyn Fn() -> String) {
    match &state.status {
        Status::Compensated => {
            assert!(
                world.values().all(|applied| *applied == Applied::No),
                "something was left applied: {}",
                told()
            );
            let left = state
                .steps
                .values()
                .any(|record| matches!(record.progress, Progress::Done | Progress::Open));
            assert!(!left, "a step was left done: {}", told());
        }
        Status::Skipped { .. } => {
            assert!(
                world.values().all(|applied| *applied == Applied::No),
                "skipped after something: {}",
                told()
            );
        }
        Status::Completed => {
            for step in &definition.body.steps {
                let progress = state.steps.get(&step.id).map(|record| record.progress);
                let right = match progress {
                    Some(Progress::Done) => world[&step.id] == Applied::Yes,
                    Some(Progress::NotApplicable) => world[&step.id] == Applied::No,
                    Some(Progress::Exhausted) => {
                        step.on_exhausted == Some(lapse_sagas::definition::OnExhausted::Continue)
                    }
                    _ => false,
                };
                assert!(right, "completed, but not {}: {}", step.id, told());
            }
        }
        Status::Running | Status::Compensating | Status::Parked | Status::Resolved => {}
    }
}

fn effects_are_right(
    before: &State,
    event: &Event,
    after: &State,
    effects: &[Effect],
    told: &dyn Fn() -> String,
) {
    let rested = !after.status.is_live() && before.status != after.status;
    let ended = effects.contains(&Effect::Ended(after.status.clone()));
    assert_eq!(
        rested,
        ended,
        "coming to rest is told, and nothing else is: {}",
        told()
    );
    if rested && matches!(after.status, Status::Parked | Status::Compensated) {
        let alerted = |effect: &Effect| matches!(effect, Effect::Alert(alert) if alert.kind == after.status.name());
        assert!(
            effects.iter().any(alerted),
            "it stopped without an alert: {}",
            told()
        );
    }
    let entries: Vec<&Entry> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::History(entry) => Some(entry),
            _ => None,
        })
        .collect();
    let waits = |phase| matches!(phase, Phase::Retrying | Phase::Postponed | Phase::Deferred);
    let takes = *event == Event::Due && before.active.values().all(|active| waits(active.phase));
    let waits_on = matches!(event, Event::Deferred { step, .. }
        if before.active[step].deferred_since.is_some()
            && after.active.get(step).is_some_and(|active| active.phase == Phase::Deferred));
    let sends = matches!(event, Event::Sending { .. } | Event::Probing { .. });
    let silent = takes || waits_on || sends || matches!(event, Event::Queued { .. });
    assert_eq!(
        entries.len(),
        usize::from(!silent),
        "one entry for all that counts: {}",
        told()
    );
    assert!(
        entries
            .iter()
            .all(|entry| entry.state == after.status.name()),
        "{}",
        told()
    );
}

/// Without an answer it waits on, and may have been applied.
fn a_probe_burns_no_attempt(
    before: &State,
    event: &Event,
    after: &State,
    told: &dyn Fn() -> String,
) {
    let unanswered = match event {
        Event::Due => true,
        Event::Replied { outcome, .. } => matches!(outcome, Outcome::Unknown { .. }),
        _ => false,
    };
    for (step, probe) in before.active.iter().filter(|(_, active)| active.probe) {
        if !unanswered {
            continue;
        }
        let waits = after
            .active
            .get(step)
            .map(|active| (active.phase, active.attempt));
        assert_eq!(waits, Some((Phase::Deferred, probe.attempt)), "{}", told());
        let marked = probe.direction == Direction::Undo || after.steps[step].maybe_applied;
        assert!(
            marked,
            "a probe without an answer may have been applied: {}",
            told()
        );
    }
}

/// A command id changes only in a new run.
fn command_ids_last(
    definition: &Definition,
    before: &State,
    after: &State,
    told: &dyn Fn() -> String,
) {
    for step in before.steps.keys() {
        assert!(definition.step(step).is_some(), "{}", told());
        for direction in [Direction::Do, Direction::Undo] {
            let kept = before.command_id(step, direction) == after.command_id(step, direction);
            assert!(
                kept || after.run == before.run + 1,
                "a command id changed: {}",
                told()
            );
            let maybe_applied = before.steps[step].maybe_applied && direction == Direction::Do;
            let restarted = before.status == Status::Compensated;
            assert!(
                kept || restarted || !maybe_applied,
                "an unanswered command got a new id: {}",
                told()
            );
        }
    }
}

#[test]
fn every_reachable_state_of_the_shipped_definition_is_sound() {
    let (states, arrows) = walk(&shipped(), 3, |_| {});
    println!("cancel-and-replenish: {states} states, {arrows} legal transitions");
    assert!(
        states > 10_000,
        "only {states} states: the walk has lost its way"
    );
}

#[test]
fn every_reachable_state_of_a_saga_with_a_pivot_is_sound() {
    let (states, arrows) = walk(&kinds(), 2, |_| {});
    println!("kinds: {states} states, {arrows} legal transitions");
    assert!(
        states > 10_000,
        "only {states} states: the walk has lost its way"
    );
}
