//! Lapse: cancels orders that were not paid in time and gives back what they held.
//!
//! The coordinator as a library; the binary `lapse` is a thin shell around it. Each module is one stage of the walk of
//! one order (ARCHITECTURE.md): [`kafka`] → [`timer`] → intake → [`store`] → executor → participants → store → relay.

pub mod bench;
pub mod bus;
pub mod cli;
pub mod clock;
pub mod config;
pub mod coordinator;
pub mod definitions;
pub mod dev;
pub mod executor;
pub mod foreign;
pub mod http;
pub mod intake;
pub mod kafka;
pub mod metrics;
pub mod outbox_relay;
pub mod relay;
pub mod service;
pub mod shop_relay;
pub mod store;
pub mod sweep;
pub mod timer;
pub mod verify;
