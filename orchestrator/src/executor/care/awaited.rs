//! Commands that wait for their replies, where replies come later: as many as are answered well within a step's time-out.
//!
//! ```text
//! sent ─► awaited ─┬─ a reply to what was sent then or later ─► not awaited any more
//!                  └─ none for twice as long as a step waits ─► given up
//! replies late, missed, or late soon at this rate ─► fewer
//! twice as many in time at this rate, and it was full ─► twice as many
//! ```
//! Late is what waits longer than the quickest reply takes and half of the time that is left then. Relies on queues to be
//! worked off in their order: a reply tells of everything that was sent before, whichever coordinator reads it. Never: lowers
//! twice for what was sent together, and never for good by the first of replies that come together.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use chrono::TimeDelta;
use lapse_sagas::Timestamp;

/// Not fewer than these: so many without an answer are enough for a breaker to open.
const LEAST: usize = 8;

/// Awaited commands, and how many there may be.
#[derive(Debug)]
pub struct Awaited {
    /// By the time when they were sent.
    sent: BTreeMap<Timestamp, Sent>,
    commands: usize,
    /// So far, to whatever coordinator's commands: over all coordinators that is the participant's rate.
    replies: usize,
    at_most: usize,
    /// What it was before that which was sent by `lowered_at` lowered it.
    before: usize,
    lowered_at: Timestamp,
    /// How long the reply had taken that lowered it.
    lowered_after: TimeDelta,
    raised_at: Timestamp,
    /// In which it has replied: what waits longer is in a queue.
    quickest: TimeDelta,
}

#[derive(Debug)]
struct Sent {
    commands: usize,
    /// Replies there had been by then.
    replies: usize,
    /// What was awaited then, with these.
    awaited: usize,
    /// Until then they are in a queue, as far as anybody knows, though a step waits only half as long.
    until: Timestamp,
}

impl Awaited {
    /// Nothing is awaited.
    pub fn new(at_most: usize) -> Awaited {
        Awaited {
            sent: BTreeMap::new(),
            commands: 0,
            replies: 0,
            at_most,
            before: at_most,
            lowered_at: Timestamp::MIN_UTC,
            lowered_after: TimeDelta::MAX,
            raised_at: Timestamp::MIN_UTC,
            quickest: TimeDelta::MAX,
        }
    }

    /// Commands may be awaited.
    pub fn at_most(&self) -> usize {
        self.at_most
    }

    /// Commands are awaited.
    pub fn commands(&self) -> usize {
        self.commands
    }

    /// One more was sent; its step waits until then.
    pub fn sent(&mut self, at: Timestamp, until: Timestamp) {
        let replies = self.replies;
        let sent = self.sent.entry(at).or_insert_with(|| Sent {
            commands: 0,
            replies,
            awaited: 0,
            until: until + (until - at),
        });
        sent.commands += 1;
        self.commands += 1;
        sent.awaited = self.commands;
    }

    /// Of those that were sent then one is not awaited any more. Gives 1, or 0 if there was none.
    pub fn take_one(&mut self, sent_at: Timestamp) -> usize {
        let Entry::Occupied(mut sent) = self.sent.entry(sent_at) else {
            return 0;
        };
        sent.get_mut().commands -= 1;
        if sent.get().commands == 0 {
            sent.remove();
        }
        self.commands -= 1;
        1
    }

    /// A reply to a command that was sent then. Gives the number of commands that are not awaited any more.
    pub fn answered(&mut self, sent_at: Timestamp, timeout: TimeDelta, now: Timestamp) -> usize {
        let waited = (now - sent_at).max(TimeDelta::milliseconds(1));
        let sent = self.sent.get(&sent_at);
        let sent = sent.map(|sent| (sent.replies, sent.awaited));
        let answered = self.answer(sent_at);
        self.replies += 1;
        self.quickest = self.quickest.min(waited);
        let quickest = self.quickest.min(timeout);
        let may_queue = (timeout - quickest) / 2;
        let queued = waited - quickest;
        let in_time = (quickest + may_queue).as_seconds_f64() / waited.as_seconds_f64();
        let Some((replies, awaited)) = sent else {
            if queued > may_queue && sent_at > self.lowered_at {
                self.lower((self.at_most as f64 * in_time) as usize, waited, now);
            }
            return answered;
        };
        let fitting = ((self.replies - replies) as f64 * in_time) as usize;
        // Sooner than that nothing is known of the rate.
        let will_be_late = queued > may_queue / 4 && self.commands > fitting;
        let twice = self.at_most.saturating_mul(2);
        if sent_at <= self.lowered_at && self.at_most < self.before {
            if waited >= self.lowered_after {
                self.at_most = fitting.clamp(self.at_most, self.before);
            }
        } else if sent_at > self.lowered_at && (queued > may_queue || will_be_late) {
            self.lower(fitting, waited, now);
        } else if awaited * 2 >= self.at_most && fitting >= twice && sent_at > self.raised_at {
            self.at_most = twice;
            self.raised_at = now;
        }
        answered
    }

