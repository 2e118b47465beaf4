//! `[participants.NAME]`: who does operations outside this process, and how it is reached.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Secret;
use super::remote::Remote;
use crate::participants::http::{Address, Style};

/// One participant.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Participant {
    /// How commands reach it.
    pub transport: Transport,
    /// `http`: its base URL; commands go to `{url}/v1/commands`.
    pub url: String,
    /// `http`: sent as bearer token. Rather use `token_file`.
    pub token: Secret,
    /// `http`: a file whose first line is the token; read at the start.
    pub token_file: PathBuf,
    /// `http`: one request per command, with `Idempotency-Key`, instead of one per batch.
    pub single: bool,
    /// `http`: requests at a time at most.
    pub in_flight: usize,
    /// `http`: a PEM file of the authorities that are believed instead of this machine's.
    pub ca_file: PathBuf,
    /// `http`: the token may go over `http://` to another machine, where others may read it.
    pub insecure: bool,
}

/// How commands reach a participant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// One request per batch.
    #[default]
    Http,
    /// One record per command on `{kafka.prefix}commands.NAME`; replies on `{kafka.prefix}replies`.
    Kafka,
}

impl Default for Participant {
    fn default() -> Self {
        Participant {
            transport: Transport::default(),
            url: String::new(),
            token: Secret::default(),
            token_file: PathBuf::new(),
            single: false,
            in_flight: 8,
            ca_file: PathBuf::new(),
            insecure: false,
        }
    }
}

impl Participant {
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
        match self.transport {
            Transport::Http => {
                self.remote().check(key)?;
                super::check::within(&format!("{key}.in_flight"), self.in_flight, 1..=256)
            }
            Transport::Kafka => {
                let of_http = [
                    ("url", !self.url.is_empty()),
                    ("token", !self.token.is_empty()),
                    ("token_file", !self.token_file.as_os_str().is_empty()),
                    ("single", self.single),
                    (
                        "in_flight",
                        self.in_flight != Participant::default().in_flight,
                    ),
                    ("ca_file", !self.ca_file.as_os_str().is_empty()),
                    ("insecure", self.insecure),
                ];
                let goes_without = format!("{key}.transport is kafka");
                super::check::none_set(key, &of_http, &goes_without)
            }
        }
    }

    /// Where it is reached; reads the files.
    pub(crate) fn address(&self, key: &str) -> anyhow::Result<Address> {
        self.remote().address(key)
    }

    /// How commands are put into requests.
    pub(crate) fn style(&self) -> Style {
        if self.single {
            Style::Single
        } else {
            Style::Batch
        }
    }
}
