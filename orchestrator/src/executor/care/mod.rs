//! How one participant is to be treated: called freely, sparingly, or left alone until a probe is answered.
//!
//! ```text
//! saga ─► breaker open? ──► wait, or go ahead as the one probe of this second
//!            │ asked to be left alone? ──► wait
//!            └─► limit of commands under way, budget of retries ──► call ─► answered, lost, busy, misconfigured ─┐
//!                    ▲──────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//! One for all groups of the executor that call the participant. Relies on its caller for the time. Never: decides about
//! a saga's attempts; whatever waits here waits at no attempt.

mod awaited;
mod breaker;
mod budget;
mod limit;
mod pace;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use chrono::TimeDelta;
use lapse_sagas::{SagaId, Timestamp};

use self::awaited::Awaited;
use self::breaker::Breaker;
use self::budget::Budget;
use self::limit::Limit;
use self::pace::Pace;
use crate::store::ParticipantDown;

pub use self::breaker::{Fault, Open};

/// Sagas that wait for an open breaker look again after a quarter of the time that it is open: then everything that
/// gathered comes within that time once it closes, at four times the rate at which it came, and until then the
/// database has no more to do than that. Not sooner and not later than this.
const WAITS: (TimeDelta, TimeDelta) = (TimeDelta::seconds(1), TimeDelta::seconds(30));
/// The same for sagas that find no room under the limit.
const QUEUES: (TimeDelta, TimeDelta) = (TimeDelta::seconds(1), TimeDelta::seconds(10));
/// A participant may ask to be left alone for so long at most.
const LEFT_ALONE_MAX: TimeDelta = TimeDelta::seconds(60);
/// One that is busy and does not say for how long.
const BUSY_FOR: TimeDelta = TimeDelta::seconds(1);
/// What was learnt before so long a silence is old.
const REMEMBERED: TimeDelta = TimeDelta::seconds(60);
/// A breaker that is open for less is a moment's trouble: nobody is called for that.
const CERTAIN_AFTER: TimeDelta = TimeDelta::seconds(2);
/// How often an alert is told that it still holds.
const TOLD_EVERY: TimeDelta = TimeDelta::seconds(10);
/// Room under the budget of retries is counted so far ahead.
const BUDGET_AHEAD_S: f64 = 5.0;

/// What a saga may do whose command is for this participant.
#[derive(Clone, PartialEq, Debug)]
pub enum Entry {
    /// Go on.
    Free,
    /// Go ahead alone, as a probe.
    Probe,
    /// Wait.
    Wait(Wait),
}

/// Until when, and why.
#[derive(Clone, PartialEq, Debug)]
pub struct Wait {
    /// When to ask again; not the same for any two sagas.
    pub until: Timestamp,
    /// For people.
    pub why: String,
}

/// A call that is through.
pub struct Call<'a> {
    /// The operation.
    pub operation: &'a str,
    /// Whose commands were in it.
    pub sagas: &'a [SagaId],
    /// When it went out.
    pub sent_at: Timestamp,
    /// What for.
    pub purpose: Purpose,
}

/// Why a call was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// To do what had not been tried.
    First,
    /// All of it had been tried before.
    Retry,
    /// To see whether anybody is there.
    Probe,
}

/// What came of a call, as far as the participant's health is concerned.
#[derive(Clone, PartialEq, Debug)]
pub enum Verdict {
    /// An answer, whatever it was.
    Answered,
    /// No answer.
    Lost {
        /// Unreachable or unanswered.
        fault: Fault,
        /// For people.
        error: String,
        /// How long it asks to be left alone.
        retry_after: Option<Duration>,
    },
    /// It has too much to do.
    Busy {
        /// How long it asks to be left alone.
        retry_after: Option<Duration>,
    },
    /// It does not know the operation, or does not let us.
    Misconfigured {
        /// For people.
        error: String,
    },
}

/// What the world is to be told.
#[derive(Clone, PartialEq, Debug)]
pub enum News {
    /// It does not answer, or still doesn't.
    Down(ParticipantDown),
    /// It answers again.
    Up,
}

/// What the world knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    Nothing,
    Down(Timestamp),
    /// It has to hear that it is over; another coordinator may have told that it began.
    NotYetUp,
}

/// One participant.
#[derive(Debug)]
pub struct Care {
    participant: String,
    breaker: Breaker,
    /// A fault of configuration concerns one operation, as far as anybody knows.
    operations: BTreeMap<String, Breaker>,
    limit: Limit,
    limited_since: Timestamp,
    /// Only where replies come later.
    awaited: Option<Awaited>,
    /// Of calls that are not through; under way until their replies come.
    awaited_in_calls: usize,
    /// Whether replies that come later are read here.
    hears: bool,
    pace: Pace,
    /// Until then what waited for it comes.
    recovers_until: Timestamp,
    budget: Budget,
    left_alone_until: Timestamp,
    heard_at: Timestamp,
    waiting: HashSet<SagaId>,
    told: Told,
}

