//! People find what they look for.

use lapse::store::Store;
use lapse::store::ops::{Closing, Filter, Find, LetterFilter, Ops};
use lapse_sagas::Outcome;

use super::builders::*;
use super::subject::InPostgres;

fn page(limit: u32) -> Filter {
    Filter {
        limit,
        ..Filter::default()
    }
}

#[tokio::test]
async fn sagas_are_listed_newest_first_page_by_page() {
    let subject = InPostgres::create().await;
    let sagas = started(&subject.store, "o", 5).await;
    let ops = Ops::new(subject.db.clone());

    let first = ops.list(page(2)).await.unwrap();
    let after = first.last().map(|row| lapse_sagas::SagaId(row.saga_id));
    let second = ops.list(Filter { after, ..page(10) }).await.unwrap();

    let listed: Vec<_> = first.iter().chain(&second).map(|row| row.saga_id).collect();
    let mut newest_first: Vec<_> = sagas.iter().map(|saga| saga.id.0).collect();
    newest_first.sort();
    newest_first.reverse();
    assert_eq!(listed, newest_first);
}

#[tokio::test]
async fn a_list_can_be_narrowed_by_state_definition_and_order() {
    let subject = InPostgres::create().await;
    let store = &subject.store;
    started(store, "live", 2).await;
    let saga = compensated(store, "gone", "timeout: no answer").await;
    let ops = Ops::new(subject.db.clone());
    let some = |text: &str| Some(text.to_owned());

    let by_state = ops
        .list(Filter {
            state: some("compensated"),
            ..page(10)
        })
        .await
        .unwrap();
    let by_order = ops
        .list(Filter {
            order_id: some("live-1"),
            ..page(10)
        })
        .await
        .unwrap();
    let by_definition = ops
        .list(Filter {
            definition: some("cancel"),
            ..page(10)
        })
        .await
        .unwrap();
    let none = ops
        .list(Filter {
            order_id: some("live-1"),
            state: some("parked"),
            ..page(10)
        })
        .await
        .unwrap();

    assert_eq!(by_state.len(), 1);
    assert_eq!(
        (by_state[0].saga_id, by_state[0].reason.as_deref()),
        (saga.id.0, Some("timeout: no answer"))
    );
    assert!(by_state[0].lateness_ms.is_some() && by_state[0].wake_at.is_none());
    assert_eq!(by_order.len(), 1);
    assert_eq!(
        (&*by_order[0].order_id, by_order[0].phase.as_deref()),
        ("live-1", Some("taken"))
    );
    assert_eq!((by_definition.len(), none.len()), (3, 0));
}

#[tokio::test]
async fn a_story_tells_all_that_happened_and_its_alerts() {
    let subject = InPostgres::create().await;
    let saga = compensated(&subject.store, "o", "timeout: no answer").await;
    let ops = Ops::new(subject.db.clone());

    let story = ops
        .show(Find::Saga(saga.id))
        .await
        .unwrap()
        .expect("it is there");
    let order = Find::Order {
        tenant: "default".to_owned(),
        order_id: "o".to_owned(),
    };
    let by_order = ops.show(order).await.unwrap().expect("it is there");
    let nobody = Find::Order {
        tenant: "default".to_owned(),
        order_id: "nobody's".to_owned(),
    };

    assert_eq!(story.saga.state, "compensated");
    let kinds: Vec<&str> = story.timeline.iter().map(|row| &*row.kind).collect();
    assert_eq!(kinds, ["started", "replied"]);
    assert_eq!(story.timeline[1].step.as_deref(), Some("first"));
    assert_eq!(
        story.timeline[0].detail.as_ref().unwrap()["event"]["order_id"],
        "o"
    );
    assert_eq!(story.timeline[1].hash, hex::encode(saga.history.hash));
    assert_eq!(
        (story.alerts.len(), &*story.alerts[0].class),
        (1, "timeout")
    );
    assert_eq!(by_order.saga.saga_id, saga.id.0);
    assert!(ops.show(nobody).await.unwrap().is_none());
}

