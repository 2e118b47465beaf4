//! Orders are cancelled with the shop behind Kafka, whoever reads its replies, however often and in whatever order they
//! come, and whoever dies: on the in-process broker and on Apache Kafka.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{TimeDelta, Utc};
use lapse::bus::{Delivery, Outlet, Publish, REPLIES, commands_topic};
use lapse::config::{Config, OrderOwner, Participant, Transport};
use lapse::conform::kafka::KafkaCaller;
use lapse::conform::{self, Plan, Site, Subject, Verdict};
use lapse::kafka::{KafkaFeed, KafkaOutlet, topics};
use lapse::service;
use lapse::shop_serve::http::{Served, router};
use lapse::shop_serve::kafka::Server;
use lapse::shop_serve::{OPERATIONS, PARTICIPANTS, ShopParticipant};
use lapse_participants::order::Orders;
use lapse_participants::shop::{Line, NewOrder, Shop};
use rust_decimal::Decimal;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::live::{
    Live, ON_TIME_MS, Running, SKU, STOCK, WAREHOUSE, on_both_brokers, order_ref,
};
use crate::support::{topic, until};

/// Beside other tests; alone each of these takes a tenth of it.
const SOON: Duration = Duration::from_secs(120);

/// The shipped walk for a participant that answers within a second, or is asked again soon.
const SHORT: &str = r"
format: saga/v1
name: short
version: 1
trigger:
  event_types: [order.placed]
  order_types: { normal: { delay: 30m } }
  order_owner: orders
steps:
  - id: cancel_order
    action: { participant: orders, operation: CancelOrder }
    compensation: { participant: orders, operation: ReopenOrder }
    timeout: 1s
    retries: { max: 10, delays: [1s, 2s, 2s, 2s, 4s] }
  - id: replenish_stock
    action: { participant: stock, operation: ReplenishStock }
    compensation: { participant: stock, operation: WithdrawStock }
    timeout: 1s
    retries: { max: 10, delays: [1s, 2s, 2s, 2s, 4s] }
";

on_both_brokers! {
    orders_are_cancelled_on_time_over_kafka_whoever_reads_the_replies,
    replies_that_come_twice_late_and_among_garbage_change_nothing_twice,
    a_shop_killed_between_commit_and_answer_costs_a_time_out_and_no_second_effect,
    a_shop_that_is_away_for_seconds_misses_nothing,
    the_shop_keeps_the_contract_over_kafka_beside_coordinators,
}

async fn orders_are_cancelled_on_time_over_kafka_whoever_reads_the_replies(live: Live) {
    let config = over_kafka(&live).await;
    let shop = Serving::start(&config, Usual);
    let first = Running::start(&config).await;
    let second = Running::start(&another(&live, &config)).await;
    if live.broker().is_none() {
        until("both read replies", SOON, || async {
            let kafka = &live.config.kafka;
            let shares = topic::shares(&kafka.brokers, &format!("{}.replies", kafka.group)).await;
            (shares.len() == 2 && shares.iter().all(|share| *share > 0)).then_some(())
        })
        .await;
    }
    // The groups of the shop and of the replies have settled once an order is through.
    cancel(&live, &first, "early", 1).await;
    live.all_ended(1, SOON).await;

    cancel(&live, &first, "order", 60).await;

    let sagas = live.all_ended(61, SOON).await;
    for saga in sagas.iter().filter(|saga| saga.order_id != "early-0") {
        let late_ms = saga.lateness_ms.expect("it had a due time");
        assert!((0..ON_TIME_MS).contains(&late_ms), "{late_ms} ms late");
    }
    all_completed_once(&live, 61).await;
    assert_eq!(live.total("stale_reply").await, 0);
    second.stop().await;
    first.stop().await;
    shop.stop().await;
    let kafka = &live.config.kafka;
    let group = format!("{}.replies", kafka.group);
    let uncommitted = topic::uncommitted(&kafka.brokers, &group, &live.topic(REPLIES)).await;
    assert_eq!(uncommitted, 0, "every reply is committed");
}

async fn replies_that_come_twice_late_and_among_garbage_change_nothing_twice(live: Live) {
    let config = short(&live).await;
    let shop = Serving::start(&config, Noisy::default());
    let service = Running::start(&config).await;

    cancel(&live, &service, "noisy", 40).await;

    live.all_ended(40, SOON).await;
    all_completed_once(&live, 40).await;
    until("the garbage is buried", SOON, || async {
        (live.total("dead_letter").await > 0).then_some(())
    })
    .await;
    let stale = live.total("stale_reply").await;
    assert!(stale > 0, "what changes nothing is logged");
    assert!(
        live.total("retried").await > 0,
        "some replies came after their time-out"
    );
    shop.stop().await;
    service.stop().await;
}

