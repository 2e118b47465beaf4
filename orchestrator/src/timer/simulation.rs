//! Seeded runs of windows, watermarks and hops over a virtual clock, with crashes at any point.

use std::collections::BTreeMap;

use chrono::TimeDelta;
use lapse_sagas::{Span, Timestamp};

use super::{Buckets, Held, Limits, Next, Receipt, Stay, Watermark, Window, decide, wake_at};

pub(super) fn at_ms(ms: i64) -> Timestamp {
    Timestamp::from_timestamp_millis(1_700_000_000_000 + ms).expect("in range")
}

pub(super) fn buckets(delays: &[&str]) -> Buckets {
    let delays: Vec<Span> = delays
        .iter()
        .map(|text| text.parse().expect(text))
        .collect();
    Buckets::new(&delays).expect("buckets")
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: i64) -> i64 {
        i64::try_from(self.next() % u64::try_from(limit).expect("positive")).expect("below limit")
    }

    fn one_in(&mut self, times: i64) -> bool {
        self.below(times) == 0
    }
}

#[derive(Clone)]
struct Timer {
    id: usize,
    due: Timestamp,
    entered: Timestamp,
    hops: u32,
}

/// One partition: its log is durable, the rest is lost in a crash.
struct Partition {
    bucket: Option<Span>,
    log: Vec<Timer>,
    committed: usize,
    read: usize,
    window: Window<Timer>,
    watermark: Watermark<()>,
}

impl Partition {
    fn stay(&self, timer: &Timer) -> Stay {
        Stay {
            bucket: self.bucket,
            entered: timer.entered,
            hops: timer.hops,
        }
    }
}

struct Run {
    seed: u64,
    dice: Dice,
    limits: Limits,
    buckets: Buckets,
    now: Timestamp,
    epoch: u64,
    partitions: BTreeMap<Option<Span>, Partition>,
    /// (done at, partition, epoch, offset): handed out, to be acknowledged.
    in_hand: Vec<(Timestamp, Option<Span>, u64, i64)>,
    fired: BTreeMap<usize, Timestamp>,
    worst_late: TimeDelta,
    most_hops: u32,
    /// Between the copy of a hop and its acknowledgement, a crash leaves a duplicate.
    crashing: bool,
}

/// Late by nature of the run: the clock is looked at so often.
const TICK_MS: i64 = 5;

impl Run {
    fn new(seed: u64, buckets: Buckets, records: usize) -> Self {
        let limits = Limits {
            records,
            bytes: usize::MAX,
        };
        let bucket_of = |bucket| Partition {
            bucket,
            log: Vec::new(),
            committed: 0,
            read: 0,
            window: Window::new(limits),
            watermark: Watermark::new(0, Some(0)),
        };
        let partitions = buckets
            .iter()
            .map(Some)
            .chain([None])
            .map(|bucket| (bucket, bucket_of(bucket)))
            .collect();
        Run {
            seed,
            dice: Dice(seed),
            limits,
            buckets,
            now: at_ms(0),
            epoch: 0,
            partitions,
            in_hand: Vec::new(),
            fired: BTreeMap::new(),
            worst_late: TimeDelta::zero(),
            most_hops: 0,
            crashing: false,
        }
    }

    fn produce(&mut self, bucket: Option<Span>, id: usize, due: Timestamp) {
        let entered = self.now;
        let log = &mut self.partitions.get_mut(&bucket).expect("known bucket").log;
        log.push(Timer {
            id,
            due,
            entered,
            hops: 0,
        });
    }

    fn read(&mut self) {
        for partition in self.partitions.values_mut() {
            while partition.read < partition.log.len() && !partition.window.is_full() {
                let timer = partition.log[partition.read].clone();
                let offset = i64::try_from(partition.read).expect("small");
                assert_eq!(partition.watermark.receive(offset, ()), Receipt::InOrder);
                partition.window.admit(1);
                let at = wake_at(timer.due, partition.stay(&timer));
                partition.window.wait(Held {
                    at,
                    offset,
                    record: timer,
                });
                partition.read += 1;
            }
            assert!(partition.window.records() <= self.limits.records);
        }
    }

    fn wake(&mut self) {
        let mut hops = Vec::new();
        for partition in self.partitions.values_mut() {
            while let Some(held) = partition.window.woken(self.now) {
                let stay = partition.stay(&held.record);
                match decide(held.record.due, self.now, stay, &self.buckets) {
                    Next::Ripe => partition.window.ripen(Held {
                        at: held.record.due,
                        ..held
                    }),
                    Next::Wait(at) => partition.window.wait(Held { at, ..held }),
                    Next::Hop(bucket) => {
                        hops.push((bucket, partition.bucket, held.offset, held.record))
                    }
                    Next::Refuse(refusal) => panic!("seed {}: {refusal}", self.seed),
                }
            }
        }
        for (to, from, offset, timer) in hops {
            self.most_hops = self.most_hops.max(timer.hops + 1);
            let hopped = Timer {
                entered: self.now,
                hops: timer.hops + 1,
                ..timer
            };
            self.partitions
                .get_mut(&Some(to))
                .expect("known bucket")
                .log
                .push(hopped);
            if !self.crashing {
                self.acknowledge(from, self.epoch, offset);
            }
        }
    }

    fn fire(&mut self, acknowledge_within_ms: i64) {
        for (bucket, partition) in &mut self.partitions {
            while let Some(held) = partition.window.take_ripe() {
                assert!(
                    self.now >= held.record.due,
                    "seed {}: timer {} fired early",
                    self.seed,
                    held.record.id
                );
                self.worst_late = self.worst_late.max(self.now - held.record.due);
                self.fired.entry(held.record.id).or_insert(self.now);
                let done_at =
                    self.now + TimeDelta::milliseconds(self.dice.below(acknowledge_within_ms));
                self.in_hand
                    .push((done_at, *bucket, self.epoch, held.offset));
            }
        }
    }

