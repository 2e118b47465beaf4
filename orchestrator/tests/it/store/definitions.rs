//! Definitions, counters, and what the sweep asks.

use std::sync::Arc;

use lapse::store::{Error, Standing};
use lapse_sagas::{Definition, Outcome};

use super::builders::*;
use super::subject::Subject;

promises! {
    standing_says_what_the_sweep_may_do
    a_version_with_other_content_is_refused_and_nothing_is_deployed
    a_definition_that_starts_for_the_orders_of_an_active_one_is_refused
    a_definition_takes_over_the_orders_that_an_active_one_gives_up_in_the_same_deployment
    of_two_that_deploy_the_same_orders_at_once_one_is_refused
    deploying_the_same_again_changes_nothing
    definitions_come_back_as_they_were
    counters_add_up
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
    let compensated = compensated(store, "compensated", "timeout").await;
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
        closed(compensated.id, "compensated"),
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
        definition_for("flash", "another", 1, ""),
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

async fn a_definition_that_starts_for_the_orders_of_an_active_one_is_refused(
    subject: &impl Subject,
) {
    let store = subject.store();
    let cancel = definition("cancel", 1, "");
    store.deploy(&[Arc::clone(&cancel)]).await.unwrap();

    let renamed = definition("renamed", 1, "");
    let deployed = [
        definition_for("flash", "another", 1, ""),
        Arc::clone(&renamed),
    ];
    let refused = store.deploy(&deployed).await.unwrap_err();

    assert!(matches!(&refused, Error::Overlap(_)), "{refused:?}");
    assert_eq!(
        refused.to_string(),
        "renamed and cancel both start for order.placed and order type normal; leave it to one of them; cancel is \
         active already and can't be retired yet: deploy its replacement under the name cancel, with a higher version"
    );
    let active = store.active().await.unwrap();
    assert_eq!((active.version, active.definitions), (1, vec![cancel]));
    let stored = store
        .definitions(std::slice::from_ref(&renamed.hash))
        .await
        .unwrap();
    assert_eq!(stored, [], "nothing of the deployment is kept");
    store.deploy(&[definition("cancel", 2, "")]).await.unwrap();
}

async fn a_definition_takes_over_the_orders_that_an_active_one_gives_up_in_the_same_deployment(
    subject: &impl Subject,
) {
    let store = subject.store();
    store.deploy(&[definition("cancel", 1, "")]).await.unwrap();

    let swapped = [
        definition("another", 1, ""),
        definition_for("flash", "cancel", 2, ""),
    ];
    let active = store.deploy(&swapped).await.unwrap();

    assert_eq!((active.version, active.definitions), (2, swapped.to_vec()));
}

async fn of_two_that_deploy_the_same_orders_at_once_one_is_refused(subject: &impl Subject) {
    let store = subject.store();
    let [one, other] = ["one", "other"].map(|name| [definition(name, 1, "")]);

    let patiently = |definitions| async move {
        loop {
            match store.deploy(definitions).await {
                Err(Error::Slow(_)) => {}
                deployed => return deployed,
            }
        }
    };
    let deployed = tokio::join!(patiently(&one), patiently(&other));

    let refused = match deployed {
        (Ok(_), Err(refused)) | (Err(refused), Ok(_)) => refused,
        both => panic!("{both:?}"),
    };
    assert!(matches!(&refused, Error::Overlap(_)), "{refused:?}");
    assert_eq!(store.active().await.unwrap().definitions.len(), 1);
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
        .deploy(&[Arc::clone(&two), definition_for("flash", "another", 1, "")])
        .await
        .unwrap();

    assert_eq!(active.version, 2);
    assert_eq!(
        active.definitions,
        [definition_for("flash", "another", 1, ""), two]
    );
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
