//! A whole coordinator keeps its promises, from a record on the broker to stock in the shop: real Postgres, and every
//! promise on the in-process broker and on Apache Kafka.

mod cancelling;
mod dead_letters;
mod failing;
mod guarding;
mod listing;
mod replaying;
mod sharing;
mod sweeping;
