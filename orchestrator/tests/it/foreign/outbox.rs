//! An outbox of somebody else's reaches Kafka: everything, in order per key, whoever else relays and whatever can't be sent.

use std::collections::BTreeMap;
use std::time::Duration;

use lapse::foreign::outbox::{After, Outbox, Settings};
use lapse::kafka::plain::Plain;
use lapse::kafka::{self, topics};
use lapse::outbox_relay::OutboxRelay;
use lapse_sagas::Span;
use serde_json::Value;
use sqlx::mysql::MySqlConnectOptions;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Executor};

use super::shops::{MariaShop, PostgresShop};
use crate::support::live::{kafka_or_left_out, mysql_or_left_out};
use crate::support::topic;

const KEYS: i64 = 20;
const ROWS: i64 = 2_000;
/// A row of key 3 that no broker takes.
const POISON: i64 = 1_003;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_that_can_be_sent_reaches_kafka_in_order_from_postgres() {
    let name = concat!(
        module_path!(),
        "::everything_that_can_be_sent_reaches_kafka_in_order_from_postgres"
    );
    let Some(brokers) = kafka_or_left_out(name) else {
        return;
    };
    let url = PostgresShop::open().await.url;
    let create = "create table outbox (
        id bigint primary key, aggregatetype text not null, aggregateid text not null, type text not null,
        payload jsonb, created_at timestamptz not null default now())";
    let fill = "insert into outbox select n, $TOPIC, 'k' || n % 20, 'order.placed',
        jsonb_build_object('n', n, 'pad', case n when 1003 then repeat('x', 2000000) end)
        from generate_series(1, 2000) as t (n)";
    everything_that_can_be_sent_reaches_kafka_in_order(&brokers, &url, create, fill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_that_can_be_sent_reaches_kafka_in_order_from_mysql() {
    let name = concat!(
        module_path!(),
        "::everything_that_can_be_sent_reaches_kafka_in_order_from_mysql"
    );
    let (Some(brokers), Some(server)) = (kafka_or_left_out(name), mysql_or_left_out(name)) else {
        return;
    };
    let url = MariaShop::open(&server).await.url;
    let create = "create table outbox (
        id bigint primary key, aggregatetype varchar(255) not null, aggregateid varchar(255) not null,
        type varchar(255) not null, payload json, created_at timestamp(6) not null default current_timestamp(6))";
    let fill = "insert into outbox (id, aggregatetype, aggregateid, type, payload)
        select seq, $TOPIC, concat('k', seq % 20), 'order.placed',
          json_object('n', seq, 'pad', case seq when 1003 then repeat('x', 2000000) end)
        from seq_1_to_2000";
    everything_that_can_be_sent_reaches_kafka_in_order(&brokers, &url, create, fill).await;
}

