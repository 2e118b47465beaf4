//! The partitions assigned to this coordinator, each with its window and its watermark. No Kafka in here.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use lapse_sagas::{Span, Timestamp};

use super::record::Record;
use crate::bus::{BadRecord, Origin, Ripe};
use crate::timer::{Buckets, Held, Limits, Next, Receipt, Watermark, Window, decide, wake_at};

/// Topic and partition.
pub(super) type Place = (Arc<str>, i32);

/// A record that came in.
pub(super) struct Arrival {
    pub place: Place,
    pub offset: i64,
    /// None: a tombstone, which is done at once.
    pub record: Option<Record>,
}

/// What taking in a batch showed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TakenIn {
    pub gaps: u64,
    pub tombstones: u64,
    pub resets: u64,
    /// The log went back under an assignment: nothing held of it can be trusted.
    pub rewound: Option<Place>,
}

/// A record to be moved to another bucket.
pub(super) struct Hop {
    pub to: Span,
    pub due: Timestamp,
    pub origin: Origin,
    pub record: Record,
}

/// An offset that may be committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Commit {
    pub place: Place,
    pub position: i64,
}

/// One partition as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionView {
    /// Topic, with prefix.
    pub topic: Arc<str>,
    /// Partition.
    pub partition: i32,
    /// Its assignment.
    pub epoch: u64,
    /// Records held: waiting, ripe, or out.
    pub records: usize,
    /// Their bytes.
    pub bytes: usize,
    /// The offset to commit.
    pub position: Option<i64>,
    /// The offset after the last one received.
    pub next: Option<i64>,
    /// Whether nothing is read because the window is full, though nothing in it is due.
    pub full: bool,
    /// How long its most overdue record has been waiting to be done.
    pub overdue: TimeDelta,
}

struct Partition {
    bucket: Option<Span>,
    window: Window<Record>,
    watermark: Watermark<Open>,
    /// What was last handed to the client for committing.
    committed: Option<i64>,
    /// When a record last came, or there was no room for one.
    moved_at: Instant,
}

/// What an offset that is not done holds.
struct Open {
    bytes: usize,
    /// Due time, while handed out.
    out: Option<Timestamp>,
}

/// All of them.
pub(super) struct Assignment {
    buckets: Buckets,
    limits: Limits,
    epochs: u64,
    partitions: BTreeMap<Place, Partition>,
}

impl Assignment {
    pub fn new(buckets: Buckets, limits: Limits) -> Self {
        Assignment {
            buckets,
            limits,
            epochs: 0,
            partitions: BTreeMap::new(),
        }
    }

    /// Starts an assignment of a partition at its committed offset, if it has one.
    pub fn assign(&mut self, place: Place, bucket: Option<Span>, committed: Option<i64>) {
        self.epochs += 1;
        let partition = Partition {
            bucket,
            window: Window::new(self.limits),
            watermark: Watermark::new(self.epochs, committed),
            committed,
            moved_at: Instant::now(),
        };
        self.partitions.insert(place, partition);
    }

    /// Ends one; what is out of it can't be acknowledged any more.
    pub fn revoke(&mut self, place: &Place) {
        self.partitions.remove(place);
    }

    /// Ends all.
    pub fn clear(&mut self) {
        self.partitions.clear();
    }

    /// How much may be read of a partition now.
    pub fn room(&mut self, place: &Place) -> Limits {
        let Some(partition) = self.partitions.get_mut(place) else {
            return Limits {
                records: 0,
                bytes: 0,
            };
        };
        if partition.window.is_full() {
            partition.moved_at = Instant::now();
        }
        partition.window.room()
    }

    /// Takes records in. Records of partitions that are not assigned are ignored.
    pub fn take_in(&mut self, arrivals: Vec<Arrival>, now: Timestamp) -> TakenIn {
        let mut taken_in = TakenIn::default();
        for Arrival {
            place,
            offset,
            record,
        } in arrivals
        {
            let Some(partition) = self.partitions.get_mut(&place) else {
                continue;
            };
            partition.moved_at = Instant::now();
            let bytes = record.as_ref().map_or(0, Record::bytes);
            match partition
                .watermark
                .receive(offset, Open { bytes, out: None })
            {
                Receipt::Rewound => {
                    taken_in.rewound = Some(place);
                    return taken_in;
                }
                Receipt::Gap(_) if partition.bucket.is_some() => taken_in.gaps += 1,
                Receipt::Reset => taken_in.resets += 1,
                Receipt::Gap(_) | Receipt::InOrder => {}
            }
            let Some(record) = record else {
                taken_in.tombstones += 1;
                partition
                    .watermark
                    .done(partition.watermark.epoch(), offset);
                continue;
            };
            partition.window.admit(bytes);
            let due = record.due.as_ref().ok().copied();
            match due {
                Some(due) => partition.window.wait(Held {
                    at: wake_at(due, record.stay),
                    offset,
                    record,
                }),
                None => partition.window.ripen(Held {
                    at: now,
                    offset,
                    record,
                }),
            }
        }
        taken_in
    }

