//! `[participants.NAME]`: who does operations outside this process, and how it is reached.

use serde::{Deserialize, Serialize};

/// One participant.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Participant {
    /// How commands reach it.
    pub transport: Transport,
    /// `http`: its base URL; commands go to `{url}/v1/commands`.
    pub url: String,
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
