//! Integration tests: real Postgres always, the embedded broker always, real Apache Kafka wherever it can be had.

#[path = "../../../participants/tests/it/database.rs"]
mod database;
mod executor;
mod kafka;
mod store;
mod support;
