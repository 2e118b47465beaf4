//! The plan of a run's orders: when each is placed, what its buyer does, how its event travels. Pure; a seed repeats it.

use std::time::Duration;

use fastrand::Rng;

/// What the buyer does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Nothing.
    Unpaid,
    /// Pays after so long.
    PaysAfter(Duration),
    /// Pays at the deadline, so many milliseconds off: half of them within 20 ms, the others while its timer fires.
    PaysAtTheDeadline(i32),
}

/// How the event gets to the timers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// To `lapse.schedule`, the deadline in the event.
    Schedule,
    /// Straight to the bucket, the deadline in the event.
    Bucket(u64),
    /// Straight to the bucket, the deadline in a header only.
    BucketWithHeader(u64),
    /// Straight to the bucket, whose delay is the deadline.
    BucketAlone(u64),
    /// The producer forgets it: only the sweep can find the order.
    Lost,
}

/// A record that must become a dead letter, produced along with the order's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    NotJson,
    NotText,
    NoOrderId,
    NoZone,
    Seconds,
    UnreadableHeader,
    NoDefinition,
}

const MALFORMED: [Malformed; 7] = [
    Malformed::NotJson,
    Malformed::NotText,
    Malformed::NoOrderId,
    Malformed::NoZone,
    Malformed::Seconds,
    Malformed::UnreadableHeader,
    Malformed::NoDefinition,
];
const ORDER_TYPES: [&str; 4] = ["normal", "delivery", "ticket", "flash"];
/// Delays of buckets that records are sent to straight, seconds.
const BUCKETS_S: [u64; 3] = [60, 15, 5];

/// One order.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Number and id in one: `o-000123`.
    pub order_id: String,
    /// From the start of the run.
    pub place_at: Duration,
    /// From placing to the deadline.
    pub pay_within: Duration,
    pub order_type: &'static str,
    /// Indices of the units it takes.
    pub units: Vec<usize>,
    pub fate: Fate,
    pub route: Route,
    /// Its record is produced twice.
    pub doubled: bool,
    pub malformed: Option<Malformed>,
}

/// All orders, in the order of placing: spread over `placing`, paid within 2 s to `longest`.
pub fn plan(seed: u64, orders: usize, placing: Duration, longest: Duration) -> Vec<Plan> {
    let mut random = Rng::with_seed(seed);
    (0..orders)
        .map(|n| {
            let place_at = placing.mul_f64((n as f64 + random.f64()) / orders as f64);
            one(&mut random, n, place_at, longest)
        })
        .collect()
}

/// The number in an id.
pub fn number(order_id: &str) -> Option<usize> {
    order_id.strip_prefix("o-")?.parse().ok()
}

fn one(random: &mut Rng, n: usize, place_at: Duration, longest: Duration) -> Plan {
    let longest_ms = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
    let mut pay_within_ms = random.u64(2_000..=longest_ms);
    let fits = |ms: u64| BUCKETS_S.into_iter().find(|bucket| bucket * 1_000 <= ms);
    let any = BUCKETS_S[random.usize(0..BUCKETS_S.len())];
    let route = match (random.u32(0..100), fits(pay_within_ms), fits(longest_ms)) {
        (0..20, Some(bucket), _) => Route::Bucket(bucket),
        (20..35, Some(bucket), _) => Route::BucketWithHeader(bucket),
        (35..50, _, Some(largest)) => {
            let bucket = any.min(largest);
            pay_within_ms = bucket * 1_000;
            Route::BucketAlone(bucket)
        }
        _ => Route::Schedule,
    };
    let pay_within = Duration::from_millis(pay_within_ms);
    let fate = match random.u32(0..100) {
        0..70 => Fate::PaysAfter(pay_within.mul_f64(random.f64() * 0.9)),
        70..75 if random.bool() => Fate::PaysAtTheDeadline(random.i32(-20..=20)),
        70..75 => Fate::PaysAtTheDeadline(random.i32(20..=120)),
        _ => Fate::Unpaid,
    };
    // 1 % of all, taken from those whose loss would be noticed.
    let lost = fate == Fate::Unpaid && random.u32(0..25) == 0;
    Plan {
        order_id: format!("o-{n:06}"),
        place_at,
        pay_within,
        order_type: ORDER_TYPES[random.usize(0..ORDER_TYPES.len())],
        units: (0..random.usize(1..=3))
            .map(|_| random.usize(0..UNITS))
            .collect(),
        fate,
        route: if lost { Route::Lost } else { route },
        doubled: random.u32(0..50) == 0,
        malformed: n
            .is_multiple_of(40)
            .then(|| MALFORMED[n / 40 % MALFORMED.len()]),
    }
}

/// How many kinds of units there are.
pub const UNITS: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_orders_and_the_shares_are_as_asked_for() {
        let plans = |seed| {
            plan(
                seed,
                20_000,
                Duration::from_secs(100),
                Duration::from_secs(60),
            )
        };
        let share = |matches: fn(&Plan) -> bool| {
            plans(7).iter().filter(|plan| matches(plan)).count() as f64 / 20_000.0
        };
        assert_eq!(format!("{:?}", plans(7)), format!("{:?}", plans(7)));
        assert_ne!(format!("{:?}", plans(7)), format!("{:?}", plans(8)));
        let near = |share: f64, wanted: f64| (share - wanted).abs() < wanted * 0.1;
        assert!(near(
            share(|plan| matches!(plan.fate, Fate::PaysAfter(_))),
            0.7
        ));
        assert!(near(
            share(|plan| matches!(plan.fate, Fate::PaysAtTheDeadline(_))),
            0.05
        ));
        assert!(share(|plan| plan.route == Route::Lost) > 0.005);
        assert!(near(share(|plan| plan.doubled), 0.02));
    }
}
