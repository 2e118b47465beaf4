//! What only Postgres can break: locks, checks, partitions.

use chrono::{Days, NaiveDate};
use lapse::store::db::Db;
use lapse::store::pg::PgStore;
use lapse::store::{Error, Moved, Start, Started, Store, Which, schema};
use lapse_sagas::SagaId;

use super::builders::*;
use super::subject::InPostgres;
use crate::support::relay::{Relay, in_silence};

#[tokio::test]
async fn a_live_row_without_a_wake_up_time_is_refused() {
    let subject = InPostgres::create().await;
    one(&subject.store, "o-1").await;

    for sql in [
        "update lapse.saga set wake_at = null",
        "update lapse.saga set state = 'completed'",
    ] {
        let error = sqlx::query(sql)
            .execute(&subject.pool)
            .await
            .expect_err("refused");
        assert_eq!(
            error
                .as_database_error()
                .and_then(|error| error.constraint()),
            Some("live_rows_wake_up")
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_in_opposite_order_do_not_deadlock() {
    let subject = InPostgres::create().await;
    let sagas = started(&subject.store, "o", 1_000).await;
    let now = subject.store.now().await.unwrap();

    for round in 0..5 {
        let mut batch: Vec<_> = sagas
            .iter()
            .map(|saga| {
                let mut moved = moved(saga, sending("first"), now);
                moved.saga.version += round;
                moved
            })
            .collect();
        let forwards = subject.store.record(batch.clone());
        batch.reverse();
        let backwards = subject.store.record(batch);
        let ids = || sagas.iter().map(|saga| saga.id).collect::<Vec<_>>();
        let locked = subject
            .store
            .revise(Which::Ids(ids().into_iter().rev().collect()), leave());

        let (forwards, backwards, locked) = tokio::join!(forwards, backwards, locked);

        let stored = |moved: Vec<Moved>| {
            moved
                .iter()
                .filter(|moved| matches!(moved, Moved::Stored(_)))
                .count()
        };
        assert_eq!(
            stored(forwards.unwrap()) + stored(backwards.unwrap()),
            1_000
        );
        assert_eq!(locked.unwrap().len(), 1_000);
    }
    assert_eq!(
        subject
            .number("select deadlocks from pg_stat_database where datname = current_database()")
            .await,
        0
    );
    assert_eq!(subject.db.repeats(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starts_of_the_same_orders_in_opposite_order_do_not_deadlock() {
    let subject = InPostgres::create().await;
    let now = subject.store.now().await.unwrap();
    let batch = || {
        (0..1_000)
            .map(|n| start(&format!("o-{n}"), now))
            .collect::<Vec<_>>()
    };
    let mut reversed = batch();
    reversed.reverse();

    let (a, b) = tokio::join!(
        patient(&subject.store, batch()),
        patient(&subject.store, reversed)
    );

    let new = |started: Vec<Started>| {
        started
            .iter()
            .filter(|started| matches!(started, Started::New(_)))
            .count()
    };
    assert_eq!(new(a) + new(b), 1_000);
    assert_eq!(subject.db.repeats(), 0);
}

/// Who waits longer than a second for the other batch's keys is told so, and asks again.
async fn patient(store: &PgStore, batch: Vec<Start>) -> Vec<Started> {
    loop {
        match store.start(batch.clone()).await {
            Err(Error::Slow(_)) => {}
            result => return result.unwrap(),
        }
    }
}

#[tokio::test]
async fn a_transaction_that_lost_a_deadlock_is_repeated() {
    let subject = InPostgres::create().await;
    let lock = |first: i64, second: i64| {
        subject.db.tx(move |tx| {
            Box::pin(async move {
                sqlx::query("select pg_advisory_xact_lock($1)")
                    .bind(first)
                    .execute(&mut *tx)
                    .await?;
                sqlx::query("select pg_sleep(0.05)")
                    .execute(&mut *tx)
                    .await?;
                sqlx::query("set local lock_timeout = '10s'")
                    .execute(&mut *tx)
                    .await?;
                sqlx::query("select pg_advisory_xact_lock($1)")
                    .bind(second)
                    .execute(tx)
                    .await?;
                Ok(())
            })
        })
    };

    // On a busy machine one may be through before the other has begun.
    for _ in 0..50 {
        let (a, b) = tokio::join!(lock(1, 2), lock(2, 1));
        a.and(b).expect("both in the end");
        if subject.db.repeats() >= 1 {
            return;
        }
    }
    panic!("no deadlock came about: this test shows nothing");
}

#[tokio::test]
async fn a_row_locked_too_long_is_slow_and_an_unreachable_server_is_unreachable() {
    let subject = InPostgres::create().await;
    let saga = one(&subject.store, "o-1").await;
    let mut other = subject.pool.acquire().await.unwrap();
    sqlx::query("begin").execute(&mut *other).await.unwrap();
    sqlx::query("select from lapse.saga for update")
        .execute(&mut *other)
        .await
        .unwrap();

    let locked = subject
        .store
        .revise(Which::Ids(vec![saga.id]), leave())
        .await
        .unwrap_err();
    let skipped = subject
        .store
        .revise(Which::Due { limit: 10 }, leave())
        .await
        .unwrap();
    assert!(matches!(locked, Error::Slow(_)), "{locked}");
    assert_eq!(skipped, []);

    let nowhere = subject.database.options.clone().port(1);
    let error = PgStore::new(Db::open(nowhere, 1, 1))
        .now()
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error}");
}

#[tokio::test]
async fn partitions_are_made_by_many_at_once_and_for_a_saga_of_any_day() {
    let subject = InPostgres::create().await;
    let today = subject.store.now().await.unwrap().date_naive();
    let later: NaiveDate = today.checked_add_days(Days::new(30)).unwrap();
    let ensure = || schema::ensure_partitions(&subject.db, later);
    let (a, b, c) = tokio::join!(ensure(), ensure(), ensure());
    a.and(b).and(c).expect("all succeed");

    let mut far = start("o-1", subject.store.now().await.unwrap());
    far.state.saga_id = SagaId(uuid::Uuid::from_u128(
        0x0200_0000_0000_7000_8000_0000_0000_0001,
    ));
    let far = new_sagas(subject.store.start(vec![far]).await.unwrap()).remove(0);

    let far = happens(&subject.store, &far, sending("first")).await;
    let revised = subject
        .store
        .revise(Which::Ids(vec![far.id]), leave())
        .await
        .unwrap();
    assert_eq!(revised[0].saga, far);
    let days = "select count(*) from pg_inherits where inhparent = 'lapse.saga'::regclass";
    assert_eq!(subject.number(days).await, 9 + 9 + 1);
}

#[tokio::test]
async fn many_coordinators_may_migrate_at_once() {
    let database = crate::database::TestDatabase::create().await;
    let migrate = || async { schema::migrate(&Db::open(database.options.clone(), 1, 1)).await };
    let (a, b, c) = tokio::join!(migrate(), migrate(), migrate());
    a.and(b).and(c).expect("all succeed");
}

#[tokio::test]
async fn a_state_that_is_not_understood_is_set_aside_and_the_others_go_on() {
    let subject = InPostgres::create().await;
    let sagas = started(&subject.store, "o", 3).await;
    subject
        .run("update lapse.saga set wake_at = now() - interval '1 second'")
        .await;
    sqlx::query("update lapse.saga set body = '{\"newer\": true}', wake_at = now() - interval '1 minute' where saga_id = $1")
        .bind(sagas[1].id.0)
        .execute(&subject.pool)
        .await
        .unwrap();

    let first = subject
        .store
        .revise(Which::Due { limit: 1 }, leave())
        .await
        .unwrap();
    let rest = subject
        .store
        .revise(Which::Due { limit: 10 }, leave())
        .await
        .unwrap();

    assert_eq!((first.len(), rest.len()), (0, 2));
}

#[tokio::test]
async fn a_server_that_falls_silent_is_given_up_and_its_connection_with_it() {
    let subject = InPostgres::create().await;
    let server = &subject.database.options;
    let server = format!("{}:{}", server.get_host(), server.get_port());
    let server = server.parse().expect("an address");
    let relay = Relay::to(server);
    let options = subject.database.options.clone();
    let db = Db::open(options.host("127.0.0.1").port(relay.port), 1, 1);
    let store = PgStore::new(db.clone());

    relay.fall_silent_behind("timestamp()");
    let asked = in_silence(&relay, store.now()).await;

    let error = asked.expect("it is given up").expect_err("it is silent");
    assert!(matches!(error, Error::Unreachable(_)), "{error}");
}
