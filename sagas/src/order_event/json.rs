//! Strict JSON: bounded size and depth, no key twice at any depth, no NUL (Postgres cannot hold one).
//!
//! Relies on serde_json for the grammar. Never: lets the last of two equal keys win.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

use super::{BadEvent, LARGEST_BYTES};
use crate::printable;

const DEEPEST: usize = 64;

/// The text of a record's value, without a byte order mark.
pub(super) fn text(value: &[u8]) -> Result<&str, BadEvent> {
    if value.len() > LARGEST_BYTES {
        let words = format!(
            "the event has {} bytes; at most {LARGEST_BYTES} are read",
            value.len()
        );
        return Err(BadEvent::new("too_large", words));
    }
    let value = value.strip_prefix(b"\xef\xbb\xbf").unwrap_or(value);
    let text = std::str::from_utf8(value).map_err(|error| {
        BadEvent::new(
            "not_utf8",
            format!("not UTF-8 from byte {}", error.valid_up_to()),
        )
    })?;
    if text.trim().is_empty() {
        return Err(BadEvent::new("empty", "the event has no content"));
    }
    Ok(text)
}

/// The one object that the text is.
pub(super) fn object(text: &str) -> Result<Map<String, Value>, BadEvent> {
    if depth(text) > DEEPEST {
        return Err(BadEvent::new(
            "too_deep",
            format!("nested deeper than {DEEPEST} levels"),
        ));
    }
    let strict: Strict = serde_json::from_str(text).map_err(|error| {
        // The visitor's own words are the only data errors that a value of any shape can cause.
        let reason = if error.classify() == Category::Data {
            "duplicate_key"
        } else {
            "not_json"
        };
        BadEvent::new(reason, error.to_string())
    })?;
    let Value::Object(fields) = strict.0 else {
        return Err(BadEvent::new(
            "not_an_object",
            "the event is JSON, but not one object",
        ));
    };
    if object_has_nul(&fields) {
        return Err(BadEvent::new("nul", "some text has a NUL character in it"));
    }
    Ok(fields)
}

/// A top-level number as it was written.
pub(super) fn number_text<'a>(text: &'a str, field: &str) -> Option<&'a str> {
    let fields: BTreeMap<String, &RawValue> = serde_json::from_str(text).ok()?;
    fields.get(field).map(|raw| raw.get())
}

/// How deep brackets nest; right for valid JSON, and good enough to refuse the rest.
fn depth(text: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let (mut quoted, mut escaped) = (false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'{' | b'[' if !quoted => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

fn has_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(items) => items.iter().any(has_nul),
        Value::Object(fields) => object_has_nul(fields),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn object_has_nul(fields: &Map<String, Value>) -> bool {
    fields
        .iter()
        .any(|(name, value)| name.contains('\0') || has_nul(value))
}

struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Unique).map(Strict)
    }
}

struct Unique;

impl<'de> Visitor<'de> for Unique {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some((name, value)) = map.next_entry::<String, Strict>()? {
            if fields.contains_key(&name) {
                let shown: String = name.chars().take(80).collect();
                return Err(A::Error::custom(format!(
                    "the key `{}` stands twice in one object",
                    printable(&shown)
                )));
            }
            fields.insert(name, value.0);
        }
        Ok(Value::Object(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element::<Strict>()? {
            items.push(item.0);
        }
        Ok(Value::Array(items))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }
}
