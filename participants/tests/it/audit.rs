//! The audit finds what it is there to find: every check is shown to fail on a planted corruption, and only it.

use chrono::TimeDelta;
use lapse_participants::audit::{Bounds, Check};
use lapse_participants::kit::OrderKey;

use crate::testshop::{Saga, TestShop, ago, early, overdue, reference, send_one};

/// A shop with one order of each kind: cancelled with its stock back, paid, open, re-opened and cancelled again.
async fn with_history() -> (TestShop, OrderKey, OrderKey) {
    let shop = TestShop::open().await;
    let cancelled = shop
        .place(&overdue(&[("mug", "north", "2"), ("tea", "north", "0.5")]))
        .await;
    let saga = Saga::on(&cancelled);
    send_one(&shop.orders, &saga.does("CancelOrder")).await;
    send_one(&shop.stock, &saga.does("ReplenishStock")).await;
    send_one(&shop.stock, &saga.undoes("ReplenishStock", "WithdrawStock")).await;
    send_one(&shop.orders, &saga.undoes("CancelOrder", "ReopenOrder")).await;
    let saga = Saga::on(&cancelled);
    send_one(&shop.orders, &saga.does("CancelOrder")).await;
    send_one(&shop.stock, &saga.does("ReplenishStock")).await;
    let paid = shop.overdue_mug().await;
    shop.shop.pay(&reference(&paid)).await.expect("it is paid");
    shop.place(&early(&[("mug", "south", "1")])).await;
    (shop, cancelled, paid)
}

