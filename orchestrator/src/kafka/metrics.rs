//! Names of the Kafka and timer metrics, with a line of help each.

use ::metrics::{Unit, describe_counter, describe_gauge};

pub(super) const ASSIGNED_PARTITIONS: &str = "lapse_kafka_assigned_partitions";
pub(super) const COMMIT_ERRORS: &str = "lapse_kafka_commit_errors_total";
pub(super) const HOP_ERRORS: &str = "lapse_timer_hop_errors_total";
pub(super) const HOPS: &str = "lapse_timer_hops_total";
pub(super) const OFFSET_GAPS: &str = "lapse_kafka_offset_gaps_total";
pub(super) const OVERDUE_SECONDS: &str = "lapse_timer_overdue_seconds";
pub(super) const PUBLISH_ERRORS: &str = "lapse_kafka_publish_errors_total";
pub(super) const REBUILDS: &str = "lapse_kafka_consumer_rebuilds_total";
pub(super) const RECORDS: &str = "lapse_kafka_records_total";
pub(super) const STALE_DONE: &str = "lapse_kafka_stale_acknowledgements_total";
pub(super) const STRAYS: &str = "lapse_kafka_strays_total";
pub(super) const TOMBSTONES: &str = "lapse_kafka_tombstones_total";
pub(super) const WINDOW_BYTES: &str = "lapse_timer_window_bytes";
pub(super) const WINDOW_FULL: &str = "lapse_timer_window_full_partitions";
pub(super) const WINDOW_RECORDS: &str = "lapse_timer_window_records";

/// Help lines, for the exporter.
pub fn describe_metrics() {
    let counters = [
        (
            COMMIT_ERRORS,
            "Offset commits that Kafka refused, of those whose result is waited for: of replies, and before a partition is given up. They are repeated, or their records are.",
        ),
        (
            HOP_ERRORS,
            "Moves to a shorter delay bucket that failed; they are repeated.",
        ),
        (
            HOPS,
            "Timers moved to a shorter delay bucket, by the bucket they entered.",
        ),
        (
            OFFSET_GAPS,
            "Gaps in the offsets of delay buckets: records that were deleted before they were read.",
        ),
        (
            PUBLISH_ERRORS,
            "Messages that Kafka did not accept; the relay repeats them.",
        ),
        (
            REBUILDS,
            "Times the consumer was thrown away and built anew.",
        ),
        (RECORDS, "Records received, by topic."),
        (
            STALE_DONE,
            "Acknowledgements ignored because their partition had moved on.",
        ),
        (
            STRAYS,
            "Records that came on the main queue instead of their partition's; processed all the same.",
        ),
        (TOMBSTONES, "Records without a value; ignored."),
    ];
    for (name, help) in counters {
        describe_counter!(name, help);
    }
    describe_gauge!(ASSIGNED_PARTITIONS, "Partitions this coordinator reads.");
    describe_gauge!(
        OVERDUE_SECONDS,
        Unit::Seconds,
        "How long the most overdue timer has been waiting, by bucket."
    );
    describe_gauge!(
        WINDOW_BYTES,
        Unit::Bytes,
        "Bytes of the records held in memory, by topic."
    );
    describe_gauge!(
        WINDOW_FULL,
        "Partitions whose window is full of timers that are not due, by topic: timers behind them may be late."
    );
    describe_gauge!(
        WINDOW_RECORDS,
        "Records held in memory: waiting, ripe, or being worked on, by topic."
    );
}
