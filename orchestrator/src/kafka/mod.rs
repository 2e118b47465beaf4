//! The only code that speaks to Kafka.
