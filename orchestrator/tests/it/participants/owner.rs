//! An order owner over HTTP: pages without gaps or repeats, and none that would be read for ever.

use std::time::Duration;

use chrono::TimeDelta;
use lapse::participants::http::HttpOwner;
use lapse::shop_serve::ShopParticipant;
use lapse::shop_serve::http::{Served, router};
use lapse_participants::kit::{CallError, OrderOwner, Overdue};
use lapse_participants::order::Orders;
use lapse_participants::shop::{Line, NewOrder};
use rust_decimal::Decimal;
use std::sync::Arc;

use super::served::{Act, at, response, serve, socket};
use super::shop::ShopSite;
use crate::support::live::order_ref;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_shop_tells_overdue_and_paid_orders_over_http_as_in_this_process() {
    let site = ShopSite::open().await;
    let now = chrono::Utc::now();
    for (order_id, due_in) in [
        ("a", -30),
        ("b", -20),
        ("c", -20),
        ("soon", 20),
        ("paid", -5),
    ] {
        let line = Line {
            sku: "MUG-BLUE".to_owned(),
            warehouse: "lille".to_owned(),
            quantity: Decimal::ONE,
        };
        let order = NewOrder {
            order_id: Some(order_id.to_owned()),
            ..NewOrder::new("normal", vec![line], now + TimeDelta::seconds(due_in))
        };
        site.shop.place(&order).await.unwrap().unwrap();
    }
    site.shop.pay(&order_ref("paid")).await.unwrap();
    let orders = Orders::new(site.pool.clone());
    let served = Served {
        participant: Arc::new(ShopParticipant::new(site.pool.clone())),
        owner: Arc::new(orders.clone()),
    };
    let owner = HttpOwner::new("orders", &at(serve(router(served)).await), Duration::ZERO).unwrap();

    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = owner
            .overdue_orders(after.as_ref(), Duration::ZERO, 2)
            .await
            .unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.clone());
        all.extend(page);
    }

    assert_eq!(
        all,
        orders
            .overdue_orders(None, Duration::ZERO, 10)
            .await
            .unwrap()
    );
    let ids: Vec<&str> = all
        .iter()
        .map(|overdue| overdue.order.order_id.as_str())
        .collect();
    assert_eq!(ids, ["a", "b", "c"]);
    let ahead = owner
        .overdue_orders(None, Duration::from_secs(60), 10)
        .await
        .unwrap();
    assert_eq!(ahead.len(), 4, "the one that is due soon too");
    let mut keys: Vec<_> = all.into_iter().map(|overdue| overdue.order).collect();
    keys[1].order_id = "paid".to_owned();
    assert_eq!(owner.paid(&keys).await.unwrap(), [false, true, false]);
}

async fn owner_that_says(body: &str) -> HttpOwner {
    HttpOwner::new(
        "orders",
        &at(socket(Act::Say(response("200 OK", "", body))).await),
        Duration::ZERO,
    )
    .unwrap()
}

#[tokio::test]
async fn a_page_that_does_not_go_on_is_refused() {
    let order = |order_id: &str, due_at: &str| {
        format!(
            r#"{{"order": {{"tenant": "default", "order_id": "{order_id}", "generation": 1}}, "order_type": "normal", "due_at": "{due_at}"}}"#
        )
    };
    let (early, late) = (
        order("a", "2026-02-14T18:00:00Z"),
        order("b", "2026-02-14T18:00:01Z"),
    );
    let after: Overdue = serde_json::from_str(&early).unwrap();
    for (page, after) in [
        (format!("[{late},{early}]"), None),
        (r#"[{"order_type": "normal"}]"#.to_owned(), None),
        (r#"{"orders": []}"#.to_owned(), Some(&after)),
    ] {
        let owner = owner_that_says(&page).await;
        let refused = owner.overdue_orders(after, Duration::ZERO, 500).await;
        assert!(
            matches!(refused, Err(CallError::Unknown(_))),
            "{page}: {refused:?}"
        );
    }
    let owner = owner_that_says(&format!("[{late}]")).await;
    let page = owner
        .overdue_orders(Some(&after), Duration::ZERO, 500)
        .await;
    assert_eq!(page.unwrap().len(), 1);
}

#[tokio::test]
async fn an_order_that_cannot_be_read_is_passed_over_and_order_within_one_time_is_the_owner_s() {
    let page = r#"[
        {"order": {"tenant": "t", "order_id": "b", "generation": 2}, "order_type": "n", "due_at": "2026-02-14T18:00:00Z"},
        {"order": {"tenant": "t", "order_id": "b", "generation": 1}, "order_type": "n", "due_at": "2026-02-14T18:00:00Z"},
        {"order": {"tenant": "t", "order_id": "x", "generation": 2147483648}, "order_type": "n", "due_at": "2026-02-14T18:00:00Z"},
        {"order": {"tenant": "t", "order_id": "y", "generation": 1}, "order_type": null, "due_at": "2026-02-14T18:00:00Z"},
        {"order": {"tenant": "t", "order_id": "z", "generation": 1}, "order_type": "n", "due_at": "2026-02-14T18:00:00"},
        {"order": {"tenant": "t", "order_id": "A", "generation": 1}, "order_type": "n", "due_at": "2026-02-14T18:00:00Z"}]"#;
    let owner = owner_that_says(page).await;

    let listed = owner.overdue_orders(None, Duration::ZERO, 500).await;

    let listed: Vec<(String, i32)> = listed
        .unwrap()
        .into_iter()
        .map(|overdue| (overdue.order.order_id, overdue.order.generation))
        .collect();
    let expected = [("b", 2), ("b", 1), ("A", 1)];
    assert_eq!(
        listed,
        expected.map(|(id, generation)| (id.to_owned(), generation))
    );
}

#[tokio::test]
async fn as_many_orders_are_told_of_as_were_asked_about() {
    let order: Overdue = serde_json::from_str(
        r#"{"order": {"tenant": "t", "order_id": "a", "generation": 1}, "order_type": "n", "due_at": "2026-02-14T18:00:00Z"}"#,
    )
    .unwrap();
    for body in ["[]", "[true, false]", "{}", "[1]"] {
        let paid = owner_that_says(body)
            .await
            .paid(std::slice::from_ref(&order.order))
            .await;
        assert!(
            matches!(paid, Err(CallError::Unknown(_))),
            "{body}: {paid:?}"
        );
    }
}
