//! What is posted, when, how often, and what is never done.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lapse::config::{Alerts, Webhook};
use lapse::store::Store;
use lapse::store::pg::PgStore;
use lapse::store::webhooks::Deliveries;
use lapse::webhooks::{self, Deliverer};
use lapse_sagas::{Event, Span};
use sqlx::Row;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::receiver::{Does, Receiver};
use super::{NEXT_SECRET, SECRET};
use crate::store::builders::{cancel, compensated, happens};
use crate::store::subject::InPostgres;
use crate::support::live::free_address;
use crate::support::until;

const SOON: Duration = Duration::from_secs(20);

/// A database and the settings of the webhooks, over which coordinators can be started.
struct Stage {
    subject: InPostgres,
    alerts: Alerts,
    store: PgStore,
}

/// What one coordinator does for its webhooks; stops when dropped.
struct Posting {
    _posting: Vec<AbortOnDropHandle<()>>,
}

fn to(url: String) -> Webhook {
    Webhook {
        url,
        secret: SECRET.into(),
        timeout: Span::from_secs(2),
        ..Webhook::default()
    }
}

/// An error class of its own for each number below 676, and so an alert.
fn class(n: u8) -> String {
    let letter = |n: u8| char::from(b'a' + n % 26);
    format!("class_{}{}", letter(n / 26), letter(n))
}

