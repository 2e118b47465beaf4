//! The one way to other people's databases: statements and transactions that a cancelled caller can't cut in half (see
//! [`lapse_participants::kit::db`] for why).
//!
//! Relies on the limits set on each connection to end the work. Never: retries.

use std::time::Duration;

use futures::future::BoxFuture;
use lapse_participants::kit::{CallError, db};
use sqlx::mysql::{MySqlConnection, MySqlPool};
use sqlx::pool::PoolOptions;
use sqlx::postgres::{PgConnection, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Database, Executor, Row as _};

use super::dialect::{Dialect, Sql};
use crate::tls;

/// Values as text.
pub(super) type Row = Vec<Option<String>>;

/// What the work in a transaction returns.
pub(super) type Work<'c, T> = BoxFuture<'c, Result<T, CallError>>;

/// What its connections may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Read, each statement within five seconds.
    Read,
    /// Read and write, holding locks while others work.
    Write,
}

/// A pool of few connections, made when first used.
#[derive(Clone, Debug)]
pub(super) enum Db {
    Postgres(PgPool),
    MySql(MySqlPool),
}

/// A connection while work is done on it.
pub(super) enum Session<'c> {
    Postgres(&'c mut PgConnection),
    MySql(&'c mut MySqlConnection),
}

/// How long to wait for a connection.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

impl Db {
    /// By the scheme of the URL.
    ///
    /// # Errors
    /// In words, without the URL: it may hold a password.
    pub fn open(url: &str, access: Access, connections: u32) -> Result<Db, String> {
        if url.starts_with("mysql://") || url.starts_with("mariadb://") {
            let options = tls::mysql(url)
                .map_err(|_| "the URL is not mysql://user:password@host:port/database")?;
            let pool = limited::<sqlx::MySql>(connections)
                .after_connect(move |connection, _| Box::pin(prepare_mysql(connection, access)));
            return Ok(Db::MySql(pool.connect_lazy_with(options)));
        }
        if !(url.starts_with("postgres://") || url.starts_with("postgresql://")) {
            return Err("the URL begins neither with postgres:// nor with mysql://".to_owned());
        }
        let options = tls::postgres(url)
            .map_err(|_| "the URL is not postgres://user:password@host:port/database")?;
        let options = options.application_name("lapse").options(match access {
            Access::Read => [
                ("default_transaction_read_only", "on"),
                ("lock_timeout", "1s"),
                ("statement_timeout", "5s"),
                ("idle_in_transaction_session_timeout", "10s"),
            ],
            Access::Write => [
                ("default_transaction_read_only", "off"),
                ("lock_timeout", "1s"),
                ("statement_timeout", "10s"),
                ("idle_in_transaction_session_timeout", "90s"),
            ],
        });
        let pool: PgPoolOptions = limited(connections);
        Ok(Db::Postgres(pool.connect_lazy_with(options)))
    }

    /// Does the work in one transaction: committed if it is `Ok`, rolled back if not.
    ///
    /// # Errors
    /// The work's own, and those of begin and commit.
    pub async fn tx<T, F>(&self, work: F) -> Result<T, CallError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(Session<'c>) -> Work<'c, T> + Send + 'static,
    {
        match self.clone() {
            Db::Postgres(pool) => {
                db::tx(&pool, move |connection| work(Session::Postgres(connection))).await
            }
            Db::MySql(pool) => {
                db::tx(&pool, move |connection| work(Session::MySql(connection))).await
            }
        }
    }
}

impl Session<'_> {
    pub fn dialect(&self) -> Dialect {
        match self {
            Session::Postgres(_) => Dialect::Postgres,
            Session::MySql(_) => Dialect::MySql,
        }
    }

    /// Every column has to be text.
    pub async fn rows(&mut self, sql: Sql) -> Result<Vec<Row>, CallError> {
        let text = AssertSqlSafe(sql.text);
        match self {
            Session::Postgres(connection) => {
                let mut query = sqlx::query(text).persistent(sql.values.len() < 16);
                for value in sql.values {
                    query = query.bind(value);
                }
                let rows = query.fetch_all(&mut **connection).await?;
                rows.iter().map(texts).collect()
            }
            Session::MySql(connection) => {
                let mut query = sqlx::query(text).persistent(sql.values.len() < 16);
                for value in sql.values {
                    query = query.bind(value);
                }
                let rows = query.fetch_all(&mut **connection).await?;
                rows.iter().map(texts).collect()
            }
        }
    }
}

fn texts<'r, R>(row: &'r R) -> Result<Row, CallError>
where
    R: sqlx::Row,
    usize: sqlx::ColumnIndex<R>,
    Option<String>: sqlx::Decode<'r, R::Database> + sqlx::Type<R::Database>,
{
    (0..row.len())
        .map(|column| Ok(row.try_get(column)?))
        .collect()
}

/// Whether a database said by these words that it does not let us in: no such user, wrong password, no such database.
pub(crate) fn refuses_login(words: &str) -> bool {
    let said = |said: &&str| words.contains(*said);
    // Postgres by the SQLSTATE, which is part of the words; MySQL has one for many faults.
    let postgres = ["(SQLSTATE 28", "(SQLSTATE 3D"];
    let mysql = ["Access denied for user", "Unknown database"];
    postgres.iter().chain(&mysql).any(said)
}

fn limited<D: Database>(connections: u32) -> PoolOptions<D> {
    PoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
}

/// Read committed: no locks on gaps, which would keep producers from writing to the outbox.
async fn prepare_mysql(connection: &mut MySqlConnection, access: Access) -> sqlx::Result<()> {
    connection
        .execute("set session transaction isolation level read committed")
        .await?;
    connection
        .execute("set session innodb_lock_wait_timeout = 1")
        .await?;
    if access == Access::Write {
        return Ok(());
    }
    connection
        .execute("set session transaction read only")
        .await?;
    let version: String = connection
        .fetch_one("select cast(version() as char)")
        .await?
        .try_get(0)?;
    let limit = if version.contains("MariaDB") {
        "set session max_statement_time = 5"
    } else {
        "set session max_execution_time = 5000"
    };
    connection.execute(limit).await?;
    Ok(())
}