async fn violated(shop: &TestShop) -> Vec<Check> {
    let audit = shop.audit(&Bounds::default()).await;
    audit.checks.into_iter().filter(|check| !check.ok).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sound_shop_passes_every_check_and_every_check_looked_at_something() {
    let (shop, ..) = with_history().await;
    // Without any time to settle: nothing is under way here.
    let at_once = Bounds {
        settled_after: TimeDelta::zero(),
        ..Bounds::default()
    };
    let audit = shop.audit(&at_once).await;
    for check in &audit.checks {
        assert!(
            check.ok && check.violations == 0 && check.rows.is_empty(),
            "{check:?}"
        );
    }
    let ids: Vec<&str> = audit.checks.iter().map(|check| check.id.as_str()).collect();
    let expected = [
        "doubled_stock",
        "stock_conserved",
        "early",
        "late",
        "cancelled_after_paid",
        "paid_after_cancelled",
        "paid_but_not_sold",
        "hold_left_open",
        "lost",
    ];
    assert_eq!(ids, expected);
    assert!(audit.checks.iter().all(|check| check.checked > 0));
    assert_eq!(audit.lateness.orders, 1);
    assert!(audit.lateness.max >= audit.lateness.p50 && audit.lateness.p50 > Some(0.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_looked_at_before_the_bound() {
    let (shop, ..) = with_history().await;
    shop.execute("alter table shop.orders drop constraint orders_paid; update shop.orders set paid_at = now()")
        .await;
    let later = Bounds {
        since: ago(-60),
        ..Bounds::default()
    };
    let audit = shop.audit(&later).await;
    assert!(audit.checks.iter().all(|check| check.ok));
    assert_eq!(audit.lateness.orders, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_planted_corruption_is_found_by_its_check() {
    let corruptions: [(&str, &[&str], &str); 17] = [
        (
            "one hold released once too often",
            &["doubled_stock"],
            "insert into shop.ledger (hold_id, hold_generation, direction, quantity, command_id)
             select hold_id, hold_generation + 1, 'release', quantity, 'x' from shop.hold
             where state = 'released' limit 1",
        ),
        (
            "a release of another quantity",
            &["doubled_stock"],
            "alter table shop.ledger disable trigger user; update shop.ledger set quantity = quantity + 1",
        ),
        (
            "a release that the ledger forgot",
            &["doubled_stock"],
            "alter table shop.ledger disable trigger user;
             delete from shop.ledger where hold_generation = 2 and direction = 'release'",
        ),
        (
            "a release of a hold that never was",
            &["doubled_stock"],
            "insert into shop.ledger (hold_id, hold_generation, direction, quantity, command_id)
             values (gen_random_uuid(), 1, 'release', 1, 'x')",
        ),
        (
            "stock given back without a hold",
            &["stock_conserved"],
            "update shop.stock set available = available + 0.000001 where sku = 'tea'",
        ),
        (
            "stock lost",
            &["stock_conserved"],
            "update shop.stock set available = available - 1 where sku = 'mug' and warehouse = 'south'",
        ),
        (
            "a stock row gone",
            &["stock_conserved"],
            "delete from shop.stock where sku = 'tea'",
        ),
        (
            "sold without a hold",
            &["stock_conserved"],
            "update shop.stock set available = available - 1, sold = sold + 1 where warehouse = 'south'",
        ),
        (
            "cancelled before its due time",
            &["early"],
            "update shop.orders set pay_deadline = cancelled_at + interval '1 microsecond' where status = 'cancelled'",
        ),
        (
            "cancelled 31 s after its due time",
            &["late"],
            "update shop.orders
             set placed_at = placed_at - interval '1 h', reopened_at = null,
                 pay_deadline = cancelled_at - interval '31 s'
             where status = 'cancelled'",
        ),
        (
            "a paid order cancelled",
            &["cancelled_after_paid", "paid_but_not_sold"],
            "alter table shop.orders drop constraint orders_paid;
             update shop.orders set status = 'cancelled', cancelled_at = clock_timestamp(), cancelled_by = 'x',
                 cancel_reason = 'buyer' where status = 'paid'",
        ),
        (
            "stock of a paid order given back",
            &["cancelled_after_paid", "paid_but_not_sold", "stock_conserved"],
            "update shop.hold set state = 'released' where state = 'sold';
             insert into shop.ledger (hold_id, hold_generation, direction, quantity, command_id)
             select h.hold_id, 1, 'release', h.quantity, 'x' from shop.hold h
             join shop.orders o using (tenant, order_id) where o.status = 'paid'",
        ),
        (
            "a cancelled order paid",
            &["paid_after_cancelled"],
            "alter table shop.orders drop constraint orders_paid;
             update shop.orders set paid_at = clock_timestamp() where status = 'cancelled'",
        ),
        (
            "a paid order whose stock is not sold",
            &["stock_conserved", "paid_but_not_sold"],
            "update shop.hold set state = 'open' where state = 'sold'",
        ),
        (
            "a hold left open",
            &["hold_left_open"],
            "update shop.orders set status = 'cancelled', cancelled_at = clock_timestamp() - interval '31 s',
                 cancelled_by = 'x', cancel_reason = 'buyer' where status = 'awaiting_payment'",
        ),
        (
            "an order nobody cancelled",
            &["lost"],
            "update shop.orders set placed_at = placed_at - interval '1 h', pay_deadline = now() - interval '31 s'
             where status = 'awaiting_payment'",
        ),
        (
            "a deadline that a human has to look at",
            &[],
            "update shop.orders set placed_at = placed_at - interval '1 h', pay_deadline = now() - interval '31 s',
                 needs_attention = true
             where status = 'awaiting_payment'",
        ),
    ];
    for (what, expected, corrupt) in corruptions {
        let (shop, ..) = with_history().await;
        shop.execute(corrupt).await;
        let found = violated(&shop).await;
        let ids: Vec<&str> = found.iter().map(|check| check.id.as_str()).collect();
        let mut expected = expected.to_vec();
        expected.sort_by_key(|id| ids.iter().position(|found| found == id));
        assert_eq!(ids, expected, "{what}: {found:#?}");
        for check in &found {
            assert_eq!(check.rows.len() as i64, check.violations.min(20), "{what}");
            assert!(
                check.violations > 0 && check.violations <= check.checked + 1,
                "{what}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_database_itself_refuses_the_worst() {
    let (shop, ..) = with_history().await;
    let refused = [
        "update shop.ledger set quantity = 0",
        "delete from shop.ledger",
        "truncate shop.supply",
        "update shop.orders set status = 'cancelled', cancelled_at = now(), cancelled_by = 'x', cancel_reason = 'y'
         where status = 'paid'",
        "update shop.orders set status = 'paid', paid_at = now() where status = 'cancelled'",
        "update shop.stock set available = -1",
        "insert into shop.ledger (hold_id, hold_generation, direction, quantity, command_id)
         select hold_id, hold_generation, 'release', quantity, 'x' from shop.hold where state = 'released'",
    ];
    for sql in refused {
        let outcome = sqlx::raw_sql(sql).execute(&shop.pool).await;
        assert!(outcome.is_err(), "{sql}");
    }
    shop.is_sound().await;
}
