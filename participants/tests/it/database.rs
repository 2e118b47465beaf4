//! A database of its own for every test, on the server that `scripts/test` started.

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Executor};

/// A fresh, empty database. It goes with the server; a test that fails leaves it to be looked at.
pub struct TestDatabase {
    /// Where it is.
    pub options: PgConnectOptions,
    /// The same as text, for programs that are started with it.
    pub url: String,
}

impl TestDatabase {
    /// Creates one on the server of `LAPSE_TEST_DATABASE_URL`.
    pub async fn create() -> TestDatabase {
        let server = std::env::var("LAPSE_TEST_DATABASE_URL")
            .expect("LAPSE_TEST_DATABASE_URL is not set: run the tests with `make test`, or `eval $(scripts/postgres start)`");
        let options: PgConnectOptions = server
            .parse()
            .expect("LAPSE_TEST_DATABASE_URL is a postgres URL");
        let name = format!("lapse_test_{}", uuid::Uuid::now_v7().simple());
        let mut admin = options.connect().await.expect("the test server answers");
        let create = sqlx::AssertSqlSafe(format!("create database {name}"));
        admin
            .execute(sqlx::raw_sql(create))
            .await
            .expect("a database can be created");
        let options = options.database(&name);
        let url = options.to_url_lossy().to_string();
        TestDatabase { options, url }
    }
}
