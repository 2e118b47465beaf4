//! Alerts: one per step, kind and class, sent until somebody looks after it.

use lapse::store::{Moved, ParticipantDown, Store};
use lapse_participants::kit::Overdue;
use lapse_sagas::event::AlertRaised;
use lapse_sagas::{Effect, Event, Status};

use super::builders::*;
use super::subject::Subject;

promises! {
    alerts_of_one_step_kind_and_class_are_one
    an_alert_is_sent_at_once_and_again_after_its_interval
    an_acknowledged_alert_is_silent_until_a_new_saga_joins_it
    an_alert_is_resolved_with_its_last_saga
    a_member_that_is_raised_again_changes_nothing
    an_order_left_unresolved_raises_one_alert
    a_participant_that_is_down_has_one_alert_until_it_is_up
    what_was_seen_before_a_participant_came_back_raises_nothing
    an_acknowledged_participant_alert_is_silent_until_it_is_down_again
    an_alert_about_a_participant_nobody_looks_at_any_more_is_settled
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

async fn seen_down(store: &dyn Store, class: &str, sagas: i64) {
    let down = ParticipantDown {
        participant: "orders".to_owned(),
        class: class.to_owned(),
        message: format!("{class}: on purpose"),
        sagas,
        seen_at: store.now().await.unwrap(),
    };
    store.participant_down(&down).await.unwrap();
}

async fn a_participant_that_is_down_has_one_alert_until_it_is_up(subject: &impl Subject) {
    let store = subject.store();
    seen_down(store, "unreachable", 3).await;
    let sent = store.claim_alerts(10).await.unwrap().remove(0);
    assert_eq!(
        (&*sent.definition, &*sent.step, &*sent.kind, &*sent.class),
        ("", "orders", "participant_down", "unreachable")
    );

    subject.pass(10).await;
    seen_down(store, "unanswered", 700).await;
    assert_eq!(
        store.claim_alerts(10).await.unwrap(),
        [],
        "it is sent already"
    );
    let alerts = subject.alerts().await;
    let seen: Vec<_> = alerts
        .iter()
        .map(|alert| (&*alert.state, &*alert.class, alert.sagas, alert.sends))
        .collect();
    assert_eq!(seen, [("open", "unanswered", 700, 1)]);

    for _ in 0..2 {
        store.participant_up("orders").await.unwrap();
        store.participant_up("stock").await.unwrap();
    }
    let alerts = subject.alerts().await;
    assert_eq!(
        (alerts.len(), &*alerts[0].state, alerts[0].sagas),
        (1, "resolved", 0)
    );
    subject.pass(3_600).await;
    assert_eq!(store.claim_alerts(10).await.unwrap(), []);

    seen_down(store, "unreachable", 1).await;
    assert_eq!(
        store.claim_alerts(10).await.unwrap()[0].sends,
        2,
        "another time is told"
    );
}

async fn what_was_seen_before_a_participant_came_back_raises_nothing(subject: &impl Subject) {
    let store = subject.store();
    seen_down(store, "unreachable", 3).await;
    store.claim_alerts(10).await.unwrap();
    let late = ParticipantDown {
        participant: "orders".to_owned(),
        class: "unanswered".to_owned(),
        message: "a probe that hung until just now".to_owned(),
        sagas: 3,
        seen_at: store.now().await.unwrap(),
    };
    store.participant_up("orders").await.unwrap();

    store.participant_down(&late).await.unwrap();

    assert_eq!(subject.alerts().await[0].state, "resolved");
    assert_eq!(store.claim_alerts(10).await.unwrap(), []);
}

async fn an_acknowledged_participant_alert_is_silent_until_it_is_down_again(
    subject: &impl Subject,
) {
    let store = subject.store();
    seen_down(store, "unreachable", 3).await;
    let fingerprint = store.claim_alerts(10).await.unwrap().remove(0).fingerprint;
    assert!(subject.acknowledge(&fingerprint).await);
    for _ in 0..5 {
        subject.pass(500).await;
        seen_down(store, "unreachable", 3).await;
    }
    assert_eq!(store.claim_alerts(10).await.unwrap(), []);
    assert_eq!(subject.alerts().await[0].state, "acknowledged");

    subject.pass(601).await;
    seen_down(store, "unreachable", 3).await;

    assert_eq!(
        store.claim_alerts(10).await.unwrap().len(),
        1,
        "silence ends the first time"
    );
}

async fn an_alert_about_a_participant_nobody_looks_at_any_more_is_settled(subject: &impl Subject) {
    let store = subject.store();
    seen_down(store, "unreachable", 3).await;
    subject.pass(1_000).await;
    assert_eq!(
        store.claim_alerts(10).await.unwrap().len(),
        1,
        "told once in any case"
    );

    subject.pass(1_801).await;

    assert_eq!(store.claim_alerts(10).await.unwrap(), []);
    assert_eq!(subject.alerts().await[0].state, "resolved");
}
