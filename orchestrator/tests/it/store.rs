//! The store keeps its promises, in Postgres and in memory alike.

#![allow(clippy::unwrap_used, reason = "in a test the panic is the message")]

/// Each promise twice: kept in memory, kept in Postgres.
macro_rules! promises {
    ($($name:ident)*) => {
        mod in_memory {
            $(#[tokio::test]
            async fn $name() {
                super::$name(&crate::store::subject::InMemory::create().await).await;
            })*
        }
        mod in_postgres {
            $(#[tokio::test]
            async fn $name() {
                super::$name(&crate::store::subject::InPostgres::create().await).await;
            })*
        }
    };
}

mod alerts;
pub mod builders;
mod cancelled;
mod definitions;
mod messages;
mod plans;
mod postgres;
mod sagas;
pub mod subject;
mod verify;
mod views;
