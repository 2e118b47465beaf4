//! The store keeps its promises, in Postgres and in memory alike.

mod builders;
mod cancelled;
mod postgres;
mod promises;
mod subject;
mod views;
