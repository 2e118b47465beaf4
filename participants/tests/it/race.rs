//! Paying and cancelling at the same moment.

use chrono::TimeDelta;
use lapse_participants::kit::{CallError, Command, OrderKey, Participant};
use lapse_participants::shop::{NewOrder, OrderRef, PayOutcome};
use lapse_sagas::{Outcome, Timestamp};
use rust_decimal::Decimal;
use sqlx::PgPool;

use crate::testshop::{
    Saga, TestShop, ago, decimal, in_time, is_done, lines, not_applicable, outcomes, reference,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn at_the_deadline_an_order_is_either_paid_or_cancelled() {
    let shop = TestShop::open().await;
    let deadline = ago(0) + TimeDelta::milliseconds(400);
    let new = NewOrder::new(
        "flash",
        lines(&[("mug", "north", "1"), ("mug", "north", "1")]),
        deadline,
    );
    let placed = shop
        .shop
        .place_many(&vec![new; 400])
        .await
        .expect("the database answers");
    let orders: Vec<OrderKey> = placed
        .into_iter()
        .map(|placed| placed.expect("it is placed").order)
        .collect();

    let mut cancelling = Vec::new();
    let mut paying = Vec::new();
    for (at, part) in orders.chunks(40).enumerate() {
        let commands: Vec<Command> = part
            .iter()
            .map(|order| Saga::on(order).does("CancelOrder"))
            .collect();
        let participant = shop.orders.clone();
        cancelling.push(tokio::spawn(async move {
            cancel_when_due(&participant, commands).await
        }));
        // Payments of the same orders, backwards, spread over the last moments before and the first after.
        let mut payers: Vec<OrderRef> = part.iter().map(reference).collect();
        payers.reverse();
        let start = deadline + TimeDelta::milliseconds(15 * at as i64 - 75);
        let (shop, pool) = (shop.shop.clone(), shop.pool.clone());
        paying.push(tokio::spawn(async move {
            let mut outcomes = Vec::new();
            clock_passes(&pool, start).await;
            for few in payers.chunks(5) {
                outcomes.extend(shop.pay_many(few).await.expect("the database answers"));
            }
            outcomes.reverse();
            outcomes
        }));
    }
    let mut cancelled = Vec::new();
    for part in cancelling {
        cancelled.extend(in_time(part).await.expect("the cancelling ends"));
    }
    let mut paid = Vec::new();
    for part in paying {
        paid.extend(in_time(part).await.expect("the paying ends"));
    }

    let mut counts = (0, 0);
    for ((order, cancel), pay) in orders.iter().zip(&cancelled).zip(&paid) {
        let view = shop.view(order).await;
        match pay {
            PayOutcome::Paid => {
                counts.0 += 1;
                assert_eq!(*cancel, not_applicable("paid"));
                assert_eq!(view.status, "paid");
            }
            PayOutcome::OrderCancelled => {
                counts.1 += 1;
                assert!(is_done(cancel), "{cancel:?}");
                assert_eq!(view.status, "cancelled");
                assert!(view.cancelled_at >= Some(view.due_at));
            }
            other => panic!("{order:?}: {other:?}"),
        }
    }
    let give_back: Vec<Command> = orders
        .iter()
        .zip(&cancelled)
        .filter(|(_, cancel)| is_done(cancel))
        .map(|(order, _)| Saga::on(order).does("ReplenishStock"))
        .collect();
    if !give_back.is_empty() {
        crate::testshop::send(&shop.stock, &give_back).await;
    }
    let totals = shop.shop.totals().await.expect("the database answers");
    assert_eq!(totals.held, Decimal::ZERO);
    assert_eq!(totals.sold, Decimal::from(2 * counts.0));
    assert_eq!(totals.available, decimal("2010.5") - totals.sold);
    shop.is_sound().await;
    assert!(
        counts.0 > 0 && counts.1 > 0,
        "no race: {} paid, {} cancelled",
        counts.0,
        counts.1
    );
}

async fn clock_passes(pool: &PgPool, at: Timestamp) {
    let passed = "select clock_timestamp() >= $1";
    while !sqlx::query_scalar::<_, bool>(passed)
        .bind(at)
        .fetch_one(pool)
        .await
        .expect("it has a clock")
    {
        tokio::task::yield_now().await;
    }
}

/// What the coordinator does: again and again until no order is not due.
async fn cancel_when_due(participant: &dyn Participant, commands: Vec<Command>) -> Vec<Outcome> {
    loop {
        let replies = match participant.call("CancelOrder", &commands).await {
            Ok(replies) => replies,
            Err(CallError::Locked(_) | CallError::Serialization(_)) => continue,
            Err(other) => panic!("{other}"),
        };
        let outcomes = outcomes(&commands, &replies);
        if outcomes.iter().all(Outcome::is_final) {
            return outcomes;
        }
    }
}
