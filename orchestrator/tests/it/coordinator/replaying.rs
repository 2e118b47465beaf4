//! Reading the same records again changes nothing.

use std::time::Duration;

use chrono::{TimeDelta, Utc};
use lapse_participants::shop::Totals;
use serde_json::Value;

use crate::support::live::{Live, Running, on_both_brokers, order_ref};
use crate::support::{topic, until};

const SOON: Duration = Duration::from_secs(20);
const ORDERS: usize = 20;
const PAID: usize = 5;

on_both_brokers! {
    replaying_every_record_changes_nothing_and_counts_each_as_a_duplicate,
}

async fn replaying_every_record_changes_nothing_and_counts_each_as_a_duplicate(live: Live) {
    let service = live.start().await;
    let ids: Vec<String> = (0..ORDERS).map(|n| format!("twice-{n}")).collect();
    let due = Utc::now() + TimeDelta::milliseconds(1_500);
    let placed = live.place_many(&ids, due).await;
    let paid: Vec<_> = ids[..PAID].iter().map(|id| order_ref(id)).collect();
    live.shop.pay_many(&paid).await.unwrap();
    live.schedule(&service, &placed).await;
    live.all_ended(ORDERS, SOON).await;
    until("every outcome is out", SOON, || async {
        (live.messages("outcomes").await.len() == ORDERS).then_some(())
    })
    .await;
    let before = seen(&live).await;
    service.stop().await;

    // A group of its own begins with the first record.
    let mut config = live.another();
    config.kafka.group = format!("{}-again", config.kafka.group);
    let again = Running::start(&config).await;
    until("everything has been read again", SOON, || async {
        let schedule = live.topic("schedule");
        let kafka = &config.kafka;
        let behind = topic::uncommitted(&kafka.brokers, &kafka.group, &schedule).await;
        (behind == 0).then_some(())
    })
    .await;

    assert_eq!(seen(&live).await, before);
    until("duplicates are counted", SOON, || async {
        (live.total("duplicate").await > 0).then_some(())
    })
    .await;
    assert_eq!(
        live.total("duplicate").await,
        ORDERS as i64,
        "each is counted once"
    );
    live.verified().await;
    again.stop().await;
}

/// What a second effect would change.
#[derive(Debug, PartialEq)]
struct Seen {
    orders: Vec<Value>,
    sagas: Vec<Value>,
    outcomes: usize,
    stock: Totals,
}

async fn seen(live: &Live) -> Seen {
    let mut orders = Vec::new();
    for n in 0..ORDERS {
        let order = live.order(&format!("twice-{n}")).await;
        orders.push(serde_json::to_value(order).unwrap());
    }
    let sagas = live.sagas().await;
    Seen {
        orders,
        sagas: sagas
            .iter()
            .map(|saga| serde_json::to_value(saga).unwrap())
            .collect(),
        outcomes: live.messages("outcomes").await.len(),
        stock: live.stock().await,
    }
}
