//! Participants and order owners elsewhere: what is heard from them, what is not believed, and what the suite of
//! `lapse conform` finds.

mod away;
mod client;
mod conforming;
pub mod model;
mod owner;
mod planted;
pub mod served;
mod shop;
mod tls;
