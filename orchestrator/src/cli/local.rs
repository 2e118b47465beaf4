//! The coordinator of these settings, asked over HTTP on this machine.
//!
//! Relies on `http.listen`. Never: goes through a proxy or after a redirect; a token is for that coordinator only.

use std::net::Ipv4Addr;

use anyhow::Context as _;
use reqwest::{Client, ClientBuilder, Url, redirect};

use crate::config::Config;

/// What has to be set on every client of a coordinator.
pub(super) fn client() -> ClientBuilder {
    Client::builder()
        .no_proxy()
        .redirect(redirect::Policy::none())
}

/// A path on it, by its segments.
pub(super) fn url(config: &Config, segments: &[&str]) -> anyhow::Result<Url> {
    let mut at = config.http.listen;
    if at.ip().is_unspecified() {
        at.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    let mut url = Url::parse(&format!("http://{at}")).context("make a URL of http.listen")?;
    if let Ok(mut path) = url.path_segments_mut() {
        path.extend(segments);
    }
    Ok(url)
}
