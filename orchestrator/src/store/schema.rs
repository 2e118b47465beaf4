//! The tables themselves: migrations, and the partitions by day.
//!
//! Relies on `migrations/`, which is built in. Never: drops anything.

use chrono::{DateTime, Days, NaiveDate};
use lapse_sagas::{SagaId, Timestamp};
use sqlx::ConnectOptions;
use sqlx::migrate::{MigrateError, Migrator};

use super::Error;
use super::db::{Db, words};
use crate::tls;

/// Partitions exist from yesterday on, for so many days.
const DAYS_AHEAD: i32 = 9;

/// The partition of a saga: the UTC day of the milliseconds since 1970 in the first 48 bits of its id (RFC 9562, 5.7).
pub fn day(id: SagaId) -> NaiveDate {
    let ms = i64::try_from(id.0.as_u128() >> 80).expect("48 bits fit");
    DateTime::from_timestamp_millis(ms)
        .expect("48 bits of milliseconds end in the year 10889")
        .date_naive()
}

/// Brings the database's tables up to this binary, and makes the partitions of the coming days.
///
/// Any number of callers at once. The list of what is applied is `lapse.migration`, so that the reference shop may live
/// in the same database.
///
/// # Errors
/// As Postgres says. Migrations of a newer binary are left alone: adjacent versions run together.
pub async fn migrate(db: &Db) -> Result<(), Error> {
    db.apart(|connection| {
        Box::pin(async move {
            let mut migrator: Migrator = sqlx::migrate!("../migrations");
            migrator.dangerous_set_table_name("lapse.migration");
            migrator.create_schema("lapse");
            migrator.set_ignore_missing(true);
            migrator
                .run_direct(None, connection, false)
                .await
                .map_err(|error| match error {
                    MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => {
                        Error::Defect(format!("migrate: {}", words(&error)))
                    }
                    other => Error::Defect(format!("migrate: {other}")),
                })?;
            Ok(())
        })
    })
    .await?;
    let today = now(db).await?.date_naive();
    ensure_partitions(db, today).await
}

/// Makes an empty database beside the one of `url` and gives its URL. `name` is `[a-z0-9_]` only.
///
/// # Errors
/// As Postgres says; [`Error::Defect`] for another kind of name.
pub async fn create_database(url: &str, name: &str) -> Result<String, Error> {
    if !name
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    {
        return Err(Error::Defect(format!("{name:?} is no name for a database")));
    }
    let options =
        tls::postgres(url).map_err(|error| Error::Defect(format!("database URL: {error}")))?;
    let made = options.clone().database(name).to_url_lossy().to_string();
    let create = format!("create database {name}");
    Db::open(options, 1, 1)
        .apart(|connection| {
            Box::pin(async move {
                sqlx::raw_sql(sqlx::AssertSqlSafe(create))
                    .execute(connection)
                    .await?;
                Ok(())
            })
        })
        .await?;
    Ok(made)
}

/// Makes the partitions from the day before `today` to a week after it, where they are missing.
///
/// # Errors
/// As Postgres says.
pub async fn ensure_partitions(db: &Db, today: NaiveDate) -> Result<(), Error> {
    let first = today.checked_sub_days(Days::new(1)).unwrap_or(today);
    partitions(db, first, DAYS_AHEAD).await
}

/// Makes the partitions of so many days.
pub(super) async fn partitions(db: &Db, first: NaiveDate, days: i32) -> Result<(), Error> {
    db.tx(move |tx| {
        Box::pin(async move {
            sqlx::query!("select lapse.ensure_partitions($1, $2)", first, days)
                .fetch_one(tx)
                .await?;
            Ok(())
        })
    })
    .await
}

/// The database's time.
pub(super) async fn now(db: &Db) -> Result<Timestamp, Error> {
    db.statement(|connection| {
        Box::pin(async move {
            Ok(sqlx::query_scalar!(r#"select clock_timestamp() as "now!""#)
                .fetch_one(connection)
                .await?)
        })
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_day_is_in_the_id() {
        // The example of RFC 9562, appendix A.6: Tuesday, February 22, 2022 2:22:22 PM GMT-05:00.
        let id = "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"
            .parse()
            .expect("a UUID");
        assert_eq!(day(id).to_string(), "2022-02-22");
    }
}
