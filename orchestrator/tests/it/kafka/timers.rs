//! When timers come out, in which order, and what of them.

use chrono::TimeDelta;
use lapse::bus::{Bus, Publish};
use lapse_sagas::Span;

use super::bench::{Bench, Sample, due_at, eventually, id, in_ms, now, on_both, take, take_done};

/// Late by this at most: quiet, it is below 20 ms; here many tests share the processors.
const ON_TIME_MS: i64 = 1_000;

on_both!(
    due_records_come_out_in_due_order_never_early_and_on_time,
    a_bucket_without_a_due_time_counts_from_when_the_broker_got_the_record,
    a_chain_of_hops_keeps_the_bytes_and_the_due_time,
    only_a_window_is_held_and_the_rest_follows,
    records_put_back_are_handed_out_again,
    bad_records_are_handed_out_with_the_reason_and_tombstones_are_passed_over,
    messages_are_published_in_order,
);

async fn due_records_come_out_in_due_order_never_early_and_on_time(bench: Bench) {
    bench.create_topics().await;
    let bus = bench.ready_bus().await;
    let start = in_ms(1000);
    let due = |n: usize| {
        start + TimeDelta::milliseconds(i64::try_from(n * 7_919 % 3_000).expect("small"))
    };
    let topics = ["delay.3s", "delay.1s", "schedule"];
    let samples = (0..300).map(|n| due_at(topics[n % 3], i32::from(n % 2 == 0), n, due(n)));
    bench.producer().produce(samples.collect()).await;

    let taken = take(&bus, 300).await;

    let mut late: Vec<i64> = Vec::new();
    for (at, ripe) in &taken {
        let due = *ripe.due.as_ref().expect("good");
        assert!(*at >= due, "{:?} came {} early", ripe.origin, due - *at);
        late.push((*at - due).num_milliseconds());
    }
    for batch in taken.chunk_by(|(one, _), (other, _)| one == other) {
        assert!(
            batch.is_sorted_by_key(|(_, ripe)| ripe.due.clone().ok()),
            "a batch is not in due order"
        );
    }
    late.sort_unstable();
    println!(
        "late, ms: p50 {} p99 {} max {}",
        late[150], late[297], late[299]
    );
    assert!(late[297] <= ON_TIME_MS, "p99 late by {} ms", late[297]);
}

async fn a_bucket_without_a_due_time_counts_from_when_the_broker_got_the_record(bench: Bench) {
    bench.create_topics().await;
    let bus = bench.ready_bus().await;
    let before = now();
    let value = Some(b"{\"id\":1}".to_vec());
    let sample = Sample {
        topic: "delay.1s",
        value,
        ..Sample::default()
    };
    bench.producer().produce(vec![sample]).await;
    let after = now();

    let (at, ripe) = take(&bus, 1).await.remove(0);

    let due = ripe.due.expect("good");
    let appended = due - Span::from_secs(1).delta();
    let tolerance = TimeDelta::milliseconds(2);
    assert!(
        appended >= before - tolerance && appended <= after + tolerance,
        "{before} {appended} {after}"
    );
    assert!(at >= due);
}

