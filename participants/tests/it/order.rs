//! The participant `orders` and the order owner.

use std::time::Duration;

use chrono::TimeDelta;
use lapse_participants::kit::{Command, OrderKey, OrderOwner, Overdue};
use lapse_participants::shop::{ExtendOutcome, NewOrder, PayOutcome};
use lapse_sagas::{Cause, Outcome};

use crate::testshop::{
    Saga, TestShop, ago, early, is_done, not_applicable, output, overdue, reference, send, send_one,
};

#[tokio::test(flavor = "multi_thread")]
async fn an_overdue_order_is_cancelled_and_says_by_whom_and_why() {
    let shop = TestShop::open().await;
    let order = shop.overdue_mug().await;
    let command = Saga::on(&order).because(Cause::Sweep).does("CancelOrder");
    let outcome = send_one(&shop.orders, &command).await;
    assert_eq!(output(&outcome)["already"], false);
    let view = shop.view(&order).await;
    assert_eq!((view.status.as_str(), view.version), ("cancelled", 2));
    assert_eq!(
        view.cancelled_by.as_deref(),
        Some(command.command_id.as_str())
    );
    assert_eq!(view.cancel_reason.as_deref(), Some("sweep"));
    assert!(view.cancelled_at >= Some(view.due_at));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paid_order_is_never_cancelled() {
    let shop = TestShop::open().await;
    for cause in [Cause::Timeout, Cause::Sweep, Cause::Buyer, Cause::Operator] {
        let order = shop.overdue_mug().await;
        let paid = shop.shop.pay(&reference(&order)).await;
        assert_eq!(paid, Ok(PayOutcome::Paid));
        let before = shop.view(&order).await;
        let outcome = send_one(
            &shop.orders,
            &Saga::on(&order).because(cause).does("CancelOrder"),
        )
        .await;
        assert_eq!(outcome, not_applicable("paid"));
        assert_eq!(shop.view(&order).await, before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_not_cancelled_before_its_own_due_time() {
    let shop = TestShop::open().await;
    let by_deadline = shop.place(&early(&[("mug", "north", "1")])).await;
    let by_enforcement = shop
        .place(&NewOrder {
            enforce_at: Some(ago(-60)),
            ..overdue(&[("mug", "north", "1")])
        })
        .await;
    for order in [by_deadline, by_enforcement] {
        let saga = Saga::on(&order);
        let until = shop.view(&order).await.due_at;
        for cause in [Cause::Timeout, Cause::Sweep] {
            let command = saga.clone().because(cause).does("CancelOrder");
            assert_eq!(
                send_one(&shop.orders, &command).await,
                Outcome::NotDue { until }
            );
        }
        let command = saga.because(Cause::Buyer).does("CancelOrder");
        let outcome = send_one(&shop.orders, &command).await;
        assert!(
            is_done(&outcome),
            "the same command id, now for the buyer: {outcome:?}"
        );
    }
    shop.is_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extended_order_is_due_at_its_new_deadline() {
    let shop = TestShop::open().await;
    let new = NewOrder {
        enforce_at: Some(ago(-2)),
        ..overdue(&[("mug", "north", "1")])
    };
    let order = shop.place(&new).await;
    let grace = shop.view(&order).await.due_at - shop.view(&order).await.pay_deadline;
    let later = ago(-1_800);
    let extended = shop.shop.extend(&reference(&order), later).await;
    let view = shop.view(&order).await;
    assert_eq!(
        extended,
        Ok(ExtendOutcome::Extended {
            due_at: view.due_at
        })
    );
    assert_eq!(view.due_at - view.pay_deadline, grace);
    let saga = Saga::on(&order);
    let outcome = send_one(&shop.orders, &saga.does("CancelOrder")).await;
    assert_eq!(outcome, Outcome::NotDue { until: view.due_at });

    let brought_forward = shop.shop.extend(&reference(&order), ago(10)).await;
    assert!(matches!(
        brought_forward,
        Ok(ExtendOutcome::Extended { .. })
    ));
    assert!(is_done(
        &send_one(&shop.orders, &saga.does("CancelOrder")).await
    ));
    let refused = shop.shop.extend(&reference(&order), later).await;
    let status = "cancelled".to_owned();
    assert_eq!(refused, Ok(ExtendOutcome::Refused { status }));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_generation_is_not_applicable_whatever_the_status() {
    let shop = TestShop::open().await;
    let order = shop.overdue_mug().await;
    shop.execute("update shop.orders set generation = 2").await;
    let outcome = send_one(&shop.orders, &Saga::on(&order).does("CancelOrder")).await;
    assert_eq!(outcome, not_applicable("generation"));
    let second = OrderKey {
        generation: 2,
        ..order.clone()
    };
    assert!(is_done(
        &send_one(&shop.orders, &Saga::on(&second).does("CancelOrder")).await
    ));
    let outcome = send_one(&shop.orders, &Saga::on(&order).does("CancelOrder")).await;
    assert_eq!(outcome, not_applicable("generation"));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_sagas_on_one_order_cancel_it_once() {
    let shop = TestShop::open().await;
    let order = shop.overdue_mug().await;
    let batch: Vec<Command> = (0..3)
        .map(|_| Saga::on(&order).does("CancelOrder"))
        .collect();
    let outcomes = send(&shop.orders, &batch).await;
    let already = |outcome: &&Outcome| output(outcome)["already"] == true;
    assert_eq!(outcomes.iter().filter(already).count(), 2);
    assert_eq!(shop.view(&order).await.version, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_order_is_asked_for_again_because_it_may_not_have_committed_yet() {
    let shop = TestShop::open().await;
    let order = OrderKey {
        tenant: "default".to_owned(),
        order_id: "nobody".to_owned(),
        generation: 1,
    };
    let outcome = send_one(&shop.orders, &Saga::on(&order).does("CancelOrder")).await;
    assert!(
        matches!(&outcome, Outcome::Failed { error } if error.starts_with("unknown_order")),
        "{outcome:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reopened_order_awaits_payment_and_is_left_to_a_human() {
    let shop = TestShop::open().await;
    let order = shop.overdue_mug().await;
    let saga = Saga::on(&order);
    send_one(&shop.orders, &saga.does("CancelOrder")).await;
    let outcome = send_one(&shop.orders, &saga.undoes("CancelOrder", "ReopenOrder")).await;
    assert_eq!(output(&outcome)["undone"], true);
    let view = shop.view(&order).await;
    assert_eq!(view.status, "awaiting_payment");
    assert!(view.needs_attention);
    assert_eq!(view.cancelled_at, None);
    assert_eq!(
        shop.orders.overdue_orders(None, Duration::ZERO, 10).await,
        Ok(vec![])
    );
    assert_eq!(
        shop.shop.pay(&reference(&order)).await,
        Ok(PayOutcome::Paid)
    );
    shop.is_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_else_cancelled_is_not_reopened() {
    let shop = TestShop::open().await;
    let order = shop.overdue_mug().await;
    let (other, saga) = (Saga::on(&order).because(Cause::Buyer), Saga::on(&order));
    send_one(&shop.orders, &other.does("CancelOrder")).await;
    let already = send_one(&shop.orders, &saga.does("CancelOrder")).await;
    assert_eq!(output(&already)["already"], true);
    let before = shop.view(&order).await;
    let outcome = send_one(&shop.orders, &saga.undoes("CancelOrder", "ReopenOrder")).await;
    assert_eq!(output(&outcome)["undone"], false);
    assert_eq!(shop.view(&order).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn overdue_orders_come_oldest_first_in_pages_without_gaps() {
    let shop = TestShop::open().await;
    let first = ago(100);
    // Pairs share their due time, so that pages are cut between equals too.
    let nth = |at| NewOrder {
        tenant: format!("tenant-{}", at % 3),
        pay_deadline: first + TimeDelta::seconds(at / 2),
        ..overdue(&[("mug", "north", "1")])
    };
    let orders: Vec<NewOrder> = (0..25_i64).map(nth).collect();
    shop.shop
        .place_many(&orders)
        .await
        .expect("the orders are placed");
    let not_due = shop.place(&early(&[("mug", "north", "1")])).await;
    let paid = shop.overdue_mug().await;
    shop.shop.pay(&reference(&paid)).await.expect("it is paid");

    let mut found: Vec<Overdue> = Vec::new();
    loop {
        let page = shop
            .orders
            .overdue_orders(found.last(), Duration::ZERO, 3)
            .await
            .expect("the owner answers");
        if page.is_empty() {
            break;
        }
        found.extend(page);
    }
    assert_eq!(found.len(), 25);
    let position = |overdue: &Overdue| {
        let OrderKey {
            tenant, order_id, ..
        } = overdue.order.clone();
        (overdue.due_at, tenant, order_id)
    };
    assert!(found.is_sorted_by_key(position));
    assert!(
        found
            .iter()
            .all(|overdue| overdue.order != not_due && overdue.order != paid)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_says_paid_only_for_the_generation_asked_for() {
    let shop = TestShop::open().await;
    let (paid, unpaid) = (shop.overdue_mug().await, shop.overdue_mug().await);
    shop.shop.pay(&reference(&paid)).await.expect("it is paid");
    let other = OrderKey {
        generation: 2,
        ..paid.clone()
    };
    let unknown = OrderKey {
        order_id: "nobody".to_owned(),
        ..paid.clone()
    };
    let asked = [unpaid, paid.clone(), other, unknown, paid];
    assert_eq!(
        shop.orders.paid(&asked).await,
        Ok(vec![false, true, false, false, true])
    );
}
