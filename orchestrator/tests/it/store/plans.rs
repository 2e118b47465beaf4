//! Plans: rows are looked up by key, also where the planner has no statistics.

use std::time::Duration;

use lapse::store::{Store, Which};
use sqlx::Row;

use super::builders::*;
use super::subject::InPostgres;

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