    /// Looks at every record whose wake-up time has come; returns what is to be moved.
    pub fn wake(&mut self, now: Timestamp) -> Vec<Hop> {
        let mut hops = Vec::new();
        for (place, partition) in &mut self.partitions {
            while let Some(Held {
                offset, mut record, ..
            }) = partition.window.woken(now)
            {
                let Ok(due) = record.due else {
                    continue;
                };
                match decide(due, now, record.stay, &self.buckets) {
                    Next::Ripe => partition.window.ripen(Held {
                        at: due,
                        offset,
                        record,
                    }),
                    Next::Wait(at) => partition.window.wait(Held { at, offset, record }),
                    Next::Hop(to) => {
                        let origin = partition.origin(place, offset);
                        hops.push(Hop {
                            to,
                            due,
                            origin,
                            record,
                        });
                    }
                    Next::Refuse(refusal) => {
                        record.due = Err(BadRecord {
                            reason: refusal.reason(),
                            detail: refusal.to_string(),
                        });
                        partition.window.ripen(Held {
                            at: now,
                            offset,
                            record,
                        });
                    }
                }
            }
        }
        hops
    }

    /// Up to `max` ripe records, earliest due first over all partitions.
    pub fn take_ripe(&mut self, max: usize) -> Vec<Ripe> {
        let heads = self.partitions.iter().filter_map(|(place, partition)| {
            Some(Reverse((partition.window.ripe_at()?, place.clone())))
        });
        let mut heads: BinaryHeap<Reverse<(Timestamp, Place)>> = heads.collect();
        let mut ripe = Vec::new();
        while ripe.len() < max {
            let Some(Reverse((_, place))) = heads.pop() else {
                break;
            };
            let Some(partition) = self.partitions.get_mut(&place) else {
                continue;
            };
            if let Some(held) = partition.window.take_ripe() {
                let origin = partition.origin(&place, held.offset);
                if let Some(open) = partition.watermark.held_mut(origin.epoch, held.offset) {
                    open.out = Some(held.at);
                }
                ripe.push(held.record.into_ripe(origin));
            }
            heads.extend(partition.window.ripe_at().map(|at| Reverse((at, place))));
        }
        ripe
    }

    /// Whether [`Assignment::take_ripe`] would give anything.
    pub fn has_ripe(&self) -> bool {
        self.partitions
            .values()
            .any(|partition| partition.window.ripe_at().is_some())
    }

    /// Marks a record as done; false if its assignment is over or it is done already.
    pub fn done(&mut self, origin: &Origin) -> bool {
        let place = (origin.topic.clone(), origin.partition);
        let Some(partition) = self.partitions.get_mut(&place) else {
            return false;
        };
        let Some(open) = partition.watermark.done(origin.epoch, origin.offset) else {
            return false;
        };
        partition.window.release(open.bytes);
        true
    }

    /// Takes a handed-out record back, to be handed out again.
    pub fn put_back(&mut self, ripe: Ripe) {
        let Ripe { origin, .. } = &ripe;
        let place = (origin.topic.clone(), origin.partition);
        let Some(partition) = self.partitions.get_mut(&place) else {
            return;
        };
        let open = partition.watermark.held_mut(origin.epoch, origin.offset);
        if let Some(at) = open.and_then(|open| open.out.take()) {
            let offset = origin.offset;
            partition.window.ripen(Held {
                at,
                offset,
                record: Record::from_ripe(ripe),
            });
        }
    }

    /// Takes back a record whose hop failed, to be looked at again then.
    pub fn hop_again(&mut self, origin: &Origin, record: Record, at: Timestamp) {
        if let Some(partition) = self.partition_of(origin) {
            partition.window.wait(Held {
                at,
                offset: origin.offset,
                record,
            });
        }
    }

    /// Takes back a record that Kafka will never accept in another bucket.
    pub fn refuse_hop(
        &mut self,
        origin: &Origin,
        mut record: Record,
        why: BadRecord,
        now: Timestamp,
    ) {
        if let Some(partition) = self.partition_of(origin) {
            record.due = Err(why);
            partition.window.ripen(Held {
                at: now,
                offset: origin.offset,
                record,
            });
        }
    }

    /// When [`Assignment::wake`] will have something to do.
    pub fn next_wake_at(&self) -> Option<Timestamp> {
        self.partitions
            .values()
            .filter_map(|partition| partition.window.next_wake_at())
            .min()
    }

