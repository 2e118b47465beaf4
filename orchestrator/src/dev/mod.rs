//! The embedded default of `lapse dev`: a private Postgres and an in-process broker.

pub mod broker;
