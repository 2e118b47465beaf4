//! The HTTP client says of every end of a call what may have been applied, and believes nothing that it can't read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::post;
use chrono::TimeDelta;
use lapse::config::Secret;
use lapse::participants::http::{Address, HttpParticipant, Style};
use lapse_participants::kit::{CallError, Command, OrderKey, Participant, Reply, deadline};
use lapse_sagas::{Cause, CommandId, Direction, Outcome, SagaId, StepId};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use uuid::Uuid;

use super::served::{Act, at, response, serve, socket};
use crate::support::live::free_address;

pub fn command(order_id: &str) -> Command {
    let (saga_id, step) = (SagaId(Uuid::now_v7()), StepId::from("cancel_order"));
    let now = chrono::Utc::now();
    Command {
        command_id: CommandId::new(saga_id, 1, &step, Direction::Do),
        action_id: None,
        saga_id,
        step,
        direction: Direction::Do,
        operation: "CancelOrder".to_owned(),
        order: OrderKey {
            tenant: "default".to_owned(),
            order_id: order_id.to_owned(),
            generation: 1,
        },
        input: Value::Null,
        cause: Cause::Timeout,
        attempt: 1,
        first_sent_at: now,
        expires_at: now + TimeDelta::hours(1),
    }
}

fn batch(address: &Address) -> HttpParticipant {
    HttpParticipant::new("orders", address, Style::Batch, 8).unwrap()
}

fn single(address: &Address, in_flight: usize) -> HttpParticipant {
    HttpParticipant::new("orders", address, Style::Single, in_flight).unwrap()
}

async fn call(
    participant: &HttpParticipant,
    commands: &[Command],
) -> Result<Vec<Reply>, CallError> {
    participant.call("CancelOrder", commands).await
}

/// What comes of one command that is answered with these bytes.
async fn answered_with(act: Act) -> Result<Vec<Reply>, CallError> {
    call(&batch(&at(socket(act).await)), &[command("A-1")]).await
}

async fn refused_with(status: &str, headers: &str) -> CallError {
    let body = r#"{"title": "no", "detail": "the words of the shop"}"#;
    let act = Act::Say(response(status, headers, body));
    let error = answered_with(act).await.expect_err(status);
    let redirected = status.starts_with('3');
    assert!(
        redirected || error.to_string().contains("the words of the shop"),
        "{error}"
    );
    error
}

#[tokio::test]
async fn every_status_says_what_may_have_been_applied() {
    for status in ["400 Bad Request", "413 Too Large", "422 Unprocessable"] {
        assert!(
            matches!(refused_with(status, "").await, CallError::Data(_)),
            "{status}"
        );
    }
    for status in [
        "401 No",
        "403 No",
        "404 No",
        "405 No",
        "301 Moved",
        "302 Found",
        "303 Other",
        "307 Moved",
        "308 Moved",
    ] {
        let error = refused_with(status, "location: http://127.0.0.1:1/\r\n").await;
        assert!(
            matches!(error, CallError::Configuration(_)),
            "{status}: {error:?}"
        );
    }
    assert!(matches!(
        refused_with("423 Locked", "").await,
        CallError::Locked(_)
    ));
    assert!(matches!(
        refused_with("409 Conflict", "").await,
        CallError::Serialization(_)
    ));
    let wait = Duration::from_secs(7);
    match refused_with("429 Slow Down", "retry-after: 7\r\n").await {
        CallError::Busy { retry_after, .. } => assert_eq!(retry_after, Some(wait)),
        other => panic!("{other:?}"),
    }
    for status in ["408 Late", "502 Bad", "503 Away", "504 Late"] {
        match refused_with(status, "retry-after: 7\r\n").await {
            CallError::Unanswered { retry_after, error } => {
                assert_eq!(retry_after, Some(wait));
                assert!(
                    error.starts_with(&format!("http_{}", &status[..3])),
                    "{error}"
                );
            }
            other => panic!("{status}: {other:?}"),
        }
    }
    for status in ["500 Oops", "501 No", "418 Teapot", "204 Nothing"] {
        let error = answered_with(Act::Say(response(status, "", "")))
            .await
            .expect_err(status);
        assert!(
            matches!(error, CallError::Unknown(_)),
            "{status}: {error:?}"
        );
    }
}

#[tokio::test]
async fn who_is_not_reached_has_applied_nothing() {
    let nobody = at(free_address());
    let nowhere = Address {
        url: "http://nonesuch.invalid:1".to_owned(),
        ..Address::default()
    };
    for address in [nobody, nowhere] {
        let error = call(&batch(&address), &[command("A-1")])
            .await
            .expect_err("nobody");
        assert!(
            matches!(error, CallError::Unreachable(_)),
            "{address:?}: {error:?}"
        );
    }
}

