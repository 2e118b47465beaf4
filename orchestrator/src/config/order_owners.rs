//! `[order_owners.NAME]`: who knows, outside this process, which orders are overdue.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Secret;
use super::remote::Remote;
use crate::participants::http::Address;

/// One order owner.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OrderOwner {
    /// Its base URL (`http://…`), which answers `{url}/v1/overdue-orders` and `{url}/v1/paid-orders`.
    pub url: String,
    /// Sent as bearer token. Rather use `token_file`.
    pub token: Secret,
    /// A file whose first line is the token; read at the start.
    pub token_file: PathBuf,
    /// A PEM file of the authorities that are believed instead of this machine's.
    pub ca_file: PathBuf,
    /// The token may go over `http://` to another machine, where others may read it.
    pub insecure: bool,
}

impl OrderOwner {
    fn remote(&self) -> Remote<'_> {
        Remote {
            url: &self.url,
            token: &self.token,
            token_file: &self.token_file,
            ca_file: &self.ca_file,
            insecure: self.insecure,
        }
    }

    /// What is wrong with it, whose settings begin with `key`.
    pub(crate) fn check(&self, key: &str) -> anyhow::Result<()> {
        self.remote().check(key)
    }

    /// Where it is reached; reads the files.
    pub(crate) fn address(&self, key: &str) -> anyhow::Result<Address> {
        self.remote().address(key)
    }
}
