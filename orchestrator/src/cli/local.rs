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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_listens_everywhere_is_asked_on_loopback_and_a_name_stays_one_segment() {
        let mut config = Config::default();
        config.http.listen = "0.0.0.0:8100".parse().expect("an address");
        let url = url(&config, &["v1", "sagas", "a/../b?c"]).expect("a URL");
        assert_eq!(
            url.as_str(),
            "http://127.0.0.1:8100/v1/sagas/a%2F..%2Fb%3Fc"
        );
    }
}
