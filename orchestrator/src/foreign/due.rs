//! When an order falls due, from what its table holds, and back, so that an index on the column serves.
//!
//! Never: reads a time earlier than it may be meant. A local time that comes twice is the second; one that a change of
//! the clock leaves out counts on from before it.

use chrono::{DateTime, LocalResult, NaiveDateTime, Offset, TimeDelta, TimeZone, Utc};
use chrono_tz::Tz;
use lapse_sagas::Timestamp;

/// How the column tells time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// An instant, in microseconds since 1970.
    Instant,
    /// The clock on the wall there, in microseconds as if it were UTC.
    Local(Tz),
    /// Seconds since 1970.
    Seconds,
    /// Milliseconds since 1970.
    Millis,
}

/// A column from which due times follow.
#[derive(Clone, Copy, Debug)]
pub(super) struct DueColumn {
    /// What it holds.
    pub reading: Reading,
    /// The order falls due so long after.
    pub pay_within: TimeDelta,
}

impl DueColumn {
    /// None if it is no time that can be told.
    pub fn due_at(&self, stored: i64) -> Option<Timestamp> {
        let instant = match self.reading {
            Reading::Instant => DateTime::from_timestamp_micros(stored)?,
            Reading::Local(zone) => {
                instant(zone, DateTime::from_timestamp_micros(stored)?.naive_utc())?
            }
            Reading::Seconds => DateTime::from_timestamp(stored, 0)?,
            Reading::Millis => DateTime::from_timestamp_millis(stored)?,
        };
        instant.checked_add_signed(self.pay_within)
    }

    /// What the column holds for an order that falls due then: nothing later than that is due by then, but for times
    /// that a change of the clock leaves out or repeats.
    pub fn stored(&self, due_at: Timestamp) -> i64 {
        let at = due_at
            .checked_sub_signed(self.pay_within)
            .unwrap_or(Timestamp::MIN_UTC);
        match self.reading {
            Reading::Instant => at.timestamp_micros(),
            Reading::Local(zone) => at
                .with_timezone(&zone)
                .naive_local()
                .and_utc()
                .timestamp_micros(),
            Reading::Seconds => at.timestamp(),
            Reading::Millis => at.timestamp_millis(),
        }
    }

    /// The stored value as the database reads it.
    pub fn literal(&self, stored: i64) -> String {
        let time = |zone: &str| {
            let at = DateTime::from_timestamp_micros(stored).unwrap_or_default();
            format!("{}{zone}", at.format("%Y-%m-%d %H:%M:%S%.6f"))
        };
        match self.reading {
            Reading::Instant | Reading::Local(_) => time(""),
            Reading::Seconds | Reading::Millis => stored.to_string(),
        }
    }
}

fn instant(zone: Tz, local: NaiveDateTime) -> Option<DateTime<Utc>> {
    match zone.from_local_datetime(&local) {
        LocalResult::Single(at) => Some(at.to_utc()),
        LocalResult::Ambiguous(one, other) => Some(one.max(other).to_utc()),
        LocalResult::None => {
            // The longest leap was a day: Samoa's, in 2011.
            let before = (1..=100).find_map(|quarter| {
                let earlier = local - TimeDelta::minutes(15 * quarter);
                zone.from_local_datetime(&earlier).latest()
            })?;
            (local - before.offset().fix()).and_utc().into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(text: &str) -> i64 {
        let at = NaiveDateTime::parse_from_str(text, "%Y-%m-%d %H:%M:%S").expect("a time");
        at.and_utc().timestamp_micros()
    }

    fn utc(text: &str) -> Timestamp {
        local_utc(local(text))
    }

    fn local_utc(micros: i64) -> Timestamp {
        DateTime::from_timestamp_micros(micros).expect("a time")
    }

    fn column(reading: Reading) -> DueColumn {
        DueColumn {
            reading,
            pay_within: TimeDelta::zero(),
        }
    }

    #[test]
    fn local_times_are_read_in_their_zone() {
        let shanghai = column(Reading::Local(Tz::Asia__Shanghai));
        let stored = local("2026-02-14 18:30:00");
        assert_eq!(shanghai.due_at(stored), Some(utc("2026-02-14 10:30:00")));
        assert_eq!(shanghai.stored(utc("2026-02-14 10:30:00")), stored);
        assert_eq!(shanghai.literal(stored), "2026-02-14 18:30:00.000000");
    }

    #[test]
    fn a_local_time_that_comes_twice_is_the_later_one() {
        let paris = column(Reading::Local(Tz::Europe__Paris));
        let stored = local("2026-10-25 02:30:00");
        assert_eq!(paris.due_at(stored), Some(utc("2026-10-25 01:30:00")));
        assert_eq!(paris.stored(utc("2026-10-25 01:30:00")), stored);
    }

    #[test]
    fn a_local_time_that_never_comes_counts_on_from_before_the_change() {
        let paris = column(Reading::Local(Tz::Europe__Paris));
        let due_at = paris.due_at(local("2026-03-29 02:20:00"));
        assert_eq!(due_at, Some(utc("2026-03-29 01:20:00")));
        let apia = column(Reading::Local(Tz::Pacific__Apia));
        let due_at = apia.due_at(local("2011-12-30 12:00:00"));
        assert_eq!(due_at, Some(utc("2011-12-30 22:00:00")));
    }

    #[test]
    fn no_local_time_is_read_early_around_a_change_of_the_clock() {
        for zone in [
            Tz::Europe__Paris,
            Tz::America__New_York,
            Tz::Australia__Lord_Howe,
        ] {
            let column = column(Reading::Local(zone));
            let mut at = utc("2026-01-01 00:00:00");
            while at < utc("2027-01-01 00:00:00") {
                let read = column.due_at(column.stored(at)).expect("a time");
                assert!(read >= at, "{zone}: {at} is read as {read}");
                at += TimeDelta::minutes(15);
            }
        }
    }

    #[test]
    fn numbers_are_read_in_their_unit_and_creation_times_with_what_is_added() {
        let at = utc("2026-02-14 10:30:00");
        let seconds = at.timestamp();
        assert_eq!(column(Reading::Seconds).due_at(seconds), Some(at));
        assert_eq!(column(Reading::Millis).due_at(seconds * 1_000), Some(at));
        assert_eq!(column(Reading::Millis).stored(at), seconds * 1_000);
        let created = DueColumn {
            reading: Reading::Seconds,
            pay_within: TimeDelta::minutes(30),
        };
        let due_at = at + TimeDelta::minutes(30);
        assert_eq!(created.due_at(seconds), Some(due_at));
        assert_eq!(created.stored(due_at), seconds);
        assert_eq!(column(Reading::Instant).due_at(i64::MAX), None);
    }
}
