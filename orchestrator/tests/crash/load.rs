//! The shop under load: places orders, relays their events to Kafka, pays; all of it until it is through, whatever fails.
//!
//! Relies on the shop's outbox, so that an order whose placing got no answer has its event all the same. Never: gives up
//! because a server is away, or takes an unanswered payment for refused.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail, ensure};
use chrono::{SubsecRound, TimeDelta};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use lapse::kafka::DUE_HEADER;
use lapse_participants::kit::CallError;
use lapse_participants::shop::{Line, NewOrder, OrderRef, OutboxRow, PayOutcome, Refusal, Shop};
use lapse_participants::stock::StockKey;
use lapse_sagas::Timestamp;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::util::Timeout;
use rust_decimal::Decimal;
use serde_json::{Value, json};

use crate::orders::{Fate, Malformed, Plan, Route, UNITS, number};
use crate::rig::Rig;

const PLACE_EVERY: Duration = Duration::from_millis(100);
const RELAY_EVERY: Duration = Duration::from_millis(20);
const PAY_EVERY: Duration = Duration::from_millis(5);
const BATCH: usize = 200;
/// Calls that pay at a time; with placing and relaying no more than the pool has connections. Without a limit, waiting
/// callers outlive a restart of Postgres: each gets its connection when its own time is nearly over (measured: 45 s).
const PAYING: usize = 4;
/// Pause before a server that did not answer is asked again.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// The buyers and the shop's servers.
pub struct Load<'a> {
    rig: &'a Rig,
    producer: FutureProducer,
    plans: &'a [Plan],
    book: Mutex<Book>,
    began: Instant,
}

/// What was asked for and what the answers were.
#[derive(Default)]
struct Book {
    to_pay: BinaryHeap<Reverse<(Instant, usize)>>,
    payments_planned: usize,
    paid: Vec<(usize, PayOutcome)>,
    placed: usize,
    placed_all: bool,
    produced: Vec<usize>,
    records: usize,
    malformed: Vec<String>,
    repeated: usize,
    longest_call: Duration,
}

/// The same, at the end.
pub struct Tally {
    /// Numbers of orders and what became of their payments.
    pub payments: Vec<(usize, PayOutcome)>,
    /// Numbers of orders whose event the broker has confirmed.
    pub produced: Vec<usize>,
    /// Confirmed records, malformed ones and duplicates included.
    pub records: usize,
    /// Keys of the malformed records that the broker has confirmed.
    pub malformed: Vec<String>,
    /// Calls and claims that were made again because there was no good answer.
    pub repeated: usize,
    /// From the first time a call was made to its good answer.
    pub longest_call: Duration,
}

