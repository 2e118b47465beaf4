//! Integration tests: real Postgres always, the embedded broker always, real Apache Kafka wherever it can be had.
#![allow(clippy::unwrap_used, reason = "a test that can't go on stops there")]

mod cli;
mod coordinator;
#[path = "../../../participants/tests/it/database.rs"]
mod database;
mod executor;
mod foreign;
mod http;
mod kafka;
mod outage;
mod participants;
mod simulation;
mod store;
mod support;
mod webhooks;
