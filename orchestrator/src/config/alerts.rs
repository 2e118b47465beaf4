//! `[alerts]`: where alerts go beside the log and the topic `alerts`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// All channels.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Alerts {
    /// Webhooks by name.
    pub webhooks: BTreeMap<String, Webhook>,
}

/// One webhook.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Webhook {
    /// Where alerts are posted.
    pub url: String,
}
