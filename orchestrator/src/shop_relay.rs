//! The reference shop's own relay: order events from its outbox to `lapse.schedule`. What a real shop's relay or Debezium
//! does.
//!
//! Relies on claims that expire: a crash between producing and deleting produces again, which changes nothing. Never:
//! looks into an event.

use anyhow::Context;
use lapse_participants::shop::{OutboxRow, Shop};

use crate::bus::{Bus, Publish};

/// Events per round.
const BATCH: u32 = 10_000;

/// Produces what lies in the outbox. What was not acknowledged stays for a later round.
///
/// # Errors
/// If the shop's database does not answer.
pub async fn round(shop: &Shop, bus: &dyn Bus) -> anyhow::Result<()> {
    let rows = shop
        .claim_outbox(BATCH)
        .await
        .context("claim order events")?;
    let message = |row: &OutboxRow| Publish {
        topic: "schedule".to_owned(),
        key: row.key.clone(),
        payload: row.payload.clone(),
    };
    let acked = bus.publish(rows.iter().map(message).collect()).await;
    let acked = rows.iter().zip(acked).filter(|(_, acked)| *acked);
    let produced: Vec<i64> = acked.map(|(row, _)| row.outbox_id).collect();
    shop.delete_outbox(&produced)
        .await
        .context("delete order events")
}
