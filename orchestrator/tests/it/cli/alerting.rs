//! `lapse alerts test`, and webhooks from the settings to the receiver.

use std::process::Command;
use std::time::Duration;

use chrono::TimeDelta;
use lapse::config::Webhook;
use lapse_participants::fault::Answer;
use serde_json::Value;

use super::{lapse, lapse_with, run};
use crate::support::live::{Live, free_address, order_ref};
use crate::webhooks::SECRET;
use crate::webhooks::receiver::{Does, Receiver};

const SOON: Duration = Duration::from_secs(20);

fn test(url: &str) -> Command {
    let mut command = lapse(&["alerts", "test", "pager", "-o", "json"]);
    command.env("LAPSE__ALERTS__WEBHOOKS__PAGER__URL", url);
    command.env("LAPSE__ALERTS__WEBHOOKS__PAGER__SECRET", SECRET);
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_can_be_tried_out_and_what_came_back_is_said() {
    let receiver = Receiver::start([Does::Take, Does::Answer(403)]).await;

    let taken = run(test(&receiver.url())).with_code(0);
    let refused = run(test(&receiver.url())).with_code(1);
    let silent = run(test(&format!("http://{}/s3cret-path", free_address()))).with_code(8);

    assert_eq!(taken.object("alerts-test")["status"], 204);
    assert_eq!(receiver.posts()[0].verify(SECRET), Ok(()));
    assert_eq!(receiver.posts()[0].json()["data"]["kind"], "sample");
    let refused = refused.saying("answered 403: not now, please");
    let silent = silent.saying("127.0.0.1");
    for ended in [taken, refused, silent] {
        let said = ended.stdout + &ended.stderr;
        assert!(
            !said.contains("s3cret-path") && !said.contains(SECRET),
            "{said}"
        );
    }
    run(lapse(&["alerts", "test", "nobody"]))
        .with_code(4)
        .saying("there is no webhook nobody in the settings; there is none");
}

#[test]
fn a_webhook_that_would_be_unsafe_or_unusable_is_refused_by_every_command() {
    let with = |settings: &[(&str, &str)]| {
        let mut command = lapse(&["validate"]);
        for (name, value) in settings {
            command.env(format!("LAPSE__ALERTS__WEBHOOKS__PAGER__{name}"), value);
        }
        command
    };
    let url = ("URL", "https://alerts.example.com/s3cret-path");
    let secret = ("SECRET", SECRET);
    run(with(&[url, secret, ("KINDS", "parked,unresolved")])).with_code(0);
    run(with(&[("URL", "http://127.0.0.1:9/"), secret])).with_code(0);
    run(with(&[
        ("URL", "http://alerts.example.com/"),
        secret,
        ("PLAINTEXT", "true"),
    ]))
    .with_code(0);

    for (settings, words) in [
        (
            vec![("URL", "http://alerts.example.com/s3cret-path"), secret],
            "read along",
        ),
        (vec![("URL", "s3cret-path"), secret], "pager.url"),
        (vec![url], "needs secret or secret_file"),
        (vec![url, ("SECRET", "whsec_s3cret")], "pager.secret"),
        (
            vec![url, secret, ("PREVIOUS_SECRET", "s3cret")],
            "pager.previous_secret",
        ),
        (
            vec![url, secret, ("SECRET_FILE", "/run/secret")],
            "one of them",
        ),
        (vec![url, secret, ("KINDS", "parkt")], "parkt"),
        (vec![url, secret, ("TIMEOUT", "2h")], "pager.timeout"),
        (vec![url, secret, ("SECRETS", "x")], "secrets"),
    ] {
        let ended = run(with(&settings)).with_code(3).saying(words);
        assert!(!ended.stderr.contains("s3cret"), "{}", ended.stderr);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alert_of_a_running_coordinator_reaches_its_webhook_and_a_deaf_one_is_listed() {
    let receiver = Receiver::start([]).await;
    let deaf = Receiver::always(Does::Answer(500)).await;
    let mut live = Live::in_process().await;
    for (name, url) in [("deaf", deaf.url()), ("pager", receiver.url())] {
        let webhook = Webhook {
            url,
            secret: SECRET.into(),
            ..Webhook::default()
        };
        live.config.alerts.webhooks.insert(name.to_owned(), webhook);
    }
    let service = live.start().await;
    live.shop
        .set_fault(&order_ref("undone"), "CancelOrder", Answer::Rejected, 1)
        .await
        .unwrap();
    let placed = live.place("undone", TimeDelta::milliseconds(200)).await;
    live.schedule(&service, &[placed]).await;
    live.story_in("undone", "compensated", SOON).await;

    let post = receiver.got(1).await.remove(0);
    assert_eq!(post.verify(SECRET), Ok(()));
    assert_eq!(post.json()["data"]["kind"], "compensated");
    deaf.got(1).await;
    crate::support::until("the deaf one is listed", SOON, || async {
        let listed = run(lapse_with(&live.config, &["alerts", "list", "-o", "json"])).with_code(0);
        let webhooks: Value = listed.object("alerts-list")["webhooks"].clone();
        (webhooks[0]["webhook"] == "deaf" && webhooks[0]["waiting"] == 1).then_some(())
    })
    .await;
    let listed = run(lapse_with(&live.config, &["alerts", "list"])).with_code(0);
    assert!(
        listed
            .stdout
            .contains("webhook deaf has not been delivered to for"),
        "{}",
        listed.stdout
    );
    service.stop().await;
}
