//! Spans of time as people write them in definitions and settings: `250ms`, `5s`, `15m`, `2h`, `7d`.

use std::fmt;
use std::str::FromStr;

use chrono::TimeDelta;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A length of time in whole milliseconds, never negative.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(u64);

/// Longest span that can be written: 366 days.
const LONGEST_MS: u64 = 366 * 24 * 3_600_000;

impl Span {
    /// A span of so many milliseconds.
    pub const fn from_millis(ms: u64) -> Self {
        Span(ms)
    }

    /// A span of so many seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Span(seconds * 1_000)
    }

    /// Whole milliseconds.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// For adding to a [`crate::Timestamp`].
    pub fn delta(self) -> TimeDelta {
        TimeDelta::milliseconds(i64::try_from(self.0).unwrap_or(i64::MAX))
    }
}

impl From<Span> for std::time::Duration {
    fn from(span: Span) -> Self {
        std::time::Duration::from_millis(span.0)
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is not a length of time; write a whole number and a unit, such as 250ms, 5s, 15m, 2h or 7d"
            )
        };
        let unit_at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (number, unit) = text.split_at(unit_at);
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let unit_ms = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(wrong()),
        };
        number
            .checked_mul(unit_ms)
            .filter(|ms| *ms <= LONGEST_MS)
            .map(Span)
            .ok_or_else(|| format!("{text:?} is longer than 366 days"))
    }
}

impl fmt::Display for Span {
    /// The largest unit that divides the span.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit_ms, unit) = [
            (86_400_000, "d"),
            (3_600_000, "h"),
            (60_000, "m"),
            (1_000, "s"),
        ]
        .into_iter()
        .find(|(unit_ms, _)| self.0 != 0 && self.0.is_multiple_of(*unit_ms))
        .unwrap_or((1, "ms"));
        write!(f, "{}{unit}", self.0 / unit_ms)
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_written_as_it_is_read() {
        for text in ["250ms", "5s", "15m", "2h", "1d", "90s", "0ms"] {
            assert_eq!(text.parse::<Span>().expect(text).to_string(), text);
        }
        assert_eq!("24h".parse::<Span>().expect("24h").to_string(), "1d");
    }

    #[test]
    fn what_is_not_a_span_is_refused_with_words() {
        for text in [
            "",
            "5",
            "s",
            "-5s",
            "1.5s",
            "5 parsecs",
            "5S",
            "99999999999999999999d",
            "367d",
        ] {
            assert!(text.parse::<Span>().is_err(), "{text:?} was accepted");
        }
    }
}