impl Care {
    /// A participant of which nothing is known yet; `full` commands under way are no limit any more.
    pub fn new(participant: &str, full: usize) -> Care {
        Care {
            participant: participant.to_owned(),
            breaker: Breaker::default(),
            operations: BTreeMap::new(),
            limit: Limit::new(full),
            limited_since: Timestamp::MIN_UTC,
            awaited: None,
            awaited_in_calls: 0,
            hears: true,
            pace: Pace::default(),
            recovers_until: Timestamp::MIN_UTC,
            budget: Budget::new(),
            left_alone_until: Timestamp::MIN_UTC,
            heard_at: Timestamp::MIN_UTC,
            waiting: HashSet::new(),
            told: Told::Nothing,
        }
    }

    /// A saga's next command is for this operation.
    pub fn admit(&mut self, operation: &str, saga: SagaId, now: Timestamp) -> Entry {
        let is_probe = match self.breaker_of(operation) {
            Some(breaker) => breaker.is_probe_due(now),
            None => false,
        };
        if is_probe {
            self.waiting.remove(&saga);
            return Entry::Probe;
        }
        match self.wait(operation, saga, now) {
            Some(wait) => Entry::Wait(wait),
            None => {
                self.waiting.remove(&saga);
                Entry::Free
            }
        }
    }

    /// How long this saga waits, if calls of this operation wait now.
    pub fn wait(&mut self, operation: &str, saga: SagaId, now: Timestamp) -> Option<Wait> {
        let (from, longest, why) = if let Some(open) = self.open(operation) {
            let why = format!(
                "{}: participant {} is left alone but for a probe a second: {}",
                open.fault.name(),
                self.participant,
                open.error
            );
            (now, within((now - open.since) / 4, WAITS), why)
        } else if now < self.left_alone_until {
            let why = format!(
                "busy: participant {} asks to be left alone",
                self.participant
            );
            (self.left_alone_until, WAITS.0, why)
        } else {
            return None;
        };
        self.waiting.insert(saga);
        let until = from + spread(saga, longest);
        Some(Wait { until, why })
    }

    /// When a call that met a fault may be tried again, whether the breaker has opened or not.
    pub fn again_at(&mut self, operation: &str, saga: SagaId, now: Timestamp) -> Timestamp {
        let wait = self.wait(operation, saga, now);
        wait.map_or_else(|| now + spread(saga, WAITS.0), |wait| wait.until)
    }

    /// Whether nothing but probes may go out.
    pub fn is_shut(&self, operation: &str, now: Timestamp) -> bool {
        self.open(operation).is_some() || now < self.left_alone_until
    }

    /// How many more commands may go out now.
    pub fn room(&self) -> usize {
        let awaited = self.bound().map_or(usize::MAX, |awaited| {
            awaited.at_most().saturating_sub(self.limit.in_flight())
        });
        self.limit.room().min(awaited)
    }

    /// How many commands may be in calls and waiting for their turn together.
    pub fn may_hold(&self) -> usize {
        let limits = [self.limit.commands(), self.bound().map(Awaited::at_most)];
        let limit = limits.into_iter().flatten().min();
        let awaited = self.bound().map_or(0, Awaited::commands);
        limit.map_or(usize::MAX, |limit| {
            limit.saturating_mul(2).saturating_sub(awaited)
        })
    }

    /// Retry calls that may begin within the next seconds.
    pub fn retries(&self, now: Timestamp) -> usize {
        self.budget.within(BUDGET_AHEAD_S, now)
    }

    /// A retry call wants to begin: false if it has to wait.
    pub fn may_retry(&mut self, now: Timestamp) -> bool {
        self.budget.take(now)
    }

    /// When a saga that finds no room under the limit looks again; none where there is no limit.
    pub fn turn_at(&self, saga: SagaId, now: Timestamp) -> Option<Timestamp> {
        self.limit.commands()?;
        Some(now + spread(saga, within((now - self.limited_since) / 4, QUEUES)))
    }

    /// Before this no call may begin; probes aside.
    pub fn next_at(&self, now: Timestamp) -> Option<Timestamp> {
        // A queue is read at its reader's pace.
        let next_at = self.pace.next_at().filter(|_| self.awaited.is_none())?;
        (now < self.recovers_until && now < next_at).then_some(next_at)
    }

