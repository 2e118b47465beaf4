//! Posts what is to be posted to one webhook, until it is taken.
//!
//! Relies on claims that outlast a post. Never: gives up within a day, unless the receiver says 410 Gone.

use std::time::Duration;

use chrono::TimeDelta;
use futures::future::join_all;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::post::{Failure, Webhook};
use crate::store;
use crate::store::webhooks::{Deliveries, Delivery, NotTaken};

/// Posts at a time.
const BATCH: u32 = 8;
/// Pause when there is nothing to post.
const EVERY: Duration = Duration::from_millis(500);
/// A claim outlasts its post by this.
const RECORDS_WITHIN: Duration = Duration::from_secs(10);
/// After the first failure; twice as long after each further one.
const AGAIN_AFTER_S: f64 = 5.0;
const AGAIN_AFTER_AT_MOST_S: f64 = 600.0;
const LOOK_EVERY: Duration = Duration::from_secs(10);
const LOOKS_AN_HOUR: u64 = 360;

/// One webhook and its rows.
pub struct Deliverer {
    /// Where to.
    pub webhook: Webhook,
    /// What.
    pub deliveries: Deliveries,
}

impl Deliverer {
    /// Posts until stopped.
    pub async fn run(&self, stop: &CancellationToken) {
        tokio::join!(self.deliver(stop), self.look(stop));
    }

    async fn deliver(&self, stop: &CancellationToken) {
        let mut failing = false;
        while !stop.is_cancelled() {
            let pause = match self.round(&mut failing).await {
                Ok(BATCH) => continue,
                Ok(_) => EVERY,
                Err(error) => {
                    warn!(webhook = self.webhook.name, %error, "webhook round cut short; it comes again");
                    EVERY * 5
                }
            };
            let _ = tokio::time::timeout(pause, stop.cancelled()).await;
        }
    }

    /// Gives the number of posts.
    async fn round(&self, failing: &mut bool) -> Result<u32, store::Error> {
        let lease = self.webhook.timeout + RECORDS_WITHIN;
        let lease = TimeDelta::from_std(lease).unwrap_or(TimeDelta::minutes(1));
        let claimed = self
            .deliveries
            .claim(&self.webhook.name, BATCH, lease)
            .await?;
        let posts = claimed.iter().map(|delivery| async {
            let Delivery {
                message_id,
                payload,
                at,
                ..
            } = delivery;
            self.webhook.post(message_id, payload, *at).await
        });
        let mut delivered = Vec::new();
        let mut not_taken = Vec::new();
        for (delivery, answer) in claimed.iter().zip(join_all(posts).await) {
            match answer {
                Ok(_) => delivered.push(delivery.id),
                Err(failure) => not_taken.push(again(delivery, &failure)),
            }
        }
        self.tell(failing, &delivered, &not_taken);
        self.deliveries.delivered(delivered).await?;
        let given_up = self.deliveries.not_taken(not_taken).await?;
        if given_up > 0 {
            self.count("failed", given_up);
            error!(
                webhook = self.webhook.name,
                host = self.webhook.host(),
                given_up,
                "alerts were not taken by a webhook and are given up; see: lapse alerts list"
            );
        }
        Ok(u32::try_from(claimed.len()).unwrap_or(BATCH))
    }

    /// Says when it begins to fail and when it works again, not every try.
    fn tell(&self, failing: &mut bool, delivered: &[i64], not_taken: &[NotTaken]) {
        self.count("delivered", delivered.len() as u64);
        self.count("not_taken", not_taken.len() as u64);
        let (webhook, host) = (&self.webhook.name, self.webhook.host());
        match not_taken.first() {
            Some(NotTaken { error, .. }) if !*failing => {
                *failing = true;
                error!(
                    webhook,
                    host, error, "a webhook does not take alerts; they are kept and posted again"
                );
            }
            None if *failing && !delivered.is_empty() => {
                *failing = false;
                info!(webhook, host, "the webhook takes alerts again");
            }
            _ => {}
        }
    }

    fn count(&self, result: &'static str, by: u64) {
        metrics::counter!("lapse_webhook_posts_total", "webhook" => self.webhook.name.clone(), "result" => result)
            .increment(by);
    }

    /// How long the oldest post has waited, and once an hour the old ones go.
    async fn look(&self, stop: &CancellationToken) {
        let gauge = metrics::gauge!("lapse_webhook_undelivered_seconds", "webhook" => self.webhook.name.clone());
        let mut looks: u64 = 0;
        while !stop.is_cancelled() {
            match self.deliveries.backlog().await {
                Ok(backlog) => {
                    let own = backlog
                        .iter()
                        .find(|backlog| backlog.webhook == self.webhook.name);
                    gauge.set(own.map_or(0.0, |backlog| backlog.oldest_s as f64));
                }
                Err(error) => {
                    warn!(webhook = self.webhook.name, %error, "how a webhook stands is not known")
                }
            }
            if looks.is_multiple_of(LOOKS_AN_HOUR)
                && let Err(error) = self.deliveries.forget().await
            {
                warn!(%error, "old webhook posts could not be deleted; tried again in an hour");
            }
            looks += 1;
            let _ = tokio::time::timeout(LOOK_EVERY, stop.cancelled()).await;
        }
    }
}

fn again(delivery: &Delivery, failure: &Failure) -> NotTaken {
    let pause = pause(delivery.attempts, fastrand::f64());
    let again_in = pause.max(failure.retry_after().unwrap_or_default());
    NotTaken {
        id: delivery.id,
        error: failure.to_string(),
        again_in: (!failure.is_final()).then_some(again_in),
    }
}

/// 5 s after the first attempt, twice that after the second, up to 10 min; of that at least half, by chance.
fn pause(attempts: i32, chance: f64) -> TimeDelta {
    let doublings = attempts.clamp(1, 30) - 1;
    let longest_s = (AGAIN_AFTER_S * 2_f64.powi(doublings)).min(AGAIN_AFTER_AT_MOST_S);
    let pause_ms = longest_s * 1_000.0 * (0.5 + chance / 2.0);
    TimeDelta::milliseconds(pause_ms as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_from_five_seconds_to_ten_minutes() {
        let longest: Vec<i64> = [1, 2, 3, 7, 8, 1_000]
            .into_iter()
            .map(|attempts| pause(attempts, 1.0).num_seconds())
            .collect();
        assert_eq!(longest, [5, 10, 20, 320, 600, 600]);
        assert_eq!(pause(1, 0.0), TimeDelta::milliseconds(2_500));
    }

    #[test]
    fn a_receiver_that_asks_for_time_gets_it_and_one_that_is_gone_is_left() {
        let delivery = Delivery {
            id: 1,
            message_id: "msg".to_owned(),
            payload: String::new(),
            attempts: 1,
            at: chrono::DateTime::UNIX_EPOCH,
        };
        let refused = |status, retry_after| Failure::Refused {
            status,
            body: String::new(),
            retry_after,
        };
        let put_off = again(&delivery, &refused(429, Some(TimeDelta::minutes(7))));
        assert_eq!(put_off.again_in, Some(TimeDelta::minutes(7)));
        assert_eq!(again(&delivery, &refused(410, None)).again_in, None);
        let hurried = again(&delivery, &refused(503, Some(TimeDelta::zero())));
        assert!(hurried.again_in >= Some(TimeDelta::milliseconds(2_500)));
    }
}