async fn a_chain_of_hops_keeps_the_bytes_and_the_due_time(bench: Bench) {
    bench.create_topics().await;
    let bus = bench.ready_bus().await;
    let due = in_ms(5_600);
    let mut sample = due_at("schedule", 0, 1, due);
    sample.value.as_mut().expect("value").extend(b"  \n ");
    sample.headers = vec![
        ("trace", Some(b"abc".to_vec())),
        ("empty", None),
        ("trace", Some(b"second".to_vec())),
    ];
    bench.producer().produce(vec![sample.clone()]).await;

    let (at, ripe) = take(&bus, 1).await.remove(0);

    assert!(at >= due, "early by {}", due - at);
    assert!(
        at - due <= TimeDelta::milliseconds(ON_TIME_MS),
        "late by {}",
        at - due
    );
    assert_eq!(
        ripe.due.expect("good").timestamp_millis(),
        due.timestamp_millis()
    );
    assert_eq!(Some(ripe.value.to_vec()), sample.value);
    assert_eq!(ripe.key.as_deref(), Some(&b"order-1"[..]));
    let header = |name: &str| {
        ripe.headers
            .iter()
            .filter(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
            .collect::<Vec<_>>()
    };
    assert_eq!(header("trace"), ["abc", "second"]);
    assert_eq!(header("empty"), [""]);
    assert_eq!(
        header("lapse-hops"),
        ["3"],
        "3 s, 1 s and 1 s, then the rest in the window"
    );
    assert_eq!(
        header("lapse-due-at-ms"),
        [due.timestamp_millis().to_string()]
    );
    bus.done(&[ripe.origin]);
}

async fn only_a_window_is_held_and_the_rest_follows(mut bench: Bench) {
    bench.settings.memory_mb = 1;
    bench.settings.buckets = vec![Span::from_secs(1), Span::from_secs(60)];
    bench.create_topics().await;
    let due = in_ms(10000);
    let samples = (0..6_000).map(|n| due_at("delay.1m", 0, n, due));
    bench.producer().produce(samples.collect()).await;
    let bus = bench.ready_bus().await;
    eventually("the window is full", || {
        bus.partitions().iter().any(|partition| partition.full)
    })
    .await;

    let full = bus
        .partitions()
        .into_iter()
        .find(|partition| partition.full)
        .expect("one is full");

    assert!(full.bytes < 100_000, "window holds {} bytes", full.bytes);
    assert!(full.records < 400, "window holds {} records", full.records);
    assert_eq!(
        full.next,
        i64::try_from(full.records).ok(),
        "read no more than it holds"
    );
    let mut ids: Vec<usize> = Vec::new();
    while ids.len() < 6_000 {
        ids.extend(take_done(&bus, 1).await.iter().map(id));
    }
    ids.sort_unstable();
    assert!(ids.iter().copied().eq(0..6_000), "each once");
}

async fn records_put_back_are_handed_out_again(bench: Bench) {
    bench.create_topics().await;
    let bus = bench.ready_bus().await;
    bench
        .producer()
        .produce((0..10).map(|n| due_at("delay.1s", 0, n, now())).collect())
        .await;
    let mut taken: Vec<_> = take(&bus, 10)
        .await
        .into_iter()
        .map(|(_, ripe)| ripe)
        .collect();
    bus.done(&[taken.remove(0).origin]);

    bus.put_back(taken.clone());
    bus.put_back(taken);

    let mut again: Vec<usize> = take_done(&bus, 9).await.iter().map(id).collect();
    again.sort_unstable();
    assert!(
        again.into_iter().eq(1..10),
        "the nine that are not done, once each"
    );
    eventually("all are done", || {
        bus.partitions()
            .iter()
            .all(|partition| partition.records == 0)
    })
    .await;
}

async fn bad_records_are_handed_out_with_the_reason_and_tombstones_are_passed_over(bench: Bench) {
    bench.create_topics().await;
    let bus = bench.ready_bus().await;
    let sample = |value: Option<&[u8]>, headers| Sample {
        topic: "delay.3s",
        value: value.map(<[u8]>::to_vec),
        headers,
        ..Sample::default()
    };
    let far = (now() + TimeDelta::days(3))
        .timestamp_millis()
        .to_string()
        .into_bytes();
    let soon = now().timestamp_millis().to_string().into_bytes();
    let samples = vec![
        sample(None, vec![]),
        sample(Some(b"{"), vec![]),
        sample(Some(b"{\"due_ms\":\"soon\"}"), vec![]),
        sample(
            Some(b"{}"),
            vec![("lapse-due-at-ms", Some(b"tomorrow".to_vec()))],
        ),
        sample(
            Some(b"{}"),
            vec![("lapse-due-at-ms", Some(b"1700000000".to_vec()))],
        ),
        sample(Some(b"{}"), vec![("lapse-due-at-ms", Some(far))]),
        sample(
            Some(b"not even json"),
            vec![
                ("lapse-due-at-ms", Some(soon)),
                ("odd", Some(vec![0xff, 0xfe])),
                ("null", None),
            ],
        ),
        sample(None, vec![]),
    ];
    bench.producer().produce(samples).await;

    let mut ripe = take_done(&bus, 6).await;

    ripe.sort_by_key(|ripe| ripe.origin.offset);
    let reasons: Vec<_> = ripe
        .iter()
        .map(|ripe| ripe.due.as_ref().map_or_else(|bad| bad.reason, |_| "due"))
        .collect();
    assert_eq!(
        reasons,
        [
            "not_json",
            "due_unreadable",
            "bad_time",
            "time_unit",
            "time_range",
            "due"
        ]
    );
    let passed = |partition: &lapse::kafka::PartitionView| partition.position == Some(8);
    eventually("all eight are passed", || {
        bus.partitions().iter().any(passed)
    })
    .await;
}

async fn messages_are_published_in_order(bench: Bench) {
    bench.create_topics().await;
    let bus = bench.bus();
    let message = |n: usize| Publish {
        topic: "outcomes".into(),
        key: format!("order-{}", n % 7),
        payload: n.to_string(),
    };

    let delivered = bus.publish((0..1_000).map(message).collect()).await;

    assert_eq!(delivered, vec![true; 1_000]);
    let payloads = bench.read("outcomes", 1_000).await;
    for key in 0..7 {
        let of_key = |payload: &&usize| **payload % 7 == key;
        assert!(
            payloads.iter().filter(of_key).is_sorted(),
            "order-{key} came out of order"
        );
    }
}
