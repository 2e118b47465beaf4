//! What is to be posted to webhooks: written in the transaction that claims the alert, claimed like the outbox.
//!
//! For: [`crate::webhooks`], which posts. Relies on claims that expire: whoever dies while it posts is followed by another
//! (at least once, under the same id). Never: knows an address or a key.

use chrono::TimeDelta;
use lapse_sagas::Timestamp;
use serde::Serialize;
use serde_json::json;
use sqlx::PgConnection;

use super::db::Db;
use super::text::{json_text, storable};
use super::{AlertDue, Error};

/// A webhook as far as the database needs to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Its name in the settings.
    pub webhook: String,
    /// Kinds of alerts it gets; empty: all.
    pub kinds: Vec<String>,
}

/// An alert that was claimed.
pub(super) struct News {
    pub alert: AlertDue,
    pub resolved: bool,
    pub first_at: Timestamp,
    pub at: Timestamp,
}

/// Something to post now.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Its row.
    pub id: i64,
    /// The same however often it is posted.
    pub message_id: String,
    /// The body, byte for byte.
    pub payload: String,
    /// How often it has been posted, this time included.
    pub attempts: i32,
    /// The database's time.
    pub at: Timestamp,
}

/// A post that was not taken.
#[derive(Clone, Debug)]
pub struct NotTaken {
    /// Its row.
    pub id: i64,
    /// What was wrong, without the address.
    pub error: String,
    /// When to try again; none: never.
    pub again_in: Option<TimeDelta>,
}

/// How a webhook stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Backlog {
    /// Its name.
    pub webhook: String,
    /// Posts that were tried and not taken, or not tried for half a minute.
    pub waiting: i64,
    /// How long the oldest of them has waited, seconds.
    pub oldest_s: i64,
    /// Given up in the last 30 days.
    pub failed: i64,
    /// Of the latest post that was not taken.
    pub last_error: Option<String>,
}

/// The rows of the webhooks.
#[derive(Clone)]
pub struct Deliveries {
    db: Db,
}

impl Deliveries {
    /// On the database of the store.
    pub fn new(db: Db) -> Deliveries {
        Deliveries { db }
    }

    /// Claims what is to be posted to a webhook, oldest first, for so long.
    ///
    /// # Errors
    /// As Postgres says; so for every method here.
    pub async fn claim(
        &self,
        webhook: &str,
        limit: u32,
        lease: TimeDelta,
    ) -> Result<Vec<Delivery>, Error> {
        let webhook = webhook.to_owned();
        self.db
            .statement(move |connection| {
                let webhook = webhook.clone();
                Box::pin(async move {
                    let claimed = sqlx::query_as!(
                        Delivery,
                        r#"with free as (
                             select id from lapse.webhook_delivery
                             where webhook = $1 and state = 'waiting' and next_try_at <= statement_timestamp()
                             order by next_try_at, id limit $2 for update skip locked
                           )
                           update lapse.webhook_delivery as d
                           set attempts = d.attempts + 1,
                             next_try_at = statement_timestamp() + $3::bigint * interval '1 millisecond'
                           from free where d.id = free.id
                           returning d.id, d.message_id, d.payload, d.attempts, statement_timestamp() as "at!""#,
                        webhook,
                        i64::from(limit),
                        lease.num_milliseconds()
                    );
                    let mut deliveries = claimed.fetch_all(connection).await?;
                    deliveries.sort_by_key(|delivery| delivery.id);
                    Ok(deliveries)
                })
            })
            .await
    }

    /// These were taken.
    pub async fn delivered(&self, ids: Vec<i64>) -> Result<(), Error> {
        if ids.is_empty() {
            return Ok(());
        }
        self.db
            .statement(move |connection| {
                let ids = ids.clone();
                Box::pin(async move {
                    sqlx::query!(
                        "update lapse.webhook_delivery set state = 'delivered', delivered_at = statement_timestamp()
                         where id = any($1)",
                        &ids
                    )
                    .execute(connection)
                    .await?;
                    Ok(())
                })
            })
            .await
    }

    /// These were not; gives how many are thereby given up, because they are a day old or never to be tried again.
    pub async fn not_taken(&self, posts: Vec<NotTaken>) -> Result<u64, Error> {
        if posts.is_empty() {
            return Ok(0);
        }
        self.db
            .statement(move |connection| {
                let ids: Vec<i64> = posts.iter().map(|post| post.id).collect();
                let errors: Vec<String> = posts
                    .iter()
                    .map(|post| storable(&post.error).into_owned())
                    .collect();
                let again_ms: Vec<Option<i64>> = posts
                    .iter()
                    .map(|post| post.again_in.map(|again| again.num_milliseconds()))
                    .collect();
                Box::pin(async move {
                    let states = sqlx::query_scalar!(
                        "update lapse.webhook_delivery as d
                         set last_error = t.error,
                           next_try_at = statement_timestamp() + coalesce(t.again_ms, 0) * interval '1 millisecond',
                           state = case when t.again_ms is null
                             or d.created_at <= statement_timestamp() - interval '24 hours' then 'failed' else d.state end
                         from unnest($1::bigint[], $2::text[], $3::bigint[]) as t (id, error, again_ms)
                         where d.id = t.id and d.state = 'waiting'
                         returning d.state",
                        &ids,
                        &errors,
                        &again_ms as _
                    );
                    let states = states.fetch_all(connection).await?;
                    Ok(states.iter().filter(|state| *state == "failed").count() as u64)
                })
            })
            .await
    }

    /// How the webhooks stand that have anything undelivered.
    pub async fn backlog(&self) -> Result<Vec<Backlog>, Error> {
        self.db
            .read(|tx| {
                Box::pin(async move {
                    let rows = sqlx::query_as!(
                        Backlog,
                        r#"select d.webhook as "webhook!",
                             count(*) filter (where d.state = 'waiting') as "waiting!",
                             coalesce(max(d.undelivered_s) filter (where d.state = 'waiting'), 0) as "oldest_s!",
                             count(*) filter (where d.state = 'failed') as "failed!",
                             (array_agg(d.last_error order by d.id desc) filter (where d.last_error is not null))[1]
                               as last_error
                           from ops_v1.webhook_deliveries as d
                           where d.state = 'failed'
                             or d.state = 'waiting' and (d.last_error is not null or d.undelivered_s >= 30)
                           group by d.webhook order by d.webhook"#
                    );
                    Ok(rows.fetch_all(tx).await?)
                })
            })
            .await
    }

    /// Deletes what was settled a month ago; a webhook's name may have gone from the settings meanwhile, so also what
    /// nobody has fetched for so long.
    pub async fn forget(&self) -> Result<(), Error> {
        self.db
            .statement(|connection| {
                Box::pin(async move {
                    sqlx::query!(
                        "delete from lapse.webhook_delivery where created_at < statement_timestamp() - interval '30 days'"
                    )
                    .execute(connection)
                    .await?;
                    Ok(())
                })
            })
            .await
    }
}

