//! What only Postgres can break: plans, locks, checks, partitions.

use std::sync::Arc;
use std::time::Duration;

use chrono::{Days, NaiveDate};
use lapse::store::pg::PgStore;
use lapse::store::verify::{Check, verify};
use lapse::store::{Error, Moved, Store, Which, schema};
use lapse_sagas::{Event, SagaId};
use sqlx::Row;

use super::builders::*;
use super::subject::InPostgres;

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

    let (a, b) = tokio::join!(subject.store.start(batch()), subject.store.start(reversed));

    let new = |started: Vec<lapse::store::Started>| {
        started
            .iter()
            .filter(|started| matches!(started, lapse::store::Started::New(_)))
            .count()
    };
    assert_eq!(new(a.unwrap()) + new(b.unwrap()), 1_000);
    assert_eq!(subject.db.repeats(), 0);
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

    let (a, b) = tokio::join!(lock(1, 2), lock(2, 1));

    a.and(b).expect("both in the end");
    assert!(subject.db.repeats() >= 1);
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
    let error = PgStore::new(lapse::store::db::Db::open(nowhere, 1))
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
    let migrate = || async {
        schema::migrate(&lapse::store::db::Db::open(database.options.clone(), 1)).await
    };
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

/// The statements of the hot path that look rows up, as they are sent.
const HOT: [(&str, &str); 5] = [
    ("start", include_str!("../../../src/store/pg/start.sql")),
    ("record", include_str!("../../../src/store/pg/record.sql")),
    (
        "lock_due",
        include_str!("../../../src/store/pg/lock_due.sql"),
    ),
    (
        "lock_ids",
        include_str!("../../../src/store/pg/lock_ids.sql"),
    ),
    (
        "lock_key",
        include_str!("../../../src/store/pg/lock_key.sql"),
    ),
];

#[tokio::test]
async fn hot_statements_are_planned_by_key_on_tables_without_statistics() {
    let subject = InPostgres::create().await;
    for (name, sql) in HOT {
        let plan = plan(&subject, sql).await;
        assert!(!plan.contains("Seq Scan"), "{name}:\n{plan}");
    }
    subject.run(MANY_ROWS).await;
    for (name, sql) in HOT {
        let plan = plan(&subject, sql).await;
        assert!(!plan.contains("Seq Scan"), "{name}:\n{plan}");
        assert!(
            !plan.contains("Hash Join") && !plan.contains("Merge Join"),
            "{name}:\n{plan}"
        );
        let conditions: Vec<&str> = plan
            .lines()
            .filter(|line| line.contains("Index Cond:"))
            .collect();
        assert_eq!(conditions.is_empty(), name == "start", "{name}:\n{plan}");
        let by_key = |line: &str| {
            ["saga_id = ", "wake_at <= ", "business_key = "]
                .iter()
                .any(|key| line.contains(key))
        };
        assert!(
            conditions.iter().all(|line| by_key(line)),
            "{name}:\n{plan}"
        );
    }
}

/// 30,000 rows for today, which nobody has analysed.
const MANY_ROWS: &str = "insert into lapse.saga
  select current_date, gen_random_uuid(), 1, 'cancel', 'hash', 'default', n::text, 1, 'normal', 'timeout', 1, 'running',
    null, 'first', 'do', 'taken', 1, now() + interval '1 hour', now(), '{}', 1, '', now(), now(), null
  from generate_series(1, 30000) as n";

