//! Messages: outcomes, the outbox, dead letters.

use lapse::store::{DeadLetter, Which};
use lapse_sagas::{Outcome, Timestamp};
use serde_json::{Value, json};

use super::builders::*;
use super::subject::Subject;

promises! {
    a_saga_at_rest_tells_its_outcome
    a_parked_saga_tells_what_failed_first_and_where_it_is_stuck
    outbox_messages_are_claimed_once_until_the_claim_expires
    a_dead_letter_is_stored_once
    another_record_at_the_same_place_is_another_dead_letter
    text_that_postgres_cannot_hold_is_stored_all_the_same
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

async fn a_parked_saga_tells_what_failed_first_and_where_it_is_stuck(subject: &impl Subject) {
    let store = subject.store();
    let saga = one(store, "o-1").await;
    let saga = answered(store, &saga, done()).await;
    let saga = answered(store, &saga, failed("busy: come again")).await;
    answered(store, &saga, failed("gone: nothing to undo")).await;

    let outbox = subject.outbox().await;

    assert_eq!(outbox.len(), 1);
    let outcome: Value = serde_json::from_str(&outbox[0].payload).unwrap();
    let class_at = |key: &str| (outcome[key]["step"].clone(), outcome[key]["class"].clone());
    assert_eq!(outcome["state"], "parked");
    assert_eq!(class_at("failure"), (json!("second"), json!("busy")));
    assert_eq!(class_at("stuck"), (json!("first"), json!("gone")));
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
    subject.pass(44).await;
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
        whole_bytes: value.len(),
        headers: json!({ "a": "b" }),
        appended_at: Timestamp::UNIX_EPOCH,
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
