//! All histories, one after the other: gapless, chained, and within the retries that their definitions allow.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use futures::TryStreamExt;
use lapse_sagas::definition::Body;
use lapse_sagas::event::Entry;
use lapse_sagas::{Direction, StepId};
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::Check;
use crate::store::HistoryHead;
use crate::store::db::Abort;

/// Reads them and keeps what is wrong.
pub struct Histories {
    bodies: HashMap<String, Body>,
    current: Option<Current>,
    sagas: i64,
    gaps: Vec<Value>,
    steps: i64,
    over: Vec<Value>,
}

/// The saga whose entries are being read.
struct Current {
    saga_id: Uuid,
    /// Of the saga's row; none for a history without a saga.
    expected: Option<(HistoryHead, String)>,
    head: HistoryHead,
    problem: Option<String>,
    run: u32,
    attempts: BTreeMap<(u32, StepId, Direction), Attempts>,
}

/// Answers to one command id.
#[derive(Default)]
struct Attempts {
    /// Attempts that failed, timed out or stay unknown: each such entry used one up.
    used_up: u32,
    failed: BTreeSet<u32>,
    /// Final answers; one that answers an attempt that timed out before is not another attempt.
    settled: BTreeSet<u32>,
}

impl Attempts {
    fn made(&self) -> usize {
        self.used_up as usize + self.settled.difference(&self.failed).count()
    }
}

impl Histories {
    pub fn new(bodies: HashMap<String, Body>) -> Histories {
        Histories {
            bodies,
            current: None,
            sagas: 0,
            gaps: Vec::new(),
            steps: 0,
            over: Vec::new(),
        }
    }

    /// `history_gap` and `attempts_over_policy`.
    pub async fn read(mut self, tx: &mut PgConnection) -> Result<[Check; 2], Abort> {
        let mut rows = sqlx::query!(
            r#"select coalesce(s.day, h.day) as "day!", coalesce(s.saga_id, h.saga_id) as "saga_id!",
                 s.history_seq as "expected_seq?", s.history_hash as "expected_hash?",
                 s.definition_hash as "definition_hash?", h.seq as "seq?", h.entry as "entry?", h.hash as "hash?"
               from lapse.saga as s full join lapse.history as h on h.day = s.day and h.saga_id = s.saga_id
               order by 1, 2, h.seq"#
        )
        .fetch(tx);
        while let Some(row) = rows.try_next().await? {
            if self
                .current
                .as_ref()
                .is_none_or(|current| current.saga_id != row.saga_id)
            {
                self.finish();
                let expected = match (row.expected_seq, row.expected_hash, row.definition_hash) {
                    (Some(seq), Some(hash), Some(definition)) => Some((
                        HistoryHead {
                            seq,
                            hash: hash.try_into().unwrap_or_default(),
                        },
                        definition,
                    )),
                    _ => None,
                };
                self.current = Some(Current::new(row.saga_id, expected));
            }
            if let (Some(current), Some(seq), Some(entry), Some(hash)) =
                (&mut self.current, row.seq, row.entry, row.hash)
            {
                current.entry(seq, &entry, &hash);
            }
        }
        drop(rows);
        self.finish();
        let gaps = Check::new("history_gap", self.sagas, self.gaps);
        Ok([
            gaps,
            Check::new("attempts_over_policy", self.steps, self.over),
        ])
    }

    fn finish(&mut self) {
        let Some(current) = self.current.take() else {
            return;
        };
        self.sagas += 1;
        let saga_id = current.saga_id;
        if let Some(problem) = current.problem_at_the_end() {
            self.gaps
                .push(json!({ "saga_id": saga_id, "problem": problem }));
        }
        let Some(body) = current
            .expected
            .as_ref()
            .and_then(|(_, hash)| self.bodies.get(hash))
        else {
            return;
        };
        for ((run, step_id, direction), attempts) in &current.attempts {
            let Some(step) = body.steps.iter().find(|step| step.id == *step_id) else {
                continue;
            };
            self.steps += 1;
            let (made, allowed) = (attempts.made(), 1 + step.retries.max as usize);
            if made > allowed {
                self.over.push(
                    json!({ "saga_id": saga_id, "run": run, "step": step_id, "direction": direction,
                    "attempts": made, "allowed": allowed }),
                );
            }
        }
    }
}

