//! A participant is away for a while, in each of the ways there are: hardly an attempt is burnt, nothing is undone, nobody
//! hammers it, people get one alert, and everything is through soon after it is back. Two coordinators, real Postgres,
//! the real shop behind a door that can be shut.
//!
//! `LAPSE_OUTAGE_SECONDS` and `LAPSE_OUTAGE_RATE` choose another size: 60 and 200 are the ones that are promised. Then
//! with `--nocapture` each line of figures is a measurement.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{TimeDelta, Utc};
use lapse::bus::MemoryBus;
use lapse::clock::{Anchored, Clock};
use lapse::config::Config;
use lapse::coordinator::{Coordinator, Parts};
use lapse::definitions::Definitions;
use lapse::executor::Participants;
use lapse::service;
use lapse::store::Store;
use lapse::store::ops::AlertRow;
use lapse::store::pg::PgStore;
use lapse::verify;
use lapse_participants::audit::Bounds;
use lapse_participants::kit::{CallError, Command, OrderOwner, Participant, Reply};
use lapse_participants::order::Orders;
use lapse_participants::stock::Stock;
use sqlx::Row;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::support::live::Live;
use crate::support::until;

const COORDINATORS: usize = 2;
/// What is usual is measured for so long before.
const BEFORE: Duration = Duration::from_secs(8);
/// Orders come for so long after it is back.
const AFTER: Duration = Duration::from_secs(5);
/// And then everything must be through within this, counted from its return.
const THROUGH_WITHIN: Duration = Duration::from_secs(60);
/// A call that hangs is noticed after the step's time-out, 5 s.
const NOTICED_WITHIN: Duration = Duration::from_secs(6);
const TICK: Duration = Duration::from_millis(100);
/// Pools and machines differ from one second to the next.
const CALLS_TOLERATED: f64 = 1.1;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_participant_that_refuses_connections_costs_no_attempt() {
    let seen = outage(Door::Refuses).await;
    assert_eq!(seen.burnt_sagas, 0, "nothing was applied: {seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_participant_that_hangs_costs_one_attempt_of_what_was_under_way() {
    let seen = outage(Door::Hangs).await;
    assert!(seen.burnt_sagas > 0, "somebody had to notice: {seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_participant_that_answers_503_costs_one_attempt_of_what_was_under_way() {
    outage(Door::Answers503).await;
}

/// What happens to a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Door {
    Open,
    Refuses,
    Hangs,
    Answers503,
}

/// The orders of the shop, behind a door.
struct Behind {
    orders: Orders,
    state: Arc<Mutex<State>>,
}

struct State {
    door: Door,
    calls: Vec<(Instant, usize)>,
}

#[async_trait]
impl Participant for Behind {
    async fn call(&self, operation: &str, commands: &[Command]) -> Result<Vec<Reply>, CallError> {
        let door = {
            let mut state = self.state.lock().unwrap();
            state.calls.push((Instant::now(), commands.len()));
            state.door
        };
        match door {
            Door::Open => self.orders.call(operation, commands).await,
            Door::Refuses => Err(CallError::Unreachable("connection refused".to_owned())),
            Door::Hangs => std::future::pending().await,
            Door::Answers503 => Err(CallError::unanswered("HTTP 503")),
        }
    }
}

/// What was seen of one outage.
#[derive(Debug)]
#[allow(dead_code, reason = "all of it is printed")]
struct Seen {
    door: Door,
    orders: usize,
    burnt_sagas: i64,
    burnt_most: i64,
    compensated: i64,
    calls_per_s_before: f64,
    calls_per_s_down: f64,
    calls_per_s_after: f64,
    commands_in_vain: usize,
    through_after_ms: u128,
    alerts: i32,
}

/// One at a time: each measures how often it calls.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

async fn outage(door: Door) -> Seen {
    let _alone = ALONE.lock().await;
    let rate = size("LAPSE_OUTAGE_RATE", 50);
    let down_for = Duration::from_secs(size("LAPSE_OUTAGE_SECONDS", 12));
    let mut live = Live::in_process().await;
    live.config.shop.connections = 8;
    live.config.postgres.readers = 4;
    live.shop
        .stock_up(
            crate::support::live::SKU,
            crate::support::live::WAREHOUSE,
            1_000_000.into(),
        )
        .await
        .unwrap();
    let state = Arc::new(Mutex::new(State {
        door: Door::Open,
        calls: Vec::new(),
    }));
    let rig = Rig::start(&live, &state).await;

    let mut placed = 0;
    let began = Instant::now();
    placed += rig.orders(&live, placed, rate, BEFORE).await;
    let gone_at = Instant::now();
    state.lock().unwrap().door = door;
    placed += rig.orders(&live, placed, rate, down_for).await;
    let told = until("people are told", NOTICED_WITHIN, || down_alert(&live)).await;
    assert_eq!((&*told.state, &*told.step), ("open", "orders"));
    state.lock().unwrap().door = Door::Open;
    let back_at = Instant::now();
    placed += rig.orders(&live, placed, rate, AFTER).await;
    let limit = THROUGH_WITHIN.saturating_sub(back_at.elapsed());
    until("everything is through", limit, || async {
        rig.bus.tick();
        (completed(&live).await? == placed as i64).then_some(())
    })
    .await;
    let through_after = back_at.elapsed();
    let alert = until("the alert is settled", Duration::from_secs(10), || async {
        down_alert(&live)
            .await
            .filter(|alert| alert.state == "resolved")
    })
    .await;

    let calls = state.lock().unwrap().calls.clone();
    let between = |from: Instant, to: Instant| {
        let own = calls.iter().filter(move |(at, _)| *at >= from && *at < to);
        let per_s = own.clone().count() as f64 / (to - from).as_secs_f64();
        (per_s, own.map(|(_, commands)| commands).sum::<usize>())
    };
    let (burnt_sagas, burnt_most) = burnt(&live).await;
    let seen = Seen {
        door,
        orders: placed,
        burnt_sagas,
        burnt_most,
        compensated: live.total("compensated").await,
        calls_per_s_before: between(began + Duration::from_secs(2), gone_at).0,
        calls_per_s_down: between(gone_at, back_at).0,
        calls_per_s_after: between(back_at, back_at + through_after).0,
        commands_in_vain: between(gone_at, back_at).1,
        through_after_ms: through_after.as_millis(),
        alerts: alert.sends,
    };
    println!("{seen:?}");
    let noticed_at = gone_at + NOTICED_WITHIN;
    let late = calls
        .iter()
        .filter(|(at, _)| *at >= noticed_at && *at < back_at);
    assert!(
        late.clone().all(|(_, commands)| *commands == 1),
        "only probes: {seen:?}"
    );
    let probes = (down_for.as_secs_f64() + 1.0) * COORDINATORS as f64;
    assert!(late.count() as f64 <= probes, "one a second: {seen:?}");
    assert_eq!((seen.compensated, seen.alerts), (0, 1), "{seen:?}");
    assert!(seen.burnt_most <= 1, "{seen:?}");
    let usual = seen.calls_per_s_before * CALLS_TOLERATED;
    assert!(seen.calls_per_s_down <= usual, "{seen:?}");
    assert!(
        seen.calls_per_s_after <= usual.max(5.0 * COORDINATORS as f64 + 2.0),
        "{seen:?}"
    );
    let bounds = Bounds {
        // That orders are late is what an outage costs.
        late_after: TimeDelta::hours(1),
        ..Bounds::default()
    };
    let report = verify::run(&live.config, &bounds).await.unwrap();
    let broken: Vec<_> = report.checks.iter().filter(|check| !check.ok).collect();
    assert!(report.ok, "violations: {broken:#?}");
    rig.stop().await;
    seen
}

fn size(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| text.parse().expect(variable))
}

