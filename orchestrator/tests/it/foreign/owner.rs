//! An order table is read completely, by its own clock, and what doesn't fit is told in words.

use std::collections::HashSet;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use lapse::config::{DueUnit, OrderOwner};
use lapse::foreign::SqlOwner;
use lapse_participants::kit::{CallError, OrderKey, OrderOwner as _, Overdue};
use lapse_sagas::Span;
use sqlx::Executor;

use super::shops::{FIRST_ID, MariaShop, PostgresShop};
use crate::support::live::mysql_or_left_out;
use crate::support::relay::{Relay, in_silence};
use crate::support::world::order;

const ROWS: usize = 50_000;
const PAGE: u32 = 500;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_mysql_table_is_paged_without_gaps_or_repeats_while_rows_change() {
    let name = concat!(
        module_path!(),
        "::a_large_mysql_table_is_paged_without_gaps_or_repeats_while_rows_change"
    );
    let Some(server) = mysql_or_left_out(name) else {
        return;
    };
    let shop = MariaShop::open(&server).await;
    shop.place(&dues()).await;
    let owner = open(&shop.settings());

    let change = async || {
        let pay = "update t_order set status = 'PAID' where status = 'WAIT_PAY' and order_no like '%7' order by order_no desc limit 600";
        sqlx::query(pay).execute(&shop.pool).await.unwrap();
    };
    let seen = pages(&owner, change).await;

    let unpaid = "select order_no from t_order where status = 'WAIT_PAY'";
    let unpaid: Vec<String> = sqlx::query_scalar(unpaid)
        .fetch_all(&shop.pool)
        .await
        .unwrap();
    complete(&seen, &unpaid);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_postgres_table_is_paged_without_gaps_or_repeats_while_rows_change() {
    let shop = PostgresShop::open().await;
    shop.place(&dues()).await;
    let owner = open(&shop.settings());

    let change = async || {
        let pay = "update trade.orders set state = 20 where id in
                     (select id from trade.orders where state = 10 and id % 10 = 7 order by id desc limit 600)";
        sqlx::query(pay).execute(&shop.pool).await.unwrap();
    };
    let seen = pages(&owner, change).await;

    let unpaid = "select id::text from trade.orders where state = 10";
    let unpaid: Vec<String> = sqlx::query_scalar(unpaid)
        .fetch_all(&shop.pool)
        .await
        .unwrap();
    complete(&seen, &unpaid);
}

#[tokio::test]
async fn what_is_due_later_is_listed_only_within_the_look_ahead() {
    let shop = PostgresShop::open().await;
    let in_a_minute = Utc::now() + TimeDelta::minutes(1);
    shop.place(&[in_a_minute]).await;
    let owner = open(&shop.settings());

    let listed = async |ahead| {
        let ahead = Duration::from_secs(ahead);
        owner.overdue_orders(None, ahead, PAGE).await.unwrap()
    };
    assert_eq!(listed(0).await, []);
    assert_eq!(listed(30).await, []);
    let orders = listed(90).await;
    assert_eq!(orders.len(), 1);
    assert!((orders[0].due_at - in_a_minute).abs() < TimeDelta::milliseconds(1));
    assert_eq!(orders[0].order_type, "normal");
}

#[tokio::test]
async fn an_order_is_paid_only_by_its_status_and_in_its_generation() {
    let shop = PostgresShop::open().await;
    shop.place(&[Utc::now(), Utc::now()]).await;
    let sql = "update trade.orders set state = 30 where id % 2 = 0 returning id::text";
    let paid: String = sqlx::query_scalar(sql).fetch_one(&shop.pool).await.unwrap();
    let owner = open(&shop.settings());

    let second = OrderKey {
        generation: 2,
        ..order(&paid)
    };
    let asked = [order(FIRST_ID), order(&paid), order("no number"), second];
    let answers = owner.paid(&asked).await.unwrap();

    assert_eq!(answers, [false, true, false, false]);
}

#[tokio::test]
async fn rows_that_the_filter_excludes_or_that_have_no_time_are_left_alone() {
    let shop = PostgresShop::open().await;
    shop.place(&[Utc::now() - TimeDelta::seconds(1), Utc::now()])
        .await;
    shop.pool
        .execute(
            "update trade.orders set deleted = true where id % 2 = 0;
             insert into trade.orders (created_at) values ('-infinity'), ('infinity'), ('1970-01-01')",
        )
        .await
        .unwrap();
    let owner = open(&shop.settings());

    let listed = owner.overdue_orders(None, Duration::ZERO, PAGE).await;

    let ids: Vec<String> = listed.unwrap().into_iter().map(id).collect();
    assert_eq!(ids, [FIRST_ID]);
}

#[tokio::test]
async fn rows_that_can_not_be_read_hide_none_behind_them() {
    let shop = PostgresShop::open().await;
    let first = Utc::now() - TimeDelta::hours(1);
    let dues: Vec<_> = (0..1_207)
        .map(|n| first + TimeDelta::seconds(n / 100))
        .collect();
    shop.place(&dues).await;
    shop.pool
        .execute(
            "alter table trade.orders add generation bigint not null default 1;
             update trade.orders set generation = 3000000000 where id < 9999999999980001 + 1200",
        )
        .await
        .unwrap();
    let mut settings = shop.settings();
    settings.columns.generation = "generation".to_owned();
    let owner = open(&settings);

    let seen = pages(&owner, async || ()).await;

    let last_seven: Vec<String> = (1_200..1_207)
        .map(|n| (9_999_999_999_980_001_u64 + n).to_string())
        .collect();
    assert_eq!(seen.into_iter().map(id).collect::<Vec<_>>(), last_seven);
}

#[tokio::test]
async fn ids_that_the_table_can_not_hold_are_not_paid_and_spoil_no_other() {
    let shop = PostgresShop::open().await;
    shop.pool
        .execute(
            "create table trade.small (id int primary key, state smallint, created_at timestamp);
             create table trade.uuids (id uuid primary key, state smallint, created_at timestamp);
             insert into trade.small values (5, 20, now());
             insert into trade.uuids values ('018f0000-0000-7000-8000-00000000000a', 20, now())",
        )
        .await
        .unwrap();
    let paid = async |table: &str, ids: &[&str]| {
        let mut settings = shop.settings();
        settings.table = table.to_owned();
        settings.filter = String::new();
        let asked: Vec<OrderKey> = ids.iter().map(|id| order(id)).collect();
        open(&settings).paid(&asked).await.unwrap()
    };

    let ids = [
        "5",
        "99999999999",
        "-2147483649",
        "18446744073709551615",
        "+5",
        "05",
        "x",
    ];
    let only_first = [true, false, false, false, false, false, false];
    assert_eq!(paid("trade.small", &ids).await, only_first);
    let ids = [
        "018f0000-0000-7000-8000-00000000000a",
        "018F0000-0000-7000-8000-00000000000A",
        "018f0000000070008000000000000000",
        "x",
    ];
    assert_eq!(paid("trade.uuids", &ids).await, only_first[..4]);
}

#[tokio::test]
async fn settings_that_do_not_fit_the_table_are_told_in_words() {
    let shop = PostgresShop::open().await;
    let wrong = async |change: fn(&mut OrderOwner)| {
        let mut settings = shop.settings();
        change(&mut settings);
        match open(&settings).check().await {
            Err(CallError::Configuration(words)) => words,
            other => panic!("{other:?}"),
        }
    };

    let words = wrong(|settings| settings.table = "trade.order".to_owned()).await;
    assert!(words.contains("there is no table trade.order"), "{words}");
    let words = wrong(|settings| settings.columns.status = "status".to_owned()).await;
    assert!(
        words.contains("order_owners.orders.columns.status"),
        "{words}"
    );
    assert!(words.contains("it has cancelled_at, created_at"), "{words}");
    let words = wrong(|settings| settings.time_zone = "CST+8".to_owned()).await;
    assert!(words.contains("name the one it is meant in"), "{words}");
    let words = wrong(|settings| settings.pending = vec!["WAIT_PAY".to_owned()]).await;
    assert!(words.contains("\"WAIT_PAY\" is no number"), "{words}");
    let words = wrong(|settings| settings.columns.created_at = "deleted".to_owned()).await;
    assert!(words.contains("is of type boolean"), "{words}");
    let words = wrong(|settings| settings.filter = "nonsense = 1".to_owned()).await;
    let begins = "order_owners.orders.filter, pending or paid: column \"nonsense\" does not exist";
    assert!(words.starts_with(begins), "{words}");
    assert!(!words.contains("at line"), "{words}");
    let words = wrong(|settings| {
        let (user, place) = settings.database_url.rsplit_once('@').expect("a user");
        let (server, _) = user.split_once("//").expect("a scheme");
        settings.database_url = format!("{server}//nobody:hushed@{place}");
    })
    .await;
    assert!(
        words.starts_with("order_owners.orders.database_url: "),
        "{words}"
    );
    assert!(
        !words.contains("at line") && !words.contains("hushed"),
        "{words}"
    );
}

#[tokio::test]
async fn due_times_in_numbers_are_read_in_their_unit() {
    let Some(server) = mysql_or_left_out(concat!(
        module_path!(),
        "::due_times_in_numbers_are_read_in_their_unit"
    )) else {
        return;
    };
    let shop = MariaShop::open(&server).await;
    shop.pool
        .execute(
            "create table numbered (id bigint unsigned primary key, state tinyint, due bigint, owner int,
               key (state, due))",
        )
        .await
        .unwrap();
    shop.pool
        .execute(
            "insert into numbered values (18446744073709551615, 1, 1700000000123, 7),
               (9, 1, 1700000000123, 7), (3, 1, 0, 7), (4, 1, null, 7), (5, 2, 1700000000000, 7)",
        )
        .await
        .unwrap();
    let mut settings = shop.settings();
    settings.table = "numbered".to_owned();
    settings.columns.order_id = "id".to_owned();
    settings.columns.status = "state".to_owned();
    settings.columns.due_at = "due".to_owned();
    settings.columns.tenant = "owner".to_owned();
    settings.columns.order_type = String::new();
    settings.pending = vec!["1".to_owned()];
    settings.paid = vec!["2".to_owned()];
    settings.due_unit = DueUnit::Ms;
    let owner = open(&settings);
    owner.check().await.unwrap();

    let first = owner.overdue_orders(None, Duration::ZERO, 1).await.unwrap();
    let second = owner.overdue_orders(first.first(), Duration::ZERO, 1).await;
    let second = second.unwrap();
    let third = owner
        .overdue_orders(second.first(), Duration::ZERO, 1)
        .await;

    assert_eq!(first[0].order.tenant, "7");
    assert_eq!(first[0].due_at.timestamp_millis(), 1_700_000_000_123);
    assert_eq!(first[0].order.order_id, "9");
    assert_eq!(second[0].order.order_id, "18446744073709551615");
    assert_eq!(third.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_without_a_tenant_is_the_one_s_of_the_settings() {
    let shop = PostgresShop::open().await;
    let due_at = Utc::now() - TimeDelta::minutes(1);
    shop.place(&[due_at; 4]).await;
    shop.pool
        .execute(
            r"alter table trade.orders add column merchant text;
              update trade.orders set merchant = (array['acme', '', 'zeta'])[id - 9999999999980000]",
        )
        .await
        .unwrap();
    let mut settings = shop.settings();
    settings.columns.tenant = "merchant".to_owned();
    settings.tenant = r"ho'u\se".to_owned();
    let mut tenants = by_ones(&open(&settings)).await;
    tenants.sort();
    assert_eq!(tenants, ["acme", r"ho'u\se", r"ho'u\se", "zeta"]);

    let name = concat!(
        module_path!(),
        "::an_order_without_a_tenant_is_the_one_s_of_the_settings"
    );
    let Some(server) = mysql_or_left_out(name) else {
        return;
    };
    let shop = MariaShop::open(&server).await;
    shop.place(&[due_at; 4]).await;
    let merchants = [
        "alter table t_order add column merchant varchar(16)",
        "update t_order set merchant = elt(cast(right(order_no, 1) as int) + 1, 'acme', '', 'zeta')",
    ];
    for sql in merchants {
        shop.pool.execute(sql).await.unwrap();
    }
    let mut settings = shop.settings();
    settings.columns.tenant = "merchant".to_owned();
    settings.tenant = r"ho'u\se".to_owned();
    let mut tenants = by_ones(&open(&settings)).await;
    tenants.sort();
    assert_eq!(tenants, ["acme", r"ho'u\se", r"ho'u\se", "zeta"]);
}

/// The tenants of all orders, one page each.
async fn by_ones(owner: &SqlOwner) -> Vec<String> {
    let (mut tenants, mut after) = (Vec::new(), None);
    loop {
        let page = owner.overdue_orders(after.as_ref(), Duration::ZERO, 1);
        let Some(order) = page.await.unwrap().pop() else {
            return tenants;
        };
        tenants.push(order.order.tenant.clone());
        assert!(tenants.len() < 10, "it goes on");
        after = Some(order);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_in_the_hour_that_spring_leaves_out_hide_no_order() {
    let shop = PostgresShop::open().await;
    shop.pool
        .execute(
            "insert into trade.orders (created_at)
             select t.at from (values (timestamp '2026-03-29 02:20'), ('2026-03-29 02:50'), ('2026-03-29 03:10'),
               ('2026-03-29 03:25')) as t (at), generate_series(1, 3)",
        )
        .await
        .unwrap();
    let owner = open(&shop.settings());

    let (mut seen, mut after) = (HashSet::new(), None);
    loop {
        let page = owner.overdue_orders(after.as_ref(), Duration::ZERO, 2);
        let page = page.await.unwrap();
        seen.extend(page.iter().map(|order| order.order.order_id.clone()));
        after = page.last().cloned();
        if after.is_none() {
            break;
        }
    }

    assert_eq!(seen.len(), 12);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seconds_that_are_taken_for_milliseconds_start_nothing() {
    let shop = PostgresShop::open().await;
    shop.pool
        .execute(
            "create table trade.numbered (id int primary key, state smallint, due bigint);
             insert into trade.numbered values (1, 10, 0), (2, 10, null),
               (3, 10, extract(epoch from now())::bigint), (4, 10, extract(epoch from now())::bigint * 1000)",
        )
        .await
        .unwrap();
    let mut settings = shop.settings();
    settings.table = "trade.numbered".to_owned();
    settings.columns.created_at = String::new();
    settings.columns.due_at = "due".to_owned();
    settings.pay_within = Span::from_secs(0);
    settings.time_zone = String::new();
    settings.filter = String::new();
    settings.due_unit = DueUnit::Ms;
    let owner = open(&settings);

    let page = owner.overdue_orders(None, Duration::from_secs(60), PAGE);

    let ids = page
        .await
        .unwrap()
        .into_iter()
        .map(|order| order.order.order_id);
    assert_eq!(ids.collect::<Vec<_>>(), ["4"]);
}

fn open(settings: &OrderOwner) -> SqlOwner {
    SqlOwner::open("orders", settings).expect("the URL is right")
}

/// All past, and many at one time.
fn dues() -> Vec<DateTime<Utc>> {
    let first = Utc::now() - TimeDelta::hours(2);
    (0..ROWS)
        .map(|n| first + TimeDelta::seconds(i64::try_from(n * 31 % 700).expect("small")))
        .collect()
}

/// Every page there is; between some of them `change` changes rows that may not have been seen yet.
async fn pages(owner: &SqlOwner, change: impl AsyncFn()) -> Vec<Overdue> {
    let mut seen: Vec<Overdue> = Vec::new();
    loop {
        let page = owner
            .overdue_orders(seen.last(), Duration::ZERO, PAGE)
            .await
            .unwrap();
        if page.is_empty() {
            return seen;
        }
        seen.extend(page);
        if seen.len().is_multiple_of(10 * PAGE as usize) {
            change().await;
        }
    }
}

fn complete(seen: &[Overdue], unpaid: &[String]) {
    assert!(seen.is_sorted_by_key(|order| order.due_at), "oldest first");
    let ids: HashSet<&str> = seen
        .iter()
        .map(|order| order.order.order_id.as_str())
        .collect();
    assert_eq!(ids.len(), seen.len(), "none twice");
    assert!(unpaid.len() < ROWS, "rows changed meanwhile");
    let missed = unpaid
        .iter()
        .filter(|id| !ids.contains(id.as_str()))
        .count();
    assert_eq!(missed, 0, "none is missed");
}

fn id(order: Overdue) -> String {
    order.order.order_id
}

#[tokio::test]
async fn a_server_that_falls_silent_is_given_up() {
    let shop = PostgresShop::open().await;
    let mut settings = shop.settings();
    let mut url = reqwest::Url::parse(&settings.database_url).expect("a URL");
    let server = (url.host_str().unwrap(), url.port().unwrap());
    let relay = Relay::to(format!("{}:{}", server.0, server.1).parse().unwrap());
    url.set_port(Some(relay.port)).expect("it has a port");
    settings.database_url = url.to_string();
    let owner = open(&settings);
    let ask = || owner.overdue_orders(None, Duration::ZERO, PAGE);
    ask().await.expect("it answers");

    relay.fall_silent_behind("orders");
    let asked = in_silence(&relay, ask()).await;

    let error = asked.expect("it is given up").expect_err("it is silent");
    assert!(matches!(error, CallError::Unanswered { .. }), "{error}");
}
