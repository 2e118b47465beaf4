//! `lapse run`: a coordinator until SIGTERM or SIGINT; drains within ten seconds.

use std::path::PathBuf;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

use super::{Context, init_logs};
use crate::metrics;
use crate::service::{self, Service};

/// Flags of `lapse run`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Bring the tables up to this version first.
    #[arg(long)]
    migrate: bool,
}

pub(super) async fn run(context: Context, args: Args) -> anyhow::Result<()> {
    init_logs(&context)?;
    check_definitions(&context.config.definitions.paths)?;
    let metrics = metrics::install()?;
    if args.migrate {
        service::migrate(&context.config).await?;
    }
    super::topics::check(&context.config).await?;
    let service = Service::start(&context.config, metrics).await?;
    info!("running");
    let failed = tokio::select! {
        signal = wait_for_signal() => {
            signal?;
            false
        }
        () = service.failed() => true,
    };
    service.stop().await;
    anyhow::ensure!(
        !failed,
        "a part of the coordinator ended by itself; the log says which"
    );
    Ok(())
}

/// Before anything is asked of others.
fn check_definitions(paths: &[PathBuf]) -> anyhow::Result<()> {
    if service::load_definitions(paths)?.is_empty() {
        let paths: Vec<String> = paths
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        warn!(
            paths = paths.join(", "),
            "there is no definition (*.yaml, *.yml): no saga can start but by what is active already"
        );
    }
    Ok(())
}

pub(super) async fn wait_for_signal() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    tokio::select! {
        _ = terminate.recv() => info!("SIGTERM"),
        _ = interrupt.recv() => info!("SIGINT"),
    }
    Ok(())
}
