//! Participants and order owners outside the coordinator's process keep the promises of those inside: what is heard from
//! them, what is not believed, and what the suite of `lapse conform` finds.

mod away;
mod client;
mod conforming;
mod kafka;
pub mod model;
mod owner;
mod planted;
mod queued;
pub mod served;
mod shop;
mod tls;
