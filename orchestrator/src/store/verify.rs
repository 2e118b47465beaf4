//! What `lapse verify` recomputes from the coordinator's own tables, at one moment.
//!
//! For: operators, and every test that ends by asking whether anything was lost. Relies on nothing that the running
//! coordinator keeps in memory. Never: repairs.

use std::collections::HashMap;

use lapse_sagas::definition::Body;
use serde::Serialize;
use serde_json::{Value, json};
use sqlx::PgConnection;

use self::histories::Histories;
use super::Error;
use super::db::{Abort, Db};

mod histories;
pub mod retries;

/// So many examples per check.
const MAX_ROWS: usize = 20;

/// The result of one check.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Its name: stable, other programs rely on it.
    pub id: &'static str,
    /// No violation.
    pub ok: bool,
    /// How many things were looked at; a check with 0 says nothing.
    pub checked: i64,
    /// How many of them are wrong.
    pub violations: i64,
    /// The first 20.
    pub rows: Vec<Value>,
}

impl Check {
    fn new(id: &'static str, checked: i64, mut rows: Vec<Value>) -> Check {
        let violations = i64::try_from(rows.len()).unwrap_or(i64::MAX);
        rows.truncate(MAX_ROWS);
        Check {
            id,
            ok: violations == 0,
            checked,
            violations,
            rows,
        }
    }
}

/// All checks, on the views pool, in one snapshot.
///
/// # Errors
/// As Postgres says.
pub async fn verify(db: &Db) -> Result<Vec<Check>, Error> {
    db.read(|tx| {
        Box::pin(async move {
            sqlx::query!("set local statement_timeout = '15min'")
                .execute(&mut *tx)
                .await?;
            let mut checks = vec![
                doubled_saga(tx).await?,
                forgotten(tx).await?,
                alert_missing(tx).await?,
                outbox_stuck(tx).await?,
                rollup_mismatch(tx).await?,
            ];
            checks.extend(histories(tx).await?);
            Ok(checks)
        })
    })
    .await
}

