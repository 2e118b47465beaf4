//! Sagas: started once, moved under the fence, found when they are due.

use std::collections::BTreeSet;
use std::sync::Arc;

use chrono::TimeDelta;
use lapse::store::history::Line;
use lapse::store::{Decision, HistoryHead, Move, Moved, Revised, Saga, StaleReply, Started, Which};
use lapse_participants::kit::OrderKey;
use lapse_sagas::{Effect, SagaId, Status};
use serde_json::Value;

use super::builders::*;
use super::subject::Subject;

promises! {
    an_order_started_twice_has_one_saga
    another_generation_tenant_or_definition_is_another_saga
    a_start_is_in_hand_as_it_is_stored
    a_fenced_move_writes_nothing
    a_move_changes_what_it_says_and_nothing_else
    history_has_no_gap_and_its_chain_verifies
    only_rows_past_their_wake_up_time_are_due_and_the_earliest_comes_first
    concurrent_claimers_get_disjoint_sagas
    a_revised_saga_has_its_event
    what_is_left_alone_stays_as_it_is
    a_stale_reply_is_logged_and_changes_nothing
    a_saga_is_found_by_its_key_and_by_its_id
}

async fn an_order_started_twice_has_one_saga(subject: &impl Subject) {
    let store = subject.store();
    let now = store.now().await.unwrap();
    let (a, b, again) = (start("o-1", now), start("o-2", now), start("o-1", now));
    let first = a.state.saga_id;

    let results = store.start(vec![a, b, again]).await.unwrap();
    let replayed = store.start(vec![start("o-1", now)]).await.unwrap();

    assert!(
        matches!(results[..], [Started::New(_), Started::New(_), Started::Duplicate { saga_id }] if saga_id == first)
    );
    assert_eq!(replayed, [Started::Duplicate { saga_id: first }]);
    assert_eq!(subject.history(first).await.len(), 1);
    let counters = subject.counters().await;
    assert_eq!((counters["started"], counters["duplicate"]), (2, 2));
}

async fn another_generation_tenant_or_definition_is_another_saga(subject: &impl Subject) {
    let now = subject.store().now().await.unwrap();
    let mut batch: Vec<_> = (0..4).map(|_| start("o-1", now)).collect();
    batch[1].order.generation = 2;
    batch[2].order.tenant = "other".to_owned();
    batch[3].name = "other".into();

    let sagas = new_sagas(subject.store().start(batch).await.unwrap());

    assert_eq!(sagas.len(), 4);
}

async fn a_start_is_in_hand_as_it_is_stored(subject: &impl Subject) {
    let store = subject.store();
    let sagas = started(store, "o", 3).await;

    let ids = sagas.iter().map(|saga| saga.id).collect();
    let stored = store.revise(Which::Ids(ids), leave()).await.unwrap();

    let stored: Vec<Saga> = stored.into_iter().map(|revised| revised.saga).collect();
    assert_eq!(stored, sagas);
}

async fn a_fenced_move_writes_nothing(subject: &impl Subject) {
    let store = subject.store();
    let old = one(store, "o-1").await;
    let sent = happens(store, &old, sending("first")).await;
    let (history, outbox, counters) = (
        subject.history(old.id).await,
        subject.outbox().await,
        subject.counters().await,
    );

    let now = store.now().await.unwrap();
    let mut late = moved(&sent, replied(&sent, failed("too late")), now);
    assert!(
        late.effects
            .iter()
            .any(|effect| matches!(effect, Effect::Alert(_)))
    );
    late.saga = old.clone();
    let unknown = Move {
        saga: Saga {
            id: SagaId(uuid::Uuid::now_v7()),
            ..old.clone()
        },
        ..late.clone()
    };

    assert_eq!(
        store.record(vec![late, unknown]).await.unwrap(),
        [Moved::Fenced, Moved::Fenced]
    );
    assert_eq!(subject.history(old.id).await, history);
    assert_eq!(subject.outbox().await, outbox);
    assert_eq!(subject.counters().await, counters);
    assert_eq!(subject.alerts().await, []);
    let stored = store
        .revise(Which::Ids(vec![old.id]), leave())
        .await
        .unwrap();
    assert_eq!(stored[0].saga, sent);
}

async fn a_move_changes_what_it_says_and_nothing_else(subject: &impl Subject) {
    let store = subject.store();
    let sagas = started(store, "o", 3).await;
    let now = store.now().await.unwrap();

    let middle = moved(&sagas[1], sending("first"), now);
    let twice = vec![middle.clone(), middle.clone()];
    let results = store.record(twice).await.unwrap();

    let [Moved::Stored(saga), Moved::Fenced] = &results[..] else {
        panic!("{results:?}")
    };
    assert_eq!(
        (saga.version, &saga.state, &saga.history),
        (2, &middle.state, &sagas[1].history)
    );
    let ids = sagas.iter().map(|saga| saga.id).collect();
    let stored = store.revise(Which::Ids(ids), leave()).await.unwrap();
    let stored: Vec<Saga> = stored.into_iter().map(|revised| revised.saga).collect();
    assert_eq!(
        stored,
        [sagas[0].clone(), (**saga).clone(), sagas[2].clone()]
    );
}

async fn history_has_no_gap_and_its_chain_verifies(subject: &impl Subject) {
    let store = subject.store();
    let saga = one(store, "o-1").await;
    let saga = answered(store, &saga, done()).await;
    let saga = answered(store, &saga, failed("out_of_stock")).await;
    let saga = answered(store, &saga, done()).await;
    assert_eq!(saga.state.status, Status::Compensated);

    let lines: Vec<Line> = subject.history(saga.id).await;

    let mut head = HistoryHead::EMPTY;
    for line in &lines {
        assert_eq!(
            (line.seq, line.hash),
            (head.seq + 1, head.hash_of(&line.text))
        );
        head = line.into();
    }
    assert_eq!(lines.len(), 4);
    assert_eq!(head, saga.history);
    let first: Value = serde_json::from_str(&lines[0].text).unwrap();
    assert_eq!(first["detail"]["event"], *saga.event);
}

