//! The store in memory, for simulations: the same promises, a clock of one's choice, and a look inside.
//!
//! Relies on [`Clock`] for every time. Never: waits; every method is done when it is called.

mod alerts;
mod tables;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use lapse_participants::kit::{OrderKey, Overdue};
use lapse_sagas::{Definition, DefinitionHash, SagaId, Timestamp};

use self::tables::Tables;
use super::consequence::unresolved_alert;
use super::history::Line;
use super::{
    ActiveSet, AlertDue, DeadLetter, Decide, Error, Move, Moved, OutboxMessage, ParticipantDown,
    Revised, Saga, StaleReply, Standing, Start, Started, Store, Which,
};

pub use self::alerts::{Alert, AlertState};

/// What time it is; a simulation moves it as it likes.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The coordinator's state in memory. Clones share it.
#[derive(Clone)]
pub struct MemoryStore {
    clock: Clock,
    tables: Arc<Mutex<Tables>>,
}

impl MemoryStore {
    /// An empty one.
    pub fn new(clock: Clock) -> MemoryStore {
        MemoryStore {
            clock,
            tables: Arc::default(),
        }
    }

    /// All sagas, by id.
    pub fn sagas(&self) -> Vec<Saga> {
        self.tables().sagas.values().cloned().collect()
    }

    /// A saga's history, from its first entry on.
    pub fn history(&self, id: SagaId) -> Vec<Line> {
        self.tables().history.get(&id).cloned().unwrap_or_default()
    }

    /// Messages that are not deleted yet, claimed or not, oldest first.
    pub fn outbox(&self) -> Vec<OutboxMessage> {
        self.tables()
            .outbox
            .values()
            .map(|(message, _)| message.clone())
            .collect()
    }

    /// All alerts, by fingerprint.
    pub fn alerts(&self) -> Vec<Alert> {
        self.tables().alerts.all()
    }

    /// Whether a saga is a member of any alert, settled or not.
    pub fn has_alert(&self, id: SagaId) -> bool {
        self.tables().alerts.has_member(id)
    }

    /// All dead letters.
    pub fn dead_letters(&self) -> Vec<DeadLetter> {
        self.tables().dead_letters.values().cloned().collect()
    }

    /// All replies that came too late.
    pub fn stale_replies(&self) -> Vec<(SagaId, StaleReply)> {
        self.tables().stale_replies.clone()
    }

    /// Counters by name, over all minutes, definitions and order types.
    pub fn counters(&self) -> BTreeMap<String, i64> {
        let mut totals = BTreeMap::new();
        for ((_, _, counter), n) in &self.tables().counts {
            *totals.entry(counter.clone()).or_default() += n;
        }
        totals
    }

    /// Stops an open alert from being sent again until a new saga joins it; false if none is open under this name.
    pub fn acknowledge(&self, fingerprint: &str, actor: &str) -> bool {
        self.tables().alerts.acknowledge(fingerprint, actor)
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn now(&self) -> Result<Timestamp, Error> {
        Ok((self.clock)())
    }

    async fn deploy(&self, definitions: &[Arc<Definition>]) -> Result<ActiveSet, Error> {
        self.tables().deploy(definitions)
    }

    async fn active(&self) -> Result<ActiveSet, Error> {
        Ok(self.tables().active())
    }

    async fn definitions(&self, hashes: &[DefinitionHash]) -> Result<Vec<Arc<Definition>>, Error> {
        Ok(self.tables().definitions(hashes))
    }

    async fn start(&self, batch: Vec<Start>) -> Result<Vec<Started>, Error> {
        let mut tables = self.tables();
        Ok(batch.into_iter().map(|start| tables.start(start)).collect())
    }

    async fn record(&self, batch: Vec<Move>) -> Result<Vec<Moved>, Error> {
        let now = (self.clock)();
        let mut tables = self.tables();
        Ok(batch
            .into_iter()
            .map(|moved| tables.record(moved, now))
            .collect())
    }

    async fn revise(&self, which: Which, decide: Decide) -> Result<Vec<Revised>, Error> {
        let now = (self.clock)();
        let mut tables = self.tables();
        let sagas = tables.lock(which, now);
        Ok(sagas
            .into_iter()
            .map(|saga| tables.revise(saga, &decide, now))
            .collect())
    }

    async fn dead_letter(&self, batch: Vec<DeadLetter>) -> Result<(), Error> {
        let mut tables = self.tables();
        for letter in batch {
            tables.dead_letter(letter);
        }
        Ok(())
    }

    async fn claim_outbox(&self, limit: u32) -> Result<Vec<OutboxMessage>, Error> {
        let now = (self.clock)();
        Ok(self.tables().claim_outbox(limit, now))
    }

    async fn delete_outbox(&self, ids: &[i64]) -> Result<(), Error> {
        let mut tables = self.tables();
        for id in ids {
            tables.outbox.remove(id);
        }
        Ok(())
    }

    async fn claim_alerts(&self, limit: u32) -> Result<Vec<AlertDue>, Error> {
        let now = (self.clock)();
        Ok(self.tables().claim_alerts(limit, now))
    }

    async fn standing(
        &self,
        definition: &str,
        orders: &[OrderKey],
    ) -> Result<Vec<Standing>, Error> {
        let tables = self.tables();
        Ok(orders
            .iter()
            .map(|order| tables.standing(definition, order))
            .collect())
    }

    async fn alert_unresolved(
        &self,
        definition: &str,
        orders: &[(SagaId, Overdue)],
    ) -> Result<(), Error> {
        let now = (self.clock)();
        let mut tables = self.tables();
        for (saga_id, overdue) in orders {
            let raised = unresolved_alert(definition, *saga_id, overdue);
            tables.alerts.raise(*saga_id, raised, now);
        }
        Ok(())
    }

    async fn participant_down(&self, down: &ParticipantDown) -> Result<(), Error> {
        let now = (self.clock)();
        self.tables().alerts.participant_down(down, now);
        Ok(())
    }

    async fn participant_up(&self, participant: &str) -> Result<(), Error> {
        let now = (self.clock)();
        self.tables().alerts.participant_up(participant, now);
        Ok(())
    }

    async fn prepare_days(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn count(&self, definition: &str, counter: &str, by: i64) -> Result<(), Error> {
        self.tables().count(definition, "", counter, by);
        Ok(())
    }
}