/// Every saga is the one of its key.
async fn doubled_saga(tx: &mut PgConnection) -> Result<Check, Abort> {
    let checked = sqlx::query_scalar!(r#"select count(*) as "n!" from lapse.saga"#)
        .fetch_one(&mut *tx)
        .await?;
    let rows = sqlx::query!(
        "select s.saga_id, s.tenant, s.definition, s.business_key, s.generation, k.saga_id as \"key_saga_id?\"
         from lapse.saga as s
         left join lapse.saga_key as k on k.business_key = s.business_key and k.tenant = s.tenant
           and k.definition = s.definition and k.generation = s.generation
         where k.saga_id is distinct from s.saga_id"
    );
    let rows = rows.fetch_all(tx).await?.into_iter().map(|row| {
        json!({ "saga_id": row.saga_id, "tenant": row.tenant, "definition": row.definition, "order_id": row.business_key,
            "generation": row.generation, "saga_of_the_key": row.key_saga_id })
    });
    Ok(Check::new("doubled_saga", checked, rows.collect()))
}

/// A live saga wakes up; a parked one has an alert that somebody has acknowledged or will hear again.
async fn forgotten(tx: &mut PgConnection) -> Result<Check, Abort> {
    let checked = sqlx::query_scalar!(
        r#"select count(*) as "n!" from lapse.saga where state in ('running', 'compensating', 'parked')"#
    );
    let checked = checked.fetch_one(&mut *tx).await?;
    let rows = sqlx::query!(
        "select s.saga_id, s.state, s.step, s.phase, s.wake_at from lapse.saga as s
         where (s.state in ('running', 'compensating') and s.wake_at is null)
           or s.wake_at < now() - interval '60 seconds'
           or (s.state = 'parked' and not exists (
             select from lapse.alert_member as m join lapse.alert as a on a.fingerprint = m.fingerprint
             where m.saga_id = s.saga_id and m.settled_at is null and a.state in ('open', 'acknowledged')))"
    );
    let rows = rows.fetch_all(tx).await?.into_iter().map(|row| {
        json!({ "saga_id": row.saga_id, "state": row.state, "step": row.step, "phase": row.phase, "wake_at": row.wake_at })
    });
    Ok(Check::new("forgotten", checked, rows.collect()))
}

/// Parked and compensated sagas have raised an alert.
async fn alert_missing(tx: &mut PgConnection) -> Result<Check, Abort> {
    let checked = sqlx::query_scalar!(
        r#"select count(*) as "n!" from lapse.saga where state in ('parked', 'compensated')"#
    );
    let checked = checked.fetch_one(&mut *tx).await?;
    let rows = sqlx::query!(
        "select s.saga_id, s.state, s.step from lapse.saga as s
         where s.state in ('parked', 'compensated')
           and not exists (select from lapse.alert_member as m where m.saga_id = s.saga_id)"
    );
    let rows = rows.fetch_all(tx).await?.into_iter();
    let rows =
        rows.map(|row| json!({ "saga_id": row.saga_id, "state": row.state, "step": row.step }));
    Ok(Check::new("alert_missing", checked, rows.collect()))
}

/// Messages leave.
async fn outbox_stuck(tx: &mut PgConnection) -> Result<Check, Abort> {
    let checked = sqlx::query_scalar!(r#"select count(*) as "n!" from lapse.outbox"#)
        .fetch_one(&mut *tx)
        .await?;
    let rows = sqlx::query!(
        "select id, topic, key, created_at from lapse.outbox where created_at < now() - interval '60 seconds' order by id"
    );
    let rows = rows.fetch_all(tx).await?.into_iter();
    let rows = rows.map(|row| json!({ "id": row.id, "topic": row.topic, "key": row.key, "created_at": row.created_at }));
    Ok(Check::new("outbox_stuck", checked, rows.collect()))
}

/// The counters say what the tables say. Holds as long as no partition was dropped.
async fn rollup_mismatch(tx: &mut PgConnection) -> Result<Check, Abort> {
    let counters = sqlx::query!(
        r#"select counter, sum(n)::bigint as "n!" from lapse.rollup_minute group by counter"#
    );
    let counters: HashMap<String, i64> = counters
        .fetch_all(&mut *tx)
        .await?
        .into_iter()
        .map(|row| (row.counter, row.n))
        .collect();
    let counter = |name: &str| counters.get(name).copied().unwrap_or(0);
    let states = sqlx::query!(r#"select state, count(*) as "n!" from lapse.saga group by state"#);
    let states: HashMap<String, i64> = states
        .fetch_all(&mut *tx)
        .await?
        .into_iter()
        .map(|row| (row.state, row.n))
        .collect();
    let state = |name: &str| states.get(name).copied().unwrap_or(0);
    let other = sqlx::query!(
        r#"select (select count(*) from lapse.dead_letter) as "dead_letters!",
             (select count(*) from lapse.stale_reply) as "stale_replies!""#
    );
    let other = other.fetch_one(tx).await?;

    let at_rest =
        counter("completed") + counter("skipped") + counter("compensated") + counter("parked");
    let pairs = [
        ("started", counter("started"), states.values().sum()),
        ("completed", counter("completed"), state("completed")),
        ("skipped", counter("skipped"), state("skipped")),
        (
            "live",
            counter("started") + counter("resumed") - at_rest,
            state("running") + state("compensating"),
        ),
        (
            "compensated_parked_or_resolved",
            counter("compensated") + counter("parked") - counter("resumed"),
            state("compensated") + state("parked") + state("resolved"),
        ),
        ("dead_letter", counter("dead_letter"), other.dead_letters),
        ("stale_reply", counter("stale_reply"), other.stale_replies),
    ];
    let checked = pairs
        .iter()
        .filter(|(_, counted, rows)| *counted != 0 || *rows != 0)
        .count();
    let wrong = pairs.iter().filter(|(_, counted, rows)| counted != rows);
    let wrong = wrong
        .map(|(name, counted, rows)| json!({ "counter": name, "counted": counted, "rows": rows }));
    Ok(Check::new(
        "rollup_mismatch",
        i64::try_from(checked).unwrap_or(i64::MAX),
        wrong.collect(),
    ))
}

/// `history_gap` and `attempts_over_policy`, from one reading of all histories.
async fn histories(tx: &mut PgConnection) -> Result<[Check; 2], Abort> {
    let rows = sqlx::query!(r#"select hash, body::text as "body!" from lapse.definition"#)
        .fetch_all(&mut *tx)
        .await?;
    let bodies: HashMap<String, Body> = rows
        .into_iter()
        .filter_map(|row| Some((row.hash, serde_json::from_str(&row.body).ok()?)))
        .collect();
    Histories::new(bodies).read(tx).await
}
