//! What people ask: lists, one saga's story, alerts, throughput. For the command line, the API and the metrics.
//!
//! Relies on the views of schema `ops_v1` only, and on a pool of its own, so that nobody's list slows a saga down. Never:
//! counts sagas; totals come from the counters that every transaction keeps.

use lapse_participants::kit::OrderKey;
use lapse_sagas::{SagaId, Timestamp};
use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use super::Error;
use super::db::Db;
use super::schema::day;

mod dead_letters;
mod resting;

pub use dead_letters::{
    Closing, DeadLetterGroup, DeadLetterRow, LetterFilter, LettersByState, StoredLetter,
};
pub use resting::{Resting, RestingRow};

/// Longest list.
const MAX_LIMIT: u32 = 1_000;

/// Answers for people.
#[derive(Clone)]
pub struct Ops {
    db: Db,
}

/// Which sagas to list, newest first.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only in this state.
    pub state: Option<String>,
    /// Only of this definition.
    pub definition: Option<String>,
    /// Only of this order, whatever its tenant and generation.
    pub order_id: Option<String>,
    /// Only those older than this one: the last of the page before.
    pub after: Option<SagaId>,
    /// At most so many, at most 1,000.
    pub limit: u32,
}

/// Which saga to show.
#[derive(Clone, Debug)]
pub enum Find {
    /// This one.
    Saga(SagaId),
    /// The newest one of an order.
    Order {
        /// The tenant.
        tenant: String,
        /// The order.
        order_id: String,
    },
}

/// One row of `ops_v1.saga_list`, which says what is what.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct SagaRow {
    pub saga_id: Uuid,
    pub definition: String,
    pub definition_hash: String,
    pub tenant: String,
    pub order_id: String,
    pub generation: i32,
    pub order_type: String,
    pub cause: String,
    pub run: i32,
    pub state: String,
    pub reason: Option<String>,
    pub step: Option<String>,
    pub direction: Option<String>,
    pub phase: Option<String>,
    pub attempt: Option<i32>,
    pub wake_at: Option<Timestamp>,
    pub due_at: Option<Timestamp>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub finished_at: Option<Timestamp>,
    pub lateness_ms: Option<i64>,
}

/// One row of `ops_v1.saga_timeline`.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct TimelineRow {
    pub seq: i32,
    pub at: Timestamp,
    pub kind: String,
    pub step: Option<String>,
    pub direction: Option<String>,
    pub attempt: Option<i32>,
    pub state: String,
    pub detail: Option<Value>,
    pub hash: String,
}

/// One row of `ops_v1.alerts`.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct AlertRow {
    pub fingerprint: String,
    pub definition: String,
    pub step: String,
    pub kind: String,
    pub class: String,
    pub message: String,
    pub state: String,
    pub sagas: i64,
    pub sends: i32,
    pub first_at: Timestamp,
    pub last_at: Timestamp,
    pub next_send_at: Option<Timestamp>,
    pub acknowledged_by: Option<String>,
    pub acknowledged_at: Option<Timestamp>,
}

/// Everything about one saga.
#[derive(Clone, Debug, Serialize)]
pub struct Story {
    /// How it stands.
    pub saga: SagaRow,
    /// What happened, from the start on.
    pub timeline: Vec<TimelineRow>,
    /// The alerts it is or was a member of.
    pub alerts: Vec<AlertRow>,
}

/// One row of `ops_v1.throughput_minute`.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct ThroughputRow {
    pub minute: Timestamp,
    pub definition: String,
    pub order_type: String,
    pub counter: String,
    pub n: i64,
}

/// A counter since the beginning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct TotalRow {
    pub definition: String,
    pub counter: String,
    pub n: i64,
}

/// One row of `ops_v1.overdue`.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct OverdueRow {
    pub saga_id: Uuid,
    pub definition: String,
    pub tenant: String,
    pub order_id: String,
    pub state: String,
    pub step: Option<String>,
    pub phase: Option<String>,
    pub wake_at: Timestamp,
    pub due_at: Timestamp,
    pub overdue_s: i64,
}

/// The row of `ops_v1.backlog`: whole seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct Backlog {
    pub oldest_wake_s: i64,
    pub oldest_overdue_s: i64,
    pub oldest_outbox_s: i64,
}

/// From due time to the end, in whole milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct LatenessRow {
    pub sagas: i64,
    pub p50_ms: i64,
    pub p99_ms: i64,
    pub p999_ms: i64,
    pub max_ms: i64,
}