impl Stage {
    async fn with(hooks: impl IntoIterator<Item = (&'static str, Webhook)>) -> Stage {
        let subject = InPostgres::create().await;
        subject.store.deploy(&[cancel()]).await.unwrap();
        let hooks = hooks
            .into_iter()
            .map(|(name, webhook)| (name.to_owned(), webhook));
        let alerts = Alerts {
            webhooks: hooks.collect(),
        };
        let store = subject.store.clone().telling(webhooks::routes(&alerts));
        Stage {
            subject,
            alerts,
            store,
        }
    }

    fn post(&self) -> Posting {
        let deliverers = webhooks::open(&self.alerts).unwrap().into_iter();
        let posting = deliverers.map(|webhook| {
            let deliverer = Deliverer {
                webhook,
                deliveries: Deliveries::new(self.subject.db.clone()),
            };
            let posting = async move { deliverer.run(&CancellationToken::new()).await };
            AbortOnDropHandle::new(tokio::spawn(posting))
        });
        Posting {
            _posting: posting.collect(),
        }
    }

    /// A saga that people must look at, and the alert about it claimed.
    async fn alert(&self, order_id: &str, class: &str) {
        compensated(&self.store, order_id, class).await;
        self.store.claim_alerts(100).await.unwrap();
    }

    /// How many deliveries are in a state.
    async fn are(&self, state: &str, count: i64) {
        let what = format!("{count} deliveries are {state}");
        until(&what, SOON, || async {
            let counted: i64 = sqlx::query_scalar(
                "select count(*) from ops_v1.webhook_deliveries where state = $1",
            )
            .bind(state)
            .fetch_one(&self.subject.pool)
            .await
            .unwrap();
            (counted == count).then_some(())
        })
        .await;
    }

    /// Waits for a try that was not taken; gives its error and for how long the post waits now.
    async fn not_taken(&self) -> (String, i64) {
        until("a post was not taken", SOON, || async {
            let row = sqlx::query(
                "select last_error, extract(epoch from next_try_at - now())::bigint from lapse.webhook_delivery
                 where last_error is not null order by id limit 1",
            )
            .fetch_optional(&self.subject.pool)
            .await
            .unwrap()?;
            Some((row.get(0), row.get(1)))
        })
        .await
    }

    /// Lets time pass for what was not taken.
    async fn pass(&self, sql: &'static str) {
        self.not_taken().await;
        assert_eq!(self.subject.run(sql).await, 1);
    }
}

const NEARLY_A_DAY: &str =
    "update lapse.webhook_delivery set next_try_at = next_try_at - interval '23 hours',
  created_at = created_at - interval '23 hours', last_error = null where last_error is not null";
const AN_HOUR: &str =
    "update lapse.webhook_delivery set next_try_at = next_try_at - interval '1 hour',
  created_at = created_at - interval '1 hour', last_error = null where last_error is not null";

#[tokio::test]
async fn an_alert_is_posted_signed_and_again_under_the_same_id_until_it_is_taken() {
    let receiver = Receiver::start([500, 503, 404].map(Does::Answer)).await;
    let stage = Stage::with([("pager", to(receiver.url()))]).await;
    let _posting = stage.post();

    stage.alert("o-1", "timeout").await;
    for attempt in 1..=3 {
        receiver.got(attempt).await;
        let (error, wait_s) = stage.not_taken().await;
        assert!(error.contains("not now, please"), "{error}");
        assert!(
            wait_s <= 5 << (attempt - 1),
            "waits {wait_s} s after {attempt}"
        );
        stage.pass(AN_HOUR).await;
    }
    stage.are("delivered", 1).await;

    let posts = receiver.posts();
    assert_eq!(posts.len(), 4);
    for post in &posts {
        assert_eq!(post.verify(SECRET), Ok(()));
        assert_eq!((post.id(), &post.body), (posts[0].id(), &posts[0].body));
    }
    let body = posts[0].json();
    assert_eq!(body["format"], "lapse-alert/v1");
    assert_eq!(
        (&body["type"], &body["id"]),
        (&"alert.raised".into(), &posts[0].id().into())
    );
    let data = &body["data"];
    assert_eq!(
        (
            &data["kind"],
            &data["class"],
            &data["sagas"],
            &data["sends"]
        ),
        (
            &"compensated".into(),
            &"timeout".into(),
            &1.into(),
            &1.into()
        )
    );
}

#[tokio::test]
async fn a_receiver_sees_tampering_replay_and_a_wrong_key() {
    let receiver = Receiver::start([]).await;
    let stage = Stage::with([("pager", to(receiver.url()))]).await;
    let _posting = stage.post();
    stage.alert("o-1", "timeout").await;
    let post = receiver.got(1).await.remove(0);
    assert_eq!(post.verify(SECRET), Ok(()));

    assert_eq!(post.verify(NEXT_SECRET), Err("wrong signature"));
    let mut tampered = post.clone();
    tampered.body = post.body.replace("timeout", "t1meout");
    assert_eq!(tampered.verify(SECRET), Err("wrong signature"));
    let mut renamed = post.clone();
    renamed
        .headers
        .insert("webhook-id", "msg_other".parse().unwrap());
    assert_eq!(renamed.verify(SECRET), Err("wrong signature"));
    let mut replayed = post.clone();
    let sent: i64 = post.header("webhook-timestamp").parse().unwrap();
    replayed
        .headers
        .insert("webhook-timestamp", (sent - 301).into());
    assert_eq!(replayed.verify(SECRET), Err("too old"));
    replayed
        .headers
        .insert("webhook-timestamp", (sent - 10).into());
    assert_eq!(replayed.verify(SECRET), Err("wrong signature"));
}

#[tokio::test]
async fn while_a_key_changes_receivers_with_either_key_are_content() {
    let receiver = Receiver::start([]).await;
    let hook = Webhook {
        secret: NEXT_SECRET.into(),
        previous_secret: SECRET.into(),
        ..to(receiver.url())
    };
    let stage = Stage::with([("pager", hook)]).await;
    let _posting = stage.post();

    stage.alert("o-1", "timeout").await;

    let post = receiver.got(1).await.remove(0);
    assert_eq!(post.verify(SECRET), Ok(()));
    assert_eq!(post.verify(NEXT_SECRET), Ok(()));
}

#[tokio::test]
async fn a_webhook_that_hangs_holds_up_no_other_and_an_answer_without_end_is_an_answer() {
    let hanging = Receiver::always(Does::Hang).await;
    let receiver = Receiver::always(Does::TakeWithoutEnd).await;
    let patient = Webhook {
        timeout: Span::from_secs(60),
        ..to(hanging.url())
    };
    let stage = Stage::with([("a-hangs", patient), ("b-works", to(receiver.url()))]).await;
    let _posting = stage.post();

    for n in 0..20 {
        stage.alert(&format!("o-{n}"), &class(n)).await;
    }

    stage.are("delivered", 20).await;
    assert_eq!(receiver.posts().len(), 20);
    assert!(!hanging.posts().is_empty());
}

#[tokio::test]
async fn a_receiver_that_does_not_answer_in_time_is_asked_again() {
    let receiver = Receiver::start([Does::Hang]).await;
    let stage = Stage::with([("pager", to(receiver.url()))]).await;
    let _posting = stage.post();

    stage.alert("o-1", "timeout").await;
    assert_eq!(stage.not_taken().await.0, "no answer within 2s");
    stage.pass(AN_HOUR).await;
    stage.are("delivered", 1).await;

    let posts = receiver.posts();
    assert_eq!((posts.len(), posts[0].id()), (2, posts[1].id()));
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Receiver::start([]).await;
    let redirect = |status| Does::With(status, "location", elsewhere.url());
    let receiver = Receiver::start([redirect(302), redirect(308)]).await;
    let stage = Stage::with([("pager", to(receiver.url()))]).await;
    let _posting = stage.post();

    stage.alert("o-1", "timeout").await;
    for status in ["302", "308"] {
        assert!(stage.not_taken().await.0.contains(status));
        stage.pass(AN_HOUR).await;
    }
    stage.are("delivered", 1).await;

    assert_eq!((receiver.posts().len(), elsewhere.posts().len()), (3, 0));
}

#[tokio::test]
async fn what_was_posted_to_nobody_arrives_when_the_receiver_is_back() {
    let address = free_address();
    let url = format!("http://{address}/hooks/s3cret-path");
    let stage = Stage::with([("pager", to(url))]).await;
    let _posting = stage.post();

    stage.alert("o-1", "timeout").await;
    let (error, _) = stage.not_taken().await;
    assert!(error.contains("onnect"), "{error}");
    assert!(!error.contains("s3cret-path"), "{error}");
    let backlog = Deliveries::new(stage.subject.db.clone())
        .backlog()
        .await
        .unwrap();
    assert_eq!(
        (backlog.len(), &*backlog[0].webhook, backlog[0].waiting),
        (1, "pager", 1)
    );

    let receiver = Receiver::start_at(address, []).await;
    stage.pass(AN_HOUR).await;
    stage.are("delivered", 1).await;

    assert_eq!(receiver.posts().len(), 1);
    let backlog = Deliveries::new(stage.subject.db.clone())
        .backlog()
        .await
        .unwrap();
    assert_eq!(backlog, []);
}

#[tokio::test]
async fn two_coordinators_post_each_alert_once() {
    let receiver = Receiver::start([]).await;
    let stage = Stage::with([("pager", to(receiver.url()))]).await;
    let _both = (stage.post(), stage.post());

    let second = stage.store.clone();
    for n in 0..40 {
        compensated(&stage.store, &format!("o-{n}"), &class(n)).await;
    }
    let (a, b) = tokio::join!(stage.store.claim_alerts(25), second.claim_alerts(25));
    assert_eq!(a.unwrap().len() + b.unwrap().len(), 40);
    stage.are("delivered", 40).await;

    let posts = receiver.posts();
    let ids: BTreeSet<String> = posts.iter().map(|post| post.id()).collect();
    assert_eq!((posts.len(), ids.len()), (40, 40));
}

#[tokio::test]
async fn a_post_whose_coordinator_died_is_posted_by_another_under_the_same_id() {
    let hanging = Receiver::start([Does::Hang]).await;
    let stage = Stage::with([("pager", to(hanging.url()))]).await;
    let dies = stage.post();
    stage.alert("o-1", "timeout").await;
    let first = hanging.got(1).await.remove(0);
    drop(dies);

    let _posting = stage.post();
    stage
        .subject
        .run("update lapse.webhook_delivery set next_try_at = next_try_at - interval '12 seconds'")
        .await;
    stage.are("delivered", 1).await;

    assert_eq!(hanging.got(2).await[1].id(), first.id());
}

#[tokio::test]
async fn a_receiver_that_puts_us_off_is_left_alone_for_so_long() {
    let busy = Does::With(429, "retry-after", "1200".to_owned());
    let receiver = Receiver::start([busy]).await;
    let stage = Stage::with([("pager", to(receiver.url()))]).await;
    let _posting = stage.post();

    stage.alert("o-1", "timeout").await;

    let (_, wait_s) = stage.not_taken().await;
    assert!((1_190..=1_200).contains(&wait_s), "waits {wait_s} s");
}

#[tokio::test]
async fn a_post_is_given_up_after_a_day_and_not_before() {
    let receiver = Receiver::always(Does::Answer(500)).await;
    let stage = Stage::with([("pager", to(receiver.url()))]).await;
    let _posting = stage.post();

    stage.alert("o-1", "timeout").await;
    stage.pass(NEARLY_A_DAY).await;
    receiver.got(2).await;
    stage.not_taken().await;
    stage.are("waiting", 1).await;
    stage.pass(AN_HOUR).await;
    stage.are("failed", 1).await;

    let backlog = Deliveries::new(stage.subject.db.clone())
        .backlog()
        .await
        .unwrap();
    assert_eq!((backlog[0].failed, backlog[0].waiting), (1, 0));
}

#[tokio::test]
async fn a_post_to_a_receiver_that_is_gone_is_given_up_and_the_next_one_is_tried() {
    let receiver = Receiver::start([Does::Answer(410)]).await;
    let stage = Stage::with([("pager", to(receiver.url()))]).await;
    let _posting = stage.post();

    stage.alert("o-1", "timeout").await;
    stage.are("failed", 1).await;
    stage.alert("o-2", "refused").await;
    stage.are("delivered", 1).await;

    assert_eq!(receiver.posts().len(), 2);
}

#[tokio::test]
async fn a_webhook_hears_once_that_an_alert_is_over() {
    let receiver = Receiver::start([]).await;
    let stage = Stage::with([("pager", to(receiver.url()))]).await;
    let _posting = stage.post();
    let resolve = || Event::Resolve {
        actor: "ann".to_owned(),
        reason: "by hand".to_owned(),
    };
    let heard = compensated(&stage.store, "o-1", "timeout").await;
    let unheard = compensated(&stage.store, "o-2", "refused").await;
    happens(&stage.store, &unheard, resolve()).await;
    stage.store.claim_alerts(10).await.unwrap();
    receiver.got(1).await;

    happens(&stage.store, &heard, resolve()).await;
    for _ in 0..3 {
        assert_eq!(stage.store.claim_alerts(10).await.unwrap(), []);
    }
    stage.are("delivered", 2).await;

    let posts = receiver.posts();
    let types: Vec<_> = posts
        .iter()
        .map(|post| post.json()["type"].clone())
        .collect();
    assert_eq!(types, ["alert.raised", "alert.resolved"]);
    let fingerprint = |n: usize| posts[n].json()["data"]["fingerprint"].clone();
    assert_eq!(fingerprint(0), fingerprint(1));
    assert_ne!(posts[0].id(), posts[1].id());
}

#[tokio::test]
async fn what_waits_of_an_alert_is_not_posted_once_it_is_over() {
    let receiver = Receiver::start([]).await;
    let stage = Stage::with([("pager", to(receiver.url()))]).await;
    let saga = compensated(&stage.store, "o-1", "timeout").await;
    stage.store.claim_alerts(10).await.unwrap();
    stage.are("waiting", 1).await;

    let resolve = Event::Resolve {
        actor: "ann".to_owned(),
        reason: "by hand".to_owned(),
    };
    happens(&stage.store, &saga, resolve).await;
    stage.store.claim_alerts(10).await.unwrap();
    let _posting = stage.post();
    stage.are("delivered", 1).await;

    let posts = receiver.posts();
    let types: Vec<_> = posts
        .iter()
        .map(|post| post.json()["type"].clone())
        .collect();
    assert_eq!(types, ["alert.resolved"]);
}

#[tokio::test]
async fn a_webhook_gets_the_kinds_it_wants_and_a_stranger_s_posts_are_left_alone() {
    let receiver = Receiver::start([]).await;
    let parked = Webhook {
        kinds: vec!["parked".to_owned()],
        ..to(receiver.url())
    };
    let mut stage = Stage::with([("pager", to(receiver.url())), ("parked-only", parked)]).await;
    stage.alert("o-1", "timeout").await;
    stage.are("waiting", 1).await;

    let settings = stage.alerts.webhooks.remove("pager").unwrap();
    stage.alerts.webhooks.insert("another".to_owned(), settings);
    let posting = stage.post();
    let renamed = stage
        .subject
        .store
        .clone()
        .telling(webhooks::routes(&stage.alerts));
    compensated(&renamed, "o-2", "refused").await;
    Arc::new(renamed).claim_alerts(10).await.unwrap();
    stage.are("delivered", 1).await;
    drop(posting);

    let posts = receiver.posts();
    assert_eq!(
        (posts.len(), posts[0].json()["data"]["class"].clone()),
        (1, "refused".into())
    );
    stage.are("waiting", 1).await;
}

#[tokio::test]
async fn old_posts_are_forgotten() {
    let receiver = Receiver::start([]).await;
    let stage = Stage::with([("pager", to(receiver.url()))]).await;
    let posting = stage.post();
    stage.alert("o-1", "timeout").await;
    stage.are("delivered", 1).await;
    drop(posting);
    stage
        .subject
        .run("update lapse.webhook_delivery set created_at = created_at - interval '31 days'")
        .await;
    stage.alert("o-2", "refused").await;

    let deliveries = Deliveries::new(stage.subject.db.clone());
    deliveries.forget().await.unwrap();

    stage.are("delivered", 0).await;
    stage.are("waiting", 1).await;
}
