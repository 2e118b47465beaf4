//! What the client's statistics show and no record can: that records to come are gone, or that a partition is dead.

use std::collections::HashMap;
use std::time::Duration;

use serde::Deserialize;

use super::assignment::{Assignment, Place};

/// As far as they are used.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Statistics {
    #[serde(default)]
    brokers: HashMap<String, Broker>,
    #[serde(default)]
    topics: HashMap<String, Topic>,
}

#[derive(Debug, Deserialize)]
struct Broker {
    nodeid: i64,
    state: String,
}

#[derive(Debug, Default, Deserialize)]
struct Topic {
    #[serde(default)]
    partitions: HashMap<String, Partition>,
}

/// Offsets are negative while unknown.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Partition {
    partition: i32,
    #[serde(default)]
    fetchq_cnt: i64,
    #[serde(default)]
    next_offset: i64,
    #[serde(default)]
    lo_offset: i64,
    #[serde(default)]
    hi_offset: i64,
}

/// What they say about the partitions that are assigned.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Findings {
    /// The log starts after the first record that is not done.
    pub deleted: Vec<Place>,
    /// There are records, and room for them, and none has come for too long.
    pub dead: Vec<Place>,
}

impl Statistics {
    pub fn some_broker_is_up(&self) -> bool {
        self.brokers
            .values()
            .any(|broker| broker.nodeid >= 0 && broker.state == "UP")
    }

    pub fn findings(&self, assignment: &Assignment, dead_after: Duration) -> Findings {
        let mut findings = Findings::default();
        for (topic, of) in &self.topics {
            for of in of.partitions.values() {
                let place: Place = (topic.as_str().into(), of.partition);
                let Some((idle, position)) = assignment.idle(&place) else {
                    continue;
                };
                if position.is_some_and(|position| position < of.lo_offset) {
                    findings.deleted.push(place.clone());
                }
                if of.has_more() && idle > dead_after {
                    findings.dead.push(place);
                }
            }
        }
        findings
    }
}

impl Partition {
    fn has_more(&self) -> bool {
        self.fetchq_cnt > 0 || (self.hi_offset >= 0 && self.next_offset < self.hi_offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::assignment::tests::assignment;

    fn statistics(partition: &str) -> Statistics {
        let partitions = format!(
            "{{\"0\":{{\"partition\":0,{partition}}},\"-1\":{{\"partition\":-1,\"hi_offset\":9}}}}"
        );
        let text = format!(
            "{{\"name\":\"x\",\"brokers\":{{\"b\":{{\"nodeid\":1,\"state\":\"UP\"}}}},\"topics\":{{\"t\":{{\"partitions\":{partitions}}}}}}}"
        );
        serde_json::from_str(&text).expect("statistics")
    }

    #[test]
    fn a_log_that_starts_after_the_position_has_lost_records() {
        let assignment = assignment("t", Some(5));
        for (low, deleted) in [(-1001, 0), (0, 0), (5, 0), (6, 1)] {
            let found =
                statistics(&format!("\"lo_offset\":{low}")).findings(&assignment, Duration::MAX);
            assert_eq!(found.deleted.len(), deleted, "log from {low}, position 5");
        }
    }

    #[test]
    fn a_partition_with_records_that_gives_none_is_dead() {
        let assignment = assignment("t", Some(5));
        for (partition, dead) in [
            ("\"fetchq_cnt\":0,\"next_offset\":7,\"hi_offset\":7", 0),
            ("\"fetchq_cnt\":0,\"next_offset\":7,\"hi_offset\":-1001", 0),
            ("\"fetchq_cnt\":2,\"next_offset\":7,\"hi_offset\":7", 1),
            ("\"fetchq_cnt\":0,\"next_offset\":6,\"hi_offset\":7", 1),
            ("\"fetchq_cnt\":0,\"next_offset\":-1001,\"hi_offset\":7", 1),
        ] {
            let statistics = statistics(partition);
            assert_eq!(
                statistics.findings(&assignment, Duration::ZERO).dead.len(),
                dead,
                "{partition}"
            );
            assert!(
                statistics
                    .findings(&assignment, Duration::from_secs(60))
                    .dead
                    .is_empty(),
                "not yet"
            );
            assert!(statistics.some_broker_is_up());
        }
    }
}
