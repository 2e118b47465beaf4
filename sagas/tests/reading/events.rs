//! Events: the ten samples are read, the corpus of malformed ones (`tests/malformed.json`) is refused for its reasons.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, TimeDelta};
use lapse_sagas::order_event::parse_due_header;
use lapse_sagas::{BadEvent, Definition, OrderEvent, Span, Timestamp, route};
use serde::Deserialize;
use serde_json::json;

fn time(text: &str) -> Timestamp {
    DateTime::parse_from_rfc3339(text)
        .expect("RFC 3339")
        .to_utc()
}

fn event(value: serde_json::Value) -> OrderEvent {
    OrderEvent::parse(value.to_string().as_bytes()).expect("a right event")
}

fn reason(value: &[u8]) -> &'static str {
    OrderEvent::parse(value).expect_err("a wrong event").reason
}

/// Everything between a record and its timer.
fn intake(value: &[u8], now: Timestamp) -> Result<Timestamp, BadEvent> {
    let shipped = crate::definitions::shipped();
    let event = OrderEvent::parse(value)?;
    let definition: &Definition = route([&shipped], &event)?;
    event.due_at(
        definition.body.trigger.delay(event.starting_order_type()?),
        now,
    )
}

/// One line of the corpus. `pad_to_bytes` appends spaces.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Malformed {
    name: String,
    value: Option<String>,
    value_base64: Option<String>,
    pad_to_bytes: Option<usize>,
    reason: String,
}

impl Malformed {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = match (&self.value, &self.value_base64) {
            (Some(text), None) => text.clone().into_bytes(),
            (None, Some(text)) => STANDARD.decode(text).expect("base64"),
            _ => panic!("{}: needs one of value, value_base64", self.name),
        };
        bytes.resize(self.pad_to_bytes.unwrap_or(bytes.len()), b' ');
        bytes
    }
}

