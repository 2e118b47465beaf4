//! With a guard, paid orders cost no saga: the order owner's word drops them before one starts.

use std::time::Duration;

use chrono::TimeDelta;
use lapse_participants::shop::PayOutcome;

use crate::support::live::{Live, on_both_brokers, order_ref};
use crate::support::until;

const SOON: Duration = Duration::from_secs(20);

/// The shipped walk behind a guard.
const GUARDED: &str = r"
format: saga/v1
name: guarded
version: 1
trigger:
  event_types: [order.placed]
  order_types: { normal: { delay: 30m } }
  order_owner: orders
  guard: true
steps:
  - id: cancel_order
    action: { participant: orders, operation: CancelOrder }
    compensation: { participant: orders, operation: ReopenOrder }
  - id: replenish_stock
    action: { participant: stock, operation: ReplenishStock }
    compensation: { participant: stock, operation: WithdrawStock }
";

on_both_brokers! {
    a_guarded_definition_starts_no_saga_for_what_is_paid_and_counts_it,
}

async fn a_guarded_definition_starts_no_saga_for_what_is_paid_and_counts_it(mut live: Live) {
    let file = std::env::temp_dir().join(format!("{}.yaml", live.topic("guarded")));
    std::fs::write(&file, GUARDED).expect("a definition can be written");
    live.config.definitions.paths = vec![file.clone()];
    let service = live.start().await;
    let paid = live.place("paid", TimeDelta::milliseconds(1_500)).await;
    let unpaid = live.place("unpaid", TimeDelta::milliseconds(1_500)).await;
    let outcome = live.shop.pay(&order_ref("paid")).await;
    assert_eq!(outcome.expect("the shop answers"), PayOutcome::Paid);

    live.schedule(&service, &[paid, unpaid]).await;

    live.story_in("unpaid", "completed", SOON).await;
    until("the paid order counted as dropped", SOON, || async {
        (live.total("dropped_paid").await == 1).then_some(())
    })
    .await;
    assert!(
        live.story("paid").await.is_none(),
        "no saga for what is paid"
    );
    live.verified().await;
    service.stop().await;
    std::fs::remove_file(file).expect("the definition can be removed");
}
