//! Whatever an order owner lists, or doesn't: every order that can be swept is, and nobody waits for the owner.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta, Utc};
use lapse::clock::{Anchored, Clock, Simulated};
use lapse::store::db::{Db, READERS, WRITERS};
use lapse::store::memory::MemoryStore;
use lapse::store::pg::PgStore;
use lapse::store::schema;
use lapse_participants::kit::{CallError, OrderKey, OrderOwner, Overdue};
use lapse_sagas::Timestamp;
use serde_json::json;

use crate::database::TestDatabase;
use crate::support::world::{QUICK, World, order};

const SOON: Duration = Duration::from_secs(60);

/// Lists these, oldest first, by a clock that knows microseconds or milliseconds. Never says who has paid.
struct Listed {
    orders: Vec<Overdue>,
    millis: bool,
    /// So many pages never come.
    hangs: AtomicUsize,
}

impl Listed {
    fn new(orders: Vec<Overdue>) -> Listed {
        Listed {
            orders,
            millis: false,
            hangs: AtomicUsize::new(0),
        }
    }
}

#[async_trait]
impl OrderOwner for Listed {
    async fn overdue_orders(
        &self,
        after: Option<&Overdue>,
        _: Duration,
        limit: u32,
    ) -> Result<Vec<Overdue>, CallError> {
        let one_less = |hangs: usize| hangs.checked_sub(1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        if self.hangs.fetch_update(set, fetch, one_less).is_ok() {
            std::future::pending::<()>().await;
        }
        let place = |order: &Overdue| (order.due_at, order.order.clone());
        let later = |order: &&Overdue| after.is_none_or(|after| place(order) > place(after));
        let page = self.orders.iter().filter(later).take(limit as usize);
        let told = |order: &Overdue| {
            let due_at = if self.millis {
                DateTime::from_timestamp_millis(order.due_at.timestamp_millis()).unwrap()
            } else {
                order.due_at
            };
            Overdue {
                due_at,
                ..order.clone()
            }
        };
        Ok(page.map(told).collect())
    }

    async fn paid(&self, _: &[OrderKey]) -> Result<Vec<bool>, CallError> {
        std::future::pending().await
    }
}

fn overdue(order: OrderKey, due_at: Timestamp) -> Overdue {
    Overdue {
        order,
        order_type: "normal".to_owned(),
        due_at,
    }
}

async fn in_memory(definition: &str) -> World {
    let start = DateTime::from_timestamp(1_780_000_000, 0).unwrap();
    let clock: Arc<dyn Clock> = Arc::new(Simulated::from(start));
    let time = clock.clone();
    let store = Arc::new(MemoryStore::new(Arc::new(move || time.now())));
    World::new(store, clock, definition).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_cannot_become_a_saga_keeps_nobody_from_being_swept() {
    let database = TestDatabase::create().await;
    let db = Db::open(database.options.clone(), WRITERS, READERS);
    schema::migrate(&db).await.expect("migrate");
    let store = Arc::new(PgStore::new(db));
    let clock = Arc::new(Anchored::new(store.clone()).await.expect("the time"));
    let world = World::new(store, clock, QUICK).await;
    let late = Utc::now() - TimeDelta::minutes(1);
    // Postgres has no such year.
    let long_ago = "-6000-01-01T00:00:00Z".parse().expect("a time");
    let mut orders = vec![overdue(order("never"), long_ago)];
    let generation_0 = OrderKey {
        generation: 0,
        ..order("generation-0")
    };
    let odd = ["nul\0", "", &"x".repeat(4_000)].map(order);
    let good = ["a", "b", "c"].map(order);
    let [first, rest @ ..] = good;
    let listed = [first]
        .into_iter()
        .chain(odd)
        .chain([generation_0])
        .chain(rest);
    orders.extend(
        listed
            .zip(0..)
            .map(|(order, s)| overdue(order, late + TimeDelta::seconds(s))),
    );

    let owner = Arc::new(Listed::new(orders));
    let _coordinator = world.sweeping_coordinator(owner, world.bus());

    for order_id in ["a", "b", "c"] {
        let saga = world.at_rest(order_id, SOON).await;
        assert_eq!(saga.state.status.name(), "completed", "{order_id}");
    }
    for order_id in ["never", "generation-0"] {
        assert!(world.saga(order_id).await.is_none(), "{order_id}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_knows_milliseconds_only_is_read_to_its_end() {
    let world = in_memory(QUICK).await;
    let late = world.clock.now() - TimeDelta::minutes(1);
    let due_at = |n: i64| late + TimeDelta::microseconds(7 * n);
    let orders = (0..1_200).map(|n| overdue(order(&format!("o{n}")), due_at(n)));
    let owner = Arc::new(Listed {
        millis: true,
        ..Listed::new(orders.collect())
    });
    let _coordinator = world.sweeping_coordinator(owner, world.bus());

    for order_id in ["o0", "o499", "o500", "o1199"] {
        world.at_rest(order_id, SOON).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_page_that_never_comes_is_asked_for_again() {
    let world = in_memory(QUICK).await;
    let late = world.clock.now() - TimeDelta::minutes(1);
    let owner = Arc::new(Listed {
        hangs: AtomicUsize::new(1),
        ..Listed::new(vec![overdue(order("o1"), late)])
    });
    let _coordinator = world.sweeping_coordinator(owner, world.bus());

    world.at_rest("o1", SOON).await;
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_long_for_an_owner_that_does_not_say_who_has_paid() {
    let guarded = QUICK.replace("order_owner: orders", "order_owner: orders\n  guard: true");
    let world = in_memory(&guarded).await;
    let bus = world.bus();
    let owner = Arc::new(Listed::new(Vec::new()));
    let _coordinator = world.sweeping_coordinator(owner, bus.clone());
    let began_at = tokio::time::Instant::now();

    for n in 0..20 {
        let due_at = world.clock.now();
        let order_id = format!("o{n}");
        let event = json!({ "order_id": order_id, "order_type": "normal",
            "event_type": "order.placed", "pay_deadline": due_at });
        let event = event.to_string();
        bus.append("lapse.schedule", &order_id, event.as_bytes(), Ok(due_at));
        bus.tick();
        world.at_rest(&order_id, SOON).await;
    }

    let took = began_at.elapsed();
    assert!(took < Duration::from_secs(9), "it was asked once: {took:?}");
}
