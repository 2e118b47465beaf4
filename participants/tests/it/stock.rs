//! The participant `stock`.

use lapse_participants::kit::{Command, OrderKey};
use lapse_participants::shop::{PayOutcome, Refusal};
use serde_json::json;

use crate::testshop::{
    Saga, TestShop, decimal, is_done, is_rejected, output, overdue, reference, send, send_one,
};

#[tokio::test(flavor = "multi_thread")]
async fn what_an_order_held_comes_back_to_the_last_digit_and_to_its_place() {
    let shop = TestShop::open().await;
    let order = shop
        .place(&overdue(&[
            ("mug", "north", "4"),
            ("mug", "south", "2"),
            ("tea", "north", "0.750"),
            ("mug", "north", "1"),
        ]))
        .await;
    assert_eq!(shop.available("mug", "north").await, 995.into());
    assert_eq!(shop.available("mug", "south").await, 998.into());
    assert_eq!(shop.available("tea", "north").await, decimal("9.750"));
    let outcome = send_one(&shop.stock, &Saga::on(&order).does("ReplenishStock")).await;
    let expected = json!({ "holds": 4, "quantities": [
        { "sku": "mug", "warehouse": "north", "quantity": "5" },
        { "sku": "mug", "warehouse": "south", "quantity": "2" },
        { "sku": "tea", "warehouse": "north", "quantity": "0.750" },
    ]});
    assert_eq!(*output(&outcome), expected);
    assert_eq!(shop.available("mug", "north").await, 1000.into());
    assert_eq!(shop.available("mug", "south").await, 1000.into());
    assert_eq!(shop.available("tea", "north").await, decimal("10.5"));
    assert_eq!(shop.view(&order).await.ledger.len(), 4);
    shop.is_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_saga_finds_nothing_left_to_give_back() {
    let shop = TestShop::open().await;
    let order = shop.overdue_mug().await;
    let batch: Vec<Command> = (0..3)
        .map(|_| Saga::on(&order).does("ReplenishStock"))
        .collect();
    let mut holds: Vec<i64> = Vec::new();
    for outcome in send(&shop.stock, &batch).await {
        holds.extend(output(&outcome)["holds"].as_i64());
    }
    holds.sort_unstable();
    assert_eq!(holds, [0, 0, 1]);
    let later = send_one(&shop.stock, &Saga::on(&order).does("ReplenishStock")).await;
    assert_eq!(output(&later)["holds"], 0);
    assert_eq!(shop.available("mug", "north").await, 1000.into());
    shop.is_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_holds_of_the_generation_come_back() {
    let shop = TestShop::open().await;
    let order = shop.overdue_mug().await;
    let second = OrderKey {
        generation: 2,
        ..order.clone()
    };
    let outcome = send_one(&shop.stock, &Saga::on(&second).does("ReplenishStock")).await;
    assert_eq!(output(&outcome)["holds"], 0);
    assert_eq!(shop.view(&order).await.holds[0].state, "open");
}

#[tokio::test(flavor = "multi_thread")]
async fn sold_holds_stay_sold() {
    let shop = TestShop::open().await;
    let order = shop.overdue_mug().await;
    shop.shop.pay(&reference(&order)).await.expect("it is paid");
    let outcome = send_one(&shop.stock, &Saga::on(&order).does("ReplenishStock")).await;
    assert_eq!(output(&outcome)["holds"], 0);
    assert_eq!(shop.available("mug", "north").await, 999.into());
    shop.is_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_sku_refuses_its_whole_command_and_no_other() {
    let shop = TestShop::open().await;
    let mixed = shop
        .place(&overdue(&[("mug", "north", "3"), ("tea", "north", "1")]))
        .await;
    let plain = shop.place(&overdue(&[("mug", "north", "2")])).await;
    shop.execute("delete from shop.stock where sku = 'tea'")
        .await;
    let sagas = [Saga::on(&mixed), Saga::on(&plain), Saga::on(&mixed)];
    let batch: Vec<Command> = sagas
        .iter()
        .map(|saga| saga.does("ReplenishStock"))
        .collect();
    let outcomes = send(&shop.stock, &batch).await;
    assert!(
        is_rejected(&outcomes[0], "unknown_sku"),
        "{:?}",
        outcomes[0]
    );
    assert!(is_done(&outcomes[1]));
    assert!(
        is_rejected(&outcomes[2], "unknown_sku"),
        "{:?}",
        outcomes[2]
    );
    assert_eq!(shop.available("mug", "north").await, 997.into());
    let view = shop.view(&mixed).await;
    assert!(view.holds.iter().all(|hold| hold.state == "open"));
    assert!(view.ledger.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn withdrawn_holds_are_open_in_a_new_generation_and_can_be_released_again() {
    let shop = TestShop::open().await;
    let order = shop
        .place(&overdue(&[("mug", "north", "4"), ("tea", "north", "0.25")]))
        .await;
    for generation in 2..5 {
        let saga = Saga::on(&order);
        send_one(&shop.stock, &saga.does("ReplenishStock")).await;
        assert_eq!(shop.available("mug", "north").await, 1000.into());
        let undo = saga.undoes("ReplenishStock", "WithdrawStock");
        let outcome = send_one(&shop.stock, &undo).await;
        assert_eq!(output(&outcome)["holds"], 2);
        assert_eq!(shop.available("mug", "north").await, 996.into());
        let view = shop.view(&order).await;
        assert!(view.holds.iter().all(|hold| hold.state == "open"));
        assert!(
            view.holds
                .iter()
                .all(|hold| hold.hold_generation == generation)
        );
    }
    assert_eq!(
        shop.shop.pay(&reference(&order)).await,
        Ok(PayOutcome::Paid)
    );
    shop.is_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_saga_takes_back_only_what_it_released_itself() {
    let shop = TestShop::open().await;
    let order = shop.overdue_mug().await;
    let (first, second) = (Saga::on(&order), Saga::on(&order));
    send_one(&shop.stock, &first.does("ReplenishStock")).await;
    send_one(&shop.stock, &second.does("ReplenishStock")).await;
    let undo = second.undoes("ReplenishStock", "WithdrawStock");
    assert_eq!(output(&send_one(&shop.stock, &undo).await)["holds"], 0);
    assert_eq!(shop.view(&order).await.holds[0].state, "released");
    shop.is_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_sold_meanwhile_is_not_taken_back_and_each_command_is_whole() {
    let shop = TestShop::open().await;
    let of_three = shop
        .place(&overdue(&[("mug", "north", "3"), ("tea", "north", "1")]))
        .await;
    let of_two = shop.place(&overdue(&[("mug", "north", "2")])).await;
    let of_five = shop.place(&overdue(&[("mug", "north", "5")])).await;
    let mut sagas: Vec<Saga> = [&of_three, &of_two, &of_five].map(Saga::on).to_vec();
    // Commands are taken in the order of their ids.
    sagas.sort_by_key(|saga| saga.id);
    let does: Vec<Command> = sagas
        .iter()
        .map(|saga| saga.does("ReplenishStock"))
        .collect();
    send(&shop.stock, &does).await;
    // 994 of the 1000 mugs go elsewhere: six are left, the first two commands need five, the third five.
    let elsewhere = overdue(&[("mug", "north", "994")]);
    shop.place(&elsewhere).await;
    let undoes: Vec<Command> = sagas
        .iter()
        .map(|saga| saga.undoes("ReplenishStock", "WithdrawStock"))
        .collect();
    let outcomes = send(&shop.stock, &undoes).await;
    assert!(is_done(&outcomes[0]) && is_done(&outcomes[1]));
    assert!(
        is_rejected(&outcomes[2], "insufficient_stock"),
        "{:?}",
        outcomes[2]
    );
    assert_eq!(shop.available("mug", "north").await, 1.into());
    let states = |view: lapse_participants::shop::OrderView| {
        view.holds
            .into_iter()
            .map(|hold| hold.state)
            .collect::<Vec<_>>()
    };
    assert_eq!(states(shop.view(&of_three).await), ["open", "open"]);
    assert_eq!(states(shop.view(&of_two).await), ["open"]);
    assert_eq!(states(shop.view(&of_five).await), ["released"]);
    shop.is_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stock_is_never_sold_twice() {
    let shop = TestShop::open().await;
    let much = overdue(&[("tea", "north", "6"), ("tea", "north", "4.5")]);
    let more = overdue(&[("mug", "north", "1"), ("tea", "north", "0.000001")]);
    let placed = shop
        .shop
        .place_many(&[much, more])
        .await
        .expect("the database answers");
    assert!(placed[0].is_ok());
    assert!(matches!(&placed[1], Err(Refusal::InsufficientStock { sku, .. }) if sku == "tea"));
    assert_eq!(shop.available("tea", "north").await, 0.into());
    assert_eq!(
        shop.available("mug", "north").await,
        1000.into(),
        "a refused order takes nothing"
    );
    shop.is_sound().await;
}
