//! `lapse bench`: how late orders are at a steady rate, on the Postgres and Kafka of the settings.
//!
//! Open loop: orders are placed at their times whatever happens to the earlier ones, each is due a few seconds later and
//! travels the whole way (schedule topic, window, intake, both steps, records). Relies on a database and topics of its
//! own, made and left behind under a name of this run. Never: prints a figure of a run that does not verify.

use std::time::Duration;

use anyhow::{Context, bail};
use chrono::TimeDelta;
use lapse_participants::audit::Bounds;
use lapse_participants::shop::{Line, NewOrder, Shop};
use lapse_participants::stock::StockKey;
use metrics_exporter_prometheus::PrometheusHandle;
use rust_decimal::Decimal;
use serde::Serialize;
use tokio::time::{Instant, MissedTickBehavior, interval};
use uuid::Uuid;

use crate::bus::Bus;
use crate::config::Config;
use crate::kafka::topics;
use crate::service::{self, Service};
use crate::shop_relay;
use crate::store::ops::Ops;
use crate::store::pg::PgStore;
use crate::store::{Store, schema};
use crate::verify;

/// Orders are due so long after they are placed.
const DUE_AFTER: TimeDelta = TimeDelta::seconds(3);
/// How often orders are placed.
const PLACE_EVERY: Duration = Duration::from_millis(50);
/// SKUs that the orders spread over.
const SKUS: usize = 1_000;
/// After the last deadline everything must be through within this.
const SETTLE_WITHIN: Duration = Duration::from_secs(60);

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Orders per second.
    pub rate: u32,
    /// For so long.
    pub seconds: u32,
}

/// The names are relied on by other programs.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Verified, and every order was through in time.
    pub ok: bool,
    /// Processors and memory.
    pub machine: String,
    /// Of Lapse and Postgres.
    pub versions: Versions,
    /// What it ran with.
    pub settings: Settings,
    /// One row per rate.
    pub lateness: Vec<Lateness>,
    /// Every check.
    pub verify: verify::Report,
}

/// What ran.
#[derive(Debug, Serialize)]
pub struct Versions {
    /// This program.
    pub lapse: &'static str,
    /// `server_version`.
    pub postgres: String,
}

/// What it ran with.
#[derive(Debug, Serialize)]
pub struct Settings {
    /// `per_step`: in-process participants, one call and one record per step and batch.
    pub case: &'static str,
    /// `unpaid_spread`: nothing is paid, and the orders spread over many SKUs.
    pub mix: &'static str,
    /// Connections that record.
    pub writers: u32,
    /// Commands per call at most.
    pub batch_max: usize,
    /// Whether Postgres waits for its disk.
    pub fsync: String,
}

/// From due time to the end of the completed saga, which is after the stock's commit.
#[derive(Debug, Serialize)]
pub struct Lateness {
    /// Orders per second.
    pub rate_per_s: u32,
    /// Measured.
    pub orders: i64,
    /// Median.
    pub p50_ms: i64,
    /// 99th percentile.
    pub p99_ms: i64,
    /// 99.9th percentile.
    pub p999_ms: i64,
    /// The latest.
    pub max_ms: i64,
    /// Cancelled before their due time, by the order owner's clock.
    pub early: i64,
}

/// Runs the plan.
///
/// # Errors
/// If something is not reachable, or orders are not through in time.
pub async fn run(
    mut config: Config,
    plan: Plan,
    metrics: PrometheusHandle,
) -> anyhow::Result<Report> {
    let name = format!("lapse_bench_{}", Uuid::now_v7().simple());
    config.postgres.url = schema::create_database(&config.postgres.url, &name)
        .await
        .context("create a database")?;
    config.kafka.prefix = format!("{name}.");
    config.kafka.group.clone_from(&name);
    config.http.listen.set_port(0);
    config.shop.enabled = true;
    config.shop.url = String::new();
    service::migrate(&config).await?;
    topics::create(&config.kafka_settings())
        .await
        .context("create the topics")?;
    let service = Service::start(&config, metrics).await?;
    let measured = measure(&config, service.bus().as_ref(), plan).await;
    service.stop().await;
    let lateness = measured?;
    let verify = verify::run(&config, &Bounds::default()).await?;
    let early = verify
        .checks
        .iter()
        .filter(|check| check.id == "early")
        .map(|check| check.violations)
        .sum();
    let ops = Ops::new(service::database(&config)?);
    let settings = ops.server_settings().await?;
    Ok(Report {
        ok: verify.ok,
        machine: machine(),
        versions: Versions {
            lapse: env!("CARGO_PKG_VERSION"),
            postgres: settings.version,
        },
        settings: Settings {
            case: "per_step",
            mix: "unpaid_spread",
            writers: config.postgres.writers,
            batch_max: config.executor.batch_max,
            fsync: settings.fsync,
        },
        lateness: vec![Lateness { early, ..lateness }],
        verify,
    })
}