    /// A command that was sent then has had no reply in time.
    pub fn missed(&mut self, sent_at: Timestamp, now: Timestamp) {
        if sent_at > self.lowered_at {
            self.lower(self.at_most / 2, now - sent_at, now);
            self.before = self.at_most;
            self.raised_at = now;
        }
    }

    /// Gives the number of commands whose replies will not come.
    pub fn given_up(&mut self, now: Timestamp) -> usize {
        let before = self.commands;
        while let Some(oldest) = self.sent.first_entry()
            && oldest.get().until <= now
        {
            self.commands -= oldest.remove().commands;
        }
        before - self.commands
    }

    /// Gives the number of commands whose replies somebody else will read.
    pub fn forget(&mut self) -> usize {
        self.sent.clear();
        std::mem::take(&mut self.commands)
    }

    /// All that was sent before, and one of what was sent then.
    fn answer(&mut self, sent_at: Timestamp) -> usize {
        let since = self.sent.split_off(&sent_at);
        let earlier = std::mem::replace(&mut self.sent, since);
        let earlier: usize = earlier.values().map(|sent| sent.commands).sum();
        self.commands -= earlier;
        earlier + self.take_one(sent_at)
    }

    fn lower(&mut self, to: usize, waited: TimeDelta, now: Timestamp) {
        self.before = self.at_most;
        self.at_most = to.clamp(LEAST, self.at_most.max(LEAST));
        self.lowered_at = now;
        self.lowered_after = waited;
        if self.at_most == LEAST {
            // Of so few none is long in a queue: what they take then is what it takes.
            self.quickest = TimeDelta::MAX;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const TIMEOUT: TimeDelta = TimeDelta::seconds(5);

    fn at(ms: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + TimeDelta::milliseconds(ms)
    }

    fn sent(awaited: &mut Awaited, commands: usize, ms: i64) {
        for _ in 0..commands {
            awaited.sent(at(ms), at(ms) + TIMEOUT);
        }
    }

    #[test]
    fn a_reply_tells_of_all_that_was_sent_before_and_of_one_that_was_sent_with_it() {
        let mut awaited = Awaited::new(1_000);
        sent(&mut awaited, 10, 0);
        sent(&mut awaited, 20, 1);
        sent(&mut awaited, 30, 2);
        assert_eq!(awaited.answered(at(1), TIMEOUT, at(50)), 11);
        assert_eq!(awaited.answered(at(1), TIMEOUT, at(50)), 1);
        assert_eq!(awaited.commands(), 48);
    }

    #[test]
    fn what_has_no_reply_is_awaited_for_longer_than_its_step_waits_but_not_for_ever() {
        let mut awaited = Awaited::new(1_000);
        sent(&mut awaited, 10, 0);
        sent(&mut awaited, 20, 100);
        assert_eq!(awaited.given_up(at(9_999)), 0);
        assert_eq!(awaited.given_up(at(10_000)), 10);
        assert_eq!(awaited.commands(), 20);
    }

    fn answered(awaited: &mut Awaited, commands: usize, sent_ms: i64, ms: i64) {
        for _ in 0..commands {
            awaited.answered(at(sent_ms), TIMEOUT, at(ms));
        }
    }

    #[test]
    fn replies_that_take_long_make_it_fit_once_for_all_that_was_sent_by_then() {
        let mut awaited = Awaited::new(1_000);
        sent(&mut awaited, 400, 0);
        answered(&mut awaited, 1, 0, 1_000);
        answered(&mut awaited, 398, 0, 1_200);
        answered(&mut awaited, 1, 0, 4_000);
        assert_eq!(
            awaited.at_most(),
            300,
            "400 in 4 s; 3 s are in time for one that replies in 1 s"
        );
        awaited.missed(at(3_000), at(9_000));
        assert_eq!(awaited.at_most(), 300);
        awaited.missed(at(4_001), at(9_001));
        assert_eq!(awaited.at_most(), 150);
    }

    #[test]
    fn replies_that_will_take_long_make_it_fit_too() {
        let mut awaited = Awaited::new(500);
        sent(&mut awaited, 500, 0);
        answered(&mut awaited, 1, 0, 10);
        answered(&mut awaited, 98, 0, 600);
        assert_eq!(awaited.at_most(), 500, "too soon to tell");
        answered(&mut awaited, 1, 0, 1_000);
        assert_eq!(awaited.at_most(), 250, "100 in a second, and 400 to go");
    }

    #[test]
    fn replies_that_come_together_are_judged_together() {
        for (replies_in, at_most) in [(1_000, 1_000), (4_000, 500)] {
            let mut awaited = Awaited::new(500);
            sent(&mut awaited, 1, 0);
            answered(&mut awaited, 1, 0, 100);
            sent(&mut awaited, 500, 200);
            answered(&mut awaited, 500, 200, 200 + replies_in);
            assert_eq!(awaited.at_most(), at_most, "500 in {replies_in} ms");
        }
    }

    #[test]
    fn it_grows_when_replies_come_soon_and_it_was_full() {
        let mut awaited = Awaited::new(200);
        sent(&mut awaited, 10, 0);
        answered(&mut awaited, 10, 0, 20);
        assert_eq!(awaited.at_most(), 200, "there was room");
        sent(&mut awaited, 100, 30);
        sent(&mut awaited, 100, 30);
        answered(&mut awaited, 1, 30, 50);
        assert_eq!(
            awaited.at_most(),
            200,
            "50 in a second: the others would take four"
        );
        answered(&mut awaited, 99, 30, 80);
        assert_eq!(
            awaited.at_most(),
            400,
            "once, though another coordinator hears the rest"
        );
    }

    #[test]
    fn what_another_coordinator_will_hear_takes_no_room() {
        let mut awaited = Awaited::new(200);
        sent(&mut awaited, 10, 0);
        assert_eq!(awaited.forget(), 10);
        assert_eq!((awaited.commands(), awaited.given_up(at(60_000))), (0, 0));
    }

    /// How a participant works off its queue.
    #[derive(Debug)]
    enum Works {
        /// So many a second.
        Evenly(i64),
        /// All that it finds, in each so many milliseconds.
        Together(i64),
        /// Each after so many milliseconds.
        After(i64),
    }

    impl Works {
        /// Commands that it answers now.
        fn answers(&self, queue: &VecDeque<Timestamp>, ms: i64) -> usize {
            match self {
                Works::Evenly(per_second) => {
                    let due = (ms + 1) * per_second / 1_000 - ms * per_second / 1_000;
                    queue.len().min(due as usize)
                }
                Works::Together(every_ms) if ms % every_ms == 0 => queue.len(),
                Works::Together(_) => 0,
                Works::After(after_ms) => {
                    queue.partition_point(|sent_at| *sent_at <= at(ms - after_ms))
                }
            }
        }
    }

    /// For half a minute there are more commands than a participant does. Gives how many were done, and how many of them late.
    fn half_a_minute(works: &Works) -> (usize, usize) {
        let mut awaited = Awaited::new(500);
        let (mut queue, mut unanswered) = (VecDeque::new(), VecDeque::new());
        let (mut done, mut late) = (0, 0);
        for ms in 0..30_000 {
            let now = at(ms);
            while unanswered
                .front()
                .is_some_and(|sent_at| now - *sent_at > TIMEOUT)
            {
                awaited.missed(unanswered.pop_front().unwrap(), now);
            }
            awaited.given_up(now);
            let room = awaited.at_most().saturating_sub(awaited.commands());
            let room = room.min(500);
            if ms % 50 == 0 && room > 0 {
                sent(&mut awaited, room, ms);
                queue.extend(std::iter::repeat_n(now, room));
                unanswered.extend(std::iter::repeat_n(now, room));
            }
            let answers = works.answers(&queue, ms);
            for sent_at in queue.drain(..answers) {
                done += 1;
                late += usize::from(now - sent_at > TIMEOUT);
                unanswered.pop_front_if(|first| *first == sent_at);
                awaited.answered(sent_at, TIMEOUT, now);
            }
        }
        (done, late)
    }

    #[test]
    fn no_more_is_sent_than_is_answered_in_time_and_the_participant_is_kept_at_work() {
        for (works, least, may_be_late) in [
            (Works::Evenly(50), 50 * 28, 300),
            (Works::Evenly(1_000), 1_000 * 28, 0),
            (Works::Evenly(5_000), 5_000 * 28, 0),
            (Works::Together(1_000), 500 * 28, 0),
            (Works::Together(4_000), 500 * 6, 0),
            (Works::After(20), 5_000 * 28, 0),
            (Works::After(1_000), 500 * 28, 0),
            (Works::After(4_000), 500 * 6, 0),
        ] {
            let (done, late) = half_a_minute(&works);
            assert!(late <= may_be_late, "{works:?}: {late} of {done} were late");
            assert!(done >= least, "{works:?}: {done} only, it was kept waiting");
        }
    }
}
