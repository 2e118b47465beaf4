//! One process of Lapse from its settings: database, topics, participants, coordinator, HTTP.
//!
//! Relies on everything else. Never: migrates or creates topics unasked; what is missing is said in words.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use lapse_sagas::Definition;
use metrics_exporter_prometheus::PrometheusHandle;
use sqlx::postgres::{PgConnectOptions, PgPool};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::bus::{self, Bus};
use crate::clock::{Anchored, Clock};
use crate::config::Config;
use crate::coordinator::{Coordinator, DRAIN_WITHIN, Parts};
use crate::definitions::Definitions;
use crate::executor::Participants;
use crate::feed::Feed;
use crate::http;
use crate::intake;
use crate::kafka::{KafkaBus, KafkaFeed};
use crate::participants;
use crate::replay::Replay;
use crate::store::db::Db;
use crate::store::ops::Ops;
use crate::store::pg::PgStore;
use crate::store::schema;
use crate::store::webhooks::Deliveries;
use crate::store::{self, Store};
use crate::tls;
use crate::webhooks::{self, Deliverer};

/// The definition that is used where none is named.
pub const SHIPPED: (&str, &str) = (
    "cancel-and-replenish.yaml",
    include_str!("../../sagas/definitions/cancel-and-replenish.yaml"),
);
/// How often the clock's anchor is renewed.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How often dead letters are counted for the metrics.
const COUNT_EVERY: Duration = Duration::from_secs(10);
/// Each waits for its locks for a second.
const DEPLOY_TRIES: u32 = 20;

/// A running process.
pub struct Service {
    coordinator: Coordinator,
    bus: Arc<dyn Bus>,
    http: JoinHandle<()>,
    stop: CancellationToken,
}

impl Service {
    /// Starts everything. The tables and topics must be there.
    ///
    /// # Errors
    /// What is missing or refused, and what to do.
    pub async fn start(config: &Config, metrics: PrometheusHandle) -> anyhow::Result<Service> {
        let listen = config.http.listen;
        let listener = TcpListener::bind(listen)
            .await
            .with_context(|| format!("listen on {listen}; choose another with http.listen"))?;
        Service::start_on(listener, config, metrics).await
    }

    /// The same on a listener that is bound already; `http.listen` only names it.
    ///
    /// # Errors
    /// As [`Service::start`].
    pub async fn start_on(
        listener: TcpListener,
        config: &Config,
        metrics: PrometheusHandle,
    ) -> anyhow::Result<Service> {
        let db = database(config)?;
        let ops = Ops::new(db.clone());
        let webhooks = open_webhooks(config, &db)?;
        let store = PgStore::new(db).telling(webhooks::routes(&config.alerts));
        let store: Arc<dyn Store> = Arc::new(store);
        let clock = Arc::new(
            Anchored::new(store.clone())
                .await
                .context("ask the database for the time")?,
        );
        let definitions = load_definitions(&config.definitions.paths)?;
        // Boxed: as part of this future it is nested deeper than the compiler likes.
        let mut participants = Box::pin(participants::open(config)).await?;
        refuse_unserved(&definitions, &participants)?;
        deploy(store.as_ref(), &definitions).await?;
        let definitions = Arc::new(
            Definitions::load(store.clone())
                .await
                .context("load the active definitions")?,
        );
        let bus: Arc<dyn Bus> = Arc::new(start_bus(config, &clock, &definitions)?);
        participants.queued.replies = start_replies(config)?;
        let parts = Parts {
            store: store.clone(),
            bus: bus.clone(),
            clock: clock.clone(),
            definitions: definitions.clone(),
            participants,
            webhooks,
        };
        let coordinator = Coordinator::start(parts, config);
        let stop = CancellationToken::new();
        tokio::spawn(keep_time(clock.clone(), stop.clone()));
        tokio::spawn(count_letters(ops.clone(), stop.clone()));
        let replay = Replay::new(
            store.clone(),
            ops.clone(),
            definitions.clone(),
            config.kafka_settings(),
        );
        let site = http::Site {
            executor: coordinator.executor(),
            store,
            ops,
            bus: bus.clone(),
            definitions,
            clock,
            replay,
            tokens: config.http.tokens.clone(),
            metrics,
            failed: coordinator.failed(),
        };
        let http = tokio::spawn(http::serve(listener, http::router(site), stop.clone()));
        Ok(Service {
            coordinator,
            bus,
            http,
            stop,
        })
    }