    /// Offsets that moved since they were last committed; they count as committed from now on.
    pub fn commits(&mut self) -> Vec<Commit> {
        let moved = |(place, partition): (&Place, &mut Partition)| {
            let position = partition.position()?;
            (partition.committed != Some(position)).then(|| {
                partition.committed = Some(position);
                Commit {
                    place: place.clone(),
                    position,
                }
            })
        };
        self.partitions.iter_mut().filter_map(moved).collect()
    }

    /// What to commit of these before they are given up: all of it, as an earlier commit may yet be refused.
    pub fn positions(&self, places: &[Place]) -> Vec<Commit> {
        let position = |place: &Place| {
            Some(Commit {
                place: place.clone(),
                position: self.partitions.get(place)?.position()?,
            })
        };
        places.iter().filter_map(position).collect()
    }

    /// Has every offset committed again, moved or not: brokers forget offsets that are not refreshed.
    pub fn commit_all_again(&mut self) {
        self.partitions
            .values_mut()
            .for_each(|partition| partition.committed = None);
    }

    /// For how long a partition had room and got no record, and its position.
    pub fn idle(&self, place: &Place) -> Option<(Duration, Option<i64>)> {
        let partition = self.partitions.get(place)?;
        Some((partition.moved_at.elapsed(), partition.watermark.position()))
    }

    /// All partitions, in order.
    pub fn view(&self, now: Timestamp) -> Vec<PartitionView> {
        let view = |((topic, number), partition): (&Place, &Partition)| PartitionView {
            topic: topic.clone(),
            partition: *number,
            epoch: partition.watermark.epoch(),
            records: partition.window.records(),
            bytes: partition.window.bytes(),
            position: partition.watermark.position(),
            next: partition.watermark.next(),
            full: partition.window.is_full() && partition.oldest_due().is_none_or(|due| due > now),
            overdue: partition
                .oldest_due()
                .map_or(TimeDelta::zero(), |due| (now - due).max(TimeDelta::zero())),
        };
        self.partitions.iter().map(view).collect()
    }

    fn partition_of(&mut self, origin: &Origin) -> Option<&mut Partition> {
        let partition = self
            .partitions
            .get_mut(&(origin.topic.clone(), origin.partition))?;
        partition
            .watermark
            .held_mut(origin.epoch, origin.offset)
            .is_some()
            .then_some(partition)
    }
}

impl Partition {
    fn origin(&self, (topic, partition): &Place, offset: i64) -> Origin {
        Origin {
            topic: topic.clone(),
            partition: *partition,
            offset,
            epoch: self.watermark.epoch(),
        }
    }

    #[cfg(not(feature = "planted"))]
    fn position(&self) -> Option<i64> {
        self.watermark.position()
    }

    #[cfg(feature = "planted")]
    fn position(&self) -> Option<i64> {
        if super::plant::commits_early() {
            self.watermark.next()
        } else {
            self.watermark.position()
        }
    }

