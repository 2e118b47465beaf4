//! The code that docs/alerts.md gives to receivers does what it says.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::json;

use super::receiver::{Post, Receiver};
use super::{NEXT_SECRET, SECRET};
use crate::support::live::left_out;

const DOCUMENT: &str = include_str!("../../../../docs/alerts.md");

/// Reads cases as JSON, prints a line per case.
const PYTHON: &str = r#"
import json, sys
for case in json.load(sys.stdin):
    try:
        verify(case["secret"], case["headers"], case["body"].encode())
        print("accepted")
    except ValueError as refused:
        print(refused)
"#;
const NODE: &str = r#"
for (const { secret, headers, body } of JSON.parse(require("node:fs").readFileSync(0))) {
  try { verify(secret, headers, Buffer.from(body)); console.log("accepted"); } catch (refused) { console.log(refused.message); }
}
"#;

#[tokio::test]
async fn the_documented_verification_in_python_accepts_what_is_ours_and_nothing_else() {
    let name = concat!(
        module_path!(),
        "::the_documented_verification_in_python_accepts_what_is_ours_and_nothing_else"
    );
    verifies(name, "python3", "-c", "python", PYTHON).await;
}

#[tokio::test]
async fn the_documented_verification_in_javascript_accepts_what_is_ours_and_nothing_else() {
    let name = concat!(
        module_path!(),
        "::the_documented_verification_in_javascript_accepts_what_is_ours_and_nothing_else"
    );
    verifies(name, "node", "-e", "javascript", NODE).await;
}

async fn verifies(name: &str, program: &str, flag: &str, language: &str, driver: &str) {
    if Command::new(program).arg("--version").output().is_err() {
        left_out(name, &format!("needs {program}"));
        return;
    }
    let begin = format!("```{language}\n");
    let (_, rest) = DOCUMENT
        .split_once(&begin)
        .expect("the document has such code");
    let (code, _) = rest.split_once("```").expect("the code ends");
    let mut running = Command::new(program)
        .arg(flag)
        .arg(format!("{code}\n{driver}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it was there a moment ago");
    let cases = cases(&posted().await).to_string();
    let mut stdin = running.stdin.take().expect("piped");
    stdin.write_all(cases.as_bytes()).expect("it reads");
    drop(stdin);
    let output = running.wait_with_output().expect("it ends");
    let said = String::from_utf8(output.stdout).expect("text");

    let said: Vec<&str> = said.lines().collect();
    let (wrong, old) = ("wrong signature", "older than five minutes");
    assert_eq!(said, ["accepted", "accepted", wrong, wrong, wrong, old]);
}

/// As it comes over the wire, signed by both keys.
async fn posted() -> Post {
    let receiver = Receiver::start([]).await;
    let settings = lapse::config::Webhook {
        url: receiver.url(),
        secret: NEXT_SECRET.into(),
        previous_secret: SECRET.into(),
        ..Default::default()
    };
    let alerts = lapse::config::Alerts {
        webhooks: [("pager".to_owned(), settings)].into(),
    };
    let webhook = lapse::webhooks::open(&alerts).unwrap().remove(0);
    let body = r#"{"type":"alert.raised","data":{"message":"naïve"}}"#;
    webhook
        .post("msg_1", body, chrono::Utc::now())
        .await
        .unwrap();
    receiver.posts().remove(0)
}

fn cases(post: &Post) -> serde_json::Value {
    let case = |secret: &str, age_s: i64, body: &str| {
        let sent: i64 = post.header("webhook-timestamp").parse().expect("seconds");
        let headers = json!({
            "webhook-id": post.id(),
            "webhook-timestamp": (sent - age_s).to_string(),
            "webhook-signature": post.header("webhook-signature"),
        });
        json!({ "secret": secret, "headers": headers, "body": body })
    };
    let strange = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    json!([
        case(SECRET, 0, &post.body),
        case(NEXT_SECRET, 0, &post.body),
        case(strange, 0, &post.body),
        case(SECRET, 0, &post.body.replace("raised", "resolved")),
        case(SECRET, 10, &post.body),
        case(SECRET, 400, &post.body),
    ])
}