#[test]
fn every_malformed_event_is_refused_for_its_own_reason() {
    let corpus: Vec<Malformed> =
        serde_json::from_str(include_str!("../malformed.json")).expect("the corpus is JSON");
    assert!(corpus.len() >= 90, "the corpus shrank to {}", corpus.len());
    let now = time("2026-03-04T09:10:00Z");
    let wrong: Vec<String> = corpus
        .iter()
        .filter_map(|malformed| match intake(&malformed.bytes(), now) {
            Err(bad) if bad.reason == malformed.reason => None,
            other => Some(format!(
                "{}: expected {}, got {other:?}",
                malformed.name, malformed.reason
            )),
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_ten_sample_events_are_read() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/events");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .expect("the samples")
        .map(|entry| entry.expect("a file").path())
        .collect();
    files.sort();
    let events: Vec<OrderEvent> = files
        .iter()
        .map(|file| {
            OrderEvent::parse(&std::fs::read(file).expect("a sample")).expect("a right event")
        })
        .collect();
    let seen: Vec<(&str, &str, Option<&str>, bool)> = events
        .iter()
        .map(|event| {
            (
                &*event.tenant,
                &*event.order_id,
                event.order_type.as_deref(),
                event.due.is_some(),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("northmart", "ord_71c0", Some("normal"), true),
            ("northmart", "ord_f0013", Some("flash"), true),
            ("bikehaus", "ord_bt204", Some("presale"), true),
            ("cityhall", "ord_t5501", Some("ticket"), true),
            ("seaview-inn", "ord_h77", Some("booking"), true),
            ("seaview-inn", "ord_h77", None, true),
            ("cityhall", "ord_t5501", None, false),
            ("northmart", "ord_f0013", None, false),
            ("northmart", "ord_71c0", None, false),
            ("bikehaus", "ord_bt204", None, false),
        ]
    );
    let presale = &events[2];
    assert_eq!(
        presale.due,
        Some(time("2026-06-08T09:00:00Z")),
        "enforce_at comes before pay_deadline"
    );
    assert_eq!(
        presale.raw["lines"][0]["holds"][0]["backorder"],
        json!(true),
        "everything else is kept"
    );
}

#[test]
fn a_missing_field_has_its_default() {
    let event =
        event(json!({"order_id": "a", "tenant": null, "generation": null, "enforce_at": null}));
    assert_eq!(
        (&*event.tenant, event.generation, event.due),
        ("default", 1, None)
    );
}

#[test]
fn a_numeric_order_id_keeps_all_its_digits() {
    let digits = "123456789012345678901234567890";
    let event =
        OrderEvent::parse(format!("{{\"order_id\": {digits}}}").as_bytes()).expect("a right event");
    assert_eq!(event.order_id, digits);
}

#[test]
fn an_order_id_is_data_whatever_it_looks_like() {
    for id in [
        "' OR 1=1 --",
        "<script>alert(1)</script>",
        "注文-17",
        "🛒",
        "../../etc/passwd",
        "\u{202e}17",
    ] {
        assert_eq!(
            event(json!({ "order_id": format!("  {id} ") })).order_id,
            id
        );
    }
    assert_eq!(
        event(json!({"order_id": "x".repeat(200)})).order_id.len(),
        200
    );
}

#[test]
fn a_byte_order_mark_is_stripped() {
    let event = OrderEvent::parse(b"\xef\xbb\xbf{\"order_id\":\"a\"}").expect("a right event");
    assert_eq!(event.order_id, "a");
}

#[test]
fn brackets_inside_text_are_not_depth() {
    let text = format!("{} \\\" {}", "[".repeat(200), "{".repeat(200));
    assert_eq!(
        event(json!({"order_id": "a", "note": text})).raw["note"],
        json!(text)
    );
}

#[test]
fn every_form_of_a_time_means_the_same() {
    let due = |fields: serde_json::Value| {
        let mut value = json!({"order_id": "a"});
        value
            .as_object_mut()
            .expect("an object")
            .extend(fields.as_object().expect("fields").clone());
        event(value).due
    };
    let expected = Some(time("2026-03-04T09:30:00Z"));
    assert_eq!(
        due(json!({"pay_deadline": "2026-03-04T09:30:00Z"})),
        expected
    );
    assert_eq!(
        due(json!({"pay_deadline": "2026-03-04T11:30:00+02:00"})),
        expected
    );
    assert_eq!(
        due(json!({"pay_deadline": "2026-03-04T04:00:00.000-05:30"})),
        expected
    );
    assert_eq!(
        due(json!({"pay_deadline_ms": 1_772_616_600_000_i64})),
        expected
    );
    assert_eq!(
        due(
            json!({"enforce_at_ms": 1_772_616_600_000_i64, "pay_deadline": "2026-03-01T00:00:00Z"})
        ),
        expected
    );
    assert_eq!(
        due(json!({"enforce_at_ms": 1_772_616_600_000_i64, "enforce_at": "2026-03-04T09:30:00Z"})),
        expected
    );
}

#[test]
fn times_round_up_so_that_nothing_is_early() {
    let due = |text: &str| {
        event(json!({"order_id": "a", "enforce_at": text}))
            .due
            .expect("a due time")
    };
    assert_eq!(
        due("2026-03-04T09:30:00.000000001Z"),
        time("2026-03-04T09:30:00.000001Z")
    );
    assert_eq!(
        due("2026-06-30T23:59:60Z"),
        time("2026-07-01T00:00:00Z"),
        "a leap second"
    );
    assert_eq!(
        due("2026-06-30T23:59:60.25Z"),
        time("2026-07-01T00:00:00.25Z")
    );
}

#[test]
fn an_event_without_a_due_time_falls_due_its_delay_after_it_occurred() {
    let now = time("2026-03-04T09:10:00Z");
    let placed = event(json!({"order_id": "a", "occurred_at": "2026-03-04T09:00:00Z"}));
    assert_eq!(
        placed.due_at(Some(Span::from_secs(1_800)), now),
        Ok(time("2026-03-04T09:30:00Z"))
    );
    assert_eq!(
        placed.due_at(None, now).map_err(|bad| bad.reason),
        Err("missing_time")
    );
    let timeless = event(json!({"order_id": "a"}));
    assert_eq!(
        timeless
            .due_at(Some(Span::from_secs(1_800)), now)
            .map_err(|bad| bad.reason),
        Err("missing_time")
    );
}

#[test]
fn a_due_time_far_ahead_or_long_past_is_a_mistake_and_never_now() {
    let now = time("2026-03-04T09:10:00Z");
    let due = |delta: TimeDelta| {
        let at = (now + delta).to_rfc3339();
        event(json!({"order_id": "a", "enforce_at": at}))
            .due_at(None, now)
            .map_err(|bad| bad.reason)
    };
    let (second, ahead, past) = (
        TimeDelta::seconds(1),
        TimeDelta::days(31),
        TimeDelta::days(-30),
    );
    assert_eq!(due(ahead), Ok(now + ahead));
    assert_eq!(due(ahead + second), Err("time_range"));
    assert_eq!(due(past), Ok(now + past));
    assert_eq!(due(past - second), Err("time_range"));
}

#[test]
fn the_due_header_is_whole_milliseconds() {
    assert_eq!(
        parse_due_header("1772616600000"),
        Ok(time("2026-03-04T09:30:00Z"))
    );
    let reason = |text| parse_due_header(text).expect_err(text).reason;
    assert_eq!(reason("1772616600"), "time_unit");
    assert_eq!(reason("1772616600000000"), "time_unit");
    for text in [
        "",
        "soon",
        "1772616600000.0",
        "0x19",
        "2026-03-04T09:30:00Z",
        "9".repeat(50).leak(),
    ] {
        assert_eq!(reason(text), "bad_time", "{text:?}");
    }
    for text in [
        "0",
        "-1",
        "-1772616600000",
        "17726166000000",
        "99999999999999999999",
    ] {
        assert_eq!(reason(text), "time_range", "{text:?}");
    }
}

#[test]
fn no_bytes_whatever_make_the_reader_panic() {
    let sample = include_bytes!("../events/04-placed-ticket.json").trim_ascii();
    for at in 0..sample.len() {
        let mut bytes = sample.to_vec();
        for byte in [0, b'"', b'{', b'\\', 0xff] {
            bytes[at] = byte;
            let _ = OrderEvent::parse(&bytes);
        }
        assert_ne!(reason(&sample[..at]), "");
    }
}
