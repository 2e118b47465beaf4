//! What happens to a timer that woke up: it is ripe, waits on, moves to a shorter bucket, or is refused.
//!
//! ```text
//! arrives ──► window, wakes at min(due, entered + bucket)
//! wakes   ──► ripe (now >= due) | wait (less left than the smallest bucket) | hop (largest bucket that fits)
//! ```
//! A hop out of a bucket needs the bucket's whole delay to have passed since the timer entered it, so the time left
//! has shrunk by the bucket it leaves and no chain of hops can loop.

use std::fmt;

use lapse_sagas::{Span, Timestamp};

use super::bucket::{Buckets, LONGEST_DELAY, MAX_HOPS, name};

/// Where a timer is and how it came there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stay {
    /// The delay of the topic it is in; none for the schedule topic.
    pub bucket: Option<Span>,
    /// When it entered: the time of its last hop, or when its record was appended.
    pub entered: Timestamp,
    /// Hops so far.
    pub hops: u32,
}

/// What to do with a timer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// It is due.
    Ripe,
    /// Look again then, not before.
    Wait(Timestamp),
    /// Move it to this bucket.
    Hop(Span),
    /// It will never fire.
    Refuse(Refusal),
}

/// Why a timer is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Due further ahead than the buckets reach.
    TooFar {
        /// Time left, ms.
        left_ms: u64,
        /// How far they reach.
        longest: Span,
    },
    /// It has hopped [`MAX_HOPS`] times.
    TooManyHops,
}

impl Refusal {
    /// Stable code.
    pub fn reason(self) -> &'static str {
        match self {
            Refusal::TooFar { .. } => "time_range",
            Refusal::TooManyHops => "too_many_hops",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::TooFar { left_ms, longest } => {
                write!(
                    f,
                    "due in {} s, but timers reach {} ahead",
                    left_ms / 1_000,
                    name(*longest)
                )?;
                if *longest < LONGEST_DELAY {
                    write!(f, " with the configured delay buckets; add a longer one")?;
                }
                Ok(())
            }
            Refusal::TooManyHops => write!(
                f,
                "moved {MAX_HOPS} times between delay buckets and is still not due; its headers or the clocks are wrong"
            ),
        }
    }
}

/// When to look at a timer next: at its due time, or once it has been in its bucket for the bucket's delay.
pub fn wake_at(due: Timestamp, stay: Stay) -> Timestamp {
    stay.bucket
        .map_or(stay.entered, |bucket| stay.entered + bucket.delta())
        .min(due)
}

/// What to do with a timer at `now`. Never [`Next::Ripe`] before `due`.
pub fn decide(due: Timestamp, now: Timestamp, stay: Stay, buckets: &Buckets) -> Next {
    if now >= due {
        return Next::Ripe;
    }
    let left_ms = left_ms(due, now);
    if left_ms > buckets.longest_delay().as_millis() {
        return Next::Refuse(Refusal::TooFar {
            left_ms,
            longest: buckets.longest_delay(),
        });
    }
    let wake_at = wake_at(due, stay);
    if now < wake_at {
        return Next::Wait(wake_at);
    }
    let Some(bucket) = buckets.largest_within(left_ms) else {
        return Next::Wait(due);
    };
    if stay.hops >= MAX_HOPS {
        return Next::Refuse(Refusal::TooManyHops);
    }
    Next::Hop(bucket)
}

/// Whole milliseconds up to `due`, rounded down: a bucket that is chosen by it never ends after `due`.
fn left_ms(due: Timestamp, now: Timestamp) -> u64 {
    u64::try_from((due - now).num_milliseconds()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timer::simulation::{at_ms, buckets};

    fn stay(bucket: Option<&str>, entered: Timestamp) -> Stay {
        Stay {
            bucket: bucket.map(|text| text.parse().expect(text)),
            entered,
            hops: 0,
        }
    }

    #[test]
    fn a_timer_is_ripe_at_its_due_time_and_not_a_microsecond_before() {
        let (due, buckets) = (at_ms(900_000), buckets(&["5s", "1m", "15m"]));
        let stay = stay(Some("15m"), at_ms(0));
        assert_eq!(decide(due, due, stay, &buckets), Next::Ripe);
        assert_eq!(
            decide(
                due,
                due - chrono::TimeDelta::microseconds(1),
                stay,
                &buckets
            ),
            Next::Wait(due)
        );
    }

    #[test]
    fn a_timer_leaves_a_bucket_only_after_the_buckets_delay() {
        let (due, buckets) = (at_ms(3_600_000), buckets(&["5s", "1m", "15m"]));
        let stay = stay(Some("15m"), at_ms(0));
        assert_eq!(
            decide(due, at_ms(899_999), stay, &buckets),
            Next::Wait(at_ms(900_000))
        );
        assert_eq!(
            decide(due, at_ms(900_000), stay, &buckets),
            Next::Hop("15m".parse().expect("span"))
        );
    }

    #[test]
    fn seventeen_minutes_take_three_hops() {
        let buckets = buckets(&["15m", "1m", "15s", "5s"]);
        let due = at_ms(17 * 60_000);
        let mut stay = stay(None, at_ms(0));
        let mut now = at_ms(0);
        let mut hops = Vec::new();
        loop {
            match decide(due, now, stay, &buckets) {
                Next::Ripe => break,
                Next::Wait(until) => now = until,
                Next::Hop(bucket) => {
                    hops.push(name(bucket));
                    stay = Stay {
                        bucket: Some(bucket),
                        entered: now,
                        hops: stay.hops + 1,
                    };
                }
                Next::Refuse(refusal) => panic!("{refusal}"),
            }
        }
        assert_eq!((hops.join(" "), now), ("15m 1m 1m".to_string(), due));
    }

    #[test]
    fn what_lies_too_far_ahead_or_hopped_too_often_is_refused_with_words() {
        let buckets = buckets(&["5s", "15s", "1m", "5m", "15m", "30m", "2h", "24h"]);
        let far = at_ms(31 * 86_400_000 + 1);
        let Next::Refuse(refusal) = decide(far, at_ms(0), stay(None, at_ms(0)), &buckets) else {
            panic!("accepted")
        };
        assert_eq!(
            refusal.to_string(),
            "due in 2678400 s, but timers reach 744h ahead"
        );
        let worn = Stay {
            hops: MAX_HOPS,
            ..stay(Some("5s"), at_ms(0))
        };
        assert_eq!(
            decide(at_ms(60_000), at_ms(5_000), worn, &buckets),
            Next::Refuse(Refusal::TooManyHops)
        );
    }
}
