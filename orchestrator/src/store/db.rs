//! The only way to the coordinator's database: transactions that nobody can cancel half-way.
//!
//! For: everything in this folder. Relies on one rule that sqlx 0.9.0 does not keep by itself: a transaction that is
//! dropped while it begins can stay open on its connection and swallow the acknowledged writes of the next user (8 of
//! 2,000 lost when measured). So each one runs in a task of its own that is never aborted; whoever waits may go away.
//! Never: decides what to write; goes on with a connection on which a query was given up. The server's own time-outs bound
//! a query; only where the server has gone without a word, the connection is thrown away.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions, Connection};
use tracing::{Instrument, warn};

use super::Error;
use crate::tls;

/// Connections of the coordinator's own work. Two record (more at a time are slower: measured); the poll, the sweep and
/// the relay must not wait for them.
pub const WRITERS: u32 = 4;
/// Connections for people and dashboards.
pub const READERS: u32 = 4;
/// How long to wait for a connection.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longer than anything that the server lets a transaction of the coordinator's take, and one for people.
const SILENT_AFTER: Duration = Duration::from_secs(60);
const READING_SILENT_AFTER: Duration = Duration::from_secs(3_600);
/// How often a transaction that lost a deadlock is run.
const MAX_RUNS: u32 = 6;

/// The coordinator's database.
#[derive(Clone)]
pub struct Db {
    hot: PgPool,
    views: PgPool,
    options: PgConnectOptions,
    repeats: Arc<AtomicU64>,
}

/// Why a transaction is given up; it is rolled back.
#[derive(Debug)]
pub enum Abort {
    /// Postgres said so. Deadlocks and serialization failures are repeated.
    Postgres(sqlx::Error),
    /// We say so.
    Store(Error),
}

impl From<sqlx::Error> for Abort {
    fn from(error: sqlx::Error) -> Self {
        Abort::Postgres(error)
    }
}

impl From<Error> for Abort {
    fn from(error: Error) -> Self {
        Abort::Store(error)
    }
}

/// What a piece of work on a connection returns.
pub type Work<'c, T> = BoxFuture<'c, Result<T, Abort>>;

impl Db {
    /// Opens both pools without connecting yet; `writers` and `readers` are usually [`WRITERS`] and [`READERS`].
    pub fn open(options: PgConnectOptions, writers: u32, readers: u32) -> Db {
        let hot = options
            .clone()
            .application_name("lapse")
            .options(PLANS)
            .options(EVERYWHERE);
        let views = options
            .clone()
            .application_name("lapse views")
            .options([
                ("default_transaction_read_only", "on"),
                ("plan_cache_mode", "force_custom_plan"),
            ])
            .options([("statement_timeout", "10s")])
            .options(EVERYWHERE);
        let pool = |size| {
            PgPoolOptions::new()
                .max_connections(size)
                .acquire_timeout(ACQUIRE_TIMEOUT)
                .test_before_acquire(false)
        };
        Db {
            hot: pool(writers).connect_lazy_with(hot),
            views: pool(readers).connect_lazy_with(views),
            options,
            repeats: Arc::default(),
        }
    }

