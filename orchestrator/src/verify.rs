//! `lapse verify`: that nothing is lost, doubled, early, cancelled after paid, or forgotten, recomputed from the tables.
//!
//! Joins what the store can recompute with what the shop can. Relies on both to read one snapshot each. Never: calls a
//! check ok that looked at nothing, or repairs.

use std::collections::BTreeMap;

use anyhow::Context;
use lapse_participants::audit::{self, Bounds};
use serde::Serialize;
use serde_json::Value;

use crate::config::Config;
use crate::service;
use crate::store::ops::Ops;
use crate::store::verify as store_checks;

mod late;

/// Everything that was found. The names are relied on by other programs.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// No violation, and something was checked.
    pub ok: bool,
    /// Over all checks.
    pub violations: i64,
    /// Those that looked at something.
    pub checks: Vec<Check>,
    /// Those that did not.
    pub skipped: Vec<Skipped>,
    /// Counters over all time, by name.
    pub counts: BTreeMap<String, i64>,
    /// How late orders were cancelled by timers and the sweep.
    pub lateness_ms: Lateness,
}

/// One check.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Stable name.
    pub id: String,
    /// No violation.
    pub ok: bool,
    /// How many rows were looked at.
    pub checked: i64,
    /// How many are wrong.
    pub violations: i64,
    /// The first 20 of those.
    pub rows: Vec<Value>,
}

/// A check that says nothing.
#[derive(Clone, Debug, Serialize)]
pub struct Skipped {
    /// Stable name.
    pub id: String,
    /// Why.
    pub reason: String,
}

/// Milliseconds past the due time.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Lateness {
    /// Median.
    pub p50: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// The latest.
    pub max: Option<f64>,
}

/// Runs every check on the coordinator's tables and, where the shop is served here, on the shop's.
///
/// # Errors
/// If a database can't be asked: then nothing is said.
pub async fn run(config: &Config, bounds: &Bounds) -> anyhow::Result<Report> {
    let db = service::database(config)?;
    let mut checks: Vec<Check> = store_checks::verify(&db)
        .await
        .context("check the coordinator's tables")?
        .into_iter()
        .map(|check| Check {
            id: check.id.to_owned(),
            ok: check.ok,
            checked: check.checked,
            violations: check.violations,
            rows: check.rows,
        })
        .collect();
    let mut skipped = Vec::new();
    let mut lateness_ms = Lateness::default();
    if config.shop.enabled {
        let mut audit = audit::run(&service::shop_database(config)?, bounds)
            .await
            .context("check the shop's tables")?;
        late::but_for_retries(&db, &mut audit, bounds)
            .await
            .context("look for retries by operators")?;
        let audit::Lateness { p50, p99, max, .. } = audit.lateness;
        lateness_ms = Lateness { p50, p99, max };
        checks.extend(audit.checks.into_iter().map(|check| Check {
            id: check.id,
            ok: check.ok,
            checked: check.checked,
            violations: check.violations,
            rows: check.rows,
        }));
    } else {
        let reason =
            "the orders are not in a shop that is served here (shop.enabled = false)".to_owned();
        skipped.push(Skipped {
            id: "orders_and_stock".to_owned(),
            reason,
        });
    }
    let totals = Ops::new(db).totals().await.context("read the counters")?;
    let mut counts = BTreeMap::new();
    for total in totals {
        *counts.entry(total.counter).or_insert(0) += total.n;
    }
    Ok(Report::of(checks, skipped, counts, lateness_ms))
}

impl Report {
    fn of(
        checks: Vec<Check>,
        mut skipped: Vec<Skipped>,
        counts: BTreeMap<String, i64>,
        lateness_ms: Lateness,
    ) -> Report {
        let (checks, empty): (Vec<Check>, Vec<Check>) = checks
            .into_iter()
            .partition(|check| check.checked > 0 || check.violations > 0);
        skipped.extend(empty.into_iter().map(|check| Skipped {
            id: check.id,
            reason: "there was nothing to look at".to_owned(),
        }));
        let violations = checks.iter().map(|check| check.violations).sum();
        let ok = !checks.is_empty() && checks.iter().all(|check| check.ok);
        Report {
            ok,
            violations,
            checks,
            skipped,
            counts,
            lateness_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(checked: i64, violations: i64) -> Check {
        Check {
            id: "lost".to_owned(),
            ok: violations == 0,
            checked,
            violations,
            rows: Vec::new(),
        }
    }

    fn report(checks: Vec<Check>) -> Report {
        Report::of(checks, Vec::new(), BTreeMap::new(), Lateness::default())
    }

    #[test]
    fn nothing_checked_is_not_ok() {
        let report = report(vec![check(0, 0)]);
        assert!(!report.ok);
        assert_eq!(report.skipped.len(), 1);
    }

    #[test]
    fn one_violation_is_not_ok() {
        assert!(report(vec![check(5, 0)]).ok);
        assert!(!report(vec![check(5, 0), check(5, 1)]).ok);
    }
}
