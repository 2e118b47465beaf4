//! A coordinator that can be killed: its calls of store, bus and participants take a moment, now and then end in an error
//! of unknown fate, and never end once it is dead.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lapse::bus::{Bus, Delivery, MemoryBus, Origin, Outlet, Publish, Ripe};
use lapse::store::memory::MemoryStore;
use lapse::store::{
    ActiveSet, AlertDue, DeadLetter, Decide, Error, Move, Moved, OutboxMessage, ParticipantDown,
    Revised, Standing, Start, Started, Store, Which,
};
use lapse_participants::kit::{
    CallError, Command, OrderKey, OrderOwner, Overdue, Participant, Reply,
};
use lapse_sagas::{Definition, DefinitionHash, SagaId, Timestamp};

use super::shop::Shop;

/// Whether a coordinator lives, and the dice of its story.
#[derive(Clone)]
pub struct Life {
    alive: Arc<AtomicBool>,
    dice: Arc<Mutex<fastrand::Rng>>,
    /// One store call in so many is answered by an error.
    errors_one_in: u32,
}

impl Life {
    /// A new life.
    pub fn new(dice: Arc<Mutex<fastrand::Rng>>, errors_one_in: u32) -> Life {
        Life {
            alive: Arc::new(AtomicBool::new(true)),
            dice,
            errors_one_in,
        }
    }

    /// From now on nothing it does has an effect.
    pub fn end(&self) {
        self.alive.store(false, Ordering::SeqCst);
    }

    fn roll(&self, sides: u32) -> u32 {
        self.dice.lock().unwrap().u32(0..sides)
    }

    /// Time passes; death may come.
    async fn moment(&self) {
        if self.roll(3) == 0 {
            tokio::time::sleep(Duration::from_millis(u64::from(self.roll(40)))).await;
        }
        if !self.alive.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }

    /// The connection breaks, before or after the commit.
    async fn stored<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let broken = || Err(Error::Unreachable("broken on purpose".to_owned()));
        self.moment().await;
        if self.roll(self.errors_one_in) == 0 {
            return broken();
        }
        let result = call.await;
        self.moment().await;
        if self.roll(self.errors_one_in) == 0 {
            return broken();
        }
        result
    }
}

/// A store, a bus or the shop, as a coordinator with a life of its own sees it.
pub struct Mortal<T> {
    /// What is behind it.
    pub inner: Arc<T>,
    /// Whose calls these are.
    pub life: Life,
}

#[async_trait]
impl Store for Mortal<MemoryStore> {
    async fn now(&self) -> Result<Timestamp, Error> {
        self.inner.now().await
    }
    async fn deploy(&self, definitions: &[Arc<Definition>]) -> Result<ActiveSet, Error> {
        self.inner.deploy(definitions).await
    }
    async fn active(&self) -> Result<ActiveSet, Error> {
        self.life.stored(self.inner.active()).await
    }
    async fn definitions(&self, hashes: &[DefinitionHash]) -> Result<Vec<Arc<Definition>>, Error> {
        self.life.stored(self.inner.definitions(hashes)).await
    }
    async fn start(&self, batch: Vec<Start>) -> Result<Vec<Started>, Error> {
        self.life.stored(self.inner.start(batch)).await
    }
    async fn record(&self, batch: Vec<Move>) -> Result<Vec<Moved>, Error> {
        self.life.stored(self.inner.record(batch)).await
    }
    async fn revise(&self, which: Which, decide: Decide) -> Result<Vec<Revised>, Error> {
        self.life.stored(self.inner.revise(which, decide)).await
    }
    async fn dead_letter(&self, batch: Vec<DeadLetter>) -> Result<(), Error> {
        self.life.stored(self.inner.dead_letter(batch)).await
    }
    async fn claim_outbox(&self, limit: u32) -> Result<Vec<OutboxMessage>, Error> {
        self.life.stored(self.inner.claim_outbox(limit)).await
    }
    async fn delete_outbox(&self, ids: &[i64]) -> Result<(), Error> {
        self.life.stored(self.inner.delete_outbox(ids)).await
    }
    async fn claim_alerts(&self, limit: u32) -> Result<Vec<AlertDue>, Error> {
        self.life.stored(self.inner.claim_alerts(limit)).await
    }
    async fn standing(
        &self,
        definition: &str,
        orders: &[OrderKey],
    ) -> Result<Vec<Standing>, Error> {
        self.life
            .stored(self.inner.standing(definition, orders))
            .await
    }
    async fn alert_unresolved(
        &self,
        definition: &str,
        orders: &[(SagaId, Overdue)],
    ) -> Result<(), Error> {
        self.life
            .stored(self.inner.alert_unresolved(definition, orders))
            .await
    }
    async fn participant_down(&self, down: &ParticipantDown) -> Result<(), Error> {
        self.life.stored(self.inner.participant_down(down)).await
    }
    async fn participant_up(&self, participant: &str) -> Result<(), Error> {
        self.life
            .stored(self.inner.participant_up(participant))
            .await
    }
    async fn prepare_days(&self) -> Result<(), Error> {
        self.inner.prepare_days().await
    }
    async fn count(&self, definition: &str, counter: &str, by: i64) -> Result<(), Error> {
        self.life
            .stored(self.inner.count(definition, counter, by))
            .await
    }
}

#[async_trait]
impl Outlet for Mortal<MemoryBus> {
    async fn deliver(&self, messages: Vec<Publish>) -> Vec<Delivery> {
        self.life.moment().await;
        let deliveries = self.inner.deliver(messages).await;
        self.life.moment().await;
        deliveries
    }
}

#[async_trait]
impl Bus for Mortal<MemoryBus> {
    async fn ripe(&self, max: usize) -> Vec<Ripe> {
        self.inner.ripe(max).await
    }
    fn done(&self, origins: &[Origin]) {
        if self.life.alive.load(Ordering::SeqCst) {
            self.inner.done(origins);
        }
    }
    fn put_back(&self, records: Vec<Ripe>) {
        if self.life.alive.load(Ordering::SeqCst) {
            self.inner.put_back(records);
        }
    }
    async fn publish(&self, messages: Vec<Publish>) -> Vec<bool> {
        self.life.moment().await;
        let acked = self.inner.publish(messages).await;
        self.life.moment().await;
        acked
    }
    fn take_suspicion(&self) -> bool {
        self.inner.take_suspicion()
    }
    async fn close(&self) {}
    fn trouble(&self) -> Option<String> {
        None
    }
}

#[async_trait]
impl Participant for Mortal<Shop> {
    async fn call(&self, operation: &str, commands: &[Command]) -> Result<Vec<Reply>, CallError> {
        self.life.moment().await;
        let replies = self.inner.call(operation, commands).await;
        self.life.moment().await;
        replies
    }
}

#[async_trait]
impl OrderOwner for Mortal<Shop> {
    async fn overdue_orders(
        &self,
        after: Option<&Overdue>,
        ahead: Duration,
        limit: u32,
    ) -> Result<Vec<Overdue>, CallError> {
        self.life.moment().await;
        Ok(self.inner.overdue_orders(after, ahead, limit))
    }
    async fn paid(&self, orders: &[OrderKey]) -> Result<Vec<bool>, CallError> {
        self.life.moment().await;
        Ok(self.inner.paid(orders))
    }
}
