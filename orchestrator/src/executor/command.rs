//! From a saga in hand to the command its participant gets.
//!
//! Relies on the definition the saga started with. Never: sends anything.

use lapse_participants::kit::Command;
use lapse_sagas::definition::Call;
use lapse_sagas::expression::Scope;
use lapse_sagas::{Active, Definition, Direction, StepId, Timestamp};
use serde_json::{Map, Value, json};

use crate::store::Saga;

/// The command of an open step.
pub fn build(
    definition: &Definition,
    saga: &Saga,
    step: &StepId,
    active: &Active,
    call: &Call,
    now: Timestamp,
) -> Command {
    let first_sent_at = active.first_sent_at.unwrap_or(now);
    let action_id =
        (active.direction == Direction::Undo).then(|| saga.state.command_id(step, Direction::Do));
    Command {
        command_id: saga.state.command_id(step, active.direction),
        action_id,
        saga_id: saga.id,
        step: step.clone(),
        direction: active.direction,
        operation: call.operation.clone(),
        order: saga.order.clone(),
        input: input(saga, call),
        cause: saga.state.cause,
        attempt: active.attempt,
        first_sent_at,
        expires_at: first_sent_at + definition.body.command_ttl.delta(),
    }
}

fn input(saga: &Saga, call: &Call) -> Value {
    if call.input.is_empty() {
        return Value::Null;
    }
    let about = json!({
        "tenant": saga.order.tenant,
        "business_key": saga.order.order_id,
        "generation": saga.order.generation,
        "cause": saga.state.cause,
        "due_at": saga.due_at,
    });
    let steps: Map<String, Value> = saga
        .state
        .steps
        .iter()
        .map(|(step, record)| (step.to_string(), json!({ "output": record.output })))
        .collect();
    let steps = Value::Object(steps);
    let scope = Scope {
        event: &saga.event,
        saga: &about,
        steps: &steps,
    };
    call.input
        .iter()
        .map(|(name, expression)| (name.clone(), expression.evaluate(&scope)))
        .collect::<Map<_, _>>()
        .into()
}
