//! The shop's own side.

use lapse_participants::shop::{NewOrder, PayOutcome, Refusal, migrate};
use rust_decimal::Decimal;

use crate::testshop::{Saga, TestShop, ago, early, overdue, reference, send_one};

#[tokio::test(flavor = "multi_thread")]
async fn placing_writes_order_holds_stock_and_event_together() {
    let shop = TestShop::open().await;
    let new = NewOrder {
        tenant: "northmart".to_owned(),
        order_id: Some("ord_71c0".to_owned()),
        enforce_at: Some(ago(-7_200)),
        ..early(&[("mug", "north", "6"), ("tea", "north", "0.750")])
    };
    let placed = shop
        .shop
        .place(&new)
        .await
        .expect("the database answers")
        .expect("it is placed");
    let outbox = shop
        .shop
        .claim_outbox(10)
        .await
        .expect("the outbox answers");
    assert_eq!(outbox.len(), 1);
    assert_eq!(
        (outbox[0].key.as_str(), outbox[0].due_at),
        ("ord_71c0", placed.due_at)
    );
    let event: serde_json::Value =
        serde_json::from_str(&outbox[0].payload).expect("the event is JSON");
    assert_eq!(event, placed.event);
    assert_eq!(event["event_type"], "order.placed");
    assert_eq!(event["tenant"], "northmart");
    assert_eq!(event["generation"], 1);
    assert_eq!(event["lines"][1]["qty"], "0.750");
    assert_eq!(
        event["lines"][1]["holds"][0]["hold_id"],
        placed.hold_ids[1].to_string()
    );
    let view = shop.view(&placed.order).await;
    let enforce_at = event["enforce_at"]
        .as_str()
        .expect("it has an enforcement time");
    assert_eq!(
        enforce_at.parse::<lapse_sagas::Timestamp>(),
        Ok(view.due_at)
    );
    assert_eq!(view.holds.len(), 2);
    assert_eq!(shop.available("mug", "north").await, 994.into());
    shop.is_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_order_leaves_nothing_behind() {
    let shop = TestShop::open().await;
    let named = |id: &str, order: NewOrder| NewOrder {
        order_id: Some(id.to_owned()),
        ..order
    };
    let orders = [
        named("first", early(&[("mug", "north", "999")])),
        named("first", early(&[("mug", "north", "1")])),
        named(
            "too-much",
            early(&[("mug", "south", "1"), ("mug", "north", "2")]),
        ),
        named("odd", early(&[("pan", "north", "1")])),
        named("zero", early(&[("mug", "north", "0")])),
        named("fine-grained", early(&[("tea", "north", "0.0000001")])),
        named("empty", early(&[])),
        named(" ", early(&[("mug", "north", "1")])),
        named(
            "free",
            NewOrder {
                total_minor: 0,
                ..early(&[("mug", "north", "1")])
            },
        ),
        named("last", early(&[("mug", "north", "1")])),
    ];
    let answers = shop
        .shop
        .place_many(&orders)
        .await
        .expect("the database answers");
    let names: Vec<&str> = answers
        .iter()
        .map(|answer| match answer {
            Ok(_) => "placed",
            Err(Refusal::OrderExists { .. }) => "exists",
            Err(Refusal::InsufficientStock { .. }) => "insufficient",
            Err(Refusal::UnknownSku { .. }) => "unknown",
            Err(Refusal::Invalid { .. }) => "invalid",
        })
        .collect();
    let expected = [
        "placed",
        "exists",
        "insufficient",
        "unknown",
        "invalid",
        "invalid",
        "invalid",
        "invalid",
        "invalid",
        "placed",
    ];
    assert_eq!(names, expected);
    let count = "select (select count(*) from shop.orders) + (select count(*) from shop.hold)
                     + (select count(*) from shop.outbox)";
    let rows: i64 = sqlx::query_scalar(count)
        .fetch_one(&shop.pool)
        .await
        .expect("rows are counted");
    assert_eq!(rows, 6, "two orders, two holds, two events");
    assert_eq!(shop.available("mug", "north").await, 0.into());
    assert_eq!(shop.available("mug", "south").await, 1000.into());
    shop.is_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paying_is_answered_by_the_status_alone() {
    let shop = TestShop::open().await;
    let order = shop.overdue_mug().await;
    let cancelled = shop.overdue_mug().await;
    send_one(&shop.orders, &Saga::on(&cancelled).does("CancelOrder")).await;
    let nobody = lapse_participants::shop::OrderRef {
        tenant: "default".to_owned(),
        order_id: "nobody".to_owned(),
    };
    let asked = [
        reference(&order),
        reference(&cancelled),
        nobody,
        reference(&order),
    ];
    let outcomes = shop
        .shop
        .pay_many(&asked)
        .await
        .expect("the database answers");
    use PayOutcome::{AlreadyPaid, OrderCancelled, Paid, UnknownOrder};
    assert_eq!(outcomes, [Paid, OrderCancelled, UnknownOrder, Paid]);
    assert_eq!(shop.shop.pay(&reference(&order)).await, Ok(AlreadyPaid));
    let view = shop.view(&order).await;
    assert_eq!(view.status, "paid");
    assert_eq!(view.holds[0].state, "sold");
    assert_eq!(view.stock[0].sold, Decimal::ONE);
    shop.is_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claimed_event_is_nobody_elses_and_gone_once_deleted() {
    let shop = TestShop::open().await;
    shop.overdue_mugs(5).await;
    let (first, second) = tokio::join!(shop.shop.claim_outbox(3), shop.shop.claim_outbox(3));
    let mut ids: Vec<i64> = first
        .into_iter()
        .chain(second)
        .flatten()
        .map(|row| row.outbox_id)
        .collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 5);
    assert_eq!(shop.shop.claim_outbox(3).await, Ok(vec![]));
    shop.execute("update shop.outbox set claimed_until = clock_timestamp() - interval '1 s'")
        .await;
    let again = shop
        .shop
        .claim_outbox(10)
        .await
        .expect("the outbox answers");
    assert_eq!(again.len(), 5, "a claim that ran out is handed out again");
    shop.shop
        .delete_outbox(&ids)
        .await
        .expect("the outbox answers");
    shop.execute("update shop.outbox set claimed_until = 'epoch'")
        .await;
    assert_eq!(shop.shop.claim_outbox(10).await, Ok(vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_orders_are_placed_and_paid_per_call() {
    let shop = TestShop::open().await;
    shop.shop
        .stock_up("mug", "north", 9_000.into())
        .await
        .expect("stock can be filled");
    let orders = vec![overdue(&[("mug", "north", "2")]); 5_000];
    let placed = shop
        .shop
        .place_many(&orders)
        .await
        .expect("the database answers");
    let references: Vec<_> = placed
        .into_iter()
        .map(|placed| reference(&placed.expect("it is placed").order))
        .collect();
    assert_eq!(shop.available("mug", "north").await, 0.into());
    let outcomes = shop
        .shop
        .pay_many(&references)
        .await
        .expect("the database answers");
    assert!(outcomes.iter().all(|outcome| *outcome == PayOutcome::Paid));
    shop.is_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn migrating_twice_at_once_is_harmless() {
    let shop = TestShop::open().await;
    let (one, other) = tokio::join!(migrate(&shop.pool), migrate(&shop.pool));
    one.expect("migrated");
    other.expect("migrated");
}
