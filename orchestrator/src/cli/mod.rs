//! The command line.
//!
//! Relies on the library for everything it does. With `-o json` there is one object on stdout, its first key is
//! `"format": "lapse-<verb>/v1"`, and everything else goes to stderr. Never: prints a password.
//!
//! Exit codes: 0 ok, 1 failed, 2 usage, 3 invalid input, 4 not found, 5 conflict, 6 not authorised, 7 partly done,
//! 8 unreachable.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use lapse_participants::kit::CallError;

use crate::config::{self, Config, LogFormat};
use crate::kafka;
use crate::operators::Act;
use crate::service::{NotThere, Unfit};
use crate::store;

mod answer;
mod bench;
mod conform;
mod dead_letters;
mod dev;
mod local;
mod look;
mod migrate;
mod operate;
mod outbox_relay;
mod ready;
mod run;
mod shop;
mod shop_serve;
mod start;
mod token;
mod topics;
mod validate;
mod verify;
mod webhooks;

/// Cancels orders that were not paid in time and gives back what they held.
#[derive(Parser)]
#[command(name = "lapse", version, about, propagate_version = true)]
struct Cli {
    /// Settings file (TOML); `lapse.toml` in the working directory is read if it is there.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// One setting, stronger than file and environment.
    #[arg(long = "set", global = true, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    /// The coordinator's database; for outbox-relay, the outbox's.
    #[arg(long, global = true, value_name = "URL")]
    database_url: Option<String>,
    /// Kafka.
    #[arg(long, global = true, value_name = "HOST:PORT,…")]
    brokers: Option<String>,
    /// What is printed on stdout.
    #[arg(short, long, global = true, value_enum, default_value_t = Output::Text)]
    output: Output,
    #[command(subcommand)]
    command: Command,
}

/// What is printed on stdout.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    Text,
    /// One JSON object.
    Json,
}

#[derive(Subcommand)]
enum Command {
    /// Try Lapse out on this machine: private Postgres, in-process broker, a shop and its orders.
    Dev(dev::Args),
    /// Run a coordinator until SIGTERM.
    Run(run::Args),
    /// Bring the tables up to this version.
    Migrate,
    /// Say whether the coordinator of these settings is ready.
    Ready,
    /// Create or check the topics.
    #[command(subcommand)]
    Topics(topics::Command),
    /// Find every mistake of definition files.
    Validate(validate::Args),
    /// Start a saga now, or hurry the one that is there.
    Start(start::Args),
    /// List sagas, newest first.
    List(look::List),
    /// Tell the story of a saga or an order.
    Show(look::Show),
    /// List or acknowledge alerts, try a webhook out.
    #[command(subcommand)]
    Alerts(look::Alerts),
    /// Start run + 1 of parked or compensated sagas.
    Retry(operate::Args),
    /// Close parked or compensated sagas by hand.
    Resolve(operate::Args),
    /// Look at records that could not become sagas, replay or discard them.
    #[command(subcommand)]
    DeadLetters(dead_letters::Command),
    /// Make tokens for the HTTP interface.
    #[command(subcommand)]
    Token(token::Command),
    /// Recompute from the tables that nothing is lost, doubled, early, cancelled after paid, or forgotten.
    Verify(verify::Args),
    /// Try whether a participant keeps the contract of docs/participants.md.
    Conform(conform::Args),
    /// Measure how late orders are at a steady rate.
    Bench(bench::Args),
    /// Work the reference shop.
    #[command(subcommand)]
    Shop(shop::Command),
    /// Send what lies in the outbox table of a producer without Debezium.
    OutboxRelay(outbox_relay::Args),
}

/// An error with an exit code of its own; any other error is exit code 1.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Exit {
    /// The input is wrong: 3.
    #[error("{0}")]
    Invalid(String),
    /// There is no such thing: 4.
    #[error("{0}")]
    NotFound(String),
    /// It is not in a state that allows this: 5.
    #[error("{0}")]
    Conflict(String),
    /// The other side knows us not, or lets us not: 6.
    #[error("{0}")]
    NotAuthorised(String),
    /// Some of it is done, and the rest is not: 7.
    #[error("{0}")]
    Partly(String),
    /// The other side does not answer: 8.
    #[error("{0}")]
    Unreachable(String),
}

impl Exit {
    fn code(&self) -> u8 {
        match self {
            Exit::Invalid(_) => 3,
            Exit::NotFound(_) => 4,
            Exit::Conflict(_) => 5,
            Exit::NotAuthorised(_) => 6,
            Exit::Partly(_) => 7,
            Exit::Unreachable(_) => 8,
        }
    }
}

/// What every command gets.
pub(crate) struct Context {
    /// All settings.
    pub config: Config,
    /// What to print.
    pub output: Output,
    /// The settings file, if others may read the secrets in it.
    pub exposed: Option<config::Exposed>,
}

