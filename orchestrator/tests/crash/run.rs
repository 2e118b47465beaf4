//! The run: load and faults side by side until everything is at rest, then the count.
//!
//! Relies on G7's words for what may be called late: 30 s through the loss of any coordinator or of Kafka, and as much
//! longer as Postgres was away. Never: waits for a time where there is a condition to wait for.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use lapse_participants::shop::PayOutcome;

use crate::check::{self, Order};
use crate::faults::{self, Outage, Planned, Victims};
use crate::load::{Load, Tally, now};
use crate::orders::{self, Fate, Plan, Route};
use crate::process::Process;
use crate::report::{Counts, Report};
use crate::rig::{NotDone, Participants, Rig, until};
use crate::services::{NAME, Services, target};

/// Guarantee G7, through the loss of any coordinator or of Kafka.
const LATE_AFTER: Duration = Duration::from_secs(30);
/// Outages with a shorter pause between them count as one.
const CLOSELY: Duration = Duration::from_secs(10);
/// After the last deadline, the last payment and the last fault.
const AT_REST_WITHIN: Duration = Duration::from_secs(120);
const TELL_EVERY: Duration = Duration::from_secs(5);
/// Between two faults at least, where one took longer than planned.
const PAUSE: Duration = Duration::from_secs(3);
/// The most that the full run places in a second; more orders take more rounds of faults.
const ORDERS_PER_S: usize = 400;
const SHORT_ORDERS: usize = 600;

/// How much.
pub struct Size {
    orders: usize,
    seed: u64,
    placing: Duration,
    longest: Duration,
    participants: Participants,
    faults: Vec<Planned>,
    result: PathBuf,
}

impl Size {
    /// `ORDERS`, `SEED` and `PARTICIPANTS`; without `ORDERS` it is the short run, whose result does not touch that of the
    /// full one.
    pub fn from_environment() -> anyhow::Result<Size> {
        let (participants, seed) = (Participants::from_environment()?, seed()?);
        Ok(match number("ORDERS")? {
            Some(orders) => Size::full(usize::try_from(orders)?.max(100), seed, participants),
            None => Size::short(seed, participants),
        })
    }

    /// A run of a minute.
    pub fn short(seed: u64, participants: Participants) -> Size {
        Size {
            orders: SHORT_ORDERS,
            seed,
            placing: Duration::from_secs(45),
            longest: Duration::from_secs(16),
            participants,
            faults: faults::short(seed, participants),
            result: target()
                .join(NAME)
                .join(format!("short-{}.json", participants.name())),
        }
    }

    fn full(orders: usize, seed: u64, participants: Participants) -> Size {
        let a_round = Duration::from_secs(240);
        let placing = a_round.max(Duration::from_secs((orders / ORDERS_PER_S) as u64));
        let rounds = placing.as_secs().div_ceil(faults::ROUND.as_secs()) as u32;
        Size {
            orders,
            seed,
            placing,
            longest: Duration::from_secs(60),
            participants,
            faults: faults::full(seed, rounds, participants),
            result: target().join("crash.json"),
        }
    }
}

/// `SEED`, or any.
pub fn seed() -> anyhow::Result<u64> {
    Ok(number("SEED")?.unwrap_or_else(|| fastrand::u64(0..1_000_000)))
}

fn number(name: &str) -> anyhow::Result<Option<u64>> {
    match std::env::var(name) {
        Ok(text) if !text.is_empty() => {
            let number = text.parse();
            let number = number.with_context(|| format!("{name}={text} is not a whole number"))?;
            Ok(Some(number))
        }
        _ => Ok(None),
    }
}