#[tokio::test]
async fn who_was_reached_and_fell_silent_may_have_applied_it() {
    let half = &response("200 OK", "", &"[]".repeat(100))[..150];
    for act in [
        Act::SayAndReset(Vec::new()),
        Act::SayAndReset(half.to_vec()),
        Act::Say(Vec::new()),
        Act::Say(half.to_vec()),
    ] {
        let error = answered_with(act.clone()).await.expect_err("no answer");
        assert!(
            matches!(error, CallError::Unanswered { .. }),
            "{act:?}: {error:?}"
        );
    }
    for act in [Act::SayAndHang(Vec::new()), Act::SayAndHang(half.to_vec())] {
        let participant = batch(&at(socket(act.clone()).await));
        let (began, commands) = (Instant::now(), [command("A-1")]);
        let waited = deadline::within(Duration::from_secs(2), call(&participant, &commands));
        let error = waited
            .await
            .expect("it ends by itself")
            .expect_err("no answer");
        assert!(
            matches!(&error, CallError::Unanswered { error, .. } if error.starts_with("timeout")),
            "{act:?}: {error:?}"
        );
        assert!(
            began.elapsed() >= Duration::from_millis(1_500),
            "waited as long as it may"
        );
    }
}

#[tokio::test]
async fn what_can_not_be_read_may_have_been_applied() {
    for body in ["", "{", "<html>sorry</html>", "{}", "null", "17", "[1, 2"] {
        let act = Act::Say(response("200 OK", "", body));
        let error = answered_with(act).await.expect_err(body);
        assert!(matches!(error, CallError::Unknown(_)), "{body}: {error:?}");
    }
}

#[tokio::test]
async fn an_answer_without_an_end_is_cut_off() {
    let error = answered_with(Act::SayForEver).await.expect_err("too much");
    assert!(
        matches!(&error, CallError::Unknown(words) if words.contains("bytes")),
        "{error:?}"
    );
}

/// A server that answers these entries, with `ID1` and `ID2` for the ids of the two commands.
async fn entries(text: &str) -> [Option<Outcome>; 2] {
    let commands = [command("A-1"), command("A-2")];
    let [one, other] = &commands;
    let body = text
        .replace("ID1", one.command_id.as_str())
        .replace("ID2", other.command_id.as_str());
    let server = socket(Act::Say(response("200 OK", "", &body))).await;
    let replies = call(&batch(&at(server)), &commands).await.expect(text);
    assert!(replies.len() <= 2, "one reply per command: {replies:?}");
    commands.map(|command| {
        let own = |reply: &Reply| reply.command_id == command.command_id;
        replies
            .iter()
            .find(|reply| own(reply))
            .map(|reply| reply.outcome.clone())
    })
}

#[tokio::test]
async fn a_wrong_entry_spoils_only_its_own_command() {
    let done = Some(Outcome::Done {
        output: Value::Null,
    });
    let good = r#"{"command_id": "ID2", "outcome": "done"}"#;
    for wrong in [
        r#"{"command_id": "ID1", "outcome": "perhaps"}"#,
        r#"{"command_id": "ID1"}"#,
        r#"{"command_id": "ID1", "outcome": "not_due", "until": "soon"}"#,
        r#"{"command_id": "ID1", "outcome": "not_applicable"}"#,
        r#"{"command_id": "ID1", "outcome": "done", "output": "text"}"#,
        r#"{"command_id": "ID1", "outcome": "done"}, {"command_id": "ID1", "outcome": "failed", "error": "x"}"#,
    ] {
        let [first, second] = entries(&format!("[{wrong}, {good}]")).await;
        assert!(
            matches!(first, Some(Outcome::Unknown { .. })),
            "{wrong}: {first:?}"
        );
        assert_eq!(second, done, "{wrong}");
    }
    for stray in [
        "",
        "17,",
        "null,",
        r#"{"command_id": "other", "outcome": "done"},"#,
        r#"{"outcome": "done"},"#,
    ] {
        let [first, second] = entries(&format!("[{stray} {good}]")).await;
        assert_eq!((first, second), (None, done.clone()), "{stray}");
    }
    assert_eq!(entries(&format!("[{good}, {good}]")).await, [None, done]);
}

/// What a server saw of requests.
type Seen = Arc<Mutex<Vec<(HeaderMap, Value)>>>;

/// Answers `done` to everything, and remembers.
async fn remembering() -> (Address, Seen) {
    async fn answer(State(seen): State<Seen>, headers: HeaderMap, body: String) -> String {
        let body: Value = serde_json::from_str(&body).unwrap();
        seen.lock().await.push((headers, body.clone()));
        let done =
            |command: &Value| json!({ "command_id": command["command_id"], "outcome": "done" });
        match &body {
            Value::Array(commands) => commands.iter().map(done).collect::<Value>().to_string(),
            command => done(command).to_string(),
        }
    }
    let seen = Seen::default();
    let router = Router::new()
        .route("/base/v1/commands", post(answer))
        .with_state(seen.clone());
    let mut address = at(serve(router).await);
    address.url.push_str("/base/");
    (address, seen)
}

