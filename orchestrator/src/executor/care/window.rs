//! Commands that wait for their replies, where replies come later: as many as are answered within half of a step's time-out.
//!
//! ```text
//! sent ─► awaited ─┬─ a reply to what was sent then or later ─► not awaited any more
//!                  └─ none for twice as long as a step waits ─► given up
//! replies late or missed ─► smaller      replies soon, the rest soon at that rate, and it was full ─► twice as large
//! ```
//! Relies on queues to be worked off in their order: a reply tells of everything that was sent before, so it does not matter
//! which coordinator reads the reply to which command. Never: changes twice for what one sending has shown.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use chrono::TimeDelta;
use lapse_sagas::Timestamp;

/// Not smaller than this: so many without an answer are enough for a breaker to open.
const LEAST: usize = 8;

/// Awaited commands, and how many there may be.
#[derive(Debug)]
pub struct Window {
    /// By the time when they were sent.
    awaited: BTreeMap<Timestamp, Sent>,
    commands: usize,
    /// So far.
    answered: usize,
    size: usize,
    grown_at: Timestamp,
    shrunk_at: Timestamp,
}

#[derive(Debug)]
struct Sent {
    commands: usize,
    /// What had been answered by then.
    answered: usize,
    /// What was awaited then, with these.
    awaited: usize,
    /// Until then they are in a queue, as far as anybody knows, though a step waits only half as long.
    until: Timestamp,
}

impl Window {
    /// Nothing is awaited.
    pub fn new(size: usize) -> Window {
        Window {
            awaited: BTreeMap::new(),
            commands: 0,
            answered: 0,
            size,
            grown_at: Timestamp::MIN_UTC,
            shrunk_at: Timestamp::MIN_UTC,
        }
    }

    /// Commands may be awaited.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Commands are awaited.
    pub fn commands(&self) -> usize {
        self.commands
    }

    /// One more was sent; its step waits until then.
    pub fn sent(&mut self, at: Timestamp, until: Timestamp) {
        let answered = self.answered;
        let sent = self.awaited.entry(at).or_insert_with(|| Sent {
            commands: 0,
            answered,
            awaited: 0,
            until: until + (until - at),
        });
        sent.commands += 1;
        self.commands += 1;
        sent.awaited = self.commands;
    }

