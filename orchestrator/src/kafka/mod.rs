//! The only code that speaks to Kafka.

pub fn describe_metrics() {}
