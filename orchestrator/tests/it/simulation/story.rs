//! One seed: orders come, are paid, extended, asked for; coordinators die and others come; then everything must be at
//! rest and right. At last operators retry what is parked or compensated, everything answers, and nothing stays undone.

use std::collections::BTreeMap;
use std::iter::Sum;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, TimeDelta};
use lapse::bus::MemoryBus;
use lapse::clock::{Clock, Simulated};
use lapse::config::Config;
use lapse::coordinator::{Coordinator, Parts};
use lapse::definitions::Definitions;
use lapse::executor::Participants;
use lapse::store::memory::MemoryStore;
use lapse::store::{self, Decision, HistoryHead, Saga, Store, Which};
use lapse_participants::kit::{OrderOwner, Participant};
use lapse_sagas::event::Entry;
use lapse_sagas::{Cause, Definition, Event, Span, Status, transition};
use serde_json::{Value, json};

use super::life::{Life, Mortal};
use super::shop::{self, Shop, TRIES};
use crate::support::world::{QUICK, order};

const ORDERS: usize = 12;
const COORDINATORS: usize = 2;
const DEATHS: usize = 3;
/// Of simulated time: a step may be deferred for `patience`, 15 min.
const AT_REST_WITHIN: Duration = Duration::from_secs(3_600);

/// What the seeds have seen, to be sure that they see everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    completed: u32,
    skipped: u32,
    compensated: u32,
    parked: u32,
    taken_over: u32,
    stale: u32,
    duplicates: u32,
    /// Participants whose breakers were open long enough to be told.
    down: u32,
    answers: shop::Answers,
}

impl Seen {
    /// Panics if something that can happen never did.
    pub fn has_everything(&self) {
        let shop::Answers {
            failed,
            rejected,
            unknown,
            hung,
            not_due,
            superseded,
            repeated,
        } = self.answers;
        for (what, count) in [
            ("completed", self.completed),
            ("skipped", self.skipped),
            ("compensated", self.compensated),
            ("parked", self.parked),
            ("taken over", self.taken_over),
            ("a stale reply", self.stale),
            ("a duplicate", self.duplicates),
            ("a participant down", self.down),
            ("failed", failed),
            ("rejected", rejected),
            ("unknown", unknown),
            ("a hanging call", hung),
            ("not due", not_due),
            ("superseded", superseded),
            ("repeated", repeated),
        ] {
            assert!(count > 0, "never seen: {what}");
        }
    }
}

impl Sum for Seen {
    fn sum<I: Iterator<Item = Seen>>(all: I) -> Seen {
        all.fold(Seen::default(), |mut sum, one| {
            sum.completed += one.completed;
            sum.skipped += one.skipped;
            sum.compensated += one.compensated;
            sum.parked += one.parked;
            sum.taken_over += one.taken_over;
            sum.stale += one.stale;
            sum.duplicates += one.duplicates;
            sum.down += one.down;
            sum.answers.failed += one.answers.failed;
            sum.answers.rejected += one.answers.rejected;
            sum.answers.unknown += one.answers.unknown;
            sum.answers.hung += one.answers.hung;
            sum.answers.not_due += one.answers.not_due;
            sum.answers.superseded += one.answers.superseded;
            sum.answers.repeated += one.answers.repeated;
            sum
        })
    }
}

/// Everything of one seed.
pub struct Story {
    dice: fastrand::Rng,
    clock: Arc<dyn Clock>,
    store: Arc<MemoryStore>,
    definition: Arc<Definition>,
    bus: Arc<MemoryBus>,
    shop: Arc<Shop>,
    errors_one_in: u32,
    coordinators: Vec<Option<(Coordinator, Life)>>,
}

