//! The stream of orders of `lapse dev`: placed, some paid, some left, one whose stock step fails; shown as it happens.
//!
//! Relies on the shop's outbox for its events and on `ops_v1` for what became of them. Never: cancels anything itself.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use chrono::TimeDelta;
use lapse_participants::fault::Answer;
use lapse_participants::shop::{Line, NewOrder, OrderRef, PayOutcome, Shop, Totals};
use lapse_participants::stock::StockKey;
use lapse_sagas::Timestamp;
use rust_decimal::Decimal;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::{Options, leftovers, say};
use crate::bus::Bus;
use crate::config::Config;
use crate::service;
use crate::shop_relay;
use crate::store::Store;
use crate::store::ops::{Filter, Ops, SagaRow};
use crate::store::pg::PgStore;

/// Pause between two orders.
const PLACE_EVERY: Duration = Duration::from_millis(90);
/// Everything must have ended so long after the last order was placed: deadlines of 6 s, and 21 s of retries.
const SETTLE_WITHIN: Duration = Duration::from_secs(60);
const SKUS: [(&str, &str); 4] = [
    ("MUG-BLUE", "rotterdam"),
    ("MUG-BLUE", "lille"),
    ("TEA-ASSAM", "lille"),
    ("EARBUDS-2", "flash"),
];

/// What the stream has seen.
pub(super) struct Tally {
    /// Ids of the orders placed.
    pub orders: Vec<String>,
    /// Paid well in time.
    pub paid: usize,
    /// Paid in the last moment.
    pub paid_last_moment: usize,
    /// From the start of the program to the first order seen cancelled.
    pub first_cancelled_ms: Option<u128>,
    /// Before the first order.
    pub stock_before: Totals,
    /// By the database's clock: every order of this run was placed later, every order of an earlier one before.
    pub since: Timestamp,
}

/// What the buyer of an order does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Unpaid,
    PaidInTime,
    PaidInTheLastMoment,
    StockFails,
}

/// One order and its plan.
struct Planned {
    fate: Fate,
    pay_within: TimeDelta,
    lines: Vec<Line>,
    order_type: &'static str,
}

/// Places, pays, shows, until every saga is at rest.
pub(super) async fn run(
    config: &Config,
    bus: Arc<dyn Bus>,
    began: Instant,
    options: &Options,
) -> anyhow::Result<Tally> {
    let shop_database = service::shop_database(config)?;
    let shop = Shop::new(shop_database.clone());
    let db = service::database(config)?;
    let (store, ops) = (PgStore::new(db.clone()), Ops::new(db));
    let _relay = AbortOnDropHandle::new(tokio::spawn(relay(shop.clone(), bus)));
    leftovers::let_rest(&shop_database, &ops, began).await?;
    let since = store.now().await?;
    let supply: Vec<(StockKey, Decimal)> = SKUS
        .iter()
        .map(|(sku, place)| (key(sku, place), Decimal::from(options.orders * 4)))
        .collect();
    shop.stock_up_many(&supply)
        .await
        .context("put units in stock")?;
    let stock_before = shop.totals().await.context("count the stock")?;

    let mut random = fastrand::Rng::with_seed(options.seed);
    let mut buyers = tokio::task::JoinSet::new();
    let mut watch = Watch::new(ops, began);
    for n in 0..options.orders {
        let planned = plan(&mut random, n);
        let now = store.now().await?;
        let order_id = format!(
            "demo-{}-{n:03}",
            &Uuid::now_v7().simple().to_string()[8..12]
        );
        let order = NewOrder {
            order_id: Some(order_id.clone()),
            ..NewOrder::new(planned.order_type, planned.lines, now + planned.pay_within)
        };
        if planned.fate == Fate::StockFails {
            shop.set_fault(&order_ref(&order_id), "ReplenishStock", Answer::Failed, 4)
                .await?;
        }
        shop.place(&order)
            .await?
            .map_err(|refusal| anyhow::anyhow!("order {order_id} was refused: {refusal}"))?;
        watch.placed(&order_id, planned.fate);
        let pay_after = match planned.fate {
            Fate::PaidInTime => Some(planned.pay_within / 3),
            Fate::PaidInTheLastMoment => {
                Some(planned.pay_within - TimeDelta::milliseconds(random.i64(0..60)))
            }
            Fate::Unpaid | Fate::StockFails => None,
        };
        if let Some(pay_after) = pay_after {
            buyers.spawn(buy(
                shop.clone(),
                order_id,
                planned.fate,
                pay_after.to_std().unwrap_or_default(),
            ));
        }
        tokio::time::sleep(PLACE_EVERY).await;
        watch.look().await?;
    }
    watch.until_all_rest().await?;
    let (mut paid, mut paid_last_moment) = (0, 0);
    while let Some(bought) = buyers.join_next().await {
        match bought.context("a buyer")?? {
            (Fate::PaidInTime, PayOutcome::Paid) => paid += 1,
            (Fate::PaidInTheLastMoment, PayOutcome::Paid) => paid_last_moment += 1,
            _ => {}
        }
    }
    Ok(Tally {
        paid,
        paid_last_moment,
        first_cancelled_ms: watch.first_cancelled_ms,
        stock_before,
        since,
        orders: watch.placed.into_keys().collect(),
    })
}

