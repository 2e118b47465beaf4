//! What nobody should send: bytes that are no commands, connections that are cut.

use std::time::Duration;

use async_trait::async_trait;
use lapse_participants::kit::{CallError, Command};
use lapse_sagas::Outcome;
use serde_json::{Value, json};

use super::barrier::one_effect;
use super::scene::{Checked, Scene, Stop, failed, words};

/// Far over any limit that a service may have, and still nothing for a machine.
const TOO_LARGE: usize = 32 * 1024 * 1024;
/// A reader that recurses without a limit dies of this.
const NESTED: usize = 100_000;

/// Bytes to the participant, past everything that makes them right.
#[async_trait]
pub trait Wire: Send + Sync {
    /// Sends bytes as they are.
    async fn bytes(&self, bytes: Vec<u8>) -> Result<Taken, CallError>;

    /// Sends texts as the commands of one batch, whatever they are.
    async fn batch(&self, entries: &[String]) -> Result<Taken, CallError>;

    /// Sends a batch and cuts the connection; nothing if there is no connection to cut.
    async fn cut(&self, entries: &[String], cut: Cut) -> Option<std::io::Result<()>>;
}

/// How bytes were taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Taken {
    /// With an answer.
    Answered(Vec<u8>),
    /// With a status and words.
    Refused(u16, String),
    /// In silence, on a transport that has no way to refuse.
    Ignored,
}

/// Where and how a connection is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cut {
    /// How much of the body is sent.
    pub sent: Sent,
    /// How long after that: the service may be in the middle of the work then.
    pub after: Duration,
    /// How.
    pub end: End,
}

/// How much of a body is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// Half of it.
    Half,
    /// All of it.
    Whole,
}

/// How a connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// In peace (FIN).
    Closed,
    /// By a reset (RST).
    Reset,
}

/// After so long is the connection cut, once with everything sent.
const CUT_AFTER_MS: [u64; 4] = [0, 10, 30, 100];

fn cuts() -> Vec<Cut> {
    let mut cuts = Vec::new();
    for end in [End::Closed, End::Reset] {
        let cut = |sent, after_ms| Cut {
            sent,
            after: Duration::from_millis(after_ms),
            end,
        };
        cuts.push(cut(Sent::Half, 0));
        cuts.extend(CUT_AFTER_MS.map(|after_ms| cut(Sent::Whole, after_ms)));
    }
    cuts
}

impl Taken {
    fn words(&self) -> String {
        match self {
            Taken::Answered(body) => {
                let text = String::from_utf8_lossy(body);
                format!("200: {}", text.chars().take(200).collect::<String>())
            }
            Taken::Refused(status, words) => format!("{status}: {words}"),
            Taken::Ignored => "silence".to_owned(),
        }
    }
}

/// The command as JSON, which a test may spoil.
fn value(command: &Command) -> Checked<Value> {
    serde_json::to_value(command).map_err(|error| Stop::NotRun(error.to_string()))
}

pub(super) async fn unknown_fields(scene: &Scene<'_>) -> Checked {
    let wire = scene.wire()?;
    let order = scene.place().await?;
    let action = scene.action(&order);
    let mut command = value(&action)?;
    command["conform_later_version"] = json!({ "anything": [1, null, "x"] });
    command["order"]["conform_later_version"] = json!(true);
    let expected = "done for a command with fields of a later version";
    match wire.batch(&[command.to_string()]).await {
        Ok(Taken::Refused(status, words)) => return failed(expected, format!("{status}: {words}")),
        Ok(_) => {}
        Err(error) => return failed(expected, error.to_string()),
    }
    scene.done(&action).await?;
    scene
        .is_acted_on_once(&order, "a command with more fields, and one without")
        .await
}