async fn only_rows_past_their_wake_up_time_are_due_and_the_earliest_comes_first(
    subject: &impl Subject,
) {
    let store = subject.store();
    let sagas = started(store, "o", 4).await;
    let now = store.now().await.unwrap();
    let mut moves: Vec<Move> = sagas.iter().map(|saga| touched(saga, vec![])).collect();
    for (move_, seconds) in moves.iter_mut().zip([-5, 60, -7, -6]) {
        wake(move_, now + TimeDelta::seconds(seconds));
    }
    store.record(moves).await.unwrap();

    let due = revise_due(store, 2).await;
    let rest = revise_due(store, 10).await;
    let none = revise_due(store, 10).await;

    let ids = |revised: Vec<Revised>| {
        revised
            .iter()
            .map(|revised| revised.saga.id)
            .collect::<Vec<_>>()
    };
    assert!(
        due.iter()
            .all(|revised| revised.moved && revised.saga.version == 3)
    );
    assert_eq!(ids(due), [sagas[2].id, sagas[3].id]);
    assert_eq!(ids(rest), [sagas[0].id]);
    assert_eq!(ids(none), []);
}

async fn concurrent_claimers_get_disjoint_sagas(subject: &impl Subject) {
    let sagas = started(subject.store(), "o", 400).await;
    let now = subject.store().now().await.unwrap();
    let mut moves: Vec<Move> = sagas.iter().map(|saga| touched(saga, vec![])).collect();
    moves.iter_mut().for_each(|one| wake(one, now));
    subject.store().record(moves).await.unwrap();

    let claimers = (0..4).map(|_| {
        let store = subject.shared();
        tokio::spawn(async move {
            let mut mine = Vec::new();
            for _ in 0..10 {
                mine.extend(
                    revise_due(&*store, 25)
                        .await
                        .into_iter()
                        .map(|revised| revised.saga.id),
                );
            }
            mine
        })
    });
    let mut all = Vec::new();
    for claimer in claimers.collect::<Vec<_>>() {
        all.extend(claimer.await.unwrap());
    }

    assert_eq!(all.len(), 400);
    assert_eq!(
        BTreeSet::from_iter(all),
        BTreeSet::from_iter(sagas.iter().map(|saga| saga.id))
    );
}

async fn a_revised_saga_has_its_event(subject: &impl Subject) {
    let store = subject.store();
    let now = store.now().await.unwrap();
    let mut swept = start("o-2", now);
    swept.event = Arc::new(Value::Null);
    swept.due_at = None;
    let sagas = new_sagas(store.start(vec![start("o-1", now), swept]).await.unwrap());
    subject.pass(11).await;

    let due = revise_due(store, 10).await;

    for saga in sagas {
        let revised = due
            .iter()
            .find(|revised| revised.saga.id == saga.id)
            .expect("it is due");
        assert_eq!(
            (&revised.saga.event, revised.saga.due_at),
            (&saga.event, saga.due_at)
        );
    }
}

async fn what_is_left_alone_stays_as_it_is(subject: &impl Subject) {
    let store = subject.store();
    let saga = one(store, "o-1").await;

    let revised = store
        .revise(Which::Ids(vec![saga.id, saga.id]), leave())
        .await
        .unwrap();

    assert_eq!(revised.len(), 1);
    assert_eq!((&revised[0].saga, revised[0].moved), (&saga, false));
    assert_eq!(subject.history(saga.id).await.len(), 1);
}

async fn a_stale_reply_is_logged_and_changes_nothing(subject: &impl Subject) {
    let store = subject.store();
    let sagas = started(store, "o", 2).await;
    let reply = StaleReply {
        step: "first".to_owned(),
        attempt: 1,
        outcome: "failed".to_owned(),
        why: "another attempt is current".to_owned(),
    };
    let (late, id) = (reply.clone(), sagas[0].id);

    let decide = Arc::new(move |saga: &Saga, now| match saga.id == id {
        true => Decision::Stale(late.clone()),
        false => {
            let sent = moved(saga, sending("first"), now);
            Decision::Move(sent.state, sent.effects)
        }
    });
    let revised = store
        .revise(Which::Ids(vec![sagas[1].id, id]), decide)
        .await
        .unwrap();

    let versions: Vec<(SagaId, i64, bool)> = revised
        .iter()
        .map(|revised| (revised.saga.id, revised.saga.version, revised.moved))
        .collect();
    assert_eq!(versions, [(sagas[0].id, 1, false), (sagas[1].id, 2, true)]);
    assert_eq!(subject.stale_replies().await, [reply]);
    assert_eq!(subject.counters().await["stale_reply"], 1);
}

async fn a_saga_is_found_by_its_key_and_by_its_id(subject: &impl Subject) {
    let store = subject.store();
    let saga = started(store, "o", 3).await.remove(1);
    let key = |order: OrderKey| Which::Key {
        definition: "cancel".to_owned(),
        order,
    };

    let found = store
        .revise(key(saga.order.clone()), by(|_| sending("first")))
        .await
        .unwrap();
    let unknown = store.revise(key(order("nobody's")), leave()).await.unwrap();
    let unknown_id = store
        .revise(Which::Ids(vec![SagaId(uuid::Uuid::nil())]), leave())
        .await
        .unwrap();

    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].saga.id, found[0].saga.version, found[0].moved),
        (saga.id, 2, true)
    );
    assert_eq!((unknown, unknown_id), (vec![], vec![]));
}
