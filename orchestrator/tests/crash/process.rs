//! One process of the binary under test, a coordinator or a server of the shop: started, killed, stopped, continued,
//! drained.
//!
//! Relies on `/readyz` and `/metrics`; its log is appended to one file over all of its starts. Never: survives the test.

use std::fs::File;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use tokio::process::{Child, Command};

use crate::rig::until;

const READY_WITHIN: Duration = Duration::from_secs(60);
/// The promise of `lapse run` and `lapse shop serve`: SIGTERM to exit.
const DRAINED_WITHIN: Duration = Duration::from_secs(10);

/// A process.
pub struct Process {
    name: String,
    words: Vec<String>,
    environment: Vec<(String, String)>,
    port: u16,
    log: PathBuf,
    child: Option<Child>,
}

impl Process {
    /// A coordinator, not started yet. It keeps its port, its member name and its log over all starts.
    pub fn coordinator(
        name: &str,
        mut environment: Vec<(String, String)>,
        log: PathBuf,
    ) -> anyhow::Result<Process> {
        let port = free_port()?;
        let own = [
            ("LAPSE__HTTP__LISTEN", format!("127.0.0.1:{port}")),
            ("LAPSE__KAFKA__INSTANCE_ID", format!("crash-{name}")),
        ];
        environment.extend(own.map(|(key, value)| (key.to_owned(), value)));
        Ok(Process {
            name: name.to_owned(),
            words: vec!["run".to_owned()],
            environment,
            port,
            log,
            child: None,
        })
    }

    /// A server of the shop, not started yet, on a port of its own that it keeps. `transports` are its further flags.
    pub fn shop(
        name: &str,
        transports: &[&str],
        mut environment: Vec<(String, String)>,
        port: u16,
        log: PathBuf,
    ) -> Process {
        let instance_id = (
            "LAPSE__KAFKA__INSTANCE_ID".to_owned(),
            format!("crash-{name}"),
        );
        environment.push(instance_id);
        let listen = format!("127.0.0.1:{port}");
        let words = ["shop", "serve", "--listen", &listen];
        let words = words.iter().chain(transports);
        Process {
            name: name.to_owned(),
            words: words.map(|word| (*word).to_owned()).collect(),
            environment,
            port,
            log,
            child: None,
        }
    }

    /// What it is called in logs.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Starts the process, ready or not.
    pub fn start(&mut self) -> anyhow::Result<()> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = lapse(&self.environment);
        command
            .args(&self.words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        self.child = Some(
            command
                .spawn()
                .with_context(|| format!("start lapse {:?}", self.words))?,
        );
        Ok(())
    }

    /// Until it says that it is ready.
    pub async fn ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        while !self.is_ready().await {
            self.still_runs()?;
            ensure!(
                Instant::now() < deadline,
                "{} is not ready after {READY_WITHIN:?}, see {}",
                self.name,
                self.log.display()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// SIGKILL.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.still_runs()?;
        let mut child = self.child.take().context("it runs")?;
        child
            .kill()
            .await
            .with_context(|| format!("kill {}", self.name))
    }

    /// SIGSTOP: it keeps its connections, its memory and its opinion of the world.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        self.signal("STOP").await
    }

    /// SIGCONT.
    pub async fn go_on(&mut self) -> anyhow::Result<()> {
        self.signal("CONT").await
    }

    /// SIGTERM; how long it took to the end, which must be in time and in peace.
    pub async fn drain(&mut self) -> anyhow::Result<Duration> {
        let began = Instant::now();
        self.signal("TERM").await?;
        let mut child = self.child.take().context("it runs")?;
        let status = tokio::time::timeout(DRAINED_WITHIN, child.wait())
            .await
            .with_context(|| {
                format!("{} still runs {DRAINED_WITHIN:?} after SIGTERM", self.name)
            })??;
        ensure!(
            status.success(),
            "{} ended with {status} after SIGTERM, see {}",
            self.name,
            self.log.display()
        );
        Ok(began.elapsed())
    }

    /// The sum over all series of a metric.
    #[cfg(feature = "planted")]
    pub async fn metric(&self, name: &str) -> anyhow::Result<f64> {
        let url = format!("http://127.0.0.1:{}/metrics", self.port);
        let text = reqwest::get(url).await?.text().await?;
        let value = |line: &str| {
            let rest = line.strip_prefix(name)?;
            let own = rest.starts_with('{') || rest.starts_with(' ');
            own.then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
        };
        Ok(text.lines().filter_map(value).sum())
    }

    /// Nobody but a test may end it.
    pub fn still_runs(&mut self) -> anyhow::Result<()> {
        let Some(child) = &mut self.child else {
            bail!("{} was not started", self.name)
        };
        match child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!(
                "{} ended by itself with {status}, see {}",
                self.name,
                self.log.display()
            ),
        }
    }

    async fn is_ready(&self) -> bool {
        let url = format!("http://127.0.0.1:{}/readyz", self.port);
        let client = reqwest::Client::builder()
            .timeout(Duration::from_secs(2))
            .build();
        let Ok(client) = client else {
            return false;
        };
        let answer = client.get(url).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    /// By the shell, whose `kill` is everywhere; the standard library sends no signal but SIGKILL.
    async fn signal(&mut self, signal: &str) -> anyhow::Result<()> {
        self.still_runs()?;
        let pid = self
            .child
            .as_ref()
            .and_then(Child::id)
            .context("it runs")?
            .to_string();
        let status = Command::new("sh")
            .args(["-c", "kill -\"$1\" \"$2\"", "sh", signal, &pid])
            .status()
            .await?;
        ensure!(status.success(), "kill -{signal} {pid} failed");
        if signal == "STOP" {
            let stopped = || async {
                let state = std::fs::read_to_string(format!("/proc/{pid}/status")).ok();
                // Where there is no /proc, the signal is believed.
                state
                    .is_none_or(|state| state.contains("State:\tT"))
                    .then_some(())
            };
            until("the process is stopped", Duration::from_secs(5), stopped).await?;
        }
        Ok(())
    }
}

/// The binary under test, with these settings and none from outside.
pub fn lapse(environment: &[(String, String)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lapse"));
    for (name, _) in std::env::vars() {
        let ours = ["DATABASE_URL", "KAFKA_BROKERS", "RUST_LOG", "LAPSE_PLANT"];
        if name.starts_with("LAPSE__") || ours.contains(&name.as_str()) {
            command.env_remove(name);
        }
    }
    command
        .envs(environment.iter().map(|(key, value)| (key, value)))
        // A stray lapse.toml is not ours.
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .kill_on_drop(true);
    command
}

/// Below the ports that systems hand out by themselves, so that nobody has it after a restart.
pub fn free_port() -> anyhow::Result<u16> {
    for _ in 0..100 {
        let port = fastrand::u16(20_000..32_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port between 20000 and 32000")
}
