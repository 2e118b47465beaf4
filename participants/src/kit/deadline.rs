//! How long a call is waited for, known to whoever carries it: a transport tells the other side.
//!
//! Relies on the call being polled by the task that waits for it. Never: extends a wait.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

tokio::task_local! {
    static DEADLINE: Instant;
}

/// Waits for a call so long and no longer; meanwhile [`time_left`] tells how long that still is.
///
/// # Errors
/// If there was no answer in time. The call is dropped: what it has done by then is not known.
pub async fn within<C: Future>(
    limit: Duration,
    call: C,
) -> Result<C::Output, tokio::time::error::Elapsed> {
    let deadline = Instant::now() + limit;
    tokio::time::timeout(limit, DEADLINE.scope(deadline, call)).await
}

/// How long this call is still waited for; nothing outside of [`within`].
pub fn time_left() -> Option<Duration> {
    DEADLINE
        .try_with(|deadline| deadline.saturating_duration_since(Instant::now()))
        .ok()
}
