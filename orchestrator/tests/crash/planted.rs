//! The test of the test: two bugs on purpose, each with its second net taken away, and the same without the bug.
//!
//! Relies on the feature `planted` of the binary under test. Never: lets the scenario itself be what fails; each is run
//! without its bug too, and must then be clean.

use std::time::Duration;

use anyhow::{Context, ensure};
use chrono::{SubsecRound, TimeDelta};
use lapse_participants::fault::Answer;
use lapse_participants::shop::{Line, NewOrder};
use lapse_participants::stock::StockKey;
use rdkafka::producer::FutureRecord;
use rdkafka::util::Timeout;
use rust_decimal::Decimal;
use serde_json::Value;

use crate::load::{now, order_ref};
use crate::rig::{Participants, Rig, until};
use crate::services::Services;

const ORDERS: usize = 40;
const LIMIT: Duration = Duration::from_secs(120);

/// What the checker said.
pub struct Verdict {
    ok: bool,
    report: Value,
}

impl Verdict {
    /// It found nothing.
    pub fn ensure_clean(&self) -> anyhow::Result<()> {
        ensure!(
            self.ok && self.report["violations"] == 0,
            "without the bug it is not clean: {:#}",
            self.report
        );
        Ok(())
    }

    /// It found this, among others.
    pub fn ensure_finds(&self, id: &str) -> anyhow::Result<()> {
        let checks = self.report["checks"].as_array().context("checks")?;
        let broken: Vec<&str> = checks
            .iter()
            .filter(|check| check["ok"] == false)
            .filter_map(|check| check["id"].as_str())
            .collect();
        println!("with the bug the checker finds: {broken:?}");
        ensure!(
            !self.ok && broken.contains(&id),
            "the bug is there and {id} does not show it: {:#}",
            self.report
        );
        Ok(())
    }
}

/// A coordinator is stopped in the middle of calls, another one takes over and finishes, the first one wakes up and
/// records what it thinks. Nothing but the fence keeps its record out: the key of the history is dropped.
pub async fn late_writer(services: &Services, plant: Option<&str>) -> anyhow::Result<Verdict> {
    let rig = {
        let name = plant.map_or("fenced", |_| "unfenced");
        Rig::build(services, name, Participants::InProcess, &[]).await?
    };
    rig.drop_history_key().await?;
    let mut a = rig.coordinator("a", plant)?;
    a.start()?;
    a.ready().await?;

    let ids = place(&rig, TimeDelta::seconds(3)).await?;
    for id in &ids {
        rig.shop
            .set_fault(&order_ref(id), "CancelOrder", Answer::Hang, 1)
            .await?;
    }
    produce(&rig, &ids).await?;
    // Only `a` runs, so a fault that is used up is a call of `a` that is under way and gets no answer.
    count_is(
        &rig,
        "select count(*) from shop.fault where remaining = 0",
        |n| n > 0,
    )
    .await?;
    a.stop().await?;

    let mut b = rig.coordinator("b", plant)?;
    b.start()?;
    all_cancelled_and_at_rest(&rig).await?;

    a.go_on().await?;
    let idle = || async { (a.metric("lapse_sagas_held").await.ok()? == 0.0).then_some(()) };
    until("a has recorded what it held", LIMIT, idle).await?;
    all_cancelled_and_at_rest(&rig).await?;
    a.drain().await?;
    b.drain().await?;
    verdict(&rig).await
}

