//! What a move means for the tables beside the saga's row. Shared by both stores, so that they can't differ.
//!
//! Relies on the effects of the transition. Never: writes.

use lapse_participants::kit::{OrderKey, Overdue};
use lapse_sagas::event::{Counter, Effect};
use lapse_sagas::{SagaId, State, Status, Timestamp};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::history::Line;
use super::text::{json_text, storable};
use super::{AlertDue, DeadLetter, Move, ParticipantDown};

/// Everything that is stored beside the row, if the row passes the fence.
#[derive(Debug, Default)]
pub struct Consequences {
    /// New history.
    pub lines: Vec<Line>,
    /// Alerts it becomes a member of.
    pub raised: Vec<Raised>,
    /// Whether its memberships in alerts end.
    pub settled: bool,
    /// How it came to rest.
    pub ended: Option<Status>,
    /// Counters to raise by one.
    pub counters: Vec<&'static str>,
}

/// An alert, with one saga as its member.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Raised {
    /// See [`fingerprint`].
    pub fingerprint: String,
    /// Name of the definition.
    pub definition: String,
    /// The step; empty where it is about the whole saga; the participant where it is about that.
    pub step: String,
    /// `compensated`, `parked`, `continued`, `unresolved`, `participant_down`.
    pub kind: String,
    /// Error class.
    pub class: String,
    /// For people.
    pub message: String,
}

impl Raised {
    /// An alert with its fingerprint.
    pub fn new(definition: &str, step: &str, kind: &str, class: &str, message: &str) -> Raised {
        Raised {
            fingerprint: fingerprint(definition, step, kind, class),
            definition: definition.to_owned(),
            step: step.to_owned(),
            kind: kind.to_owned(),
            class: class.to_owned(),
            message: storable(message).into_owned(),
        }
    }
}

/// The first 16 hex digits of SHA-256 over the four parts: short enough to be typed.
pub fn fingerprint(definition: &str, step: &str, kind: &str, class: &str) -> String {
    let digest = Sha256::digest([definition, step, kind, class].join("\n"));
    hex::encode(&digest[..8])
}

/// What a move means.
pub fn consequences(moved: &Move) -> Consequences {
    let mut all = Consequences::default();
    let mut head = moved.saga.history.clone();
    for effect in &moved.effects {
        match effect {
            Effect::History(entry) => {
                let line = head.append(entry);
                head = (&line).into();
                all.lines.push(line);
            }
            Effect::Alert(alert) => {
                let step = alert.step.as_str();
                all.raised.push(Raised::new(
                    &moved.saga.name,
                    step,
                    &alert.kind,
                    &alert.class,
                    &alert.message,
                ));
            }
            Effect::AlertSettled => {
                all.raised.clear();
                all.settled = true;
            }
            Effect::Ended(status) => all.ended = Some(status.clone()),
            Effect::Count(counter) => all.counters.push(counter_name(*counter)),
        }
    }
    let (was_live, is_live) = (
        moved.saga.state.status.is_live(),
        moved.state.status.is_live(),
    );
    if !was_live && is_live {
        all.counters.push("resumed");
    }
    if moved.saga.state.status != Status::Resolved && moved.state.status == Status::Resolved {
        all.counters.push("resolved");
    }
    all
}

fn counter_name(counter: Counter) -> &'static str {
    match counter {
        Counter::Completed => "completed",
        Counter::Skipped => "skipped",
        Counter::Compensated => "compensated",
        Counter::Parked => "parked",
        Counter::Retried => "retried",
        Counter::TakenOver => "taken_over",
        Counter::Postponed => "postponed",
    }
}

/// Why a saga was skipped, or what failed, at last the compensation it is stuck at: the column `reason`.
pub fn reason(state: &State) -> Option<String> {
    let text = match (&state.status, state.trouble()) {
        (Status::Skipped { reason }, _) => reason,
        (_, Some(failure)) => &failure.message,
        (_, None) => return None,
    };
    Some(storable(text).into_owned())
}

/// A saga that moves no more by itself. Parked is not an end: a person has to decide.
pub fn is_finished(status: &Status) -> bool {
    !status.is_live() && *status != Status::Parked
}

/// The message on the topic of outcomes. `lateness_ms` counts from the due time; null without one.
pub fn outcome_message(moved: &Move, ended: &Status, at: Timestamp) -> String {
    let (saga, state) = (&moved.saga, &moved.state);
    json_text(&json!({
        "format": "lapse-outcome/v1",
        "saga_id": saga.id,
        "definition": saga.name,
        "tenant": saga.order.tenant,
        "order_id": saga.order.order_id,
        "generation": saga.order.generation,
        "order_type": saga.order_type,
        "cause": state.cause,
        "run": state.run,
        "state": ended.name(),
        "reason": if let Status::Skipped { reason } = ended { Some(reason) } else { None },
        "failure": state.failure,
        "stuck": state.stuck,
        "due_at": saga.due_at,
        "finished_at": at,
        "lateness_ms": saga.due_at.map(|due_at| (at - due_at).num_milliseconds()),
    }))
}

