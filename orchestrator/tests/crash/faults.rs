//! What goes wrong, when, for how long; and the log of it.
//!
//! Relies on faults that come one after the other, each over before the next begins, so that the promise of one fault
//! can be asked for: 30 s whatever coordinator or broker is away. Never: hides how long something really was away.

use std::time::{Duration, Instant};

use fastrand::Rng;
use serde::Serialize;

use crate::process::Process;
use crate::rig::Participants;
use crate::services::Services;

/// One kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// SIGKILL, started again.
    CoordinatorKilled,
    /// SIGSTOP, SIGCONT.
    CoordinatorStopped,
    /// Both SIGKILLed at once, started again.
    BothCoordinatorsKilled,
    /// Shut down, started again.
    BrokerStopped,
    /// SIGKILL, started again.
    BrokerKilled,
    /// Fast shutdown, started again at once.
    PostgresRestarted,
    /// SIGKILL of all its processes, started again at once.
    PostgresKilled,
    /// A server of the shop: SIGKILL, started again.
    ShopKilled,
    /// A server of the shop: SIGSTOP, SIGCONT. It takes connections and answers nothing.
    ShopStopped,
}

impl Kind {
    /// Whether orders can't be cancelled meanwhile, by anybody.
    pub fn stops_orders(self, participants: Participants) -> bool {
        match self {
            Kind::CoordinatorKilled | Kind::CoordinatorStopped => false,
            Kind::BrokerStopped | Kind::BrokerKilled => participants == Participants::Kafka,
            Kind::BothCoordinatorsKilled
            | Kind::PostgresRestarted
            | Kind::PostgresKilled
            | Kind::ShopKilled
            | Kind::ShopStopped => true,
        }
    }
}

/// A fault to come.
#[derive(Clone, Copy, Debug)]
pub struct Planned {
    /// From the start of the run.
    pub at: Duration,
    pub kind: Kind,
    /// From its beginning to the beginning of its end.
    pub lasts: Duration,
    /// Which coordinator or server of the shop, where it is one.
    pub which: usize,
}

/// A fault that was.
#[derive(Clone, Debug, Serialize)]
pub struct Outage {
    pub kind: Kind,
    /// The name of the one process that suffered, or nothing.
    pub which: Option<String>,
    /// From the start of the run.
    pub began_ms: u128,
    /// Until what was away had said that it is back.
    pub lasted_ms: u128,
}

/// Those of the short run: 45 s of placing.
const SHORT: [(u64, Kind, u64, usize); 4] = [
    (5, Kind::CoordinatorKilled, 2, 0),
    (14, Kind::CoordinatorStopped, 12, 1),
    (29, Kind::BrokerKilled, 8, 0),
    (50, Kind::PostgresRestarted, 0, 0),
];

/// Those of the full run, 240 s of placing, and again for as long as it lasts.
const FULL: [(u64, Kind, u64, usize); 9] = [
    (12, Kind::CoordinatorKilled, 5, 0),
    (36, Kind::CoordinatorStopped, 15, 1),
    (66, Kind::BrokerStopped, 60, 0),
    (146, Kind::PostgresRestarted, 0, 0),
    (160, Kind::CoordinatorKilled, 5, 1),
    (180, Kind::PostgresKilled, 0, 0),
    (196, Kind::BrokerKilled, 2, 0),
    (216, Kind::CoordinatorStopped, 15, 0),
    (246, Kind::BothCoordinatorsKilled, 2, 0),
];
/// In the pauses of the full run, where the shop has servers of its own.
const FULL_OF_SHOP: [(u64, Kind, u64, usize); 4] = [
    (22, Kind::ShopKilled, 5, 0),
    (54, Kind::ShopStopped, 10, 0),
    (130, Kind::ShopKilled, 8, 1),
    (186, Kind::ShopStopped, 6, 1),
];
/// And of the short one.
const SHORT_OF_SHOP: [(u64, Kind, u64, usize); 2] =
    [(10, Kind::ShopKilled, 2, 0), (42, Kind::ShopStopped, 6, 0)];
/// One round of the full run's faults.
pub const ROUND: Duration = Duration::from_secs(270);

/// The faults of a short run.
pub fn short(seed: u64, participants: Participants) -> Vec<Planned> {
    shaken(seed, &SHORT, &SHORT_OF_SHOP, participants, Duration::ZERO)
}