    /// Runs `work` in a transaction on the hot pool. It is run again from its beginning after a deadlock or a
    /// serialization failure, so it must not change anything but the database.
    ///
    /// # Errors
    /// As `work` says, or as Postgres does. After [`Error::Unreachable`] the commit may or may not have happened.
    pub async fn tx<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: for<'c> Fn(&'c mut PgConnection) -> Work<'c, T> + Send + Sync + 'static,
    {
        self.unaborted(&self.hot, Frame::Transaction, work).await
    }

    /// Runs `work`, which is one statement, without a transaction around it, on the hot pool.
    ///
    /// # Errors
    /// As [`Db::tx`].
    pub async fn statement<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: for<'c> Fn(&'c mut PgConnection) -> Work<'c, T> + Send + Sync + 'static,
    {
        self.unaborted(&self.hot, Frame::Alone, work).await
    }

    /// Runs `work`, which only reads, on the views pool; all of its statements see the same moment.
    ///
    /// # Errors
    /// As [`Db::tx`].
    pub async fn read<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: for<'c> Fn(&'c mut PgConnection) -> Work<'c, T> + Send + Sync + 'static,
    {
        self.unaborted(&self.views, Frame::Reading, work).await
    }

    /// Runs `work` once on a connection of its own, without any time-out: for migrations.
    ///
    /// # Errors
    /// As [`Db::tx`].
    pub async fn apart<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut PgConnection) -> Work<'c, T> + Send + 'static,
    {
        let options = self.options.clone();
        let task = async move {
            let connected = options.connect().await;
            let mut connection = connected.map_err(|error| at(&options, error.into()))?;
            let result = work(&mut connection).await;
            connection.close().await?;
            result
        };
        match tokio::spawn(task.in_current_span()).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(Abort::Store(error))) => Err(error),
            Ok(Err(Abort::Postgres(error))) => Err(error.into()),
            Err(error) => Err(Error::Defect(format!("database work panicked: {error}"))),
        }
    }

    /// How many transactions had to be repeated since the start.
    pub fn repeats(&self) -> u64 {
        self.repeats.load(Ordering::Relaxed)
    }

    /// Waits for what is under way and closes all connections.
    pub async fn close(&self) {
        self.hot.close().await;
        self.views.close().await;
    }

    /// The task goes on to its end when the waiter is dropped.
    async fn unaborted<T, F>(&self, pool: &PgPool, frame: Frame, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: for<'c> Fn(&'c mut PgConnection) -> Work<'c, T> + Send + Sync + 'static,
    {
        let (pool, repeats) = (pool.clone(), Arc::clone(&self.repeats));
        let task = async move { repeated(&pool, frame, &repeats, &work).await };
        match tokio::spawn(task.in_current_span()).await {
            Ok(result) => result.map_err(|error| at(&self.options, error)),
            Err(error) => Err(Error::Defect(format!("a transaction panicked: {error}"))),
        }
    }
}

/// Names the address where nobody answers.
fn at(options: &PgConnectOptions, error: Error) -> Error {
    match error {
        Error::Unreachable(words) => Error::Unreachable(format!("{}: {words}", address(options))),
        other => other,
    }
}

/// Where Postgres is asked.
pub(crate) fn address(options: &PgConnectOptions) -> String {
    match options.get_socket() {
        Some(folder) => folder.display().to_string(),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    }
}

/// What is around the work.
#[derive(Clone, Copy)]
enum Frame {
    Transaction,
    Reading,
    Alone,
}

/// How a run went wrong.
enum Failed {
    /// The connection was dead when it was to be used; nothing was sent.
    Dead(sqlx::Error),
    Aborted(Abort),
}

/// How the hot pool plans. A fresh table has no statistics, and a plan that is kept from then on reads the whole table
/// for every batch: batches become quadratic. So no plan is kept, and of the ways left to join a batch with a table the
/// only good one is to look every row up by its key.
const PLANS: [(&str, &str); 5] = [
    ("plan_cache_mode", "force_custom_plan"),
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("random_page_cost", "1.1"),
];

/// Settings of every connection. A client that stalls in a transaction loses it, whoever holds a lock too long makes
/// others fail fast, and times in text are UTC.
const EVERYWHERE: [(&str, &str); 4] = [
    ("statement_timeout", "10s"),
    ("lock_timeout", "1s"),
    ("idle_in_transaction_session_timeout", "5s"),
    ("TimeZone", "UTC"),
];

async fn repeated<T, F>(
    pool: &PgPool,
    frame: Frame,
    repeats: &AtomicU64,
    work: &F,
) -> Result<T, Error>
where
    F: for<'c> Fn(&'c mut PgConnection) -> Work<'c, T> + Send + Sync,
{
    let mut dead = 0;
    let mut runs = 0;
    loop {
        let error = match once(pool, frame, work).await {
            Ok(value) => return Ok(value),
            Err(Failed::Aborted(Abort::Store(error))) => return Err(error),
            Err(Failed::Aborted(Abort::Postgres(error))) => {
                runs += 1;
                if !is_repeatable(&error) || runs == MAX_RUNS {
                    return Err(error.into());
                }
                tokio::time::sleep(pause(runs)).await;
                error
            }
            // After Postgres was restarted every pooled connection is dead, and each is found out by its first use.
            Err(Failed::Dead(error)) => {
                dead += 1;
                if dead > pool.options().get_max_connections() {
                    return Err(error.into());
                }
                error
            }
        };
        repeats.fetch_add(1, Ordering::Relaxed);
        warn!(runs, dead, error = words(&error), "transaction is repeated");
    }
}