/// One row per webhook that wants to know.
pub(super) async fn put(
    tx: &mut PgConnection,
    routes: &[Route],
    news: &[News],
) -> Result<(), sqlx::Error> {
    let pairs: Vec<(&Route, &News)> = routes
        .iter()
        .flat_map(|route| news.iter().map(move |news| (route, news)))
        .filter(|(route, news)| route.kinds.is_empty() || route.kinds.contains(&news.alert.kind))
        .collect();
    let Some((_, News { at, .. })) = pairs.first() else {
        return Ok(());
    };
    settle_resolved(tx, &pairs).await?;
    let column = |of: fn(&Route, &News) -> String| -> Vec<String> {
        pairs.iter().map(|(route, news)| of(route, news)).collect()
    };
    sqlx::query!(
        "insert into lapse.webhook_delivery
           (webhook, message_id, event, fingerprint, payload, created_at, next_try_at)
         select t.webhook, t.message_id, t.event, t.fingerprint, t.payload, $6, $6
         from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[])
           as t (webhook, message_id, event, fingerprint, payload)
         on conflict (webhook, message_id) do nothing",
        &column(|route, _| route.webhook.clone()),
        &column(|_, news| news.message_id()),
        &column(|_, news| news.event().to_owned()),
        &column(|_, news| news.alert.fingerprint.clone()),
        &column(|_, news| news.payload()),
        at
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// What still waits of a resolved alert is not posted after its end: nobody would end it again.
async fn settle_resolved(
    tx: &mut PgConnection,
    pairs: &[(&Route, &News)],
) -> Result<(), sqlx::Error> {
    let (webhooks, fingerprints): (Vec<String>, Vec<String>) = pairs
        .iter()
        .filter(|(_, news)| news.resolved)
        .map(|(route, news)| (route.webhook.clone(), news.alert.fingerprint.clone()))
        .unzip();
    if webhooks.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        "with over as (
           select d.id from lapse.webhook_delivery as d
           join unnest($1::text[], $2::text[]) as t (webhook, fingerprint)
             on d.webhook = t.webhook and d.fingerprint = t.fingerprint
           where d.state = 'waiting' order by d.id for update of d
         )
         delete from lapse.webhook_delivery as d using over where d.id = over.id",
        &webhooks,
        &fingerprints
    )
    .execute(tx)
    .await?;
    Ok(())
}

impl News {
    /// An alert is claimed once at a time, so its fingerprint and that time name the sending.
    fn message_id(&self) -> String {
        let AlertDue { fingerprint, .. } = &self.alert;
        format!("msg_{fingerprint}_{}", self.at.timestamp_micros())
    }

    fn event(&self) -> &'static str {
        if self.resolved {
            "alert.resolved"
        } else {
            "alert.raised"
        }
    }

    fn payload(&self) -> String {
        payload(
            &self.message_id(),
            self.event(),
            &self.alert,
            self.first_at,
            self.at,
        )
    }
}

/// The body of a post: `type`, `timestamp` and `data` as the Standard Webhooks recommend them.
pub fn payload(
    id: &str,
    event: &str,
    alert: &AlertDue,
    first_at: Timestamp,
    at: Timestamp,
) -> String {
    json_text(&json!({
        "format": "lapse-alert/v1",
        "id": id,
        "type": event,
        "timestamp": at,
        "data": {
            "fingerprint": alert.fingerprint,
            "definition": alert.definition,
            "step": alert.step,
            "kind": alert.kind,
            "class": alert.class,
            "message": alert.message,
            "sagas": alert.sagas,
            "sends": alert.sends,
            "first_at": first_at,
        },
    }))
}
