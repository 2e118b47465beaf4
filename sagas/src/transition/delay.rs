//! How long to wait: before a retry, and before asking again about an order that was not due.
//!
//! Relies on a hash for its jitter, so the same saga always waits the same time. Never: is random.

use chrono::TimeDelta;
use sha2::{Digest, Sha256};

use crate::Timestamp;
use crate::duration::Span;
use crate::ids::StepId;
use crate::order_event::LONGEST_DELAY;
use crate::state::State;

/// First delay after `not_due`; doubles up to [`POSTPONE_MAX`].
const POSTPONE_FIRST: TimeDelta = TimeDelta::milliseconds(250);
const POSTPONE_MAX: TimeDelta = TimeDelta::seconds(5);

/// The delay before attempt + 1: the configured one, less up to half of it by a hash of saga, step and attempt.
pub(super) fn retry_delay(
    state: &State,
    step: &StepId,
    attempt: u32,
    delays: &[Span],
) -> TimeDelta {
    let at = (attempt.saturating_sub(1) as usize).min(delays.len().saturating_sub(1));
    let delay_ms = delays.get(at).map_or(1_000, |delay| delay.as_millis());
    let digest = Sha256::new()
        .chain_update(state.saga_id.0.as_bytes())
        .chain_update(step.as_str())
        .chain_update(attempt.to_be_bytes())
        .finalize();
    let share = u64::from(u16::from_be_bytes([digest[0], digest[1]]));
    Span::from_millis(delay_ms - (delay_ms / 2) * share / u64::from(u16::MAX)).delta()
}

/// When to ask again: at the order's new due time, and not in a tight loop if that is past. An absurdly far time is
/// asked about after 31 days: asking early is harmless, sleeping for ever is not.
pub(super) fn postponed_until(until: Timestamp, postponements: u32, now: Timestamp) -> Timestamp {
    let backoff = (POSTPONE_FIRST * (1 << postponements.min(5))).min(POSTPONE_MAX);
    until.clamp(now + backoff, now + LONGEST_DELAY.delta())
}