    /// Due time, or wake-up time, of what has waited longest: in the window, ripe, or handed out.
    fn oldest_due(&self) -> Option<Timestamp> {
        let out = self.watermark.open().filter_map(|(_, open)| open.out).min();
        [self.window.next_wake_at(), self.window.ripe_at(), out]
            .into_iter()
            .flatten()
            .min()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::timer::Stay;

    /// One partition, number 0, assigned at that offset.
    pub fn assignment(topic: &str, committed: Option<i64>) -> Assignment {
        let buckets = Buckets::new(&[Span::from_secs(1)]).expect("buckets");
        let mut assignment = Assignment::new(
            buckets,
            Limits {
                records: 100,
                bytes: 100_000,
            },
        );
        assignment.assign((topic.into(), 0), Some(Span::from_secs(1)), committed);
        assignment
    }

    fn at_ms(ms: i64) -> Timestamp {
        Timestamp::from_timestamp_millis(1_700_000_000_000 + ms).expect("in range")
    }

    fn arrival(offset: i64, due_ms: i64) -> Arrival {
        let stay = Stay {
            bucket: Some(Span::from_secs(1)),
            entered: at_ms(0),
            hops: 0,
        };
        let record = Record {
            key: None,
            value: Arc::from(&b"{}"[..]),
            headers: Vec::new(),
            appended_at: at_ms(0),
            due: Ok(at_ms(due_ms)),
            stay,
        };
        Arrival {
            place: ("t".into(), 0),
            offset,
            record: Some(record),
        }
    }

    fn position(assignment: &Assignment) -> Option<i64> {
        assignment.view(at_ms(0))[0].position
    }

    #[test]
    fn ripe_records_come_in_due_order_and_count_as_overdue_until_they_are_done() {
        let mut assignment = assignment("t", Some(0));
        assignment.take_in(
            vec![arrival(0, 900), arrival(1, 300), arrival(2, 600)],
            at_ms(0),
        );
        assert!(assignment.wake(at_ms(700)).is_empty());

        let ripe = assignment.take_ripe(10);

        assert_eq!(
            ripe.iter()
                .map(|ripe| ripe.origin.offset)
                .collect::<Vec<_>>(),
            [1, 2]
        );
        assert_eq!(
            assignment.view(at_ms(800))[0].overdue,
            TimeDelta::milliseconds(500)
        );
        assert!(assignment.done(&ripe[0].origin));
        assert_eq!(
            assignment.view(at_ms(800))[0].overdue,
            TimeDelta::milliseconds(200)
        );
        assert_eq!(position(&assignment), Some(0));
    }

    #[test]
    fn a_partition_that_was_lost_and_won_again_ignores_what_was_out() {
        let mut assignment = assignment("t", Some(0));
        assignment.take_in(vec![arrival(0, 0)], at_ms(0));
        assignment.wake(at_ms(0));
        let before = assignment.take_ripe(1).remove(0);
        assignment.revoke(&("t".into(), 0));
        assert!(!assignment.done(&before.origin), "not assigned");
        assignment.assign(("t".into(), 0), Some(Span::from_secs(1)), Some(0));
        assignment.take_in(vec![arrival(0, 0)], at_ms(0));
        assignment.wake(at_ms(0));

        assert!(!assignment.done(&before.origin));
        assignment.put_back(before);

        assert_eq!(assignment.take_ripe(10).len(), 1, "the new one only");
        assert_eq!(position(&assignment), Some(0));
    }

    #[test]
    fn a_failed_hop_is_repeated_and_a_refused_one_is_handed_out() {
        let mut assignment = assignment("t", Some(0));
        assignment.take_in(vec![arrival(0, 5_000), arrival(1, 5_000)], at_ms(0));
        let mut hops = assignment.wake(at_ms(1_000));
        assert_eq!(
            hops.iter().map(|hop| hop.to).collect::<Vec<_>>(),
            [Span::from_secs(1); 2]
        );
        let (failed, refused) = (hops.remove(0), hops.remove(0));
        assert_eq!(assignment.next_wake_at(), None);

        assignment.hop_again(&failed.origin, failed.record, at_ms(2_000));
        let why = BadRecord {
            reason: "hop_refused",
            detail: String::new(),
        };
        assignment.refuse_hop(&refused.origin, refused.record, why.clone(), at_ms(1_100));

        assert_eq!(assignment.take_ripe(10).remove(0).due, Err(why));
        let again = assignment.wake(at_ms(2_000));
        assert_eq!(again.len(), 1);
        assert!(assignment.done(&again[0].origin), "delivered");
        assert_eq!(
            position(&assignment),
            Some(1),
            "the refused one is not done"
        );
    }

    #[test]
    fn offsets_are_committed_when_they_move_and_again_when_asked() {
        let mut assignment = assignment("t", None);
        assert!(assignment.commits().is_empty(), "nothing is known");
        assignment.take_in(vec![arrival(4, 0), arrival(5, 0)], at_ms(0));
        let offsets = |commits: Vec<Commit>| {
            commits
                .iter()
                .map(|commit| commit.position)
                .collect::<Vec<_>>()
        };
        assert_eq!(offsets(assignment.commits()), [4]);
        assert!(assignment.commits().is_empty());
        assignment.wake(at_ms(0));
        for ripe in assignment.take_ripe(10) {
            assignment.done(&ripe.origin);
        }
        assert_eq!(offsets(assignment.commits()), [6]);
        assignment.commit_all_again();
        assert_eq!(offsets(assignment.commits()), [6]);
    }

    #[test]
    fn gaps_count_on_buckets_and_not_on_the_schedule_topic() {
        let mut assignment = assignment("t", Some(0));
        assert_eq!(assignment.take_in(vec![arrival(3, 0)], at_ms(0)).gaps, 1);
        assignment.assign(("t".into(), 0), None, Some(0));
        assert_eq!(
            assignment.take_in(vec![arrival(3, 0)], at_ms(0)).gaps,
            0,
            "transactions leave gaps there"
        );
        assert_eq!(
            assignment.take_in(vec![arrival(2, 0)], at_ms(0)).rewound,
            Some(("t".into(), 0))
        );
    }

    #[test]
    fn tombstones_are_done_at_once() {
        let mut assignment = assignment("t", Some(0));
        let tombstone = Arrival {
            record: None,
            ..arrival(0, 0)
        };
        assert_eq!(assignment.take_in(vec![tombstone], at_ms(0)).tombstones, 1);
        assert_eq!(position(&assignment), Some(1));
    }
}