/// Runs, counts, writes the result.
pub async fn run(services: &Services, size: &Size) -> anyhow::Result<Report> {
    let plans = orders::plan(size.seed, size.orders, size.placing, size.longest);
    let rig = Rig::build(services, size.participants.name(), size.participants, &[]).await?;
    println!(
        "SEED={} ORDERS={}  participants {:?}, {} faults, {} s of placing, logs in {}",
        size.seed,
        size.orders,
        size.participants,
        size.faults.len(),
        size.placing.as_secs(),
        rig.directory.display()
    );
    let mut shops = rig.shop_servers();
    for shop in &mut shops {
        shop.start()?;
    }
    for shop in &mut shops {
        shop.ready().await?;
    }
    let mut coordinators = [rig.coordinator("a", None)?, rig.coordinator("b", None)?];
    for coordinator in &mut coordinators {
        coordinator.start()?;
    }
    for coordinator in &mut coordinators {
        coordinator.ready().await?;
    }

    let load = Load::new(&rig, &plans)?;
    load.stock_up().await?;
    let (began, began_at) = (Instant::now(), now());
    let bring_on = bring_on(services, &mut coordinators, &mut shops, &size.faults, began);
    let work = async { tokio::try_join!(load.run(), bring_on).map(|((), outages)| outages) };
    let outages = tokio::select! {
        outages = work => outages?,
        never = tell(&rig, &load, began) => never,
    };
    let at_rest = at_rest(&rig, &load, began, &mut coordinators).await?;
    let [a, b] = &mut coordinators;
    let (a, b) = tokio::try_join!(a.drain(), b.drain())?;
    for shop in &mut shops {
        shop.drain().await?;
    }

    let late_after = late_after(&outages, size.participants);
    let (verified, verify) = rig.verify(late_after).await?;
    let orders = check::orders(&rig).await?;
    let tally = load.tally();
    let checks = check::all(&rig, &plans, &tally).await?;
    let counts = counts(&plans, &orders, &tally);
    let last_due_at = check::last_due_at(&orders).unwrap_or(began_at);
    let mut report = Report {
        ok: false,
        seed: size.seed,
        orders: plans.len(),
        participants: size.participants,
        faults: counted(&outages),
        never_happened: never_happened(&verify, &counts),
        verify,
        checks,
        counts,
        lateness_ms: check::lateness(&orders, &outages, began_at),
        outages,
        late_after_s: late_after.as_secs(),
        orders_per_s: size.orders as f64 / size.placing.as_secs_f64(),
        cancelled_in_the_busiest_second: check::busiest_second(&orders),
        at_rest_after_ms: (at_rest - last_due_at)
            .to_std()
            .unwrap_or_default()
            .as_millis(),
        drained_ms: [a.as_millis(), b.as_millis()],
        took_s: began.elapsed().as_secs(),
        logs: rig.directory.display().to_string(),
    };
    report.ok =
        verified && report.checks.iter().all(|check| check.ok) && report.never_happened.is_empty();
    report.write(&size.result)?;
    println!("\n{}\n\nresult: {}", report.words(), size.result.display());
    Ok(report)
}

/// One fault after the other.
async fn bring_on(
    services: &Services,
    coordinators: &mut [Process; 2],
    shops: &mut [Process],
    faults: &[Planned],
    began: Instant,
) -> anyhow::Result<Vec<Outage>> {
    let mut victims = Victims {
        services,
        coordinators,
        shops,
    };
    let mut outages = Vec::new();
    for fault in faults {
        let at = (began + fault.at).max(Instant::now() + PAUSE);
        tokio::time::sleep_until(at.into()).await;
        println!("{:>5} s  {:?} …", began.elapsed().as_secs(), fault.kind);
        let outage = victims
            .suffer(fault, began)
            .await
            .with_context(|| format!("during {:?}", fault.kind))?;
        println!(
            "{:>5} s  {:?} over after {:.1} s",
            began.elapsed().as_secs(),
            fault.kind,
            outage.lasted_ms as f64 / 1_000.0
        );
        for process in victims.coordinators.iter_mut().chain(&mut *victims.shops) {
            process.still_runs()?;
        }
        outages.push(outage);
    }
    Ok(outages)
}

/// A line every few seconds, for ever.
async fn tell(rig: &Rig, load: &Load<'_>, began: Instant) -> Vec<Outage> {
    loop {
        tokio::time::sleep(TELL_EVERY).await;
        tell_once(rig, load, began).await;
    }
}

async fn tell_once(rig: &Rig, load: &Load<'_>, began: Instant) {
    let cancelled = rig
        .count("select count(*) from shop.orders where status = 'cancelled'")
        .await;
    let live = rig
        .count("select count(*) from lapse.saga where wake_at is not null")
        .await;
    let rest = match (cancelled, live) {
        (Ok(cancelled), Ok(live)) => format!("cancelled {cancelled:>6}  live sagas {live:>5}"),
        _ => "Postgres does not answer".to_owned(),
    };
    let not_done = match tokio::time::timeout(TELL_EVERY / 2, rig.not_done()).await {
        Ok(Ok(places)) => {
            let records: i64 = places.iter().map(NotDone::records).sum();
            format!("records not done {records:>5}")
        }
        _ => "Kafka does not answer".to_owned(),
    };
    println!(
        "{:>5} s  {}  {rest}  {not_done}",
        began.elapsed().as_secs(),
        load.progress()
    );
}

