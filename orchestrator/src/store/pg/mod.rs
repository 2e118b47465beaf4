//! The store in Postgres: one statement per concern and batch, whatever the batch's size.
//!
//! Relies on [`Db`] for transactions that nobody can cancel half-way, and on rows coming sorted by key wherever a
//! statement locks them. Never: decides anything; loops over rows with a statement each.

mod alerts;
mod columns;
mod definitions;
mod messages;
mod record;
mod revise;
mod rollup;
mod start;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use chrono::NaiveDate;
use lapse_participants::kit::{OrderKey, Overdue};
use lapse_sagas::{Definition, DefinitionHash, SagaId, Timestamp};

use super::db::Db;
use super::schema;
use super::webhooks::Route;
use super::{
    ActiveSet, AlertDue, DeadLetter, Decide, Error, Move, Moved, OutboxMessage, ParticipantDown,
    Revised, Standing, Start, Started, Store, Which,
};

/// The coordinator's state in Postgres.
#[derive(Clone)]
pub struct PgStore {
    db: Db,
    /// Days whose partitions are known to exist.
    days: Arc<Mutex<HashSet<NaiveDate>>>,
    /// Where alerts go beside the outbox.
    routes: Arc<[Route]>,
}

impl PgStore {
    /// On a database that [`schema::migrate`] has been run on.
    pub fn new(db: Db) -> PgStore {
        PgStore {
            db,
            days: Arc::default(),
            routes: Arc::default(),
        }
    }

    /// The same, whose claimed alerts are also left for these webhooks.
    pub fn telling(self, routes: Vec<Route>) -> PgStore {
        PgStore {
            routes: routes.into(),
            ..self
        }
    }

    /// The database below.
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// A new saga's partition normally exists for days; should the hourly upkeep have failed so long, it is made now.
    async fn ensure_days(&self, days: &[NaiveDate]) -> Result<(), Error> {
        for day in days {
            if self
                .days
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .contains(day)
            {
                continue;
            }
            schema::partitions(&self.db, *day, 1).await?;
            self.days
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(*day);
        }
        Ok(())
    }
}

#[async_trait]
impl Store for PgStore {
    async fn now(&self) -> Result<Timestamp, Error> {
        schema::now(&self.db).await
    }

    async fn deploy(&self, definitions: &[Arc<Definition>]) -> Result<ActiveSet, Error> {
        definitions::deploy(&self.db, definitions).await
    }

    async fn active(&self) -> Result<ActiveSet, Error> {
        definitions::active(&self.db).await
    }

    async fn definitions(&self, hashes: &[DefinitionHash]) -> Result<Vec<Arc<Definition>>, Error> {
        definitions::by_hash(&self.db, hashes).await
    }

    async fn start(&self, batch: Vec<Start>) -> Result<Vec<Started>, Error> {
        let mut days: Vec<NaiveDate> = batch
            .iter()
            .map(|start| schema::day(start.state.saga_id))
            .collect();
        days.sort_unstable();
        days.dedup();
        self.ensure_days(&days).await?;
        start::start(&self.db, batch).await
    }

    async fn record(&self, batch: Vec<Move>) -> Result<Vec<Moved>, Error> {
        record::record(&self.db, batch).await
    }

    async fn revise(&self, which: Which, decide: Decide) -> Result<Vec<Revised>, Error> {
        revise::revise(&self.db, which, decide).await
    }

    async fn dead_letter(&self, batch: Vec<DeadLetter>) -> Result<(), Error> {
        messages::dead_letter(&self.db, batch).await
    }

    async fn claim_outbox(&self, limit: u32) -> Result<Vec<OutboxMessage>, Error> {
        messages::claim_outbox(&self.db, limit).await
    }

    async fn delete_outbox(&self, ids: &[i64]) -> Result<(), Error> {
        messages::delete_outbox(&self.db, ids).await
    }

    async fn claim_alerts(&self, limit: u32) -> Result<Vec<AlertDue>, Error> {
        alerts::claim(&self.db, limit, &self.routes).await
    }

    async fn standing(
        &self,
        definition: &str,
        orders: &[OrderKey],
    ) -> Result<Vec<Standing>, Error> {
        revise::standing(&self.db, definition, orders).await
    }

    async fn alert_unresolved(
        &self,
        definition: &str,
        orders: &[(SagaId, Overdue)],
    ) -> Result<(), Error> {
        alerts::unresolved(&self.db, definition, orders).await
    }

    async fn participant_down(&self, down: &ParticipantDown) -> Result<(), Error> {
        alerts::participant_down(&self.db, down).await
    }

    async fn participant_up(&self, participant: &str) -> Result<(), Error> {
        alerts::participant_up(&self.db, participant).await
    }

    async fn prepare_days(&self) -> Result<(), Error> {
        let today = schema::now(&self.db).await?.date_naive();
        schema::ensure_partitions(&self.db, today).await
    }

    async fn count(&self, definition: &str, counter: &str, by: i64) -> Result<(), Error> {
        rollup::count(&self.db, definition, counter, by).await
    }
}
