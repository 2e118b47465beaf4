//! Every metric, with its unit in its name and a line of help.
//!
//! Relies on the `metrics` facade: the places that count don't know the exporter. Never: a label whose values come from
//! orders.

use std::time::Duration;

use anyhow::Context;
use metrics::{describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// Bounds of the lateness histogram in seconds: the promise is 1 s with everything up and 30 s through any loss.
const LATENESS_S: [f64; 14] = [
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3_600.0,
];
/// Bounds of call durations in seconds.
const CALLS_S: [f64; 11] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 15.0,
];

/// How often samples are put into their buckets: between two scrapes, or if nobody scrapes, they would pile up.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// Installs the recorder of this process and keeps it small; its handle renders `/metrics`.
///
/// # Errors
/// If a recorder is installed already, or there is no thread to be had.
pub fn install() -> anyhow::Result<PrometheusHandle> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(
            Matcher::Full("order_cancel_duration_seconds".to_owned()),
            &LATENESS_S,
        )?
        .set_buckets_for_metric(
            Matcher::Full("lapse_call_duration_seconds".to_owned()),
            &CALLS_S,
        )?
        .install_recorder()
        .context("install the metrics recorder")?;
    describe();
    let recorder = handle.clone();
    std::thread::Builder::new()
        .name("metrics".to_owned())
        .spawn(move || {
            loop {
                std::thread::sleep(UPKEEP_EVERY);
                recorder.run_upkeep();
            }
        })
        .context("start the thread that keeps the metrics small")?;
    Ok(handle)
}

fn describe() {
    describe_histogram!(
        "order_cancel_duration_seconds",
        "From an order's due time to the end of its completed saga."
    );
    describe_counter!(
        "inventory_release_errors_total",
        "Answers to ReplenishStock that were failed, unknown or rejected, by outcome."
    );
    describe_counter!(
        "lapse_sagas_started_total",
        "Sagas started, by definition and cause."
    );
    describe_counter!(
        "lapse_sagas_ended_total",
        "Sagas that came to rest, by definition and state."
    );
    describe_counter!(
        "lapse_replies_total",
        "Answers of participants, by operation and outcome."
    );
    describe_counter!(
        "lapse_stale_replies_total",
        "Answers that came too late to matter, by outcome."
    );
    describe_counter!(
        "lapse_commands_produced_total",
        "Commands for participants behind Kafka, by participant and fate: sent, not_sent, or unknown; due again but when sent."
    );
    describe_counter!(
        "lapse_replies_ignored_total",
        "Answers read from Kafka for no saga that is known, by why."
    );
    describe_counter!(
        "lapse_stray_replies_total",
        "Answers for commands that were not asked for, by participant."
    );
    describe_counter!(
        "lapse_shop_unreadable_commands_total",
        "Commands on Kafka that the reference shop could not read."
    );
    describe_counter!(
        "lapse_shop_lost_answers_total",
        "Answers of the reference shop that Kafka did not take."
    );
    describe_histogram!(
        "lapse_call_duration_seconds",
        "Calls to participants, by participant and operation."
    );
    crate::executor::describe_health();
    describe_gauge!("lapse_sagas_held", "Sagas in the hand of this coordinator.");
    describe_counter!(
        "lapse_takeovers_total",
        "Sagas taken over from a coordinator that did not go on."
    );
    describe_counter!(
        "lapse_dead_letters_total",
        "Records that can't become sagas, by reason."
    );
    describe_gauge!(
        "lapse_dead_letters",
        "Dead letters in the table, by state: open and quarantined ones wait for somebody."
    );
    describe_counter!(
        "lapse_dead_letter_replays_total",
        "Dead letters replayed over HTTP, by result."
    );
    describe_counter!(
        "lapse_http_refused_total",
        "HTTP requests without a token that is known, or with one that may only look."
    );
    describe_counter!(
        "lapse_sweep_found_total",
        "Overdue orders that had no saga: above 0 something was lost on the way."
    );
    describe_gauge!(
        "lapse_sweep_uncovered_orders",
        "Overdue orders in the last round, by owner, whose type no active definition is for."
    );
    describe_counter!(
        "lapse_sweep_unreadable_rows_total",
        "Orders that the sweep could not read, by owner; the log names one."
    );
    describe_gauge!(
        "lapse_sweep_unusable_orders",
        "Overdue orders in the last round, by owner, that can't become sagas; the log names one."
    );
    describe_gauge!(
        "lapse_sweep_last_run_seconds",
        "When the last round that saw all overdue orders ended, by owner, Unix time."
    );
    describe_counter!(
        "lapse_alerts_sent_total",
        "Alerts sent, repetitions included, by kind."
    );
    describe_counter!(
        "lapse_webhook_posts_total",
        "Posts of alerts to webhooks, by webhook and result: delivered, not_taken (tried again), failed (given up)."
    );
    describe_gauge!(
        "lapse_webhook_undelivered_seconds",
        "How long the oldest alert has waited for a webhook to take it, by webhook."
    );
    crate::kafka::describe_metrics();
}
