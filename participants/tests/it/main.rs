//! The reference shop keeps its promises on a real Postgres.

mod database;
