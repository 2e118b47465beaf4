//! A settings file that others on this machine may read, and that holds a secret.
//!
//! Relies on the file alone: what comes from the environment is not in it. Never: says what the secret is.

use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// All but the owner.
const OTHERS: u32 = 0o077;

/// The file and the setting that is a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposed {
    file: PathBuf,
    mode: u32,
    key: String,
}

impl fmt::Display for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} holds a secret ({}) and has mode {:04o}, so that others may read or change it; run: chmod 600 {}",
            self.file.display(),
            self.key,
            self.mode,
            self.file.display()
        )
    }
}

/// What is wrong with a settings file, if it is there.
pub(super) fn look(file: &Path) -> Option<Exposed> {
    let mode = std::fs::metadata(file).ok()?.permissions().mode() & 0o7777;
    if mode & OTHERS == 0 {
        return None;
    }
    let source = ::config::File::from(file).format(::config::FileFormat::Toml);
    let settings = ::config::Config::builder()
        .add_source(source)
        .build()
        .ok()?;
    Some(Exposed {
        file: file.to_owned(),
        mode,
        key: secret("", &settings.try_deserialize().ok()?)?,
    })
}

/// The key of a secret among these settings.
fn secret(key: &str, value: &Value) -> Option<String> {
    match value {
        Value::Object(fields) => fields.iter().find_map(|(name, value)| {
            let key = match key {
                "" => name.clone(),
                section => format!("{section}.{name}"),
            };
            secret(&key, value)
        }),
        Value::String(text) => is_secret(key, text).then(|| key.to_owned()),
        _ => None,
    }
}

fn is_secret(key: &str, text: &str) -> bool {
    let name = key.rsplit('.').next().unwrap_or_default();
    let is_named = ["password", "secret", "previous_secret", "token"].contains(&name);
    // A webhook's address is one: whoever knows it may post there.
    let is_address = key.starts_with("alerts.webhooks.") && name == "url";
    !text.is_empty() && (is_named || is_address || has_password(text))
}

/// Whether it is a URL with a password in it.
fn has_password(text: &str) -> bool {
    let Some((_, rest)) = text.split_once("://") else {
        return false;
    };
    let place = rest.split(['/', '?']).next().unwrap_or_default();
    let user = place.rsplit_once('@').map(|(user, _)| user);
    user.is_some_and(|user| user.contains(':')) || rest.contains("password=")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::secret;

    #[test]
    fn secrets_are_found_wherever_a_setting_may_hold_one() {
        for settings in [
            json!({ "postgres": { "url": "postgres://lapse:x@db/lapse" } }),
            json!({ "shop": { "url": "postgres://lapse@db/shop?password=x" } }),
            json!({ "order_owners": { "orders": { "database_url": "mysql://ro:x@db/shop" } } }),
            json!({ "kafka": { "properties": { "sasl": { "password": "x" } } } }),
            json!({ "kafka": { "properties": { "ssl.key.password": "x" } } }),
            json!({ "participants": { "orders": { "token": "x" } } }),
            json!({ "alerts": { "webhooks": { "pager": { "secret": "x" } } } }),
            json!({ "alerts": { "webhooks": { "pager": { "url": "https://hooks/x" } } } }),
        ] {
            assert!(secret("", &settings).is_some(), "{settings}");
        }
        for settings in [
            json!({ "postgres": { "url": "postgres://lapse@db/lapse" } }),
            json!({ "kafka": { "password_file": "/run/secrets/kafka", "brokers": "a:1,b:2" } }),
            json!({ "participants": { "orders": { "url": "https://orders:8443/lapse", "token": "" } } }),
            json!({ "http": { "tokens": { "ann": "sha256:00" }, "listen": "0.0.0.0:8380" } }),
        ] {
            assert_eq!(secret("", &settings), None, "{settings}");
        }
    }
}
