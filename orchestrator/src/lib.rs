//! Lapse: cancels orders that were not paid in time and gives back what they held.
//!
//! The coordinator as a library; the binary `lapse` is a thin shell around it. Each module is one stage of the walk of
//! one order (ARCHITECTURE.md): [`kafka`] → [`timer`] → intake → [`store`] → executor → participants → store → relay.

pub mod bus;
pub mod dev;
pub mod kafka;
pub mod store;
pub mod timer;
