//! What `lapse dev --once` ends with: the counts, and whether they add up.
//!
//! Relies on the shop's tables for orders and stock and on the coordinator's for sagas and alerts, so that one side
//! checks the other. Never: counts what the stream only intended.

use std::collections::{BTreeMap, HashSet};

use anyhow::Context;
use lapse_participants::audit::Bounds;
use lapse_participants::shop::{OrderRef, Shop};
use rust_decimal::Decimal;
use serde::Serialize;

use super::stream::{Tally, order_ref};
use crate::config::Config;
use crate::service;
use crate::store::ops::{Filter, Find, Ops};
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
    /// Open alerts that sagas of this run have joined.
    pub alerts: usize,
    /// `available_before = available_after + sold + still_held + taken_by_others`.
    pub stock: Stock,
    /// How late orders were cancelled.
    pub lateness_ms: Lateness,
    /// From the start of the program to the first order seen cancelled.
    pub first_cancelled_ms: Option<u128>,
    /// Every check.
    pub verify: verify::Report,
}

/// Sums over all units.
#[derive(Debug, Serialize)]
pub struct Stock {
    /// Free before the first order.
    pub available_before: Decimal,
    /// Free at the end.
    pub available_after: Decimal,
    /// Paid for by this run's orders.
    pub sold: Decimal,
    /// Taken by this run's orders and neither sold nor given back: the compensated order's.
    pub still_held: Decimal,
    /// Sold to or held by other orders, less what they gave back meanwhile; 0 if nobody else was there.
    pub taken_by_others: Decimal,
}

/// Counts, this run's orders alone.
pub(super) async fn make(config: &Config, seed: u64, tally: Tally) -> anyhow::Result<Report> {
    let ops = Ops::new(service::database(config)?);
    let shop = Shop::new(service::shop_database(config)?);
    let states = count_states(&ops, &tally.orders).await?;
    let of = |state: &str| states.get(state).copied().unwrap_or_default();
    let alerts = count_open_alerts(&ops, &tally.orders).await?;
    let stock = count_stock(&shop, &tally)
        .await
        .context("count the stock")?;
    let bounds = Bounds {
        since: tally.since,
        ..Bounds::default()
    };
    let verify = verify::run(config, &bounds).await?;
    let mut report = Report {
        ok: false,
        seed,
        orders: tally.orders.len(),
        paid: tally.paid,
        paid_last_moment: tally.paid_last_moment,
        cancelled: of("completed"),
        skipped_paid: of("skipped"),
        compensated: of("compensated"),
        alerts,
        stock,
        lateness_ms: verify.lateness_ms,
        first_cancelled_ms: tally.first_cancelled_ms,
        verify,
    };
    report.ok = report.adds_up();
    Ok(report)
}

async fn count_states(ops: &Ops, orders: &[String]) -> anyhow::Result<BTreeMap<String, usize>> {
    let ours: HashSet<&String> = orders.iter().collect();
    let newest = Filter {
        limit: 1_000,
        ..Filter::default()
    };
    let mut states = BTreeMap::new();
    for saga in ops.list(newest).await? {
        if ours.contains(&saga.order_id) {
            *states.entry(saga.state).or_default() += 1;
        }
    }
    Ok(states)
}

/// An alert that an earlier run opened is this run's too once one of its sagas has joined it.
async fn count_open_alerts(ops: &Ops, orders: &[String]) -> anyhow::Result<usize> {
    let mut open = HashSet::new();
    for order in orders {
        let OrderRef { tenant, order_id } = order_ref(order);
        let story = ops.show(Find::Order { tenant, order_id }).await?;
        let alerts = story.into_iter().flat_map(|story| story.alerts);
        open.extend(
            alerts
                .filter(|alert| alert.state == "open")
                .map(|alert| alert.fingerprint),
        );
    }
    Ok(open.len())
}

async fn count_stock(shop: &Shop, tally: &Tally) -> anyhow::Result<Stock> {
    let (mut sold, mut held) = (Decimal::ZERO, Decimal::ZERO);
    for order in &tally.orders {
        let view = shop.show(&order_ref(order)).await?;
        let view = view.with_context(|| format!("order {order} is gone"))?;
        for hold in view.holds {
            match hold.state.as_str() {
                "sold" => sold += hold.quantity,
                "open" => held += hold.quantity,
                _ => {}
            }
        }
    }
    let (before, after) = (&tally.stock_before, shop.totals().await?);
    Ok(Stock {
        available_before: before.available,
        available_after: after.available,
        sold,
        still_held: held,
        taken_by_others: (after.sold - before.sold - sold) + (after.held - before.held - held),
    })
}

impl Report {
    fn adds_up(&self) -> bool {
        self.verify.ok
            && self.orders == self.cancelled + self.skipped_paid + self.compensated
            && self.skipped_paid == self.paid + self.paid_last_moment
            && self.stock.available_before
                == self.stock.available_after
                    + self.stock.sold
                    + self.stock.still_held
                    + self.stock.taken_by_others
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
                "after + sold + held + others'",
                format!(
                    "{} + {} + {} + {}",
                    self.stock.available_after,
                    self.stock.sold,
                    self.stock.still_held,
                    self.stock.taken_by_others
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
