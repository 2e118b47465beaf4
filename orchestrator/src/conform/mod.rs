//! Whether a participant keeps the contract of docs/participants.md: every case of it, tried from outside.
//!
//! Relies on a [`Site`] that places orders and tells how they stand: effects are judged by what it tells, before and after.
//! Never: calls a case ok of which nothing could be tried, or looks into the participant.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use lapse_participants::kit::{CallError, Participant};
use lapse_sagas::Timestamp;
use serde::Serialize;
use serde_json::Value;

mod barrier;
mod batch;
mod cases;
pub mod http;
pub mod kafka;
mod scene;
pub mod shell;
mod wire;

pub use cases::CASES;
use scene::{Scene, Stop};
pub use wire::{Cut, End, Sent, Taken, Wire};

/// Who is examined, and with what.
pub struct Subject {
    /// Speaks to it as a coordinator does.
    pub participant: Arc<dyn Participant>,
    /// Speaks to it as nobody should; where the transport has bytes and connections.
    pub wire: Option<Arc<dyn Wire>>,
    /// Where its orders are.
    pub site: Arc<dyn Site>,
    /// What it is told to do.
    pub plan: Plan,
}

/// What the participant is told to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The operation of the action.
    pub action: String,
    /// The operation that undoes it; without one the cases about it are not tried.
    pub compensation: Option<String>,
    /// The input of both.
    pub input: Value,
    /// The tenant of the orders.
    pub tenant: String,
    /// Whether the transport has a way to refuse a call as a whole, such as a status. Without one every command has an
    /// answer of its own.
    pub refusals: bool,
}

/// Where orders are placed and looked at.
#[async_trait]
pub trait Site: Send + Sync {
    /// Places an order that the action can be applied to. All are placed alike.
    async fn place(&self, order_id: &str) -> anyhow::Result<()>;

    /// How an order stands: text that is the same for two orders placed alike, apart from the order's id, and that changes
    /// with every effect and with nothing else.
    async fn state(&self, order_id: &str) -> anyhow::Result<String>;
}

/// What came of all cases. The names are relied on by other programs.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// No case failed, and at least one is ok.
    pub ok: bool,
    /// Cases that are ok.
    pub passed: usize,
    /// Cases that failed.
    pub failed: usize,
    /// Cases that could not be tried.
    pub not_run: usize,
    /// All cases.
    pub cases: Vec<CaseReport>,
}

/// What came of one case.
#[derive(Clone, Debug, Serialize)]
pub struct CaseReport {
    /// Stable name.
    pub case: &'static str,
    /// How it ended.
    pub result: Verdict,
    /// What is tried.
    pub promise: &'static str,
    /// Of a failed case: what the contract says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    /// Of a failed case: what happened; of one that could not be tried: why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub came: Option<String>,
    /// Where the contract says it.
    pub read: &'static str,
    /// How long it took.
    pub ms: u64,
}

/// How a case ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As the contract says.
    Ok,
    /// Otherwise.
    Failed,
    /// It could not be tried.
    NotRun,
}

/// Why nothing could be tried.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The participant was not reached, or nobody answers.
    #[error("the participant does not answer: {0}")]
    Participant(#[source] CallError),
    /// Orders can't be placed or looked at, or don't stand alike.
    #[error("{0}")]
    Site(String),
}

/// Tries every case, one after the other. `start` is the time now; commands expire by it.
///
/// # Errors
/// If not even one order could be placed and acted on.
pub async fn run(subject: &Subject, start: Timestamp) -> Result<Report, Error> {
    let (scene, plain) = Scene::prepare(subject, start).await?;
    let mut reports = Vec::new();
    for case in CASES {
        let began = Instant::now();
        let ended = match (&plain, case.name) {
            (Ok(()), cases::PLAIN) => Ok(()),
            (Ok(()), _) => (case.attempt)(&scene).await,
            (Err(stop), cases::PLAIN) => Err(stop.clone()),
            (Err(_), _) => Err(Stop::NotRun(format!("{} failed", cases::PLAIN))),
        };
        let (result, expected, came) = match ended {
            Ok(()) => (Verdict::Ok, None, None),
            Err(Stop::Failed { expected, came }) => (Verdict::Failed, Some(expected), Some(came)),
            Err(Stop::NotRun(why)) => (Verdict::NotRun, None, Some(why)),
        };
        reports.push(CaseReport {
            case: case.name,
            result,
            promise: case.promise,
            expected,
            came,
            read: case.read,
            ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
        });
    }
    let count = |verdict| reports.iter().filter(|case| case.result == verdict).count();
    let (passed, failed) = (count(Verdict::Ok), count(Verdict::Failed));
    Ok(Report {
        ok: failed == 0 && passed > 0,
        passed,
        failed,
        not_run: count(Verdict::NotRun),
        cases: reports,
    })
}