    /// A call of so many commands begins, of at most `batch_max`.
    pub fn began(&mut self, commands: usize, batch_max: usize, now: Timestamp) {
        if now < self.recovers_until {
            self.pace.paced(batch_max, now);
        } else if self.level() == 0 {
            self.pace.usual(commands, now);
        }
        if self.limit.in_flight() == 0 && now - self.heard_at > REMEMBERED {
            self.limit.forget();
        }
        self.limit.began(commands);
    }

    /// It is through, whatever came of it; what has its reply still to come stays under way.
    pub fn ended(&mut self, commands: usize) {
        let awaited = commands.min(self.awaited_in_calls);
        self.awaited_in_calls -= awaited;
        self.limit.ended(commands - awaited);
    }

    /// A command of a call was sent then, and its reply comes later; its step waits until then. Said before [`Care::ended`].
    pub fn awaits(&mut self, sent_at: Timestamp, until: Timestamp) {
        let awaited = self
            .awaited
            .get_or_insert_with(|| Awaited::new(self.limit.full() / 4));
        awaited.sent(sent_at, until);
        self.awaited_in_calls += 1;
    }

    /// A command that was sent then, by whatever coordinator, has its reply now.
    pub fn waited(&mut self, sent_at: Timestamp, timeout: TimeDelta, now: Timestamp) {
        if let Some(awaited) = &mut self.awaited {
            self.limit.ended(awaited.answered(sent_at, timeout, now));
        }
    }

    /// One of the commands that count as sent then was not.
    pub fn withdrawn(&mut self, sent_at: Timestamp) {
        let awaited = self.awaited.as_mut();
        let withdrawn = awaited.map_or(0, |awaited| awaited.take_one(sent_at));
        self.limit.ended(withdrawn);
    }

    /// Replies are read here; those that have not come by now will not come.
    pub fn give_up(&mut self, now: Timestamp) {
        self.hears = true;
        let awaited = self.awaited.as_mut();
        let given_up = awaited.map_or(0, |awaited| awaited.given_up(now));
        self.limit.ended(given_up);
    }

    /// Replies are read by others only: nothing is awaited, and nothing bounds what is sent. What was learnt holds again
    /// when they are read here again.
    pub fn hear_nothing(&mut self) {
        self.hears = false;
        let forgotten = self.awaited.as_mut().map_or(0, Awaited::forget);
        self.limit.ended(forgotten);
    }

    /// What came of a call. Said before [`Care::ended`].
    pub fn heard(&mut self, call: &Call<'_>, verdict: Verdict, now: Timestamp) {
        self.heard_at = now;
        let was_limited = self.limit.commands().is_some();
        match verdict {
            Verdict::Answered => self.answered(call, now),
            Verdict::Lost {
                fault,
                error,
                retry_after,
            } => {
                let sagas = call.sagas.iter().copied();
                self.breaker
                    .unanswered(fault, &error, sagas, call.sent_at, now);
                self.limit.bad(call.sent_at, now);
                if let Some(awaited) = &mut self.awaited {
                    awaited.missed(call.sent_at, now);
                }
                if let Some(retry_after) = retry_after {
                    self.leave_alone(call.operation, retry_after, now);
                }
            }
            Verdict::Busy { retry_after } => {
                self.limit.bad(call.sent_at, now);
                let busy_for = retry_after.unwrap_or(BUSY_FOR.to_std().unwrap_or_default());
                self.leave_alone(call.operation, busy_for, now);
            }
            Verdict::Misconfigured { error } => {
                self.breaker.answered();
                if call.purpose == Purpose::Probe {
                    self.close_whole(now);
                }
                let operation = self
                    .operations
                    .entry(call.operation.to_owned())
                    .or_default();
                operation.open_at_once(Fault::Configuration, &error, call.sent_at, now);
            }
        }
        if !was_limited {
            self.limited_since = now;
        }
    }

    /// A reply came by another way than the call's: it closes an open breaker as a probe's would, and is a good call else.
    pub fn replied(&mut self, call: &Call<'_>, now: Timestamp) {
        let purpose = match self.open(call.operation) {
            Some(_) => Purpose::Probe,
            None => call.purpose,
        };
        self.heard(&Call { purpose, ..*call }, Verdict::Answered, now);
    }

