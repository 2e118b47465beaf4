//! Without Kafka orders are still cancelled.

use std::time::Duration;

use chrono::TimeDelta;
use rust_decimal::Decimal;

use crate::support::live::{Live, STOCK, on_both_brokers};
use crate::support::until;

/// The sweep takes what is over 5 s late, every 5 s.
const SWEPT_WITHIN: TimeDelta = TimeDelta::seconds(12);
const SOON: Duration = Duration::from_secs(30);

on_both_brokers! {
    an_order_that_never_reached_kafka_is_cancelled_by_the_sweep,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_broker_is_down_the_sweep_cancels_and_messages_wait() {
    let live = Live::in_process().await;
    let broker = live.broker().expect("it is in this process");
    let service = live.start().await;
    broker.down();
    until("the service notices", SOON, || async {
        service.bus().trouble().is_some().then_some(())
    })
    .await;
    let placed = live.place("unheard", TimeDelta::milliseconds(200)).await;

    let story = live.story_in("unheard", "completed", SOON).await;

    assert_eq!(story.saga.cause, "sweep");
    let late = live.order("unheard").await.cancelled_at.expect("cancelled") - placed.due_at;
    assert!(late < SWEPT_WITHIN, "{late} after its deadline");
    broker.up();
    live.messages_about("outcomes", "unheard", 1).await;
    until("the service is ready again", SOON, || async {
        service.bus().is_ready().then_some(())
    })
    .await;
    live.verified().await;
    service.stop().await;
}

async fn an_order_that_never_reached_kafka_is_cancelled_by_the_sweep(live: Live) {
    let service = live.start().await;
    let placed = live.place("lost", TimeDelta::milliseconds(200)).await;

    let story = live.story_in("lost", "completed", SOON).await;

    assert_eq!(story.saga.cause, "sweep");
    let order = live.order("lost").await;
    assert_eq!(order.cancel_reason.as_deref(), Some("sweep"));
    let late = order.cancelled_at.expect("cancelled") - placed.due_at;
    assert!(
        late > TimeDelta::seconds(5) && late < SWEPT_WITHIN,
        "{late} after its deadline"
    );
    assert_eq!(live.stock().await.available, Decimal::from(STOCK));
    live.messages_about("outcomes", "lost", 1).await;
    live.verified().await;
    service.stop().await;
}
