//! What the tests share: a participant that follows a script, a world to run sagas in, a whole Lapse on a broker,
//! conditions with limits.

pub mod certificates;
pub mod live;
pub mod relay;
pub mod scripted;
pub mod topic;
pub mod world;

use std::future::Future;
use std::time::Duration;

/// Waits until the condition gives a value; fails with its name after `limit`.
pub async fn until<T, F, Fut>(what: &str, limit: Duration, mut condition: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let deadline = tokio::time::Instant::now() + limit;
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "not within {limit:?}: {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
