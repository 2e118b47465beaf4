//! The private Postgres and Kafka named `crash`, started, stopped and killed by the project's own scripts.
//!
//! Relies on a file lock over all processes of this checkout: a test that takes the servers down has them alone, the others
//! share them. Whoever is the last to leave stops them. Never: touches servers that tests outside this folder use.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection};

/// The name of both servers.
pub const NAME: &str = "crash";
/// What scripts/kafka says when none can be had.
const NONE_TO_BE_HAD: i32 = 3;

/// Both servers, running until this is dropped.
pub struct Services {
    postgres: PgConnectOptions,
    brokers: String,
    _turn: Turn,
}

impl Services {
    /// Starts both for a test that will take them down. None if there is no Kafka for this machine: then the test is
    /// noted as left out.
    pub async fn alone(test: &str) -> anyhow::Result<Option<Services>> {
        let turn = tokio::task::spawn_blocking(|| Turn::take(File::lock)).await??;
        Services::start(test, turn).await
    }

    /// The same for one that leaves them up.
    #[cfg(feature = "planted")]
    pub async fn shared(test: &str) -> anyhow::Result<Option<Services>> {
        let turn = tokio::task::spawn_blocking(|| Turn::take(File::lock_shared)).await??;
        Services::start(test, turn).await
    }

    async fn start(test: &str, turn: Turn) -> anyhow::Result<Option<Services>> {
        lapse::tls::install();
        let code = script("kafka", &["start"]).await?;
        if code == NONE_TO_BE_HAD {
            leave_out(test)?;
            return Ok(None);
        }
        ensure!(code == 0, "scripts/kafka start ended with {code}");
        // It is killed here, so what it has confirmed must be on disk.
        let code = script("postgres", &["start", "--fsync", "on"]).await?;
        ensure!(code == 0, "scripts/postgres start ended with {code}");
        Ok(Some(Services {
            postgres: url("postgres").await?.parse()?,
            brokers: url("kafka").await?,
            _turn: turn,
        }))
    }

    /// `host:port`.
    pub fn brokers(&self) -> &str {
        &self.brokers
    }

    /// Creates a database.
    pub async fn create_database(&self, name: &str) -> anyhow::Result<PgConnectOptions> {
        self.administer(format!("create database {name}")).await?;
        Ok(self.postgres.clone().database(name))
    }

    /// `start`, `stop`, `restart` or `kill` of `postgres` or `kafka`.
    pub async fn tell(&self, service: &str, command: &str) -> anyhow::Result<()> {
        let code = script(service, &[command]).await?;
        ensure!(code == 0, "scripts/{service} {command} ended with {code}");
        if command != "stop" && command != "kill" {
            let (was, is) = match service {
                "kafka" => (self.brokers.clone(), url("kafka").await?),
                _ => {
                    let options: PgConnectOptions = url("postgres").await?.parse()?;
                    (
                        self.postgres.get_port().to_string(),
                        options.get_port().to_string(),
                    )
                }
            };
            ensure!(was == is, "{service} moved from {was} to {is}: run again");
        }
        Ok(())
    }

