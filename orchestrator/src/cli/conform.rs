//! `lapse conform URL`: whether a participant keeps the contract of docs/participants.md.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use lapse_participants::kit::Participant;
use serde_json::Value;

use super::{Context, Exit, answer, init_logs};
use crate::config::Participant as Settings;
use crate::conform::http::HttpWire;
use crate::conform::shell::ShellSite;
use crate::conform::{self, CaseReport, Plan, Report, Subject, Verdict, Wire};
use crate::participants::http::{HttpParticipant, Style};

/// Flags of `lapse conform`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The participant's base URL; commands go to {URL}/v1/commands.
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
    init_logs(&context.config)?;
    let subject = subject(args).map_err(|error| Exit::Invalid(format!("{error:#}")))?;
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

fn subject(args: Args) -> anyhow::Result<Subject> {
    let input: Value = serde_json::from_str(&args.input).context("--input is no JSON")?;
    let settings = Settings {
        url: args.url,
        token_file: args.token_file.unwrap_or_default(),
        ca_file: args.ca_file.unwrap_or_default(),
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
    let participant: Arc<dyn Participant> = Arc::new(HttpParticipant::new(
        "conform",
        &address,
        style,
        settings.in_flight,
    )?);
    let site = ShellSite {
        place: args.place,
        state: args.state,
        tenant: args.tenant.clone(),
    };
    Ok(Subject {
        participant,
        wire,
        site: Arc::new(site),
        plan: Plan {
            action: args.action,
            compensation: args.compensation,
            input,
            tenant: args.tenant,
            refusals: true,
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