/// As `show server_version` and `show fsync` say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct ServerSettings {
    pub version: String,
    pub fsync: String,
}

/// `ops_v1.saga_list` as [`SagaRow`], with what follows `from`.
macro_rules! saga_rows {
    ($tail:tt $(, $argument:expr)*) => {
        sqlx::query_as!(
            SagaRow,
            r#"select s.saga_id as "saga_id!", s.definition as "definition!", s.definition_hash as "definition_hash!",
                 s.tenant as "tenant!", s.order_id as "order_id!", s.generation as "generation!",
                 s.order_type as "order_type!", s.cause as "cause!", s.run as "run!", s.state as "state!", s.reason,
                 s.step, s.direction, s.phase, s.attempt, s.wake_at, s.due_at, s.created_at as "created_at!",
                 s.updated_at as "updated_at!", s.finished_at, s.lateness_ms
               from "# + $tail $(, $argument)*
        )
    };
}

/// `ops_v1.alerts` as [`AlertRow`], with what follows `from`.
macro_rules! alert_rows {
    ($tail:tt $(, $argument:expr)*) => {
        sqlx::query_as!(
            AlertRow,
            r#"select a.fingerprint as "fingerprint!", a.definition as "definition!", a.step as "step!", a.kind as "kind!",
                 a.class as "class!", a.message as "message!", a.state as "state!", a.sagas as "sagas!",
                 a.sends as "sends!", a.first_at as "first_at!", a.last_at as "last_at!", a.next_send_at,
                 a.acknowledged_by, a.acknowledged_at
               from "# + $tail $(, $argument)*
        )
    };
}

impl Ops {
    /// On the database of the store.
    pub fn new(db: Db) -> Ops {
        Ops { db }
    }

    /// Sagas, newest first, one page.
    ///
    /// # Errors
    /// As Postgres says; so for every method here.
    pub async fn list(&self, filter: Filter) -> Result<Vec<SagaRow>, Error> {
        self.db
            .read(move |tx| {
                let Filter { state, definition, order_id, after, limit } = filter.clone();
                let limit = i64::from(limit.min(MAX_LIMIT));
                let after_day = after.map(day);
                let after = after.map(|after| after.0);
                Box::pin(async move {
                    let Some(order_id) = order_id else {
                        let rows = saga_rows!(
                            "ops_v1.saga_list as s
                             where ($1::text is null or s.state = $1) and ($2::text is null or s.definition = $2)
                               and ($3::date is null or (s.day, s.saga_id) < ($3, $4::uuid))
                             order by s.day desc, s.saga_id desc limit $5",
                            state,
                            definition,
                            after_day,
                            after,
                            limit
                        );
                        return Ok(rows.fetch_all(tx).await?);
                    };
                    let rows = saga_rows!(
                        "ops_v1.saga_order as o join ops_v1.saga_list as s on s.day = o.day and s.saga_id = o.saga_id
                         where o.order_id = $6
                           and ($1::text is null or s.state = $1) and ($2::text is null or s.definition = $2)
                           and ($3::date is null or (s.day, s.saga_id) < ($3, $4::uuid))
                         order by s.day desc, s.saga_id desc limit $5",
                        state,
                        definition,
                        after_day,
                        after,
                        limit,
                        order_id
                    );
                    Ok(rows.fetch_all(tx).await?)
                })
            })
            .await
    }

    /// One saga with all that happened to it; none if there is none.
    pub async fn show(&self, find: Find) -> Result<Option<Story>, Error> {
        self.db
            .read(move |tx| {
                let find = find.clone();
                Box::pin(async move {
                    let saga = match find {
                        Find::Saga(id) => {
                            let rows =
                                saga_rows!("ops_v1.saga_list as s where s.day = $1 and s.saga_id = $2", day(id), id.0);
                            rows.fetch_optional(&mut *tx).await?
                        }
                        Find::Order { tenant, order_id } => {
                            let rows = saga_rows!(
                                "ops_v1.saga_order as o
                                 join ops_v1.saga_list as s on s.day = o.day and s.saga_id = o.saga_id
                                 where o.order_id = $1 and o.tenant = $2
                                 order by s.day desc, s.saga_id desc limit 1",
                                order_id,
                                tenant
                            );
                            rows.fetch_optional(&mut *tx).await?
                        }
                    };
                    let Some(saga) = saga else {
                        return Ok(None);
                    };
                    let id = SagaId(saga.saga_id);
                    let timeline = sqlx::query_as!(
                        TimelineRow,
                        r#"select h.seq as "seq!", h.at as "at!", h.kind as "kind!", h.step, h.direction, h.attempt,
                             h.state as "state!", h.detail, h.hash as "hash!"
                           from ops_v1.saga_timeline as h where h.day = $1 and h.saga_id = $2 order by h.seq"#,
                        day(id),
                        id.0
                    );
                    let timeline = timeline.fetch_all(&mut *tx).await?;
                    let alerts = alert_rows!(
                        "ops_v1.alert_sagas as m join ops_v1.alerts as a on a.fingerprint = m.fingerprint
                         where m.saga_id = $1 order by m.at",
                        id.0
                    );
                    let alerts = alerts.fetch_all(tx).await?;
                    Ok(Some(Story { saga, timeline, alerts }))
                })
            })
            .await
    }