async fn once<T, F>(pool: &PgPool, frame: Frame, work: &F) -> Result<T, Failed>
where
    F: for<'c> Fn(&'c mut PgConnection) -> Work<'c, T> + Send + Sync,
{
    let mut connection = pool
        .acquire()
        .await
        .map_err(|error| Failed::Aborted(error.into()))?;
    let framed = async {
        let begin = match frame {
            Frame::Alone => return work(&mut connection).await.map_err(Failed::Aborted),
            Frame::Transaction => "begin",
            Frame::Reading => "begin isolation level repeatable read read only",
        };
        in_transaction(&mut connection, begin, work).await
    };
    let limit = match frame {
        Frame::Alone | Frame::Transaction => SILENT_AFTER,
        Frame::Reading => READING_SILENT_AFTER,
    };
    let result = tokio::time::timeout(limit, framed).await;
    let result = result.unwrap_or_else(|_| Err(Failed::Aborted(silent(limit).into())));
    // One that went wrong in an unknown way is not given to anybody else.
    if let Err(Failed::Dead(error) | Failed::Aborted(Abort::Postgres(error))) = &result
        && is_gone(error)
    {
        connection.close_on_drop();
    }
    result
}

fn silent(limit: Duration) -> sqlx::Error {
    let words = format!("no answer in {limit:?}; the connection is given up");
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, words))
}

async fn in_transaction<T, F>(
    connection: &mut PgConnection,
    begin: &'static str,
    work: &F,
) -> Result<T, Failed>
where
    F: for<'c> Fn(&'c mut PgConnection) -> Work<'c, T> + Send + Sync,
{
    let mut transaction =
        connection
            .begin_with(begin)
            .await
            .map_err(|error| match is_gone(&error) {
                true => Failed::Dead(error),
                false => Failed::Aborted(error.into()),
            })?;
    match work(&mut transaction).await {
        Ok(value) => {
            transaction
                .commit()
                .await
                .map_err(|error| Failed::Aborted(error.into()))?;
            Ok(value)
        }
        Err(abort) => {
            if let Err(error) = transaction.rollback().await {
                warn!(error = words(&error), "roll back");
            }
            Err(Failed::Aborted(abort))
        }
    }
}

/// 5 to 10 ms, twice that after the second run, and so on: colliding batches must not meet again.
fn pause(runs: u32) -> Duration {
    let longest_us = 10_000 << runs.min(5) >> 1;
    let random = RandomState::new().build_hasher().finish();
    Duration::from_micros(longest_us - random % (longest_us / 2))
}

fn code(error: &sqlx::Error) -> Option<String> {
    error
        .as_database_error()
        .and_then(|error| error.code())
        .map(|code| code.into_owned())
}

/// Deadlock, serialization failure.
fn is_repeatable(error: &sqlx::Error) -> bool {
    matches!(code(error).as_deref(), Some("40P01" | "40001"))
}

/// The connection, the server, or its being the primary is gone.
fn is_gone(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolClosed
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::WorkerCrashed => true,
        // 57P0x: shut down or terminated; 25P03: idle too long in a transaction; 25006: became a replica;
        // 53300: too many connections; 28xxx and 3D000 stay defects: they need a person.
        _ => code(error).is_some_and(|code| {
            code.starts_with("08")
                || code.starts_with("57P")
                || matches!(&*code, "25P03" | "25006" | "53300")
        }),
    }
}

/// Without the line in the source code of Postgres that sqlx adds.
pub(super) fn words(error: &sqlx::Error) -> String {
    match error.as_database_error() {
        Some(answer) => answer.message().to_owned(),
        None => format!("{error}{}", tls::advice(error)),
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        let words = words(&error);
        match code(&error).as_deref() {
            // Time-outs of a statement, of a lock; a deadlock that was lost too often.
            Some("57014" | "55P03" | "40P01" | "40001") => Error::Slow(words),
            // No such schema, table or column.
            Some("3F000" | "42P01" | "42703") => Error::Defect(format!(
                "{words}; the tables are missing or older than this program, run: lapse migrate"
            )),
            // No such database.
            Some("3D000") => Error::Defect(format!("{words}; create the database first")),
            // No such user, wrong password, or no right to connect.
            Some("28000" | "28P01") => Error::NotAuthorised(words),
            _ if is_gone(&error) => Error::Unreachable(words),
            _ if is_about_data(&error) => Error::Data(words),
            _ => Error::Defect(words),
        }
    }
}

/// Data, integrity or a program limit (such as too long a key); or a value that could not even be sent.
fn is_about_data(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Encode(_))
        || code(error).is_some_and(|code| matches!(code.get(..2), Some("22" | "23" | "54")))
}