/// Until every order has its end, every saga too, every message has left, and every record is done with; when that was.
async fn at_rest(
    rig: &Rig,
    load: &Load<'_>,
    began: Instant,
    coordinators: &mut [Process; 2],
) -> anyhow::Result<lapse_sagas::Timestamp> {
    // In the order in which they empty.
    let still_there = [
        "select count(*) from shop.orders where status = 'awaiting_payment' and not needs_attention",
        "select count(*) from lapse.saga where wake_at is not null",
        "select count(*) from lapse.outbox",
    ];
    for query in still_there {
        let empty = || async { (rig.count(query).await.ok()? == 0).then_some(()) };
        let waited = until(query, AT_REST_WITHIN, empty);
        tokio::select! {
            waited = waited => waited?,
            _ = tell(rig, load, began) => {}
        }
    }
    let at = now();
    let done = || async { rig.not_done().await.ok()?.is_empty().then_some(()) };
    if let Err(error) = until("every record is done with", AT_REST_WITHIN, done).await {
        return Err(error.context(format!("{:#?}", rig.not_done().await)));
    }
    for coordinator in coordinators {
        coordinator.still_runs()?;
    }
    Ok(at)
}

/// As late as promised, and the time that nobody could have done anything in. Outages that follow each other closely are
/// one: in the pause there is hardly time to find out that the first is over.
fn late_after(outages: &[Outage], participants: Participants) -> Duration {
    let mut longest_ms = 0;
    let mut current: Option<(u128, u128)> = None;
    for outage in outages {
        if !outage.kind.stops_orders(participants) {
            continue;
        }
        let end = outage.began_ms + outage.lasted_ms;
        let began = match current {
            Some((began, ended)) if outage.began_ms < ended + CLOSELY.as_millis() => began,
            _ => outage.began_ms,
        };
        current = Some((began, end));
        longest_ms = longest_ms.max(end - began);
    }
    let away = Duration::from_secs(u64::try_from(longest_ms.div_ceil(1_000)).unwrap_or(0));
    LATE_AFTER + away
}

fn counted(outages: &[Outage]) -> BTreeMap<faults::Kind, usize> {
    let mut counted = BTreeMap::new();
    for outage in outages {
        *counted.entry(outage.kind).or_default() += 1;
    }
    counted
}

/// A run in which these did not occur has shown little. A short one can do without a close race.
fn never_happened(verify: &serde_json::Value, counts: &Counts) -> Vec<&'static str> {
    let counter = |name: &str| verify["counts"][name].as_i64().unwrap_or(0);
    let is_long = counts.paid + counts.cancelled > 10 * SHORT_ORDERS;
    let happened = [
        ("a duplicate record", counter("duplicate") > 0),
        ("a dead letter", counter("dead_letter") > 0),
        ("a saga of a paid order", counter("skipped") > 0),
        ("a completed saga", counter("completed") > 0),
        ("an event forgotten", counts.events_forgotten > 0),
        (
            "a race at the deadline won by the buyer",
            !is_long || counts.paid_at_the_deadline > 0,
        ),
        (
            "a race at the deadline lost by the buyer",
            !is_long || counts.refused_at_the_deadline > 0,
        ),
    ];
    happened
        .into_iter()
        .filter(|(_, happened)| !happened)
        .map(|(what, _)| what)
        .collect()
}

fn counts(plans: &[Plan], orders: &BTreeMap<usize, Order>, tally: &Tally) -> Counts {
    let with = |status: &str| {
        orders
            .values()
            .filter(|order| order.status == status)
            .count()
    };
    let at_the_deadline = |wanted: &[PayOutcome]| {
        let fits = |(n, outcome): &&(usize, PayOutcome)| {
            matches!(plans[*n].fate, Fate::PaysAtTheDeadline(_)) && wanted.contains(outcome)
        };
        tally.payments.iter().filter(fits).count()
    };
    let refused = |(_, outcome): &&(usize, PayOutcome)| *outcome == PayOutcome::OrderCancelled;
    Counts {
        paid: with("paid"),
        cancelled: with("cancelled"),
        left_to_a_human: with("awaiting_payment"),
        paid_at_the_deadline: at_the_deadline(&[PayOutcome::Paid, PayOutcome::AlreadyPaid]),
        refused_at_the_deadline: at_the_deadline(&[PayOutcome::OrderCancelled]),
        refused: tally.payments.iter().filter(refused).count(),
        records: tally.records,
        records_doubled: plans.iter().filter(|plan| plan.doubled).count(),
        events_forgotten: plans
            .iter()
            .filter(|plan| plan.route == Route::Lost)
            .count(),
        malformed: tally.malformed.len(),
        repeated_calls: tally.repeated,
        longest_call_ms: tally.longest_call.as_millis(),
    }
}
