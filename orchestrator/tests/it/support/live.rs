//! A whole Lapse for one test: an empty database, the shop in it, a broker, and services started on them.
//!
//! On the in-process broker, or under a prefix and a group of its own on the Apache Kafka of `LAPSE_TEST_KAFKA`.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use lapse::bus::Publish;
use lapse::config::Config;
use lapse::dev::broker::Broker;
use lapse::kafka::topics;
use lapse::service::{self, Service};
use lapse::store::ops::{Filter, Find, Ops, SagaRow, Story};
use lapse::store::schema;
use lapse::verify::{self, Report};
use lapse_participants::audit::Bounds;
use lapse_participants::kit::CallError;
use lapse_participants::shop::{Line, NewOrder, OrderRef, OrderView, Placed, Shop, Totals};
use metrics_exporter_prometheus::PrometheusHandle;
use rust_decimal::Decimal;
use sqlx::ConnectOptions;

use super::{topic, until};
use crate::database::TestDatabase;

/// What every test sells.
pub const SKU: &str = "MUG-BLUE";
/// Where from.
pub const WAREHOUSE: &str = "lille";
/// How much of it there is before the first order.
pub const STOCK: u32 = 1_000;
/// Late by this at most. `lapse bench` measures how late orders really are; here many tests share the processors.
pub const ON_TIME_MS: i64 = 5_000;
/// A service has its partitions within this; the in-process broker alone takes 3 s.
const JOINS_WITHIN: Duration = Duration::from_secs(30);
/// Many tests share a server and its processors.
const CONNECTS_WITHIN: Duration = Duration::from_secs(20);

/// Every promise of this module on the in-process broker, and again on Kafka where there is one.
macro_rules! on_both_brokers {
    ($($promise:ident),+ $(,)?) => {
        mod in_process {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $promise() {
                    super::$promise($crate::support::live::Live::in_process().await).await;
                }
            )+
        }
        mod on_kafka {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $promise() {
                    let name = concat!(module_path!(), "::", stringify!($promise));
                    if let Some(live) = $crate::support::live::Live::on_kafka(name).await {
                        super::$promise(live).await;
                    }
                }
            )+
        }
    };
}
pub(crate) use on_both_brokers;

/// Everything a service needs, and eyes to see what it does.
pub struct Live {
    /// Settings of the first service.
    pub config: Config,
    /// Places, pays, shows.
    pub shop: Shop,
    /// The views.
    pub ops: Ops,
    broker: Option<Broker>,
}

impl Live {
    /// On a broker of its own in this process.
    pub async fn in_process() -> Live {
        let mut config = config(&TestDatabase::create().await);
        let broker = Broker::start(&config.kafka_settings()).expect("the broker starts");
        config.kafka.brokers = broker.address().to_owned();
        Live::with(config, Some(broker)).await
    }

    /// The same with the shop in a database of its own, where others serve it.
    pub async fn in_process_beside_a_shop() -> Live {
        let mut config = config(&TestDatabase::create().await);
        config.shop.url = TestDatabase::create().await.url;
        config.shop.enabled = false;
        let broker = Broker::start(&config.kafka_settings()).expect("the broker starts");
        config.kafka.brokers = broker.address().to_owned();
        Live::with(config, Some(broker)).await
    }

    /// On the real Kafka, or none: then the test's name goes to the list of those left out.
    pub async fn on_kafka(name: &str) -> Option<Live> {
        let brokers = kafka_or_left_out(name)?;
        let mut config = config(&TestDatabase::create().await);
        let own = uuid::Uuid::now_v7().simple().to_string();
        config.kafka.brokers = brokers;
        config.kafka.prefix = format!("lapse-test-{own}.");
        config.kafka.group = format!("lapse-test-{own}");
        config.kafka.replication = 1;
        Some(Live::on(config).await)
    }

    /// With these settings: brokers, and how to be let in.
    pub async fn on(config: Config) -> Live {
        topics::create(&config.kafka_settings())
            .await
            .expect("topics can be created");
        Live::with(config, None).await
    }

    async fn with(config: Config, broker: Option<Broker>) -> Live {
        let db = service::database(&config).expect("the test's URL is right");
        schema::migrate(&db)
            .await
            .expect("the coordinator's tables");
        let pool = service::shop_database(&config).expect("the test's URL is right");
        lapse_participants::shop::migrate(&pool)
            .await
            .expect("the shop's tables");
        let shop = Shop::new(pool);
        shop.stock_up(SKU, WAREHOUSE, Decimal::from(STOCK))
            .await
            .expect("units arrive");
        Live {
            config,
            shop,
            ops: Ops::new(db),
            broker,
        }
    }

    /// The broker in this process, where the test is on it.
    pub fn broker(&self) -> Option<&Broker> {
        self.broker.as_ref()
    }