    /// Kafka, for whoever else in this process has messages.
    pub fn bus(&self) -> Arc<dyn Bus> {
        self.bus.clone()
    }

    /// Waits until a part of the coordinator has ended by itself.
    pub async fn failed(&self) {
        self.coordinator.failed().cancelled().await;
    }

    /// Drains and stops.
    pub async fn stop(self) {
        self.coordinator.drain(DRAIN_WITHIN).await;
        self.stop.cancel();
        let _ = tokio::time::timeout(Duration::from_secs(1), self.http).await;
    }
}

/// Coordinators that start together wait for each other here, longer than one lock time-out on a slow day.
async fn deploy(store: &dyn Store, definitions: &[Arc<Definition>]) -> anyhow::Result<()> {
    let mut tries = 1;
    loop {
        match store.deploy(definitions).await {
            Err(store::Error::Slow(why)) if tries < DEPLOY_TRIES => {
                tries += 1;
                info!(why, tries, "another coordinator is deploying; again");
            }
            deployed => return deployed.map(drop).context("deploy the definitions"),
        }
    }
}

/// A process that could never do its work with these settings.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unfit(pub(crate) String);

/// A file or directory of definitions that can't be read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotThere(String);

/// Without its participants a definition's sagas would wait for ever, and without its order owner the sweep would skip it.
fn refuse_unserved(
    definitions: &[Arc<Definition>],
    participants: &Participants,
) -> Result<(), Unfit> {
    for definition in definitions {
        let missing = participants.missing(definition);
        if !missing.is_empty() {
            let urls: Vec<String> = missing.iter().map(|key| format!("{key}.url")).collect();
            return Err(Unfit(format!(
                "nobody serves what definition {} needs; set {}, or try the reference shop with shop.enabled = true",
                definition.name(),
                urls.join(" and ")
            )));
        }
    }
    Ok(())
}

/// Brings the tables of the coordinator, and of the shop if it is served here, up to this version. Any number of
/// processes at once.
///
/// # Errors
/// As Postgres says.
pub async fn migrate(config: &Config) -> anyhow::Result<()> {
    schema::migrate(&database(config)?)
        .await
        .context("migrate the coordinator's tables")?;
    if config.shop.enabled {
        let pool = shop_database(config)?;
        lapse_participants::shop::migrate(&pool)
            .await
            .context("migrate the shop's tables")?;
    }
    Ok(())
}

/// The coordinator's database.
///
/// # Errors
/// If the URL is not one.
pub fn database(config: &Config) -> anyhow::Result<Db> {
    Ok(Db::open(
        parse_url(&config.postgres.url, "postgres.url")?,
        config.postgres.writers,
        config.postgres.readers,
    ))
}

/// The shop's database.
///
/// # Errors
/// If the URL is not one.
pub fn shop_database(config: &Config) -> anyhow::Result<PgPool> {
    let options = parse_url(config.shop_url(), "shop.url")?;
    Ok(lapse_participants::kit::db::pool(
        options,
        config.shop.connections,
    ))
}

fn parse_url(url: &str, key: &str) -> anyhow::Result<PgConnectOptions> {
    tls::postgres(url)
        .with_context(|| format!("{key} is not postgres://user:password@host:port/database"))
}

