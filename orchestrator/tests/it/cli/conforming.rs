//! `lapse conform` tells by its exit code and its one object what came of every case; `lapse shop serve` is ended calmly.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use async_trait::async_trait;
use axum::Router;
use lapse::conform::CASES;
use lapse_participants::kit::{
    CallError, Command as Order, OrderKey, OrderOwner, Overdue, Participant, Reply,
};
use serde_json::Value;

use super::{Ended, lapse, run};
use crate::participants::model::{Bug, Model};
use crate::participants::served::{http, serve};
use crate::support::live::free_address;

/// A participant whose orders are files of a directory: the commands of the shell place and see them.
struct Filed {
    model: Model,
    directory: PathBuf,
}

impl Filed {
    fn around(model: Model) -> Arc<Filed> {
        let name = format!("orders-{}", uuid::Uuid::now_v7().simple());
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir(&directory).unwrap();
        Arc::new(Filed { model, directory })
    }
}

#[async_trait]
impl Participant for Filed {
    async fn call(&self, operation: &str, commands: &[Order]) -> Result<Vec<Reply>, CallError> {
        let file = |command: &Order| self.directory.join(&command.order.order_id);
        for command in commands.iter().filter(|command| file(command).is_file()) {
            if self.model.effects(&command.order.order_id).is_none() {
                self.model.insert(&command.order.order_id);
            }
        }
        let answered = self.model.call(operation, commands).await;
        for command in commands.iter().filter(|command| file(command).is_file()) {
            let effects = self.model.effects(&command.order.order_id).unwrap_or(0);
            std::fs::write(file(command), format!("effects: {effects}\n")).unwrap();
        }
        answered
    }
}

#[async_trait]
impl OrderOwner for Filed {
    async fn overdue_orders(
        &self,
        after: Option<&Overdue>,
        ahead: std::time::Duration,
        limit: u32,
    ) -> Result<Vec<Overdue>, CallError> {
        self.model.overdue_orders(after, ahead, limit).await
    }

    async fn paid(&self, orders: &[OrderKey]) -> Result<Vec<bool>, CallError> {
        self.model.paid(orders).await
    }
}

impl Drop for Filed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// `lapse conform` with orders in files of this directory.
fn conform(url: &str, directory: &str, more: &[&str]) -> Command {
    let place = "echo 'effects: 0' > \"$DIRECTORY/$LAPSE_ORDER_ID\"";
    let state = "cat \"$DIRECTORY/$LAPSE_ORDER_ID\"";
    let args = ["conform", url, "--place", place, "--state", state];
    let args = [&args[..], &["--compensation", "ReopenOrder"], more].concat();
    let mut command = lapse(&args);
    command.env("DIRECTORY", directory);
    command
}

async fn examined(model: Model, more: &[&str]) -> Ended {
    let filed = Filed::around(model);
    let server = serve(Router::new().merge(http(filed.clone()))).await;
    let directory = filed.directory.to_str().unwrap().to_owned();
    let command = conform(&format!("http://{server}"), &directory, more);
    tokio::task::spawn_blocking(|| run(command)).await.unwrap()
}

fn results(ended: &Ended) -> Vec<(String, String)> {
    let report = ended.object("conform");
    let cases = report["cases"].as_array().expect("a list").iter();
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    cases
        .map(|case| (text(&case["case"]), text(&case["result"])))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conform_is_ok_of_a_service_that_keeps_the_contract() {
    let ended = examined(Model::right(), &["-o", "json"]).await.with_code(0);
    let results = results(&ended);
    assert_eq!(results.len(), CASES.len());
    assert!(
        results.iter().all(|(_, result)| result == "ok"),
        "{results:?}"
    );

    let ended = examined(Model::right(), &["--single", "-o", "json"])
        .await
        .with_code(0);
    let not_run = self::results(&ended)
        .into_iter()
        .filter(|(_, result)| result == "not_run");
    assert_eq!(not_run.count(), 3, "the wire is spoilt by batches only");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conform_says_of_a_failed_case_what_was_expected_what_came_and_what_to_read() {
    let ended = examined(Model::with(Bug::ForgetsBlocked), &[])
        .await
        .with_code(1);
    for words in [
        "late_action FAILED",
        "superseded",
        "expected",
        "came",
        "docs/participants.md, The barrier",
    ] {
        assert!(ended.stdout.contains(words), "{words}: {}", ended.stdout);
    }
    let ended = examined(Model::with(Bug::ForgetsBlocked), &["-o", "json"])
        .await
        .with_code(1);
    assert_eq!(ended.object("conform")["ok"], false);
    let of_late_action = ("late_action".to_owned(), "failed".to_owned());
    assert!(results(&ended).contains(&of_late_action));
}

#[test]
fn conform_refuses_what_it_can_not_work_with() {
    let nobody = format!("http://{}", free_address());
    let of = |url: &str, place: &str, state: &str, more: &[&str]| {
        let args = ["conform", url, "--place", place, "--state", state];
        run(lapse(&[&args[..], more].concat()))
    };
    let alike = "echo $LAPSE_TENANT/$LAPSE_ORDER_ID";
    of(&nobody, "true", alike, &[]).with_code(8);
    of("somewhere", "true", alike, &[])
        .with_code(3)
        .saying("http://host:port");
    of(&nobody, "true", alike, &["--input", "{"])
        .with_code(3)
        .saying("--input");
    of(&nobody, "echo no >&2; false", alike, &[])
        .with_code(3)
        .saying("can't be placed")
        .saying(": no");
    of(&nobody, "true", "true", &[])
        .with_code(3)
        .saying("printed nothing");
    of(&nobody, "true", "echo $$", &[])
        .with_code(3)
        .saying("alike");
    of("http://shop.example", "true", alike, &["--token-file", "t"])
        .with_code(3)
        .saying("insecure");
    run(lapse(&["conform", &nobody])).with_code(2);
}
