//! Orders are cancelled when they fall due unpaid, and at no other time.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use lapse_participants::kit::CallError;
use lapse_participants::shop::{ExtendOutcome, PayOutcome};
use rust_decimal::Decimal;
use serde_json::json;

use crate::support::live::{Live, ON_TIME_MS, STOCK, on_both_brokers, order_ref};
use crate::support::{topic, until};

/// Time for an order to fall due and for its saga to end.
const SOON: Duration = Duration::from_secs(20);

on_both_brokers! {
    an_unpaid_order_is_cancelled_on_time_and_its_stock_comes_back,
    an_order_paid_in_time_is_left_alone,
    an_order_paid_at_the_very_deadline_is_paid_or_cancelled_never_both,
    a_minimal_event_on_a_delay_topic_cancels_its_order,
    an_order_whose_deadline_moved_is_cancelled_at_the_new_one,
}

async fn an_unpaid_order_is_cancelled_on_time_and_its_stock_comes_back(live: Live) {
    let service = live.start().await;
    let placed = live.place("unpaid", TimeDelta::milliseconds(1_500)).await;
    live.schedule(&service, std::slice::from_ref(&placed)).await;

    let story = live.story_in("unpaid", "completed", SOON).await;

    let late_ms = story.saga.lateness_ms.expect("it had a due time");
    assert!(
        (0..ON_TIME_MS).contains(&late_ms),
        "{late_ms} ms after its deadline"
    );
    assert_eq!(story.saga.cause, "timeout");
    let order = live.order("unpaid").await;
    assert_eq!(order.status, "cancelled");
    assert_eq!(order.cancel_reason.as_deref(), Some("timeout"));
    assert!(order.cancelled_at >= Some(placed.due_at), "never early");
    let moves: Vec<_> = order
        .ledger
        .iter()
        .map(|row| (row.direction.as_str(), row.quantity))
        .collect();
    assert_eq!(moves, [("release", Decimal::from(2))]);
    assert_eq!(live.stock().await.available, Decimal::from(STOCK));

    let outcome = live.messages_about("outcomes", "unpaid", 1).await.remove(0);
    assert_eq!(outcome["format"], "lapse-outcome/v1");
    assert_eq!(outcome["state"], "completed");
    assert_eq!(outcome["saga_id"], story.saga.saga_id.to_string());
    let kinds: Vec<_> = story
        .timeline
        .iter()
        .map(|entry| (entry.seq, entry.kind.as_str(), entry.step.as_deref()))
        .collect();
    assert_eq!(
        kinds,
        [
            (1, "started", None),
            (2, "replied", Some("cancel_order")),
            (3, "replied", Some("replenish_stock"))
        ]
    );
    assert_eq!(live.sagas().await.len(), 1);
    live.verified().await;
    service.stop().await;
}

async fn an_order_paid_in_time_is_left_alone(live: Live) {
    let service = live.start().await;
    let placed = live.place("paid", TimeDelta::milliseconds(1_500)).await;
    live.schedule(&service, &[placed]).await;
    let paid = live.shop.pay(&order_ref("paid")).await.unwrap();
    assert_eq!(paid, PayOutcome::Paid);

    let story = live.story_in("paid", "skipped", SOON).await;

    assert_eq!(story.saga.reason.as_deref(), Some("paid"));
    let order = live.order("paid").await;
    assert_eq!(order.status, "paid");
    assert!(order.ledger.is_empty(), "nothing moved: {:?}", order.ledger);
    assert_eq!(live.stock().await.sold, Decimal::from(2));
    let outcome = live.messages_about("outcomes", "paid", 1).await.remove(0);
    assert_eq!(
        (&outcome["state"], &outcome["reason"]),
        (&json!("skipped"), &json!("paid"))
    );
    live.verified().await;
    service.stop().await;
}