impl Story {
    /// Plays one seed to its end.
    pub fn tell(seed: u64) -> Seen {
        let told = std::panic::catch_unwind(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
                .expect("a runtime");
            runtime.block_on(async { Story::new(seed).await.play().await })
        });
        told.unwrap_or_else(|panic| {
            eprintln!("seed {seed} failed; again with LAPSE_SIMULATION_SEED={seed}");
            std::panic::resume_unwind(panic)
        })
    }

    async fn new(seed: u64) -> Story {
        let mut dice = fastrand::Rng::with_seed(seed);
        let start = DateTime::from_timestamp(1_780_000_000, 0).expect("a time");
        let clock: Arc<dyn Clock> = Arc::new(Simulated::from(start));
        let now = |clock: &Arc<dyn Clock>| {
            let clock = clock.clone();
            Arc::new(move || clock.now())
        };
        let store = Arc::new(MemoryStore::new(now(&clock)));
        let definition = Definition::parse("quick.yaml", QUICK).expect("the definition is right");
        let definition = Arc::new(definition);
        store
            .deploy(std::slice::from_ref(&definition))
            .await
            .expect("it can be deployed");
        // Some stories are calm and some are wild.
        let wrong_one_in = [0, 12, 6, 3, 2][dice.usize(0..5)];
        let errors_one_in = [1_000_000, 200, 30][dice.usize(0..3)];
        let shop = Shop::new(clock.clone(), dice.fork(), wrong_one_in);
        Story {
            bus: Arc::new(MemoryBus::new(now(&clock))),
            dice,
            clock,
            store,
            definition,
            shop: Arc::new(shop),
            errors_one_in,
            coordinators: Vec::new(),
        }
    }

    async fn play(mut self) -> Seen {
        for _ in 0..COORDINATORS {
            let alive = self.coordinator().await;
            self.coordinators.push(Some(alive));
        }
        let bus = self.bus.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(100)).await;
                bus.tick();
            }
        });
        self.turmoil().await;
        for at in 0..COORDINATORS {
            self.revive(at).await;
        }
        self.rest().await;
        let mut seen = self.check();

        self.shop.calm();
        // Parked while undoing: first the rest is undone, then it begins again.
        for _ in 0..3 {
            self.retry_all().await;
            self.rest().await;
            self.check();
        }
        for saga in self.store.sagas() {
            assert!(
                matches!(
                    saga.state.status,
                    Status::Completed | Status::Skipped { .. }
                ),
                "stays undone though everybody answers: {saga:#?}"
            );
        }
        seen.answers = self.shop.answers();
        seen
    }

    /// Things happen, in an order and at times that the dice say.
    async fn turmoil(&mut self) {
        let mut deaths = 0;
        let mut placed = 0;
        while placed < ORDERS || deaths < DEATHS {
            self.pass(400).await;
            let order_id = format!("o{}", self.dice.usize(0..placed.max(1)));
            match self.dice.u32(0..10) {
                0..4 if placed < ORDERS => {
                    self.place(&format!("o{placed}"));
                    placed += 1;
                }
                4 => {
                    let by = TimeDelta::milliseconds(self.dice.i64(0..4_000));
                    self.shop.extend(&order_id, by);
                }
                5 => self.shop.pay(&order_id),
                6 => self.ask_for(&order_id).await,
                7 if deaths < DEATHS => {
                    deaths += 1;
                    let at = self.dice.usize(0..COORDINATORS);
                    self.kill(at);
                }
                8 => {
                    let at = self.dice.usize(0..COORDINATORS);
                    self.revive(at).await;
                }
                9 => {
                    let refuses = self.dice.bool();
                    self.bus.set_refuses_to_publish(refuses);
                }
                _ => {}
            }
        }
        self.bus.set_refuses_to_publish(false);
    }

    /// Most orders have a record, some have two, some were lost on the way.
    fn place(&mut self, order_id: &str) {
        let due_at = self.clock.now() + TimeDelta::milliseconds(self.dice.i64(0..2_000));
        self.shop.place(order_id, due_at);
        let event = json!({ "order_id": order_id, "order_type": "normal", "event_type": "order.placed", "pay_deadline": due_at });
        for _ in 0..[1, 1, 1, 2, 0][self.dice.usize(0..5)] {
            self.bus.append(
                "lapse.schedule",
                order_id,
                event.to_string().as_bytes(),
                Ok(due_at),
            );
        }
    }

    /// Through a coordinator, if one lives.
    async fn ask_for(&mut self, order_id: &str) {
        let cause = if self.dice.bool() {
            Cause::Buyer
        } else {
            Cause::Operator
        };
        let Some((coordinator, _)) = self.coordinators.iter().flatten().next() else {
            return;
        };
        let which = Which::Key {
            definition: "quick".to_owned(),
            order: order(order_id),
        };
        // A store that breaks here is an answer 503: whoever asked asks again, or not.
        let _ = coordinator.executor().raise(which, cause).await;
    }

    /// An operator starts run + 1 of everything that is stuck.
    async fn retry_all(&self) {
        let ids = self.store.sagas().iter().map(|saga| saga.id).collect();
        let definition = self.definition.clone();
        let decide: store::Decide = Arc::new(move |saga, now| {
            let event = Event::Retry {
                actor: "operator".to_owned(),
                reason: "again".to_owned(),
            };
            match transition(&definition, saga.state.clone(), event, now) {
                Ok((state, effects)) => Decision::Move(state, effects),
                Err(_) => Decision::Leave,
            }
        });
        let retried = self.store.revise(Which::Ids(ids), decide).await;
        retried.expect("the store in memory answers");
    }

    async fn pass(&mut self, at_most_ms: u64) {
        let ms = self.dice.u64(0..at_most_ms);
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    async fn coordinator(&mut self) -> (Coordinator, Life) {
        let life = Life::new(Arc::new(Mutex::new(self.dice.fork())), self.errors_one_in);
        let store: Arc<dyn Store> = Arc::new(Mortal {
            inner: self.store.clone(),
            life: life.clone(),
        });
        let shop = Arc::new(Mortal {
            inner: self.shop.clone(),
            life: life.clone(),
        });
        let mut participants = Participants::default();
        let owner: Arc<dyn OrderOwner> = shop.clone();
        participants.owners.insert("orders".to_owned(), owner);
        for name in ["orders", "stock"] {
            let participant: Arc<dyn Participant> = shop.clone();
            participants.operations.insert(name.to_owned(), participant);
        }
        let unbroken: Arc<dyn Store> = self.store.clone();
        let definitions = Definitions::load(unbroken).await.expect("definitions");
        let parts = Parts {
            store,
            bus: Arc::new(Mortal {
                inner: self.bus.clone(),
                life: life.clone(),
            }),
            clock: self.clock.clone(),
            definitions: Arc::new(definitions),
            participants,
            webhooks: Vec::new(),
        };
        // Small batches make sagas wait in a coordinator's hand, where its death leaves them taken and not sent.
        let mut config = Config::default();
        config.executor.batch_max = [1, 3, 500][self.dice.usize(0..3)];
        config.executor.slots = self.dice.usize(1..3);
        config.executor.poll = Span::from_millis(500);
        (Coordinator::start(parts, &config), life)
    }

    /// As after `kill -9`: the group gives its partitions to the others.
    fn kill(&mut self, at: usize) {
        if let Some((coordinator, life)) = self.coordinators[at].take() {
            life.end();
            drop(coordinator);
            self.bus.restart();
        }
    }

    async fn revive(&mut self, at: usize) {
        if self.coordinators[at].is_none() {
            let alive = self.coordinator().await;
            self.coordinators[at] = Some(alive);
        }
    }

    /// Until nothing moves by itself any more.
    async fn rest(&self) {
        let deadline = tokio::time::Instant::now() + AT_REST_WITHIN;
        loop {
            let sagas = self.store.sagas();
            let live: Vec<&Saga> = sagas
                .iter()
                .filter(|saga| saga.state.status.is_live())
                .collect();
            let unheard = self.unheard(&sagas);
            let (records, messages) = (self.bus.open(), self.store.outbox().len());
            if live.is_empty() && unheard.is_empty() && records == 0 && messages == 0 {
                return;
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "{records} records and {messages} messages to go, forgotten: {unheard:?}, live: {live:#?}"
            );
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Orders without a saga: only a paid one needs none.
    fn unheard(&self, sagas: &[Saga]) -> Vec<String> {
        let mut orders = self.shop.orders();
        orders.retain(|order_id, order| {
            let has_saga = sagas.iter().any(|saga| saga.order.order_id == *order_id);
            order.status != shop::Status::Paid && !has_saga
        });
        orders.into_keys().collect()
    }

    /// What must be true whenever everything is at rest.
    fn check(&self) -> Seen {
        let mut seen = Seen::default();
        let orders = self.shop.orders();
        let sagas = self.store.sagas();
        let outcomes = self.outcomes();
        for saga in &sagas {
            let order = &orders[&saga.order.order_id];
            let standing = (order.status, order.released_by.is_some());
            let story = || format!("{order:#?}\n{saga:#?}\n{:#?}", self.history(saga));
            match &saga.state.status {
                Status::Completed => {
                    seen.completed += 1;
                    assert_eq!(standing, (shop::Status::Cancelled, true), "{}", story());
                }
                Status::Skipped { .. } => {
                    seen.skipped += 1;
                    assert_eq!(standing, (shop::Status::Paid, false), "{}", story());
                }
                Status::Compensated => {
                    seen.compensated += 1;
                    assert_ne!(standing.0, shop::Status::Cancelled, "{}", story());
                    assert!(!standing.1, "{}", story());
                }
                Status::Parked => seen.parked += 1,
                other => panic!("{other:?} is no rest"),
            }
            if matches!(saga.state.status, Status::Compensated | Status::Parked) {
                assert!(self.store.has_alert(saga.id), "nobody is told: {}", story());
            }
            let told = outcomes.get(&saga.id.to_string());
            let state = saga.state.status.name();
            assert_eq!(told.map(String::as_str), Some(state), "{}", story());
            self.check_history(saga);
        }
        let counters = self.store.counters();
        let count = |name: &str| {
            let n = counters.get(name).copied().unwrap_or_default();
            u32::try_from(n).expect("few")
        };
        let down = |alert: &&lapse::store::memory::Alert| alert.raised.kind == "participant_down";
        let down = self.store.alerts().iter().filter(down).count();
        seen.down = u32::try_from(down).expect("few");
        seen.taken_over = count("taken_over");
        seen.stale = count("stale_reply");
        seen.duplicates = count("duplicate");
        seen
    }

    /// The last published outcome of each saga. Order within a key is kept, so that the last one is the truth.
    fn outcomes(&self) -> BTreeMap<String, String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let published = self.bus.published();
        published
            .iter()
            .filter(|message| message.topic == "outcomes")
            .map(|message| {
                let outcome: Value = serde_json::from_str(&message.payload).expect("JSON");
                (text(&outcome["saga_id"]), text(&outcome["state"]))
            })
            .collect()
    }

    fn history(&self, saga: &Saga) -> Vec<String> {
        let lines = self.store.history(saga.id);
        lines.into_iter().map(|line| line.text).collect()
    }

    /// Numbered without gaps, chained, at most four tries per run, step and direction.
    fn check_history(&self, saga: &Saga) {
        let mut head = HistoryHead::EMPTY;
        let mut run = 1;
        let mut tries: BTreeMap<_, u32> = BTreeMap::new();
        for line in self.store.history(saga.id) {
            assert_eq!(line.seq, head.seq + 1, "a gap in {:#?}", self.history(saga));
            assert_eq!(line.hash, head.hash_of(&line.text), "a forged line");
            head = HistoryHead::from(&line);
            let entry: Entry = serde_json::from_str(&line.text).expect("an entry");
            match entry.kind.as_str() {
                "retried" => run += 1,
                "replied" | "timed_out" => {
                    let attempt = entry.attempt.expect("an attempt is answered");
                    assert!((1..=TRIES).contains(&attempt), "{:#?}", self.history(saga));
                    let tried = tries.entry((run, entry.step, entry.direction)).or_default();
                    *tried += 1;
                    assert!(*tried <= TRIES, "{:#?}", self.history(saga));
                }
                _ => {}
            }
        }
        assert_eq!(head, saga.history, "the row knows the end of its history");
    }
}
