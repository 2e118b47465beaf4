//! `lapse migrate`: brings the tables of the coordinator, and of the shop if it is served here, up to this version.

use anyhow::Context as _;
use serde_json::json;

use super::{Context, answer};
use crate::config::Config;
use crate::service;
use crate::store::schema;

pub(super) async fn run(context: Context) -> anyhow::Result<()> {
    migrate(&context.config).await?;
    let shop = context.config.shop.enabled;
    answer::print(
        context.output,
        "migrate",
        &json!({ "ok": true, "shop": shop }),
        || "the tables are up to date".to_owned(),
    )
}

/// Migrates; any number of processes at once.
pub(crate) async fn migrate(config: &Config) -> anyhow::Result<()> {
    schema::migrate(&service::database(config)?)
        .await
        .context("migrate the coordinator's tables")?;
    if config.shop.enabled {
        let pool = service::shop_database(config)?;
        lapse_participants::shop::migrate(&pool)
            .await
            .context("migrate the shop's tables")?;
    }
    Ok(())
}
