//! `lapse dev`: everything on this machine in one process, to try Lapse out.
//!
//! A private Postgres in `.lapse/`, an in-process broker that any Kafka client can join (its address is in
//! `.lapse/dev.env`), the reference shop, and a stream of orders with deadlines of a few seconds. Relies on the same
//! [`Service`] as `lapse run`. Never: for production; the broker is small and forgets on restart, and says so.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;

use crate::config::Config;
use crate::service::{self, Service};

pub mod broker;
mod leftovers;
mod lock;
pub mod postgres;
mod report;
mod stream;

pub use report::Report;

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where Postgres and the address file live.
    pub home: PathBuf,
    /// How many orders the shop places.
    pub orders: usize,
    /// Chooses their fates.
    pub seed: u64,
}

/// What a caller may act on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process has this home.
    #[error("lapse dev is already running in {}; stop it, or choose another --home", .0.display())]
    Running(PathBuf),
}

/// A running `lapse dev`. Fields are stopped from first to last.
pub struct Dev {
    service: Service,
    config: Config,
    began: Instant,
    _broker: broker::Broker,
    _postgres: postgres::PrivatePostgres,
    _lock: lock::Lock,
}

impl Dev {
    /// Starts everything; says on stderr what and where. What has been started is stopped if this fails or is dropped.
    ///
    /// # Errors
    /// [`Error::Running`], and then nothing was touched; else what is missing on this machine and how to get it.
    pub async fn start(
        options: &Options,
        mut config: Config,
        metrics: PrometheusHandle,
    ) -> anyhow::Result<Dev> {
        let began = Instant::now();
        let lock = lock::Lock::take(&options.home)?;
        let postgres = postgres::PrivatePostgres::start(&options.home)?;
        say(
            began,
            &format!("{} in {}", postgres.version(), options.home.display()),
        );
        config.postgres.url = postgres.url().to_owned();
        config.shop.enabled = true;
        let listener = listen(config.http.listen).await?;
        config.http.listen = listener.local_addr()?;
        config.kafka.partitions = 2;
        let broker = broker::Broker::start(&config.kafka_settings())
            .context("start the in-process broker")?;
        config.kafka.brokers = broker.address().to_owned();
        say(
            began,
            &format!(
                "broker on {} (in this process: small, and it forgets when it stops; the sweep picks up what it forgot)",
                broker.address()
            ),
        );
        let file = write_address_file(&options.home, &config)?;
        say(
            began,
            &format!("other programs may join: . {}", file.display()),
        );
        service::migrate(&config).await?;
        let service = Service::start_on(listener, &config, metrics).await?;
        say(
            began,
            &format!("coordinator started, http://{}/metrics", config.http.listen),
        );
        Ok(Dev {
            service,
            config,
            began,
            _broker: broker,
            _postgres: postgres,
            _lock: lock,
        })
    }

    /// Lets the shop place its orders and waits until each has found its end, then counts.
    ///
    /// # Errors
    /// If an order did not come to rest in time, or a database did not answer.
    pub async fn stream(&self, options: &Options) -> anyhow::Result<Report> {
        let tally = stream::run(&self.config, self.service.bus(), self.began, options).await?;
        report::make(&self.config, options.seed, tally).await
    }

    /// Drains the coordinator, then stops the broker and Postgres.
    pub async fn stop(self) {
        self.service.stop().await;
    }
}

/// A line of what happens, with the seconds since the start, on stderr.
fn say(began: Instant, text: &str) {
    let _ = writeln!(
        std::io::stderr(),
        "{:7.3} s  {text}",
        began.elapsed().as_secs_f64()
    );
}

/// On the configured address, or on any free port where that one is taken.
async fn listen(wanted: std::net::SocketAddr) -> anyhow::Result<TcpListener> {
    match TcpListener::bind(wanted).await {
        Ok(listener) => Ok(listener),
        Err(_) => TcpListener::bind((wanted.ip(), 0))
            .await
            .context("find a free port"),
    }
}

fn write_address_file(home: &Path, config: &Config) -> anyhow::Result<PathBuf> {
    let file = home.join("dev.env");
    let lines = [
        "# Written by lapse dev; true while it runs. Use: set -a; . this file; set +a".to_owned(),
        format!("DATABASE_URL='{}'", config.postgres.url),
        format!("KAFKA_BROKERS='{}'", config.kafka.brokers),
        format!("LAPSE__HTTP__LISTEN='{}'", config.http.listen),
        "LAPSE__SHOP__ENABLED='true'".to_owned(),
        String::new(),
    ];
    fs::write(&file, lines.join("\n")).with_context(|| format!("write {}", file.display()))?;
    Ok(file)
}