    async fn administer(&self, statement: String) -> anyhow::Result<()> {
        let mut connection = self.postgres.connect().await.context("reach Postgres")?;
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement))
            .execute(&mut connection)
            .await?;
        connection.close().await?;
        Ok(())
    }

    /// Drops a scenario's databases and topics of former runs: they stay to be looked at until its next run, not longer.
    pub async fn clear(&self, scenario: &str) -> anyhow::Result<()> {
        let mut connection = self.postgres.connect().await.context("reach Postgres")?;
        let names: Vec<String> =
            sqlx::query_scalar("select datname from pg_database where starts_with(datname, $1)")
                .bind(database_prefix(scenario))
                .fetch_all(&mut connection)
                .await?;
        connection.close().await?;
        for name in names {
            self.administer(format!("drop database {name} with (force)"))
                .await?;
        }
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.brokers);
        let (listing, prefix): (BaseConsumer, String) = (config.create()?, topic_prefix(scenario));
        let topics = tokio::task::spawn_blocking(move || {
            let metadata = listing.fetch_metadata(None, Duration::from_secs(10))?;
            let topics = metadata.topics().iter();
            let names = topics.map(|topic| topic.name().to_owned());
            let ours: Vec<String> = names.filter(|name| name.starts_with(&prefix)).collect();
            anyhow::Ok(ours)
        });
        let topics = topics.await?.context("list the broker's topics")?;
        if !topics.is_empty() {
            let admin: AdminClient<DefaultClientContext> = config.create()?;
            let names: Vec<&str> = topics.iter().map(String::as_str).collect();
            admin.delete_topics(&names, &AdminOptions::new()).await?;
        }
        Ok(())
    }
}

/// How the names of a scenario's databases begin.
pub fn database_prefix(scenario: &str) -> String {
    format!("{NAME}_{}_", scenario.replace('-', "_"))
}

/// How the names of a scenario's topics and consumer groups begin.
pub fn topic_prefix(scenario: &str) -> String {
    format!("{NAME}-{scenario}-")
}

/// The right to use the servers.
struct Turn(File);

/// Tests of this process that use the servers or wait for them.
static IN_LINE: AtomicUsize = AtomicUsize::new(0);

impl Turn {
    /// Waits for it.
    fn take(lock: fn(&File) -> std::io::Result<()>) -> anyhow::Result<Turn> {
        let directory = target().join(NAME);
        std::fs::create_dir_all(&directory)?;
        let file = File::create(directory.join("lock"))?;
        IN_LINE.fetch_add(1, Ordering::SeqCst);
        let turn = Turn(file);
        lock(&turn.0).context("wait for other crash tests to finish")?;
        Ok(turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let is_last = IN_LINE.fetch_sub(1, Ordering::SeqCst) == 1;
        let unused = || self.0.unlock().is_ok() && self.0.try_lock().is_ok();
        if !is_last || !unused() {
            return;
        }
        for service in ["kafka", "postgres"] {
            let stopped = std::process::Command::new(scripts().join(service))
                .args(["stop", "--name", NAME])
                .status();
            if !stopped.as_ref().is_ok_and(|status| status.success()) {
                eprintln!("scripts/{service} stop --name {NAME}: {stopped:?}");
            }
        }
    }
}

/// Where results and logs go.
pub fn target() -> PathBuf {
    let inside = Path::new(env!("CARGO_TARGET_TMPDIR"));
    inside.parent().unwrap_or(inside).to_owned()
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts")
}

async fn script(service: &str, words: &[&str]) -> anyhow::Result<i32> {
    let status = command(service, words).stdout(Stdio::null()).status().await;
    let status = status.with_context(|| format!("run scripts/{service}"))?;
    status
        .code()
        .with_context(|| format!("scripts/{service} {words:?} was killed"))
}

async fn url(service: &str) -> anyhow::Result<String> {
    let output = command(service, &["url"]).output().await?;
    ensure!(output.status.success(), "scripts/{service} url failed");
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn command(service: &str, words: &[&str]) -> tokio::process::Command {
    let mut command = tokio::process::Command::new(scripts().join(service));
    command
        .args(words)
        .args(["--name", NAME])
        .stdin(Stdio::null());
    command
}

/// Says loudly that a test did not run, where scripts/test counts it.
fn leave_out(test: &str) -> anyhow::Result<()> {
    eprintln!(
        "LEFT OUT: crash::{test}, because there is no real Kafka (scripts/kafka get says what to install)"
    );
    if let Ok(path) = std::env::var("LAPSE_TEST_LEFT_OUT") {
        let file = File::options().create(true).append(true).open(&path);
        writeln!(
            file.with_context(|| format!("write {path}"))?,
            "crash::{test}"
        )?;
    }
    Ok(())
}