/// How the hot pool does a statement for a batch of 1,000.
async fn plan(subject: &InPostgres, sql: &'static str) -> String {
    let work = subject.db.tx(move |tx| {
        Box::pin(async move {
            let prepare = sqlx::AssertSqlSafe(format!("prepare hot as {sql}"));
            sqlx::raw_sql(prepare).execute(&mut *tx).await?;
            let types: Vec<String> = sqlx::query_scalar(
                "select unnest(parameter_types)::text from pg_prepared_statements where name = 'hot'",
            )
            .fetch_all(&mut *tx)
            .await?;
            let arguments: Vec<String> = types.iter().map(|of| argument(of)).collect();
            let explain = format!("explain (costs off) execute hot({})", arguments.join(", "));
            let lines = sqlx::raw_sql(sqlx::AssertSqlSafe(explain)).fetch_all(&mut *tx).await?;
            sqlx::raw_sql("deallocate hot").execute(tx).await?;
            Ok(lines.iter().map(|line| line.get::<String, _>(0)).collect::<Vec<_>>().join("\n"))
        })
    });
    work.await.expect("explain")
}

fn argument(of: &str) -> String {
    let scalar = |of: &str| match of {
        "date" => "current_date".to_owned(),
        "uuid" => "gen_random_uuid()".to_owned(),
        "timestamp with time zone" => "now()".to_owned(),
        "bytea" => "''::bytea".to_owned(),
        "boolean" => "true".to_owned(),
        "text" => "'{}'::text".to_owned(),
        number => format!("1::{number}"),
    };
    match of.strip_suffix("[]") {
        Some("date") => "array[current_date]".to_owned(),
        Some(of) => format!("array_fill({}, array[1000])", scalar(of)),
        None => scalar(of),
    }
}