/// None while the views have no connection to spare.
async fn completed(live: &Live) -> Option<i64> {
    let totals = live.ops.totals().await.ok()?;
    let own = totals.iter().filter(|total| total.counter == "completed");
    Some(own.map(|total| total.n).sum())
}

async fn down_alert(live: &Live) -> Option<AlertRow> {
    let mut alerts = live.ops.alerts().await.ok()?;
    assert!(alerts.len() <= 1, "one alert: {alerts:#?}");
    alerts.pop()
}

/// Sagas that burnt attempts, and how many at most.
async fn burnt(live: &Live) -> (i64, i64) {
    let row = sqlx::query(
        "select count(*), coalesce(max(n), 0) from (
           select saga_id, count(*) as n from ops_v1.saga_timeline
           where kind = 'timed_out' or (kind = 'replied' and detail ->> 'outcome' in ('unknown', 'failed'))
           group by saga_id) as burnt",
    )
    .fetch_one(&mut live.database().await)
    .await
    .unwrap();
    (row.get(0), row.get(1))
}

/// Coordinators over one database and one bus.
struct Rig {
    bus: Arc<MemoryBus>,
    clock: Arc<Anchored>,
    coordinators: Vec<Coordinator>,
}

impl Rig {
    async fn start(live: &Live, state: &Arc<Mutex<State>>) -> Rig {
        let store = own_store(&live.config);
        let shipped = service::load_definitions(&[]).unwrap();
        store.prepare_days().await.unwrap();
        store.deploy(&shipped).await.unwrap();
        let clock = Arc::new(Anchored::new(store.clone()).await.unwrap());
        let time = clock.clone();
        let bus = Arc::new(MemoryBus::new(Arc::new(move || time.now())));
        let mut coordinators = Vec::new();
        for _ in 0..COORDINATORS {
            let store = own_store(&live.config);
            let parts = Parts {
                store: store.clone(),
                bus: bus.clone(),
                clock: clock.clone(),
                definitions: Arc::new(Definitions::load(store).await.unwrap()),
                participants: participants(&live.config, state),
                webhooks: Vec::new(),
            };
            coordinators.push(Coordinator::start(parts, &live.config));
        }
        Rig {
            bus,
            clock,
            coordinators,
        }
    }

