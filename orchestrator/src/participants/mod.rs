//! Who does operations, and who knows the orders, outside this process.
//!
//! Relies on docs/participants.md, which is the contract. Never: retries; that is the executor's.

pub mod http;