async fn everything_that_can_be_sent_reaches_kafka_in_order(
    brokers: &str,
    url: &str,
    create: &str,
    fill: &str,
) {
    let settings = kafka(brokers).await;
    let topic = settings.topic("schedule");
    execute(url, create).await;
    execute(url, &fill.replace("$TOPIC", &format!("'{topic}'"))).await;
    let relay = || relay(&settings, url, After::Delete);

    let (one, other) = (relay(), relay());
    let (first, second) = tokio::join!(one.until_empty(), other.until_empty());
    let left = one.until_empty().await.unwrap().delivered;
    let sent = first.unwrap().delivered + second.unwrap().delivered + left;

    let behind_poison = (POISON..=ROWS).filter(|n| n % KEYS == POISON % KEYS);
    let behind_poison: Vec<i64> = behind_poison.collect();
    assert_eq!(sent, ROWS as usize - behind_poison.len());
    assert_eq!(
        numbers(url, "select id from outbox order by id").await,
        behind_poison
    );
    assert!(one.troubled() + other.troubled() > 0, "it is known why");
    let by_key = received(brokers, &topic).await;
    for (key, mut numbers) in by_key {
        // What was sent behind the row that failed, before that was known, comes again with it.
        let poisoned = numbers
            .iter()
            .position(|n| *n >= POISON && key == POISON % KEYS);
        numbers.truncate(poisoned.unwrap_or(numbers.len()));
        assert!(numbers.is_sorted(), "key {key}: {numbers:?}");
    }

    execute(url, &format!("delete from outbox where id = {POISON}")).await;
    let rest = relay().until_empty().await.unwrap();
    assert_eq!(rest.delivered, behind_poison.len() - 1);
    assert!(numbers(url, "select id from outbox").await.is_empty());
    let everything: usize = received(brokers, &topic)
        .await
        .into_values()
        .map(|mut numbers| {
            numbers.sort_unstable();
            numbers.dedup();
            numbers.len()
        })
        .sum();
    assert_eq!(everything, ROWS as usize - 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_a_missing_topic_wait_for_it_and_sent_rows_can_be_kept() {
    let name = concat!(
        module_path!(),
        "::rows_of_a_missing_topic_wait_for_it_and_sent_rows_can_be_kept"
    );
    let Some(brokers) = kafka_or_left_out(name) else {
        return;
    };
    let url = PostgresShop::open().await.url;
    let settings = kafka(&brokers).await;
    let topic = settings.topic("schedule");
    execute(
        &url,
        &format!(
            "create table outbox (
               id uuid primary key default gen_random_uuid(), aggregatetype text, aggregateid uuid, type text,
               payload bytea, created_at timestamp not null, published_at timestamptz);
             insert into outbox (aggregatetype, aggregateid, type, payload, created_at)
             select case n % 2 when 0 then '{topic}' else 'no such topic!' end, gen_random_uuid(), 't',
               convert_to(json_build_object('n', n)::text, 'UTF8'), '2026-02-14'::timestamp + n * interval '1 second'
             from generate_series(1, 100) as t (n)"
        ),
    )
    .await;
    let relay = relay(&settings, &url, After::Keep);

    let sent = relay.until_empty().await.unwrap();

    assert_eq!((sent.delivered, relay.troubled()), (50, 1));
    let count = "select count(*) from outbox where (published_at is null) = (aggregatetype = 'no such topic!')";
    assert_eq!(numbers(&url, count).await, [100]);
    let received: usize = received(&brokers, &topic)
        .await
        .values()
        .map(Vec::len)
        .sum();
    assert_eq!(received, 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_whose_headers_are_no_object_is_kept_and_only_its_key_waits() {
    let name = concat!(
        module_path!(),
        "::a_row_whose_headers_are_no_object_is_kept_and_only_its_key_waits"
    );
    let Some(brokers) = kafka_or_left_out(name) else {
        return;
    };
    let url = PostgresShop::open().await.url;
    let settings = kafka(&brokers).await;
    let topic = settings.topic("schedule");
    execute(
        &url,
        &format!(
            r#"create table outbox (id bigint primary key, aggregatetype text, aggregateid text, type text, payload text, headers text);
               insert into outbox select n, '{topic}', 'k' || n % 10, 't', json_build_object('n', n),
                 case n when 1 then '["x"]' when 2 then '7' when 3 then '{{"due":' when 4 then '""' when 5 then 'null'
                        when 6 then null when 7 then '{{}}' else '{{"due": "2026-02-14", "n": 1}}' end
               from generate_series(1, 20) as t (n)"#
        ),
    )
    .await;
    let relay = OutboxRelay::new(
        Outbox::open(Settings {
            headers: Some("headers".to_owned()),
            ..outbox(&url, After::Delete)
        })
        .unwrap(),
        Plain::new(&settings).unwrap(),
        Duration::from_secs(60),
    );

    let sent = relay.until_empty().await.unwrap();

    let left = numbers(&url, "select id from outbox order by id").await;
    assert_eq!(left, [1, 2, 3, 4, 11, 12, 13, 14]);
    assert_eq!((sent.delivered, relay.troubled()), (12, 4));
    let received: usize = received(&brokers, &topic)
        .await
        .values()
        .map(Vec::len)
        .sum();
    assert_eq!(received, 12);
}

/// Topics of the test's own.
async fn kafka(brokers: &str) -> kafka::Settings {
    let settings = kafka::Settings {
        prefix: format!("lapse-test-{}.", uuid::Uuid::now_v7().simple()),
        buckets: vec![Span::from_secs(5)],
        partitions: 2,
        replication: 1,
        ..kafka::Settings::new(brokers)
    };
    topics::create(&settings).await.unwrap();
    settings
}

fn relay(settings: &kafka::Settings, url: &str, after: After) -> OutboxRelay {
    let outbox = Outbox::open(outbox(url, after)).unwrap();
    let producer = Plain::new(settings).unwrap();
    OutboxRelay::new(outbox, producer, Duration::from_secs(60))
}

fn outbox(url: &str, after: After) -> Settings {
    Settings {
        url: url.to_owned(),
        table: "outbox".to_owned(),
        headers: None,
        after,
        batch: 300,
    }
}

/// The numbers that arrived, by key, in order.
async fn received(brokers: &str, topic: &str) -> BTreeMap<i64, Vec<i64>> {
    let mut by_key: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for message in topic::read(brokers, topic).await {
        let value: Value = serde_json::from_slice(&message.value).unwrap();
        let n = value["n"].as_i64().unwrap();
        by_key.entry(n % KEYS).or_default().push(n);
    }
    by_key
}

async fn execute(url: &str, sql: &str) {
    let sql = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
    if url.starts_with("mysql") {
        let options: MySqlConnectOptions = url.parse().unwrap();
        options.connect().await.unwrap().execute(sql).await.unwrap();
    } else {
        let options: PgConnectOptions = url.parse().unwrap();
        options.connect().await.unwrap().execute(sql).await.unwrap();
    }
}

async fn numbers(url: &str, sql: &str) -> Vec<i64> {
    let sql = AssertSqlSafe(sql.to_owned());
    if url.starts_with("mysql") {
        let options: MySqlConnectOptions = url.parse().unwrap();
        let mut connection = options.connect().await.unwrap();
        let rows = sqlx::query_scalar(sql).fetch_all(&mut connection).await;
        rows.unwrap()
    } else {
        let options: PgConnectOptions = url.parse().unwrap();
        let mut connection = options.connect().await.unwrap();
        let rows = sqlx::query_scalar(sql).fetch_all(&mut connection).await;
        rows.unwrap()
    }
}
