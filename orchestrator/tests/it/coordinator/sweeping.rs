//! Without Kafka orders are still cancelled.

use std::time::Duration;

use chrono::{TimeDelta, Utc};
use rust_decimal::Decimal;

use crate::support::live::{Live, STOCK, on_both_brokers};
use crate::support::until;

/// The sweep takes what is over 5 s late, every 5 s.
const SWEPT_WITHIN: TimeDelta = TimeDelta::seconds(15);
const SOON: Duration = Duration::from_secs(30);

on_both_brokers! {
    orders_that_never_reached_kafka_are_cancelled_by_the_sweep_however_little_room_there_is,
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

/// One command per call: the sweep has more to start than there is room for at once.
async fn orders_that_never_reached_kafka_are_cancelled_by_the_sweep_however_little_room_there_is(
    mut live: Live,
) {
    live.config.executor.batch_max = 1;
    let service = live.start().await;
    let ids: Vec<String> = (0..10).map(|n| format!("lost-{n}")).collect();
    let due = Utc::now() + TimeDelta::milliseconds(200);
    live.place_many(&ids, due).await;

    let sagas = live.all_ended(ids.len(), SOON).await;

    for saga in sagas {
        assert_eq!(
            (saga.state.as_str(), saga.cause.as_str()),
            ("completed", "sweep")
        );
        let order = live.order(&saga.order_id).await;
        assert_eq!(order.cancel_reason.as_deref(), Some("sweep"));
        let late = order.cancelled_at.expect("cancelled") - due;
        assert!(
            late > TimeDelta::seconds(5) && late < SWEPT_WITHIN,
            "{late} after its deadline"
        );
    }
    assert_eq!(live.stock().await.available, Decimal::from(STOCK));
    live.messages_about("outcomes", "lost-0", 1).await;
    live.verified().await;
    service.stop().await;
}
