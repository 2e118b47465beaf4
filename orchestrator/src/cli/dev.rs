//! `lapse dev`: try it out on this machine. With `--once` it ends after its orders; exit code 0 only if all adds up.

use std::path::PathBuf;
use std::pin::pin;

use anyhow::bail;
use serde_json::json;

use super::{Context, Exit, answer, init_logs, run, verify};
use crate::dev::{self, Dev, Options, Report};
use crate::metrics;

/// Flags of `lapse dev`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// End after the stream of orders.
    #[arg(long)]
    once: bool,
    /// Where Postgres and the address file live.
    #[arg(long, default_value = ".lapse")]
    home: PathBuf,
    /// How many orders the shop places.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u16).range(10..=500))]
    orders: u16,
    /// Chooses their fates; random if not given.
    #[arg(long)]
    seed: Option<u64>,
}

pub(super) async fn run(mut context: Context, args: Args) -> anyhow::Result<()> {
    if context.config.log.filter == "info" {
        // The stream tells what happens; the log only what goes wrong.
        context.config.log.filter = "warn,sqlx=error".to_owned();
    }
    init_logs(&context)?;
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    let options = Options {
        home: args.home.clone(),
        orders: usize::from(args.orders),
        seed,
    };
    let metrics = metrics::install()?;
    let mut signal = pin!(run::wait_for_signal());
    let dev = tokio::select! {
        // First, so that no signal is missed: from here on it doesn't end the process by itself.
        biased;
        signal = &mut signal => return interrupted(&args, signal),
        dev = Dev::start(&options, context.config.clone(), metrics) => dev.map_err(tell_conflict)?,
    };
    let report = tokio::select! {
        biased;
        signal = &mut signal => {
            dev.stop().await;
            return interrupted(&args, signal);
        }
        report = dev.stream(&options) => report,
    };
    if args.once {
        dev.stop().await;
        return finish(&context, &report?);
    }
    if let Ok(report) = &report {
        eprintln!("\n{}\n", report.words());
        eprintln!("the shop's own orders are through; produce your own, or stop with Ctrl-C");
        signal.await?;
    }
    dev.stop().await;
    report.map(drop)
}

/// Stopping is how it ends, unless it was to end by itself: then nobody may take it for a success.
fn interrupted(args: &Args, signal: anyhow::Result<()>) -> anyhow::Result<()> {
    signal?;
    if args.once {
        bail!("interrupted");
    }
    eprintln!("interrupted; everything is stopped");
    Ok(())
}

fn tell_conflict(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref() {
        Some(dev::Error::Running(_)) => Exit::Conflict(error.to_string()).into(),
        None => error,
    }
}

/// With somebody's own orders between them the stream's need not add up, so only `--once` judges.
fn finish(context: &Context, report: &Report) -> anyhow::Result<()> {
    answer::print(context.output, "dev", report, || {
        format!("{}\n\n{}", verify::words(&report.verify), report.words())
    })?;
    if !report.ok {
        bail!("it does not add up: {}", json!(report.verify.counts));
    }
    Ok(())
}