fn plan(random: &mut fastrand::Rng, n: usize) -> Planned {
    let fate = match n {
        2 => Fate::StockFails,
        _ => match random.u32(0..100) {
            0..45 => Fate::Unpaid,
            45..88 => Fate::PaidInTime,
            _ => Fate::PaidInTheLastMoment,
        },
    };
    let line = |random: &mut fastrand::Rng| {
        let (sku, warehouse) = SKUS[random.usize(0..SKUS.len())];
        let quantity = if sku.starts_with("TEA") {
            Decimal::new(750, 3)
        } else {
            Decimal::from(random.u32(1..4))
        };
        Line {
            sku: sku.to_owned(),
            warehouse: warehouse.to_owned(),
            quantity,
        }
    };
    let lines = (0..random.usize(1..4)).map(|_| line(random)).collect();
    let order_type = ["normal", "delivery", "ticket", "flash"][random.usize(0..4)];
    Planned {
        fate,
        pay_within: TimeDelta::milliseconds(random.i64(1_500..6_000)),
        lines,
        order_type,
    }
}

async fn buy(
    shop: Shop,
    order_id: String,
    fate: Fate,
    after: Duration,
) -> anyhow::Result<(Fate, PayOutcome)> {
    tokio::time::sleep(after).await;
    let outcome = shop
        .pay(&order_ref(&order_id))
        .await
        .with_context(|| format!("pay order {order_id}"))?;
    Ok((fate, outcome))
}

async fn relay(shop: Shop, bus: Arc<dyn Bus>) {
    loop {
        if let Err(error) = shop_relay::round(&shop, bus.as_ref()).await {
            tracing::warn!(%error, "the shop's relay comes again");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Shows every saga of the stream when it comes to rest.
struct Watch {
    ops: Ops,
    began: Instant,
    placed: BTreeMap<String, Fate>,
    rested: HashSet<String>,
    first_cancelled_ms: Option<u128>,
}

impl Watch {
    fn new(ops: Ops, began: Instant) -> Watch {
        Watch {
            ops,
            began,
            placed: BTreeMap::new(),
            rested: HashSet::new(),
            first_cancelled_ms: None,
        }
    }

    fn placed(&mut self, order_id: &str, fate: Fate) {
        self.placed.insert(order_id.to_owned(), fate);
        let words = match fate {
            Fate::Unpaid => "will not be paid",
            Fate::PaidInTime => "will be paid in time",
            Fate::PaidInTheLastMoment => "will be paid in the last moment",
            Fate::StockFails => "will not be paid, and its stock step will fail four times",
        };
        say(self.began, &format!("order {order_id} placed; it {words}"));
    }

    async fn look(&mut self) -> anyhow::Result<()> {
        let sagas = self
            .ops
            .list(Filter {
                limit: 1_000,
                ..Filter::default()
            })
            .await?;
        for saga in sagas.iter().rev().filter(|saga| saga.finished_at.is_some()) {
            if self.placed.contains_key(&saga.order_id) && self.rested.insert(saga.order_id.clone())
            {
                self.show(saga);
            }
        }
        Ok(())
    }

    fn show(&mut self, saga: &SagaRow) {
        let late = saga.lateness_ms.unwrap_or_default();
        let words = match saga.state.as_str() {
            "completed" => {
                self.first_cancelled_ms
                    .get_or_insert(self.began.elapsed().as_millis());
                format!("cancelled and its stock is back, {late} ms after its deadline")
            }
            "skipped" => format!("left alone: {}", saga.reason.as_deref().unwrap_or_default()),
            "compensated" => "re-opened for a human, alert raised".to_owned(),
            other => other.to_owned(),
        };
        say(
            self.began,
            &format!(
                "order {} {words}  ({}/{})",
                saga.order_id,
                self.rested.len(),
                self.placed.len()
            ),
        );
    }

    async fn until_all_rest(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + SETTLE_WITHIN;
        while self.rested.len() < self.placed.len() {
            if Instant::now() > deadline {
                let missing: Vec<&String> = self
                    .placed
                    .keys()
                    .filter(|order| !self.rested.contains(*order))
                    .collect();
                bail!(
                    "{} orders have no end after {SETTLE_WITHIN:?}: {missing:?}",
                    missing.len()
                );
            }
            self.look().await?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }
}

pub(super) fn order_ref(order_id: &str) -> OrderRef {
    OrderRef {
        tenant: "default".to_owned(),
        order_id: order_id.to_owned(),
    }
}

fn key(sku: &str, warehouse: &str) -> StockKey {
    StockKey {
        sku: sku.to_owned(),
        warehouse: warehouse.to_owned(),
    }
}
