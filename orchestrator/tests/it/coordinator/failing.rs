//! A step that can't be done is undone, and people hear of it until they answer.

use std::time::Duration;

use chrono::TimeDelta;
use lapse::store::ops::AlertRow;
use lapse_participants::fault::Answer;
use lapse_sagas::Timestamp;
use rust_decimal::Decimal;
use sqlx::PgConnection;

use crate::support::live::{Live, Running, on_both_brokers, order_ref};
use crate::support::until;

const SOON: Duration = Duration::from_secs(20);
/// As the definition says.
const REPEAT: TimeDelta = TimeDelta::seconds(60);

/// The shipped walk with short retry delays, and alerts that repeat as often as is allowed.
const IMPATIENT: &str = r"
format: saga/v1
name: impatient
version: 1
alert_repeat: 1m
trigger:
  event_types: [order.placed]
  order_types: { normal: { delay: 30m } }
  order_owner: orders
steps:
  - id: cancel_order
    action: { participant: orders, operation: CancelOrder }
    compensation: { participant: orders, operation: ReopenOrder }
  - id: replenish_stock
    action: { participant: stock, operation: ReplenishStock }
    compensation: { participant: stock, operation: WithdrawStock }
    retries: { max: 3, delays: [100ms, 200ms, 400ms] }
";

on_both_brokers! {
    a_step_that_always_fails_is_tried_four_times_undone_and_alerted_until_acknowledged,
}

async fn a_step_that_always_fails_is_tried_four_times_undone_and_alerted_until_acknowledged(
    mut live: Live,
) {
    let file = std::env::temp_dir().join(format!("{}.yaml", live.topic("impatient")));
    std::fs::write(&file, IMPATIENT).expect("a definition can be written");
    live.config.definitions.paths = vec![file.clone()];
    let service = live.start().await;

    fail_and_place(&live, &service, "failing", "ReplenishStock").await;
    let story = live.story_in("failing", "compensated", SOON).await;

    let tries: Vec<_> = story
        .timeline
        .iter()
        .filter(|entry| entry.step.as_deref() == Some("replenish_stock"))
        .map(|entry| entry.attempt)
        .collect();
    assert_eq!(
        tries,
        [Some(1), Some(2), Some(3), Some(4)],
        "one try and three retries"
    );
    let order = live.order("failing").await;
    assert_eq!(order.status, "awaiting_payment");
    assert!(order.needs_attention, "the sweep leaves it to a human");
    assert!(order.ledger.is_empty(), "nothing moved: {:?}", order.ledger);
    assert_eq!(live.stock().await.held, Decimal::from(2));

    let first = sent(&live, 1).await;
    assert_eq!(
        (first.kind.as_str(), first.step.as_str(), first.sagas),
        ("compensated", "replenish_stock", 1)
    );
    assert_eq!(story.alerts.len(), 1, "shown with its saga");
    let again_after = first.next_send_at.expect("it is repeated") - first.last_at;
    assert!(
        again_after >= REPEAT && again_after < REPEAT + TimeDelta::seconds(10),
        "repeated after {again_after}"
    );
    let mut db = live.database().await;
    let_repeat_pass(&mut db, &first).await;
    let second = sent(&live, 2).await;
    assert!(
        second.next_send_at > Some(now(&mut db).await),
        "and again later"
    );
    assert_eq!(messages(&live, &first).await, 2);

    assert!(
        live.ops
            .acknowledge(&first.fingerprint, "test")
            .await
            .unwrap()
    );
    let_repeat_pass(&mut db, &first).await;
    // Another alert goes out behind it: whatever was to be sent before has been.
    fail_and_place(&live, &service, "rejected", "CancelOrder").await;
    let other = sent(&live, 1).await;
    assert_ne!(other.fingerprint, first.fingerprint);
    until("the other alert's message", SOON, || async {
        (messages(&live, &other).await == 1).then_some(())
    })
    .await;
    assert_eq!(messages(&live, &first).await, 2, "quiet once acknowledged");
    let all = live.ops.alerts().await.unwrap();
    let acknowledged = all
        .iter()
        .find(|alert| alert.fingerprint == first.fingerprint)
        .expect("still listed");
    assert_eq!(
        (acknowledged.state.as_str(), acknowledged.next_send_at),
        ("acknowledged", None)
    );

    // One more order of the same kind opens it again.
    fail_and_place(&live, &service, "failing-too", "ReplenishStock").await;
    live.story_in("failing-too", "compensated", SOON).await;
    until("the alert is open again, for two", SOON, || async {
        let open = live.ops.open_alerts().await.unwrap();
        open.into_iter()
            .find(|alert| alert.fingerprint == first.fingerprint && alert.sagas == 2)
    })
    .await;
    live.verified().await;
    service.stop().await;
    std::fs::remove_file(file).expect("the definition was there");
}

async fn fail_and_place(live: &Live, service: &Running, order_id: &str, operation: &str) {
    let (answer, times) = match operation {
        "ReplenishStock" => (Answer::Failed, 4),
        _ => (Answer::Rejected, 1),
    };
    live.shop
        .set_fault(&order_ref(order_id), operation, answer, times)
        .await
        .expect("a fault can be planted");
    let placed = live.place(order_id, TimeDelta::milliseconds(200)).await;
    live.schedule(service, &[placed]).await;
}

/// The only open alert, once it has been sent so often.
async fn sent(live: &Live, times: i32) -> AlertRow {
    until(
        &format!("one open alert sent {times} times"),
        SOON,
        || async {
            let mut open = live.ops.open_alerts().await.expect("the views answer");
            assert!(open.len() <= 1, "one alert: {open:?}");
            open.pop().filter(|alert| alert.sends == times)
        },
    )
    .await
}

/// How often an alert is on its topic.
async fn messages(live: &Live, alert: &AlertRow) -> usize {
    let messages = live.messages("alerts").await;
    messages
        .iter()
        .filter(|message| message["fingerprint"] == alert.fingerprint)
        .count()
}

/// As if the repeat interval were over.
async fn let_repeat_pass(db: &mut PgConnection, alert: &AlertRow) {
    sqlx::query("update lapse.alert set next_send_at = next_send_at - interval '1 minute' where fingerprint = $1")
        .bind(&alert.fingerprint)
        .execute(db)
        .await
        .expect("the alert is there");
}

async fn now(db: &mut PgConnection) -> Timestamp {
    sqlx::query_scalar("select clock_timestamp()")
        .fetch_one(db)
        .await
        .expect("the database tells the time")
}
