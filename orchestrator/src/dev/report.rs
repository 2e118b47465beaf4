//! What `lapse dev --once` ends with: the counts, and whether they add up.
//!
//! Relies on the shop's tables for orders and stock and on the coordinator's for sagas and alerts, so that one side
//! checks the other. Never: counts what the stream only intended.

use std::collections::{BTreeMap, HashSet};

use anyhow::Context;
use lapse_participants::audit::Bounds;
use lapse_participants::shop::Shop;
use rust_decimal::Decimal;
use serde::Serialize;

use super::stream::Tally;
use crate::config::Config;
use crate::service;
use crate::store::ops::{Filter, Ops};
use crate::verify::{self, Lateness};

/// The names are relied on by other programs.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Everything adds up.
    pub ok: bool,
    /// Repeats the same fates.
    pub seed: u64,
    /// Placed.
    pub orders: usize,
    /// Paid well in time.
    pub paid: usize,
    /// Paid in the last moment.
    pub paid_last_moment: usize,
    /// Sagas completed: order cancelled, stock back.
    pub cancelled: usize,
    /// Sagas that met a paid order.
    pub skipped_paid: usize,
    /// Sagas whose stock step failed for good: undone.
    pub compensated: usize,
    /// Alerts that are open.
    pub alerts: usize,
    /// `available_before = available_after + sold + still_held`.
    pub stock: Stock,
    /// How late orders were cancelled.
    pub lateness_ms: Lateness,
    /// From the start of the program to the first order seen cancelled.
    pub first_cancelled_ms: Option<u128>,
    /// Every check.
    pub verify: verify::Report,
}

/// Sums over all units, of this run alone.
#[derive(Debug, Serialize)]
pub struct Stock {
    /// Free before the first order.
    pub available_before: Decimal,
    /// Free at the end.
    pub available_after: Decimal,
    /// Paid for in this run.
    pub sold: Decimal,
    /// Taken in this run and neither sold nor given back: the compensated order's.
    pub still_held: Decimal,
}

/// Counts.
pub(super) async fn make(config: &Config, seed: u64, tally: Tally) -> anyhow::Result<Report> {
    let ops = Ops::new(service::database(config)?);
    let ours: HashSet<&String> = tally.orders.iter().collect();
    let mut states: BTreeMap<String, usize> = BTreeMap::new();
    for saga in ops
        .list(Filter {
            limit: 1_000,
            ..Filter::default()
        })
        .await?
    {
        if ours.contains(&saga.order_id) {
            *states.entry(saga.state).or_default() += 1;
        }
    }
    let of = |state: &str| states.get(state).copied().unwrap_or_default();
    let after = Shop::new(service::shop_database(config)?)
        .totals()
        .await
        .context("count the stock")?;
    let stock = Stock {
        available_before: tally.stock_before.available,
        available_after: after.available,
        sold: after.sold - tally.stock_before.sold,
        still_held: after.held - tally.stock_before.held,
    };
    let verify = verify::run(config, &Bounds::default()).await?;
    let mut report = Report {
        ok: false,
        seed,
        orders: tally.orders.len(),
        paid: tally.paid,
        paid_last_moment: tally.paid_last_moment,
        cancelled: of("completed"),
        skipped_paid: of("skipped"),
        compensated: of("compensated"),
        alerts: ops.open_alerts().await?.len(),
        stock,
        lateness_ms: verify.lateness_ms,
        first_cancelled_ms: tally.first_cancelled_ms,
        verify,
    };
    report.ok = report.adds_up();
    Ok(report)
}

impl Report {
    fn adds_up(&self) -> bool {
        self.verify.ok
            && self.orders == self.cancelled + self.skipped_paid + self.compensated
            && self.skipped_paid == self.paid + self.paid_last_moment
            && self.stock.available_before
                == self.stock.available_after + self.stock.sold + self.stock.still_held
            && self.compensated == 1
            && self.alerts >= 1
            && self.first_cancelled_ms.is_some()
    }

    /// The table at the end.
    pub fn words(&self) -> String {
        let ms =
            |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.0} ms"));
        let Lateness { p50, p99, max } = self.lateness_ms;
        let rows = [
            ("orders placed", self.orders.to_string()),
            ("paid in time", self.paid.to_string()),
            ("paid in the last moment", self.paid_last_moment.to_string()),
            ("cancelled, stock given back", self.cancelled.to_string()),
            ("left alone, because paid", self.skipped_paid.to_string()),
            ("undone after four failures", self.compensated.to_string()),
            ("open alerts", self.alerts.to_string()),
            ("stock before", self.stock.available_before.to_string()),
            (
                "stock after + sold + held",
                format!(
                    "{} + {} + {}",
                    self.stock.available_after, self.stock.sold, self.stock.still_held
                ),
            ),
            (
                "late: median, p99, max",
                format!("{}, {}, {}", ms(p50), ms(p99), ms(max)),
            ),
            (
                "verify",
                format!(
                    "{} checks, {} violations",
                    self.verify.checks.len(),
                    self.verify.violations
                ),
            ),
            (
                "everything adds up",
                if self.ok { "yes" } else { "NO" }.to_owned(),
            ),
        ];
        rows.iter()
            .map(|(name, value)| format!("  {name:<30}{value}"))
            .collect::<Vec<_>>()
            .join("\n")
    }
}
