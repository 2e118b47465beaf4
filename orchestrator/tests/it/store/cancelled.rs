//! Nobody who gives up waiting can break a transaction: with `Pool::begin` of sqlx 0.9.0 this test loses rows.

use std::time::Duration;

use super::subject::InPostgres;

/// So many waiters must have given up; of 2,000, sqlx's own `begin` lost the writes of 8.
const CANCELLED: u64 = 2_000;
/// Tries at most: on a fast server few are slow enough to be cancelled.
const TRIES: i64 = 40_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_survive_thousands_of_cancelled_transactions_and_a_killed_connection() {
    let subject = InPostgres::create().await;
    subject
        .run("create table public.kept (n bigint primary key, kind text not null)")
        .await;
    let db = &subject.db;

    let mut acknowledged = 0;
    let mut given_up = 0;
    for n in 0..TRIES {
        if given_up == CANCELLED {
            break;
        }
        let patience = Duration::from_micros(20 + (n as u64 * 37) % 400);
        let doomed = db.tx(move |tx| {
            Box::pin(async move {
                sqlx::query("insert into public.kept values ($1, 'tx')")
                    .bind(n)
                    .execute(tx)
                    .await?;
                Ok(())
            })
        });
        given_up += u64::from(tokio::time::timeout(patience, doomed).await.is_err());
        if n % 10 == 0 {
            let insert = db.statement(move |connection| {
                Box::pin(async move {
                    sqlx::query("insert into public.kept values ($1, 'statement')")
                        .bind(-n - 1)
                        .execute(connection)
                        .await?;
                    Ok(())
                })
            });
            insert.await.expect("an acknowledged insert");
            acknowledged += 1;
        }
    }
    assert_eq!(
        given_up, CANCELLED,
        "too few were cancelled: this test shows nothing"
    );

    // Whatever was left open is lost now, and with it what was written into it.
    let in_transaction = "select count(*) from pg_stat_activity where datname = current_database()
        and application_name = 'lapse' and state like 'idle in transaction%' and state_change < now() - interval '100 ms'";
    assert_eq!(
        subject.number(in_transaction).await,
        0,
        "leaked transactions"
    );
    let killed = subject
        .number("select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database() and application_name = 'lapse'")
        .await;
    assert!(killed > 0);

    let kept = subject
        .number("select count(*) from public.kept where kind = 'statement'")
        .await;
    assert_eq!(kept, acknowledged, "lost acknowledged rows");
}

#[tokio::test]
async fn a_transaction_whose_waiter_went_away_is_finished_all_the_same() {
    let subject = InPostgres::create().await;
    subject
        .run("create table public.kept (n bigint primary key)")
        .await;

    let abandoned = subject.db.tx(|tx| {
        Box::pin(async move {
            sqlx::query("select pg_sleep(0.2)")
                .execute(&mut *tx)
                .await?;
            sqlx::query("insert into public.kept values (1)")
                .execute(tx)
                .await?;
            Ok(())
        })
    });
    tokio::time::timeout(Duration::from_millis(50), abandoned)
        .await
        .expect_err("it takes longer");

    tokio::time::timeout(Duration::from_secs(10), async {
        while subject.number("select count(*) from public.kept").await == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("it is committed");
}

#[tokio::test]
async fn a_killed_connection_is_replaced_before_anything_is_sent_on_it() {
    let subject = InPostgres::create().await;
    let insert = || {
        subject.db.tx(|tx| {
            Box::pin(async move {
                sqlx::query("select 1").execute(tx).await?;
                Ok(())
            })
        })
    };
    let (a, b) = tokio::join!(insert(), insert());
    a.and(b).expect("both connections are open");

    subject.number("select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database() and application_name = 'lapse'").await;

    insert().await.expect("it goes on with a new connection");
}
