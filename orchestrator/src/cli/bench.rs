//! `lapse bench`: measures on the Postgres and Kafka of the settings; both must be real for the figures to mean much.

use anyhow::bail;
use serde_json::json;

use super::{Context, Output, answer, init_logs, verify};
use crate::bench::{self, Plan, Report};
use crate::metrics;

/// Flags of `lapse bench`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// What to measure.
    #[arg(long, value_enum, default_value_t = Case::PerStep)]
    only: Case,
    /// Orders per second.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    rate: u32,
    /// For so long.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    seconds: u32,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
enum Case {
    /// In-process participants; one call and one record per step and batch.
    PerStep,
}

pub(super) async fn run(mut context: Context, args: Args) -> anyhow::Result<()> {
    if context.config.log.filter == "info" {
        context.config.log.filter = "warn,sqlx=error".to_owned();
    }
    init_logs(&context)?;
    let Case::PerStep = args.only;
    let plan = Plan {
        rate: args.rate,
        seconds: args.seconds,
    };
    if context.output == Output::Text {
        eprintln!(
            "{} orders per second for {} s, each due 3 s after it is placed",
            plan.rate, plan.seconds
        );
    }
    let report = bench::run(context.config.clone(), plan, metrics::install()?).await?;
    if !report.ok {
        let body = json!({ "ok": false, "verify": report.verify });
        answer::print(context.output, "bench", &body, || {
            verify::words(&report.verify)
        })?;
        bail!("the run does not verify, so it has no figures");
    }
    answer::print(context.output, "bench", &report, || words(&report))
}

fn words(report: &Report) -> String {
    let rows = report.lateness.iter().map(|row| {
        [
            row.rate_per_s.into(),
            row.orders,
            row.p50_ms,
            row.p99_ms,
            row.p999_ms,
            row.max_ms,
            row.early,
        ]
        .iter()
        .map(ToString::to_string)
        .collect()
    });
    let table = answer::table(
        &[
            "orders/s", "orders", "p50 ms", "p99 ms", "p99.9 ms", "max ms", "early",
        ],
        rows,
    );
    format!(
        "{}; postgres {}, fsync {}\nfrom due time to the end of the saga:\n{table}",
        report.machine, report.versions.postgres, report.settings.fsync
    )
}
