//! The two stores behind one set of eyes: what a promise needs to see, and to let time pass.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use chrono::TimeDelta;
use lapse::store::db::{Db, READERS, WRITERS};
use lapse::store::history::Line;
use lapse::store::memory::{AlertState, MemoryStore};
use lapse::store::ops::Ops;
use lapse::store::pg::PgStore;
use lapse::store::{OutboxMessage, StaleReply, Store, schema};
use lapse_sagas::{SagaId, Timestamp};
use sqlx::PgPool;

use crate::database::TestDatabase;

/// A store under test.
#[async_trait]
pub trait Subject: Sync {
    fn store(&self) -> &dyn Store;
    fn shared(&self) -> Arc<dyn Store>;
    /// Lets so many seconds pass, as far as stored times are concerned.
    async fn pass(&self, seconds: i64);
    async fn history(&self, id: SagaId) -> Vec<Line>;
    async fn outbox(&self) -> Vec<OutboxMessage>;
    async fn counters(&self) -> BTreeMap<String, i64>;
    async fn alerts(&self) -> Vec<SeenAlert>;
    async fn acknowledge(&self, fingerprint: &str) -> bool;
    async fn dead_letters(&self) -> usize;
    async fn stale_replies(&self) -> Vec<StaleReply>;
}

#[derive(Debug, PartialEq, Eq)]
pub struct SeenAlert {
    pub fingerprint: String,
    pub kind: String,
    pub class: String,
    pub message: String,
    pub state: String,
    pub sagas: i64,
    pub sends: i32,
}

pub struct InMemory {
    store: MemoryStore,
    now: Arc<Mutex<Timestamp>>,
}

impl InMemory {
    pub async fn create() -> InMemory {
        let start = "2026-01-02T03:04:05Z".parse().expect("a time");
        let now = Arc::new(Mutex::new(start));
        let clock = Arc::clone(&now);
        let store = MemoryStore::new(Arc::new(move || *clock.lock().expect("no panic")));
        InMemory { store, now }
    }
}

#[async_trait]
impl Subject for InMemory {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    fn shared(&self) -> Arc<dyn Store> {
        Arc::new(self.store.clone())
    }

    async fn pass(&self, seconds: i64) {
        *self.now.lock().expect("no panic") += TimeDelta::seconds(seconds);
    }

    async fn history(&self, id: SagaId) -> Vec<Line> {
        self.store.history(id)
    }

    async fn outbox(&self) -> Vec<OutboxMessage> {
        self.store.outbox()
    }

    async fn counters(&self) -> BTreeMap<String, i64> {
        self.store.counters()
    }

    async fn alerts(&self) -> Vec<SeenAlert> {
        let seen = |alert: lapse::store::memory::Alert| SeenAlert {
            fingerprint: alert.raised.fingerprint,
            kind: alert.raised.kind,
            class: alert.raised.class,
            message: alert.raised.message,
            state: match alert.state {
                AlertState::Open { .. } => "open",
                AlertState::Acknowledged { .. } => "acknowledged",
                AlertState::Resolved => "resolved",
            }
            .to_owned(),
            sagas: alert.sagas,
            sends: alert.sends,
        };
        self.store.alerts().into_iter().map(seen).collect()
    }

    async fn acknowledge(&self, fingerprint: &str) -> bool {
        self.store.acknowledge(fingerprint, "ann")
    }

    async fn dead_letters(&self) -> usize {
        self.store.dead_letters().len()
    }

    async fn stale_replies(&self) -> Vec<StaleReply> {
        self.store
            .stale_replies()
            .into_iter()
            .map(|(_, reply)| reply)
            .collect()
    }
}

pub struct InPostgres {
    pub store: PgStore,
    pub db: Db,
    /// A pool of the test's own, to look and to tamper.
    pub pool: PgPool,
    pub database: TestDatabase,
}

