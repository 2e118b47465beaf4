//! Seeded outages over one participant's care: orders come at a steady rate, the participant is away for a while in one
//! of three ways, and what becomes of every order is counted. Calls take no room but time; no store, no executor.

use std::collections::BTreeMap;

use chrono::TimeDelta;
use lapse_sagas::{SagaId, Timestamp};
use uuid::Uuid;

use super::*;

const TICK: TimeDelta = TimeDelta::milliseconds(20);
const TIMEOUT: TimeDelta = TimeDelta::seconds(5);
const ANSWERS_IN: TimeDelta = TimeDelta::milliseconds(40);
const BATCH: usize = 500;
const SLOTS: usize = 2;

/// How it is away.
#[derive(Clone, Copy, Debug)]
enum Away {
    Refused,
    Hangs,
    Busy503,
}

struct Flight {
    ends_at: Timestamp,
    sent_at: Timestamp,
    purpose: Purpose,
    sagas: Vec<SagaId>,
}

#[derive(Default)]
struct Counted {
    /// Calls that were met by nobody.
    vain: usize,
    burnt: usize,
    done: usize,
    last_done_at: Timestamp,
}

/// Orders come from 0 to `down_to` + 30 s; it is away between the two times.
fn outage(away: Away, rate: i64, down_from: i64, down_to: i64, seed: u64) -> Counted {
    let mut dice = fastrand::Rng::with_seed(seed);
    let start = Timestamp::UNIX_EPOCH;
    let (down_from, down_to) = (
        start + TimeDelta::seconds(down_from),
        start + TimeDelta::seconds(down_to),
    );
    let ends_at = down_to + TimeDelta::seconds(30);
    let mut care = Care::new("orders", 2 * BATCH * SLOTS);
    let mut waiting: BTreeMap<(Timestamp, SagaId), ()> = BTreeMap::new();
    let mut flights: Vec<Flight> = Vec::new();
    let mut counted = Counted::default();
    let mut placed = 0;
    let mut now = start;
    while now < ends_at + TimeDelta::seconds(60) {
        let due = (now.min(ends_at) - start).num_milliseconds() * rate / 1_000;
        for _ in placed..due {
            waiting.insert((now, SagaId(Uuid::from_u128(dice.u128(..)))), ());
        }
        placed = placed.max(due);
        let is_away = |at: Timestamp| at >= down_from && at < down_to;

        let (over, under_way) = flights
            .into_iter()
            .partition(|flight| flight.ends_at <= now);
        flights = under_way;
        let over: Vec<Flight> = over;
        for flight in over {
            let lost = is_away(flight.sent_at);
            let verdict = match away {
                _ if !lost => Verdict::Answered,
                Away::Refused => lost_by(Fault::Unreachable),
                Away::Hangs | Away::Busy503 => lost_by(Fault::Unanswered),
            };
            let call = Call {
                operation: "CancelOrder",
                sagas: &flight.sagas,
                sent_at: flight.sent_at,
                purpose: flight.purpose,
            };
            care.heard(&call, verdict, now);
            care.ended(flight.sagas.len());
            if !lost {
                counted.done += flight.sagas.len();
                counted.last_done_at = now;
                continue;
            }
            counted.vain += 1;
            if flight.purpose != Purpose::Probe && !matches!(away, Away::Refused) {
                counted.burnt += flight.sagas.len();
            }
            for saga in flight.sagas {
                waiting.insert((care.again_at("CancelOrder", saga, now), saga), ());
            }
        }

        let mut batch = Vec::new();
        let mut probe = None;
        let woken: Vec<SagaId> = waiting
            .range(..=(now, SagaId(Uuid::max())))
            .map(|((_, saga), ())| *saga)
            .collect();
        waiting = waiting.split_off(&(now, SagaId(Uuid::max())));
        for saga in woken {
            let may_begin = care.next_at(now).is_none();
            let calls = flights
                .iter()
                .filter(|flight| flight.purpose != Purpose::Probe);
            match care.admit("CancelOrder", saga, now) {
                Entry::Probe => probe = Some(saga),
                Entry::Wait(wait) => drop(waiting.insert((wait.until, saga), ())),
                Entry::Free
                    if may_begin
                        && calls.count() < SLOTS
                        && batch.len() < care.room().min(BATCH) =>
                {
                    batch.push(saga);
                }
                Entry::Free => drop(waiting.insert((now + TICK, saga), ())),
            }
        }
        for (purpose, sagas) in [
            (Purpose::Probe, probe.into_iter().collect::<Vec<_>>()),
            (Purpose::First, batch),
        ] {
            if sagas.is_empty() {
                continue;
            }
            care.began(sagas.len(), BATCH, now);
            let takes = match away {
                Away::Hangs if is_away(now) => TIMEOUT,
                _ => ANSWERS_IN,
            };
            flights.push(Flight {
                ends_at: now + takes,
                sent_at: now,
                purpose,
                sagas,
            });
        }
        now += TICK;
    }
    assert_eq!(
        counted.done, placed as usize,
        "{away:?}, seed {seed}: orders are left over"
    );
    counted.last_done_at = start + (counted.last_done_at - down_to);
    counted
}

fn lost_by(fault: Fault) -> Verdict {
    Verdict::Lost {
        fault,
        error: "on purpose".to_owned(),
        retry_after: None,
    }
}

#[test]
fn an_outage_costs_few_calls_and_few_attempts_and_everything_is_through_soon_after() {
    for away in [Away::Refused, Away::Hangs, Away::Busy503] {
        for (rate, down_for, seed) in [(200, 60, 1), (20, 60, 2), (500, 10, 3)] {
            let counted = outage(away, rate, 10, 10 + down_for, seed);
            let what = format!("{away:?}, {rate}/s, {down_for} s, seed {seed}");
            let vain = counted.vain;
            assert!(
                vain <= down_for as usize + 10,
                "{what}: {vain} calls in vain"
            );
            // In flight when it opened: two calls, and those that began before the first was lost.
            let burnt = counted.burnt;
            assert!(burnt <= rate as usize * 2, "{what}: {burnt} attempts");
            let after = counted.last_done_at - Timestamp::UNIX_EPOCH;
            assert!(
                after <= TimeDelta::seconds(31),
                "{what}: the last after {after}"
            );
        }
    }
}