    /// Of those that were sent then one is not awaited any more. Gives 1, or 0 if there was none.
    pub fn take_one(&mut self, sent_at: Timestamp) -> usize {
        let Entry::Occupied(mut sent) = self.awaited.entry(sent_at) else {
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
        let (in_time, waited) = (timeout / 2, now - sent_at);
        let before = self.awaited.get(&sent_at);
        let before = before.map(|sent| (sent.answered, sent.awaited));
        let answered = self.answer(sent_at);
        // As many as were answered while this one waited; of another coordinator's command that is not known.
        let meanwhile = before.map_or(self.size, |(answered, _)| self.answered - answered) as f64;
        let fitting = (meanwhile * in_time.as_seconds_f64() / waited.as_seconds_f64()) as usize;
        // Sooner than that there may have been one reply of a whole batch.
        let will_be_late = before.is_some() && waited > timeout / 8 && self.commands > fitting;
        let was_full = before.is_some_and(|(_, awaited)| awaited * 2 >= self.size);
        let is_quick = waited < in_time / 2 && self.commands < fitting / 2;
        if waited > in_time || will_be_late {
            self.shrink(sent_at, fitting, now);
        } else if was_full && is_quick && sent_at > self.grown_at {
            self.size = self.size.saturating_mul(2);
            self.grown_at = now;
        }
        answered
    }

    /// A command that was sent then has had no reply in time.
    pub fn missed(&mut self, sent_at: Timestamp, now: Timestamp) {
        self.shrink(sent_at, self.size / 2, now);
    }

    /// Gives the number of commands whose replies will not come.
    pub fn given_up(&mut self, now: Timestamp) -> usize {
        let before = self.commands;
        while let Some(oldest) = self.awaited.first_entry()
            && oldest.get().until <= now
        {
            self.commands -= oldest.remove().commands;
        }
        before - self.commands
    }

    /// All that was sent before, and one of what was sent then.
    fn answer(&mut self, sent_at: Timestamp) -> usize {
        let since = self.awaited.split_off(&sent_at);
        let earlier = std::mem::replace(&mut self.awaited, since);
        let earlier: usize = earlier.values().map(|sent| sent.commands).sum();
        self.commands -= earlier;
        let answered = earlier + self.take_one(sent_at);
        self.answered += answered;
        answered
    }

    fn shrink(&mut self, sent_at: Timestamp, to: usize, now: Timestamp) {
        if sent_at > self.shrunk_at {
            self.size = self.size.min(to).max(LEAST);
            self.shrunk_at = now;
            self.grown_at = now;
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

    fn sent(window: &mut Window, commands: usize, ms: i64) {
        for _ in 0..commands {
            window.sent(at(ms), at(ms) + TIMEOUT);
        }
    }

    #[test]
    fn a_reply_tells_of_all_that_was_sent_before_and_of_one_that_was_sent_with_it() {
        let mut window = Window::new(1_000);
        sent(&mut window, 10, 0);
        sent(&mut window, 20, 1);
        sent(&mut window, 30, 2);
        assert_eq!(window.answered(at(1), TIMEOUT, at(50)), 11);
        assert_eq!(window.answered(at(1), TIMEOUT, at(50)), 1);
        assert_eq!(window.commands(), 48);
    }

    #[test]
    fn what_has_no_reply_is_awaited_for_longer_than_its_step_waits_but_not_for_ever() {
        let mut window = Window::new(1_000);
        sent(&mut window, 10, 0);
        sent(&mut window, 20, 100);
        assert_eq!(window.given_up(at(9_999)), 0);
        assert_eq!(window.given_up(at(10_000)), 10);
        assert_eq!(window.commands(), 20);
    }

    fn answered(window: &mut Window, commands: usize, sent_ms: i64, ms: i64) {
        for _ in 0..commands {
            window.answered(at(sent_ms), TIMEOUT, at(ms));
        }
    }

    #[test]
    fn replies_that_take_long_make_it_fit_once_for_all_that_was_sent_by_then() {
        let mut window = Window::new(1_000);
        sent(&mut window, 400, 0);
        answered(&mut window, 400, 0, 4_000);
        assert_eq!(window.size(), 8, "one in four seconds, as far as was known");

        let mut window = Window::new(1_000);
        sent(&mut window, 400, 0);
        answered(&mut window, 399, 0, 600);
        answered(&mut window, 1, 0, 4_000);
        assert_eq!(window.size(), 250, "400 in 4 s");
        window.missed(at(3_000), at(9_000));
        assert_eq!(window.size(), 250);
        window.missed(at(4_001), at(9_001));
        assert_eq!(window.size(), 125);
    }

    #[test]
    fn replies_that_will_take_long_make_it_fit_too() {
        let mut window = Window::new(500);
        sent(&mut window, 500, 0);
        answered(&mut window, 99, 0, 600);
        assert_eq!(window.size(), 500, "too soon to tell");
        answered(&mut window, 1, 0, 1_000);
        assert_eq!(window.size(), 250, "100 in a second, and 400 to go");
    }

    #[test]
    fn it_grows_when_replies_come_soon_and_it_was_full() {
        let mut window = Window::new(200);
        sent(&mut window, 10, 0);
        answered(&mut window, 10, 0, 20);
        assert_eq!(window.size(), 200, "there was room");
        sent(&mut window, 100, 30);
        sent(&mut window, 100, 30);
        answered(&mut window, 1, 30, 50);
        assert_eq!(
            window.size(),
            200,
            "50 in a second: the others would take four"
        );
        answered(&mut window, 99, 30, 80);
        assert_eq!(
            window.size(),
            400,
            "once, though another coordinator hears the rest"
        );
    }

    /// For a minute there are more commands than a participant does. Gives how many were done, and how many of them late.
    fn a_minute(per_second: i64) -> (usize, usize) {
        let mut window = Window::new(500);
        let (mut queue, mut unanswered) = (VecDeque::new(), VecDeque::new());
        let (mut done, mut late) = (0, 0);
        for ms in 0..60_000 {
            let now = at(ms);
            while unanswered
                .front()
                .is_some_and(|sent_at| now - *sent_at > TIMEOUT)
            {
                window.missed(unanswered.pop_front().unwrap(), now);
            }
            window.given_up(now);
            let room = window.size().saturating_sub(window.commands()).min(500);
            if ms % 10 == 0 && room > 0 {
                sent(&mut window, room, ms);
                queue.extend(std::iter::repeat_n(now, room));
                unanswered.extend(std::iter::repeat_n(now, room));
            }
            let due = (ms + 1) * per_second / 1_000 - ms * per_second / 1_000;
            for sent_at in queue.drain(..queue.len().min(due as usize)) {
                done += 1;
                late += usize::from(now - sent_at > TIMEOUT);
                unanswered.pop_front_if(|first| *first == sent_at);
                window.answered(sent_at, TIMEOUT, now);
            }
        }
        (done, late)
    }

    #[test]
    fn no_more_is_sent_than_is_answered_in_time_and_the_participant_is_kept_at_work() {
        for (per_second, may_be_late) in [(50, 300), (1_000, 0), (20_000, 0)] {
            let (done, late) = a_minute(per_second);
            assert!(
                late <= may_be_late,
                "{per_second}/s: {late} of {done} were late"
            );
            let least = per_second as usize * 58;
            assert!(
                done >= least,
                "{per_second}/s: {done} only, it was kept waiting"
            );
        }
    }
}
