//! Dead letters are looked at, replayed and discarded; what they become respects the due time they had.

use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use lapse::store::ops::{DeadLetterRow, LetterFilter};
use lapse::store::pg::PgStore;
use lapse::store::{DeadLetter, Store};
use serde_json::{Value, json};

use super::{Ended, lapse_with, run};
use crate::support::live::{Live, ON_TIME_MS};
use crate::support::{topic, until};

const SOON: Duration = Duration::from_secs(20);

/// Nothing here starts for orders of type `normal`.
const OTHER: &str = r"
format: saga/v1
name: other
version: 1
trigger:
  event_types: [order.placed]
  order_types: { special: { delay: 30m } }
  order_owner: orders
steps:
  - id: cancel_order
    action: { participant: orders, operation: CancelOrder }
    compensation: { participant: orders, operation: ReopenOrder }
";

/// What was missing. Its delay counts from `occurred_at`.
const MISSING: &str = r"
format: saga/v1
name: missing
version: 1
trigger:
  event_types: [order.placed]
  order_types: { normal: { delay: 50s } }
  order_owner: orders
steps:
  - id: cancel_order
    action: { participant: orders, operation: CancelOrder }
    compensation: { participant: orders, operation: ReopenOrder }
  - id: replenish_stock
    action: { participant: stock, operation: ReplenishStock }
    compensation: { participant: stock, operation: WithdrawStock }
";

/// Without the sweep, which would start what is overdue by itself.
async fn unswept() -> Live {
    let mut live = Live::in_process().await;
    live.config.sweep.enabled = false;
    live
}

fn define(live: &mut Live, definition: &str) {
    let file = std::env::temp_dir().join(format!("{}.yaml", uuid::Uuid::now_v7()));
    std::fs::write(&file, definition).expect("a definition can be written");
    live.config.definitions.paths = vec![file];
}

fn letters(live: &Live, args: &[&str]) -> Ended {
    let args = [&["dead-letters"], args, &["-o", "json"]].concat();
    run(lapse_with(&live.config, &args))
}

/// All letters, the oldest first, once there are so many.
async fn buried(live: &Live, count: usize) -> Vec<DeadLetterRow> {
    until(&format!("{count} dead letters"), SOON, || async {
        let filter = LetterFilter {
            limit: 1_000,
            ..LetterFilter::default()
        };
        let mut rows = live
            .ops
            .dead_letters(filter)
            .await
            .expect("the views answer");
        rows.reverse();
        (rows.len() == count).then_some(rows)
    })
    .await
}

/// An event that leaves the due time to the definition.
fn event(order_id: &str, occurred_at: DateTime<Utc>) -> (String, Vec<u8>) {
    let event = json!({
        "event_type": "order.placed", "order_id": order_id, "order_type": "normal", "occurred_at": occurred_at,
    });
    (order_id.to_owned(), event.to_string().into_bytes())
}

async fn produce(live: &Live, short: &str, records: &[(String, Vec<u8>)]) {
    let records: Vec<_> = records
        .iter()
        .map(|(key, value)| (key.as_str(), value.clone()))
        .collect();
    topic::produce(&live.config.kafka.brokers, &live.topic(short), &records).await;
}

