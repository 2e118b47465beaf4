//! The one way to the database: transactions and statements that a cancelled caller can't cut in half.
//!
//! sqlx 0.9.0 can hand a connection with an open transaction back to the pool when `begin` is cancelled; what the next
//! user writes there is acknowledged and lost (8 of 2,000). So all work runs in a task of its own that nobody aborts:
//! a caller that gives up merely stops waiting, and what the database did is then unknown to it.
//! Relies on the limits that [`options`] sets to end such work; where the server has gone without a word, which no limit of
//! its own can end, the connection is thrown away after two minutes. Never: retries.

use std::future::Future;
use std::io::ErrorKind;
use std::pin::Pin;
use std::time::Duration;

use sqlx::migrate::MigrateError;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{Connection, Database, PgConnection, Pool};
use tracing::Instrument;

use crate::kit::CallError;

/// Longer than anything that a server with limits lets a transaction take.
const SILENT_AFTER: Duration = Duration::from_secs(120);

/// Work on a connection: what the closure given to [`tx`] returns, `Box::pin(async move { … })`.
pub type Work<'c, T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'c>>;

/// Connection options of the hot path: waits and statements are bounded by the server, and plans that turn batches
/// quadratic on fresh tables (sequential scans under a cached plan) are out of the question.
pub fn options(base: PgConnectOptions) -> PgConnectOptions {
    base.application_name("lapse").options([
        ("lock_timeout", "1s"),
        ("idle_in_transaction_session_timeout", "5s"),
        ("statement_timeout", "5s"),
        ("enable_seqscan", "off"),
    ])
}

/// A pool with [`options`], of constant size, connected when first used.
pub fn pool(base: PgConnectOptions, connections: u32) -> PgPool {
    PgPoolOptions::new()
        .min_connections(connections)
        .max_connections(connections)
        .acquire_timeout(Duration::from_secs(3))
        .connect_lazy_with(options(base))
}

/// Does the work in one transaction: committed if it is `Ok`, rolled back if not.
///
/// # Errors
/// The work's own, and [`sqlx::Error`] from begin and commit. After an error of the connection or from commit it may
/// have been committed all the same.
pub async fn tx<D, T, E, F>(pool: &Pool<D>, work: F) -> Result<T, E>
where
    D: Database,
    T: Send + 'static,
    E: From<sqlx::Error> + Send + 'static,
    F: for<'c> FnOnce(&'c mut D::Connection) -> Work<'c, T, E> + Send + 'static,
{
    let pool = pool.clone();
    to_the_end(async move {
        let mut connection = pool.acquire().await?;
        let work = in_transaction::<D, _, _, _>(&mut connection, work);
        let done = tokio::time::timeout(SILENT_AFTER, work).await;
        done.unwrap_or_else(|_| {
            connection.close_on_drop();
            Err(silent().into())
        })
    })
    .await
}

async fn in_transaction<D, T, E, F>(connection: &mut D::Connection, work: F) -> Result<T, E>
where
    D: Database,
    E: From<sqlx::Error>,
    F: for<'c> FnOnce(&'c mut D::Connection) -> Work<'c, T, E>,
{
    let mut transaction = connection.begin().await?;
    match work(&mut transaction).await {
        Ok(value) => {
            transaction.commit().await?;
            Ok(value)
        }
        Err(error) => {
            // A connection that can't even roll back is closed by the pool, and the server rolls back.
            let _ = transaction.rollback().await;
            Err(error)
        }
    }
}

/// Does the work on one connection without a transaction: for a single statement, which commits by itself.
///
/// # Errors
/// As [`tx`].
pub async fn statement<T, E, F>(pool: &PgPool, work: F) -> Result<T, E>
where
    T: Send + 'static,
    E: From<sqlx::Error> + Send + 'static,
    F: for<'c> FnOnce(&'c mut PgConnection) -> Work<'c, T, E> + Send + 'static,
{
    let pool = pool.clone();
    to_the_end(async move {
        let mut connection = pool.acquire().await?;
        let done = tokio::time::timeout(SILENT_AFTER, work(&mut connection)).await;
        done.unwrap_or_else(|_| {
            connection.close_on_drop();
            Err(silent().into())
        })
    })
    .await
}