    /// A service that receives records.
    pub async fn start(&self) -> Running {
        Running::start(&self.config).await
    }

    /// Settings of one more service over the same database, topics and group.
    pub fn another(&self) -> Config {
        let mut config = self.config.clone();
        config.http.listen = free_address();
        config.kafka.instance_id = format!("another-{}", config.http.listen.port());
        config
    }

    /// Two units in an order that may be paid for so long.
    pub async fn place(&self, order_id: &str, pay_within: TimeDelta) -> Placed {
        let deadline = Utc::now() + pay_within;
        let mut placed = self.place_many(&[order_id.to_owned()], deadline).await;
        placed.swap_remove(0)
    }

    /// Orders with one deadline.
    pub async fn place_many(&self, order_ids: &[String], deadline: DateTime<Utc>) -> Vec<Placed> {
        let orders: Vec<NewOrder> = order_ids
            .iter()
            .map(|order_id| {
                let line = Line {
                    sku: SKU.to_owned(),
                    warehouse: WAREHOUSE.to_owned(),
                    quantity: Decimal::from(2),
                };
                let order = NewOrder::new("normal", vec![line], deadline);
                NewOrder {
                    order_id: Some(order_id.clone()),
                    ..order
                }
            })
            .collect();
        let placed = until("a connection to place orders", CONNECTS_WITHIN, || async {
            match self.shop.place_many(&orders).await {
                Err(CallError::Unreachable(_)) => None,
                placed => Some(placed.expect("the shop answers")),
            }
        });
        placed
            .await
            .into_iter()
            .map(|placed| placed.expect("there is stock for it"))
            .collect()
    }

    /// Produces the events of these orders to the schedule topic, as the shop's relay does.
    pub async fn schedule(&self, service: &Running, placed: &[Placed]) {
        let messages: Vec<Publish> = placed
            .iter()
            .map(|placed| Publish {
                topic: "schedule".to_owned(),
                key: placed.order.order_id.clone(),
                payload: placed.event.to_string(),
            })
            .collect();
        let acked = service.bus().publish(messages).await;
        assert!(
            acked.into_iter().all(|acked| acked),
            "the broker has every event"
        );
    }

    /// Full name of a topic.
    pub fn topic(&self, short: &str) -> String {
        self.config.kafka_settings().topic(short)
    }

    /// Every message on an output topic, parsed.
    pub async fn messages(&self, short: &str) -> Vec<serde_json::Value> {
        topic::read(&self.config.kafka.brokers, &self.topic(short))
            .await
            .into_iter()
            .map(|message| serde_json::from_slice(&message.value).expect("messages are JSON"))
            .collect()
    }

    /// So many messages about an order on a topic, within ten seconds.
    pub async fn messages_about(
        &self,
        short: &str,
        order_id: &str,
        count: usize,
    ) -> Vec<serde_json::Value> {
        let what = format!("{count} messages about {order_id} on {short}");
        until(&what, Duration::from_secs(10), || async {
            let mut messages = self.messages(short).await;
            messages.retain(|message| message["order_id"] == order_id);
            (messages.len() == count).then_some(messages)
        })
        .await
    }

    /// The order as the shop has it.
    pub async fn order(&self, order_id: &str) -> OrderView {
        let order = self.shop.show(&order_ref(order_id)).await;
        order.expect("the shop answers").expect("the order exists")
    }

    /// The newest saga of an order with its history.
    pub async fn story(&self, order_id: &str) -> Option<Story> {
        let find = Find::Order {
            tenant: "default".to_owned(),
            order_id: order_id.to_owned(),
        };
        self.ops.show(find).await.expect("the views answer")
    }

    /// The same once it has come to this state.
    pub async fn story_in(&self, order_id: &str, state: &str, limit: Duration) -> Story {
        until(&format!("saga of {order_id} {state}"), limit, || async {
            let story = self.story(order_id).await?;
            (story.saga.state == state).then_some(story)
        })
        .await
    }

    /// All sagas, once there are so many and all have ended.
    pub async fn all_ended(&self, count: usize, limit: Duration) -> Vec<SagaRow> {
        until(&format!("{count} sagas ended"), limit, || async {
            let sagas = self.sagas().await;
            let ended = sagas
                .iter()
                .filter(|saga| saga.finished_at.is_some())
                .count();
            (ended == count && sagas.len() == count).then_some(sagas)
        })
        .await
    }

    /// The newest 1,000 sagas.
    pub async fn sagas(&self) -> Vec<SagaRow> {
        let filter = Filter {
            limit: 1_000,
            ..Filter::default()
        };
        self.ops.list(filter).await.expect("the views answer")
    }

