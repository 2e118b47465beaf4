//! A site by two commands of the shell: one places an order, one prints how it stands.
//!
//! Relies on `sh`. Never: lets what the commands print to stderr get lost when they fail.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use async_trait::async_trait;
use tokio::process::Command;

use super::Site;

/// A command that hangs must not hang the suite.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// Commands of the shell. Both find the order's id in `LAPSE_ORDER_ID` and its tenant in `LAPSE_TENANT`.
pub struct ShellSite {
    /// Places an order.
    pub place: String,
    /// Prints how it stands.
    pub state: String,
    /// The tenant of the orders.
    pub tenant: String,
}

impl ShellSite {
    async fn run(&self, command: &str, order_id: &str) -> anyhow::Result<String> {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", command])
            .env("LAPSE_ORDER_ID", order_id)
            .env("LAPSE_TENANT", &self.tenant)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let ended = tokio::time::timeout(ENDS_WITHIN, shell.output()).await;
        let Ok(output) = ended else {
            bail!("{command:?} still runs after {ENDS_WITHIN:?}");
        };
        let output = output.with_context(|| format!("start {command:?}"))?;
        ensure!(
            output.status.success(),
            "{command:?} ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        String::from_utf8(output.stdout).with_context(|| format!("{command:?} printed no text"))
    }
}

#[async_trait]
impl Site for ShellSite {
    async fn place(&self, order_id: &str) -> anyhow::Result<()> {
        self.run(&self.place, order_id).await.map(drop)
    }

    async fn state(&self, order_id: &str) -> anyhow::Result<String> {
        let text = self.run(&self.state, order_id).await?;
        ensure!(!text.trim().is_empty(), "{:?} printed nothing", self.state);
        Ok(text)
    }
}
