//! Promises that both stores keep. Each runs twice.

use std::collections::BTreeSet;
use std::sync::Arc;

use chrono::TimeDelta;
use lapse::store::history::Line;
use lapse::store::{
    DeadLetter, Decision, Error, HistoryHead, Move, Moved, Saga, StaleReply, Standing, Started,
    Which,
};
use lapse_participants::kit::{OrderKey, Overdue};
use lapse_sagas::event::AlertRaised;
use lapse_sagas::{Definition, Effect, Event, Outcome, SagaId, Status};
use serde_json::{Value, json};

use super::builders::*;
use super::subject::{InMemory, InPostgres, Subject};

macro_rules! promises {
    ($($name:ident)*) => {
        mod in_memory {
            $(#[tokio::test]
            async fn $name() {
                super::$name(&super::InMemory::create().await).await;
            })*
        }
        mod in_postgres {
            $(#[tokio::test]
            async fn $name() {
                super::$name(&super::InPostgres::create().await).await;
            })*
        }
    };
}

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
    alerts_of_one_step_kind_and_class_are_one
    an_alert_is_sent_at_once_and_again_after_its_interval
    an_acknowledged_alert_is_silent_until_a_new_saga_joins_it
    an_alert_is_resolved_with_its_last_saga
    a_member_that_is_raised_again_changes_nothing
    an_order_left_unresolved_raises_one_alert
    a_saga_at_rest_tells_its_outcome
    outbox_messages_are_claimed_once_until_the_claim_expires
    a_dead_letter_is_stored_once
    another_record_at_the_same_place_is_another_dead_letter
    standing_says_what_the_sweep_may_do
    a_version_with_other_content_is_refused_and_nothing_is_deployed
    deploying_the_same_again_changes_nothing
    definitions_come_back_as_they_were
    counters_add_up
    text_that_postgres_cannot_hold_is_stored_all_the_same
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

    let ids = |revised: Vec<lapse::store::Revised>| {
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

async fn alerts_of_one_step_kind_and_class_are_one(subject: &impl Subject) {
    let store = subject.store();
    let sagas = started(store, "o", 3).await;
    let now = store.now().await.unwrap();
    let sent = store
        .record(
            sagas
                .iter()
                .map(|saga| moved(saga, sending("first"), now))
                .collect(),
        )
        .await
        .unwrap();
    let errors = ["timeout: a", "timeout: b", "refused"];
    let moves = sent.iter().zip(errors).map(|(sent, error)| match sent {
        Moved::Stored(saga) => moved(saga, replied(saga, failed(error)), now),
        Moved::Fenced => panic!("fenced"),
    });
    store.record(moves.collect()).await.unwrap();
    compensated(store, "another", "timeout: c").await;

    let alerts = subject.alerts().await;

    let mut seen: Vec<_> = alerts
        .iter()
        .map(|alert| (&*alert.class, &*alert.kind, &*alert.state, alert.sagas))
        .collect();
    seen.sort();
    assert_eq!(
        seen,
        [
            ("refused", "compensated", "open", 1),
            ("timeout", "compensated", "open", 3)
        ]
    );
    assert!(alerts.iter().any(|alert| alert.message == "timeout: c"));
}

async fn an_alert_is_sent_at_once_and_again_after_its_interval(subject: &impl Subject) {
    let store = subject.store();
    store.deploy(&[cancel()]).await.unwrap();
    let saga = compensated(store, "o-1", "timeout").await;
    let before = subject.outbox().await.len();

    let sent = store.claim_alerts(10).await.unwrap();
    assert_eq!(sent.len(), 1);
    assert_eq!(
        (
            &*sent[0].definition,
            &*sent[0].step,
            sent[0].sagas,
            sent[0].sends
        ),
        ("cancel", "first", 1, 1)
    );
    let outbox = subject.outbox().await;
    assert_eq!(outbox.len(), before + 1);
    let message = outbox.last().unwrap();
    assert_eq!(
        (&*message.topic, &message.key),
        ("alerts", &sent[0].fingerprint)
    );

    assert_eq!(store.claim_alerts(10).await.unwrap(), []);
    subject.pass(60).await;
    assert_eq!(
        store.claim_alerts(10).await.unwrap(),
        [],
        "the definition says two minutes"
    );
    subject.pass(61).await;
    assert_eq!(store.claim_alerts(10).await.unwrap()[0].sends, 2);
    assert_eq!(saga.state.status, Status::Compensated);
}

async fn an_acknowledged_alert_is_silent_until_a_new_saga_joins_it(subject: &impl Subject) {
    let store = subject.store();
    compensated(store, "o-1", "timeout").await;
    let fingerprint = store.claim_alerts(10).await.unwrap().remove(0).fingerprint;

    assert!(subject.acknowledge(&fingerprint).await);
    assert!(
        !subject.acknowledge(&fingerprint).await,
        "it is not open any more"
    );
    assert!(!subject.acknowledge("nobody's").await);
    subject.pass(3_600).await;
    assert_eq!(store.claim_alerts(10).await.unwrap(), []);

    compensated(store, "o-2", "timeout").await;
    let sent = store.claim_alerts(10).await.unwrap();
    assert_eq!((sent.len(), sent[0].sagas, sent[0].sends), (1, 2, 2));
}

async fn an_alert_is_resolved_with_its_last_saga(subject: &impl Subject) {
    let store = subject.store();
    let a = compensated(store, "o-1", "timeout").await;
    let b = compensated(store, "o-2", "timeout").await;
    let resolve = || Event::Resolve {
        actor: "ann".to_owned(),
        reason: "by hand".to_owned(),
    };
    let retry = Event::Retry {
        actor: "ann".to_owned(),
        reason: "again".to_owned(),
    };

    let a = happens(store, &a, retry).await;
    let alerts = subject.alerts().await;
    assert_eq!((&*alerts[0].state, alerts[0].sagas), ("open", 1));

    happens(store, &b, resolve()).await;
    let alerts = subject.alerts().await;
    assert_eq!((&*alerts[0].state, alerts[0].sagas), ("resolved", 0));
    subject.pass(3_600).await;
    assert_eq!(store.claim_alerts(10).await.unwrap(), []);

    answered(store, &a, failed("timeout")).await;
    let alerts = subject.alerts().await;
    assert_eq!((&*alerts[0].state, alerts[0].sagas), ("open", 1));
    let counters = subject.counters().await;
    assert_eq!(
        (
            counters["compensated"],
            counters["resumed"],
            counters["resolved"]
        ),
        (3, 1, 1)
    );
}

async fn a_member_that_is_raised_again_changes_nothing(subject: &impl Subject) {
    let store = subject.store();
    let saga = one(store, "o-1").await;
    let alert = |message: &str| {
        Effect::Alert(AlertRaised {
            kind: "continued".to_owned(),
            step: "first".into(),
            class: "timeout".to_owned(),
            message: message.to_owned(),
        })
    };
    let twice = touched(&saga, vec![alert("one"), alert("two")]);
    let Moved::Stored(saga) = store.record(vec![twice]).await.unwrap().remove(0) else {
        panic!("fenced")
    };
    let fingerprint = subject.alerts().await.remove(0).fingerprint;
    assert!(subject.acknowledge(&fingerprint).await);

    store
        .record(vec![touched(&saga, vec![alert("three")])])
        .await
        .unwrap();

    let alert = subject.alerts().await.remove(0);
    assert_eq!((&*alert.state, alert.sagas), ("acknowledged", 1));
}

async fn an_order_left_unresolved_raises_one_alert(subject: &impl Subject) {
    let store = subject.store();
    let saga = one(store, "o-1").await;
    let overdue = Overdue {
        order: order("o-1"),
        order_type: "normal".to_owned(),
        due_at: store.now().await.unwrap(),
    };

    for _ in 0..3 {
        store
            .alert_unresolved("cancel", &[(saga.id, overdue.clone())])
            .await
            .unwrap();
    }

    let sent = store.claim_alerts(10).await.unwrap();
    assert_eq!(
        (sent.len(), &*sent[0].kind, sent[0].sagas),
        (1, "unresolved", 1)
    );
    assert!(sent[0].message.contains("o-1"));
}

async fn a_saga_at_rest_tells_its_outcome(subject: &impl Subject) {
    let store = subject.store();
    let saga = one(store, "o-1").await;
    let paid = Outcome::NotApplicable {
        reason: "paid".to_owned(),
    };
    let saga = answered(store, &saga, paid).await;
    compensated(store, "o-2", "timeout: no answer").await;

    let outbox = subject.outbox().await;

    assert_eq!(outbox.len(), 2);
    assert_eq!((&*outbox[0].topic, &*outbox[0].key), ("outcomes", "o-1"));
    let outcome: Value = serde_json::from_str(&outbox[0].payload).unwrap();
    assert_eq!(outcome["saga_id"], json!(saga.id));
    assert_eq!(outcome["definition"], "cancel");
    assert_eq!(outcome["tenant"], "default");
    assert_eq!(outcome["order_id"], "o-1");
    assert_eq!(outcome["generation"], 1);
    assert_eq!(outcome["order_type"], "normal");
    assert_eq!(
        (&outcome["state"], &outcome["reason"]),
        (&json!("skipped"), &json!("paid"))
    );
    assert_eq!(outcome["due_at"], json!(saga.due_at));
    assert!(outcome["finished_at"].is_string());
    assert!(
        outcome["lateness_ms"]
            .as_i64()
            .is_some_and(|ms| (0..60_000).contains(&ms))
    );
    let outcome: Value = serde_json::from_str(&outbox[1].payload).unwrap();
    assert_eq!(
        (&outcome["state"], &outcome["failure"]["class"]),
        (&json!("compensated"), &json!("timeout"))
    );
}

async fn outbox_messages_are_claimed_once_until_the_claim_expires(subject: &impl Subject) {
    let store = subject.store();
    for order in ["o-1", "o-2", "o-3"] {
        compensated(store, order, "timeout").await;
    }

    let first = store.claim_outbox(2).await.unwrap();
    let second = store.claim_outbox(10).await.unwrap();
    let third = store.claim_outbox(10).await.unwrap();
    assert_eq!(
        first
            .iter()
            .map(|message| &*message.key)
            .collect::<Vec<_>>(),
        ["o-1", "o-2"]
    );
    assert_eq!(
        second
            .iter()
            .map(|message| &*message.key)
            .collect::<Vec<_>>(),
        ["o-3"]
    );
    assert_eq!(third, []);

    store
        .delete_outbox(&[first[1].id, second[0].id])
        .await
        .unwrap();
    subject.pass(9).await;
    assert_eq!(store.claim_outbox(10).await.unwrap(), []);
    subject.pass(2).await;
    assert_eq!(store.claim_outbox(10).await.unwrap(), [first[0].clone()]);
}

fn letter(offset: i64, value: &str) -> DeadLetter {
    DeadLetter {
        topic: "lapse.delay.15m".to_owned(),
        partition: 3,
        offset,
        key: Some(b"o-1".to_vec()),
        value: Some(value.as_bytes().to_vec()),
        headers: json!({ "a": "b" }),
        reason: "not_json".to_owned(),
        detail: "expected value at line 1 column 1".to_owned(),
    }
}

async fn a_dead_letter_is_stored_once(subject: &impl Subject) {
    let store = subject.store();

    store
        .dead_letter(vec![letter(7, "x"), letter(7, "x"), letter(8, "y")])
        .await
        .unwrap();
    store.dead_letter(vec![letter(7, "x")]).await.unwrap();

    assert_eq!(subject.dead_letters().await, 2);
    let outbox = subject.outbox().await;
    assert_eq!(outbox.len(), 2);
    assert_eq!(
        (&*outbox[0].topic, &*outbox[0].key),
        ("dead-letters", "o-1")
    );
    let message: Value = serde_json::from_str(&outbox[0].payload).unwrap();
    assert_eq!(
        (&message["offset"], &message["reason"], &message["value"]),
        (&json!(7), &json!("not_json"), &json!("x"))
    );
    assert_eq!(subject.counters().await["dead_letter"], 2);
}

async fn another_record_at_the_same_place_is_another_dead_letter(subject: &impl Subject) {
    let store = subject.store();

    store
        .dead_letter(vec![
            letter(7, "before the topic was made anew"),
            letter(7, "after"),
        ])
        .await
        .unwrap();

    assert_eq!(subject.dead_letters().await, 2);
    assert_eq!(subject.outbox().await.len(), 2);
}

async fn standing_says_what_the_sweep_may_do(subject: &impl Subject) {
    let store = subject.store();
    let live = one(store, "live").await;
    let skipped = one(store, "skipped").await;
    answered(
        store,
        &skipped,
        Outcome::NotApplicable {
            reason: "paid".to_owned(),
        },
    )
    .await;
    let completed = one(store, "completed").await;
    let completed = answered(store, &completed, done()).await;
    answered(store, &completed, done()).await;
    compensated(store, "compensated", "timeout").await;
    let mut revived = live.order.clone();
    revived.generation = 2;

    let mut keys = ["completed", "live", "none", "skipped", "compensated"]
        .map(order)
        .to_vec();
    keys.push(revived);
    let standing = store.standing("cancel", &keys).await.unwrap();

    let closed = |saga_id, state: &str| Standing::Closed {
        saga_id,
        state: state.to_owned(),
    };
    let expected = [
        closed(completed.id, "completed"),
        Standing::InHand,
        Standing::None,
        closed(skipped.id, "skipped"),
        Standing::InHand,
        Standing::None,
    ];
    assert_eq!(standing, expected);
    assert_eq!(
        store.standing("other", &keys[..1]).await.unwrap(),
        [Standing::None]
    );
}

async fn a_version_with_other_content_is_refused_and_nothing_is_deployed(subject: &impl Subject) {
    let store = subject.store();
    store.deploy(&[definition("cancel", 1, "")]).await.unwrap();

    let changed = [
        definition("another", 1, ""),
        definition("cancel", 1, "changed"),
    ];
    let refused = store.deploy(&changed).await.unwrap_err();

    assert!(
        matches!(&refused, Error::VersionTaken { name, version: 1 } if name == "cancel"),
        "{refused}"
    );
    let active = store.active().await.unwrap();
    assert_eq!(
        (active.version, active.definitions),
        (1, vec![definition("cancel", 1, "")])
    );
}

async fn deploying_the_same_again_changes_nothing(subject: &impl Subject) {
    let store = subject.store();
    assert_eq!(store.active().await.unwrap().version, 0);
    let (one, two) = (
        definition("cancel", 1, ""),
        definition("cancel", 2, "better"),
    );

    assert_eq!(store.deploy(&[Arc::clone(&one)]).await.unwrap().version, 1);
    assert_eq!(store.deploy(&[Arc::clone(&one)]).await.unwrap().version, 1);
    let active = store
        .deploy(&[Arc::clone(&two), definition("another", 1, "")])
        .await
        .unwrap();

    assert_eq!(active.version, 2);
    assert_eq!(active.definitions, [definition("another", 1, ""), two]);
    assert_eq!(
        store.deploy(&[one]).await.unwrap().version,
        3,
        "back to the version before"
    );
}

async fn definitions_come_back_as_they_were(subject: &impl Subject) {
    let store = subject.store();
    let all: Vec<Arc<Definition>> = [1, 2]
        .map(|version| definition("cancel", version, "ü \"quoted\""))
        .to_vec();
    store.deploy(&all[..1]).await.unwrap();
    store.deploy(&all[1..]).await.unwrap();

    let hashes = [all[1].hash.clone(), "unknown".into(), all[0].hash.clone()];
    assert_eq!(store.definitions(&hashes).await.unwrap(), all);
}

async fn counters_add_up(subject: &impl Subject) {
    let store = subject.store();
    store.count("cancel", "dropped_paid", 3).await.unwrap();
    store.count("cancel", "dropped_paid", 2).await.unwrap();
    let saga = one(store, "o-1").await;
    let saga = answered(store, &saga, done()).await;
    answered(store, &saga, done()).await;

    let counters = subject.counters().await;

    let expected = [("completed", 1), ("dropped_paid", 5), ("started", 1)];
    assert_eq!(
        counters,
        expected.map(|(name, n)| (name.to_owned(), n)).into()
    );
}

async fn text_that_postgres_cannot_hold_is_stored_all_the_same(subject: &impl Subject) {
    let store = subject.store();
    let saga = one(store, "o-1").await;
    let output = Outcome::Done {
        output: json!({ "text": "a\0b" }),
    };
    let saga = answered(store, &saga, output).await;
    answered(store, &saga, failed("odd: \0")).await;
    store
        .dead_letter(vec![DeadLetter {
            detail: "\0".to_owned(),
            headers: json!({ "a": "\0" }),
            ..letter(1, "\0")
        }])
        .await
        .unwrap();

    let revised = store
        .revise(Which::Ids(vec![saga.id]), leave())
        .await
        .unwrap();

    assert_eq!(revised[0].saga.history.seq, 3);
    assert_eq!(subject.dead_letters().await, 1);
}
