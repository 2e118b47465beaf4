//! What a participant of a saga needs (the kit), and the reference shop that uses it.
//!
//! For: the in-process participants of Lapse and as the example for others. Relies on Postgres for the shop's own
//! tables (schema `shop`, own migrations). Never: touches the coordinator's tables, or knows a transport.

pub mod audit;
pub mod fault;
pub mod kit;
pub mod order;
pub mod shop;
pub mod stock;