fn silent() -> sqlx::Error {
    let words = format!("no answer in {SILENT_AFTER:?}; the connection is given up");
    sqlx::Error::Io(std::io::Error::new(ErrorKind::TimedOut, words))
}

/// Runs it in a task of its own; dropping the returned future doesn't stop the task.
async fn to_the_end<T, E>(work: impl Future<Output = Result<T, E>> + Send + 'static) -> Result<T, E>
where
    T: Send + 'static,
    E: From<sqlx::Error> + Send + 'static,
{
    match tokio::spawn(work.in_current_span()).await {
        Ok(result) => result,
        Err(lost) => match lost.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(sqlx::Error::WorkerCrashed.into()),
        },
    }
}

impl From<sqlx::Error> for CallError {
    /// By what the database said; without an answer from it, anything may have been applied.
    fn from(error: sqlx::Error) -> Self {
        let words = error.to_string();
        match &error {
            // Its own words: sqlx adds a line number, of the source code of Postgres.
            sqlx::Error::Database(answer) => by_sqlstate(
                answer.code().unwrap_or_default().as_ref(),
                answer.message().to_owned(),
            ),
            sqlx::Error::Encode(_) => CallError::Data(words),
            sqlx::Error::Configuration(_)
            | sqlx::Error::Decode(_)
            | sqlx::Error::ColumnDecode { .. }
            | sqlx::Error::ColumnNotFound(_)
            | sqlx::Error::TypeNotFound { .. } => CallError::Configuration(words),
            sqlx::Error::Io(cause) if never_connected(cause.kind()) => {
                CallError::Unreachable(words)
            }
            sqlx::Error::Tls(_) | sqlx::Error::PoolClosed | sqlx::Error::PoolTimedOut => {
                CallError::Unreachable(words)
            }
            sqlx::Error::Io(_) => CallError::unanswered(words),
            _ => CallError::Unknown(format!("database: {words}")),
        }
    }
}

impl From<MigrateError> for CallError {
    /// By what the database said; a migration that is not as it was applied is a fault of configuration.
    fn from(error: MigrateError) -> Self {
        match error {
            MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => error.into(),
            other => CallError::Configuration(other.to_string()),
        }
    }
}

fn never_connected(kind: ErrorKind) -> bool {
    use ErrorKind::{
        AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkUnreachable, NotFound,
    };
    matches!(
        kind,
        ConnectionRefused | HostUnreachable | NetworkUnreachable | AddrNotAvailable | NotFound
    )
}

fn by_sqlstate(code: &str, words: String) -> CallError {
    let words = format!("{words} (SQLSTATE {code})");
    match code {
        "55P03" => CallError::Locked(words),
        "40P01" | "40001" => CallError::Serialization(words),
        "57014" => CallError::unanswered(format!("timeout: {words}")),
        // Refused while connecting: starting up, or no connection to spare.
        "57P03" | "53300" => CallError::Unreachable(words),
        _ => match code.get(..2).unwrap_or_default() {
            "22" | "23" | "P0" => CallError::Data(words),
            // Rights, missing or other tables, unknown schema or database, refused log-in.
            "42" | "3F" | "3D" | "28" => CallError::Configuration(words),
            _ => CallError::unanswered(format!("unavailable: {words}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sqlstate_says_what_the_caller_may_do() {
        let class = |code| by_sqlstate(code, "words".to_owned());
        assert!(matches!(class("23505"), CallError::Data(_)));
        assert!(matches!(class("22003"), CallError::Data(_)));
        assert!(matches!(class("P0001"), CallError::Data(_)));
        assert!(matches!(class("55P03"), CallError::Locked(_)));
        assert!(matches!(class("40P01"), CallError::Serialization(_)));
        assert!(matches!(class("40001"), CallError::Serialization(_)));
        assert!(matches!(class("42501"), CallError::Configuration(_)));
        assert!(matches!(class("42P01"), CallError::Configuration(_)));
        for refused in ["57P03", "53300"] {
            assert!(
                matches!(class(refused), CallError::Unreachable(_)),
                "{refused}"
            );
        }
        for unclear in ["57P01", "57014", "08006", "25006", ""] {
            let class = class(unclear);
            assert!(matches!(class, CallError::Unanswered { .. }), "{unclear}");
        }
    }
}