    /// Orders at a steady rate for so long; gives their number.
    async fn orders(&self, live: &Live, first: usize, rate: u64, time: Duration) -> usize {
        let total = (time.as_millis() as u64 * rate / 1_000) as usize;
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let began = Instant::now();
        let mut placed = 0;
        while placed < total {
            ticks.tick().await;
            self.clock.look().await.unwrap();
            let wanted = (began.elapsed().as_millis() as u64 * rate / 1_000) as usize;
            let wanted = wanted.min(total);
            let ids: Vec<String> = (placed..wanted)
                .map(|n| format!("o{}", first + n))
                .collect();
            placed = wanted;
            let due_at = Utc::now() + TimeDelta::milliseconds(200);
            if !ids.is_empty() {
                for order in live.place_many(&ids, due_at).await {
                    let event = order.event.to_string();
                    let id = &order.order.order_id;
                    self.bus
                        .append("lapse.schedule", id, event.as_bytes(), Ok(due_at));
                }
            }
            self.bus.tick();
        }
        total
    }

    async fn stop(self) {
        for coordinator in self.coordinators {
            coordinator.drain(Duration::from_secs(5)).await;
        }
    }
}

/// With connections of its own, as each process has.
fn own_store(config: &Config) -> Arc<dyn Store> {
    Arc::new(PgStore::new(service::database(config).unwrap()))
}

fn participants(config: &Config, state: &Arc<Mutex<State>>) -> Participants {
    let pool = service::shop_database(config).unwrap();
    let orders = Orders::new(pool.clone());
    let mut participants = Participants::default();
    let owner: Arc<dyn OrderOwner> = Arc::new(orders.clone());
    participants.owners.insert("orders".to_owned(), owner);
    let behind: Arc<dyn Participant> = Arc::new(Behind {
        orders,
        state: state.clone(),
    });
    participants.operations.insert("orders".to_owned(), behind);
    let stock: Arc<dyn Participant> = Arc::new(Stock::new(pool));
    participants.operations.insert("stock".to_owned(), stock);
    participants
}
