//! `[order_owners.NAME]`: who knows, outside this process, which orders are overdue.

use serde::{Deserialize, Serialize};

/// One order owner.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OrderOwner {
    /// Its base URL (`http://…`), which answers `{url}/v1/overdue-orders` and `{url}/v1/paid-orders`.
    pub url: String,
}
