//! Timers on Kafka keep their promises.
