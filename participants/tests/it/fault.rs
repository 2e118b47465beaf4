//! Planted faults.

use std::time::Duration;

use lapse_participants::fault::{Answer, Faulty};
use lapse_participants::kit::{Command, Participant};

use crate::testshop::{Saga, TestShop, is_done, reference, send, send_one};

#[tokio::test(flavor = "multi_thread")]
async fn a_planted_fault_hits_its_order_and_operation_so_many_times() {
    let shop = TestShop::open().await;
    let faulty = Faulty::new(shop.orders.clone(), shop.pool.clone());
    let cases = [
        (Answer::Failed, "failed", false),
        (Answer::Unknown, "unknown", false),
        (Answer::UnknownApplied, "unknown", true),
        (Answer::Rejected, "rejected", false),
    ];
    for (answer, name, applied) in cases {
        let (hit, other) = (shop.overdue_mug().await, shop.overdue_mug().await);
        let plant = shop
            .shop
            .set_fault(&reference(&hit), "CancelOrder", answer, 2)
            .await;
        plant.expect("the fault is planted");
        let commands: Vec<Command> = [&hit, &other]
            .map(|order| Saga::on(order).does("CancelOrder"))
            .to_vec();
        for _time in 0..2 {
            let outcomes = send(&faulty, &commands).await;
            assert_eq!(outcomes[0].name(), name);
            assert!(is_done(&outcomes[1]));
            assert_eq!(
                shop.view(&hit).await.status == "cancelled",
                applied,
                "{answer:?}"
            );
        }
        let outcome = send_one(&faulty, &commands[0]).await;
        assert!(is_done(&outcome), "the fault is used up: {outcome:?}");
        assert_eq!(shop.view(&hit).await.version, 2, "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_call_applies_nothing_and_the_next_one_is_answered() {
    let shop = TestShop::open().await;
    let faulty = Faulty::new(shop.stock.clone(), shop.pool.clone());
    let order = shop.overdue_mug().await;
    let plant = shop
        .shop
        .set_fault(&reference(&order), "ReplenishStock", Answer::Hang, 1)
        .await;
    plant.expect("the fault is planted");
    let command = Saga::on(&order).does("ReplenishStock");
    let call = faulty.call("ReplenishStock", std::slice::from_ref(&command));
    let gave_up = tokio::time::timeout(Duration::from_millis(500), call).await;
    assert!(gave_up.is_err());
    assert_eq!(shop.view(&order).await.holds[0].state, "open");
    assert!(is_done(&send_one(&faulty, &command).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_of_another_operation_or_removed_hits_nothing() {
    let shop = TestShop::open().await;
    let faulty = Faulty::new(shop.orders.clone(), shop.pool.clone());
    let order = shop.overdue_mug().await;
    for (operation, times) in [
        ("ReplenishStock", 5),
        ("CancelOrder", 5),
        ("CancelOrder", 0),
    ] {
        let plant = shop
            .shop
            .set_fault(&reference(&order), operation, Answer::Failed, times)
            .await;
        plant.expect("the fault is planted");
    }
    assert!(is_done(
        &send_one(&faulty, &Saga::on(&order).does("CancelOrder")).await
    ));
}
