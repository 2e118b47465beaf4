//! `verify` finds what is wrong, and nothing where nothing is.

use lapse::store::Store;
use lapse::store::verify::{Check, verify};
use lapse_sagas::{Effect, Event, Outcome};

use super::builders::*;
use super::subject::InPostgres;

async fn check(subject: &InPostgres, id: &str) -> Check {
    let checks = verify(&subject.db).await.unwrap();
    checks.into_iter().find(|check| check.id == id).unwrap()
}

/// Something of everything: live, completed, skipped, compensated, retried, resolved, a dead letter, a stale reply.
async fn lived_in() -> InPostgres {
    let subject = InPostgres::create().await;
    let store = &subject.store;
    store.deploy(&[cancel()]).await.unwrap();
    started(store, "live", 3).await;
    let saga = one(store, "completed").await;
    let saga = answered(store, &saga, done()).await;
    answered(store, &saga, done()).await;
    let saga = one(store, "skipped").await;
    answered(
        store,
        &saga,
        Outcome::NotApplicable {
            reason: "paid".to_owned(),
        },
    )
    .await;
    compensated(store, "compensated", "timeout").await;
    let saga = compensated(store, "retried", "timeout").await;
    let retry = Event::Retry {
        actor: "ann".to_owned(),
        reason: "again".to_owned(),
    };
    let saga = happens(store, &saga, retry).await;
    let saga = answered(store, &saga, failed("timeout")).await;
    happens(
        store,
        &saga,
        Event::Resolve {
            actor: "ann".to_owned(),
            reason: "by hand".to_owned(),
        },
    )
    .await;
    let saga = one(store, "parked").await;
    answered(store, &saga, Outcome::Expired).await;
    subject
}

#[tokio::test]
async fn verify_finds_nothing_where_nothing_is_wrong_and_says_what_it_looked_at() {
    let subject = lived_in().await;

    let checks = verify(&subject.db).await.unwrap();

    for check in &checks {
        assert!(check.ok && check.violations == 0, "{check:?}");
        assert!(check.checked > 0, "{check:?}");
    }
    assert_eq!(checks.len(), 7);
    let empty = InPostgres::create().await;
    assert!(
        verify(&empty.db)
            .await
            .unwrap()
            .iter()
            .all(|check| check.ok && check.checked == 0)
    );
}

#[tokio::test]
async fn verify_finds_every_kind_of_damage() {
    let damages = [
        (
            "doubled_saga",
            "update lapse.saga set business_key = 'live-0' where business_key = 'live-1'",
        ),
        (
            "forgotten",
            "update lapse.saga set wake_at = now() - interval '2 minutes' where business_key = 'live-0'",
        ),
        (
            "forgotten",
            "update lapse.alert set state = 'resolved', next_send_at = null where kind = 'parked'",
        ),
        (
            "alert_missing",
            "delete from lapse.alert_member where fingerprint in (select fingerprint from lapse.alert where kind = 'parked')",
        ),
        (
            "history_gap",
            "delete from lapse.history where seq = 2 and saga_id = (select saga_id from lapse.saga where state = 'completed')",
        ),
        (
            "history_gap",
            "update lapse.history set entry = replace(entry, 'live-2', 'live-9') where entry like '%live-2%'",
        ),
        (
            "history_gap",
            "update lapse.saga set history_seq = history_seq + 1 where business_key = 'live-0'",
        ),
        (
            "outbox_stuck",
            "update lapse.outbox set created_at = now() - interval '2 minutes'",
        ),
        (
            "rollup_mismatch",
            "update lapse.rollup_minute set n = n + 1 where counter = 'completed'",
        ),
    ];
    for (id, sql) in damages {
        let subject = lived_in().await;
        assert!(subject.run(sql).await > 0, "{sql}");

        let found = check(&subject, id).await;

        assert!(
            !found.ok && found.violations > 0 && !found.rows.is_empty(),
            "{id} did not find: {sql}"
        );
    }
}

#[tokio::test]
async fn verify_finds_attempts_over_the_definition_s_policy() {
    let subject = lived_in().await;
    let store = &subject.store;
    let saga = one(store, "o").await;
    let sent = happens(store, &saga, sending("first")).await;
    let now = store.now().await.unwrap();
    let Effect::History(entry) = moved(&sent, replied(&sent, failed("again")), now)
        .effects
        .into_iter()
        .find(|effect| matches!(effect, Effect::History(_)))
        .unwrap()
    else {
        unreachable!()
    };
    let twice = vec![Effect::History(entry.clone()), Effect::History(entry)];
    store.record(vec![touched(&sent, twice)]).await.unwrap();

    let found = check(&subject, "attempts_over_policy").await;

    assert_eq!(
        (
            found.violations,
            &found.rows[0]["attempts"],
            &found.rows[0]["allowed"]
        ),
        (1, &2.into(), &1.into())
    );
    assert!(check(&subject, "history_gap").await.ok);
}