/// Both coordinators are killed while every order waits in a window. Nothing but the offsets brings them back: the sweep
/// is off.
pub async fn lost_windows(services: &Services, plant: Option<&str>) -> anyhow::Result<Verdict> {
    let name = plant.map_or("late-commits", |_| "early-commits");
    let rig = {
        let no_sweep = [("LAPSE__SWEEP__ENABLED", "false")];
        Rig::build(services, name, Participants::InProcess, &no_sweep).await?
    };
    let (mut a, mut b) = (rig.coordinator("a", plant)?, rig.coordinator("b", plant)?);
    a.start()?;
    b.start()?;
    tokio::try_join!(a.ready(), b.ready())?;

    let ids = place(&rig, TimeDelta::seconds(25)).await?;
    produce(&rig, &ids).await?;
    let waiting = || async {
        let windows = a.metric("lapse_timer_window_records").await.ok()?
            + b.metric("lapse_timer_window_records").await.ok()?;
        (windows as usize == ORDERS).then_some(())
    };
    until("every order waits in a window", LIMIT, waiting).await?;
    if plant.is_some() {
        let committed = || async { rig.not_done().await.ok()?.is_empty().then_some(()) };
        until("their offsets are committed already", LIMIT, committed).await?;
    }
    tokio::try_join!(a.kill(), b.kill())?;

    a.start()?;
    b.start()?;
    tokio::try_join!(a.ready(), b.ready())?;
    if plant.is_some() {
        let overdue =
            "select count(*) from shop.orders where due_at + interval '31 s' > clock_timestamp()";
        count_is(&rig, overdue, |n| n == 0).await?;
    } else {
        all_cancelled_and_at_rest(&rig).await?;
    }
    tokio::try_join!(a.drain(), b.drain())?;
    verdict(&rig).await
}

async fn verdict(rig: &Rig) -> anyhow::Result<Verdict> {
    let late_after = Duration::from_secs(120);
    let (ok, report) = rig.verify(late_after).await?;
    Ok(Verdict { ok, report })
}

/// Orders that nobody will pay.
async fn place(rig: &Rig, pay_within: TimeDelta) -> anyhow::Result<Vec<String>> {
    let (sku, warehouse) = ("MUG-BLUE", "lille");
    let key = StockKey {
        sku: sku.to_owned(),
        warehouse: warehouse.to_owned(),
    };
    rig.shop
        .stock_up_many(&[(key, Decimal::from(ORDERS as u64))])
        .await?;
    let line = Line {
        sku: sku.to_owned(),
        warehouse: warehouse.to_owned(),
        quantity: Decimal::ONE,
    };
    let deadline = (now() + pay_within).trunc_subsecs(3);
    let orders: Vec<NewOrder> = (0..ORDERS)
        .map(|n| NewOrder {
            order_id: Some(format!("o-{n:06}")),
            ..NewOrder::new("normal", vec![line.clone()], deadline)
        })
        .collect();
    let placed = rig.shop.place_many(&orders).await?;
    let ids = placed
        .into_iter()
        .map(|placed| Ok(placed.map_err(anyhow::Error::from)?.order.order_id));
    ids.collect()
}

async fn produce(rig: &Rig, ids: &[String]) -> anyhow::Result<()> {
    let producer = rig.producer()?;
    let topic = rig.topic("schedule");
    let rows = rig.shop.claim_outbox(ORDERS as u32).await?;
    ensure!(rows.len() == ids.len(), "every order has its event");
    for row in &rows {
        let record = FutureRecord::to(&topic).key(&row.key).payload(&row.payload);
        let sent = producer.send(record, Timeout::Never).await;
        sent.map_err(|(error, _)| error)
            .context("produce an event")?;
    }
    let produced: Vec<i64> = rows.iter().map(|row| row.outbox_id).collect();
    rig.shop.delete_outbox(&produced).await?;
    Ok(())
}

async fn all_cancelled_and_at_rest(rig: &Rig) -> anyhow::Result<()> {
    count_is(
        rig,
        "select count(*) from shop.orders where status <> 'cancelled'",
        |n| n == 0,
    )
    .await?;
    count_is(
        rig,
        "select count(*) from lapse.saga where wake_at is not null",
        |n| n == 0,
    )
    .await
}

async fn count_is(rig: &Rig, query: &'static str, holds: fn(i64) -> bool) -> anyhow::Result<()> {
    let condition = || async { holds(rig.count(query).await.ok()?).then_some(()) };
    until(query, LIMIT, condition).await
}
