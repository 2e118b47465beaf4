//! What is wrong with the settings, in words that repeat nothing of what was written there: it may be a password.
//!
//! For: errors of reading them. Says place, key and what is expected. Never: shows a line or a value.

use std::fmt::Display;

use ::config::ConfigError;

/// The error without what was written.
pub(super) fn unquoted(error: ConfigError) -> anyhow::Error {
    anyhow::Error::msg(words(&error))
}

fn words(error: &ConfigError) -> String {
    match error {
        ConfigError::FileParse { uri, cause } => {
            format!("{}{}", of_toml(&cause.to_string()), place(None, uri))
        }
        ConfigError::Type {
            origin,
            unexpected,
            expected,
            key,
        } => format!(
            "invalid type: {}, expected {expected}{}",
            kind(unexpected),
            place(key.as_deref(), origin)
        ),
        ConfigError::At { error, origin, key } => {
            format!("{}{}", words(error), place(key.as_deref(), origin))
        }
        ConfigError::Message(text) => of_serde(text),
        other => other.to_string(),
    }
}

fn place(key: Option<&str>, origin: &Option<String>) -> String {
    let key = key.map(|key| format!(" for key `{key}`"));
    let origin = origin.as_ref().map(|origin| format!(" in {origin}"));
    key.into_iter().chain(origin).collect()
}

/// `string "…"` and ``boolean `…` `` without what is quoted.
fn kind(unexpected: &dyn Display) -> String {
    let text = unexpected.to_string();
    let kind = text.split(['"', '`']).next().unwrap_or_default();
    kind.trim_end().to_owned()
}

/// `TOML parse error at line 2, column 7`, three lines that show line 2 and where that is, and then what is wrong.
fn of_toml(text: &str) -> String {
    let mut lines = text.lines();
    let Some(first) = lines.next() else {
        return "not TOML".to_owned();
    };
    if !first.starts_with("TOML parse error at line ") {
        // Numbers that are none, the only others: they show no more than the number.
        return first.to_owned();
    }
    let wrong: Vec<&str> = lines.skip(3).collect();
    format!("{first}: {}", wrong.join(", "))
}

/// The words of serde and of our own types, which show what they refuse in quotes, and of `config` about enums.
fn of_serde(text: &str) -> String {
    if text.contains("does not have variant constructor") {
        return "not one of the words that it can be".to_owned();
    }
    for beginning in ["invalid type", "invalid value", "unknown variant"] {
        let expected = text.rfind(", expected ");
        if let Some(expected) = expected.filter(|_| text.starts_with(beginning)) {
            return format!("{beginning}{}", &text[expected..]);
        }
    }
    match (text.find('"'), text.rfind('"')) {
        (Some(from), Some(to)) => format!("{}what is there{}", &text[..from], &text[to + 1..]),
        _ => text.to_owned(),
    }
}