async fn measure(config: &Config, bus: &dyn Bus, plan: Plan) -> anyhow::Result<Lateness> {
    let shop = Shop::new(service::shop_database(config)?);
    let db = service::database(config)?;
    let (store, ops) = (PgStore::new(db.clone()), Ops::new(db));
    until_ready(bus).await?;
    let supply: Vec<(StockKey, Decimal)> = (0..SKUS)
        .map(|n| (sku(n), Decimal::from(1_000_000)))
        .collect();
    shop.stock_up_many(&supply)
        .await
        .context("put units in stock")?;

    let total = u64::from(plan.rate) * u64::from(plan.seconds);
    let mut ticks = interval(PLACE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let began = Instant::now();
    let mut placed: u64 = 0;
    let mut random = fastrand::Rng::with_seed(1);
    while placed < total {
        ticks.tick().await;
        let wanted = (began.elapsed().as_millis() as u64 * u64::from(plan.rate) / 1_000).min(total);
        let now = store.now().await?;
        let orders: Vec<NewOrder> = (placed..wanted).map(|_| order(&mut random, now)).collect();
        placed = wanted;
        for outcome in shop.place_many(&orders).await.context("place orders")? {
            outcome.map_err(|refusal| anyhow::anyhow!("an order was refused: {refusal}"))?;
        }
        shop_relay::round(&shop, bus).await?;
    }
    until_through(&ops, i64::try_from(total)?).await?;
    let found = ops.lateness().await?;
    Ok(Lateness {
        rate_per_s: plan.rate,
        orders: found.sagas,
        p50_ms: found.p50_ms,
        p99_ms: found.p99_ms,
        p999_ms: found.p999_ms,
        max_ms: found.max_ms,
        early: 0,
    })
}

fn order(random: &mut fastrand::Rng, now: lapse_sagas::Timestamp) -> NewOrder {
    let lines = (0..random.usize(1..4))
        .map(|_| {
            let StockKey { sku, warehouse } = sku(random.usize(0..SKUS));
            Line {
                sku,
                warehouse,
                quantity: Decimal::ONE,
            }
        })
        .collect();
    let jitter = TimeDelta::microseconds(random.i64(0..50_000));
    NewOrder::new("normal", lines, now + DUE_AFTER + jitter)
}

fn sku(n: usize) -> StockKey {
    StockKey {
        sku: format!("SKU-{n:05}"),
        warehouse: "main".to_owned(),
    }
}

async fn until_ready(bus: &dyn Bus) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    while let Some(trouble) = bus.trouble() {
        if Instant::now() > deadline {
            bail!("no records are being received: {trouble}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

async fn until_through(ops: &Ops, orders: i64) -> anyhow::Result<()> {
    let deadline = Instant::now() + SETTLE_WITHIN;
    loop {
        let totals = ops.totals().await?;
        let completed: i64 = totals
            .iter()
            .filter(|total| total.counter == "completed")
            .map(|total| total.n)
            .sum();
        if completed >= orders {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!(
                "only {completed} of {orders} orders were through {SETTLE_WITHIN:?} after the last was placed"
            );
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory = memory
        .lines()
        .next()
        .unwrap_or_default()
        .trim_start_matches("MemTotal:")
        .trim()
        .to_owned();
    format!(
        "{cores} cores, {memory}, {} {}",
        std::env::consts::OS,
        std::env::consts::ARCH
    )
}