    /// The tenants that have a saga of an order by this id, the first ten of them by name.
    pub async fn tenants_of(&self, order_id: &str) -> Result<Vec<String>, Error> {
        let order_id = order_id.to_owned();
        self.db
            .read(move |tx| {
                let order_id = order_id.clone();
                Box::pin(async move {
                    let tenants = sqlx::query_scalar!(
                        r#"select distinct o.tenant as "tenant!" from ops_v1.saga_order as o
                           where o.order_id = $1 order by 1 limit 10"#,
                        order_id
                    );
                    Ok(tenants.fetch_all(tx).await?)
                })
            })
            .await
    }

    /// The saga of an order by a definition; none if it has none.
    pub async fn saga_of(
        &self,
        definition: &str,
        order: &OrderKey,
    ) -> Result<Option<SagaId>, Error> {
        let (definition, order) = (definition.to_owned(), order.clone());
        self.db
            .read(move |tx| {
                let (definition, order) = (definition.clone(), order.clone());
                Box::pin(async move {
                    let row = sqlx::query_scalar!(
                        r#"select o.saga_id as "saga_id!" from ops_v1.saga_order as o
                           where o.order_id = $1 and o.tenant = $2 and o.definition = $3 and o.generation = $4"#,
                        order.order_id,
                        order.tenant,
                        definition,
                        order.generation
                    );
                    Ok(row.fetch_optional(tx).await?.map(SagaId))
                })
            })
            .await
    }

    /// Whether this saga still moves by itself; false if there is none.
    pub async fn is_live(&self, id: SagaId) -> Result<bool, Error> {
        self.db
            .read(move |tx| {
                Box::pin(async move {
                    let row = sqlx::query_scalar!(
                        r#"select s.wake_at is not null as "live!" from ops_v1.saga_list as s
                           where s.day = $1 and s.saga_id = $2"#,
                        day(id),
                        id.0
                    );
                    Ok(row.fetch_optional(tx).await?.unwrap_or(false))
                })
            })
            .await
    }

    /// Alerts that nobody has acknowledged or resolved, the latest first.
    pub async fn open_alerts(&self) -> Result<Vec<AlertRow>, Error> {
        self.db
            .read(|tx| {
                Box::pin(async move {
                    let rows = alert_rows!("ops_v1.alerts as a where a.state = 'open' order by a.last_at desc limit 1000");
                    Ok(rows.fetch_all(tx).await?)
                })
            })
            .await
    }

    /// All alerts, the latest 1,000.
    pub async fn alerts(&self) -> Result<Vec<AlertRow>, Error> {
        self.db
            .read(|tx| {
                Box::pin(async move {
                    let rows = alert_rows!("ops_v1.alerts as a order by a.last_at desc limit 1000");
                    Ok(rows.fetch_all(tx).await?)
                })
            })
            .await
    }

    /// Stops an open alert from being sent again until a new saga joins it; false if none is open under this name.
    pub async fn acknowledge(&self, fingerprint: &str, actor: &str) -> Result<bool, Error> {
        let (fingerprint, actor) = (fingerprint.to_owned(), actor.to_owned());
        self.db
            .tx(move |tx| {
                let (fingerprint, actor) = (fingerprint.clone(), actor.clone());
                Box::pin(async move {
                    let done = sqlx::query!(
                        "update lapse.alert
                         set state = 'acknowledged', next_send_at = null, acknowledged_by = $2,
                           acknowledged_at = statement_timestamp()
                         where fingerprint = $1 and state = 'open'",
                        fingerprint,
                        actor
                    );
                    Ok(done.execute(tx).await?.rows_affected() == 1)
                })
            })
            .await
    }

