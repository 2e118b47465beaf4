//! `lapse verify`: recomputes the promises from the tables. Exit code 1 if one is broken or nothing could be checked.

use std::str::FromStr;

use anyhow::bail;
use chrono::DateTime;
use lapse_participants::audit::Bounds;
use lapse_sagas::{Span, Timestamp};

use super::answer::count;
use super::{Context, answer};
use crate::service;
use crate::store::pg::PgStore;
use crate::store::{self, Store};
use crate::verify::{self, Report};

/// Flags of `lapse verify`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// How late an order may be cancelled; widen it by the length of an outage that you know of.
    #[arg(long, default_value = "30s")]
    late_after: Span,
    /// Only orders placed from then on: a time such as 2026-01-31T12:00:00Z, or a length of time before now, such as 1h.
    /// Stock and the coordinator's own tables are always recomputed as a whole.
    #[arg(long)]
    since: Option<Since>,
}

/// From when on.
#[derive(Clone, Copy)]
pub(super) enum Since {
    At(Timestamp),
    Ago(Span),
}

impl Since {
    /// The time itself.
    ///
    /// # Errors
    /// Those of [`Store::now`].
    pub(super) async fn at(self, store: &PgStore) -> Result<Timestamp, store::Error> {
        match self {
            Since::At(at) => Ok(at),
            Since::Ago(span) => Ok(store.now().await? - span.delta()),
        }
    }
}

impl FromStr for Since {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(at) = DateTime::parse_from_rfc3339(text) {
            return Ok(Since::At(at.to_utc()));
        }
        text.parse().map(Since::Ago).map_err(|_| {
            "write a time such as 2026-01-31T12:00:00Z, or a length of time such as 1h".to_owned()
        })
    }
}

pub(super) async fn run(context: Context, args: Args) -> anyhow::Result<()> {
    let mut bounds = Bounds {
        late_after: args.late_after.delta(),
        ..Bounds::default()
    };
    if let Some(since) = args.since {
        let store = PgStore::new(service::database(&context.config)?);
        bounds.since = since.at(&store).await?;
    }
    let report = verify::run(&context.config, &bounds).await?;
    answer::print(context.output, "verify", &report, || words(&report))?;
    if !report.ok {
        let violations = usize::try_from(report.violations).unwrap_or(usize::MAX);
        bail!(
            "{} in {}",
            count(violations, "violation"),
            count(report.checks.len(), "check")
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
        let shown = i64::try_from(check.rows.len()).unwrap_or(i64::MAX);
        if shown < check.violations {
            let more = check.violations - shown;
            text.push_str(&format!("\n{}: and {more} more", check.id));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::verify::{Check, Lateness};

    fn words_of(violations: i64, rows: usize) -> String {
        let check = Check {
            id: "late".to_owned(),
            ok: false,
            checked: 65,
            violations,
            rows: vec![json!({ "order_id": "o" }); rows],
        };
        words(&Report {
            ok: false,
            violations,
            checks: vec![check],
            skipped: Vec::new(),
            counts: BTreeMap::new(),
            lateness_ms: Lateness::default(),
        })
    }

    #[test]
    fn violations_that_are_not_listed_are_told_by_number() {
        assert!(words_of(31, 20).ends_with("\nlate: and 11 more"));
        assert!(!words_of(20, 20).contains("more"));
    }
}
