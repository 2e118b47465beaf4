//! Stops, rebalances, outages and lost records.

use std::collections::BTreeSet;

use lapse::bus::{Bus, Publish, Ripe};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::{Offset, TopicPartitionList};

use super::bench::{Bench, due_at, eventually, id, in_ms, now, on_both, take, take_done};

on_both!(
    what_was_not_done_is_delivered_again_and_what_was_is_not,
    two_coordinators_share_the_partitions_and_lose_nothing,
    acknowledgements_after_a_revocation_are_ignored,
    records_deleted_before_they_were_read_raise_suspicion,
);

async fn what_was_not_done_is_delivered_again_and_what_was_is_not(bench: Bench) {
    bench.create_topics().await;
    let bus = bench.ready_bus().await;
    bench
        .producer()
        .produce((0..10).map(|n| due_at("delay.1s", 0, n, now())).collect())
        .await;
    let taken: Vec<Ripe> = take(&bus, 10)
        .await
        .into_iter()
        .map(|(_, ripe)| ripe)
        .collect();
    let done = |ripe: &&Ripe| [0, 1, 2, 5].contains(&ripe.origin.offset);
    bus.done(
        &taken
            .iter()
            .filter(done)
            .map(|ripe| ripe.origin.clone())
            .collect::<Vec<_>>(),
    );
    bus.stop().await;

    let bus = bench.ready_bus().await;

    let again: BTreeSet<i64> = take(&bus, 7)
        .await
        .iter()
        .map(|(_, ripe)| ripe.origin.offset)
        .collect();
    assert!(
        again.into_iter().eq(3..10),
        "from the first that was not done"
    );
    assert!(!bus.take_suspicion());
}

