//! `lapse migrate`: brings the tables of the coordinator, and of the shop if it is served here, up to this version.

use serde_json::json;

use super::{Context, answer};
use crate::service;

pub(super) async fn run(context: Context) -> anyhow::Result<()> {
    service::migrate(&context.config).await?;
    let shop = context.config.shop.enabled;
    answer::print(
        context.output,
        "migrate",
        &json!({ "ok": true, "shop": shop }),
        || "the tables are up to date".to_owned(),
    )
}
