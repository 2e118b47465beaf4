//! What one scenario runs on: a database, topics and a directory for logs of its own, on the shared servers.
//!
//! Relies on `lapse migrate` and `lapse topics create` for what is in them. Never: shares anything but the servers with
//! another rig, so that two scenarios can run side by side as long as neither takes the servers down.

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use lapse_participants::kit::db;
use lapse_participants::shop::Shop;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::FutureProducer;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use serde::Serialize;
use serde_json::Value;
use sqlx::postgres::{PgConnectOptions, PgPool};
use sqlx::{ConnectOptions, Connection};
use uuid::Uuid;

use crate::process::{Process, free_port, lapse};
use crate::services::{NAME, Services, database_prefix, target, topic_prefix};

const BROKER_PATIENCE: Duration = Duration::from_secs(10);
/// Few, so that the topics are quickly there; each bucket still has more partitions than there are coordinators.
const PARTITIONS: i32 = 4;

/// Where the orders and the stock are served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Participants {
    /// In the coordinators' processes, in their database.
    #[default]
    InProcess,
    /// By a server of the shop over HTTP, in a database of its own.
    Http,
    /// By two servers of the shop over Kafka, in a database of their own.
    Kafka,
}

impl Participants {
    /// `PARTICIPANTS`, as the scripts take it.
    pub fn from_environment() -> anyhow::Result<Participants> {
        match std::env::var("PARTICIPANTS").as_deref() {
            Err(_) | Ok("" | "in_process") => Ok(Participants::InProcess),
            Ok("http") => Ok(Participants::Http),
            Ok("kafka") => Ok(Participants::Kafka),
            Ok(other) => bail!("PARTICIPANTS={other} is not in_process, http or kafka"),
        }
    }

    /// As in `PARTICIPANTS`.
    pub fn name(self) -> &'static str {
        match self {
            Participants::InProcess => "in_process",
            Participants::Http => "http",
            Participants::Kafka => "kafka",
        }
    }

    fn servers(self) -> usize {
        match self {
            Participants::InProcess => 0,
            Participants::Http => 1,
            Participants::Kafka => 2,
        }
    }
}

/// The ground of one scenario.
pub struct Rig {
    /// Logs.
    pub directory: PathBuf,
    /// The shop, as its own servers would work it.
    pub shop: Shop,
    /// For looking at the coordinators' tables.
    pub pool: PgPool,
    /// For looking at the shop's tables.
    pub shop_pool: PgPool,
    options: PgConnectOptions,
    shop_options: PgConnectOptions,
    participants: Participants,
    shop_ports: Vec<u16>,
    brokers: String,
    prefix: String,
    group: String,
    environment: Vec<(String, String)>,
}

