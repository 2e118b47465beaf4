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
    /// Relays until stopped; then once more, for what the last transactions left.
    pub async fn run(&self, stop: &CancellationToken) {
        loop {
            let stopping = stop.is_cancelled();
            let pause = match self.round().await {
                Ok(sent) if sent == BATCH as usize => continue,
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

    /// One round. Gives the number of messages produced.
    ///
    /// # Errors
    /// Those of the store; what was produced and not deleted is produced again.
    pub async fn round(&self) -> Result<usize, store::Error> {
        for alert in self.store.claim_alerts(ALERTS).await? {
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
            metrics::counter!("lapse_alerts_sent_total", "kind" => alert.kind).increment(1);
        }
        let messages = self.store.claim_outbox(BATCH).await?;
        if messages.is_empty() {
            return Ok(0);
        }
        let acked = self
            .bus
            .publish(messages.iter().map(publish).collect())
            .await;
        let produced: Vec<i64> = messages
            .iter()
            .zip(acked)
            .filter(|(_, acked)| *acked)
            .map(|(message, _)| message.id)
            .collect();
        self.store.delete_outbox(&produced).await?;
        Ok(produced.len())
    }
}

fn publish(message: &OutboxMessage) -> Publish {
    Publish {
        topic: message.topic.clone(),
        key: message.key.clone(),
        payload: message.payload.clone(),
    }
}
