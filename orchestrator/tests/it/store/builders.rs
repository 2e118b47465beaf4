//! Sagas, moves and definitions, as short as a test wants them.

use std::sync::Arc;

use lapse::store::{Decide, Decision, Move, Moved, Revised, Saga, Start, Started, Store, Which};
use lapse_participants::kit::OrderKey;
use lapse_sagas::definition::Body;
use lapse_sagas::{
    Cause, Definition, Effect, Event, Outcome, SagaId, State, StepId, Timestamp, transition,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Two steps, both can be undone, no retries: `first`, `second`. For orders of type `normal`.
pub fn definition(name: &str, version: u32, title: &str) -> Arc<Definition> {
    definition_for("normal", name, version, title)
}

/// The same for orders of another type.
pub fn definition_for(order_type: &str, name: &str, version: u32, title: &str) -> Arc<Definition> {
    let step = |id: &str| {
        json!({
            "id": id,
            "action": { "participant": "shop", "operation": "Do" },
            "compensation": { "participant": "shop", "operation": "Undo" },
            "retries": { "max": 0, "delays": ["1s"] },
        })
    };
    let body: Body = serde_json::from_value(json!({
        "format": "saga/v1",
        "name": name,
        "version": version,
        "title": title,
        "trigger": {
            "event_types": ["order.placed"],
            "order_types": { order_type: { "delay": "15m" } },
            "order_owner": "shop",
        },
        "steps": [step("first"), step("second")],
        "alert_repeat": "2m",
    }))
    .expect("a definition");
    let text = serde_json::to_string(&body).expect("a definition is JSON");
    Arc::new(Definition {
        hash: hex::encode(Sha256::digest(&text)).as_str().into(),
        text: text.into(),
        body,
        warnings: Vec::new(),
    })
}

/// The definition of [`start`].
pub fn cancel() -> Arc<Definition> {
    definition("cancel", 1, "")
}

pub fn order(order_id: &str) -> OrderKey {
    OrderKey {
        tenant: "default".to_owned(),
        order_id: order_id.to_owned(),
        generation: 1,
    }
}

/// A start of `cancel` for one order, taken at `now`.
pub fn start(order_id: &str, now: Timestamp) -> Start {
    let definition = cancel();
    let id = SagaId(uuid::Uuid::now_v7());
    Start {
        state: State::start(&definition, id, Cause::Timeout, now),
        definition: definition.hash.clone(),
        name: definition.name().into(),
        order: order(order_id),
        order_type: "normal".into(),
        due_at: Some(now),
        event: Arc::new(json!({ "order_id": order_id, "unknown": [1, null] })),
    }
}

/// Stores starts for orders `{prefix}-0` and so on, and returns the sagas.
pub async fn started(store: &dyn Store, prefix: &str, count: usize) -> Vec<Saga> {
    let now = store.now().await.expect("now");
    let batch = (0..count)
        .map(|n| start(&format!("{prefix}-{n}"), now))
        .collect();
    new_sagas(store.start(batch).await.expect("start"))
}

pub fn new_sagas(started: Vec<Started>) -> Vec<Saga> {
    let saga = |started| match started {
        Started::New(saga) => *saga,
        Started::Duplicate { saga_id } => panic!("{saga_id} is a duplicate"),
    };
    started.into_iter().map(saga).collect()
}

/// One saga of one order.
pub async fn one(store: &dyn Store, order_id: &str) -> Saga {
    let now = store.now().await.expect("now");
    new_sagas(
        store
            .start(vec![start(order_id, now)])
            .await
            .expect("start"),
    )
    .remove(0)
}

/// What `event` makes of a saga.
pub fn moved(saga: &Saga, event: Event, now: Timestamp) -> Move {
    let (state, effects) =
        transition(&cancel(), saga.state.clone(), event, now).expect("a legal event");
    Move {
        saga: saga.clone(),
        state,
        effects,
    }
}

pub fn sending(step: &str) -> Event {
    Event::Sending { step: step.into() }
}

pub fn replied(saga: &Saga, outcome: Outcome) -> Event {
    let (step, active): (&StepId, _) = saga.state.earliest().expect("an open step");
    Event::Replied {
        step: step.clone(),
        direction: active.direction,
        attempt: active.attempt,
        outcome,
    }
}

pub fn done() -> Outcome {
    Outcome::Done {
        output: Value::Null,
    }
}

pub fn failed(error: &str) -> Outcome {
    Outcome::Failed {
        error: error.to_owned(),
    }
}

/// Records one event and returns the saga as stored.
pub async fn happens(store: &dyn Store, saga: &Saga, event: Event) -> Saga {
    let now = store.now().await.expect("now");
    let moved = store
        .record(vec![moved(saga, event, now)])
        .await
        .expect("record");
    match moved.into_iter().next() {
        Some(Moved::Stored(saga)) => *saga,
        other => panic!("{other:?}"),
    }
}

/// Sends the open step and has it answered.
pub async fn answered(store: &dyn Store, saga: &Saga, outcome: Outcome) -> Saga {
    let step = saga.state.earliest().expect("an open step").0.to_string();
    let sent = happens(store, saga, sending(&step)).await;
    let reply = replied(&sent, outcome);
    happens(store, &sent, reply).await
}

/// A saga whose first step failed for good: compensated, with an alert.
pub async fn compensated(store: &dyn Store, order_id: &str, error: &str) -> Saga {
    let saga = one(store, order_id).await;
    answered(store, &saga, failed(error)).await
}

/// Decides by an event of the pure state machine.
pub fn by(event: impl Fn(&Saga) -> Event + Send + Sync + 'static) -> Decide {
    Arc::new(move |saga: &Saga, now| {
        let event = event(saga);
        match transition(&cancel(), saga.state.clone(), event, now) {
            Ok((state, effects)) => Decision::Move(state, effects),
            Err(_) => Decision::Leave,
        }
    })
}

pub fn leave() -> Decide {
    Arc::new(|_: &Saga, _| Decision::Leave)
}

pub async fn revise_due(store: &dyn Store, limit: u32) -> Vec<Revised> {
    store
        .revise(Which::Due { limit }, by(|_| Event::Due))
        .await
        .expect("revise")
}

/// A transition without any effect but one more version.
pub fn touched(saga: &Saga, effects: Vec<Effect>) -> Move {
    Move {
        saga: saga.clone(),
        state: saga.state.clone(),
        effects,
    }
}

/// Lets the saga wake up then.
pub fn wake(moved: &mut Move, at: Timestamp) {
    moved
        .state
        .active
        .values_mut()
        .for_each(|active| active.wake_at = at);
}