pub(super) async fn garbage(scene: &Scene<'_>) -> Checked {
    let wire = scene.wire()?;
    let order = scene.place().await?;
    let good = value(&scene.action(&order))?;
    let spoilt = |field: &str, with: Value| {
        let mut command = good.clone();
        command[field] = with;
        format!("[{command}]").into_bytes()
    };
    let mut without_id = good.clone();
    if let Some(fields) = without_id.as_object_mut() {
        fields.remove("command_id");
    }
    let pieces: Vec<(&str, Vec<u8>)> = vec![
        ("nothing", Vec::new()),
        ("half a JSON text", format!("[{good}").into_bytes()),
        (
            "bytes that are no UTF-8",
            b"[{\"command_id\": \"\xff\xfe\"}]".to_vec(),
        ),
        ("null", b"null".to_vec()),
        ("a text", b"\"CancelOrder\"".to_vec()),
        ("a number in an array", b"[17]".to_vec()),
        ("an empty object in an array", b"[{}]".to_vec()),
        (
            "a command without command_id",
            format!("[{without_id}]").into_bytes(),
        ),
        ("an order that is a text", spoilt("order", json!("A-1"))),
        (
            "an operation that is a list",
            spoilt("operation", json!(["CancelOrder"])),
        ),
        (
            "an expires_at that is no time",
            spoilt("expires_at", json!("yesterday")),
        ),
        ("100,000 open brackets", vec![b'['; NESTED]),
    ];
    for (what, bytes) in pieces {
        let expected = format!("400 or another 4xx for {what}");
        match wire.bytes(bytes).await {
            Ok(Taken::Refused(400..=499, _) | Taken::Ignored) => {}
            Ok(taken) => return failed(expected, taken.words()),
            Err(error) => return failed(expected, error.to_string()),
        }
    }
    scene.is_untouched(&order, "garbage").await?;
    scene.works_on("garbage").await
}

/// The part of `batch_with_one_bad_command` that needs bytes.
pub(super) async fn unreadable_among_good(scene: &Scene<'_>) -> Checked {
    let Ok(wire) = scene.wire() else {
        return Ok(());
    };
    let (one, other) = (scene.place().await?, scene.place().await?);
    let (first, second) = (scene.action(&one), scene.action(&other));
    let mut bad = value(&scene.action(&scene.nowhere()))?;
    bad["order"] = json!(17);
    let entries = [value(&first)?, bad, value(&second)?].map(|entry| entry.to_string());
    match wire.batch(&entries).await {
        Ok(Taken::Refused(400 | 413 | 422, _)) => {
            for order in [&one, &other] {
                scene
                    .is_untouched(order, "a batch that was refused")
                    .await?;
            }
        }
        Ok(Taken::Answered(_) | Taken::Ignored) => {}
        Ok(taken) => {
            let expected = "200, 400 or 422 for a batch with a command that can't be read";
            return failed(expected, taken.words());
        }
        Err(error) => return failed("an answer", error.to_string()),
    }
    for good in [&first, &second] {
        let outcome = scene.settle(good).await?;
        if !matches!(outcome, Outcome::Done { .. }) {
            return failed(
                "done for what was beside a command that can't be read",
                words(&outcome),
            );
        }
        scene
            .is_acted_on_once(&good.order, "a batch with a command that can't be read")
            .await?;
    }
    Ok(())
}

/// The part of `huge` that needs bytes.
pub(super) async fn far_too_large(scene: &Scene<'_>) -> Checked {
    let Ok(wire) = scene.wire() else {
        return Ok(());
    };
    let order = scene.place().await?;
    let action = scene.action(&order);
    let mut command = value(&action)?;
    command["conform_padding"] = json!("x".repeat(TOO_LARGE));
    match wire.batch(&[command.to_string()]).await {
        // Whoever stops reading may cut the connection before it has said why.
        Ok(Taken::Refused(400..=499, _) | Taken::Answered(_) | Taken::Ignored)
        | Err(CallError::Unanswered { .. }) => {}
        Ok(taken) => return failed("413, another 4xx, or the answer to 32 MiB", taken.words()),
        Err(error) => {
            return failed(
                "413, another 4xx, or the answer to 32 MiB",
                error.to_string(),
            );
        }
    }
    one_effect(scene, &action, "a body of 32 MiB").await?;
    scene.works_on("a body of 32 MiB").await
}

pub(super) async fn reset_in_the_middle(scene: &Scene<'_>) -> Checked {
    let wire = scene.wire()?;
    for cut in cuts() {
        let order = scene.place().await?;
        let action = scene.action(&order);
        match wire.cut(&[value(&action)?.to_string()], cut).await {
            Some(Ok(())) => {}
            Some(Err(error)) => return failed("a connection to cut", error.to_string()),
            None => {
                return Err(Stop::NotRun(
                    "there is no connection that can be cut".to_owned(),
                ));
            }
        }
        let after = format!(
            "a connection cut after {:?} of the body and {:?} ({:?})",
            cut.sent, cut.after, cut.end
        );
        one_effect(scene, &action, &after).await?;
    }
    scene.works_on("cut connections").await
}