#[tokio::test]
async fn a_request_carries_token_and_time_and_a_single_one_its_id() {
    let (mut address, seen) = remembering().await;
    address.token = Secret::from("a-token");
    let commands = [command("A-1"), command("A-2")];
    for participant in [batch(&address), single(&address, 1)] {
        let called = deadline::within(Duration::from_secs(20), call(&participant, &commands));
        assert_eq!(called.await.expect("in time").expect("an answer").len(), 2);
    }
    let seen = seen.lock().await;
    let [whole, first, second] = &seen[..] else {
        panic!("three requests: {seen:?}")
    };
    assert_eq!(whole.1, json!(commands));
    assert_eq!(
        (&first.1, &second.1),
        (&json!(commands[0]), &json!(commands[1]))
    );
    for (headers, _) in seen.iter() {
        assert_eq!(headers["authorization"], "Bearer a-token");
        let wait: u64 = headers["lapse-timeout-ms"]
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        assert!((15_000..20_000).contains(&wait), "{wait}");
    }
    assert!(!whole.0.contains_key("idempotency-key"));
    assert_eq!(first.0["idempotency-key"], commands[0].command_id.as_str());
    let shown = format!("{address:?}");
    assert!(!shown.contains("a-token"), "{shown}");
}

/// Answers by the order id: `done`, or that status.
async fn by_order_id() -> Address {
    async fn answer(body: String) -> axum::response::Response {
        use axum::response::IntoResponse;
        let command: Value = serde_json::from_str(&body).unwrap();
        match command["order"]["order_id"].as_str().unwrap().parse() {
            Ok(status) => axum::http::StatusCode::from_u16(status)
                .unwrap()
                .into_response(),
            Err(_) => json!({ "command_id": command["command_id"], "outcome": "done" })
                .to_string()
                .into_response(),
        }
    }
    at(serve(Router::new().route("/v1/commands", post(answer))).await)
}

#[tokio::test]
async fn of_single_commands_each_has_its_own_end() {
    let participant = single(&by_order_id().await, 4);
    let ends = async |orders: &[&str]| {
        let commands: Vec<Command> = orders.iter().map(|order_id| command(order_id)).collect();
        call(&participant, &commands).await
    };
    let replies = ends(&["good", "422", "500", "503"]).await.expect("answers");
    let mut names: Vec<&str> = replies.iter().map(|reply| reply.outcome.name()).collect();
    names.sort();
    assert_eq!(names, ["done", "failed", "unknown", "unknown"]);

    match ends(&["good", "429"]).await {
        Err(CallError::Partly { replies, rest }) => {
            assert_eq!(replies.len(), 1);
            assert!(matches!(*rest, CallError::Busy { .. }), "{rest:?}");
        }
        other => panic!("{other:?}"),
    }
    let busy = ends(&["429", "429", "429", "429"]).await;
    assert!(matches!(busy, Err(CallError::Busy { .. })), "{busy:?}");
    match ends(&["503", "429"]).await {
        Err(CallError::Partly { rest, .. }) => {
            assert!(
                matches!(*rest, CallError::Busy { .. }),
                "somebody answered: {rest:?}"
            );
        }
        other => panic!("{other:?}"),
    }
    let away = ends(&["503", "503"]).await;
    assert!(
        matches!(away, Err(CallError::Unanswered { .. })),
        "{away:?}"
    );
}

#[tokio::test]
async fn who_is_busy_is_not_sent_the_rest() {
    let (address, seen) = {
        async fn answer(State(seen): State<Seen>, headers: HeaderMap) -> axum::http::StatusCode {
            seen.lock().await.push((headers, Value::Null));
            axum::http::StatusCode::TOO_MANY_REQUESTS
        }
        let seen = Seen::default();
        let router = Router::new()
            .route("/v1/commands", post(answer))
            .with_state(seen.clone());
        (at(serve(router).await), seen)
    };
    let commands: Vec<Command> = (0..50).map(|n| command(&format!("A-{n}"))).collect();
    let ended = call(&single(&address, 2), &commands).await;
    assert!(matches!(ended, Err(CallError::Busy { .. })), "{ended:?}");
    assert!(seen.lock().await.len() <= 2, "of 50 only those in flight");
}

#[tokio::test]
async fn what_was_not_sent_in_time_was_not_applied() {
    let participant = single(&at(socket(Act::SayAndHang(Vec::new())).await), 1);
    let commands = [command("A-1"), command("A-2")];
    let ended = deadline::within(Duration::from_secs(2), call(&participant, &commands));
    match ended.await.expect("it ends by itself") {
        Err(CallError::Partly { replies, rest }) => {
            assert_eq!(replies.len(), 1, "the one that hung may have been applied");
            let nobody = matches!(*rest, CallError::Unanswered { .. });
            assert!(nobody, "nobody has answered, which says more: {rest:?}");
        }
        other => panic!("{other:?}"),
    }
}
