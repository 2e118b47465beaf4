//! A shop that writes no events is served by the sweep alone: what was pending before Lapse came is cancelled on time.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, SubsecRound, TimeDelta, Utc};
use lapse::bus::MemoryBus;
use lapse::clock::{Anchored, Clock};
use lapse::config::{Config, OrderOwner};
use lapse::coordinator::{Coordinator, Parts};
use lapse::definitions::Definitions;
use lapse::service;
use lapse::store::Store;
use lapse::store::ops::Ops;
use lapse::store::pg::PgStore;
use lapse::store::schema;
use lapse::verify;
use lapse_participants::audit::Bounds;
use lapse_participants::kit::Participant;
use lapse_sagas::{Definition, Span};

use super::shops::{MariaShop, PostgresShop};
use crate::database::TestDatabase;
use crate::support::live::{self, ON_TIME_MS, mysql_or_left_out};
use crate::support::until;

const ORDERS: usize = 1_000;
const PAID: i64 = 100;
const CANCELLED: i64 = 900;
const SOON: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_in_a_mysql_table_that_lapse_never_heard_of_are_cancelled_on_time() {
    let name = concat!(
        module_path!(),
        "::orders_in_a_mysql_table_that_lapse_never_heard_of_are_cancelled_on_time"
    );
    let Some(server) = mysql_or_left_out(name) else {
        return;
    };
    let shop = MariaShop::open(&server).await;
    let beside = Beside::prepare(shop.settings()).await;
    shop.place(&dues()).await;
    pay(&shop, 0).await;
    let coordinator = beside.start(Arc::new(shop.clone())).await;
    pay(&shop, 1).await;

    let count = "select count(*) from t_order where status = 'CANCELLED'";
    until("all are cancelled", SOON, || async {
        let cancelled: i64 = sqlx::query_scalar(count).fetch_one(&shop.pool).await.ok()?;
        (cancelled == CANCELLED).then_some(())
    })
    .await;

    let late = "select timestampdiff(microsecond, expire_time, cancelled_at) div 1000
                from t_order where status = 'CANCELLED' order by 1";
    let late: Vec<i64> = sqlx::query_scalar(late)
        .fetch_all(&shop.pool)
        .await
        .unwrap();
    on_time(&late);
    let paid = "select count(*) from t_order where status = 'PAID'";
    let paid: i64 = sqlx::query_scalar(paid)
        .fetch_one(&shop.pool)
        .await
        .unwrap();
    assert_eq!(paid, PAID, "paid orders are untouched");
    beside.adds_up(coordinator).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_in_a_postgres_table_with_local_creation_times_are_cancelled_on_time() {
    let shop = PostgresShop::open().await;
    let beside = Beside::prepare(shop.settings()).await;
    shop.place(&dues()).await;
    let pay = "update trade.orders set state = 20 where id % 20 = $1";
    sqlx::query(pay).bind(0).execute(&shop.pool).await.unwrap();
    let coordinator = beside.start(Arc::new(shop.clone())).await;
    sqlx::query(pay).bind(1).execute(&shop.pool).await.unwrap();

    let count = "select count(*) from trade.orders where state = 40";
    until("all are cancelled", SOON, || async {
        let cancelled: i64 = sqlx::query_scalar(count).fetch_one(&shop.pool).await.ok()?;
        (cancelled == CANCELLED).then_some(())
    })
    .await;

    let late = "select (extract(epoch from cancelled_at - (created_at at time zone 'Europe/Paris')
                  - interval '30 minutes') * 1000)::bigint
                from trade.orders where state = 40 order by 1";
    let late: Vec<i64> = sqlx::query_scalar(late)
        .fetch_all(&shop.pool)
        .await
        .unwrap();
    on_time(&late);
    let paid = "select count(*) from trade.orders where state = 20";
    let paid: i64 = sqlx::query_scalar(paid)
        .fetch_one(&shop.pool)
        .await
        .unwrap();
    assert_eq!(paid, PAID, "paid orders are untouched");
    beside.adds_up(coordinator).await;
}

/// Over ten whole seconds, the first seven from now.
fn dues() -> Vec<DateTime<Utc>> {
    let first = Utc::now().trunc_subsecs(0) + TimeDelta::seconds(8);
    (0..ORDERS)
        .map(|n| first + TimeDelta::seconds(i64::try_from(n % 10).expect("small")))
        .collect()
}

async fn pay(shop: &MariaShop, which: i64) {
    sqlx::query("update t_order set status = 'PAID' where substr(order_no, 3) % 20 = ?")
        .bind(which)
        .execute(&shop.pool)
        .await
        .unwrap();
}

/// Without the look-ahead none would be cancelled within five seconds.
fn on_time(late_ms: &[i64]) {
    let (earliest, latest) = (late_ms[0], late_ms[late_ms.len() - 1]);
    let median = late_ms[late_ms.len() / 2];
    println!("late by {earliest} to {latest} ms, {median} in the middle");
    assert!(earliest >= 0, "{earliest} ms: one is cancelled early");
    assert!(latest < ON_TIME_MS, "{latest} ms late");
}

/// Lapse beside the shop; Kafka is silent.
struct Beside {
    config: Config,
    store: Arc<dyn Store>,
}

impl Beside {
    async fn prepare(owner: OrderOwner) -> Beside {
        let mut config = live::config(&TestDatabase::create().await);
        config.shop.enabled = false;
        config.sweep.every = Span::from_secs(1);
        let owner = OrderOwner {
            look_ahead: Span::from_secs(30),
            ..owner
        };
        config.order_owners.insert("orders".to_owned(), owner);
        let db = service::database(&config).unwrap();
        schema::migrate(&db).await.unwrap();
        let store: Arc<dyn Store> = Arc::new(PgStore::new(db));
        let (file, text) = service::SHIPPED;
        let definition = Arc::new(Definition::parse(file, text).expect("it is shipped"));
        store.deploy(&[definition]).await.unwrap();
        Beside { config, store }
    }

    async fn start(&self, shop: Arc<dyn Participant>) -> Coordinator {
        let store = self.store.clone();
        let clock: Arc<dyn Clock> = Arc::new(Anchored::new(store.clone()).await.unwrap());
        let mut participants = lapse::participants::open(&self.config).await.unwrap();
        for name in ["orders", "stock"] {
            participants
                .operations
                .insert(name.to_owned(), shop.clone());
        }
        let bus_clock = clock.clone();
        let parts = Parts {
            bus: Arc::new(MemoryBus::new(Arc::new(move || bus_clock.now()))),
            definitions: Arc::new(Definitions::load(store.clone()).await.unwrap()),
            store,
            clock,
            participants,
            webhooks: Vec::new(),
        };
        Coordinator::start(parts, &self.config)
    }

    /// Every saga has ended, each started by the sweep, and `lapse verify` finds nothing.
    async fn adds_up(&self, coordinator: Coordinator) {
        let ops = Ops::new(service::database(&self.config).unwrap());
        let total = |counter: &'static str| {
            let ops = &ops;
            async move {
                let totals = ops.totals().await.unwrap();
                let own = totals.iter().filter(|total| total.counter == counter);
                own.map(|total| total.n).sum::<i64>()
            }
        };
        until("sagas are completed", SOON, || async {
            (total("completed").await == CANCELLED).then_some(())
        })
        .await;
        let started = total("started").await;
        assert_eq!(started, CANCELLED + total("skipped").await);
        let report = verify::run(&self.config, &Bounds::default()).await.unwrap();
        assert!(report.ok, "{:#?}", report.checks);
        coordinator.drain(Duration::from_secs(5)).await;
    }
}
