//! Event v1: what a producer says about an order. Read strictly, because a misread time cancels a good order.
//!
//! [`OrderEvent::parse`] takes bytes and gives the fields that Lapse acts on, beside the whole event as it came; what is
//! doubtful is a [`BadEvent`] with a stable reason, for the dead letters. Relies on its arguments; the time is one.
//! Never: guesses a unit or a zone, takes a doubtful time for "now", or looks at an order's lines.

use serde_json::{Map, Value};

use crate::Timestamp;
use crate::duration::Span;

mod json;
mod time;

pub use time::parse_due_header;

/// Largest event, in bytes.
pub const LARGEST_BYTES: usize = 256 * 1024;
/// The longest delay that timers keep, and how far ahead a due time may be.
pub const LONGEST_DELAY: Span = Span::from_secs(31 * 86_400);
/// How far past a due time may be and still count as overdue rather than as a mistake.
pub const LONGEST_OVERDUE: Span = Span::from_secs(30 * 86_400);

const LONGEST_ID: usize = 200;
const LONGEST_NAME: usize = 128;

/// One event of an order.
#[derive(Clone, PartialEq, Debug)]
pub struct OrderEvent {
    /// The order, trimmed, 1 to 200 characters; a number keeps all its digits.
    pub order_id: String,
    /// What kind of order; needed to start a saga ([`OrderEvent::starting_order_type`]).
    pub order_type: Option<String>,
    /// What happened, such as `order.placed`.
    pub event_type: Option<String>,
    /// The producer's own id of the event.
    pub event_id: Option<String>,
    /// Whose order; `default` if the event does not say.
    pub tenant: String,
    /// The order owner's holding period, from 1.
    pub generation: i32,
    /// When it happened.
    pub occurred_at: Option<Timestamp>,
    /// The event's own due time: `enforce_at`, else `pay_deadline`.
    pub due: Option<Timestamp>,
    /// The whole event, unknown fields too.
    pub raw: Value,
}

/// Why an event is not acted on.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{reason}: {detail}")]
pub struct BadEvent {
    /// One stable word, such as `no_zone`.
    pub reason: &'static str,
    /// For people: the field, what is wrong with it, what to write.
    pub detail: String,
}

impl BadEvent {
    pub(crate) fn new(reason: &'static str, detail: impl Into<String>) -> BadEvent {
        BadEvent {
            reason,
            detail: detail.into(),
        }
    }
}

impl OrderEvent {
    /// Reads an event from the bytes of a record.
    ///
    /// # Errors
    /// Anything doubtful, with one of the reasons `empty`, `too_large`, `not_utf8`, `too_deep`, `not_json`,
    /// `not_an_object`, `duplicate_key`, `nul`, `missing_order_id`, `bad_order_id`, `bad_order_type`, `bad_event_type`,
    /// `bad_event_id`, `bad_tenant`, `bad_generation`, `bad_time`, `no_zone`, `time_unit`, `time_range`.
    pub fn parse(value: &[u8]) -> Result<OrderEvent, BadEvent> {
        let text = json::text(value)?;
        let fields = json::object(text)?;
        let order_id = identifier(&fields, text, "order_id", "bad_order_id")?.ok_or_else(|| {
            BadEvent::new("missing_order_id", "an event names its order in order_id")
        })?;
        Ok(OrderEvent {
            order_id,
            order_type: name(&fields, "order_type", "bad_order_type")?,
            event_type: name(&fields, "event_type", "bad_event_type")?,
            event_id: identifier(&fields, text, "event_id", "bad_event_id")?,
            tenant: name(&fields, "tenant", "bad_tenant")?.unwrap_or_else(|| "default".to_owned()),
            generation: generation(&fields)?,
            occurred_at: time::occurred_at(&fields)?,
            due: time::due(&fields)?,
            raw: Value::Object(fields),
        })
    }

    /// The order type, for an event that is to start a saga.
    ///
    /// # Errors
    /// `missing_order_type`.
    pub fn starting_order_type(&self) -> Result<&str, BadEvent> {
        let words = "an event that starts a saga names the order's type in order_type";
        self.order_type
            .as_deref()
            .ok_or_else(|| BadEvent::new("missing_order_type", words))
    }

