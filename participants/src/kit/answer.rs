//! An answer as a queue carries it: apart from its command, so it says itself which one it is about.
//!
//! Relies on nothing but the command. Never: says more about the command than is needed to find its saga.

use lapse_sagas::{CommandId, Direction, Outcome, SagaId, StepId};
use serde::{Deserialize, Serialize};

use super::Command;

/// The answer to one command, with what it repeats from it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// Which command.
    #[serde(flatten)]
    pub about: About,
    /// The answer.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Which command, and which sending of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct About {
    /// The command.
    pub command_id: CommandId,
    /// Its saga.
    pub saga_id: SagaId,
    /// Its step.
    pub step: StepId,
    /// Action or compensation.
    pub direction: Direction,
    /// Which attempt is answered.
    pub attempt: u32,
}

impl From<&Command> for About {
    fn from(command: &Command) -> About {
        About {
            command_id: command.command_id.clone(),
            saga_id: command.saga_id,
            step: command.step.clone(),
            direction: command.direction,
            attempt: command.attempt,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_is_one_flat_object_and_unknown_fields_are_ignored() {
        let mut text = json!({
            "command_id": "01937b1e-7f0a-7cc2-b4e5-0f3f6a1c2d11:1:cancel_order:do",
            "saga_id": "01937b1e-7f0a-7cc2-b4e5-0f3f6a1c2d11",
            "step": "cancel_order", "direction": "do", "attempt": 2,
            "outcome": "failed", "error": "busy: later",
        });
        let answer: Answer = serde_json::from_value(text.clone()).expect("an answer");
        assert_eq!((answer.about.attempt, answer.outcome.name()), (2, "failed"));
        assert_eq!(serde_json::to_value(&answer).expect("JSON"), text);
        text["added_later"] = json!(true);
        assert_eq!(
            serde_json::from_value::<Answer>(text).expect("an answer"),
            answer
        );
    }
}
