//! From the bytes of an answer to replies: what can be read is heard, what can't is unknown for its own command only.
//!
//! Relies on nothing. Never: believes two different answers to one command.

use std::collections::HashMap;

use lapse_participants::kit::{CallError, Command, Reply};
use lapse_sagas::outcome::one_line;
use lapse_sagas::{CommandId, Outcome};
use serde_json::Value;

use super::WORDS_MAX;

/// Of an answer per command, beside as much for the whole.
const PER_COMMAND: usize = 64 * 1024;
const ANSWER_MAX: usize = 16 * 1024 * 1024;

/// The largest answer to so many commands.
pub(super) fn max_bytes(commands: usize) -> usize {
    (PER_COMMAND.saturating_mul(commands + 1)).min(ANSWER_MAX)
}

/// A batch's answer.
#[derive(Debug)]
pub(super) struct Read {
    /// At most one per command.
    pub replies: Vec<Reply>,
    /// Entries for commands that nobody asked for.
    pub strays: u64,
}

/// Reads the answer to a batch.
pub(super) fn read(body: &[u8], commands: &[Command]) -> Result<Read, CallError> {
    let entries: Vec<Value> = serde_json::from_slice(body)
        .map_err(|error| garbage(&format!("no array of answers: {error}")))?;
    let asked: HashMap<&str, &CommandId> = commands
        .iter()
        .map(|command| (command.command_id.as_str(), &command.command_id))
        .collect();
    let mut heard: HashMap<&CommandId, Outcome> = HashMap::new();
    let mut strays = 0;
    for entry in entries {
        let id = entry["command_id"].as_str();
        let Some(id) = id.and_then(|id| asked.get(id).copied()) else {
            strays += 1;
            continue;
        };
        let outcome = outcome(entry);
        let different = heard.get(id).is_some_and(|before| *before != outcome);
        let outcome = if different {
            unknown("contradiction: two different answers to one command")
        } else {
            outcome
        };
        heard.insert(id, outcome);
    }
    let replies = heard.into_iter().map(|(id, outcome)| Reply {
        command_id: id.clone(),
        outcome,
    });
    Ok(Read {
        replies: replies.collect(),
        strays,
    })
}

/// Reads the answer to one command.
pub(super) fn read_one(body: &[u8], command: &Command) -> Result<Reply, CallError> {
    let entry: Value =
        serde_json::from_slice(body).map_err(|error| garbage(&format!("no answer: {error}")))?;
    if entry["command_id"] != command.command_id.as_str() {
        return Err(garbage("the answer is for another command"));
    }
    Ok(Reply {
        command_id: command.command_id.clone(),
        outcome: outcome(entry),
    })
}

fn outcome(entry: Value) -> Outcome {
    let outcome: Result<Outcome, _> = serde_json::from_value(entry);
    outcome
        .unwrap_or_else(|error| unknown(&format!("garbage: no outcome: {error}")))
        .received()
}

fn unknown(error: &str) -> Outcome {
    Outcome::Unknown {
        error: error.to_owned(),
    }
}

fn garbage(words: &str) -> CallError {
    CallError::Unknown(one_line(&format!("garbage: {words}"), WORDS_MAX))
}
