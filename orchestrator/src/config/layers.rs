//! The layers that are text: variables of the environment, and how a text becomes a list or a map.
//!
//! Relies on being handed the variables. Never: looks at what a setting means, or at a variable that is not ours.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;

use anyhow::Context;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::unquoted::unquoted;

/// Settings by other names that other tools use too.
const SHARED: [(&str, &str); 3] = [
    ("DATABASE_URL", "postgres.url"),
    ("KAFKA_BROKERS", "kafka.brokers"),
    ("RUST_LOG", "log.filter"),
];

const SECTIONS: [&str; 12] = [
    "POSTGRES",
    "KAFKA",
    "HTTP",
    "EXECUTOR",
    "SWEEP",
    "SHOP",
    "PARTICIPANTS",
    "ORDER_OWNERS",
    "OUTBOX",
    "DEFINITIONS",
    "LOG",
    "ALERTS",
];

/// Settings of named things: `LAPSE__SECTION__NAME__KEY`, and deeper.
const NAMED: [&str; 4] = [
    "PARTICIPANTS__",
    "ORDER_OWNERS__",
    "ALERTS__WEBHOOKS__",
    "HTTP__TOKENS__",
];

/// Begin like ours but are for tests, scripts and images.
const NOT_SETTINGS: [&str; 6] = [
    "LAPSE_TEST_",
    "LAPSE_PG_BIN",
    "LAPSE_HOME",
    "LAPSE_PLANT",
    "LAPSE_SIMULATION_SEED",
    "LAPSE_KAFKA_FROM",
];

/// Settings that are lists.
const LISTS: [&str; 2] = ["kafka.buckets", "definitions.paths"];

/// Lists of named things: what is before the name, and after it.
const NAMED_LISTS: [(&str, &str); 3] = [
    ("alerts.webhooks.", ".kinds"),
    ("order_owners.", ".pending"),
    ("order_owners.", ".paid"),
];

const PROPERTIES: &str = "KAFKA__PROPERTIES__";

