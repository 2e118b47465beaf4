//! Topics are made right, and what is wrong with them is said in words.

use lapse::bus::Bus;
use lapse::kafka::topics;
use lapse_sagas::Span;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;

use super::bench::{Bench, due_at, eventually, id, now, on_both, take_done};

on_both!(a_missing_topic_is_named_until_it_is_there);

async fn a_missing_topic_is_named_until_it_is_there(mut bench: Bench) {
    bench.create_topics().await;
    bench.settings.buckets.push(Span::from_secs(9));
    let bus = bench.bus();
    let missing = bench.settings.topic("delay.9s");
    eventually("the topic is named", || {
        bus.trouble()
            .is_some_and(|why| why.contains(&missing) && why.contains("lapse topics create"))
    })
    .await;
    assert!(!bus.is_ready());

    bench.create_topics().await;

    eventually("ready", || bus.is_ready()).await;
    eventually("its partitions are read", || {
        bus.partitions().iter().any(|of| *of.topic == *missing)
    })
    .await;
    bench
        .producer()
        .produce(vec![due_at("delay.9s", 0, 7, now())])
        .await;
    assert_eq!(
        take_done(&bus, 1).await.iter().map(id).collect::<Vec<_>>(),
        [7]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_are_made_once_and_differences_are_reported() {
    let Some(mut bench) = Bench::apache_kafka("topics_are_made_once_and_differences_are_reported")
    else {
        return;
    };
    let mut config = ClientConfig::new();
    let admin: AdminClient<DefaultClientContext> = config
        .set("bootstrap.servers", &bench.settings.brokers)
        .create()
        .expect("admin");
    let wrong = bench.settings.topic("delay.3s");
    let new = NewTopic::new(&wrong, 1, TopicReplication::Fixed(1))
        .set("cleanup.policy", "compact")
        .set("retention.ms", "60000");
    admin
        .create_topics(&[new], &AdminOptions::new())
        .await
        .expect("sent");
    bench.settings.partitions = 3;

    let created = topics::create(&bench.settings).await.expect("created");
    let problems = topics::check(&bench.settings).await.expect("checked");

    assert_eq!(
        created.len(),
        5,
        "all but the one that was there: {created:?}"
    );
    assert!(
        topics::create(&bench.settings)
            .await
            .expect("again")
            .is_empty()
    );
    let details: String = problems
        .iter()
        .map(|problem| format!("{problem}\n"))
        .collect();
    assert!(
        problems.iter().all(|problem| problem.topic == wrong),
        "{details}"
    );
    for word in [
        "has 1 partitions, 3 are configured",
        "cleanup.policy is compact",
        "retention.ms is 60000",
        "message.timestamp.type is CreateTime",
    ] {
        assert!(details.contains(word), "{word} is missing in: {details}");
    }
    bench.settings.buckets.push(Span::from_secs(9));
    let problems = topics::check(&bench.settings).await.expect("checked");
    assert!(
        problems
            .iter()
            .any(|problem| problem.detail.contains("doesn't exist"))
    );
}
