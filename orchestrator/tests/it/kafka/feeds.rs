//! Feeds keep their promises: nothing that was not committed is lost, and nothing is committed by whoever gave it up.

use std::time::Duration;

use lapse::bus::{Outlet, Publish, REPLIES};
use lapse::feed::{Feed, Record};
use lapse::kafka::{KafkaFeed, KafkaOutlet};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;

use super::bench::{Bench, on_both};
use crate::support::until;

const SOON: Duration = Duration::from_secs(30);
const GROUP: &str = "readers";

on_both!(what_is_not_committed_comes_again);
on_both!(who_leaves_hands_over_and_can_commit_no_more);
on_both!(a_tail_reads_what_comes_after_it_began);

async fn what_is_not_committed_comes_again(mut bench: Bench) {
    prepare(&mut bench).await;
    produce(&bench, 0..20).await;
    let feed = KafkaFeed::group(&bench.settings, &group(&bench), &[REPLIES]).expect("a feed");
    let records = take(&feed, 20).await;
    let of_one_key: Vec<_> = numbers(&records)
        .into_iter()
        .filter(|n| n % 2 == 0)
        .collect();
    assert!(of_one_key.is_sorted(), "those of a key are in order");
    // A feed is done with up to so many of each partition.
    let (partition, done): (i32, usize) = (records[0].origin.partition, 3);
    let origins: Vec<_> = records
        .iter()
        .map(|record| record.origin.clone())
        .filter(|origin| origin.partition == partition)
        .take(done)
        .collect();
    assert_eq!(feed.commit(&origins).await, vec![true; origins.len()]);
    feed.close().await;

    let next = KafkaFeed::group(&bench.settings, &group(&bench), &[REPLIES]).expect("a feed");

    let again = take(&next, 20 - origins.len()).await;
    let committed = |record: &&Record| {
        let is_same = |origin: &lapse::bus::Origin| {
            (origin.partition, origin.offset) == (record.origin.partition, record.origin.offset)
        };
        origins.iter().any(is_same)
    };
    assert_eq!(again.iter().filter(committed).count(), 0);
    next.close().await;
}

async fn who_leaves_hands_over_and_can_commit_no_more(mut bench: Bench) {
    prepare(&mut bench).await;
    produce(&bench, 0..10).await;
    let feed = KafkaFeed::group(&bench.settings, &group(&bench), &[REPLIES]).expect("a feed");
    let records = take(&feed, 10).await;
    feed.close().await;
    let origins: Vec<_> = records.into_iter().map(|record| record.origin).collect();
    assert_eq!(feed.commit(&origins).await, vec![false; 10]);

    let next = KafkaFeed::group(&bench.settings, &group(&bench), &[REPLIES]).expect("a feed");

    assert_eq!(take(&next, 10).await.len(), 10, "all of them come again");
    next.close().await;
}

async fn a_tail_reads_what_comes_after_it_began(mut bench: Bench) {
    prepare(&mut bench).await;
    produce(&bench, 0..5).await;
    let settings = bench.settings.clone();
    let tail = tokio::task::spawn_blocking(move || KafkaFeed::tail(&settings, REPLIES));
    let tail = tail.await.expect("no panic").expect("a feed");
    produce(&bench, 5..10).await;

    let mut read = numbers(&take(&tail, 5).await);

    read.sort_unstable();
    assert_eq!(read, [5, 6, 7, 8, 9]);
    tail.close().await;
}

async fn prepare(bench: &mut Bench) {
    bench.settings.queued = vec!["orders".to_owned()];
    bench.create_topics().await;
}

fn group(bench: &Bench) -> String {
    format!("{}.{GROUP}", bench.settings.group)
}

async fn produce(bench: &Bench, numbers: std::ops::Range<u32>) {
    let outlet = KafkaOutlet::new(&bench.settings).expect("an outlet");
    let message = |n: u32| Publish {
        topic: REPLIES.to_owned(),
        key: format!("key-{}", n % 2),
        payload: n.to_string(),
    };
    let count = numbers.len();
    let deliveries = outlet.deliver(numbers.map(message).collect()).await;
    assert_eq!(deliveries, vec![lapse::bus::Delivery::Delivered; count]);
}

/// So many records, and no more within a moment of them.
async fn take(feed: &KafkaFeed, count: usize) -> Vec<Record> {
    let mut records = Vec::new();
    while records.len() < count {
        let next = tokio::time::timeout(SOON, feed.next(100)).await;
        records.extend(next.expect("records within half a minute"));
    }
    assert_eq!(records.len(), count);
    records
}

fn numbers(records: &[Record]) -> Vec<u32> {
    let text = |record: &Record| record.value.clone().unwrap_or_default();
    records
        .iter()
        .map(|record| String::from_utf8(text(record)).unwrap().parse().unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_is_missing_is_told_until_it_is_there_again() {
    let test = "a_topic_that_is_missing_is_told_until_it_is_there_again";
    let Some(mut bench) = Bench::apache_kafka(test) else {
        return;
    };
    prepare(&mut bench).await;
    let [one, other] = [(); 2]
        .map(|()| KafkaFeed::group(&bench.settings, &group(&bench), &[REPLIES]).expect("a feed"));
    until("they read", SOON, || async {
        (one.has_partitions() || other.has_partitions()).then_some(())
    })
    .await;
    assert_eq!((one.trouble(), other.trouble()), (None, None));

    let topic = bench.settings.topic(REPLIES);
    let admin: AdminClient<DefaultClientContext> = ClientConfig::new()
        .set("bootstrap.servers", &bench.settings.brokers)
        .create()
        .expect("admin");
    let deleted = admin.delete_topics(&[&topic], &AdminOptions::new()).await;
    deleted.expect("sent").remove(0).expect("deleted");

    until("both say that it is missing", SOON, || async {
        let told = |feed: &KafkaFeed| feed.trouble().is_some_and(|words| words.contains(&topic));
        (told(&one) && told(&other)).then_some(())
    })
    .await;

    bench.create_topics().await;
    until("it is read again", SOON, || async {
        let well = one.trouble().is_none() && other.trouble().is_none();
        let read = one.has_partitions() || other.has_partitions();
        (well && read).then_some(())
    })
    .await;
    produce(&bench, 0..10).await;
    let records = tokio::select! {
        records = one.next(1) => records,
        records = other.next(1) => records,
    };
    assert_eq!(records.len(), 1);
    one.close().await;
    other.close().await;
}
