//! `[alerts]`: where alerts go beside the log and the topic `alerts`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, ensure};
use lapse_sagas::Span;
use serde::{Deserialize, Serialize};

use super::Secret;
use super::check::within;

/// Kinds of alerts there are.
const KINDS: [&str; 5] = [
    "compensated",
    "parked",
    "continued",
    "unresolved",
    "participant_down",
];

/// All channels.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Alerts {
    /// Webhooks by name.
    pub webhooks: BTreeMap<String, Webhook>,
}

/// One webhook.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Webhook {
    /// Where alerts are posted.
    pub url: String,
    /// The key of the signatures: `whsec_` and base64 of 24 to 64 bytes.
    pub secret: Secret,
    /// A file with it, in place of `secret`.
    pub secret_file: PathBuf,
    /// The key before, while receivers change to the new one: signatures of both are sent.
    pub previous_secret: Secret,
    /// A file with it, in place of `previous_secret`.
    pub previous_secret_file: PathBuf,
    /// How long the receiver may take to answer.
    pub timeout: Span,
    /// Kinds of alerts it gets; empty: all.
    pub kinds: Vec<String>,
    /// PEM file with the only authorities whose certificates are accepted; empty: those of the system.
    pub ca_file: PathBuf,
    /// Allows `http://` to another machine, where everybody on the way can read along.
    pub plaintext: bool,
}

impl Default for Webhook {
    fn default() -> Self {
        Webhook {
            url: String::new(),
            secret: Secret::default(),
            secret_file: PathBuf::new(),
            previous_secret: Secret::default(),
            previous_secret_file: PathBuf::new(),
            timeout: Span::from_secs(10),
            kinds: Vec::new(),
            ca_file: PathBuf::new(),
            plaintext: false,
        }
    }
}

impl Alerts {
    /// What can be known without reading a file: people who may not read the secrets use the command line too.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        for (name, webhook) in &self.webhooks {
            let key = format!("alerts.webhooks.{name}");
            let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
            ensure!(
                !name.is_empty() && name.len() <= 64 && name.bytes().all(legal),
                "{key}: a name has up to 64 letters, digits, underscores and hyphens"
            );
            webhook.check(&key)?;
        }
        Ok(())
    }
}

impl Webhook {
    fn check(&self, key: &str) -> anyhow::Result<()> {
        crate::webhooks::address(&self.url, self.plaintext)
            .with_context(|| format!("{key}.url"))?;
        let sources = |secret: &Secret, file: &PathBuf| {
            usize::from(!secret.is_empty()) + usize::from(!file.as_os_str().is_empty())
        };
        ensure!(
            sources(&self.secret, &self.secret_file) == 1,
            "{key} needs secret or secret_file, one of them; make a secret with: echo whsec_$(openssl rand -base64 32)"
        );
        ensure!(
            sources(&self.previous_secret, &self.previous_secret_file) <= 1,
            "{key} has previous_secret and previous_secret_file; take one away"
        );
        for (field, secret) in [
            ("secret", &self.secret),
            ("previous_secret", &self.previous_secret),
        ] {
            if !secret.is_empty() {
                crate::webhooks::Key::parse(secret.reveal())
                    .with_context(|| format!("{key}.{field}"))?;
            }
        }
        let unknown = self.kinds.iter().find(|kind| !KINDS.contains(&&***kind));
        if let Some(kind) = unknown {
            anyhow::bail!("{key}.kinds names {kind}; there are {}", KINDS.join(", "));
        }
        let timeouts = Span::from_secs(1)..=Span::from_secs(60);
        within(&format!("{key}.timeout"), self.timeout, timeouts)
    }
}
