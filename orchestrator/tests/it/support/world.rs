//! A coordinator over any store and clock, with a scripted participant and a quiet bus.

use std::sync::Arc;
use std::time::Duration;

use lapse::bus::{Bus, MemoryBus};
use lapse::clock::Clock;
use lapse::config::Config;
use lapse::coordinator::{Coordinator, Parts};
use lapse::definitions::Definitions;
use lapse::executor::Participants;
use lapse::feed::Feed;
use lapse::intake;
use lapse::store::{Decision, Saga, Started, Store, Which};
use lapse_participants::kit::{OrderKey, OrderOwner, Participant};
use lapse_sagas::{Cause, Definition};
use serde_json::json;

use super::scripted::Scripted;
use super::until;

/// The shipped walk with delays that a test can wait for.
pub const QUICK: &str = r"
format: saga/v1
name: quick
version: 1
trigger:
  event_types: [order.placed]
  order_types: { normal: { delay: 1s } }
  order_owner: orders
steps:
  - id: cancel_order
    action: { participant: orders, operation: CancelOrder }
    compensation: { participant: orders, operation: ReopenOrder }
    timeout: 500ms
    retries: { max: 3, delays: [40ms, 80ms, 160ms] }
  - id: replenish_stock
    action: { participant: stock, operation: ReplenishStock }
    compensation: { participant: stock, operation: WithdrawStock }
    timeout: 500ms
    retries: { max: 3, delays: [40ms, 80ms, 160ms] }
";

/// Everything around one or more coordinators.
pub struct World {
    /// Sagas.
    pub store: Arc<dyn Store>,
    /// The time that decides.
    pub clock: Arc<dyn Clock>,
    /// What sagas do.
    pub definition: Arc<Definition>,
    /// Both participants.
    pub participant: Arc<Scripted>,
    definitions: Arc<Definitions>,
}

impl World {
    /// A world whose sagas follow `definition`.
    pub async fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>, definition: &str) -> World {
        let definition = Arc::new(
            Definition::parse("test.yaml", definition).expect("the test's definition is right"),
        );
        store.prepare_days().await.expect("partitions can be made");
        store
            .deploy(std::slice::from_ref(&definition))
            .await
            .expect("the definition can be deployed");
        let definitions = Arc::new(
            Definitions::load(store.clone())
                .await
                .expect("definitions can be loaded"),
        );
        World {
            store,
            clock,
            definition,
            participant: Arc::default(),
            definitions,
        }
    }

    /// A coordinator that works until it is dropped.
    pub fn coordinator(&self) -> Coordinator {
        self.coordinator_of(self.participants(), self.bus())
    }

    fn participants(&self) -> Participants {
        let mut participants = Participants::default();
        for name in ["orders", "stock"] {
            let participant: Arc<dyn Participant> = self.participant.clone();
            participants.operations.insert(name.to_owned(), participant);
        }
        participants
    }

    /// A coordinator whose participants get their commands over this bus and answer on this feed.
    pub fn queueing_coordinator(&self, bus: Arc<dyn Bus>, replies: Arc<dyn Feed>) -> Coordinator {
        let mut participants = Participants::default();
        let queued = &mut participants.queued;
        queued.names = ["orders", "stock"].map(str::to_owned).into();
        queued.replies = Some(replies);
        self.coordinator_of(participants, bus)
    }

    /// A coordinator that sweeps what this owner lists and asks it which orders are paid.
    pub fn sweeping_coordinator(
        &self,
        owner: Arc<dyn OrderOwner>,
        bus: Arc<dyn Bus>,
    ) -> Coordinator {
        let mut participants = self.participants();
        participants.owners.insert("orders".to_owned(), owner);
        self.coordinator_of(participants, bus)
    }

    /// A bus on the clock of this world.
    pub fn bus(&self) -> Arc<MemoryBus> {
        let clock = self.clock.clone();
        Arc::new(MemoryBus::new(Arc::new(move || clock.now())))
    }

    fn coordinator_of(&self, participants: Participants, bus: Arc<dyn Bus>) -> Coordinator {
        let parts = Parts {
            store: self.store.clone(),
            bus,
            clock: self.clock.clone(),
            definitions: self.definitions.clone(),
            participants,
            webhooks: Vec::new(),
        };
        Coordinator::start(parts, &Config::default())
    }

    /// Starts one saga per order through this coordinator.
    pub async fn start(&self, coordinator: &Coordinator, orders: &[&str]) -> Vec<Saga> {
        let start = |order_id: &&str| {
            let event = json!({ "order_id": order_id });
            let now = self.clock.now();
            intake::start(
                &self.definition,
                order(order_id),
                "normal",
                Cause::Timeout,
                Some(now),
                event,
                now,
            )
        };
        let starts = orders.iter().map(start).collect();
        let started = coordinator
            .executor()
            .start(starts)
            .await
            .expect("sagas can be started");
        let new = |started| match started {
            Started::New(saga) => *saga,
            Started::Duplicate { saga_id } => panic!("saga {saga_id} was there before"),
        };
        started.into_iter().map(new).collect()
    }

    /// The saga of an order as it is now.
    pub async fn saga(&self, order_id: &str) -> Option<Saga> {
        let which = Which::Key {
            definition: self.definition.name().to_owned(),
            order: order(order_id),
        };
        let found = self
            .store
            .revise(which, Arc::new(|_, _| Decision::Leave))
            .await
            .expect("the store answers");
        found.into_iter().next().map(|revised| revised.saga)
    }

    /// The saga of an order once it has come to rest.
    pub async fn at_rest(&self, order_id: &str, limit: Duration) -> Saga {
        until(&format!("saga of {order_id} at rest"), limit, || async {
            self.saga(order_id)
                .await
                .filter(|saga| !saga.state.status.is_live())
        })
        .await
    }
}

/// The key of a test's order.
pub fn order(order_id: &str) -> OrderKey {
    OrderKey {
        tenant: "default".to_owned(),
        order_id: order_id.to_owned(),
        generation: 1,
    }
}
