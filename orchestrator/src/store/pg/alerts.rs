//! Alerts: one row per fingerprint, locked in order of fingerprints; its members are rows of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lapse_participants::kit::Overdue;
use lapse_sagas::{SagaId, Timestamp};
use sqlx::PgConnection;
use uuid::Uuid;

use super::messages;
use crate::store::consequence::{
    Raised, alert_message, down_alert, down_fingerprint, unresolved_alert,
};
use crate::store::db::Db;
use crate::store::webhooks::{self, News, Route};
use crate::store::{AlertDue, Error, ParticipantDown};

/// Ends all memberships of the settled sagas, then makes each raised one's saga a member.
pub async fn change(
    tx: &mut PgConnection,
    settled: &[Uuid],
    raised: Vec<(SagaId, Raised)>,
    at: Timestamp,
) -> Result<(), sqlx::Error> {
    if !settled.is_empty() {
        let fingerprints: Vec<String> = raised
            .iter()
            .map(|(_, raised)| raised.fingerprint.clone())
            .collect();
        lock(tx, settled, &fingerprints).await?;
        sqlx::query_file!("src/store/pg/settle_alerts.sql", settled, at)
            .execute(&mut *tx)
            .await?;
    }
    raise(tx, raised, at).await
}

/// Raising alone locks in order of fingerprints by itself, settling alone too; both in one transaction need this.
async fn lock(
    tx: &mut PgConnection,
    settled: &[Uuid],
    raised: &[String],
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "select fingerprint from lapse.alert
         where fingerprint = any($1) or fingerprint in
           (select fingerprint from lapse.alert_member where saga_id = any($2) and settled_at is null)
         order by fingerprint for update",
        raised,
        settled
    )
    .fetch_all(tx)
    .await?;
    Ok(())
}

async fn raise(
    tx: &mut PgConnection,
    raised: Vec<(SagaId, Raised)>,
    at: Timestamp,
) -> Result<(), sqlx::Error> {
    if raised.is_empty() {
        return Ok(());
    }
    let mut members: BTreeSet<(Uuid, String)> = BTreeSet::new();
    let mut alerts: BTreeMap<String, Raised> = BTreeMap::new();
    for (saga_id, raised) in raised {
        members.insert((saga_id.0, raised.fingerprint.clone()));
        alerts.insert(raised.fingerprint.clone(), raised);
    }
    let (saga_ids, fingerprints): (Vec<Uuid>, Vec<String>) = members.into_iter().unzip();
    let column = |of: fn(&Raised) -> &str| alerts.values().map(of).collect::<Vec<&str>>();
    sqlx::query_file!(
        "src/store/pg/raise_alerts.sql",
        &saga_ids,
        &fingerprints,
        &column(|alert| &alert.fingerprint) as _,
        &column(|alert| &alert.definition) as _,
        &column(|alert| &alert.step) as _,
        &column(|alert| &alert.kind) as _,
        &column(|alert| &alert.class) as _,
        &column(|alert| &alert.message) as _,
        at
    )
    .execute(tx)
    .await?;
    Ok(())
}

pub async fn unresolved(
    db: &Db,
    definition: &str,
    orders: &[(SagaId, Overdue)],
) -> Result<(), Error> {
    if orders.is_empty() {
        return Ok(());
    }
    let raised: Vec<(SagaId, Raised)> = orders
        .iter()
        .map(|(saga_id, overdue)| (*saga_id, unresolved_alert(definition, *saga_id, overdue)))
        .collect();
    let raised = Arc::new(raised);
    db.tx(move |tx| {
        let raised = Arc::clone(&raised);
        Box::pin(async move {
            let at = sqlx::query_scalar!(r#"select clock_timestamp() as "now!""#)
                .fetch_one(&mut *tx)
                .await?;
            Ok(raise(tx, raised.to_vec(), at).await?)
        })
    })
    .await
}

pub async fn participant_down(db: &Db, down: &ParticipantDown) -> Result<(), Error> {
    let (raised, sagas, seen_at) = (Arc::new(down_alert(down)), down.sagas, down.seen_at);
    db.tx(move |tx| {
        let raised = Arc::clone(&raised);
        Box::pin(async move {
            sqlx::query_file!(
                "src/store/pg/participant_down.sql",
                raised.fingerprint,
                raised.step,
                raised.class,
                raised.message,
                sagas,
                seen_at
            )
            .execute(tx)
            .await?;
            Ok(())
        })
    })
    .await
}

pub async fn participant_up(db: &Db, participant: &str) -> Result<(), Error> {
    let fingerprint = down_fingerprint(participant);
    db.tx(move |tx| {
        let fingerprint = fingerprint.clone();
        Box::pin(async move {
            sqlx::query!(
                "update lapse.alert
                 set state = 'resolved', next_send_at = null, sagas = 0, last_at = statement_timestamp(),
                   tell_resolved = sends > 0
                 where fingerprint = $1 and state <> 'resolved'",
                fingerprint
            )
            .execute(tx)
            .await?;
            Ok(())
        })
    })
    .await
}

pub async fn claim(db: &Db, limit: u32, routes: &Arc<[Route]>) -> Result<Vec<AlertDue>, Error> {
    let routes = Arc::clone(routes);
    db.tx(move |tx| {
        let routes = Arc::clone(&routes);
        Box::pin(async move {
            let claimed = sqlx::query_file!("src/store/pg/claim_alerts.sql", i64::from(limit))
                .fetch_all(&mut *tx)
                .await?;
            let mut due = Vec::new();
            let mut out = Vec::new();
            let mut news = Vec::new();
            for row in claimed {
                let alert = AlertDue {
                    fingerprint: row.fingerprint,
                    definition: row.definition,
                    step: row.step,
                    kind: row.kind,
                    class: row.class,
                    message: row.message,
                    sagas: row.sagas,
                    sends: row.sends,
                };
                news.push(News {
                    resolved: row.resolved,
                    first_at: row.first_at,
                    at: row.at,
                    alert: alert.clone(),
                });
                if !row.resolved {
                    out.push((alert.fingerprint.clone(), alert_message(&alert, row.at)));
                    due.push(alert);
                }
            }
            messages::put(tx, "alerts", out).await?;
            webhooks::put(tx, &routes, &news).await?;
            due.sort_by(|a, b| a.fingerprint.cmp(&b.fingerprint));
            Ok(due)
        })
    })
    .await
}
