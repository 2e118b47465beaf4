//! What the settings of everybody behind HTTP have in common: a base URL, a token, authorities.
//!
//! Never: repeats a URL that may hold a password, or a token.

use std::path::Path;

use anyhow::{Context, ensure};
use reqwest::Url;

use super::Secret;
use crate::participants::http::Address;
use crate::tls;

/// A view of those settings.
pub(super) struct Remote<'c> {
    pub url: &'c str,
    pub token: &'c Secret,
    pub token_file: &'c Path,
    pub ca_file: &'c Path,
    pub insecure: bool,
}

impl Remote<'_> {
    /// What is wrong, without looking into files.
    pub fn check(&self, key: &str) -> anyhow::Result<()> {
        ensure!(
            !self.url.is_empty(),
            "{key}.url is empty; write its base URL, such as https://shop.example/lapse"
        );
        let url = Url::parse(self.url)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
            .with_context(|| format!("{key}.url is not http://host:port/path or https://…"))?;
        ensure!(
            url.username().is_empty() && url.password().is_none(),
            "{key}.url holds a user or password; use {key}.token_file"
        );
        ensure!(
            url.query().is_none() && url.fragment().is_none(),
            "{key}.url has a query or fragment; write the base URL only"
        );
        ensure!(
            self.token.is_empty() || self.token_file.as_os_str().is_empty(),
            "{key}.token and {key}.token_file are both set; take one away"
        );
        let has_token = !self.token.is_empty() || !self.token_file.as_os_str().is_empty();
        let is_here = url.host_str().is_some_and(tls::is_loopback);
        ensure!(
            !has_token || url.scheme() == "https" || is_here || self.insecure,
            "{key}.url is http:// to another machine, and would show the token to everybody on the way; use https://, or say {key}.insecure = true"
        );
        ensure!(
            self.ca_file.as_os_str().is_empty() || url.scheme() == "https",
            "{key}.ca_file is of no use with http://; use https://"
        );
        Ok(())
    }

    /// Reads the files.
    pub fn address(&self, key: &str) -> anyhow::Result<Address> {
        let mut address = Address {
            url: self.url.to_owned(),
            token: self.token.clone(),
            authorities: Vec::new(),
        };
        if !self.token_file.as_os_str().is_empty() {
            let file = self.token_file;
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("{key}.token_file: read {}", file.display()))?;
            let token = text.lines().next().unwrap_or_default().trim();
            ensure!(
                !token.is_empty(),
                "{key}.token_file: {} is empty",
                file.display()
            );
            address.token = Secret::from(token);
        }
        if !self.ca_file.as_os_str().is_empty() {
            let file = self.ca_file;
            address.authorities = std::fs::read(file)
                .with_context(|| format!("{key}.ca_file: read {}", file.display()))?;
        }
        Ok(address)
    }
}
