//! The store in Postgres.
