//! How fast a long list is worked off: so many a second, so that what they start is not a flood.
//!
//! Relies on tokio's clock. Never: catches up after a pause.

use std::str::FromStr;
use std::time::Duration;

use tokio::time::Instant;

/// How many at a time where nothing is said.
const CHUNK: usize = 100;

/// So many a second: `50/s`, or `50`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(u32);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        let number = text.strip_suffix("/s").unwrap_or(text);
        match number.parse() {
            Ok(per_second @ 1..=10_000) => Ok(Rate(per_second)),
            _ => Err("write a rate from 1/s to 10000/s, such as 50/s".to_owned()),
        }
    }
}

/// Who keeps a rate.
pub struct Pace {
    rate: Option<Rate>,
    next: Instant,
}

impl Pace {
    /// Without a rate nothing waits.
    pub fn new(rate: Option<Rate>) -> Pace {
        Pace {
            rate,
            next: Instant::now(),
        }
    }

    /// How many may be done at a time: about a tenth of a second's.
    pub fn chunk(&self) -> usize {
        let tenth = |Rate(per_second)| (per_second as usize / 10).clamp(1, CHUNK);
        self.rate.map_or(CHUNK, tenth)
    }

    /// Waits until so many more may be done.
    pub async fn turn(&mut self, count: usize) {
        let Some(Rate(per_second)) = self.rate else {
            return;
        };
        tokio::time::sleep_until(self.next).await;
        let takes = Duration::from_secs_f64(count as f64 / f64::from(per_second));
        self.next = self.next.max(Instant::now()) + takes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_written_per_second() {
        assert_eq!("50/s".parse(), Ok(Rate(50)));
        assert_eq!("1".parse(), Ok(Rate(1)));
        for wrong in ["0", "-1", "50/m", "many", "10001", ""] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_done_faster_than_the_rate_even_after_a_pause() {
        let mut pace = Pace::new(Some(Rate(20)));
        let began = Instant::now();
        for _ in 0..10 {
            pace.turn(2).await;
        }
        assert_eq!(
            began.elapsed(),
            Duration::from_millis(900),
            "the last ten follow no pause"
        );
        tokio::time::advance(Duration::from_secs(60)).await;
        let began = Instant::now();
        for _ in 0..3 {
            pace.turn(20).await;
        }
        assert_eq!(began.elapsed(), Duration::from_secs(2));
    }
}