impl Rig {
    /// Databases, tables, topics. `settings` are `LAPSE__SECTION__KEY`s beyond the usual.
    pub async fn build(
        services: &Services,
        name: &str,
        participants: Participants,
        settings: &[(&str, &str)],
    ) -> anyhow::Result<Rig> {
        let run = Uuid::now_v7().simple().to_string();
        services.clear(name).await?;
        let database = database_prefix(name) + &run;
        let options = services.create_database(&database).await?;
        let shop_options = match participants {
            Participants::InProcess => options.clone(),
            Participants::Http | Participants::Kafka => {
                services
                    .create_database(&format!("{database}_shop"))
                    .await?
            }
        };
        let shop_ports: Vec<u16> = (0..participants.servers())
            .map(|_| free_port())
            .collect::<anyhow::Result<_>>()?;
        let directory = target().join(NAME).join(name);
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory)?;
        let group = topic_prefix(name) + &run;
        let prefix = format!("{group}.");
        let usual = [
            ("LAPSE__POSTGRES__URL", options.to_url_lossy().to_string()),
            ("LAPSE__KAFKA__BROKERS", services.brokers().to_owned()),
            ("LAPSE__KAFKA__PREFIX", prefix.clone()),
            ("LAPSE__KAFKA__GROUP", group.clone()),
            ("LAPSE__KAFKA__PARTITIONS", PARTITIONS.to_string()),
            ("LAPSE__KAFKA__MEMORY_MB", "64".to_owned()),
            ("LAPSE__SHOP__URL", shop_options.to_url_lossy().to_string()),
        ];
        let given = settings
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let environment = usual.map(|(key, value)| (key.to_owned(), value));
        let shop_pool = db::pool(shop_options.clone(), 6);
        let rig = Rig {
            directory,
            shop: Shop::new(shop_pool.clone()),
            pool: db::pool(options.clone(), 2),
            shop_pool,
            options,
            shop_options,
            participants,
            shop_ports,
            brokers: services.brokers().to_owned(),
            prefix,
            group,
            environment: environment.into_iter().chain(given).collect(),
        };
        rig.must(&["migrate"]).await?;
        // A broker under load shows new topics late, which `lapse` says after some seconds; what is there it leaves alone.
        let mut made = rig.must(&["topics", "create"]).await;
        for _ in 0..3 {
            if made.is_err() {
                made = rig.must(&["topics", "create"]).await;
            }
        }
        made?;
        Ok(rig)
    }

    /// A coordinator on this ground, not started yet, with a bug if one is named.
    pub fn coordinator(&self, name: &str, plant: Option<&str>) -> anyhow::Result<Process> {
        let mut environment = self.environment.clone();
        environment.extend(self.participants_settings());
        environment.extend(plant.map(|bug| ("LAPSE_PLANT".to_owned(), bug.to_owned())));
        Process::coordinator(
            name,
            environment,
            self.directory.join(format!("{name}.log")),
        )
    }

    /// The servers of the shop, not started yet; none where the coordinators serve it themselves.
    pub fn shop_servers(&self) -> Vec<Process> {
        let transports: &[&str] = match self.participants {
            Participants::InProcess | Participants::Http => &[],
            Participants::Kafka => &["--kafka"],
        };
        let server = |(n, port): (usize, &u16)| {
            let name = format!("shop-{n}");
            let log = self.directory.join(format!("{name}.log"));
            Process::shop(&name, transports, self.environment.clone(), *port, log)
        };
        self.shop_ports.iter().enumerate().map(server).collect()
    }

    /// How coordinators reach the shop.
    fn participants_settings(&self) -> Vec<(String, String)> {
        let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        let Some(port) = self.shop_ports.first() else {
            return vec![owned(("LAPSE__SHOP__ENABLED", "true"))];
        };
        let url = format!("http://127.0.0.1:{port}");
        let participants = match self.participants {
            Participants::Kafka => [
                ("LAPSE__PARTICIPANTS__ORDERS__TRANSPORT", "kafka"),
                ("LAPSE__PARTICIPANTS__STOCK__TRANSPORT", "kafka"),
            ],
            Participants::InProcess | Participants::Http => [
                ("LAPSE__PARTICIPANTS__ORDERS__URL", url.as_str()),
                ("LAPSE__PARTICIPANTS__STOCK__URL", url.as_str()),
            ],
        };
        let owner = ("LAPSE__ORDER_OWNERS__ORDERS__URL", url.as_str());
        participants.into_iter().chain([owner]).map(owned).collect()
    }

    /// `lapse verify -o json`: whether it ended in peace, and what it said.
    pub async fn verify(&self, late_after: Duration) -> anyhow::Result<(bool, Value)> {
        let late_after = format!("{}s", late_after.as_secs());
        let output = lapse(&self.environment)
            .env("LAPSE__SHOP__ENABLED", "true")
            .args(["verify", "-o", "json", "--late-after", &late_after])
            .output()
            .await?;
        let words = String::from_utf8_lossy(&output.stderr);
        let code = output.status.code();
        ensure!(
            matches!(code, Some(0 | 1)) && !output.stdout.is_empty(),
            "lapse verify could not verify: {words}"
        );
        let report =
            serde_json::from_slice(&output.stdout).context("read lapse verify's answer")?;
        Ok((code == Some(0), report))
    }

    /// Full name of a topic.
    pub fn topic(&self, short: &str) -> String {
        format!("{}{short}", self.prefix)
    }

    /// One that waits for a broker that is away, and never puts a record twice into the log by itself.
    pub fn producer(&self) -> anyhow::Result<FutureProducer> {
        let producer = ClientConfig::new()
            .set("bootstrap.servers", &self.brokers)
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("delivery.timeout.ms", "600000")
            .set("linger.ms", "2")
            .set("reconnect.backoff.max.ms", "500")
            .set("partitioner", "murmur2_random")
            .create()?;
        Ok(producer)
    }

    /// Partitions of the timers' topics with records that the coordinators have not confirmed to be done with.
    pub async fn not_done(&self) -> anyhow::Result<Vec<NotDone>> {
        let config = {
            let mut config = ClientConfig::new();
            config
                .set("bootstrap.servers", &self.brokers)
                .set("group.id", &self.group);
            config
        };
        let inputs = [self.topic("schedule"), self.topic("delay.")];
        tokio::task::spawn_blocking(move || not_done(&config, &inputs)).await?
    }

    /// The constraint that would refuse a second entry of one number.
    #[cfg(feature = "planted")]
    pub async fn drop_history_key(&self) -> anyhow::Result<()> {
        self.execute("alter table lapse.history drop constraint history_pkey")
            .await?;
        let left: i64 = sqlx::query_scalar(
            "select count(*) from pg_index i join pg_class c on c.oid = i.indrelid
             where c.relnamespace = 'lapse'::regnamespace and c.relname like 'history%' and i.indisunique",
        )
        .fetch_one(&self.pool)
        .await?;
        ensure!(left == 0, "{left} unique indexes of the history are left");
        Ok(())
    }

    /// One number from the database that has the tables, on a connection of its own: with whole tables to read, and no old
    /// connection that finds out about a restart.
    pub async fn count(&self, query: &'static str) -> anyhow::Result<i64> {
        let of_shop = query.contains(" shop.");
        let options = if of_shop {
            &self.shop_options
        } else {
            &self.options
        };
        let mut connection = options.connect().await?;
        let count = sqlx::query_scalar(query).fetch_one(&mut connection).await?;
        connection.close().await?;
        Ok(count)
    }

    #[cfg(feature = "planted")]
    async fn execute(&self, statement: &'static str) -> anyhow::Result<()> {
        let mut connection = self.options.connect().await?;
        sqlx::raw_sql(statement).execute(&mut connection).await?;
        connection.close().await?;
        Ok(())
    }

    async fn must(&self, words: &[&str]) -> anyhow::Result<()> {
        let output = lapse(&self.environment)
            .envs(self.participants_settings())
            .env("LAPSE__SHOP__ENABLED", "true")
            .args(words)
            .output()
            .await?;
        ensure!(
            output.status.success(),
            "lapse {words:?} ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }
}

/// Waits until the condition gives a value; fails with its name after `limit`.
pub async fn until<T, F, Fut>(what: &str, limit: Duration, mut condition: F) -> anyhow::Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let deadline = tokio::time::Instant::now() + limit;
    loop {
        if let Some(value) = condition().await {
            return Ok(value);
        }
        ensure!(
            tokio::time::Instant::now() < deadline,
            "not within {limit:?}: {what}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A partition and where its group stands.
#[derive(Clone, Debug)]
pub struct NotDone {
    #[allow(dead_code, reason = "for people, by Debug")]
    place: String,
    /// The first record that is not done.
    committed: i64,
    /// After the last one.
    end: i64,
}

impl NotDone {
    /// How many records that is.
    pub fn records(&self) -> i64 {
        self.end - self.committed
    }
}

fn not_done(config: &ClientConfig, inputs: &[String]) -> anyhow::Result<Vec<NotDone>> {
    let consumer: BaseConsumer = config.create()?;
    let metadata = consumer.fetch_metadata(None, BROKER_PATIENCE)?;
    let mut places = TopicPartitionList::new();
    for topic in metadata.topics() {
        if inputs.iter().any(|input| topic.name().starts_with(input)) {
            for partition in topic.partitions() {
                places.add_partition(topic.name(), partition.id());
            }
        }
    }
    let mut not_done = Vec::new();
    for of in consumer
        .committed_offsets(places, BROKER_PATIENCE)?
        .elements()
    {
        let (begin, end) =
            consumer.fetch_watermarks(of.topic(), of.partition(), BROKER_PATIENCE)?;
        let committed = match of.offset() {
            Offset::Offset(offset) => offset,
            _ => begin,
        };
        if committed < end {
            let place = format!("{}/{}", of.topic(), of.partition());
            not_done.push(NotDone {
                place,
                committed,
                end,
            });
        }
    }
    Ok(not_done)
}