/// Parses, runs, reports.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    crate::tls::install();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("lapse: no threads to run on: {error}");
            return ExitCode::FAILURE;
        }
    };
    let ended = runtime.block_on(dispatch(cli));
    // A thread that hangs in a foreign library must not keep the process alive.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lapse: {error:#}");
            ExitCode::from(exit_code(&error))
        }
    }
}

async fn dispatch(cli: Cli) -> anyhow::Result<()> {
    let flags = flags(&cli)?;
    let config = config::load(cli.config.as_deref(), &flags)
        .map_err(|error| Exit::Invalid(format!("{error:#}")))?;
    let context = Context {
        config,
        output: cli.output,
        exposed: config::exposed(cli.config.as_deref()),
    };
    match cli.command {
        Command::Dev(args) => dev::run(context, args).await,
        Command::Run(args) => run::run(context, args).await,
        Command::Migrate => migrate::run(context).await,
        Command::Ready => ready::run(context).await,
        Command::Topics(command) => topics::run(context, command).await,
        Command::Validate(args) => validate::run(&context, &args),
        Command::Start(args) => start::run(context, args).await,
        Command::List(args) => look::list(context, args).await,
        Command::Show(args) => look::show(context, args).await,
        Command::Alerts(command) => look::alerts(context, command).await,
        Command::Retry(args) => operate::run(context, Act::Retry, args).await,
        Command::Resolve(args) => operate::run(context, Act::Resolve, args).await,
        Command::DeadLetters(command) => dead_letters::run(context, command).await,
        Command::Token(command) => token::run(&context, command),
        Command::Verify(args) => verify::run(context, args).await,
        Command::Conform(args) => conform::run(context, args).await,
        Command::Bench(args) => bench::run(context, args).await,
        Command::Shop(command) => shop::run(context, command).await,
        Command::OutboxRelay(args) => outbox_relay::run(context, args).await,
    }
}

fn flags(cli: &Cli) -> anyhow::Result<Vec<(String, String)>> {
    let mut flags = Vec::new();
    for setting in &cli.set {
        let (key, value) = setting
            .split_once('=')
            .ok_or_else(|| Exit::Invalid(format!("--set {setting}: write SECTION.KEY=VALUE")))?;
        flags.push((key.to_owned(), value.to_owned()));
    }
    let database = match cli.command {
        Command::OutboxRelay(_) => "outbox.url",
        _ => "postgres.url",
    };
    flags.extend(
        cli.database_url
            .iter()
            .map(|url| (database.to_owned(), url.clone())),
    );
    flags.extend(
        cli.brokers
            .iter()
            .map(|brokers| ("kafka.brokers".to_owned(), brokers.clone())),
    );
    Ok(flags)
}

fn exit_code(error: &anyhow::Error) -> u8 {
    if let Some(exit) = error.chain().find_map(|cause| cause.downcast_ref::<Exit>()) {
        return exit.code();
    }
    if error.chain().any(is_unreachable) {
        return 8;
    }
    if error.chain().any(is_missing) {
        return 4;
    }
    if error.chain().any(is_setting) {
        return 3;
    }
    if error.chain().any(is_refused) {
        return 6;
    }
    1
}

/// A file of definitions is not there.
fn is_missing(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause.is::<NotThere>()
}

/// Kafka's client does not take a setting, or the process could not work with the settings.
fn is_setting(cause: &(dyn std::error::Error + 'static)) -> bool {
    matches!(cause.downcast_ref(), Some(kafka::Error::Settings(_))) || cause.is::<Unfit>()
}

/// Postgres or Kafka does not let us in.
fn is_refused(cause: &(dyn std::error::Error + 'static)) -> bool {
    matches!(cause.downcast_ref(), Some(store::Error::NotAuthorised(_)))
        || matches!(cause.downcast_ref(), Some(kafka::Error::NotAuthorised(_)))
}

/// Postgres, the shop's Postgres, or Kafka does not answer.
fn is_unreachable(cause: &(dyn std::error::Error + 'static)) -> bool {
    matches!(cause.downcast_ref(), Some(store::Error::Unreachable(_)))
        || matches!(
            cause.downcast_ref(),
            Some(CallError::Unreachable(_) | CallError::Unanswered { .. })
        )
        || matches!(cause.downcast_ref(), Some(kafka::Error::Broker { .. }))
        || matches!(
            cause.downcast_ref(),
            Some(sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::PoolTimedOut)
        )
}

/// Logs to stderr, so that stdout stays for answers. Warns of a settings file that others may read.
pub(crate) fn init_logs(context: &Context) -> anyhow::Result<()> {
    let config = &context.config;
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_new(&config.log.filter)
        .map_err(|error| Exit::Invalid(format!("log.filter {:?}: {error}", config.log.filter)))?;
    let mut logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    // On a terminal NO_COLOR decides, as it does by default.
    if !std::io::stderr().is_terminal() {
        logs = logs.with_ansi(false);
    }
    match config.log.format {
        LogFormat::Text => logs.init(),
        LogFormat::Json => logs.json().flatten_event(true).init(),
    }
    if let Some(exposed) = &context.exposed {
        tracing::warn!("{exposed}");
    }
    Ok(())
}
