//! Settings: defaults < TOML file < environment (`LAPSE__SECTION__KEY`) < flags. Unknown keys are refused.
//! Lists are separated by commas where a setting is one text.
//!
//! Relies on the `config` crate for layering. Never: reads the environment anywhere else.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use lapse_sagas::Span;
use serde::{Deserialize, Serialize};

use crate::store::db;

mod alerts;
mod check;
mod exposed;
mod layers;
mod order_owners;
mod participants;
mod remote;
mod secret;
#[cfg(test)]
mod tests;
mod tokens;
mod unquoted;

pub use alerts::{Alerts, Webhook};
pub use exposed::Exposed;
pub use order_owners::{Columns, DueUnit, OrderOwner};
pub use participants::{Participant, Transport};
pub use secret::Secret;
pub use tokens::{Access, Token};
use unquoted::unquoted;

/// Everything that can be set.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The coordinator's database.
    pub postgres: Postgres,
    /// The broker, the topics and the timers.
    pub kafka: Kafka,
    /// The HTTP interface.
    pub http: Http,
    /// How sagas are driven.
    pub executor: Executor,
    /// The safety net.
    pub sweep: Sweep,
    /// The reference shop as participants `orders` and `stock`.
    pub shop: Shop,
    /// Participants outside this process, by the names that definitions use.
    pub participants: BTreeMap<String, Participant>,
    /// Order owners outside this process, by the names that definitions use.
    pub order_owners: BTreeMap<String, OrderOwner>,
    /// What `lapse outbox-relay` empties.
    pub outbox: Outbox,
    /// Where alerts go beside the log and the topic.
    pub alerts: Alerts,
    /// Definition files.
    pub definitions: Definitions,
    /// Logs.
    pub log: Log,
}

/// `[postgres]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Postgres {
    /// `postgres://user:password@host:port/database`. `DATABASE_URL` is honoured too.
    pub url: String,
    /// Connections of the coordinator's own work.
    pub writers: u32,
    /// Connections of the views, the command line and HTTP.
    pub readers: u32,
}

/// `[kafka]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Kafka {
    /// `host:port[,host:port…]`. `KAFKA_BROKERS` is honoured too.
    pub brokers: String,
    /// Before every topic name; the dot belongs to it: `own.` makes `own.schedule`, `own` makes `ownschedule`.
    pub prefix: String,
    /// The consumer group that shares the timers.
    pub group: String,
    /// Static membership: unique per process and the same after its restart. Default: host name and HTTP port.
    pub instance_id: String,
    /// Memory for prefetched and waiting records of all partitions together.
    pub memory_mb: u64,
    /// Delays of the buckets, ascending.
    pub buckets: Vec<Span>,
    /// Partitions of topics that `lapse topics create` makes.
    pub partitions: i32,
    /// Replicas of them; -1: the brokers' default.
    pub replication: i32,
    /// A file with `sasl.password`, in place of that property; read at start.
    pub password_file: PathBuf,
    /// More settings for librdkafka, as it names them (`security.protocol`, …). In the environment an underscore stands
    /// for the dot: `LAPSE__KAFKA__PROPERTIES__SECURITY_PROTOCOL`.
    #[serde(deserialize_with = "layers::properties")]
    pub properties: BTreeMap<String, String>,
}

/// `[http]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// Loopback only, unless there are tokens: any other address is refused.
    #[serde(deserialize_with = "layers::address")]
    pub listen: std::net::SocketAddr,
    /// Who may use it, by names that histories show; without any everybody who reaches it.
    pub tokens: BTreeMap<String, Token>,
}

/// `[executor]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Executor {
    /// Commands per call at most.
    pub batch_max: usize,
    /// Calls at a time per step.
    pub slots: usize,
    /// Sagas in hand at most.
    pub held_max: usize,
    /// How often rows past their wake-up time are looked for.
    pub poll: Span,
}

/// `[sweep]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sweep {
    /// Off only for experiments: without it a lost record is a lost order.
    pub enabled: bool,
    /// How often.
    pub every: Span,
}

/// `[shop]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Shop {
    /// Serve `orders` and `stock` from this process.
    pub enabled: bool,
    /// Its database; empty: the coordinator's.
    pub url: String,
    /// Its connections.
    pub connections: u32,
}

/// `[outbox]`
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Outbox {
    /// The database it is in: `postgres://…` or `mysql://…`.
    pub url: String,
}

/// `[definitions]`
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Definitions {
    /// Files or directories of `*.yaml`; empty: the shipped cancel-and-replenish.
    pub paths: Vec<PathBuf>,
}

/// `[log]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// `text` or `json`.
    pub format: LogFormat,
    /// As in `RUST_LOG`, which is honoured too.
    pub filter: String,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One object per line.
    Json,
}

impl Default for Postgres {
    fn default() -> Self {
        Postgres {
            url: "postgres://127.0.0.1/lapse".to_owned(),
            writers: db::WRITERS,
            readers: db::READERS,
        }
    }
}