/// The faults of a full run of so many rounds.
pub fn full(seed: u64, rounds: u32, participants: Participants) -> Vec<Planned> {
    let round = |round: u32| {
        let seed = seed ^ u64::from(round);
        shaken(seed, &FULL, &FULL_OF_SHOP, participants, ROUND * round)
    };
    (0..rounds).flat_map(round).collect()
}

/// Each up to two seconds later than planned, in the order of their times.
fn shaken(
    seed: u64,
    planned: &[(u64, Kind, u64, usize)],
    of_shop: &[(u64, Kind, u64, usize)],
    participants: Participants,
    from: Duration,
) -> Vec<Planned> {
    let mut random = Rng::with_seed(seed);
    let has_servers = participants != Participants::InProcess;
    let of_shop = of_shop.iter().filter(|_| has_servers);
    let mut planned: Vec<_> = planned.iter().chain(of_shop).collect();
    planned.sort_by_key(|(at_s, ..)| *at_s);
    planned
        .into_iter()
        .map(|(at_s, kind, lasts_s, which)| Planned {
            at: from + Duration::from_secs(*at_s) + Duration::from_millis(random.u64(0..2_000)),
            kind: *kind,
            lasts: Duration::from_secs(*lasts_s),
            which: *which,
        })
        .collect()
}

/// Who suffers.
pub struct Victims<'a> {
    pub services: &'a Services,
    pub coordinators: &'a mut [Process; 2],
    /// None, where the coordinators serve the shop themselves.
    pub shops: &'a mut [Process],
}

impl Victims<'_> {
    /// Brings it on and takes it away.
    pub async fn suffer(&mut self, fault: &Planned, began: Instant) -> anyhow::Result<Outage> {
        let from = Instant::now();
        let began_ms = (from - began).as_millis();
        self.begin(fault).await?;
        tokio::time::sleep_until((from + fault.lasts).into()).await;
        self.end(fault).await?;
        let which = match fault.kind {
            Kind::CoordinatorKilled | Kind::CoordinatorStopped => {
                Some(self.coordinators[fault.which].name().to_owned())
            }
            Kind::ShopKilled | Kind::ShopStopped => Some(self.shop(fault).name().to_owned()),
            _ => None,
        };
        Ok(Outage {
            kind: fault.kind,
            which,
            began_ms,
            lasted_ms: from.elapsed().as_millis(),
        })
    }

    fn shop(&mut self, fault: &Planned) -> &mut Process {
        let at = fault.which % self.shops.len();
        &mut self.shops[at]
    }

    async fn begin(&mut self, fault: &Planned) -> anyhow::Result<()> {
        let [a, b] = &mut *self.coordinators;
        match fault.kind {
            Kind::CoordinatorKilled => self.coordinators[fault.which].kill().await,
            Kind::CoordinatorStopped => self.coordinators[fault.which].stop().await,
            Kind::BothCoordinatorsKilled => tokio::try_join!(a.kill(), b.kill()).map(|_| ()),
            Kind::BrokerStopped => self.services.tell("kafka", "stop").await,
            Kind::BrokerKilled => self.services.tell("kafka", "kill").await,
            Kind::PostgresRestarted => self.services.tell("postgres", "restart").await,
            Kind::PostgresKilled => self.services.tell("postgres", "kill").await,
            Kind::ShopKilled => self.shop(fault).kill().await,
            Kind::ShopStopped => self.shop(fault).stop().await,
        }
    }

    async fn end(&mut self, fault: &Planned) -> anyhow::Result<()> {
        match fault.kind {
            Kind::CoordinatorKilled => {
                self.coordinators[fault.which].start()?;
                self.coordinators[fault.which].ready().await
            }
            Kind::CoordinatorStopped => {
                self.coordinators[fault.which].go_on().await?;
                self.coordinators[fault.which].ready().await
            }
            Kind::BothCoordinatorsKilled => {
                let [a, b] = &mut *self.coordinators;
                a.start()?;
                b.start()?;
                tokio::try_join!(a.ready(), b.ready()).map(|_| ())
            }
            Kind::BrokerStopped | Kind::BrokerKilled => self.services.tell("kafka", "start").await,
            Kind::PostgresRestarted => Ok(()),
            Kind::PostgresKilled => self.services.tell("postgres", "start").await,
            Kind::ShopKilled => {
                self.shop(fault).start()?;
                self.shop(fault).ready().await
            }
            Kind::ShopStopped => {
                self.shop(fault).go_on().await?;
                self.shop(fault).ready().await
            }
        }
    }
}