async fn two_coordinators_share_the_partitions_and_lose_nothing(bench: Bench) {
    bench.create_topics().await;
    let one = bench.ready_bus().await;
    eventually("one reads all partitions", || one.partitions().len() == 6).await;
    let producer = bench.producer();
    let samples = |ids: std::ops::Range<usize>, after: i64| {
        let due = in_ms(after * 1_000);
        ids.map(|n| {
            due_at(
                ["delay.1s", "delay.3s", "schedule"][n % 3],
                i32::from(n % 2 == 0),
                n,
                due,
            )
        })
        .collect()
    };
    producer.produce(samples(0..300, 4)).await;
    let two = bench.bus();
    let mut ids = BTreeSet::new();
    let mut produced = 300;
    while two.partitions().is_empty() || one.partitions().len() == 6 || produced < 600 {
        if !two.partitions().is_empty() && produced < 600 {
            producer.produce(samples(300..600, 1)).await;
            produced = 600;
        }
        ids.extend(sip(&one).await);
        ids.extend(sip(&two).await);
    }
    while ids.len() < 600 {
        let before = ids.len();
        ids.extend(sip(&one).await);
        ids.extend(sip(&two).await);
        if ids.len() == before {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(one.partitions().len() + two.partitions().len(), 6);
    one.stop().await;
    eventually("two reads all partitions", || two.partitions().len() == 6).await;
    two.stop().await;

    let three = bench.ready_bus().await;

    eventually("three reads all partitions", || {
        three.partitions().len() == 6
    })
    .await;
    producer
        .produce(vec![due_at("schedule", 0, 1_000, now())])
        .await;
    let next: Vec<usize> = take(&three, 1)
        .await
        .iter()
        .map(|(_, ripe)| id(ripe))
        .collect();
    assert_eq!(next, [1_000], "everything before it was committed");
}

/// What is ripe within a moment, done.
async fn sip(bus: &lapse::kafka::KafkaBus) -> Vec<usize> {
    let Ok(ripe) = tokio::time::timeout(std::time::Duration::from_millis(50), bus.ripe(100)).await
    else {
        return Vec::new();
    };
    bus.done(
        &ripe
            .iter()
            .map(|ripe| ripe.origin.clone())
            .collect::<Vec<_>>(),
    );
    ripe.iter().map(id).collect()
}

async fn acknowledgements_after_a_revocation_are_ignored(bench: Bench) {
    bench.create_topics().await;
    let one = bench.ready_bus().await;
    eventually("one reads all partitions", || one.partitions().len() == 6).await;
    let samples = (0..60).map(|n| {
        due_at(
            ["delay.1s", "delay.3s", "schedule"][n % 3],
            i32::from(n % 2 == 0),
            n,
            now(),
        )
    });
    bench.producer().produce(samples.collect()).await;
    let held: Vec<Ripe> = take(&one, 60)
        .await
        .into_iter()
        .map(|(_, ripe)| ripe)
        .collect();
    let two = bench.bus();
    eventually("two reads some partitions", || {
        !two.partitions().is_empty() && one.partitions().len() < 6
    })
    .await;

    one.done(
        &held
            .iter()
            .map(|ripe| ripe.origin.clone())
            .collect::<Vec<_>>(),
    );

    let kept: BTreeSet<_> = one
        .partitions()
        .into_iter()
        .map(|of| (of.topic, of.partition))
        .collect();
    let moved = held
        .iter()
        .filter(|ripe| !kept.contains(&(ripe.origin.topic.clone(), ripe.origin.partition)));
    let moved: BTreeSet<usize> = moved.map(id).collect();
    assert!(!moved.is_empty());
    let again: BTreeSet<usize> = take_done(&two, moved.len()).await.iter().map(id).collect();
    assert_eq!(
        again, moved,
        "delivered to their new owner, though the old one said they were done"
    );
}

async fn records_deleted_before_they_were_read_raise_suspicion(bench: Bench) {
    bench.create_topics().await;
    let producer = bench.producer();
    let bus = bench.ready_bus().await;
    producer
        .produce((0..10).map(|n| due_at("delay.1s", 0, n, now())).collect())
        .await;
    take_done(&bus, 10).await;
    bus.stop().await;
    assert!(!bus.take_suspicion());
    produce_and_delete(&bench, 3_000).await;
    producer
        .produce(vec![due_at("delay.1s", 0, 9_999, now())])
        .await;

    let bus = bench.ready_bus().await;

    let mut last = 0;
    while last != 9_999 {
        last = take_done(&bus, 1).await.iter().map(id).max().expect("some");
    }
    assert!(bus.take_suspicion());
    assert!(!bus.take_suspicion(), "told once");
}

/// The in-process broker deletes only while records come in, so there something is always left to read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_deleted_while_nothing_is_left_to_read_raise_suspicion() {
    let test = "records_deleted_while_nothing_is_left_to_read_raise_suspicion";
    let Some(mut bench) = Bench::apache_kafka(test) else {
        return;
    };
    bench
        .settings
        .extra
        .insert("consumer.statistics.interval.ms".into(), "500".into());
    bench.create_topics().await;
    let producer = bench.producer();
    let bus = bench.ready_bus().await;
    producer
        .produce((0..10).map(|n| due_at("delay.1s", 0, n, now())).collect())
        .await;
    take_done(&bus, 10).await;
    bus.stop().await;
    produce_and_delete(&bench, 100).await;

    let bus = bench.ready_bus().await;

    eventually("suspicion", || bus.take_suspicion()).await;
}

/// Produces offsets 10 to `count` of partition 0 of delay.1s and has them deleted, all or most.
async fn produce_and_delete(bench: &Bench, count: usize) {
    let padding = " ".repeat(4_000);
    let samples = (10..count).map(|n| {
        let mut sample = due_at("delay.1s", 0, n, now());
        sample
            .value
            .as_mut()
            .expect("value")
            .extend(padding.as_bytes());
        sample
    });
    bench.producer().produce(samples.collect()).await;
    if bench.broker.is_some() {
        // 3,000 times 4 kB are more than the 5 MiB that the in-process broker keeps.
        return;
    }
    let mut config = ClientConfig::new();
    let admin: AdminClient<DefaultClientContext> = config
        .set("bootstrap.servers", &bench.settings.brokers)
        .create()
        .expect("admin");
    let mut up_to = TopicPartitionList::new();
    let end = Offset::Offset(i64::try_from(count).expect("small"));
    up_to
        .add_partition_offset(&bench.settings.topic("delay.1s"), 0, end)
        .expect("valid");
    admin
        .delete_records(&up_to, &AdminOptions::new())
        .await
        .expect("deleted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timers_survive_an_outage_of_the_broker() {
    let mut bench = Bench::embedded("timers_survive_an_outage_of_the_broker");
    bench
        .settings
        .extra
        .insert("consumer.statistics.interval.ms".into(), "200".into());
    bench
        .settings
        .extra
        .insert("producer.delivery.timeout.ms".into(), "1000".into());
    bench.create_topics().await;
    let bus = bench.ready_bus().await;
    let due = in_ms(4000);
    bench
        .producer()
        .produce((0..20).map(|n| due_at("schedule", 0, n, due)).collect())
        .await;
    let held = || {
        bus.partitions()
            .iter()
            .map(|partition| partition.records)
            .sum::<usize>()
    };
    eventually("all are in the 3 s bucket", || {
        bus.partitions()
            .iter()
            .any(|of| of.topic.ends_with("3s") && of.records > 0)
            && held() == 20
    })
    .await;
    let broker = bench.broker.as_ref().expect("embedded");

    broker.down();

    eventually("no broker", || {
        bus.trouble()
            .is_some_and(|why| why.contains("no broker can be reached"))
    })
    .await;
    let message = Publish {
        topic: "alerts".into(),
        key: "k".into(),
        payload: "p".into(),
    };
    assert_eq!(bus.publish(vec![message.clone()]).await, [false]);
    broker.up();
    let mut ids = BTreeSet::new();
    while ids.len() < 20 {
        for (at, ripe) in take(&bus, 1).await {
            assert!(at >= due);
            ids.insert(id(&ripe));
            bus.done(&[ripe.origin]);
        }
    }
    eventually("ready again", || bus.is_ready()).await;
    assert_eq!(bus.publish(vec![message]).await, [true]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_with_the_same_instance_id_moves_no_partition() {
    let Some(mut bench) =
        Bench::apache_kafka("a_restart_with_the_same_instance_id_moves_no_partition")
    else {
        return;
    };
    bench.create_topics().await;
    bench.settings.instance_id = Some("two".into());
    let two = bench.bus();
    bench.settings.instance_id = Some("one".into());
    let one = bench.ready_bus().await;
    eventually("both read three", || {
        one.partitions().len() == 3 && two.partitions().len() == 3
    })
    .await;
    let of = |bus: &lapse::kafka::KafkaBus| {
        bus.partitions()
            .into_iter()
            .map(|of| (of.topic, of.partition))
            .collect::<Vec<_>>()
    };
    let (before, beside) = (of(&one), two.partitions());
    one.stop().await;

    let one = bench.ready_bus().await;

    eventually("one reads again", || one.partitions().len() == 3).await;
    assert_eq!(of(&one), before);
    let epochs =
        |of: Vec<lapse::kafka::PartitionView>| of.iter().map(|of| of.epoch).collect::<Vec<_>>();
    assert_eq!(
        epochs(two.partitions()),
        epochs(beside),
        "two was not disturbed"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_coordinators_with_one_instance_id_are_told_so() {
    let Some(mut bench) = Bench::apache_kafka("two_coordinators_with_one_instance_id_are_told_so")
    else {
        return;
    };
    bench.create_topics().await;
    bench.settings.instance_id = Some("the-same".into());
    let one = bench.ready_bus().await;
    let two = bench.bus();
    eventually("one is told", || {
        one.trouble()
            .is_some_and(|why| why.contains("another coordinator has the instance id"))
    })
    .await;

    two.stop().await;

    eventually("one is ready again", || {
        one.is_ready() && !one.partitions().is_empty()
    })
    .await;
    bench
        .producer()
        .produce(vec![due_at("schedule", 0, 1, now())])
        .await;
    assert_eq!(
        take_done(&one, 1).await.iter().map(id).collect::<Vec<_>>(),
        [1]
    );
}
