//! Text as Postgres can hold it: without U+0000, which becomes U+FFFD.
//!
//! Relies on nothing. Never: changes anything else.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::Value;

/// The text without U+0000.
pub fn storable(text: &str) -> Cow<'_, str> {
    if text.contains('\0') {
        Cow::Owned(text.replace('\0', "\u{fffd}"))
    } else {
        Cow::Borrowed(text)
    }
}

/// The value as JSON text without U+0000, not even as an escape: Postgres can store that but not look into it.
pub fn json_text(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).expect("what is stored has only text as keys");
    if !text.contains("\\u0000") {
        return text;
    }
    let mut value: Value = serde_json::from_str(&text).expect("it was written a line above");
    replace(&mut value);
    value.to_string()
}

fn replace(value: &mut Value) {
    match value {
        Value::String(text) => *text = storable(text).into_owned(),
        Value::Array(items) => items.iter_mut().for_each(replace),
        Value::Object(fields) => {
            for (name, mut value) in std::mem::take(fields) {
                replace(&mut value);
                fields.insert(storable(&name).into_owned(), value);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_nul_character_is_replaced() {
        assert_eq!(
            json_text(&json!({ "a\0": ["\0b", "\\u0000"] })),
            r#"{"a�":["�b","\\u0000"]}"#
        );
        assert_eq!(json_text(&json!({ "a": "ü\u{1}" })), r#"{"a":"ü\u0001"}"#);
    }
}
