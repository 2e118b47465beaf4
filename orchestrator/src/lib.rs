//! Lapse: cancels orders that were not paid in time and gives back what they held.
//!
//! The coordinator as a library; the binary `lapse` is a thin shell around it. Each module is one stage of the walk of
//! one order (ARCHITECTURE.md): [`kafka`] → [`timer`] → intake → [`store`] → executor → participants → store → relay.

pub mod bench;
pub mod bus;
pub mod cli;
pub mod clock;
pub mod config;
pub mod conform;
pub mod coordinator;
pub mod definitions;
pub mod dev;
pub mod executor;
pub mod feed;
pub mod foreign;
pub mod http;
pub mod intake;
pub mod kafka;
pub mod metrics;
pub mod operators;
pub mod outbox_relay;
pub mod pace;
pub mod participants;
pub mod relay;
pub mod replay;
pub mod service;
pub mod shop_relay;
pub mod shop_serve;
pub mod store;
pub mod sweep;
pub mod timer;
pub mod tls;
pub mod verify;
pub mod webhooks;
