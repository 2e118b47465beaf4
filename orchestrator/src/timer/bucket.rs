//! Delay buckets: one topic per delay, and which of them a remaining time fits into.

use lapse_sagas::Span;

/// A due time further ahead is refused.
pub const LONGEST_DELAY: Span = Span::from_secs(31 * 24 * 3_600);

/// A timer that moved more often is refused. 31 days over the shipped buckets take at most 57 hops.
pub const MAX_HOPS: u32 = 64;

/// The delays that have a topic, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buckets {
    ascending: Vec<Span>,
    longest_delay: Span,
}

impl Buckets {
    /// Sorts the delays and works out how far ahead a due time may lie so that [`MAX_HOPS`] suffice. The error says
    /// what to change.
    pub fn new(delays: &[Span]) -> Result<Self, String> {
        let mut ascending = delays.to_vec();
        ascending.sort_unstable();
        if ascending.is_empty() {
            return Err("no delay buckets are configured; name at least one, such as 15m".into());
        }
        if let Some(twice) = ascending.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!(
                "delay bucket {} is configured twice",
                name(twice[0])
            ));
        }
        if ascending[0].as_millis() < 100 {
            return Err(format!(
                "delay bucket {} is shorter than 100ms",
                name(ascending[0])
            ));
        }
        let longest_delay = longest_delay(&ascending)?;
        Ok(Buckets {
            ascending,
            longest_delay,
        })
    }

    /// The largest bucket that the time left fills; none when it is shorter than the smallest bucket.
    pub fn largest_within(&self, left_ms: u64) -> Option<Span> {
        let fitting = self
            .ascending
            .partition_point(|delay| delay.as_millis() <= left_ms);
        fitting.checked_sub(1).map(|index| self.ascending[index])
    }

    /// How far ahead a due time may lie: 31 days, or less if these buckets would need too many hops for that.
    pub fn longest_delay(&self) -> Span {
        self.longest_delay
    }

    /// Shortest first.
    pub fn iter(&self) -> impl Iterator<Item = Span> + '_ {
        self.ascending.iter().copied()
    }
}

/// A delay as topics spell it: hours at most, so that `24h` stays `24h`.
pub fn name(delay: Span) -> String {
    let ms = delay.as_millis();
    let (unit_ms, unit) = [(3_600_000, "h"), (60_000, "m"), (1_000, "s")]
        .into_iter()
        .find(|(unit_ms, _)| ms != 0 && ms.is_multiple_of(*unit_ms))
        .unwrap_or((1, "ms"));
    format!("{}{unit}", ms / unit_ms)
}

/// Most hops a remainder shorter than the largest bucket can need, over all levels below it.
fn hops_below_largest(ascending: &[Span]) -> u64 {
    ascending
        .windows(2)
        .map(|pair| (pair[1].as_millis() - 1) / pair[0].as_millis())
        .sum()
}

fn longest_delay(ascending: &[Span]) -> Result<Span, String> {
    let below = hops_below_largest(ascending);
    let Some(hops_in_largest) = u64::from(MAX_HOPS)
        .checked_sub(below)
        .filter(|hops| *hops > 0)
    else {
        return Err(format!(
            "the delay buckets lie too far apart: a timer could need {below} hops, and {MAX_HOPS} are allowed; add buckets in between"
        ));
    };
    let largest = ascending[ascending.len() - 1];
    Ok(Span::from_millis(largest.as_millis().saturating_mul(hops_in_largest)).min(LONGEST_DELAY))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buckets(delays: &[&str]) -> Buckets {
        let delays: Vec<Span> = delays
            .iter()
            .map(|text| text.parse().expect(text))
            .collect();
        Buckets::new(&delays).expect("buckets")
    }

    #[test]
    fn the_largest_bucket_that_fits_is_found() {
        let buckets = buckets(&["15m", "5s", "1m", "15s"]);
        let within = |left_ms| buckets.largest_within(left_ms).map(name);
        assert_eq!(within(4_999), None);
        assert_eq!(within(5_000).as_deref(), Some("5s"));
        assert_eq!(within(59_999).as_deref(), Some("15s"));
        assert_eq!(within(86_400_000).as_deref(), Some("15m"));
    }

    #[test]
    fn a_day_is_spelled_in_hours() {
        for (text, topic) in [
            ("1d", "24h"),
            ("24h", "24h"),
            ("90s", "90s"),
            ("120m", "2h"),
            ("1500ms", "1500ms"),
        ] {
            assert_eq!(name(text.parse().expect(text)), topic);
        }
    }

    #[test]
    fn the_shipped_buckets_reach_31_days() {
        assert_eq!(
            buckets(&["5s", "15s", "1m", "5m", "15m", "30m", "2h", "24h"]).longest_delay(),
            LONGEST_DELAY
        );
    }

    #[test]
    fn few_buckets_reach_less_far_and_too_few_are_refused() {
        assert_eq!(buckets(&["15m"]).longest_delay(), Span::from_secs(64 * 900));
        for delays in [
            &[][..],
            &[Span::from_secs(1), Span::from_secs(86_400)],
            &[Span::from_secs(5); 2],
            &[Span::from_millis(5)],
        ] {
            assert!(Buckets::new(delays).is_err(), "{delays:?} were accepted");
        }
    }
}
