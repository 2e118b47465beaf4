//! What can't be read hurts nobody else.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{Days, TimeDelta, Utc};
use lapse::store::ops::LetterFilter;
use serde::Deserialize;

use crate::support::live::{Live, ON_TIME_MS, on_both_brokers};
use crate::support::{topic, until};

const SOON: Duration = Duration::from_secs(20);

on_both_brokers! {
    every_malformed_record_becomes_one_dead_letter_and_good_orders_around_it_are_on_time,
}

/// One line of the corpus of malformed events. `pad_to_bytes` appends spaces.
#[derive(Deserialize)]
struct Malformed {
    name: String,
    value: Option<String>,
    value_base64: Option<String>,
    pad_to_bytes: Option<usize>,
    reason: String,
}

impl Malformed {
    /// The corpus is written for 4 March 2026; here it is about yesterday, so that its good times are past and near.
    fn bytes(&self) -> Vec<u8> {
        let yesterday = Utc::now()
            .date_naive()
            .checked_sub_days(Days::new(1))
            .expect("there was a yesterday");
        let mut bytes = match (&self.value, &self.value_base64) {
            (Some(text), _) => text
                .replace("2026-03-04", &yesterday.to_string())
                .into_bytes(),
            (None, Some(text)) => base64(text),
            (None, None) => panic!("{} has no value", self.name),
        };
        let size = self.pad_to_bytes.unwrap_or_default().max(bytes.len());
        bytes.resize(size, b' ');
        bytes
    }
}

async fn every_malformed_record_becomes_one_dead_letter_and_good_orders_around_it_are_on_time(
    live: Live,
) {
    let corpus: Vec<Malformed> =
        serde_json::from_str(include_str!("../../../../sagas/tests/malformed.json")).unwrap();
    assert!(corpus.len() >= 95, "the corpus shrank to {}", corpus.len());
    let service = live.start().await;
    let good: Vec<String> = (0..10).map(|n| format!("good-{n}")).collect();
    let placed = live
        .place_many(&good, Utc::now() + TimeDelta::seconds(3))
        .await;
    let mut records: Vec<(&str, Vec<u8>)> = corpus
        .iter()
        .map(|bad| (bad.name.as_str(), bad.bytes()))
        .collect();
    for (at, placed) in placed.iter().enumerate() {
        let record = (
            placed.order.order_id.as_str(),
            placed.event.to_string().into_bytes(),
        );
        records.insert(at * 10, record);
    }
    topic::produce(
        &live.config.kafka.brokers,
        &live.topic("schedule"),
        &records,
    )
    .await;

    let sagas = live.all_ended(good.len(), SOON).await;
    let letters = until("a dead letter for each", SOON, || async {
        let letters = live
            .ops
            .dead_letters(LetterFilter {
                limit: 1_000,
                ..LetterFilter::default()
            })
            .await
            .expect("the views answer");
        (letters.len() >= corpus.len()).then_some(letters)
    })
    .await;

    for saga in &sagas {
        let late_ms = saga.lateness_ms.expect("it had a due time");
        assert!(
            saga.state == "completed" && (0..ON_TIME_MS).contains(&late_ms),
            "{saga:?}"
        );
    }
    let expected: BTreeMap<&str, &str> = corpus
        .iter()
        .map(|bad| (bad.name.as_str(), bad.reason.as_str()))
        .collect();
    let rows: BTreeMap<&str, &str> = letters
        .iter()
        .map(|letter| {
            (
                letter.key.as_deref().unwrap_or_default(),
                letter.reason.as_str(),
            )
        })
        .collect();
    assert_eq!(rows, expected, "the right reason in ops_v1.dead_letters");
    assert_eq!(letters.len(), corpus.len(), "one row each");
    let messages = until("a message for each", SOON, || async {
        let messages = live.messages("dead-letters").await;
        (messages.len() >= corpus.len()).then_some(messages)
    })
    .await;
    let published: BTreeMap<&str, &str> = messages
        .iter()
        .map(|message| {
            (
                message["key"].as_str().unwrap_or_default(),
                message["reason"].as_str().unwrap_or_default(),
            )
        })
        .collect();
    assert_eq!(
        published, expected,
        "the right reason on the topic of dead letters"
    );
    assert_eq!(messages.len(), corpus.len(), "one message each");
    until("all offsets are committed", SOON, || async {
        let (kafka, schedule) = (&live.config.kafka, live.topic("schedule"));
        let behind = topic::uncommitted(&kafka.brokers, &kafka.group, &schedule).await;
        (behind == 0).then_some(())
    })
    .await;
    live.verified().await;
    service.stop().await;
}

/// Standard alphabet, padded.
fn base64(text: &str) -> Vec<u8> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.bytes().filter(|byte| *byte != b'=').map(|byte| {
        let digit = ALPHABET.iter().position(|known| *known == byte);
        u32::try_from(digit.expect("a base64 digit")).expect("below 64")
    });
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0_u32, 0_u32);
    for digit in digits {
        (bits, held) = (bits << 6 | digit, held + 6);
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held & 0xff) as u8);
        }
    }
    bytes
}
