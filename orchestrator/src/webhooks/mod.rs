//! Alerts to webhooks, signed as the Standard Webhooks say (<https://www.standardwebhooks.com>), so that receivers can
//! use a library.
//!
//! Relies on [`crate::store::webhooks`] for what is to be posted. Never: follows a redirect, reads more than a little of
//! an answer, writes an address or a key into a log (only the host); lets one webhook wait for another.

mod deliver;
mod post;
mod signature;

use anyhow::{Context, ensure};
use reqwest::Url;

pub use deliver::Deliverer;
pub use post::{Answer, Failure, Webhook};
pub use signature::{Key, Keys};

use crate::config;
use crate::store::webhooks::Route;
use crate::tls;

/// The webhooks of the settings, ready to be called; files are read.
///
/// # Errors
/// Which setting is wrong.
pub fn open(alerts: &config::Alerts) -> anyhow::Result<Vec<Webhook>> {
    alerts
        .webhooks
        .iter()
        .map(|(name, settings)| {
            Webhook::open(name, settings).with_context(|| format!("alerts.webhooks.{name}"))
        })
        .collect()
}

/// The same as far as the store needs to know.
pub fn routes(alerts: &config::Alerts) -> Vec<Route> {
    let route = |(name, settings): (&String, &config::Webhook)| Route {
        webhook: name.clone(),
        kinds: settings.kinds.clone(),
    };
    alerts.webhooks.iter().map(route).collect()
}

/// Reads the address of a webhook.
///
/// # Errors
/// If it is none, or unencrypted to another machine without `plaintext`. The address is not repeated.
pub fn address(url: &str, plaintext: bool) -> anyhow::Result<Url> {
    let url: Url = url
        .parse()
        .ok()
        .filter(|url: &Url| matches!(url.scheme(), "http" | "https") && url.has_host())
        .context("not https://host/path")?;
    let host = url.host_str().unwrap_or_default();
    ensure!(
        url.scheme() == "https" || plaintext || tls::is_loopback(host),
        "http:// to {host}: everybody on the way could read along; write https://, or set plaintext = true beside it"
    );
    Ok(url)
}