async fn a_shop_killed_between_commit_and_answer_costs_a_time_out_and_no_second_effect(live: Live) {
    let config = short(&live).await;
    let reached = Arc::new(Notify::new());
    let shop = Serving::start(&config, Dying(reached.clone()));
    let service = Running::start(&config).await;
    cancel(&live, &service, "killed", 10).await;
    reached.notified().await;
    shop.kill().await;
    let mut applied = 0;
    for n in 0..10 {
        let order = live.order(&format!("killed-{n}")).await;
        applied += usize::from(order.status == "cancelled");
    }

    let next = Serving::start(&config, Usual);

    live.all_ended(10, SOON).await;
    all_completed_once(&live, 10).await;
    assert!(applied > 0, "some were applied, and nobody was told");
    assert!(live.total("retried").await > 0, "the time-out told");
    next.stop().await;
    service.stop().await;
}

async fn a_shop_that_is_away_for_seconds_misses_nothing(live: Live) {
    let config = short(&live).await;
    let service = Running::start(&config).await;
    cancel(&live, &service, "away", 20).await;
    until("somebody was asked twice", SOON, || async {
        (live.total("retried").await >= 20).then_some(())
    })
    .await;

    let shop = Serving::start(&config, Usual);

    live.all_ended(20, SOON).await;
    all_completed_once(&live, 20).await;
    shop.stop().await;
    service.stop().await;
}

async fn the_shop_keeps_the_contract_over_kafka_beside_coordinators(live: Live) {
    let config = over_kafka(&live).await;
    let shop = Serving::start(&config, Usual);
    let service = Running::start(&config).await;
    let caller = KafkaCaller::start(&config.kafka_settings(), "orders").await;
    let caller = caller.expect("replies can be read");
    let subject = Subject {
        wire: Some(Arc::new(caller.wire())),
        participant: Arc::new(caller),
        site: Arc::new(Stand(live.shop.clone())),
        plan: Plan {
            action: "CancelOrder".to_owned(),
            compensation: Some("ReopenOrder".to_owned()),
            input: serde_json::Value::Null,
            tenant: "default".to_owned(),
            refusals: false,
        },
    };

    let report = conform::run(&subject, Utc::now()).await.expect("a report");

    let failed = report
        .cases
        .iter()
        .filter(|case| case.result == Verdict::Failed);
    assert!(report.ok, "{:#?}", failed.collect::<Vec<_>>());
    cancel(&live, &service, "beside", 1).await;
    live.story_in("beside-0", "completed", SOON).await;
    shop.stop().await;
    service.stop().await;
}

/// Orders of the shop, and their status.
struct Stand(Shop);

#[async_trait]
impl Site for Stand {
    async fn place(&self, order_id: &str) -> anyhow::Result<()> {
        let line = Line {
            sku: SKU.to_owned(),
            warehouse: WAREHOUSE.to_owned(),
            quantity: Decimal::ONE,
        };
        // Not due: the sweep of the coordinators beside would cancel it, and only the suite may.
        let order = NewOrder::new("normal", vec![line], Utc::now() + TimeDelta::hours(1));
        let order = NewOrder {
            order_id: Some(order_id.to_owned()),
            ..order
        };
        self.0.place(&order).await??;
        Ok(())
    }

    async fn state(&self, order_id: &str) -> anyhow::Result<String> {
        let order = self.0.show(&order_ref(order_id)).await?;
        Ok(order.map_or_else(String::new, |order| order.status))
    }
}

/// Settings of a coordinator without a shop of its own: orders and stock get their commands over Kafka, and the order owner
/// is asked over HTTP.
async fn over_kafka(live: &Live) -> Config {
    let mut config = live.config.clone();
    config.shop.enabled = false;
    for name in PARTICIPANTS {
        let participant = Participant {
            transport: Transport::Kafka,
            ..Participant::default()
        };
        config.participants.insert(name.to_owned(), participant);
    }
    let owner = OrderOwner {
        url: format!("http://{}", serve_owner(&config).await),
        ..OrderOwner::default()
    };
    config.order_owners.insert("orders".to_owned(), owner);
    let settings = config.kafka_settings();
    match live.broker() {
        Some(broker) => broker.create_topics(&settings).expect("topics"),
        None => drop(topics::create(&settings).await.expect("topics")),
    }
    config
}

/// The same with [`SHORT`] time-outs.
async fn short(live: &Live) -> Config {
    let mut config = over_kafka(live).await;
    let file = std::env::temp_dir().join(format!("{}.yaml", live.topic("short")));
    std::fs::write(&file, SHORT).expect("a definition can be written");
    config.definitions.paths = vec![file];
    config
}

