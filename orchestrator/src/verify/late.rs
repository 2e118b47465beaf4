//! What is late beside what a human left lying: a saga that an operator had tried again is on time if its order was
//! cancelled soon after that.
//!
//! Relies on the history for when that was, and reads it after the shop's tables: the retry of an order that is
//! cancelled there is written. Never: forgives a saga whose retry came after the cancelling.

use std::collections::HashMap;

use chrono::TimeDelta;
use lapse_participants::audit::{Audit, Bounds, Check, Late};
use lapse_sagas::{SagaId, Timestamp};

use crate::store::Error;
use crate::store::db::Db;
use crate::store::verify::retries;

/// Takes the orders out of the check `late` that were cancelled soon after an operator's retry.
///
/// # Errors
/// As Postgres says.
pub(super) async fn but_for_retries(
    db: &Db,
    audit: &mut Audit,
    bounds: &Bounds,
) -> Result<(), Error> {
    if audit.late.is_empty() {
        return Ok(());
    }
    let sagas = audit.late.iter().filter_map(saga_of).collect();
    let retries = retries::of(db, sagas).await?;
    let late = still_late(&audit.late, &retries, bounds.late_after);
    for check in audit.checks.iter_mut().filter(|check| check.id == "late") {
        *check = Check::late(check.checked, &late);
    }
    Ok(())
}

/// A command's id begins with that of its saga.
fn saga_of(late: &Late) -> Option<SagaId> {
    late.cancelled_by.split(':').next()?.parse().ok()
}

fn still_late(
    late: &[Late],
    retries: &HashMap<SagaId, Vec<Timestamp>>,
    after: TimeDelta,
) -> Vec<Late> {
    let since_retry = |late: &Late| {
        let retries = retries.get(&saga_of(late)?)?;
        let before = retries.iter().filter(|at| **at <= late.cancelled_at);
        before.max().map(|at| late.cancelled_at - *at)
    };
    let still = late.iter().filter_map(|late| match since_retry(late) {
        None => Some(late.clone()),
        Some(since) if since <= after => None,
        Some(since) => Some(Late {
            late_s: since.as_seconds_f64().min(late.late_s),
            ..late.clone()
        }),
    });
    let mut still: Vec<Late> = still.collect();
    still.sort_by(|one, other| other.late_s.total_cmp(&one.late_s));
    still
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;

    const SAGA: &str = "0198f2a4-0000-7000-8000-000000000001";

    fn at(second: i64) -> Timestamp {
        DateTime::from_timestamp(second, 0).expect("a time")
    }

    /// How late an order is that was due at 0 and cancelled at 1000, if its saga was retried at these times.
    fn late_s(retried: &[i64]) -> Option<f64> {
        let late = Late {
            tenant: "default".to_owned(),
            order_id: "o".to_owned(),
            due_at: at(0),
            cancelled_at: at(1_000),
            cancelled_by: format!("{SAGA}:1:cancel_order:do"),
            cancel_reason: "timeout".to_owned(),
            late_s: 1_000.0,
        };
        let times = retried.iter().copied().map(at).collect();
        let retries = HashMap::from([(SAGA.parse().expect("an id"), times)]);
        let still = still_late(&[late], &retries, TimeDelta::seconds(30));
        still.first().map(|late| late.late_s)
    }

    #[test]
    fn an_order_is_on_time_that_was_cancelled_soon_after_the_last_retry_before() {
        assert_eq!(late_s(&[970]), None);
        assert_eq!(late_s(&[10, 990]), None);
        assert_eq!(late_s(&[990, 1_500]), None);
    }

    #[test]
    fn an_order_is_late_that_was_cancelled_long_after_the_retry_or_without_one() {
        assert_eq!(late_s(&[]), Some(1_000.0));
        assert_eq!(late_s(&[10, 969]), Some(31.0));
        assert_eq!(late_s(&[1_001]), Some(1_000.0));
    }
}
