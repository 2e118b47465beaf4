//! The times of an event: RFC 3339 text with an offset, or whole milliseconds since 1970 in a field named `…_ms`.
//!
//! Everything rounds up to the microsecond, so that nothing is ever early. Relies on nothing. Never: guesses.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Map, Value};

use super::{BadEvent, LONGEST_DELAY, LONGEST_OVERDUE, present};
use crate::Timestamp;
use crate::duration::Span;

/// The due time a hop has fixed: the value of the header `lapse-due-at-ms`.
///
/// # Errors
/// `bad_time`, `time_unit` or `time_range`.
pub fn parse_due_header(value: &str) -> Result<Timestamp, BadEvent> {
    let field = "lapse-due-at-ms";
    let number = value
        .trim()
        .parse::<i128>()
        .map_err(|_| not_millis(field))?;
    from_millis(field, number)
}

pub(super) fn occurred_at(fields: &Map<String, Value>) -> Result<Option<Timestamp>, BadEvent> {
    present(fields, "occurred_at")
        .map(|value| from_text("occurred_at", value))
        .transpose()
}

/// `enforce_at`, else `pay_deadline`; both are checked if both are there.
pub(super) fn due(fields: &Map<String, Value>) -> Result<Option<Timestamp>, BadEvent> {
    let enforce_at = either_form(fields, "enforce_at", "enforce_at_ms")?;
    let pay_deadline = either_form(fields, "pay_deadline", "pay_deadline_ms")?;
    Ok(enforce_at.or(pay_deadline))
}

/// So much later; `time_range` where the calendar ends.
pub(super) fn later(time: Timestamp, delay: Span) -> Result<Timestamp, BadEvent> {
    let words = || {
        BadEvent::new(
            "time_range",
            "occurred_at and the delay lead beyond the calendar",
        )
    };
    time.checked_add_signed(delay.delta()).ok_or_else(words)
}

/// The due time, unless it is so far from now that it must be a mistake.
pub(super) fn within_range(due: Timestamp, now: Timestamp) -> Result<Timestamp, BadEvent> {
    let ahead = due.signed_duration_since(now);
    if ahead > LONGEST_DELAY.delta() {
        let words = format!("due at {}, over {LONGEST_DELAY} ahead", due.to_rfc3339());
        return Err(BadEvent::new("time_range", words));
    }
    if -ahead > LONGEST_OVERDUE.delta() {
        let words = format!("due at {}, over {LONGEST_OVERDUE} past", due.to_rfc3339());
        return Err(BadEvent::new("time_range", words));
    }
    Ok(due)
}

fn either_form(
    fields: &Map<String, Value>,
    text: &str,
    millis: &str,
) -> Result<Option<Timestamp>, BadEvent> {
    let from_text = present(fields, text)
        .map(|value| from_text(text, value))
        .transpose()?;
    let from_millis = present(fields, millis)
        .map(|value| from_number(millis, value))
        .transpose()?;
    match (from_text, from_millis) {
        (Some(one), Some(other)) if (one - other).abs() >= TimeDelta::milliseconds(1) => {
            Err(BadEvent::new(
                "bad_time",
                format!("{text} and {millis} differ; write one of them"),
            ))
        }
        (one, other) => Ok(one.or(other)),
    }
}

fn from_text(field: &str, value: &Value) -> Result<Timestamp, BadEvent> {
    let wrong = || format!("{field} is not an RFC 3339 time such as 2026-03-04T09:27:07Z");
    let Value::String(text) = value else {
        return Err(BadEvent::new("bad_time", wrong()));
    };
    let text = text.trim();
    let time = DateTime::parse_from_rfc3339(text).map_err(|_| {
        if DateTime::parse_from_rfc3339(&format!("{text}Z")).is_ok() {
            BadEvent::new(
                "no_zone",
                format!("{field} has no zone; end it with Z or an offset such as +02:00"),
            )
        } else {
            BadEvent::new("bad_time", wrong())
        }
    })?;
    Ok(round_up(time.with_timezone(&Utc)))
}

/// To the microsecond. A leap second (`:60`) is the first second of the next minute.
fn round_up(time: Timestamp) -> Timestamp {
    let nanos = i64::from(time.timestamp_subsec_nanos());
    let micros = nanos.div_euclid(1_000) + i64::from(nanos % 1_000 != 0);
    time.timestamp()
        .checked_mul(1_000_000)
        .and_then(|whole| DateTime::from_timestamp_micros(whole + micros))
        .unwrap_or(time)
}

fn from_number(field: &str, value: &Value) -> Result<Timestamp, BadEvent> {
    let number = value
        .as_i64()
        .map(i128::from)
        .or_else(|| value.as_u64().map(i128::from));
    from_millis(field, number.ok_or_else(|| not_millis(field))?)
}

/// Milliseconds of the years 2001 to 2286 have 13 digits; seconds have 10, microseconds 16, nanoseconds 19.
fn from_millis(field: &str, number: i128) -> Result<Timestamp, BadEvent> {
    let looks_like = |unit| {
        let words =
            format!("{field} is {number}: that looks like {unit}; write milliseconds since 1970");
        BadEvent::new("time_unit", words)
    };
    let digits = number.checked_ilog10().map_or(0, |log| log + 1);
    let time = match digits {
        13 => i64::try_from(number)
            .ok()
            .and_then(DateTime::from_timestamp_millis),
        10 => return Err(looks_like("seconds")),
        16 => return Err(looks_like("microseconds")),
        19 => return Err(looks_like("nanoseconds")),
        _ => None,
    };
    time.ok_or_else(|| {
        BadEvent::new(
            "time_range",
            format!("{field} is {number}: no time between 2001 and 2286"),
        )
    })
}

fn not_millis(field: &str) -> BadEvent {
    BadEvent::new(
        "bad_time",
        format!("{field} is not a whole number of milliseconds since 1970"),
    )
}