async fn serve_owner(config: &Config) -> SocketAddr {
    let pool = service::shop_database(config).expect("the test's URL is right");
    let served = Served {
        participant: Arc::new(ShopParticipant::new(pool.clone())),
        owner: Arc::new(Orders::new(pool)),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(axum::serve(listener, router(served)).into_future());
    address
}

/// One more coordinator.
fn another(live: &Live, config: &Config) -> Config {
    let other = live.another();
    let mut config = config.clone();
    config.http = other.http;
    config.kafka = other.kafka;
    config
}

/// Orders that fall due in a moment.
async fn cancel(live: &Live, service: &Running, name: &str, count: usize) {
    let ids: Vec<String> = (0..count).map(|n| format!("{name}-{n}")).collect();
    let due = Utc::now() + TimeDelta::milliseconds(500);
    let placed = live.place_many(&ids, due).await;
    live.schedule(service, &placed).await;
}

/// Every order is cancelled, every unit is back once, and nothing is found wrong.
async fn all_completed_once(live: &Live, count: usize) {
    let sagas = live.sagas().await;
    let completed = sagas.iter().filter(|saga| saga.state == "completed");
    assert_eq!(completed.count(), count);
    for saga in &sagas {
        let order = live.order(&saga.order_id).await;
        assert_eq!(order.status, "cancelled");
        assert_eq!(order.ledger.len(), 1, "one effect: {:?}", order.ledger);
    }
    assert_eq!(live.stock().await.available, Decimal::from(STOCK));
    live.verified().await;
}

/// The shop behind Kafka, as `lapse shop serve --kafka` runs it.
struct Serving {
    task: JoinHandle<()>,
    stop: CancellationToken,
}

impl Serving {
    fn start(config: &Config, mood: impl Mood) -> Serving {
        let settings = config.kafka_settings();
        let topics = PARTICIPANTS.map(commands_topic);
        let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
        let group = format!("{}.shop", settings.group);
        let pool = service::shop_database(config).expect("the test's URL is right");
        let server = Server {
            feed: Arc::new(KafkaFeed::group(&settings, &group, &topics).expect("a feed")),
            outlet: Arc::new(Moody {
                outlet: KafkaOutlet::new(&settings).expect("an outlet"),
                mood,
            }),
            participant: Arc::new(ShopParticipant::new(pool)),
            operations: &OPERATIONS,
        };
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move { server.run(&stopped).await });
        Serving { task, stop }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.expect("the server does not panic");
    }

    /// As `kill -9` does, but for leaving the group.
    async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.is_err(), "it was still serving");
    }
}

/// How answers go out.
#[async_trait]
trait Mood: Send + Sync + 'static {
    async fn deliver(&self, outlet: &KafkaOutlet, messages: Vec<Publish>) -> Vec<Delivery>;
}

struct Moody<M> {
    outlet: KafkaOutlet,
    mood: M,
}

#[async_trait]
impl<M: Mood> Outlet for Moody<M> {
    async fn deliver(&self, messages: Vec<Publish>) -> Vec<Delivery> {
        self.mood.deliver(&self.outlet, messages).await
    }
}

/// As they are.
struct Usual;

#[async_trait]
impl Mood for Usual {
    async fn deliver(&self, outlet: &KafkaOutlet, messages: Vec<Publish>) -> Vec<Delivery> {
        outlet.deliver(messages).await
    }
}

/// Twice, the second time in reverse order, among garbage; those of the first batches late.
#[derive(Default)]
struct Noisy {
    batches: AtomicU32,
}

/// Longer than the time-out and the first retry delay.
const LATE: Duration = Duration::from_millis(3_500);

#[async_trait]
impl Mood for Noisy {
    async fn deliver(&self, outlet: &KafkaOutlet, messages: Vec<Publish>) -> Vec<Delivery> {
        if messages.is_empty() {
            return Vec::new();
        }
        if self.batches.fetch_add(1, Ordering::SeqCst) == 0 {
            tokio::time::sleep(LATE).await;
        }
        let garbage = Publish {
            topic: REPLIES.to_owned(),
            key: "garbage".to_owned(),
            payload: "{\"outcome\": \"done\"}".to_owned(),
        };
        outlet.deliver(vec![garbage]).await;
        let deliveries = outlet.deliver(messages.clone()).await;
        let doubles: Vec<Publish> = messages.into_iter().rev().collect();
        outlet.deliver(doubles).await;
        deliveries
    }
}

/// Says that it is about to answer, and never does.
struct Dying(Arc<Notify>);

#[async_trait]
impl Mood for Dying {
    async fn deliver(&self, _: &KafkaOutlet, _: Vec<Publish>) -> Vec<Delivery> {
        self.0.notify_one();
        std::future::pending().await
    }
}
