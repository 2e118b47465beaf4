//! The store keeps its promises, in Postgres and in memory alike.

#![allow(clippy::unwrap_used, reason = "in a test the panic is the message")]

mod builders;
mod cancelled;
mod postgres;
mod promises;
mod subject;
mod views;
