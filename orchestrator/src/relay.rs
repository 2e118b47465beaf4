//! From the outbox to the bus, and from alerts that are due to the log and the outbox.
//!
//! Relies on claims that expire: a relay that dies between producing and deleting produces again (at least once).
//! Never: holds a transaction open while it produces.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use crate::bus::{Bus, Publish};
use crate::store::{self, OutboxMessage, Store};

/// Messages per round.
const BATCH: u32 = 500;
/// Alerts per round.
const ALERTS: u32 = 100;

/// Sends what transactions left to be sent.
pub struct Relay {
    /// Where messages lie.
    pub store: Arc<dyn Store>,
    /// Where they go.
    pub bus: Arc<dyn Bus>,
    /// Pause when there is nothing.
    pub every: Duration,
}

impl Relay {
    /// Produces messages until stopped; then once more, for what the last transactions left.
    pub async fn produce(&self, stop: &CancellationToken) {
        self.repeat(stop, BATCH, || self.produce_once()).await;
    }

    /// Tells alerts until stopped, in the log and through the outbox. Apart from [`Relay::produce`], which waits for Kafka:
    /// while that is down the log is the only channel left.
    pub async fn tell(&self, stop: &CancellationToken) {
        self.repeat(stop, ALERTS, || self.tell_once()).await;
    }

    /// Rounds without a pause while they are full.
    async fn repeat<F>(&self, stop: &CancellationToken, full: u32, round: impl Fn() -> F)
    where
        F: Future<Output = Result<usize, store::Error>>,
    {
        loop {
            let stopping = stop.is_cancelled();
            let pause = match round().await {
                Ok(done) if done == full as usize => continue,
                Ok(_) => self.every,
                Err(error) => {
                    warn!(%error, "relay round cut short; it comes again");
                    self.every * 5
                }
            };
            if stopping {
                return;
            }
            let _ = tokio::time::timeout(pause, stop.cancelled()).await;
        }
    }

    /// Gives the number of messages produced; what was produced and not deleted is produced again.
    async fn produce_once(&self) -> Result<usize, store::Error> {
        let messages = self.store.claim_outbox(BATCH).await?;
        if messages.is_empty() {
            return Ok(0);
        }
        let acked = self
            .bus
            .publish(messages.iter().map(publish).collect())
            .await;
        let acked = messages.iter().zip(acked).filter(|(_, acked)| *acked);
        let produced: Vec<i64> = acked.map(|(message, _)| message.id).collect();
        self.store.delete_outbox(&produced).await?;
        Ok(produced.len())
    }

    /// Gives the number of alerts told.
    async fn tell_once(&self) -> Result<usize, store::Error> {
        let alerts = self.store.claim_alerts(ALERTS).await?;
        for alert in &alerts {
            error!(
                fingerprint = alert.fingerprint,
                definition = alert.definition,
                step = alert.step,
                kind = alert.kind,
                class = alert.class,
                sagas = alert.sagas,
                sends = alert.sends,
                message = alert.message,
                "alert"
            );
            metrics::counter!("lapse_alerts_sent_total", "kind" => alert.kind.clone()).increment(1);
        }
        Ok(alerts.len())
    }
}

fn publish(message: &OutboxMessage) -> Publish {
    Publish {
        topic: message.topic.clone(),
        key: message.key.clone(),
        payload: message.payload.clone(),
    }
}
