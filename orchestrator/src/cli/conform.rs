//! `lapse conform URL`: whether a participant keeps the contract of docs/participants.md.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use lapse_participants::kit::Participant;
use serde_json::Value;

use super::{Context, Exit, answer, init_logs};
use crate::config::Participant as Settings;
use crate::conform::http::HttpWire;
use crate::conform::kafka::KafkaCaller;
use crate::conform::shell::ShellSite;
use crate::conform::{self, CaseReport, Plan, Report, Subject, Verdict, Wire};
use crate::participants::http::{HttpParticipant, Style};

/// Flags of `lapse conform`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The participant's base URL, and commands go to {URL}/v1/commands; or kafka:NAME, and they go to the topic of this
    /// participant.
    url: String,
    /// The operation of the action.
    #[arg(long, default_value = "CancelOrder")]
    action: String,
    /// The operation that undoes it; without one the cases about it are not tried.
    #[arg(long)]
    compensation: Option<String>,
    /// A command of the shell that places an order for the action. Its id is in $LAPSE_ORDER_ID, its tenant in $LAPSE_TENANT.
    #[arg(long, value_name = "COMMAND")]
    place: String,
    /// A command of the shell that prints how an order stands: status, holds and the like, and how often something was
    /// done to it. Without times, versions and what orders share, so that two orders placed alike stand alike.
    #[arg(long, value_name = "COMMAND")]
    state: String,
    /// The input of action and compensation.
    #[arg(long, value_name = "JSON", default_value = "null")]
    input: String,
    /// The tenant of the orders.
    #[arg(long, default_value = "default")]
    tenant: String,
    /// One request per command, with Idempotency-Key.
    #[arg(long)]
    single: bool,
    /// A file with the bearer token.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// A PEM file of the authorities that are believed instead of this machine's.
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Send the token over http:// to another machine, where others may read it.
    #[arg(long)]
    insecure: bool,
}

pub(super) async fn run(context: Context, args: Args) -> anyhow::Result<()> {
    init_logs(&context)?;
    let line = match args.url.strip_prefix("kafka:") {
        Some(name) => over_kafka(&context, name).await?,
        None => over_http(&args).map_err(|error| Exit::Invalid(format!("{error:#}")))?,
    };
    let subject = subject(args, line).map_err(|error| Exit::Invalid(format!("{error:#}")))?;
    let report = match conform::run(&subject, now()).await {
        Ok(report) => report,
        Err(conform::Error::Participant(error)) => {
            return Err(
                Exit::Unreachable(format!("the participant does not answer: {error}")).into(),
            );
        }
        Err(error @ conform::Error::Site(_)) => return Err(Exit::Invalid(error.to_string()).into()),
    };
    answer::print(context.output, "conform", &report, || words(&report))?;
    anyhow::ensure!(
        report.ok,
        "{} of {} cases failed",
        report.failed,
        report.cases.len()
    );
    Ok(())
}

fn now() -> lapse_sagas::Timestamp {
    std::time::SystemTime::now().into()
}

/// How the participant is spoken to.
struct Line {
    participant: Arc<dyn Participant>,
    wire: Option<Arc<dyn Wire>>,
    refusals: bool,
}

fn over_http(args: &Args) -> anyhow::Result<Line> {
    let settings = Settings {
        url: args.url.clone(),
        token_file: args.token_file.clone().unwrap_or_default(),
        ca_file: args.ca_file.clone().unwrap_or_default(),
        insecure: args.insecure,
        single: args.single,
        ..Settings::default()
    };
    settings.check("the participant")?;
    let address = settings.address("the participant")?;
    let style = settings.style();
    // Its requests are batches, which a service for single commands need not know.
    let wire: Option<Arc<dyn Wire>> = match style {
        Style::Single => None,
        Style::Batch => Some(Arc::new(HttpWire::new(&address)?)),
    };
    let participant = HttpParticipant::new("conform", &address, style, settings.in_flight)?;
    Ok(Line {
        participant: Arc::new(participant),
        wire,
        refusals: true,
    })
}

async fn over_kafka(context: &Context, name: &str) -> anyhow::Result<Line> {
    let caller = KafkaCaller::start(&context.config.kafka_settings(), name).await?;
    Ok(Line {
        wire: Some(Arc::new(caller.wire())),
        participant: Arc::new(caller),
        refusals: false,
    })
}

fn subject(args: Args, line: Line) -> anyhow::Result<Subject> {
    let input: Value = serde_json::from_str(&args.input).context("--input is no JSON")?;
    let site = ShellSite {
        place: args.place,
        state: args.state,
        tenant: args.tenant.clone(),
    };
    Ok(Subject {
        participant: line.participant,
        wire: line.wire,
        site: Arc::new(site),
        plan: Plan {
            action: args.action,
            compensation: args.compensation,
            input,
            tenant: args.tenant,
            refusals: line.refusals,
        },
    })
}

fn words(report: &Report) -> String {
    let rows = report.cases.iter().map(|case| {
        let verdict = match case.result {
            Verdict::Ok => "ok",
            Verdict::Failed => "FAILED",
            Verdict::NotRun => "not tried",
        };
        vec![
            case.case.to_owned(),
            verdict.to_owned(),
            format!("{} ms", case.ms),
            case.promise.to_owned(),
        ]
    });
    let table = answer::table(&["case", "result", "took", "promise"], rows);
    let told = report.cases.iter().filter_map(told);
    let told: String = told.collect();
    format!(
        "{table}\n{told}\n{} ok, {} failed, {} not tried",
        report.passed, report.failed, report.not_run
    )
}

/// What there is to say of a case beyond its line.
fn told(case: &CaseReport) -> Option<String> {
    let came = case.came.as_deref()?;
    let name = case.case;
    Some(match &case.expected {
        Some(expected) => format!(
            "\n{name} FAILED\n  expected  {expected}\n  came      {came}\n  read      {}\n",
            case.read
        ),
        None => format!("\n{name} not tried: {came}\n"),
    })
}
