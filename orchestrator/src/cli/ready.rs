//! `lapse ready`: whether the coordinator of these settings is ready, for the health checks of container platforms.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::{Context, Exit, answer, local};

const WITHIN: Duration = Duration::from_secs(5);

/// Exit code 0 ready, 1 not ready, 8 no answer.
pub(super) async fn run(context: Context) -> anyhow::Result<()> {
    let url = local::url(&context.config, &["readyz"])?;
    let client = local::client()
        .timeout(WITHIN)
        .build()
        .context("make an HTTP client")?;
    let answered = client.get(url.clone()).send().await;
    let answered = answered.map_err(|_| {
        Exit::Unreachable(format!(
            "nobody answers at {url}; is lapse run up, and is http.listen right?"
        ))
    })?;
    let ready = answered.status().is_success();
    let state: Value = answered.json().await.unwrap_or_default();
    let body = json!({ "ready": ready, "state": state });
    answer::print(context.output, "ready", &body, || {
        if ready { "ready" } else { "not ready" }.to_owned()
    })?;
    anyhow::ensure!(ready, "not ready: {state}");
    Ok(())
}