impl<'a> Load<'a> {
    /// Nothing happens before [`Load::run`].
    pub fn new(rig: &'a Rig, plans: &'a [Plan]) -> anyhow::Result<Load<'a>> {
        Ok(Load {
            rig,
            producer: rig.producer()?,
            plans,
            book: Mutex::default(),
            began: Instant::now(),
        })
    }

    /// Enough of everything in stock.
    pub async fn stock_up(&self) -> anyhow::Result<()> {
        let plenty = Decimal::from(self.plans.len() as u64 * 3);
        let units: Vec<(StockKey, Decimal)> = (0..UNITS)
            .map(|unit| {
                let Line { sku, warehouse, .. } = line(unit);
                (StockKey { sku, warehouse }, plenty)
            })
            .collect();
        self.shop().stock_up_many(&units).await.context("stock up")
    }

    /// Until every order is placed, every event produced, every payment answered.
    pub async fn run(&self) -> anyhow::Result<()> {
        tokio::try_join!(self.place(), self.relay(), self.pay()).map(|_| ())
    }

    /// One line on how far it is.
    pub fn progress(&self) -> String {
        let book = self.book();
        format!(
            "placed {:>6}  produced {:>6}  payments {:>6}",
            book.placed,
            book.produced.len(),
            book.paid.len()
        )
    }

    /// What it came to.
    pub fn tally(self) -> Tally {
        let book = self
            .book
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        Tally {
            payments: book.paid,
            produced: book.produced,
            records: book.records,
            malformed: book.malformed,
            repeated: book.repeated,
            longest_call: book.longest_call,
        }
    }

    async fn place(&self) -> anyhow::Result<()> {
        let mut next = 0;
        while next < self.plans.len() {
            tokio::time::sleep(PLACE_EVERY).await;
            let now = self.began.elapsed();
            let ripe = self.plans[next..]
                .iter()
                .take_while(|plan| plan.place_at <= now)
                .count();
            for batch in self.plans[next..next + ripe].chunks(BATCH) {
                self.place_batch(batch).await?;
            }
            next += ripe;
        }
        self.book().placed_all = true;
        Ok(())
    }

    /// The deadlines are those of the first attempt: an unanswered one may have placed the orders.
    async fn place_batch(&self, batch: &[Plan]) -> anyhow::Result<()> {
        let (now, instant) = (now(), Instant::now());
        let orders: Vec<NewOrder> = batch.iter().map(|plan| new_order(plan, now)).collect();
        let answers = self
            .again("place orders", || self.shop().place_many(&orders))
            .await?;
        let mut book = self.book();
        for (plan, answer) in batch.iter().zip(answers) {
            match answer {
                Ok(_) | Err(Refusal::OrderExists { .. }) => book.placed += 1,
                Err(refusal) => bail!("order {} was refused: {refusal}", plan.order_id),
            }
            let pay_at = match plan.fate {
                Fate::Unpaid => continue,
                Fate::PaysAfter(after) => instant + after,
                Fate::PaysAtTheDeadline(off_ms) => {
                    let at = instant + plan.pay_within;
                    let off = Duration::from_millis(u64::from(off_ms.unsigned_abs()));
                    if off_ms < 0 { at - off } else { at + off }
                }
            };
            let n = number(&plan.order_id).context("the plan's own id")?;
            book.to_pay.push(Reverse((pay_at, n)));
            book.payments_planned += 1;
        }
        Ok(())
    }

    async fn pay(&self) -> anyhow::Result<()> {
        let mut paying = FuturesUnordered::new();
        loop {
            while paying.len() < PAYING {
                let batch = self.payments_due();
                if batch.is_empty() {
                    break;
                }
                paying.push(self.pay_batch(batch));
            }
            let through = {
                let book = self.book();
                book.placed_all && book.paid.len() == book.payments_planned
            };
            if through {
                return Ok(());
            }
            tokio::select! {
                Some(paid) = paying.next() => paid?,
                () = tokio::time::sleep(PAY_EVERY) => {}
            }
        }
    }

    /// One batch of them, oldest first.
    fn payments_due(&self) -> Vec<usize> {
        let now = Instant::now();
        let mut book = self.book();
        let mut due = Vec::new();
        while let Some(Reverse((at, n))) = book.to_pay.peek().copied() {
            if at > now || due.len() == BATCH {
                break;
            }
            book.to_pay.pop();
            due.push(n);
        }
        due
    }

    async fn pay_batch(&self, batch: Vec<usize>) -> anyhow::Result<()> {
        let orders: Vec<OrderRef> = batch
            .iter()
            .map(|n| order_ref(&self.plans[*n].order_id))
            .collect();
        let outcomes = self
            .again("pay orders", || self.shop().pay_many(&orders))
            .await?;
        self.book().paid.extend(batch.into_iter().zip(outcomes));
        Ok(())
    }

    /// The shop's own relay: claims, produces, deletes; what it lost hold of comes again when the claim has run out.
    async fn relay(&self) -> anyhow::Result<()> {
        loop {
            let placed_all = self.book().placed_all;
            let rows = self
                .again("claim events", || self.shop().claim_outbox(BATCH as u32))
                .await?;
            if rows.is_empty() {
                if placed_all && self.outbox_is_empty().await? {
                    return Ok(());
                }
                tokio::time::sleep(RELAY_EVERY).await;
                continue;
            }
            let produced = rows.iter().map(|row| self.produce(row));
            futures::future::try_join_all(produced).await?;
            let ids: Vec<i64> = rows.iter().map(|row| row.outbox_id).collect();
            self.again("delete events", || self.shop().delete_outbox(&ids))
                .await?;
        }
    }

    async fn outbox_is_empty(&self) -> anyhow::Result<bool> {
        let count = || self.rig.count("select count(*) from shop.outbox");
        let left = loop {
            match count().await {
                Ok(left) => break left,
                Err(_) => tokio::time::sleep(AGAIN_AFTER).await,
            }
        };
        Ok(left == 0)
    }

    async fn produce(&self, row: &OutboxRow) -> anyhow::Result<()> {
        let n = number(&row.key).with_context(|| format!("whose event is {}?", row.key))?;
        let plan = &self.plans[n];
        if let Some(malformed) = plan.malformed {
            self.produce_malformed(n, malformed).await?;
        }
        if plan.route == Route::Lost {
            return Ok(());
        }
        let record = record(plan.route, row)?;
        self.send(&row.key, &record).await?;
        if plan.doubled {
            self.send(&row.key, &record).await?;
        }
        self.book().produced.push(n);
        Ok(())
    }

    async fn produce_malformed(&self, n: usize, malformed: Malformed) -> anyhow::Result<()> {
        // A key of its own each time: an event that is relayed twice brings two of them.
        let key = format!("bad-{n:06}-{}", self.book().malformed.len());
        self.send(&key, &malformed_record(malformed, &key)).await?;
        self.book().malformed.push(key);
        Ok(())
    }

    async fn send(&self, key: &str, record: &Record) -> anyhow::Result<()> {
        let topic = self.rig.topic(&record.topic);
        let mut future = FutureRecord::to(&topic).key(key).payload(&record.value);
        if let Some(due) = &record.due_header {
            future = future.headers(OwnedHeaders::new().insert(Header {
                key: DUE_HEADER,
                value: Some(due.as_str()),
            }));
        }
        let sent = self.producer.send(future, Timeout::Never).await;
        sent.map_err(|(error, _)| error)
            .with_context(|| format!("produce to {topic}"))?;
        self.book().records += 1;
        Ok(())
    }

    /// Until there is a good answer. What was perhaps done before is harmless to do again in all the shop's calls.
    async fn again<T, F, Fut>(&self, what: &str, call: F) -> anyhow::Result<T>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T, CallError>>,
    {
        let began = Instant::now();
        loop {
            match call().await {
                Ok(answer) => {
                    let mut book = self.book();
                    book.longest_call = book.longest_call.max(began.elapsed());
                    return Ok(answer);
                }
                Err(error @ (CallError::Data(_) | CallError::Configuration(_))) => {
                    // A server that starts or stops says so in many ways, none of which lasts.
                    ensure!(began.elapsed() < Duration::from_secs(60), "{what}: {error}");
                }
                Err(error) => {
                    ensure!(
                        began.elapsed() < Duration::from_secs(180),
                        "{what}: {error}"
                    );
                }
            }
            self.book().repeated += 1;
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }

    fn shop(&self) -> &Shop {
        &self.rig.shop
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A record on its way.
struct Record {
    topic: String,
    value: Vec<u8>,
    due_header: Option<String>,
}

fn record(route: Route, row: &OutboxRow) -> anyhow::Result<Record> {
    let whole = || row.payload.clone().into_bytes();
    let without_deadline = || -> anyhow::Result<Vec<u8>> {
        let mut event: Value = serde_json::from_str(&row.payload)?;
        if let Value::Object(fields) = &mut event {
            fields.remove("pay_deadline");
            fields.remove("enforce_at");
        }
        Ok(event.to_string().into_bytes())
    };
    let record = |topic: String, value, due_header| Record {
        topic,
        value,
        due_header,
    };
    Ok(match route {
        Route::Schedule | Route::Lost => record("schedule".to_owned(), whole(), None),
        Route::Bucket(bucket) => record(bucket_topic(bucket), whole(), None),
        Route::BucketWithHeader(bucket) => {
            let due_ms = row.due_at.timestamp_millis().to_string();
            record(bucket_topic(bucket), without_deadline()?, Some(due_ms))
        }
        Route::BucketAlone(bucket) => record(bucket_topic(bucket), without_deadline()?, None),
    })
}

fn malformed_record(malformed: Malformed, key: &str) -> Record {
    let soon = now() + TimeDelta::seconds(2);
    let good = json!({ "order_id": key, "order_type": "normal", "pay_deadline": soon });
    let with = |field: &str, value: Value| {
        let mut event = good.clone();
        event[field] = value;
        event.to_string().into_bytes()
    };
    let (topic, value) = match malformed {
        Malformed::NotJson => ("delay.5s", b"{\"order_id\": ".to_vec()),
        Malformed::NotText => ("schedule", vec![0xff, 0xfe, 0x00]),
        Malformed::NoOrderId => ("schedule", with("order_id", Value::Null)),
        Malformed::NoZone => (
            "delay.15s",
            with("pay_deadline", json!("2031-01-01T00:00:00")),
        ),
        Malformed::Seconds => ("schedule", with("pay_deadline_ms", json!(soon.timestamp()))),
        Malformed::UnreadableHeader => ("delay.5s", good.to_string().into_bytes()),
        Malformed::NoDefinition => ("schedule", with("order_type", json!("garden"))),
    };
    Record {
        topic: topic.to_owned(),
        value,
        due_header: (malformed == Malformed::UnreadableHeader).then(|| "soon".to_owned()),
    }
}

fn bucket_topic(delay_s: u64) -> String {
    match delay_s {
        60 => "delay.1m".to_owned(),
        seconds => format!("delay.{seconds}s"),
    }
}

/// To the millisecond, which is what a due header can say.
fn new_order(plan: &Plan, now: Timestamp) -> NewOrder {
    let pay_within = TimeDelta::from_std(plan.pay_within).unwrap_or(TimeDelta::MAX);
    let deadline = (now + pay_within).trunc_subsecs(3);
    let lines = plan.units.iter().map(|unit| line(*unit)).collect();
    NewOrder {
        order_id: Some(plan.order_id.clone()),
        ..NewOrder::new(plan.order_type, lines, deadline)
    }
}

fn line(unit: usize) -> Line {
    Line {
        sku: format!("SKU-{:02}", unit / 3),
        warehouse: ["rotterdam", "lille", "flash"][unit % 3].to_owned(),
        quantity: Decimal::ONE,
    }
}

/// An order of the default tenant.
pub fn order_ref(order_id: &str) -> OrderRef {
    OrderRef {
        tenant: "default".to_owned(),
        order_id: order_id.to_owned(),
    }
}

/// This machine's clock, which is Postgres's too.
pub fn now() -> Timestamp {
    Timestamp::from(SystemTime::now())
}
