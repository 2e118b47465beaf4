//! What `lapse verify` can't know: what the buyers and the producer were told, compared with what is in the tables.
//!
//! Relies on the tally of the load. Never: looks before everything is at rest.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use lapse_participants::shop::PayOutcome;
use lapse_sagas::Timestamp;
use serde::Serialize;
use sqlx::FromRow;

use crate::faults::Outage;
use crate::load::Tally;
use crate::orders::{Fate, Plan, Route, number};
use crate::rig::Rig;

/// Timers are allowed to be late so long after a fault is over: a session that has to run out, a group that has to be
/// joined again, and a backlog.
const AFTERMATH: Duration = Duration::from_secs(20);

/// One check, as `lapse verify` writes its own.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    pub id: &'static str,
    pub ok: bool,
    pub checked: usize,
    pub violations: usize,
    /// The first 20.
    pub rows: Vec<String>,
}

impl Check {
    fn new(id: &'static str, checked: usize, mut rows: Vec<String>) -> Check {
        let violations = rows.len();
        rows.truncate(20);
        Check {
            id,
            ok: violations == 0,
            checked,
            violations,
            rows,
        }
    }
}

/// An order at the end.
#[derive(Clone, Debug, FromRow)]
pub struct Order {
    #[sqlx(skip)]
    has_saga: bool,
    order_id: String,
    pub status: String,
    needs_attention: bool,
    due_at: Timestamp,
    placed_at: Timestamp,
    cancelled_at: Option<Timestamp>,
    cancel_reason: Option<String>,
}

/// All orders, by number.
pub async fn orders(rig: &Rig) -> anyhow::Result<BTreeMap<usize, Order>> {
    let mut orders: Vec<Order> = sqlx::query_as(
        "select order_id, status, needs_attention, due_at, placed_at, cancelled_at, cancel_reason from shop.orders",
    )
    .fetch_all(&rig.shop_pool)
    .await?;
    let keys: Vec<String> = sqlx::query_scalar("select business_key from lapse.saga_key")
        .fetch_all(&rig.pool)
        .await?;
    let keys: HashSet<String> = keys.into_iter().collect();
    for order in &mut orders {
        order.has_saga = keys.contains(&order.order_id);
    }
    Ok(orders
        .into_iter()
        .filter_map(|order| Some((number(&order.order_id)?, order)))
        .collect())
}

/// Every check.
pub async fn all(rig: &Rig, plans: &[Plan], tally: &Tally) -> anyhow::Result<Vec<Check>> {
    let orders = orders(rig).await?;
    let letters: Vec<(String, String, i64)> = sqlx::query_as(
        "select coalesce(convert_from(key, 'UTF8'), ''), reason, count(*) from lapse.dead_letter group by 1, 2",
    )
    .fetch_all(&rig.pool)
    .await?;
    Ok(vec![
        every_order_is_there_and_at_its_end(plans, &orders),
        every_event_became_a_saga(tally, &orders),
        every_payment_is_as_it_was_answered(tally, &orders),
        every_forgotten_event_was_swept(plans, &orders),
        every_malformed_record_is_one_dead_letter(tally, &letters),
        nothing_else_is_a_dead_letter(tally, &letters),
    ])
}

fn every_order_is_there_and_at_its_end(plans: &[Plan], orders: &BTreeMap<usize, Order>) -> Check {
    let wrong = (0..plans.len()).filter_map(|n| match orders.get(&n) {
        None => Some(format!("order {n} is gone")),
        Some(order) if order.status != "awaiting_payment" || order.needs_attention => None,
        Some(order) => Some(format!("{order:?}")),
    });
    Check::new(
        "every_order_is_there_and_at_its_end",
        plans.len(),
        wrong.collect(),
    )
}

fn every_event_became_a_saga(tally: &Tally, orders: &BTreeMap<usize, Order>) -> Check {
    let produced: BTreeSet<usize> = tally.produced.iter().copied().collect();
    let wrong = produced
        .iter()
        .filter(|n| orders.get(n).is_none_or(|order| !order.has_saga))
        .map(|n| format!("the event of order {n} was confirmed and has no saga"));
    Check::new("every_event_became_a_saga", produced.len(), wrong.collect())
}

fn every_payment_is_as_it_was_answered(tally: &Tally, orders: &BTreeMap<usize, Order>) -> Check {
    let wrong = tally.payments.iter().filter_map(|(n, answer)| {
        let status = orders.get(n).map(|order| order.status.as_str());
        let right = match answer {
            PayOutcome::Paid | PayOutcome::AlreadyPaid => Some("paid"),
            PayOutcome::OrderCancelled => Some("cancelled"),
            PayOutcome::UnknownOrder => None,
        };
        (right.is_none() || status != right)
            .then(|| format!("the buyer of order {n} was told {answer:?}, it is {status:?}"))
    });
    let wrong = wrong.collect();
    Check::new(
        "every_payment_is_as_it_was_answered",
        tally.payments.len(),
        wrong,
    )
}