    /// A counter over all time.
    pub async fn total(&self, counter: &str) -> i64 {
        let totals = self.ops.totals().await.expect("the views answer");
        let own = totals.iter().filter(|total| total.counter == counter);
        own.map(|total| total.n).sum()
    }

    /// A connection of the test's own.
    pub async fn database(&self) -> sqlx::PgConnection {
        let options: sqlx::postgres::PgConnectOptions = self
            .config
            .postgres
            .url
            .parse()
            .expect("the test's URL is right");
        options.connect().await.expect("the test server answers")
    }

    /// The shop's sums, which add up.
    pub async fn stock(&self) -> Totals {
        let totals = self.shop.totals().await.expect("the shop answers");
        assert_eq!(
            totals.available + totals.sold + totals.held,
            Decimal::from(STOCK),
            "stock adds up"
        );
        totals
    }

    /// What `lapse verify` says; it must find nothing wrong.
    pub async fn verified(&self) -> Report {
        // The shop's tables too, whoever serves it.
        let mut config = self.config.clone();
        config.shop.enabled = true;
        let report = verify::run(&config, &Bounds::default())
            .await
            .expect("verify can ask");
        let broken: Vec<_> = report.checks.iter().filter(|check| !check.ok).collect();
        assert!(report.ok, "violations: {broken:#?}");
        report
    }
}

/// A service that is stopped on purpose only.
pub struct Running(Service);

impl Running {
    /// Starts and waits until records are received.
    pub async fn start(config: &Config) -> Running {
        let service = Running::at_once(config).await;
        let bus = service.bus();
        until("partitions are assigned", JOINS_WITHIN, || async {
            bus.is_ready().then_some(())
        })
        .await;
        service
    }

    /// Starts and does not wait for records.
    pub async fn at_once(config: &Config) -> Running {
        let service = Service::start(config, metrics())
            .await
            .expect("the service starts");
        Running(service)
    }

    /// Drains and stops.
    pub async fn stop(self) {
        self.0.stop().await;
    }
}

impl Deref for Running {
    type Target = Service;

    fn deref(&self) -> &Service {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Service {
        &mut self.0
    }
}

/// The address of the real Kafka; without one the test's name goes to the list of those left out.
pub fn kafka_or_left_out(name: &str) -> Option<String> {
    or_left_out(
        "LAPSE_TEST_KAFKA",
        "needs a real Kafka; set LAPSE_TEST_KAFKA=host:port",
        name,
    )
}

/// The URL of the real MariaDB or MySQL; without one the test's name goes to the list of those left out.
pub fn mysql_or_left_out(name: &str) -> Option<String> {
    or_left_out(
        "LAPSE_TEST_MYSQL",
        "needs a real MariaDB; set LAPSE_TEST_MYSQL=mysql://…",
        name,
    )
}

fn or_left_out(variable: &str, words: &str, name: &str) -> Option<String> {
    let address = std::env::var(variable)
        .ok()
        .filter(|address| !address.is_empty());
    if address.is_none() {
        left_out(name, words);
    }
    address
}

/// Puts a test's name on the list of those left out.
pub fn left_out(name: &str, why: &str) {
    // As the test is called on the command line: without the crate.
    let name = name.strip_prefix("it::").unwrap_or(name);
    eprintln!("LEFT OUT: {name} {why}");
    if let Ok(list) = std::env::var("LAPSE_TEST_LEFT_OUT") {
        let mut list = std::fs::File::options()
            .append(true)
            .create(true)
            .open(list)
            .expect("the list of tests left out can be written");
        writeln!(list, "{name} ({why})").expect("the list of tests left out can be written");
    }
}

/// An order of the default tenant.
pub fn order_ref(order_id: &str) -> OrderRef {
    OrderRef {
        tenant: "default".to_owned(),
        order_id: order_id.to_owned(),
    }
}

/// Settings over a fresh database: small, quick, the shop served.
pub fn config(database: &TestDatabase) -> Config {
    lapse::tls::install();
    let mut config = Config::default();
    config.postgres.url = database.url.clone();
    config.postgres.writers = 2;
    config.postgres.readers = 2;
    config.shop.enabled = true;
    config.shop.connections = 4;
    config.http.listen = free_address();
    config.kafka.partitions = 2;
    config.kafka.memory_mb = 64;
    config
}

/// A port that nobody has; below those that the kernel gives to connections, so that none is taken before it is used.
pub fn free_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let base = 10_000 + u16::try_from(std::process::id() % 200).expect("below 200") * 100;
    loop {
        let port = base + NEXT.fetch_add(1, Ordering::Relaxed) % 100;
        let address: SocketAddr = ([127, 0, 0, 1], port).into();
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

/// The recorder of this process, shared by all tests.
fn metrics() -> PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    HANDLE
        .get_or_init(|| lapse::metrics::install().expect("nobody else installs a recorder"))
        .clone()
}
