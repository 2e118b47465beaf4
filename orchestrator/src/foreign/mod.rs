//! Other people's databases, Postgres and MySQL or MariaDB: order tables that are read, outboxes that are emptied.
//!
//! The only SQL outside [`crate::store`]; its tables are known at run time only, so it is not checked at compile time:
//! names are quoted, values are bound. Relies on the table being as `table` found it at the start. Never: changes an
//! order table, or anything of an outbox but the rows it has sent.

mod db;
mod dialect;
mod due;
pub mod outbox;
mod owner;
mod plan;
mod table;

pub(crate) use db::refuses_login;
pub use owner::SqlOwner;
