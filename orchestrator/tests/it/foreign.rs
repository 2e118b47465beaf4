//! Other people's databases: real Postgres and real MariaDB, tables that Lapse never made.

mod outbox;
mod owner;
mod shops;
mod taking_over;
