//! Timers on Kafka keep their promises: on the embedded broker always, on Apache Kafka where LAPSE_TEST_KAFKA names one.

mod bench;
mod faults;
mod feeds;
mod timers;
mod topics;
