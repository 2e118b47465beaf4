//! The order event, version 1, as the shop publishes it when an order is placed.
//!
//! Relies on what the placing wrote. Never: reads a clock; the event says when the database says it happened.

use rust_decimal::Decimal;
use serde_json::{Value, json};
use uuid::Uuid;

use lapse_sagas::Timestamp;

use super::place::{Line, NewOrder};

/// The event's JSON. `hold_ids` has one id per line.
pub(super) fn placed(
    order_id: &str,
    order: &NewOrder,
    hold_ids: &[Uuid],
    placed_at: Timestamp,
) -> Value {
    let ends_at = order.enforce_at.unwrap_or(order.pay_deadline);
    let lines: Vec<Value> = order
        .lines
        .iter()
        .zip(hold_ids)
        .enumerate()
        .map(|(at, (line, hold_id))| line_of(at, line, *hold_id, ends_at))
        .collect();
    let mut event = json!({
        "event_id": Uuid::now_v7(),
        "event_type": "order.placed",
        "schema_version": 1,
        "occurred_at": placed_at,
        "producer": "lapse-shop",
        "tenant": order.tenant,
        "channel": "web",
        "order_id": order_id,
        "order_version": 1,
        "generation": 1,
        "order_type": order.order_type,
        "created_via": "checkout",
        "auto_cancel": { "eligible": true },
        "pay_deadline": order.pay_deadline,
        "deadline_version": 1,
        "amounts": { "currency": order.currency, "total": order.total_minor, "due": order.total_minor, "paid": 0 },
        "lines": lines,
        "benefits": { "coupons": [], "points": [], "gift_cards": [] },
        "payment": { "method": "card", "offline": false, "attempts": [] },
    });
    if let Some(enforce_at) = order.enforce_at {
        event["enforce_at"] = json!(enforce_at);
    }
    event
}

fn line_of(at: usize, line: &Line, hold_id: Uuid, ends_at: Timestamp) -> Value {
    let quantity: Decimal = line.quantity;
    json!({
        "line_id": (at + 1).to_string(),
        "sku": line.sku,
        "qty": quantity,
        "uom": "pc",
        "holds": [{
            "hold_id": hold_id,
            "pool": line.warehouse,
            "pool_kind": "warehouse",
            "stock_key": line.sku,
            "qty": quantity,
            "ends_at": ends_at,
        }],
    })
}
