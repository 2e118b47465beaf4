//! `lapse run` works until it is told to stop, and stops calmly.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use chrono::TimeDelta;

use super::{lapse_with, run};
use crate::support::live::Live;
use crate::support::{topic, until};

const SOON: Duration = Duration::from_secs(30);
const DRAINED_WITHIN: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_cancels_orders_counts_them_and_ends_calmly_on_sigterm() {
    let name = "cli::running::run_cancels_orders_counts_them_and_ends_calmly_on_sigterm";
    let Some(live) = Live::on_kafka(name).await else {
        return;
    };
    run(lapse_with(&live.config, &["topics", "check", "-o", "json"]))
        .with_code(0)
        .object("topics-check");
    run(lapse_with(
        &live.config,
        &["topics", "create", "-o", "json"],
    ))
    .with_code(0)
    .object("topics-create");
    let mut program = Program(
        lapse_with(&live.config, &["run", "--migrate"])
            .stderr(Stdio::null())
            .spawn()
            .expect("the program can be started"),
    );
    let site = format!("http://{}", live.config.http.listen);
    until("it is ready", SOON, || async {
        let answer = reqwest::get(format!("{site}/readyz")).await.ok()?;
        answer.status().is_success().then_some(())
    })
    .await;
    let placed = live.place("ran", TimeDelta::milliseconds(500)).await;
    let event = placed.event.to_string().into_bytes();
    topic::produce(
        &live.config.kafka.brokers,
        &live.topic("schedule"),
        &[("ran", event)],
    )
    .await;
    live.story_in("ran", "completed", SOON).await;
    let metrics = reqwest::get(format!("{site}/metrics"))
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    assert!(
        metrics.contains("\norder_cancel_duration_seconds_count 1\n"),
        "{metrics}"
    );

    // Some work is in hand, and some is to come.
    let ids: Vec<String> = (0..50).map(|n| format!("late-{n}")).collect();
    let placed = live
        .place_many(&ids, chrono::Utc::now() + TimeDelta::milliseconds(100))
        .await;
    let events: Vec<(&str, Vec<u8>)> = placed
        .iter()
        .map(|placed| {
            (
                placed.order.order_id.as_str(),
                placed.event.to_string().into_bytes(),
            )
        })
        .collect();
    topic::produce(&live.config.kafka.brokers, &live.topic("schedule"), &events).await;
    let told = Instant::now();
    program.terminate();
    let code = until("it ends", DRAINED_WITHIN, || {
        std::future::ready(program.ended())
    })
    .await;

    assert_eq!(code, Some(0), "after {:?}", told.elapsed());
    let backlog = live.sagas().await;
    let service = live.start().await;
    live.all_ended(51, SOON).await;
    assert!(
        backlog.iter().all(|saga| saga.finished_at.is_some()),
        "what it had taken it finished: {backlog:?}"
    );
    live.verified().await;
    service.stop().await;
}

/// A child that does not outlive its test.
struct Program(Child);

impl Program {
    fn terminate(&self) {
        let sent = Command::new("kill")
            .args(["-TERM", &self.0.id().to_string()])
            .status();
        assert!(sent.expect("kill is there").success());
    }

    /// Its exit code, once it has ended.
    fn ended(&mut self) -> Option<Option<i32>> {
        self.0
            .try_wait()
            .expect("it can be asked")
            .map(|status| status.code())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
