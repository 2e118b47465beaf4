//! `lapse verify`: recomputes the promises from the tables. Exit code 1 if one is broken or nothing could be checked.

use anyhow::bail;
use chrono::TimeDelta;
use lapse_participants::audit::Bounds;
use lapse_sagas::Span;

use super::{Context, answer};
use crate::verify::{self, Report};

/// Flags of `lapse verify`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// How late an order may be cancelled; widen it by the length of an outage that you know of.
    #[arg(long, default_value = "30s")]
    late_after: Span,
}

pub(super) async fn run(context: Context, args: Args) -> anyhow::Result<()> {
    let late_after: TimeDelta = args.late_after.delta();
    let bounds = Bounds {
        late_after,
        ..Bounds::default()
    };
    let report = verify::run(&context.config, &bounds).await?;
    answer::print(context.output, "verify", &report, || words(&report))?;
    if !report.ok {
        bail!(
            "{} violations in {} checks",
            report.violations,
            report.checks.len()
        );
    }
    Ok(())
}

/// The report for people: a line per check, then the rows that are wrong.
pub(crate) fn words(report: &Report) -> String {
    let rows = report.checks.iter().map(|check| {
        let verdict = if check.ok { "ok" } else { "VIOLATED" };
        vec![
            check.id.clone(),
            verdict.to_owned(),
            check.checked.to_string(),
            check.violations.to_string(),
        ]
    });
    let mut text = answer::table(&["check", "", "looked at", "wrong"], rows);
    for skipped in &report.skipped {
        text.push_str(&format!("\n{} skipped: {}", skipped.id, skipped.reason));
    }
    for check in report.checks.iter().filter(|check| !check.ok) {
        for row in &check.rows {
            text.push_str(&format!("\n{}: {row}", check.id));
        }
    }
    text
}