fn every_forgotten_event_was_swept(plans: &[Plan], orders: &BTreeMap<usize, Order>) -> Check {
    let forgotten = plans
        .iter()
        .enumerate()
        .filter(|(_, plan)| plan.route == Route::Lost && plan.fate == Fate::Unpaid);
    let wrong = forgotten.clone().filter_map(|(n, _)| {
        let reason = orders
            .get(&n)
            .and_then(|order| order.cancel_reason.as_deref());
        (reason != Some("sweep"))
            .then(|| format!("order {n} had no event and was ended by {reason:?}"))
    });
    let wrong = wrong.collect();
    Check::new("every_forgotten_event_was_swept", forgotten.count(), wrong)
}

fn every_malformed_record_is_one_dead_letter(
    tally: &Tally,
    letters: &[(String, String, i64)],
) -> Check {
    let wrong = tally.malformed.iter().filter_map(|key| {
        let n: i64 = letters
            .iter()
            .filter(|(of, _, _)| of == key)
            .map(|(_, _, n)| n)
            .sum();
        (n != 1).then(|| format!("{key} is in {n} dead letters"))
    });
    let wrong = wrong.collect();
    Check::new(
        "every_malformed_record_is_one_dead_letter",
        tally.malformed.len(),
        wrong,
    )
}

fn nothing_else_is_a_dead_letter(tally: &Tally, letters: &[(String, String, i64)]) -> Check {
    let wrong = letters
        .iter()
        .filter(|(key, _, _)| !tally.malformed.contains(key))
        .map(|(key, reason, n)| format!("{n} of {key:?}, for {reason}"));
    Check::new(
        "nothing_else_is_a_dead_letter",
        letters.len(),
        wrong.collect(),
    )
}

/// Milliseconds from due to cancelled.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Lateness {
    pub orders: usize,
    pub p50: Option<i64>,
    pub p99: Option<i64>,
    pub max: Option<i64>,
}

/// Of timers while nothing was wrong nor had just been, of timers otherwise, and of orders that only the sweep found.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Latenesses {
    pub fault_free: Lateness,
    pub around_faults: Lateness,
    pub swept: Lateness,
}

/// `began` is the start of the run, which outages count from.
pub fn lateness(
    orders: &BTreeMap<usize, Order>,
    outages: &[Outage],
    began: Timestamp,
) -> Latenesses {
    let (mut fault_free, mut around_faults, mut swept) = (Vec::new(), Vec::new(), Vec::new());
    for order in orders.values() {
        let Some(cancelled_at) = order.cancelled_at else {
            continue;
        };
        let due_at = order.due_at.max(order.placed_at);
        let late_ms = (cancelled_at - due_at).num_milliseconds();
        let due_ms = u128::try_from((due_at - began).num_milliseconds()).unwrap_or(0);
        if order.cancel_reason.as_deref() == Some("sweep") {
            swept.push(late_ms);
        } else if outages.iter().any(|outage| touches(outage, due_ms)) {
            around_faults.push(late_ms);
        } else {
            fault_free.push(late_ms);
        }
    }
    Latenesses {
        fault_free: summed_up(fault_free),
        around_faults: summed_up(around_faults),
        swept: summed_up(swept),
    }
}

fn touches(outage: &Outage, due_ms: u128) -> bool {
    // A timer that falls due a moment before a fault may still be under way.
    let from = outage.began_ms.saturating_sub(1_000);
    let to = outage.began_ms + outage.lasted_ms + AFTERMATH.as_millis();
    (from..to).contains(&due_ms)
}

fn summed_up(mut late_ms: Vec<i64>) -> Lateness {
    late_ms.sort_unstable();
    let at = |share: f64| {
        let last = late_ms.len().checked_sub(1)?;
        late_ms.get((last as f64 * share) as usize).copied()
    };
    Lateness {
        orders: late_ms.len(),
        p50: at(0.5),
        p99: at(0.99),
        max: at(1.0),
    }
}

/// Orders cancelled in the busiest second.
pub fn busiest_second(orders: &BTreeMap<usize, Order>) -> usize {
    let mut seconds: BTreeMap<i64, usize> = BTreeMap::new();
    for cancelled_at in orders.values().filter_map(|order| order.cancelled_at) {
        *seconds.entry(cancelled_at.timestamp()).or_default() += 1;
    }
    seconds.into_values().max().unwrap_or(0)
}

/// When the last order fell due.
pub fn last_due_at(orders: &BTreeMap<usize, Order>) -> Option<Timestamp> {
    orders.values().map(|order| order.due_at).max()
}
