//! Crash tests: real Kafka, real Postgres, two coordinators as processes of their own, and everything is killed.
//!
//! Each test ends in `lapse verify`. `ORDERS` asks for the full run (its result: `target/crash.json`), `SEED` repeats
//! one; without `ORDERS` a run of a minute. Relies on `scripts/postgres` and `scripts/kafka` for private servers named
//! `crash`. Never: touches servers that somebody else uses.

mod check;
mod faults;
mod load;
mod orders;
#[cfg(feature = "planted")]
mod planted;
mod process;
mod report;
mod rig;
mod run;
mod services;

use rig::Participants;
use services::Services;

#[tokio::test]
async fn nothing_is_lost_or_doubled_through_kills_stops_and_outages() -> anyhow::Result<()> {
    let test = "nothing_is_lost_or_doubled_through_kills_stops_and_outages";
    holds(test, run::Size::from_environment()?).await
}

#[tokio::test]
async fn nothing_is_lost_or_doubled_with_the_shop_over_http() -> anyhow::Result<()> {
    let test = "nothing_is_lost_or_doubled_with_the_shop_over_http";
    holds(test, run::Size::short(run::seed()?, Participants::Http)).await
}

#[tokio::test]
async fn nothing_is_lost_or_doubled_with_the_shop_over_kafka() -> anyhow::Result<()> {
    let test = "nothing_is_lost_or_doubled_with_the_shop_over_kafka";
    holds(test, run::Size::short(run::seed()?, Participants::Kafka)).await
}

async fn holds(test: &str, size: run::Size) -> anyhow::Result<()> {
    let Some(services) = Services::alone(test).await? else {
        return Ok(());
    };
    let report = run::run(&services, &size).await?;
    anyhow::ensure!(report.ok, "it does not hold: {:#?}", report.broken());
    Ok(())
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn without_the_fence_the_checker_finds_it() -> anyhow::Result<()> {
    let test = "without_the_fence_the_checker_finds_it";
    let Some(services) = Services::shared(test).await? else {
        return Ok(());
    };
    let (with, without) = tokio::try_join!(
        planted::late_writer(&services, Some("no_fence")),
        planted::late_writer(&services, None),
    )?;
    without.ensure_clean()?;
    with.ensure_finds("history_gap")
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn with_offsets_committed_early_and_no_sweep_the_checker_finds_it() -> anyhow::Result<()> {
    let test = "with_offsets_committed_early_and_no_sweep_the_checker_finds_it";
    let Some(services) = Services::shared(test).await? else {
        return Ok(());
    };
    let (with, without) = tokio::try_join!(
        planted::lost_windows(&services, Some("commit_early")),
        planted::lost_windows(&services, None),
    )?;
    without.ensure_clean()?;
    with.ensure_finds("lost")
}
