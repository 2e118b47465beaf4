//! `lapse shop serve`: the reference shop as a participant and an order owner of its own, until SIGTERM.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::future::OptionFuture;
use lapse_participants::kit::Participant;
use lapse_participants::order::Orders;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::run::wait_for_signal;
use super::{Context, Exit, init_logs};
use crate::bus::commands_topic;
use crate::kafka::{KafkaFeed, KafkaOutlet};
use crate::service;
use crate::shop_serve::http::{Served, router};
use crate::shop_serve::{OPERATIONS, PARTICIPANTS, ShopParticipant, kafka};

/// Requests that are being answered have so long after SIGTERM.
const DRAIN_WITHIN: Duration = Duration::from_secs(8);

/// Flags of `lapse shop serve`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Where requests are taken; loopback only, since the shop asks nobody for a token.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8390")]
    listen: SocketAddr,
    /// Take commands from Kafka too, on the topics of participants orders and stock.
    #[arg(long)]
    kafka: bool,
    /// Bring the shop's tables up to this version first.
    #[arg(long)]
    migrate: bool,
}

pub(super) async fn run(context: Context, args: Args) -> anyhow::Result<()> {
    init_logs(&context)?;
    let listen = args.listen;
    if !listen.ip().is_loopback() {
        let words = format!(
            "--listen {listen}: the reference shop asks for no token, so it listens on loopback only"
        );
        return Err(Exit::Invalid(words).into());
    }
    let pool = service::shop_database(&context.config)?;
    if args.migrate {
        lapse_participants::shop::migrate(&pool)
            .await
            .context("migrate the shop's tables")?;
    }
    let listener = tokio::net::TcpListener::bind(listen)
        .await
        .with_context(|| format!("listen on {listen}; choose another with --listen"))?;
    let served = Served {
        participant: Arc::new(ShopParticipant::new(pool.clone())),
        owner: Arc::new(Orders::new(pool)),
    };
    let stop = CancellationToken::new();
    let mut commands = args
        .kafka
        .then(|| take_commands(&context, served.participant.clone(), stop.clone()))
        .transpose()?;
    let http = axum::serve(listener, router(served))
        .with_graceful_shutdown(stop.clone().cancelled_owned());
    let mut http = tokio::spawn(http.into_future());
    info!(%listen, "serving the shop");
    let taking = OptionFuture::from(commands.as_mut());
    tokio::select! {
        signal = wait_for_signal() => signal?,
        ended = &mut http => bail!("serving HTTP ended by itself: {ended:?}"),
        Some(ended) = taking => bail!("taking commands from Kafka ended by itself: {ended:?}"),
    }
    stop.cancel();
    if tokio::time::timeout(DRAIN_WITHIN, http).await.is_err() {
        warn!("requests are still being answered; left to themselves");
    }
    if let Some(commands) = commands {
        commands.await.context("take commands from Kafka")?;
    }
    Ok(())
}

/// As many of these as there are share the commands.
fn take_commands(
    context: &Context,
    participant: Arc<dyn Participant>,
    stop: CancellationToken,
) -> anyhow::Result<JoinHandle<()>> {
    let settings = context.config.kafka_settings();
    let group = format!("{}.shop", settings.group);
    let topics = PARTICIPANTS.map(commands_topic);
    let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
    let server = kafka::Server {
        feed: Arc::new(KafkaFeed::group(&settings, &group, &topics)?),
        outlet: Arc::new(KafkaOutlet::new(&settings)?),
        participant,
        operations: &OPERATIONS,
    };
    Ok(tokio::spawn(async move { server.run(&stop).await }))
}
