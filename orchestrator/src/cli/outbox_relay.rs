//! `lapse outbox-relay`: an outbox of Debezium's columns to Kafka, until SIGTERM or until it is empty.

use std::time::Duration;

use lapse_participants::kit::CallError;
use lapse_sagas::Span;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::run::wait_for_signal;
use super::{Context, Exit, Output, answer, init_logs};
use crate::foreign::outbox::{After, Outbox, Round, Settings};
use crate::foreign::refuses_login;
use crate::kafka::plain::Plain;
use crate::outbox_relay::OutboxRelay;

/// Flags of `lapse outbox-relay`. `--database-url` names the outbox's database here, `postgres://…` or `mysql://…`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The outbox, `table` or `schema.table`, with columns id, aggregatetype (the topic), aggregateid (the key), type,
    /// payload and created_at.
    #[arg(long, default_value = "outbox")]
    table: String,
    /// Mark rows that were sent (column published_at) instead of deleting them.
    #[arg(long)]
    keep: bool,
    /// A column with a JSON object that becomes headers, beside id and type.
    #[arg(long, value_name = "COLUMN")]
    headers: Option<String>,
    /// Rows per round.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=5_000))]
    batch: u32,
    /// How often a line in the log says what was sent.
    #[arg(long, default_value = "1m")]
    report_every: Span,
    /// Stop when nothing is left that can be sent.
    #[arg(long)]
    once: bool,
}

pub(super) async fn run(context: Context, args: Args) -> anyhow::Result<()> {
    init_logs(&context)?;
    let url = context.config.outbox.url.clone();
    if url.is_empty() {
        let words = "name the outbox's database: --database-url, outbox.url, or LAPSE__OUTBOX__URL";
        return Err(Exit::Invalid(words.to_owned()).into());
    }
    let outbox = Outbox::open(Settings {
        url,
        table: args.table,
        headers: args.headers,
        after: if args.keep {
            After::Keep
        } else {
            After::Delete
        },
        batch: args.batch,
    })
    .map_err(|words| Exit::Invalid(format!("outbox: {words}")))?;
    match outbox.check().await {
        Ok(()) => {}
        Err(CallError::Configuration(words)) if refuses_login(&words) => {
            return Err(Exit::Invalid(format!("outbox.url: {words}")).into());
        }
        Err(CallError::Configuration(words)) => return Err(Exit::Invalid(words).into()),
        Err(error) if args.once => return Err(error.into()),
        Err(error) => warn!(%error, "the outbox's database does not answer yet"),
    }
    let producer = Plain::new(&context.config.kafka_settings())?;
    let relay = OutboxRelay::new(outbox, producer, Duration::from(args.report_every));
    if args.once {
        return once(&relay, context.output).await;
    }
    info!("relaying");
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    let signal = tokio::spawn(async move {
        let signal = wait_for_signal().await;
        stopping.cancel();
        signal
    });
    relay.run(&stop).await;
    signal.await?
}

async fn once(relay: &OutboxRelay, output: Output) -> anyhow::Result<()> {
    let Round {
        delivered: sent,
        left,
    } = relay.until_empty().await?;
    let troubled = relay.troubled();
    let ok = troubled == 0 && left == 0;
    let result = json!({ "ok": ok, "sent": sent, "troubled": troubled });
    answer::print(output, "outbox-relay", &result, || format!("sent {sent}"))?;
    if sent == 0 && troubled == 0 && left > 0 {
        relay.reach().await?;
    }
    if !ok {
        let words = "not everything could be sent; the log says what and why";
        return Err(Exit::Partly(words.to_owned()).into());
    }
    Ok(())
}