/// Reads definition files; directories give their `*.yaml`. Without any, the shipped definition.
///
/// # Errors
/// Every problem of every file.
pub fn load_definitions(paths: &[PathBuf]) -> anyhow::Result<Vec<Arc<Definition>>> {
    let mut problems = Vec::new();
    let mut definitions = Vec::new();
    for (file, text) in definition_texts(paths)? {
        match Definition::parse(&file, &text) {
            Ok(definition) => definitions.push(definition),
            Err(found) => problems.extend(found),
        }
    }
    problems.extend(lapse_sagas::routing::overlaps(
        &definitions.iter().collect::<Vec<_>>(),
    ));
    if problems.is_empty() {
        return Ok(definitions.into_iter().map(Arc::new).collect());
    }
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    let words = format!("the definitions are not right:\n{}", lines.join("\n"));
    Err(Unfit(words).into())
}

/// File names and contents of definitions.
///
/// # Errors
/// If a file or directory can't be read.
pub fn definition_texts(paths: &[PathBuf]) -> Result<Vec<(String, String)>, NotThere> {
    if paths.is_empty() {
        return Ok(vec![(SHIPPED.0.to_owned(), SHIPPED.1.to_owned())]);
    }
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            files.extend(yaml_files(path)?);
        } else {
            files.push(path.clone());
        }
    }
    files
        .into_iter()
        .map(|file| {
            let text = std::fs::read_to_string(&file).map_err(|error| unread(&file, &error))?;
            Ok((file.display().to_string(), text))
        })
        .collect()
}

fn unread(path: &Path, error: &std::io::Error) -> NotThere {
    NotThere(format!("read {}: {error}", path.display()))
}

fn yaml_files(directory: &Path) -> Result<Vec<PathBuf>, NotThere> {
    let entries = std::fs::read_dir(directory).map_err(|error| unread(directory, &error))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "yaml" || extension == "yml")
        })
        .collect();
    files.sort();
    Ok(files)
}

/// All coordinators of a group share the replies too: whoever reads one settles it.
fn start_replies(config: &Config) -> anyhow::Result<Option<Arc<dyn Feed>>> {
    if config.queued().is_empty() {
        return Ok(None);
    }
    let group = format!("{}.replies", config.kafka.group);
    let feed = KafkaFeed::group(&config.kafka_settings(), &group, &[bus::REPLIES])
        .context("start reading replies from Kafka")?;
    Ok(Some(Arc::new(feed)))
}

fn open_webhooks(config: &Config, db: &Db) -> anyhow::Result<Vec<Deliverer>> {
    let deliverer = |webhook| Deliverer {
        webhook,
        deliveries: Deliveries::new(db.clone()),
    };
    let webhooks = webhooks::open(&config.alerts).map_err(|error| Unfit(format!("{error:#}")))?;
    Ok(webhooks.into_iter().map(deliverer).collect())
}

fn start_bus(
    config: &Config,
    clock: &Arc<Anchored>,
    definitions: &Arc<Definitions>,
) -> anyhow::Result<KafkaBus> {
    let now: bus::Clock = {
        let clock = clock.clone();
        Arc::new(move || clock.now())
    };
    let definitions = definitions.clone();
    let due_time: bus::DueTime = Arc::new(move |value, bucket, appended_at, now| {
        intake::due_time(&definitions, value, bucket, appended_at, now)
    });
    KafkaBus::start(&config.kafka_settings(), due_time, now).context("start the timers on Kafka")
}

async fn keep_time(clock: Arc<Anchored>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        if let Err(error) = clock.look().await {
            warn!(%error, "the database does not tell the time; the old anchor serves on");
        }
        let _ = tokio::time::timeout(LOOK_EVERY, stop.cancelled()).await;
    }
}

/// How many dead letters are in which state: alerts watch the open ones.
async fn count_letters(ops: Ops, stop: CancellationToken) {
    while !stop.is_cancelled() {
        match ops.letters_by_state().await {
            Ok(states) => {
                for one in states {
                    metrics::gauge!("lapse_dead_letters", "state" => one.state)
                        .set(one.letters as f64);
                }
            }
            Err(error) => warn!(%error, "dead letters were not counted"),
        }
        let _ = tokio::time::timeout(COUNT_EVERY, stop.cancelled()).await;
    }
}