    /// Counters of the last so many minutes, the present one included.
    pub async fn throughput(&self, minutes: i32) -> Result<Vec<ThroughputRow>, Error> {
        self.db
            .read(move |tx| {
                Box::pin(async move {
                    let rows = sqlx::query_as!(
                        ThroughputRow,
                        r#"select t.minute as "minute!", t.definition as "definition!", t.order_type as "order_type!",
                             t.counter as "counter!", t.n as "n!"
                           from ops_v1.throughput_minute as t
                           where t.minute > now() - make_interval(mins => $1)
                           order by t.minute, t.definition, t.order_type, t.counter"#,
                        minutes
                    );
                    Ok(rows.fetch_all(tx).await?)
                })
            })
            .await
    }

    /// Counters since the beginning. Sagas that are live now: started + resumed - completed - skipped - compensated -
    /// parked.
    pub async fn totals(&self) -> Result<Vec<TotalRow>, Error> {
        self.db
            .read(|tx| {
                Box::pin(async move {
                    let rows = sqlx::query_as!(
                        TotalRow,
                        r#"select t.definition as "definition!", t.counter as "counter!", sum(t.n)::bigint as "n!"
                           from ops_v1.throughput_minute as t group by 1, 2 order by 1, 2"#
                    );
                    Ok(rows.fetch_all(tx).await?)
                })
            })
            .await
    }

    /// How far Lapse is behind.
    pub async fn backlog(&self) -> Result<Backlog, Error> {
        self.db
            .read(|tx| {
                Box::pin(async move {
                    let row = sqlx::query_as!(
                        Backlog,
                        r#"select b.oldest_wake_s as "oldest_wake_s!", b.oldest_overdue_s as "oldest_overdue_s!",
                             b.oldest_outbox_s as "oldest_outbox_s!"
                           from ops_v1.backlog as b"#
                    );
                    Ok(row.fetch_one(tx).await?)
                })
            })
            .await
    }

    /// How late completed sagas were, over all of them: for measurements on a database of their own.
    pub async fn lateness(&self) -> Result<LatenessRow, Error> {
        self.db
            .read(|tx| {
                Box::pin(async move {
                    let row = sqlx::query_as!(
                        LatenessRow,
                        r#"select count(*) as "sagas!",
                             coalesce(percentile_disc(0.5) within group (order by lateness_ms), 0) as "p50_ms!",
                             coalesce(percentile_disc(0.99) within group (order by lateness_ms), 0) as "p99_ms!",
                             coalesce(percentile_disc(0.999) within group (order by lateness_ms), 0) as "p999_ms!",
                             coalesce(max(lateness_ms), 0) as "max_ms!"
                           from ops_v1.saga_list where state = 'completed' and lateness_ms is not null"#
                    );
                    Ok(row.fetch_one(tx).await?)
                })
            })
            .await
    }

    /// What a measurement must say about its server.
    pub async fn server_settings(&self) -> Result<ServerSettings, Error> {
        self.db
            .read(|tx| {
                Box::pin(async move {
                    let row = sqlx::query_as!(
                        ServerSettings,
                        r#"select current_setting('server_version') as "version!", current_setting('fsync') as "fsync!""#
                    );
                    Ok(row.fetch_one(tx).await?)
                })
            })
            .await
    }

    /// The age of the most overdue order that waits for a live saga, whole seconds; 0 below 30.
    pub async fn oldest_overdue_s(&self) -> Result<i64, Error> {
        Ok(self.backlog().await?.oldest_overdue_s)
    }

    /// Live sagas whose orders are overdue, the oldest first.
    pub async fn overdue(&self, limit: u32) -> Result<Vec<OverdueRow>, Error> {
        self.db
            .read(move |tx| {
                Box::pin(async move {
                    let rows = sqlx::query_as!(
                        OverdueRow,
                        r#"select o.saga_id as "saga_id!", o.definition as "definition!", o.tenant as "tenant!",
                             o.order_id as "order_id!", o.state as "state!", o.step, o.phase, o.wake_at as "wake_at!",
                             o.due_at as "due_at!", o.overdue_s as "overdue_s!"
                           from ops_v1.overdue as o order by o.due_at limit $1"#,
                        i64::from(limit.min(MAX_LIMIT))
                    );
                    Ok(rows.fetch_all(tx).await?)
                })
            })
            .await
    }
}