/// A letter that no coordinator would write: as another version or a wrong setting would have left it.
fn odd(topic: String, offset: i64, value: &str) -> DeadLetter {
    DeadLetter {
        topic,
        partition: 0,
        offset,
        key: None,
        value: Some(value.as_bytes().to_vec()),
        whole_bytes: value.len(),
        headers: json!({}),
        appended_at: Utc::now(),
        reason: "no_definition".to_owned(),
        detail: "nobody knows it".to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_of_a_missing_definition_are_replayed_once_it_is_there_and_cancelled_on_time() {
    let mut live = unswept().await;
    define(&mut live, OTHER);
    let service = live.start().await;
    let occurred_at = Utc::now();
    let due_at = occurred_at + TimeDelta::seconds(50);
    let future: Vec<String> = (0..5).map(|n| format!("future-{n}")).collect();
    live.place_many(&future, due_at).await;
    let past = occurred_at - TimeDelta::seconds(60);
    live.place_many(
        &["past".to_owned()],
        Utc::now() + TimeDelta::milliseconds(50),
    )
    .await;
    let mut records: Vec<_> = future.iter().map(|id| event(id, occurred_at)).collect();
    records.push(event("past", past));
    records.push(event("past", past));
    produce(&live, "schedule", &records).await;
    let rows = buried(&live, 7).await;
    assert!(
        rows.iter().all(|row| row.reason == "no_definition"),
        "{rows:?}"
    );
    assert!(
        rows.iter()
            .all(|row| row.appended_at.is_some_and(|at| at >= occurred_at))
    );
    service.stop().await;
    let before = letters(&live, &["replay", "--reason", "no_definition", "--dry-run"]).with_code(3);
    assert_eq!(before.object("dead-letters-replay")["refused"], 7);
    define(&mut live, MISSING);
    let service = live.start().await;
    let first = rows[0].id.to_string();
    let shown = letters(&live, &["show", &first])
        .with_code(0)
        .object("dead-letters-show");
    assert_eq!(shown["replay"]["result"], "would_start");
    assert_eq!(shown["json"]["order_type"], "normal");

    let mut past = rows.iter().filter(|row| row.key.as_deref() == Some("past"));
    let [once, twice] = std::array::from_fn(|_| past.next().expect("two").id.to_string());
    letters(&live, &["replay", &once, "--actor", "ann"]).with_code(0);
    let asked = letters(&live, &["replay", &twice, "--dry-run"])
        .with_code(0)
        .object("dead-letters-replay");
    assert_eq!(
        (&asked["started"], &asked["duplicate"]),
        (&json!(0), &json!(1))
    );
    let shown = letters(&live, &["show", &twice])
        .with_code(0)
        .object("dead-letters-show");
    assert_eq!(shown["replay"]["result"], "duplicate");
    assert_eq!(shown["replay"]["saga_id"], asked["letters"][0]["saga_id"]);

    let began = Instant::now();
    let replay = [
        "replay",
        "--reason",
        "no_definition",
        "--rate",
        "10/s",
        "--actor",
        "ann",
    ];
    let answer = letters(&live, &replay)
        .with_code(0)
        .object("dead-letters-replay");

    assert!(
        began.elapsed() >= Duration::from_millis(500),
        "six at ten a second: {:?}",
        began.elapsed()
    );
    let counts = [&answer["started"], &answer["duplicate"], &answer["refused"]];
    assert_eq!(counts, [5, 1, 0], "{answer}");
    live.story_in("past", "completed", SOON).await;
    assert!(Utc::now() < due_at, "the machine is too slow for this test");
    let asleep = live.story("future-0").await.expect("it is there");
    assert_eq!(asleep.saga.phase.as_deref(), Some("postponed"));
    let sagas = live.all_ended(6, 4 * SOON).await;
    for saga in &sagas {
        assert_eq!(saga.state, "completed", "{saga:?}");
        if saga.order_id.starts_with("future") {
            let late_ms = saga.lateness_ms.expect("it had a due time");
            assert_eq!(saga.due_at, Some(round(due_at)));
            assert!((0..ON_TIME_MS).contains(&late_ms), "{saga:?}");
        }
    }
    let rows = buried(&live, 7).await;
    assert!(
        rows.iter()
            .all(|row| row.state == "replayed" && row.saga_id.is_some())
    );
    assert!(
        rows.iter()
            .all(|row| row.resolved_by.as_deref() == Some("ann"))
    );
    letters(&live, &["replay", &first]).with_code(5);
    live.verified().await;
    service.stop().await;
}

/// As Postgres keeps it; the event's text has nanoseconds, which round up.
fn round(at: DateTime<Utc>) -> DateTime<Utc> {
    let micros =
        at.timestamp_micros() + i64::from(!at.timestamp_subsec_nanos().is_multiple_of(1_000));
    DateTime::from_timestamp_micros(micros).expect("in range")
}

/// A bucket's delay counts from when the broker got the record, not from the replay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_letter_from_a_bucket_is_due_its_delay_after_the_broker_got_it() {
    let mut live = unswept().await;
    define(&mut live, OTHER);
    let service = live.start().await;
    let appended = Utc::now();
    live.place("bucket", TimeDelta::seconds(3)).await;
    let value = json!({ "order_id": "bucket", "order_type": "normal" }).to_string();
    produce(
        &live,
        "delay.5s",
        &[("bucket".to_owned(), value.into_bytes())],
    )
    .await;
    buried(&live, 1).await;
    define(&mut live, MISSING);
    service.stop().await;
    let service = live.start().await;

    letters(&live, &["replay", "--all"]).with_code(0);

    let saga = live.story_in("bucket", "completed", SOON).await.saga;
    let waited = saga.due_at.expect("the bucket gave it one") - appended;
    assert!(
        waited >= TimeDelta::seconds(5) && waited < TimeDelta::seconds(8),
        "{waited}"
    );
    live.verified().await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_letter_that_is_refused_three_times_is_quarantined_and_replayed_by_force_only() {
    let live = unswept().await;
    let service = live.start().await;
    produce(
        &live,
        "schedule",
        &[(
            "odd".to_owned(),
            b"{\"order_id\": 17, \"order_type\": \x1b}".to_vec(),
        )],
    )
    .await;
    let id = buried(&live, 1).await[0].id.to_string();
    let state = |ended: Ended| {
        let answer = ended.object("dead-letters-replay");
        answer["letters"][0]["state"].as_str().map(str::to_owned)
    };

    for expected in ["open", "open", "quarantined"] {
        let ended = letters(&live, &["replay", &id]).with_code(3);
        assert_eq!(state(ended).as_deref(), Some(expected));
    }

    letters(&live, &["replay", &id])
        .with_code(5)
        .saying("--force");
    letters(&live, &["replay", "--all"]).with_code(0);
    assert_eq!(buried(&live, 1).await[0].replays, 3, "nothing was tried");
    letters(&live, &["replay", &id, "--force"]).with_code(3);
    let row = buried(&live, 1).await.remove(0);
    assert_eq!((row.replays, row.state.as_str()), (4, "quarantined"));
    assert!(
        row.last_error
            .is_some_and(|error| error.starts_with("not_json: "))
    );

    let listed = letters(&live, &["list"])
        .with_code(0)
        .object("dead-letters-list");
    assert_eq!(listed["letters"][0]["state"], "quarantined", "it waits too");
    let groups = letters(&live, &["list", "--by", "reason"])
        .with_code(0)
        .object("dead-letters-list");
    assert_eq!(groups["groups"][0]["state"], "quarantined");
    let open = letters(&live, &["list", "--state", "open"])
        .with_code(0)
        .object("dead-letters-list");
    assert_eq!(open["letters"], json!([]));
    let by_reason = ["list", "--by", "reason", "--state", "all", "--since", "1h"];
    let groups = letters(&live, &by_reason)
        .with_code(0)
        .object("dead-letters-list");
    assert_eq!(
        (
            &groups["groups"][0]["reason"],
            &groups["groups"][0]["letters"]
        ),
        (&json!("not_json"), &json!(1))
    );
    let text = run(lapse_with(&live.config, &["dead-letters", "show", &id]))
        .with_code(0)
        .stdout;
    assert!(
        text.contains("wrong: not_json: ") && text.contains("column"),
        "{text}"
    );
    assert!(text.contains("replayed now: refused not_json"), "{text}");
    let shown = r#"text: {"order_id": 17, "order_type": \u{1b}}"#;
    assert!(text.contains(shown), "as it is: {text}");
    assert!(
        !text.contains('\u{1b}'),
        "what somebody sent does not work the terminal"
    );

    letters(
        &live,
        &["discard", &id, "--reason", "nobody's", "--actor", "ann"],
    )
    .with_code(0);
    let row = buried(&live, 1).await.remove(0);
    assert_eq!(
        (row.state.as_str(), row.note.as_deref()),
        ("discarded", Some("nobody's"))
    );
    letters(&live, &["discard", &id, "--reason", "again"])
        .with_code(5)
        .saying("is discarded");
    letters(&live, &["discard", "77", "--reason", "x"]).with_code(4);
    letters(&live, &["replay", &id, "--force"]).with_code(5);
    letters(&live, &["replay", "77"]).with_code(4);
    letters(&live, &["show", "77"]).with_code(4);
    letters(&live, &["replay", "1", "--all"]).with_code(2);
    letters(&live, &["replay"]).with_code(2);
    service.stop().await;
}

/// When it was due can't be told for sure, or not all of it is there: refused, never "now".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_letter_that_is_not_whole_any_more_is_refused_with_words() {
    let live = unswept().await;
    let service = live.start().await;
    let store =
        PgStore::new(lapse::service::database(&live.config).expect("the test's URL is right"));
    let good = json!({ "event_type": "order.placed", "order_id": "o-1", "order_type": "normal", "occurred_at": Utc::now() });
    let good = good.to_string();
    let cut = DeadLetter {
        whole_bytes: good.len() + 1,
        ..odd(live.topic("schedule"), 1, &good)
    };
    let headless = DeadLetter {
        reason: "header_not_text".to_owned(),
        ..odd(live.topic("schedule"), 2, &good)
    };
    let foreign = odd("somebody.else".to_owned(), 3, &good);
    let reply = DeadLetter {
        reason: "bad_reply".to_owned(),
        ..odd(live.topic("replies"), 5, "{}")
    };
    let fixed = DeadLetter {
        headers: json!({ "lapse-due-at-ms": "soon" }),
        ..odd(live.topic("schedule"), 4, &good)
    };
    store
        .dead_letter(vec![cut, headless, foreign, fixed, reply])
        .await
        .unwrap();
    let mut rows = buried(&live, 5).await;

    let answer = letters(&live, &["replay", "--all"])
        .with_code(3)
        .object("dead-letters-replay");

    assert_eq!(answer["refused"], 4, "a reply is none of all: {answer}");
    let at = rows.iter().position(|row| row.reason == "bad_reply");
    let reply = rows.remove(at.expect("a reply")).id.to_string();
    let asked = letters(&live, &["replay", &reply]).with_code(3);
    let asked = asked.object("dead-letters-replay");
    assert_eq!(asked["letters"][0]["reason"], "a_reply", "{asked}");
    let reason = |id: i64| {
        let letters = answer["letters"].as_array().expect("a list").iter();
        let mut found = letters.filter(|letter| letter["id"] == id);
        found
            .next()
            .map(|letter| letter["reason"].clone())
            .unwrap_or(Value::Null)
    };
    let mut reasons: Vec<(i64, Value)> = rows
        .iter()
        .map(|row| (row.offset, reason(row.id)))
        .collect();
    reasons.sort_by_key(|(offset, _)| *offset);
    let expected = ["cut", "header_not_text", "unknown_topic", "bad_time"];
    assert_eq!(
        reasons,
        (1..).zip(expected.map(Value::from)).collect::<Vec<_>>()
    );
    assert!(live.sagas().await.is_empty());
    service.stop().await;
}

/// Up to what an event may have, a value is kept whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_letter_is_kept_whole_and_replayed() {
    let mut live = unswept().await;
    define(&mut live, OTHER);
    let service = live.start().await;
    live.place("large", TimeDelta::milliseconds(100)).await;
    let large = json!({
        "event_type": "order.placed", "order_id": "large", "order_type": "normal",
        "occurred_at": Utc::now() - TimeDelta::seconds(60), "note": "\u{1}".repeat(40_000),
    });
    let too_large = vec![b' '; 300 * 1024];
    let records = [
        ("large".to_owned(), large.to_string().into_bytes()),
        ("too-large".to_owned(), too_large),
    ];
    produce(&live, "schedule", &records).await;
    let rows = buried(&live, 2).await;
    let of = |reason: &str| rows.iter().find(|row| row.reason == reason).expect(reason);
    assert!(
        of("no_definition")
            .value_bytes
            .is_some_and(|bytes| bytes > 200_000)
    );
    assert!(!of("no_definition").is_cut && of("too_large").is_cut);
    until("both messages", SOON, || async {
        (live.messages("dead-letters").await.len() == 2).then_some(())
    })
    .await;
    define(&mut live, MISSING);
    service.stop().await;
    let service = live.start().await;

    let answer = letters(&live, &["replay", "--all"])
        .with_code(7)
        .object("dead-letters-replay");

    assert_eq!(
        (&answer["started"], &answer["refused"]),
        (&json!(1), &json!(1))
    );
    live.story_in("large", "completed", SOON).await;
    live.verified().await;
    service.stop().await;
}
