//! What an earlier run left under way: let it come to rest before this run counts.
//!
//! Relies on the sweep for orders that await payment and on the coordinator for sagas that were cut short. Never: ends
//! either itself, or waits for an order that is due later than any of the stream's.

use std::time::{Duration, Instant};

use anyhow::Context;
use chrono::TimeDelta;
use lapse_participants::audit::{self, Bounds};
use sqlx::PgPool;

use super::say;
use crate::store::ops::{Filter, Ops};

/// Deadlines of 6 s, 5 s until the sweep looks at them and 5 s between sweeps, 21 s of retries; and as long again.
const REST_WITHIN: Duration = Duration::from_secs(60);
/// An order of an earlier stream is due within 6 s.
const DUE_WITHIN: TimeDelta = TimeDelta::seconds(10);

/// How many orders and sagas are under way.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Leftovers {
    orders: i64,
    sagas: usize,
}

/// Waits until nothing is under way, or a minute; says what there was and what still is.
///
/// # Errors
/// If a database does not answer.
pub(super) async fn let_rest(shop: &PgPool, ops: &Ops, began: Instant) -> anyhow::Result<()> {
    let deadline = Instant::now() + REST_WITHIN;
    let found = count(shop, ops).await?;
    if found.none() {
        return Ok(());
    }
    say(
        began,
        &format!("an earlier run left {}; they come first", found.words()),
    );
    let mut left = found;
    while !left.none() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(200)).await;
        left = count(shop, ops).await?;
    }
    if left.none() {
        say(began, "what the earlier run left has come to rest");
    } else {
        say(
            began,
            &format!(
                "{} of those are still under way after {REST_WITHIN:?}; this run goes on without them",
                left.words()
            ),
        );
    }
    Ok(())
}

async fn count(shop: &PgPool, ops: &Ops) -> anyhow::Result<Leftovers> {
    // The check for lost orders finds what awaits payment so long after its due time; less than zero: before it.
    let bounds = Bounds {
        settled_after: -DUE_WITHIN,
        ..Bounds::default()
    };
    let audit = audit::run(shop, &bounds)
        .await
        .context("look for orders of an earlier run")?;
    let lost = audit.checks.iter().find(|check| check.id == "lost");
    let mut sagas = 0;
    for state in ["running", "compensating"] {
        let filter = Filter {
            state: Some(state.to_owned()),
            limit: 1_000,
            ..Filter::default()
        };
        let live = ops.list(filter).await;
        sagas += live.context("look for sagas of an earlier run")?.len();
    }
    Ok(Leftovers {
        orders: lost.map_or(0, |check| check.violations),
        sagas,
    })
}

impl Leftovers {
    fn none(self) -> bool {
        self.orders == 0 && self.sagas == 0
    }

    fn words(self) -> String {
        format!(
            "{} orders that await payment and {} sagas that are live",
            self.orders, self.sagas
        )
    }
}