/// The message on the topic of alerts.
pub fn alert_message(alert: &AlertDue, at: Timestamp) -> String {
    json_text(&json!({
        "format": "lapse-alert/v1",
        "fingerprint": alert.fingerprint,
        "definition": alert.definition,
        "step": alert.step,
        "kind": alert.kind,
        "class": alert.class,
        "message": alert.message,
        "sagas": alert.sagas,
        "sends": alert.sends,
        "at": at,
    }))
}

/// So much of a key, of headers as JSON text and of a value goes into the message: all of it escaped, at six bytes for one, it
/// must still be a message that brokers take.
const KEY_SENT: usize = 1_024;
const HEADERS_SENT: usize = 16 * 1024;
const VALUE_SENT: usize = 64 * 1024;

/// The message on the topic of dead letters, with its key. Bytes that are not UTF-8 go as hex; of a long key or value the
/// beginning, and no headers if they are long: the row has the rest.
pub fn dead_letter_message(letter: &DeadLetter) -> (String, String) {
    let place = format!("{}/{}/{}", letter.topic, letter.partition, letter.offset);
    let begin = |bytes: &Option<Vec<u8>>, longest: usize| -> Option<Vec<u8>> {
        let bytes = bytes.as_deref()?;
        Some(bytes[..bytes.len().min(longest)].to_vec())
    };
    let raw_key = begin(&letter.key, KEY_SENT);
    let key = raw_key
        .as_deref()
        .and_then(|key| std::str::from_utf8(key).ok());
    let headers = json_text(&letter.headers);
    let headers = (headers.len() <= HEADERS_SENT).then_some(&letter.headers);
    let value = begin(&letter.value, VALUE_SENT);
    let value = value
        .as_deref()
        .map(|value| std::str::from_utf8(value).map_err(|_| hex::encode(value)));
    let message = json_text(&json!({
        "format": "lapse-dead-letter/v1",
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "reason": letter.reason,
        "detail": letter.detail,
        "key": key,
        "key_hex": if key.is_none() { raw_key.as_deref().map(hex::encode) } else { None },
        "value": value.as_ref().and_then(|value| value.as_ref().ok()),
        "value_hex": value.as_ref().and_then(|value| value.as_ref().err()),
        "value_bytes": letter.whole_bytes,
        "headers": headers,
    }));
    (storable(key.unwrap_or(&place)).into_owned(), message)
}

/// SHA-256 over key and value: tells a record from another one at the same place after the topic was made anew.
pub fn digest(letter: &DeadLetter) -> [u8; 32] {
    let part = |bytes: &Option<Vec<u8>>| Sha256::digest(bytes.as_deref().unwrap_or_default());
    Sha256::new()
        .chain_update(part(&letter.key))
        .chain_update(part(&letter.value))
        .finalize()
        .into()
}

/// The alert for an order that its closed saga left unpaid and uncancelled.
pub fn unresolved_alert(definition: &str, saga_id: SagaId, overdue: &Overdue) -> Raised {
    let OrderKey {
        tenant,
        order_id,
        generation,
    } = &overdue.order;
    let message = format!(
        "order {order_id} of {tenant}, generation {generation}, fell due at {}; its saga {saga_id} is closed, yet the order \
         is neither paid nor cancelled: look at both",
        overdue.due_at.to_rfc3339(),
    );
    Raised::new(definition, "", "unresolved", "unresolved", &message)
}

/// The alert for a participant that does not answer. One, whatever the error's class.
pub fn down_alert(down: &ParticipantDown) -> Raised {
    Raised {
        fingerprint: down_fingerprint(&down.participant),
        class: down.class.clone(),
        ..Raised::new("", &down.participant, PARTICIPANT_DOWN, "", &down.message)
    }
}

/// The fingerprint of a participant's alert.
pub fn down_fingerprint(participant: &str) -> String {
    fingerprint("", participant, PARTICIPANT_DOWN, "")
}

/// Its kind.
pub const PARTICIPANT_DOWN: &str = "participant_down";
/// Nobody has said for so long that it still holds: whoever raised it is gone. As in `claim_alerts.sql` and
/// `participant_down.sql`.
pub const DOWN_HOLDS_FOR: chrono::TimeDelta = chrono::TimeDelta::minutes(10);

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;

    #[test]
    fn the_message_of_the_largest_dead_letter_is_one_that_brokers_take() {
        let worst = vec![1; 1024 * 1024];
        let letter = DeadLetter {
            topic: "lapse.schedule".to_owned(),
            partition: 0,
            offset: 42,
            key: Some(worst.clone()),
            value: Some(worst.clone()),
            whole_bytes: worst.len(),
            headers: json!({ "x": "\u{1}".repeat(1024 * 1024) }),
            appended_at: DateTime::UNIX_EPOCH,
            reason: "not_json".to_owned(),
            detail: "line 1".to_owned(),
        };
        let (key, message) = dead_letter_message(&letter);
        assert!(key.len() + message.len() < 500_000, "{}", message.len());
        let message: serde_json::Value = serde_json::from_str(&message).expect("JSON");
        assert_eq!(message["headers"], json!(null));
        assert_eq!(message["value_bytes"], json!(worst.len()));
    }
}
