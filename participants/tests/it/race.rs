//! Paying and cancelling at the same moment.

use chrono::TimeDelta;
use lapse_participants::kit::{CallError, Command, OrderKey, Participant};
use lapse_participants::order::Orders;
use lapse_participants::shop::{OrderRef, PayOutcome, Shop};
use lapse_participants::stock::Stock;
use lapse_sagas::{Outcome, Timestamp};
use rust_decimal::Decimal;
use sqlx::PgPool;

use crate::testshop::{
    Saga, TestShop, decimal, early, in_time, is_done, not_applicable, outcomes, output, overdue,
    reference,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn at_the_deadline_an_order_is_either_paid_or_cancelled() {
    let shop = TestShop::open().await;
    let new = early(&[("mug", "north", "1"), ("mug", "north", "1")]);
    let placed = shop
        .shop
        .place_many(&vec![new; 400])
        .await
        .expect("the database answers");
    let orders: Vec<OrderKey> = placed
        .into_iter()
        .map(|placed| placed.expect("it is placed").order)
        .collect();

    let deadline = soon(&shop.pool).await;

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
        // Payments of the same orders, backwards: a part long before, a part long after, the rest around the deadline.
        let mut payers: Vec<OrderRef> = part.iter().map(reference).collect();
        payers.reverse();
        let start =
            deadline + TimeDelta::milliseconds([-900, -40, -30, -20, -10, 0, 5, 10, 20, 600][at]);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn different_sagas_on_the_same_orders_give_back_each_hold_once() {
    let shop = TestShop::open().await;
    for _round in 0..10 {
        let orders = shop.overdue_mugs(20).await;
        let sagas: Vec<_> = (0..4)
            .map(|_| {
                let batch: Vec<Command> = orders
                    .iter()
                    .map(|order| Saga::on(order).does("ReplenishStock"))
                    .collect();
                let participant = shop.stock.clone();
                tokio::spawn(async move { repeat(&participant, &batch).await })
            })
            .collect();
        let mut holds = 0;
        for saga in sagas {
            for outcome in in_time(saga).await.expect("the batch is answered") {
                holds += output(&outcome)["holds"].as_i64().expect("a count");
            }
        }
        assert_eq!(holds, 20);
    }
    assert_eq!(shop.available("mug", "north").await, 1000.into());
    shop.is_sound().await;
}

/// One saga per order with several runs, every command sent by six coordinators that know nothing of each other and
/// batch differently, and buyers who pay at any moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn however_many_send_the_same_sagas_stock_adds_up_and_nothing_deadlocks() {
    let seed = uuid::Uuid::now_v7().as_u128() as u64;
    println!("seed {seed}");
    let shop = TestShop::open().await;
    let new = overdue(&[
        ("tea", "north", "0.1"),
        ("mug", "south", "1"),
        ("mug", "north", "1"),
    ]);
    let placed = shop
        .shop
        .place_many(&vec![new; 60])
        .await
        .expect("the database answers");
    let sagas: Vec<Saga> = placed
        .into_iter()
        .map(|placed| Saga::on(&placed.expect("it is placed").order))
        .collect();
    let sides: Vec<_> = (1..=6)
        .map(|side| {
            let random = Random(seed.wrapping_mul(side));
            let (shop, owner, stock) = (shop.shop.clone(), shop.orders.clone(), shop.stock.clone());
            tokio::spawn(coordinate(random, sagas.clone(), shop, owner, stock))
        })
        .collect();
    for side in sides {
        in_time(side).await.expect("this side comes to its end");
    }
    shop.is_sound().await;
}

async fn coordinate(mut random: Random, sagas: Vec<Saga>, shop: Shop, owner: Orders, stock: Stock) {
    let mut live = sagas;
    for run in 1..=6 {
        let mut compensated = Vec::new();
        while !live.is_empty() {
            let size = live.len().min(1 + random.below(20) as usize);
            let from = random.below((live.len() - size + 1) as u64) as usize;
            let some: Vec<Saga> = live
                .drain(from..from + size)
                .map(|saga| Saga { run, ..saga })
                .collect();
            let cancelled = repeat(&owner, &each(&some, |saga| saga.does("CancelOrder"))).await;
            let go_on: Vec<Saga> = some
                .into_iter()
                .zip(&cancelled)
                .filter_map(|(saga, outcome)| is_done(outcome).then_some(saga))
                .collect();
            repeat(&stock, &each(&go_on, |saga| saga.does("ReplenishStock"))).await;
            // Every side decides alike.
            let fails = |saga: &Saga| !(saga.id.0.as_u128() + u128::from(run)).is_multiple_of(4);
            let back: Vec<Saga> = go_on.into_iter().filter(fails).collect();
            repeat(
                &stock,
                &each(&back, |saga| saga.undoes("ReplenishStock", "WithdrawStock")),
            )
            .await;
            repeat(
                &owner,
                &each(&back, |saga| saga.undoes("CancelOrder", "ReopenOrder")),
            )
            .await;
            let payers: Vec<OrderRef> = back
                .iter()
                .filter(|_| random.below(20) == 0)
                .map(|saga| reference(&saga.order))
                .collect();
            shop.pay_many(&payers)
                .await
                .expect("the payments are answered");
            compensated.extend(back);
        }
        live = compensated;
    }
}

fn each(sagas: &[Saga], command: impl Fn(&Saga) -> Command) -> Vec<Command> {
    sagas.iter().map(command).collect()
}

/// Xorshift: enough to choose, and repeatable from its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 |= 1;
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) % limit
    }
}

/// What the coordinator does with a batch that lost a race.
async fn repeat(participant: &dyn Participant, batch: &[Command]) -> Vec<Outcome> {
    let Some(first) = batch.first() else {
        return Vec::new();
    };
    loop {
        match participant.call(&first.operation, batch).await {
            Ok(replies) => return outcomes(batch, &replies),
            Err(CallError::Serialization(words)) => assert!(!words.contains("40P01"), "{words}"),
            Err(CallError::Locked(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }
}

/// Lets every order fall due in a second.
async fn soon(pool: &PgPool) -> Timestamp {
    let soon = "with soon as materialized (select clock_timestamp() + interval '1 s' as at)
        update shop.orders set pay_deadline = soon.at from soon returning pay_deadline";
    sqlx::query_scalar(soon)
        .fetch_one(pool)
        .await
        .expect("deadlines can be moved")
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