async fn an_order_paid_at_the_very_deadline_is_paid_or_cancelled_never_both(live: Live) {
    const ORDERS: usize = 300;
    const BUYERS: usize = 4;
    /// Payments begin so long before the common deadline and end when a cancellation would be too late, the more of them the
    /// earlier.
    const BEFORE: TimeDelta = TimeDelta::milliseconds(300);
    const SPREAD_MS: f64 = 300.0 + ON_TIME_MS as f64;
    let service = live.start().await;
    let due = Utc::now() + TimeDelta::seconds(4);
    let ids: Vec<String> = (0..ORDERS).map(|n| format!("race-{n}")).collect();
    let placed = live.place_many(&ids, due).await;
    live.schedule(&service, &placed).await;

    // Each pays an order in its turn; a payment that waits for a connection is late, and just as good.
    let mut buyers = tokio::task::JoinSet::new();
    for buyer in 0..BUYERS {
        let (shop, ids) = (live.shop.clone(), ids.clone());
        buyers.spawn(async move {
            let mut paid = Vec::new();
            for at in (buyer..ORDERS).step_by(BUYERS) {
                let share = at as f64 / ORDERS as f64;
                let after = TimeDelta::milliseconds((SPREAD_MS * share * share) as i64);
                moment(due - BEFORE + after).await;
                let order = order_ref(&ids[at]);
                let answer = loop {
                    match shop.pay(&order).await {
                        Err(CallError::Unreachable(_)) => {}
                        answer => break answer,
                    }
                };
                match answer.expect("the shop answers") {
                    PayOutcome::Paid => paid.push(ids[at].clone()),
                    PayOutcome::OrderCancelled => {}
                    other => panic!("{}: {other:?}", ids[at]),
                }
            }
            paid
        });
    }
    let paid: BTreeSet<String> = buyers.join_all().await.into_iter().flatten().collect();
    let sagas = live.all_ended(ORDERS, SOON).await;

    for saga in &sagas {
        let expected = if paid.contains(&saga.order_id) {
            "skipped"
        } else {
            "completed"
        };
        assert_eq!(saga.state, expected, "{}", saga.order_id);
    }
    for order_id in &ids {
        let order = live.order(order_id).await;
        let (status, moved) = if paid.contains(order_id) {
            ("paid", 0)
        } else {
            ("cancelled", 1)
        };
        assert_eq!(
            (order.status.as_str(), order.ledger.len()),
            (status, moved),
            "{order_id}"
        );
    }
    let stock = live.stock().await;
    assert_eq!(stock.held, Decimal::ZERO);
    assert_eq!(stock.sold, Decimal::from(2 * paid.len()));
    assert!(
        (1..ORDERS).contains(&paid.len()),
        "it was no race: {} of {ORDERS} paid",
        paid.len()
    );
    live.verified().await;
    service.stop().await;
}

/// As in the README: an order in the shop, and an event typed by hand, with `kcat` where it is installed.
async fn a_minimal_event_on_a_delay_topic_cancels_its_order(live: Live) {
    let service = live.start().await;
    live.place("by-hand", TimeDelta::seconds(3)).await;
    let produced_after = Utc::now();
    let event = r#"{"order_id":"by-hand","order_type":"normal"}"#;
    produce_by_hand(&live, "delay.5s", "by-hand", event).await;

    let story = live.story_in("by-hand", "completed", SOON).await;

    assert_eq!(
        story.saga.cause, "timeout",
        "the timer was there before the sweep"
    );
    let due_at = story.saga.due_at.expect("append time + 5 s");
    // Brokers stamp records in whole milliseconds.
    let waited = due_at - produced_after;
    assert!(
        waited > TimeDelta::milliseconds(4_998) && waited < TimeDelta::seconds(7),
        "due {waited} after it was produced"
    );
    let late_ms = story.saga.lateness_ms.expect("it had a due time");
    assert!(
        (0..ON_TIME_MS).contains(&late_ms),
        "{late_ms} ms after its due time"
    );
    let order = live.order("by-hand").await;
    assert_eq!(order.status, "cancelled");
    assert!(order.cancelled_at >= Some(due_at), "never early");
    assert_eq!(live.stock().await.available, Decimal::from(STOCK));
    live.verified().await;
    service.stop().await;
}

async fn an_order_whose_deadline_moved_is_cancelled_at_the_new_one(live: Live) {
    let service = live.start().await;
    let placed = live.place("moved", TimeDelta::milliseconds(1_500)).await;
    live.schedule(&service, std::slice::from_ref(&placed)).await;
    let new_deadline = placed.due_at + TimeDelta::milliseconds(2_500);
    let extended = live
        .shop
        .extend(&order_ref("moved"), new_deadline)
        .await
        .unwrap();
    let ExtendOutcome::Extended { due_at } = extended else {
        panic!("{extended:?}");
    };

    let story = live.story_in("moved", "completed", SOON).await;

    let cancelled_at = live.order("moved").await.cancelled_at.expect("cancelled");
    assert!(cancelled_at >= due_at, "never early");
    assert!(
        cancelled_at - due_at < TimeDelta::seconds(1),
        "{} after the new deadline",
        cancelled_at - due_at
    );
    let kinds: Vec<_> = story
        .timeline
        .iter()
        .map(|entry| entry.kind.as_str())
        .collect();
    assert_eq!(kinds, ["started", "postponed", "replied", "replied"]);
    assert!(
        story
            .timeline
            .iter()
            .all(|entry| entry.attempt.unwrap_or(1) == 1),
        "no attempt is burnt: {:?}",
        story.timeline
    );
    live.verified().await;
    service.stop().await;
}

/// Until that moment.
async fn moment(at: DateTime<Utc>) {
    until("that moment", SOON, || async {
        (Utc::now() >= at).then_some(())
    })
    .await;
}

async fn produce_by_hand(live: &Live, short: &str, key: &str, value: &str) {
    let (brokers, topic) = (live.config.kafka.brokers.clone(), live.topic(short));
    let kcat = Command::new("kcat")
        .args(["-P", "-b", &brokers, "-t", &topic, "-k", key])
        .stdin(Stdio::piped())
        .spawn();
    match kcat {
        Ok(mut kcat) => {
            let mut typed = kcat.stdin.take().expect("its input is piped");
            typed
                .write_all(value.as_bytes())
                .expect("kcat takes the event");
            drop(typed);
            let ended = kcat.wait().expect("kcat ends");
            assert!(ended.success(), "kcat: {ended}");
        }
        Err(_) => topic::produce(&brokers, &topic, &[(key, value.into())]).await,
    }
}