impl Current {
    fn new(saga_id: Uuid, expected: Option<(HistoryHead, String)>) -> Current {
        Current {
            saga_id,
            expected,
            head: HistoryHead::EMPTY,
            problem: None,
            run: 1,
            attempts: BTreeMap::new(),
        }
    }

    fn entry(&mut self, seq: i32, text: &str, hash: &[u8]) {
        if self.problem.is_some() {
            return;
        }
        let next = self.head.seq + 1;
        let expected_hash = self.head.hash_of(text);
        if seq != next {
            self.problem = Some(format!("entry {seq} stands where {next} should"));
        } else if expected_hash != hash {
            self.problem = Some(format!(
                "the hash of entry {seq} is not that of its text and its predecessor"
            ));
        }
        self.head = HistoryHead {
            seq,
            hash: expected_hash,
        };
        match serde_json::from_str(text) {
            Ok(entry) => self.count(&entry),
            Err(error) => self.problem = Some(format!("entry {seq} can't be read: {error}")),
        }
    }

    fn count(&mut self, entry: &Entry) {
        if entry.kind == "retried" {
            self.run += 1;
        }
        let (Some(step), Some(direction), Some(attempt)) =
            (&entry.step, entry.direction, entry.attempt)
        else {
            return;
        };
        let outcome = entry
            .detail
            .get("outcome")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let answers = self.attempts.entry((self.run, step.clone(), direction));
        match (entry.kind.as_str(), outcome) {
            ("timed_out", _) | ("replied", "failed" | "unknown") => {
                let attempts = answers.or_default();
                attempts.used_up += 1;
                attempts.failed.insert(attempt);
            }
            // A postponement is not an attempt: the same one is made again.
            ("replied", "not_due") => {}
            ("replied", _) => {
                answers.or_default().settled.insert(attempt);
            }
            _ => {}
        }
    }

    fn problem_at_the_end(&self) -> Option<String> {
        if self.problem.is_some() {
            return self.problem.clone();
        }
        match &self.expected {
            None => Some("a history without a saga".to_owned()),
            Some((expected, _)) if expected.seq != self.head.seq => Some(format!(
                "the history ends with entry {}, the saga says {}",
                self.head.seq, expected.seq
            )),
            Some((expected, _)) if expected.hash != self.head.hash => {
                Some("the last entry's hash is not the saga's".to_owned())
            }
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replied(kind: &str, attempt: u32, outcome: &str) -> Entry {
        Entry {
            kind: kind.to_owned(),
            step: Some("cancel_order".into()),
            direction: Some(Direction::Do),
            attempt: Some(attempt),
            state: "running".to_owned(),
            detail: json!({ "outcome": outcome }),
        }
    }

    fn made(entries: &[Entry]) -> usize {
        let mut current = Current::new(Uuid::nil(), None);
        entries.iter().for_each(|entry| current.count(entry));
        current.attempts.values().map(Attempts::made).sum()
    }

    #[test]
    fn a_late_answer_to_an_attempt_that_timed_out_is_not_another_attempt() {
        assert_eq!(
            made(&[
                replied("timed_out", 1, "unknown"),
                replied("replied", 1, "done")
            ]),
            1
        );
        assert_eq!(
            made(&[
                replied("timed_out", 1, "unknown"),
                replied("replied", 2, "done")
            ]),
            2
        );
    }

    #[test]
    fn postponements_are_no_attempts_and_repeated_failures_of_one_number_are() {
        let postponed = replied("postponed", 1, "not_due");
        assert_eq!(
            made(&[postponed.clone(), postponed, replied("replied", 1, "done")]),
            1
        );
        let failed = replied("replied", 1, "failed");
        assert_eq!(made(&[failed.clone(), failed.clone(), failed]), 3);
    }
}