impl InPostgres {
    pub async fn create() -> InPostgres {
        let database = TestDatabase::create().await;
        let db = Db::open(database.options.clone(), WRITERS, READERS);
        schema::migrate(&db).await.expect("migrate");
        let pool = PgPool::connect_with(database.options.clone())
            .await
            .expect("connect");
        InPostgres {
            store: PgStore::new(db.clone()),
            db,
            pool,
            database,
        }
    }

    pub async fn run(&self, sql: &'static str) -> u64 {
        sqlx::query(sql)
            .execute(&self.pool)
            .await
            .expect(sql)
            .rows_affected()
    }

    pub async fn number(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql)
            .fetch_one(&self.pool)
            .await
            .expect(sql)
    }
}

#[async_trait]
impl Subject for InPostgres {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    fn shared(&self) -> Arc<dyn Store> {
        Arc::new(self.store.clone())
    }

    async fn pass(&self, seconds: i64) {
        for sql in [
            "update lapse.saga set wake_at = wake_at - $1 * interval '1 second' where wake_at is not null",
            "update lapse.alert set next_send_at = next_send_at - $1 * interval '1 second', last_at = last_at - $1 * interval '1 second'",
            "update lapse.outbox set claimed_until = claimed_until - $1 * interval '1 second'",
        ] {
            sqlx::query(sql)
                .bind(seconds)
                .execute(&self.pool)
                .await
                .expect(sql);
        }
    }

    async fn history(&self, id: SagaId) -> Vec<Line> {
        let rows: Vec<(i32, String, Vec<u8>)> = sqlx::query_as(
            "select seq, entry, hash from lapse.history where saga_id = $1 order by seq",
        )
        .bind(id.0)
        .fetch_all(&self.pool)
        .await
        .expect("history");
        let line = |(seq, text, hash): (i32, String, Vec<u8>)| Line {
            seq,
            text,
            hash: hash.try_into().expect("32 bytes"),
        };
        rows.into_iter().map(line).collect()
    }

    async fn outbox(&self) -> Vec<OutboxMessage> {
        let rows: Vec<(i64, String, String, String)> =
            sqlx::query_as("select id, topic, key, payload from lapse.outbox order by id")
                .fetch_all(&self.pool)
                .await
                .expect("outbox");
        rows.into_iter()
            .map(|(id, topic, key, payload)| OutboxMessage {
                id,
                topic,
                key,
                payload,
            })
            .collect()
    }

    async fn counters(&self) -> BTreeMap<String, i64> {
        let mut counters = BTreeMap::new();
        for row in Ops::new(self.db.clone()).totals().await.expect("totals") {
            *counters.entry(row.counter).or_default() += row.n;
        }
        counters
    }

    async fn alerts(&self) -> Vec<SeenAlert> {
        let rows = Ops::new(self.db.clone()).alerts().await.expect("alerts");
        let mut alerts: Vec<SeenAlert> = rows
            .into_iter()
            .map(|row| SeenAlert {
                fingerprint: row.fingerprint,
                kind: row.kind,
                class: row.class,
                message: row.message,
                state: row.state,
                sagas: row.sagas,
                sends: row.sends,
            })
            .collect();
        alerts.sort_by(|a, b| a.fingerprint.cmp(&b.fingerprint));
        alerts
    }

    async fn acknowledge(&self, fingerprint: &str) -> bool {
        Ops::new(self.db.clone())
            .acknowledge(fingerprint, "ann")
            .await
            .expect("acknowledge")
    }

    async fn dead_letters(&self) -> usize {
        self.number("select count(*) from lapse.dead_letter").await as usize
    }

    async fn stale_replies(&self) -> Vec<StaleReply> {
        let rows: Vec<(String, i32, String, String)> =
            sqlx::query_as("select step, attempt, outcome, why from lapse.stale_reply order by id")
                .fetch_all(&self.pool)
                .await
                .expect("stale replies");
        let reply = |(step, attempt, outcome, why)| StaleReply {
            step,
            attempt,
            outcome,
            why,
        };
        rows.into_iter().map(reply).collect()
    }
}
