//! `lapse shop serve`: the reference shop as a participant and an order owner of its own, until SIGTERM.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use lapse_participants::order::Orders;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::run::wait_for_signal;
use super::{Context, Exit, init_logs};
use crate::service;
use crate::shop_serve::ShopParticipant;
use crate::shop_serve::http::{Served, router};

/// Requests that are being answered have so long after SIGTERM.
const DRAIN_WITHIN: Duration = Duration::from_secs(8);

/// Flags of `lapse shop serve`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Where requests are taken; loopback only, since the shop asks nobody for a token.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8390")]
    listen: SocketAddr,
    /// Bring the shop's tables up to this version first.
    #[arg(long)]
    migrate: bool,
}

pub(super) async fn run(context: Context, args: Args) -> anyhow::Result<()> {
    init_logs(&context.config)?;
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
    let http = axum::serve(listener, router(served))
        .with_graceful_shutdown(stop.clone().cancelled_owned());
    let http = tokio::spawn(http.into_future());
    info!(%listen, "serving the shop");
    wait_for_signal().await?;
    stop.cancel();
    if tokio::time::timeout(DRAIN_WITHIN, http).await.is_err() {
        warn!("requests are still being answered; left to themselves");
    }
    Ok(())
}