    /// Whether the event has a due time of its own.
    pub fn has_due_time(&self) -> bool {
        self.due.is_some()
    }

    /// When the order falls due: the event's own due time, else `delay` after it occurred.
    ///
    /// # Errors
    /// `missing_time` if neither is known; `time_range` if it is over 31 days ahead or over 30 days past.
    pub fn due_at(&self, delay: Option<Span>, now: Timestamp) -> Result<Timestamp, BadEvent> {
        let due = match (self.due, self.occurred_at, delay) {
            (Some(due), _, _) => due,
            (None, Some(occurred_at), Some(delay)) => time::later(occurred_at, delay)?,
            (None, None, _) => {
                let words = "the event has neither enforce_at nor pay_deadline, and no occurred_at to count from";
                return Err(BadEvent::new("missing_time", words));
            }
            (None, Some(_), None) => {
                let words = "the event has neither enforce_at nor pay_deadline, and its order type has no delay";
                return Err(BadEvent::new("missing_time", words));
            }
        };
        time::within_range(due, now)
    }
}

fn present<'a>(fields: &'a Map<String, Value>, field: &str) -> Option<&'a Value> {
    fields.get(field).filter(|value| !value.is_null())
}

/// Whether an order that is known by other means than an event could be named by one: 1 to 200 characters without control
/// characters, a generation from 1 on.
///
/// # Errors
/// [`BadEvent`] as for an event.
pub fn check_order(tenant: &str, order_id: &str, generation: i32) -> Result<(), BadEvent> {
    short_text(tenant, "tenant", LONGEST_NAME, "bad_tenant")?;
    short_text(order_id, "order_id", LONGEST_ID, "bad_order_id")?;
    check_generation(i64::from(generation)).map(|_| ())
}

/// Text, or an integer whose digits are taken from the event's text: a float would lose some.
fn identifier(
    fields: &Map<String, Value>,
    text: &str,
    field: &str,
    reason: &'static str,
) -> Result<Option<String>, BadEvent> {
    match present(fields, field) {
        None => Ok(None),
        Some(Value::String(id)) => short_text(id, field, LONGEST_ID, reason).map(Some),
        Some(Value::Number(_)) => {
            let digits = json::number_text(text, field);
            let whole = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
            let whole = whole.ok_or_else(|| {
                BadEvent::new(
                    reason,
                    format!("{field} is neither text nor a whole number"),
                )
            })?;
            short_text(whole, field, LONGEST_ID, reason).map(Some)
        }
        Some(_) => Err(BadEvent::new(
            reason,
            format!("{field} is neither text nor a whole number"),
        )),
    }
}

fn name(
    fields: &Map<String, Value>,
    field: &str,
    reason: &'static str,
) -> Result<Option<String>, BadEvent> {
    match present(fields, field) {
        None => Ok(None),
        Some(Value::String(text)) => short_text(text, field, LONGEST_NAME, reason).map(Some),
        Some(_) => Err(BadEvent::new(reason, format!("{field} is not text"))),
    }
}

fn short_text(
    text: &str,
    field: &str,
    longest: usize,
    reason: &'static str,
) -> Result<String, BadEvent> {
    let text = text.trim();
    if text.is_empty() {
        return Err(BadEvent::new(reason, format!("{field} is empty")));
    }
    if text.chars().count() > longest {
        return Err(BadEvent::new(
            reason,
            format!("{field} is longer than {longest} characters"),
        ));
    }
    if text.chars().any(char::is_control) {
        return Err(BadEvent::new(
            reason,
            format!("{field} has a control character in it"),
        ));
    }
    Ok(text.to_owned())
}

fn generation(fields: &Map<String, Value>) -> Result<i32, BadEvent> {
    let Some(value) = present(fields, "generation") else {
        return Ok(1);
    };
    check_generation(value.as_i64().unwrap_or_default())
}

fn check_generation(number: i64) -> Result<i32, BadEvent> {
    let whole = i32::try_from(number).ok().filter(|number| *number >= 1);
    whole.ok_or_else(|| {
        BadEvent::new(
            "bad_generation",
            format!("generation is not a whole number from 1 to {}", i32::MAX),
        )
    })
}
