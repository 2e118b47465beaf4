//! The one way to the database loses nothing, however its callers behave.

use std::time::Duration;

use lapse_participants::kit::{CallError, db};

use crate::testshop::TestShop;

/// 8 of 2,000 acknowledged rows were lost with sqlx 0.9.0 when `Pool::begin` was cancelled like this.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_gives_up_costs_nobody_an_acknowledged_write() {
    let shop = TestShop::open().await;
    shop.execute("create table shop.probe (id bigint primary key)")
        .await;
    let mut acknowledged = 0_i64;
    for turn in 0..1_000_u64 {
        let nothing = db::tx(&shop.pool, |connection| {
            Box::pin(async move {
                sqlx::query("select 1").execute(connection).await?;
                Ok::<_, sqlx::Error>(())
            })
        });
        let patience = Duration::from_micros(20 + turn * 7 % 400);
        // Given up or not: both happen.
        let _ = tokio::time::timeout(patience, nothing).await;
        let written = db::statement(&shop.pool, move |connection| {
            Box::pin(async move {
                let insert =
                    sqlx::query("insert into shop.probe (id) values ($1)").bind(turn as i64);
                insert.execute(connection).await?;
                Ok::<_, sqlx::Error>(())
            })
        });
        acknowledged += i64::from(written.await.is_ok());
    }
    sqlx::query(
        "select pg_terminate_backend(pid) from pg_stat_activity
         where datname = current_database() and pid <> pg_backend_pid()",
    )
    .fetch_all(&shop.pool)
    .await
    .expect("the other connections are cut");
    let mut left = None;
    while left.is_none() {
        // A connection that was cut answers with an error once.
        left = sqlx::query_scalar("select count(*) from shop.probe")
            .fetch_one(&shop.pool)
            .await
            .ok();
    }
    assert_eq!(left, Some(acknowledged));
    assert_eq!(acknowledged, 1_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_caller_gave_up_on_is_finished_all_the_same() {
    let shop = TestShop::open().await;
    let (started, mut starts) = tokio::sync::mpsc::channel::<()>(1);
    let (go, may_go) = tokio::sync::oneshot::channel::<()>();
    let work = db::tx(&shop.pool, move |connection| {
        Box::pin(async move {
            sqlx::query(
                "insert into shop.supply (sku, warehouse, quantity) values ('late', 'w', 1)",
            )
            .execute(connection)
            .await?;
            let _ = started.send(()).await;
            let _ = may_go.await;
            Ok::<_, sqlx::Error>(())
        })
    });
    let given_up = tokio::select! {
        result = work => result.is_err(),
        _ = starts.recv() => true,
    };
    assert!(given_up);
    go.send(()).expect("the work still waits");
    let committed = async {
        let count = "select count(*) from shop.supply where sku = 'late'";
        while sqlx::query_scalar::<_, i64>(count)
            .fetch_one(&shop.pool)
            .await
            .expect("it counts")
            == 0
        {
            tokio::task::yield_now().await;
        }
    };
    crate::testshop::in_time(committed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_rolls_back_and_says_what_may_be_done() {
    let shop = TestShop::open().await;
    let refused: Result<(), CallError> = db::tx(&shop.pool, |connection| {
        Box::pin(async move {
            sqlx::query(
                "insert into shop.supply (sku, warehouse, quantity) values ('gone', 'w', 1)",
            )
            .execute(&mut *connection)
            .await?;
            sqlx::query(
                "insert into shop.supply (sku, warehouse, quantity) values ('gone', 'w', -1)",
            )
            .execute(connection)
            .await?;
            Ok(())
        })
    })
    .await;
    assert!(matches!(refused, Err(CallError::Data(_))), "{refused:?}");
    let left: i64 = sqlx::query_scalar("select count(*) from shop.supply where sku = 'gone'")
        .fetch_one(&shop.pool)
        .await
        .expect("it counts");
    assert_eq!(left, 0);
    let unreachable = db::pool(
        "postgres://nobody@127.0.0.1:1/nowhere"
            .parse()
            .expect("a URL"),
        1,
    );
    let answer: Result<(), CallError> =
        db::statement(&unreachable, |_| Box::pin(async { Ok(()) })).await;
    assert!(
        matches!(answer, Err(CallError::Unreachable(_))),
        "{answer:?}"
    );
}