impl Default for Kafka {
    fn default() -> Self {
        let delays = ["5s", "15s", "1m", "5m", "15m", "30m", "2h", "24h"];
        Kafka {
            brokers: "127.0.0.1:9092".to_owned(),
            prefix: "lapse.".to_owned(),
            group: "lapse".to_owned(),
            instance_id: String::new(),
            memory_mb: 256,
            buckets: delays
                .iter()
                .filter_map(|delay| delay.parse().ok())
                .collect(),
            partitions: 8,
            replication: -1,
            password_file: PathBuf::new(),
            properties: BTreeMap::new(),
        }
    }
}

impl Default for Http {
    fn default() -> Self {
        Http {
            listen: ([127, 0, 0, 1], 8380).into(),
            tokens: BTreeMap::new(),
        }
    }
}

impl Default for Executor {
    fn default() -> Self {
        let defaults = crate::executor::Settings::default();
        Executor {
            batch_max: defaults.batch_max,
            slots: defaults.slots,
            held_max: defaults.held_max,
            poll: Span::from_millis(200),
        }
    }
}

impl Default for Sweep {
    fn default() -> Self {
        Sweep {
            enabled: true,
            every: Span::from_secs(5),
        }
    }
}

impl Default for Shop {
    fn default() -> Self {
        Shop {
            enabled: false,
            url: String::new(),
            connections: 8,
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Log {
            format: LogFormat::Text,
            filter: "info".to_owned(),
        }
    }
}

/// Reads all layers. `file` must exist if given; `lapse.toml` in the working directory is read if it is there.
/// `flags` are `section.key` and a value, the strongest layer.
///
/// # Errors
/// What is wrong, in which layer, under which key.
pub fn load(file: Option<&Path>, flags: &[(String, String)]) -> anyhow::Result<Config> {
    let defaults =
        ::config::Config::try_from(&Config::default()).context("read the default settings")?;
    let required = file.is_some();
    let file = ::config::File::from(settings_file(file)).required(required);
    let mut builder = ::config::Config::builder()
        .add_source(defaults)
        .add_source(file.format(::config::FileFormat::Toml));
    for (key, text) in layers::environment(std::env::vars_os())? {
        builder = builder
            .set_override(&key, layers::value(&key, &text)?)
            .map_err(unquoted)
            .with_context(|| format!("set {key} from the environment"))?;
    }
    for (key, text) in flags {
        builder = builder
            .set_override(key, layers::value(key, text)?)
            .map_err(unquoted)
            .with_context(|| format!("set {key} from a flag"))?;
    }
    let mut config: Config = builder
        .build()
        .map_err(unquoted)
        .context("read the settings")?
        .try_deserialize()
        .map_err(unquoted)
        .context("read the settings (file, LAPSE__SECTION__KEY variables, flags)")?;
    config.kafka.read_password()?;
    config.check()?;
    Ok(config)
}

/// The settings file, if it holds a secret that others may read.
pub fn exposed(file: Option<&Path>) -> Option<Exposed> {
    exposed::look(settings_file(file))
}

fn settings_file(file: Option<&Path>) -> &Path {
    file.unwrap_or(Path::new("lapse.toml"))
}

impl Kafka {
    fn read_password(&mut self) -> anyhow::Result<()> {
        let file = &self.password_file;
        if file.as_os_str().is_empty() {
            return Ok(());
        }
        let password = std::fs::read_to_string(file)
            .with_context(|| format!("kafka.password_file: read {}", file.display()))?;
        let password = password.trim_end_matches(['\r', '\n']).to_owned();
        let before = self.properties.insert("sasl.password".to_owned(), password);
        anyhow::ensure!(
            before.is_none(),
            "kafka.password_file and kafka.properties.sasl.password are both set; take one away"
        );
        Ok(())
    }
}

impl Config {
    /// The name under which this process is a member of the group.
    pub fn instance_id(&self) -> String {
        if !self.kafka.instance_id.is_empty() {
            return self.kafka.instance_id.clone();
        }
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
            .unwrap_or_else(|_| "lapse".to_owned());
        format!("{}-{}", host.trim(), self.http.listen.port())
    }

    /// What the timers need to know.
    pub fn kafka_settings(&self) -> crate::kafka::Settings {
        crate::kafka::Settings {
            brokers: self.kafka.brokers.clone(),
            prefix: self.kafka.prefix.clone(),
            group: self.kafka.group.clone(),
            instance_id: Some(self.instance_id()),
            memory_mb: self.kafka.memory_mb,
            buckets: self.kafka.buckets.clone(),
            partitions: self.kafka.partitions,
            replication: self.kafka.replication,
            queued: self.queued(),
            extra: self.kafka.properties.clone(),
        }
    }

    /// The participants that are reached over Kafka.
    pub fn queued(&self) -> Vec<String> {
        let queued = self.participants.iter();
        queued
            .filter(|(_, participant)| participant.transport == Transport::Kafka)
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Where the shop's tables are.
    pub fn shop_url(&self) -> &str {
        if self.shop.url.is_empty() {
            &self.postgres.url
        } else {
            &self.shop.url
        }
    }

    /// How long the poll pauses when nothing is due.
    pub fn poll(&self) -> Duration {
        self.executor.poll.into()
    }
}
