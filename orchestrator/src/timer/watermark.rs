//! How far a partition's offsets may be committed: up to the first record that is not done.

use std::collections::BTreeMap;

/// The offsets of one assignment of one partition that were received and are not done, each with what it holds.
///
/// Acknowledgements carry the assignment's epoch; those of another one are ignored, so a slow writer can't move the
/// offsets of a partition that was lost and won again.
#[derive(Debug)]
pub struct Watermark<T> {
    epoch: u64,
    /// The offset expected next; none until the start is known.
    next: Option<i64>,
    received_any: bool,
    open: BTreeMap<i64, T>,
}

/// How an offset came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receipt {
    /// As expected.
    InOrder,
    /// So many offsets before it are missing.
    Gap(i64),
    /// The log was reset to before the committed offset; everything from here on is received again.
    Reset,
    /// An offset at or before one already received: the log was rewound under this assignment.
    Rewound,
}

impl<T> Watermark<T> {
    /// For an assignment that starts at the committed offset, if there is one.
    pub fn new(epoch: u64, committed: Option<i64>) -> Self {
        Watermark {
            epoch,
            next: committed,
            received_any: false,
            open: BTreeMap::new(),
        }
    }

    /// The assignment it belongs to.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Takes in an offset. After [`Receipt::Rewound`] nothing was taken in.
    pub fn receive(&mut self, offset: i64, holds: T) -> Receipt {
        let receipt = match self.next {
            Some(next) if offset < next && self.received_any => return Receipt::Rewound,
            Some(next) if offset < next => Receipt::Reset,
            Some(next) if offset > next => Receipt::Gap(offset - next),
            _ => Receipt::InOrder,
        };
        self.received_any = true;
        self.next = Some(offset + 1);
        self.open.insert(offset, holds);
        receipt
    }

    /// Marks an offset as done and returns what it held; none if the epoch is another one or it is done already.
    pub fn done(&mut self, epoch: u64, offset: i64) -> Option<T> {
        if epoch != self.epoch {
            return None;
        }
        self.open.remove(&offset)
    }

    /// What an open offset of this assignment holds.
    pub fn held_mut(&mut self, epoch: u64, offset: i64) -> Option<&mut T> {
        if epoch != self.epoch {
            return None;
        }
        self.open.get_mut(&offset)
    }

    /// The offset to commit: every record before it is done. None until something is known.
    pub fn position(&self) -> Option<i64> {
        self.open
            .first_key_value()
            .map(|(offset, _)| *offset)
            .or(self.next)
    }

    /// The offset after the last one received.
    pub fn next(&self) -> Option<i64> {
        self.next
    }

    /// What is open, by offset.
    pub fn open(&self) -> impl Iterator<Item = (i64, &T)> {
        self.open.iter().map(|(offset, holds)| (*offset, holds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watermark_stops_before_the_first_open_offset() {
        let mut watermark = Watermark::new(1, Some(10));
        for offset in 10..15 {
            assert_eq!(watermark.receive(offset, ()), Receipt::InOrder);
        }
        for (done, position) in [(11, 10), (12, 10), (10, 13), (14, 13), (13, 15)] {
            assert!(watermark.done(1, done).is_some());
            assert_eq!(watermark.position(), Some(position), "after {done}");
        }
    }

    #[test]
    fn acknowledgements_of_another_assignment_are_ignored() {
        let mut watermark = Watermark::new(2, Some(0));
        watermark.receive(0, ());
        assert!(watermark.done(1, 0).is_none());
        assert_eq!(watermark.position(), Some(0));
        assert!(watermark.done(2, 0).is_some());
        assert!(watermark.done(2, 0).is_none(), "done twice");
    }

    #[test]
    fn gaps_resets_and_rewinds_are_told_apart() {
        let mut watermark = Watermark::new(1, Some(5));
        assert_eq!(watermark.receive(9, ()), Receipt::Gap(4));
        assert_eq!(watermark.receive(9, ()), Receipt::Rewound);
        assert_eq!(watermark.receive(3, ()), Receipt::Rewound);
        let mut watermark = Watermark::new(1, Some(5));
        assert_eq!(watermark.receive(0, ()), Receipt::Reset);
        let mut watermark = Watermark::new(1, None);
        assert_eq!(watermark.position(), None);
        assert_eq!(watermark.receive(7, ()), Receipt::InOrder);
    }
}
