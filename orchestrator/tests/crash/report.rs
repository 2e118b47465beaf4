//! The result of a run: `target/crash.json` for programs, a table for people.
//!
//! `orders`, `faults` and `verify` are names that other programs rely on. Never: calls a run ok in which nothing happened.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use serde::Serialize;
use serde_json::{Value, json};

use crate::check::{Check, Latenesses};
use crate::faults::{Kind, Outage};
use crate::rig::Participants;

/// Everything there is to say.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub ok: bool,
    pub seed: u64,
    pub orders: usize,
    /// Where the shop was served.
    pub participants: Participants,
    /// How often each.
    pub faults: BTreeMap<Kind, usize>,
    /// The answer of `lapse verify`.
    pub verify: Value,
    /// What verify can't know.
    pub checks: Vec<Check>,
    /// Things that must have happened for the run to mean anything, and did not.
    pub never_happened: Vec<&'static str>,
    pub outages: Vec<Outage>,
    pub counts: Counts,
    pub lateness_ms: Latenesses,
    /// What verify was asked for.
    pub late_after_s: u64,
    pub orders_per_s: f64,
    pub cancelled_in_the_busiest_second: usize,
    /// From the last deadline to the moment when everything was at rest.
    pub at_rest_after_ms: u128,
    /// From SIGTERM to the exit, for both coordinators.
    pub drained_ms: [u128; 2],
    pub took_s: u64,
    pub logs: String,
}

/// Orders and records.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Counts {
    pub paid: usize,
    pub cancelled: usize,
    pub left_to_a_human: usize,
    pub paid_at_the_deadline: usize,
    pub refused_at_the_deadline: usize,
    /// Of all payments, the two above included.
    pub refused: usize,
    pub records: usize,
    pub records_doubled: usize,
    pub events_forgotten: usize,
    pub malformed: usize,
    /// Calls of the shop's own servers that had to be made again.
    pub repeated_calls: usize,
    /// How long the shop had to wait for one at most.
    pub longest_call_ms: u128,
}

impl Report {
    /// What is wrong, short.
    pub fn broken(&self) -> Vec<Value> {
        let of_verify = self.verify["checks"].as_array().into_iter().flatten();
        let own = self.checks.iter().filter(|check| !check.ok);
        of_verify
            .filter(|check| check["ok"] == false)
            .cloned()
            .chain(own.map(|check| json!(check)))
            .chain(self.never_happened.iter().map(|what| json!(what)))
            .collect()
    }

    /// Writes the JSON.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(path, text + "\n").with_context(|| format!("write {}", path.display()))
    }

    /// The table.
    pub fn words(&self) -> String {
        let counts = &self.counts;
        let late = self.lateness_ms;
        let of = |lateness: crate::check::Lateness| {
            let ms = |value: Option<i64>| value.map_or("-".to_owned(), |ms| format!("{ms} ms"));
            format!(
                "{}, {}, {}  ({} orders)",
                ms(lateness.p50),
                ms(lateness.p99),
                ms(lateness.max),
                lateness.orders
            )
        };
        let faults = self
            .faults
            .iter()
            .map(|(kind, n)| format!("{} {n}", json!(kind).as_str().unwrap_or_default()));
        let verify_checks = self.verify["checks"].as_array().map_or(0, Vec::len);
        let rows = [
            ("seed", self.seed.to_string()),
            (
                "orders",
                format!("{}, {:.0} a second", self.orders, self.orders_per_s),
            ),
            (
                "participants",
                json!(self.participants)
                    .as_str()
                    .unwrap_or_default()
                    .to_owned(),
            ),
            ("paid", counts.paid.to_string()),
            ("cancelled", counts.cancelled.to_string()),
            ("left to a human", counts.left_to_a_human.to_string()),
            (
                "at the very deadline",
                format!(
                    "{} paid, {} refused",
                    counts.paid_at_the_deadline, counts.refused_at_the_deadline
                ),
            ),
            (
                "records",
                format!(
                    "{}, {} doubled, {} malformed, {} events forgotten",
                    counts.records,
                    counts.records_doubled,
                    counts.malformed,
                    counts.events_forgotten
                ),
            ),
            ("faults", faults.collect::<Vec<_>>().join(", ")),
            ("late, fault-free", of(late.fault_free)),
            ("late, around faults", of(late.around_faults)),
            ("late, found by the sweep", of(late.swept)),
            ("late is wrong after", format!("{} s", self.late_after_s)),
            (
                "busiest second",
                format!("{} orders cancelled", self.cancelled_in_the_busiest_second),
            ),
            (
                "at rest after the last",
                format!("{} ms", self.at_rest_after_ms),
            ),
            (
                "drained in",
                format!("{} ms, {} ms", self.drained_ms[0], self.drained_ms[1]),
            ),
            ("took", format!("{} s", self.took_s)),
            (
                "verify",
                format!(
                    "{verify_checks} checks, {} violations",
                    self.verify["violations"]
                ),
            ),
            (
                "own checks",
                format!(
                    "{} checks, {} violations",
                    self.checks.len(),
                    self.checks
                        .iter()
                        .map(|check| check.violations)
                        .sum::<usize>()
                ),
            ),
            (
                "the shop's own calls",
                format!(
                    "{} made again, the longest wait {} ms",
                    counts.repeated_calls, counts.longest_call_ms
                ),
            ),
            ("never happened", self.never_happened.join(", ")),
            ("holds", if self.ok { "yes" } else { "NO" }.to_owned()),
        ];
        let lines = rows
            .iter()
            .map(|(name, value)| format!("  {name:<26}{value}"));
        lines.collect::<Vec<_>>().join("\n")
    }
}