/// Keys and values of the variables that are settings, the strongest last.
pub(super) fn environment(
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> anyhow::Result<Vec<(String, String)>> {
    let mut shared = Vec::new();
    let mut own = Vec::new();
    for (name, value) in variables {
        let Some(name) = name.to_str() else {
            anyhow::ensure!(
                !name.as_encoded_bytes().starts_with(b"LAPSE__"),
                "environment variable {} is not UTF-8",
                name.display()
            );
            continue;
        };
        if let Some((_, key)) = SHARED.iter().find(|(shared, _)| *shared == name) {
            shared.push(((*key).to_owned(), utf8(name, value)?));
        } else if let Some(rest) = name.strip_prefix("LAPSE__") {
            own.push((key(name, rest)?, utf8(name, value)?));
        } else {
            refuse_mistyped(name, &value)?;
        }
    }
    Ok(shared.into_iter().chain(own).collect())
}

fn utf8(name: &str, value: OsString) -> anyhow::Result<String> {
    value
        .into_string()
        .map_err(|_| anyhow::anyhow!("the value of environment variable {name} is not UTF-8"))
}

/// `KAFKA__BROKERS` is `kafka.brokers`, `KAFKA__PROPERTIES__SECURITY_PROTOCOL` is `kafka.properties.security.protocol`:
/// a dot is no legal character of a shell's variable.
fn key(name: &str, rest: &str) -> anyhow::Result<String> {
    let rest = rest.to_ascii_uppercase();
    if let Some(property) = rest
        .strip_prefix(PROPERTIES)
        .filter(|name| !name.is_empty())
    {
        let property = property.replace('_', ".").to_ascii_lowercase();
        return Ok(format!("kafka.properties.{property}"));
    }
    let parts: Vec<&str> = rest.split("__").collect();
    let is_named = NAMED.iter().any(|named| rest.starts_with(named));
    let (right, form) = if is_named {
        (parts.len() >= 3, "LAPSE__SECTION__NAME__KEY")
    } else {
        (parts.len() == 2, "LAPSE__SECTION__KEY")
    };
    anyhow::ensure!(
        right && parts.iter().all(|part| !part.is_empty()),
        "environment variable {name} is not {form}"
    );
    Ok(parts.join(".").to_ascii_lowercase())
}

/// One underscore where two belong would otherwise be a setting that silently does nothing.
fn refuse_mistyped(name: &str, value: &OsStr) -> anyhow::Result<()> {
    let Some(rest) = name.strip_prefix("LAPSE_") else {
        return Ok(());
    };
    if NOT_SETTINGS.iter().any(|other| name.starts_with(other)) || is_service_link(rest, value) {
        return Ok(());
    }
    let meant = SECTIONS.iter().find_map(|section| {
        let key = rest.strip_prefix(section)?.strip_prefix('_')?;
        Some(format!("LAPSE__{section}__{}", key.trim_start_matches('_')))
    });
    let Some(meant) = meant else {
        return Ok(());
    };
    let meant = meant.replace("KAFKA__PROPERTIES_", PROPERTIES);
    anyhow::bail!("environment variable {name} is no setting; write {meant}, or take it away")
}

/// Kubernetes gives every container such variables for each service, and one may be called `lapse-kafka`.
fn is_service_link(name: &str, value: &OsStr) -> bool {
    name.contains("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.contains("_PORT_")
        || name.ends_with("_PORT") && value.to_str().is_some_and(|value| value.contains("://"))
}

/// The value of a setting that was given as text. Lists are separated by commas or written as in TOML.
pub(super) fn value(key: &str, text: &str) -> anyhow::Result<::config::Value> {
    if !is_list(key) {
        return Ok(text.into());
    }
    let list = if text.trim_start().starts_with('[') {
        toml_array(text)
            .map_err(unquoted)
            .with_context(|| format!("{key}: write it with commas, or as an array of TOML"))?
    } else {
        text.split(',')
            .map(|item| item.trim().to_owned())
            .filter(|item| !item.is_empty())
            .collect()
    };
    Ok(list.into())
}

/// A list of the settings, or of one of the named things, such as `order_owners.NAME.pending`.
pub(super) fn is_list(key: &str) -> bool {
    let is_of_named = |(section, end): &(&str, &str)| {
        key.strip_prefix(section)
            .and_then(|rest| rest.strip_suffix(end))
            .is_some_and(|name| !name.is_empty())
    };
    LISTS.contains(&key) || NAMED_LISTS.iter().any(is_of_named)
}

fn toml_array(text: &str) -> Result<Vec<String>, ::config::ConfigError> {
    let document = format!("list = {text}");
    ::config::Config::builder()
        .add_source(::config::File::from_str(
            &document,
            ::config::FileFormat::Toml,
        ))
        .build()?
        .get("list")
}

/// An address and a port, in words if it is neither.
pub(super) fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(|_| {
        D::Error::custom(
            "write ADDRESS:PORT, such as 127.0.0.1:8380 or [::1]:8380; names are not looked up",
        )
    })
}

/// Names with dots arrive as tables in tables unless they were quoted. A quoted one can only come from the file, so the
/// other, which may come from a stronger layer, wins.
pub(super) fn properties<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    let mut found = BTreeMap::new();
    let (tables, plain): (Vec<_>, Vec<_>) = BTreeMap::<String, Value>::deserialize(deserializer)?
        .into_iter()
        .partition(|(_, value)| value.is_object());
    for (name, value) in plain.into_iter().chain(tables) {
        flatten(name, value, &mut found).map_err(D::Error::custom)?;
    }
    Ok(found)
}

fn flatten(name: String, value: Value, found: &mut BTreeMap<String, String>) -> Result<(), String> {
    let text = match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                flatten(format!("{name}.{field}"), value, found)?;
            }
            return Ok(());
        }
        Value::String(text) => text,
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Null | Value::Array(_) => {
            return Err(format!("kafka.properties.{name} must be one value"));
        }
    };
    found.insert(name, text);
    Ok(())
}