    /// What has to be told now; [`Care::untold`] if that can't be done.
    pub fn news(&mut self, now: Timestamp) -> Option<News> {
        let all = std::iter::once(&self.breaker).chain(self.operations.values());
        let mut open = all.filter_map(Breaker::open).peekable();
        if open.peek().is_none() {
            let is_over = self.told == Told::NotYetUp;
            self.told = Told::Nothing;
            return is_over.then_some(News::Up);
        }
        let certain = |open: &&Open| {
            open.confirmed
                || open.fault == Fault::Configuration
                || now - open.since >= CERTAIN_AFTER
        };
        let open = open.find(certain)?;
        if matches!(self.told, Told::Down(at) if now - at < TOLD_EVERY) {
            return None;
        }
        let down = ParticipantDown {
            participant: self.participant.clone(),
            class: open.fault.name().to_owned(),
            message: words(&self.participant, open),
            sagas: i64::try_from(self.waiting.len()).unwrap_or(i64::MAX),
            seen_at: open.seen_at,
        };
        self.told = Told::Down(now);
        Some(News::Down(down))
    }

    /// The news could not be told: they are still news.
    pub fn untold(&mut self) {
        self.told = if self.is_open() {
            Told::Nothing
        } else {
            Told::NotYetUp
        };
    }

    /// 0: called freely; 1: under a limit; 2: a breaker is open. For the metrics.
    pub fn level(&self) -> u8 {
        match self.limit.commands() {
            _ if self.is_open() => 2,
            Some(_) => 1,
            None => 0,
        }
    }

    /// Commands under way.
    pub fn in_flight(&self) -> usize {
        self.limit.in_flight()
    }

    /// Sagas that wait for it, as far as this coordinator has seen them.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn answered(&mut self, call: &Call<'_>, now: Timestamp) {
        self.breaker.answered();
        match call.purpose {
            Purpose::First => self.budget.earn(now),
            Purpose::Retry => {}
            Purpose::Probe => return self.close(call.operation, now),
        }
        self.limit.good(now);
        if self.level() == 0 {
            self.waiting.clear();
        }
    }

    fn close(&mut self, operation: &str, now: Timestamp) {
        let whole = self.close_whole(now);
        let own = self.operations.remove(operation).is_some();
        if (whole || own) && !self.is_open() {
            self.told = Told::NotYetUp;
        }
    }

    /// False if it was closed.
    fn close_whole(&mut self, now: Timestamp) -> bool {
        let since = self.breaker.open().map_or(now, |open| open.since);
        let was_open = self.breaker.close();
        if was_open {
            self.limit.slow_start(now);
            self.limited_since = now;
            // All that waits has looked again by then, and some of it a second time.
            self.recovers_until = now + within((now - since) / 4, WAITS) + QUEUES.1;
        }
        was_open
    }

    /// What may be awaited, where replies come later and are read here.
    fn bound(&self) -> Option<&Awaited> {
        self.awaited.as_ref().filter(|_| self.hears)
    }

    fn leave_alone(&mut self, operation: &str, wish: Duration, now: Timestamp) {
        let wish = TimeDelta::from_std(wish).unwrap_or(LEFT_ALONE_MAX);
        let until = now + wish.min(LEFT_ALONE_MAX);
        self.left_alone_until = self.left_alone_until.max(until);
        if let Some(breaker) = self.breaker_of(operation) {
            breaker.leave_alone(until);
        }
    }

    fn breaker_of(&mut self, operation: &str) -> Option<&mut Breaker> {
        if self.breaker.open().is_some() {
            return Some(&mut self.breaker);
        }
        self.operations.get_mut(operation)
    }

    fn open(&self, operation: &str) -> Option<&Open> {
        let own = || self.operations.get(operation)?.open();
        self.breaker.open().or_else(own)
    }

    fn is_open(&self) -> bool {
        self.breaker.open().is_some() || !self.operations.is_empty()
    }
}

fn words(participant: &str, open: &Open) -> String {
    let since = open.since.format("%H:%M:%SZ");
    let (error, what_to_do) = match open.fault {
        Fault::Configuration => (
            &open.error,
            "look at its address, its token and its operations",
        ),
        Fault::Unreachable | Fault::Unanswered => {
            (&open.error, "see that it runs and can be reached")
        }
    };
    format!(
        "participant {participant} is out of order since {since}: {error}; its sagas wait, at no attempt, until their \
         definitions' patience ends: {what_to_do}"
    )
}

fn within(time: TimeDelta, (shortest, longest): (TimeDelta, TimeDelta)) -> TimeDelta {
    time.clamp(shortest, longest)
}

/// Half of the time to all of it, by the random end of the saga's id.
fn spread(saga: SagaId, longest: TimeDelta) -> TimeDelta {
    let bytes = saga.0.as_bytes();
    let share = i32::from(u16::from_be_bytes([bytes[14], bytes[15]]) >> 4);
    longest / 2 + longest / 2 / 4_096 * share
}
