//! The part of a partition that is held in memory: a bounded heap by wake-up time and a heap of what is ripe.
//!
//! A record counts against the limits from when it is pushed until it is released, whether it waits, is ripe or is out
//! in somebody's hand. Back-pressure is that nothing more is read while there is no room.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use lapse_sagas::Timestamp;

/// How much one partition may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Records.
    pub records: usize,
    /// Bytes of key, value and headers, with an allowance for keeping them.
    pub bytes: usize,
}

impl Limits {
    /// Whether either of them is used up.
    pub fn is_none(&self) -> bool {
        self.records == 0 || self.bytes == 0
    }
}

/// A record with its place in a heap.
#[derive(Clone, Debug)]
pub struct Held<R> {
    /// Wake-up time while waiting, due time once ripe.
    pub at: Timestamp,
    /// Its offset; among equal times the lower one comes first.
    pub offset: i64,
    /// The record.
    pub record: R,
}

/// What is held of one partition.
#[derive(Debug)]
pub struct Window<R> {
    limits: Limits,
    waiting: BinaryHeap<Reverse<Held<R>>>,
    ripe: BinaryHeap<Reverse<Held<R>>>,
    records: usize,
    bytes: usize,
}

impl<R> Window<R> {
    /// An empty window.
    pub fn new(limits: Limits) -> Self {
        Window {
            limits,
            waiting: BinaryHeap::new(),
            ripe: BinaryHeap::new(),
            records: 0,
            bytes: 0,
        }
    }

    /// How much more may be read now. The record that passes the limit of bytes is still let in, so that a single large
    /// one can't block its partition.
    pub fn room(&self) -> Limits {
        Limits {
            records: self.limits.records.saturating_sub(self.records),
            bytes: self.limits.bytes.saturating_sub(self.bytes),
        }
    }

    /// Whether nothing may be read.
    pub fn is_full(&self) -> bool {
        self.room().is_none()
    }

    /// Counts a new record in.
    pub fn admit(&mut self, bytes: usize) {
        self.records += 1;
        self.bytes += bytes;
    }

    /// Counts a record out that is done.
    pub fn release(&mut self, bytes: usize) {
        self.records = self.records.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Keeps a record until its wake-up time.
    pub fn wait(&mut self, held: Held<R>) {
        self.waiting.push(Reverse(held));
    }

    /// Keeps a record to be handed out, earliest due first.
    pub fn ripen(&mut self, held: Held<R>) {
        self.ripe.push(Reverse(held));
    }

    /// The next record whose wake-up time has come.
    pub fn woken(&mut self, now: Timestamp) -> Option<Held<R>> {
        if self.waiting.peek()?.0.at > now {
            return None;
        }
        self.waiting.pop().map(|Reverse(held)| held)
    }

    /// The ripe record that is due first.
    pub fn take_ripe(&mut self) -> Option<Held<R>> {
        self.ripe.pop().map(|Reverse(held)| held)
    }

    /// When [`Window::woken`] will have something.
    pub fn next_wake_at(&self) -> Option<Timestamp> {
        self.waiting.peek().map(|Reverse(held)| held.at)
    }

    /// Due time of what [`Window::take_ripe`] would give.
    pub fn ripe_at(&self) -> Option<Timestamp> {
        self.ripe.peek().map(|Reverse(held)| held.at)
    }

    /// Records counted in and not released.
    pub fn records(&self) -> usize {
        self.records
    }

    /// Their bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl<R> Held<R> {
    fn place(&self) -> (Timestamp, i64) {
        (self.at, self.offset)
    }
}

impl<R> PartialEq for Held<R> {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl<R> Eq for Held<R> {}

impl<R> PartialOrd for Held<R> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<R> Ord for Held<R> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place().cmp(&other.place())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timer::simulation::at_ms;

    fn held(at: i64, offset: i64) -> Held<()> {
        Held {
            at: at_ms(at),
            offset,
            record: (),
        }
    }

    #[test]
    fn records_wake_in_order_of_their_wake_up_times() {
        let mut window = Window::new(Limits {
            records: 10,
            bytes: 1_000,
        });
        for (at, offset) in [(30, 0), (10, 1), (20, 2), (10, 3)] {
            window.wait(held(at, offset));
        }
        assert!(window.woken(at_ms(9)).is_none());
        assert_eq!(window.next_wake_at(), Some(at_ms(10)));
        let woken: Vec<i64> = std::iter::from_fn(|| window.woken(at_ms(25)))
            .map(|held| held.offset)
            .collect();
        assert_eq!(woken, [1, 3, 2]);
    }

    #[test]
    fn there_is_no_room_until_something_is_released() {
        let mut window = Window::<()>::new(Limits {
            records: 2,
            bytes: 100,
        });
        assert_eq!(
            window.room(),
            Limits {
                records: 2,
                bytes: 100
            }
        );
        window.admit(500);
        assert!(
            window.is_full(),
            "bytes are used up, though the record was let in"
        );
        window.release(500);
        window.admit(10);
        window.admit(10);
        assert!(window.is_full(), "records are used up");
        window.release(10);
        assert_eq!(window.room().records, 1);
    }
}