#[tokio::test]
async fn alerts_throughput_and_lateness_are_seen() {
    let subject = InPostgres::create().await;
    let store = &subject.store;
    let saga = compensated(store, "o", "timeout").await;
    let skipped = one(store, "paid").await;
    answered(
        store,
        &skipped,
        Outcome::NotApplicable {
            reason: "paid".to_owned(),
        },
    )
    .await;
    started(store, "late", 1).await;
    subject
        .run("update lapse.saga set due_at = now() - interval '5 minutes' where state = 'running'")
        .await;
    let ops = Ops::new(subject.db.clone());

    let open = ops.open_alerts().await.unwrap();
    assert_eq!((open.len(), open[0].sagas), (1, 1));
    assert!(ops.acknowledge(&open[0].fingerprint, "ann").await.unwrap());
    assert_eq!(ops.open_alerts().await.unwrap().len(), 0);
    assert_eq!(
        ops.alerts().await.unwrap()[0].acknowledged_by.as_deref(),
        Some("ann")
    );

    let throughput = ops.throughput(10).await.unwrap();
    let counted = |counter: &str| {
        throughput
            .iter()
            .filter(|row| row.counter == counter)
            .map(|row| row.n)
            .sum::<i64>()
    };
    assert_eq!(
        (
            counted("started"),
            counted("compensated"),
            counted("skipped")
        ),
        (3, 1, 1)
    );
    assert!(throughput.iter().all(|row| row.order_type == "normal"));

    assert!((300..400).contains(&ops.oldest_overdue_s().await.unwrap()));
    let overdue = ops.overdue(10).await.unwrap();
    assert_eq!((overdue.len(), &*overdue[0].order_id), (1, "late-0"));
    assert_eq!(saga.state.wake_at(), None);
}

#[tokio::test]
async fn dead_letters_are_shown_with_their_bytes_whatever_they_are() {
    let subject = InPostgres::create().await;
    let letter = lapse::store::DeadLetter {
        topic: "lapse.delay.15m".to_owned(),
        partition: 0,
        offset: 42,
        key: None,
        value: Some(vec![b'{', 0, 0xff]),
        whole_bytes: 3,
        appended_at: "2026-01-02T03:04:05Z".parse().unwrap(),
        headers: serde_json::json!({}),
        reason: "not_json".to_owned(),
        detail: "control character".to_owned(),
    };
    subject.store.dead_letter(vec![letter]).await.unwrap();

    let ops = Ops::new(subject.db.clone());
    let ten = LetterFilter {
        limit: 10,
        ..LetterFilter::default()
    };
    let rows = ops.dead_letters(ten.clone()).await.unwrap();

    assert_eq!((rows[0].offset, rows[0].value_bytes), (42, Some(3)));
    assert_eq!(rows[0].value.as_deref(), Some(r"{\000\377"));
    assert_eq!((rows[0].state.as_str(), rows[0].is_cut), ("open", false));
    let one = ops.dead_letter(rows[0].id).await.unwrap().unwrap();
    assert_eq!(one.raw_value, Some(vec![b'{', 0, 0xff]));

    let discarded = Closing::Discarded {
        note: "a test's".to_owned(),
    };
    let closed = ops.close_letter(rows[0].id, discarded.clone(), "ann").await;
    assert_eq!(closed.unwrap().as_deref(), Some("discarded"));
    let again = ops.close_letter(rows[0].id, discarded, "bob").await;
    assert_eq!(again.unwrap(), None, "only once");
    let refused = Closing::Refused {
        error: "not_json: again".to_owned(),
    };
    let refused = ops.close_letter(rows[0].id, refused, "bob").await;
    assert_eq!(refused.unwrap(), None);
    let groups = ops.dead_letter_groups(ten).await.unwrap();
    assert_eq!(
        (
            groups[0].reason.as_str(),
            groups[0].state.as_str(),
            groups[0].letters
        ),
        ("not_json", "discarded", 1)
    );
    let counted = ops.letters_by_state().await.unwrap();
    let counted: Vec<_> = counted
        .iter()
        .map(|one| (one.state.as_str(), one.letters))
        .collect();
    let expected = [
        ("discarded", 1),
        ("open", 0),
        ("quarantined", 0),
        ("replayed", 0),
    ];
    assert_eq!(counted, expected);
}