    fn acknowledge(&mut self, bucket: Option<Span>, epoch: u64, offset: i64) {
        let partition = self.partitions.get_mut(&bucket).expect("known bucket");
        let before = partition.watermark.position();
        if partition.watermark.done(epoch, offset).is_some() {
            partition.window.release(1);
        }
        assert!(
            partition.watermark.position() >= before,
            "seed {}: watermark moved back",
            self.seed
        );
    }

    fn acknowledge_what_is_done(&mut self) {
        let now = self.now;
        let (done, rest) = std::mem::take(&mut self.in_hand)
            .into_iter()
            .partition(|(at, ..)| *at <= now);
        self.in_hand = rest;
        let done: Vec<(Timestamp, Option<Span>, u64, i64)> = done;
        for (_, bucket, epoch, offset) in done {
            self.acknowledge(bucket, epoch, offset);
        }
    }

    fn commit(&mut self) {
        for partition in self.partitions.values_mut() {
            let position = usize::try_from(partition.watermark.position().expect("known start"))
                .expect("positive");
            assert!(
                position >= partition.committed,
                "seed {}: commit moved back",
                self.seed
            );
            partition.committed = position;
        }
    }

    /// Everything in memory is gone; acknowledgements on their way arrive later, with the old epoch.
    fn crash(&mut self) {
        self.commit();
        self.epoch += 1;
        for partition in self.partitions.values_mut() {
            let open: Vec<i64> = partition
                .watermark
                .open()
                .map(|(offset, ())| offset)
                .collect();
            let committed = i64::try_from(partition.committed).expect("small");
            assert_eq!(
                open.first().copied().unwrap_or(committed),
                committed,
                "delivered again from the first that is not done"
            );
            assert!(
                open.iter().all(|offset| *offset >= committed),
                "seed {}: one that is not done would be lost",
                self.seed
            );
            partition.read = partition.committed;
            partition.window = Window::new(self.limits);
            partition.watermark = Watermark::new(self.epoch, Some(committed));
        }
    }

    /// One look at everything; then on by a tick, or further if nothing is to happen before.
    fn step(&mut self, acknowledge_within_ms: i64) {
        self.read();
        self.wake();
        self.fire(acknowledge_within_ms);
        self.acknowledge_what_is_done();
        if self.dice.one_in(10) {
            self.commit();
        }
        self.read();
        let next_wake_at = self
            .partitions
            .values()
            .filter_map(|partition| partition.window.next_wake_at())
            .min();
        let next_done_at = self.in_hand.iter().map(|(at, ..)| *at).min();
        let next = next_wake_at
            .into_iter()
            .chain(next_done_at)
            .min()
            .unwrap_or(self.now)
            .max(self.now);
        self.now = next + TimeDelta::milliseconds(1 + self.dice.below(TICK_MS));
    }

    fn is_over(&self) -> bool {
        let nothing_left = |partition: &Partition| {
            partition.read == partition.log.len() && partition.window.records() == 0
        };
        self.in_hand.is_empty() && self.partitions.values().all(nothing_left)
    }
}

#[test]
fn every_timer_fires_never_early_and_on_time_whatever_its_due_time() {
    for seed in 0..40 {
        let mut run = Run::new(
            seed,
            buckets(&["5s", "15s", "1m", "5m", "15m", "30m", "2h", "24h"]),
            1_000,
        );
        for id in 0..100 {
            let longest_ms = [4_000, 60_000, 3_600_000, 31 * 86_400_000][id % 4];
            let due = run.now + TimeDelta::milliseconds(run.dice.below(longest_ms));
            run.produce(None, id, due);
        }
        while !run.is_over() {
            run.step(10);
        }
        assert_eq!(run.fired.len(), 100, "seed {seed}");
        assert!(
            run.worst_late <= TimeDelta::milliseconds(2 * TICK_MS + 1),
            "seed {seed}: late by {}",
            run.worst_late
        );
        assert!(run.most_hops <= 57, "seed {seed}: {} hops", run.most_hops);
    }
}

#[test]
fn a_fixed_delay_is_on_time_though_the_window_holds_a_tenth_of_it() {
    for seed in 0..40 {
        let mut run = Run::new(seed, buckets(&["15m"]), 50);
        let bucket: Span = "15m".parse().expect("span");
        for id in 0..500 {
            run.now += TimeDelta::milliseconds(run.dice.below(2_000));
            let due = run.now + bucket.delta();
            run.produce(Some(bucket), id, due);
        }
        while !run.is_over() {
            run.step(20);
        }
        assert!(
            run.worst_late <= TimeDelta::milliseconds(TICK_MS + 1),
            "seed {seed}: late by {}",
            run.worst_late
        );
        assert_eq!(run.most_hops, 0, "a fixed delay doesn't hop");
    }
}

#[test]
fn crashes_at_any_point_lose_no_timer_and_fire_none_early() {
    for seed in 0..200 {
        let mut run = Run::new(seed, buckets(&["5s", "15s", "1m", "15m"]), 40);
        for id in 0..60 {
            let due = run.now + TimeDelta::milliseconds(run.dice.below(3_600_000));
            let bucket = [None, Some("1m".parse().expect("span"))][id % 2];
            run.produce(bucket, id, due);
        }
        let mut crashes = 0;
        while !run.is_over() {
            run.crashing = crashes < 20 && run.dice.one_in(15);
            run.step(2_000);
            if run.crashing {
                crashes += 1;
                run.crash();
            }
        }
        assert_eq!(run.fired.len(), 60, "seed {seed}");
        assert!(crashes > 5, "seed {seed}: only {crashes} crashes");
    }
}