#[tokio::test]
async fn a_batch_reads_only_the_rows_it_touches_however_many_there_are() {
    let subject = InPostgres::create().await;
    let store = &subject.store;
    let batches: u32 = 20;
    for batch in 0..batches {
        let sagas = started(store, &format!("batch-{batch}"), 500).await;
        let now = store.now().await.unwrap();
        store
            .record(
                sagas
                    .iter()
                    .map(|saga| moved(saga, sending("first"), now))
                    .collect(),
            )
            .await
            .unwrap();
        let ids = sagas.iter().map(|saga| saga.id).collect();
        store
            .revise(Which::Ids(ids), by(|saga| replied(saga, done())))
            .await
            .unwrap();
    }
    let rows = i64::from(batches) * 500;

    // The server publishes its counts some time after a transaction.
    let updated = "select coalesce(sum(n_tup_upd), 0)::bigint from pg_stat_user_tables where relname like 'saga_2%'";
    tokio::time::timeout(Duration::from_secs(30), async {
        while subject.number(updated).await < 2 * rows {
            store.now().await.unwrap();
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the server counts every update");

    let seq = "select coalesce(sum(seq_tup_read), 0)::bigint from pg_stat_user_tables where schemaname = 'lapse'";
    let index = "select coalesce(sum(idx_tup_read), 0)::bigint from pg_stat_user_indexes where schemaname = 'lapse'
      and relname ~ '^(saga|history|saga_key)_?2?'";
    assert_eq!(subject.number(seq).await, 0);
    // By key: once to update, once to lock, once to update again, once for the event; dead versions of a row are met too.
    let read = subject.number(index).await;
    assert!(
        read < 12 * rows,
        "{read} index entries were read for {rows} sagas"
    );
}

async fn check(subject: &InPostgres, id: &str) -> Check {
    let checks = verify(&subject.db).await.unwrap();
    checks.into_iter().find(|check| check.id == id).unwrap()
}

/// Something of everything: live, completed, skipped, compensated, retried, resolved, a dead letter, a stale reply.
async fn lived_in() -> InPostgres {
    let subject = InPostgres::create().await;
    let store = &subject.store;
    store.deploy(&[cancel()]).await.unwrap();
    started(store, "live", 3).await;
    let saga = one(store, "completed").await;
    let saga = answered(store, &saga, done()).await;
    answered(store, &saga, done()).await;
    let saga = one(store, "skipped").await;
    answered(
        store,
        &saga,
        lapse_sagas::Outcome::NotApplicable {
            reason: "paid".to_owned(),
        },
    )
    .await;
    compensated(store, "compensated", "timeout").await;
    let saga = compensated(store, "retried", "timeout").await;
    let retry = Event::Retry {
        actor: "ann".to_owned(),
        reason: "again".to_owned(),
    };
    let saga = happens(store, &saga, retry).await;
    let saga = answered(store, &saga, failed("timeout")).await;
    happens(
        store,
        &saga,
        Event::Resolve {
            actor: "ann".to_owned(),
            reason: "by hand".to_owned(),
        },
    )
    .await;
    let saga = one(store, "parked").await;
    answered(store, &saga, lapse_sagas::Outcome::Expired).await;
    subject
}

#[tokio::test]
async fn verify_finds_nothing_where_nothing_is_wrong_and_says_what_it_looked_at() {
    let subject = lived_in().await;

    let checks = verify(&subject.db).await.unwrap();

    for check in &checks {
        assert!(check.ok && check.violations == 0, "{check:?}");
        assert!(check.checked > 0, "{check:?}");
    }
    assert_eq!(checks.len(), 7);
    let empty = InPostgres::create().await;
    assert!(
        verify(&empty.db)
            .await
            .unwrap()
            .iter()
            .all(|check| check.ok && check.checked == 0)
    );
}

#[tokio::test]
async fn verify_finds_every_kind_of_damage() {
    let damages = [
        (
            "doubled_saga",
            "update lapse.saga set business_key = 'live-0' where business_key = 'live-1'",
        ),
        (
            "forgotten",
            "update lapse.saga set wake_at = now() - interval '2 minutes' where business_key = 'live-0'",
        ),
        (
            "forgotten",
            "update lapse.alert set state = 'resolved', next_send_at = null where kind = 'parked'",
        ),
        (
            "alert_missing",
            "delete from lapse.alert_member where fingerprint in (select fingerprint from lapse.alert where kind = 'parked')",
        ),
        (
            "history_gap",
            "delete from lapse.history where seq = 2 and saga_id = (select saga_id from lapse.saga where state = 'completed')",
        ),
        (
            "history_gap",
            "update lapse.history set entry = replace(entry, 'live-2', 'live-9') where entry like '%live-2%'",
        ),
        (
            "history_gap",
            "update lapse.saga set history_seq = history_seq + 1 where business_key = 'live-0'",
        ),
        (
            "outbox_stuck",
            "update lapse.outbox set created_at = now() - interval '2 minutes'",
        ),
        (
            "rollup_mismatch",
            "update lapse.rollup_minute set n = n + 1 where counter = 'completed'",
        ),
    ];
    for (id, sql) in damages {
        let subject = lived_in().await;
        assert!(subject.run(sql).await > 0, "{sql}");

        let found = check(&subject, id).await;

        assert!(
            !found.ok && found.violations > 0 && !found.rows.is_empty(),
            "{id} did not find: {sql}"
        );
    }
}

#[tokio::test]
async fn verify_finds_attempts_over_the_definition_s_policy() {
    let subject = lived_in().await;
    let store = &subject.store;
    let saga = one(store, "o").await;
    let sent = happens(store, &saga, sending("first")).await;
    let now = store.now().await.unwrap();
    let lapse_sagas::Effect::History(entry) = moved(&sent, replied(&sent, failed("again")), now)
        .effects
        .into_iter()
        .find(|effect| matches!(effect, lapse_sagas::Effect::History(_)))
        .unwrap()
    else {
        unreachable!()
    };
    let twice = vec![
        lapse_sagas::Effect::History(entry.clone()),
        lapse_sagas::Effect::History(entry),
    ];
    let forged: Arc<dyn Store> = Arc::new(store.clone());
    forged.record(vec![touched(&sent, twice)]).await.unwrap();

    let found = check(&subject, "attempts_over_policy").await;

    assert_eq!(
        (
            found.violations,
            &found.rows[0]["attempts"],
            &found.rows[0]["allowed"]
        ),
        (1, &2.into(), &1.into())
    );
    assert!(check(&subject, "history_gap").await.ok);
}
