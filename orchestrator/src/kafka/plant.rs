//! Bugs planted on purpose, to prove that the crash test finds them. Compiled only with the feature `planted`.

use std::sync::LazyLock;

/// With `LAPSE_PLANT=commit_early`, offsets are committed as soon as their records are received.
pub(super) fn commits_early() -> bool {
    static COMMITS_EARLY: LazyLock<bool> =
        LazyLock::new(|| std::env::var("LAPSE_PLANT").is_ok_and(|bug| bug == "commit_early"));
    *COMMITS_EARLY
}
