//! A shop of its own for every test, and the builders and matchers that all tests share.

use std::str::FromStr;
use std::time::{Duration, SystemTime};

use chrono::TimeDelta;
use lapse_participants::audit::{self, Audit, Bounds, Check};
use lapse_participants::kit::{Command, OrderKey, Participant, Reply, db};
use lapse_participants::order::Orders;
use lapse_participants::shop::{Line, NewOrder, OrderRef, OrderView, Shop, migrate};
use lapse_participants::stock::Stock;
use lapse_sagas::{Cause, CommandId, Direction, Outcome, SagaId, StepId, Timestamp};
use rust_decimal::Decimal;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgPool};

use crate::database::TestDatabase;

pub struct TestShop {
    url: String,
    pub pool: PgPool,
    pub shop: Shop,
    pub orders: Orders,
    pub stock: Stock,
}

impl TestShop {
    /// Open, with 1,000 mugs in the north, 1,000 in the south, and 10.5 kg of tea in the north.
    pub async fn open() -> TestShop {
        let database = TestDatabase::create().await;
        let pool = db::pool(database.options, 6);
        migrate(&pool).await.expect("the schema can be created");
        let shop = Shop::new(pool.clone());
        for (sku, warehouse, quantity) in [
            ("mug", "north", "1000"),
            ("mug", "south", "1000"),
            ("tea", "north", "10.5"),
        ] {
            let stocked = shop.stock_up(sku, warehouse, decimal(quantity)).await;
            stocked.expect("stock can be filled");
        }
        TestShop {
            url: database.url,
            orders: Orders::new(pool.clone()),
            stock: Stock::new(pool.clone()),
            shop,
            pool,
        }
    }

    pub async fn place(&self, order: &NewOrder) -> OrderKey {
        let answer = self.shop.place(order).await.expect("the database answers");
        answer.expect("the order is placed").order
    }

    /// One mug, unpaid and a second past its deadline.
    pub async fn overdue_mug(&self) -> OrderKey {
        self.place(&overdue(&[("mug", "north", "1")])).await
    }

    pub async fn overdue_mugs(&self, count: usize) -> Vec<OrderKey> {
        let orders = vec![overdue(&[("mug", "north", "1")]); count];
        let placed = self
            .shop
            .place_many(&orders)
            .await
            .expect("the database answers");
        placed
            .into_iter()
            .map(|placed| placed.expect("the order is placed").order)
            .collect()
    }

    pub async fn view(&self, order: &OrderKey) -> OrderView {
        let view = self.shop.show(&reference(order)).await;
        view.expect("the database answers")
            .expect("the order exists")
    }

    pub async fn available(&self, sku: &str, warehouse: &str) -> Decimal {
        sqlx::query_scalar("select available from shop.stock where sku = $1 and warehouse = $2")
            .bind(sku)
            .bind(warehouse)
            .fetch_one(&self.pool)
            .await
            .expect("the stock row exists")
    }

    pub async fn execute(&self, sql: &'static str) {
        sqlx::raw_sql(sql)
            .execute(&self.pool)
            .await
            .expect("the statement succeeds");
    }

    pub async fn audit(&self, bounds: &Bounds) -> Audit {
        audit::run(&self.pool, bounds)
            .await
            .expect("the audit can read")
    }

    /// Nothing is wrong that can't be merely under way.
    pub async fn is_sound(&self) {
        let bounds = Bounds {
            settled_after: TimeDelta::days(1),
            late_after: TimeDelta::days(1),
            ..Bounds::default()
        };
        let audit = self.audit(&bounds).await;
        let wrong: Vec<&Check> = audit.checks.iter().filter(|check| !check.ok).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}

impl Drop for TestShop {
    /// Removes the database, unless the test failed: then it is left to be looked at.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let options: PgConnectOptions = self.url.parse().expect("a postgres URL");
        let name = options.get_database().expect("the database has a name");
        let drop = format!("drop database {name} with (force)");
        let options = options.clone().database("postgres");
        let remove = async move {
            let mut admin = options.connect().await?;
            sqlx::raw_sql(sqlx::AssertSqlSafe(drop))
                .execute(&mut admin)
                .await
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime can be built");
        let removing = std::thread::spawn(move || runtime.block_on(remove));
        removing
            .join()
            .expect("the thread ends")
            .expect("the database can be removed");
    }
}

pub fn now() -> Timestamp {
    SystemTime::now().into()
}

pub fn ago(seconds: i64) -> Timestamp {
    now() - TimeDelta::seconds(seconds)
}

pub fn decimal(text: &str) -> Decimal {
    Decimal::from_str(text).expect("a decimal")
}

pub fn lines(lines: &[(&str, &str, &str)]) -> Vec<Line> {
    let line = |(sku, warehouse, quantity): &(&str, &str, &str)| Line {
        sku: (*sku).to_owned(),
        warehouse: (*warehouse).to_owned(),
        quantity: decimal(quantity),
    };
    lines.iter().map(line).collect()
}

/// An order whose deadline passed a second ago.
pub fn overdue(of: &[(&str, &str, &str)]) -> NewOrder {
    NewOrder::new("normal", lines(of), ago(1))
}

/// An order whose deadline is an hour away.
pub fn early(of: &[(&str, &str, &str)]) -> NewOrder {
    NewOrder::new("normal", lines(of), ago(-3_600))
}

pub fn reference(order: &OrderKey) -> OrderRef {
    OrderRef {
        tenant: order.tenant.clone(),
        order_id: order.order_id.clone(),
    }
}

/// A saga on one order: makes its commands.
#[derive(Clone)]
pub struct Saga {
    pub id: SagaId,
    pub order: OrderKey,
    pub cause: Cause,
    pub run: u32,
}

impl Saga {
    pub fn on(order: &OrderKey) -> Saga {
        Saga {
            id: SagaId(uuid::Uuid::now_v7()),
            order: order.clone(),
            cause: Cause::Timeout,
            run: 1,
        }
    }

    pub fn because(self, cause: Cause) -> Saga {
        Saga { cause, ..self }
    }

    /// The command of an action.
    pub fn does(&self, operation: &str) -> Command {
        self.command(operation, operation, Direction::Do)
    }

    /// The command of the compensation of an action.
    pub fn undoes(&self, action: &str, operation: &str) -> Command {
        self.command(action, operation, Direction::Undo)
    }

    fn command(&self, action: &str, operation: &str, direction: Direction) -> Command {
        let step = StepId::from(action.to_ascii_lowercase().as_str());
        let action_id = CommandId::new(self.id, self.run, &step, Direction::Do);
        Command {
            command_id: CommandId::new(self.id, self.run, &step, direction),
            action_id: (direction == Direction::Undo).then_some(action_id),
            saga_id: self.id,
            step,
            direction,
            operation: operation.to_owned(),
            order: self.order.clone(),
            input: serde_json::Value::Null,
            cause: self.cause,
            attempt: 1,
            first_sent_at: now(),
            expires_at: ago(-3_600),
        }
    }
}

/// Sends a batch and gives the outcomes in the order of the commands.
pub async fn send(participant: &dyn Participant, commands: &[Command]) -> Vec<Outcome> {
    let operation = commands[0].operation.clone();
    let replies = participant
        .call(&operation, commands)
        .await
        .expect("the call is answered");
    assert_eq!(replies.len(), commands.len(), "one reply for each command");
    outcomes(commands, &replies)
}

pub fn outcomes(commands: &[Command], replies: &[Reply]) -> Vec<Outcome> {
    let outcome = |command: &Command| {
        let reply = replies
            .iter()
            .find(|reply| reply.command_id == command.command_id);
        reply.expect("every command has a reply").outcome.clone()
    };
    commands.iter().map(outcome).collect()
}

pub async fn send_one(participant: &dyn Participant, command: &Command) -> Outcome {
    send(participant, std::slice::from_ref(command))
        .await
        .remove(0)
}

pub fn is_done(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Done { .. })
}

pub fn output(outcome: &Outcome) -> &serde_json::Value {
    match outcome {
        Outcome::Done { output } => output,
        other => panic!("not done: {other:?}"),
    }
}

pub fn is_rejected(outcome: &Outcome, class: &str) -> bool {
    matches!(outcome, Outcome::Rejected { reason } if lapse_sagas::outcome::error_class(reason) == class)
}

pub fn not_applicable(reason: &str) -> Outcome {
    Outcome::NotApplicable {
        reason: reason.to_owned(),
    }
}

/// Waits for a future, but not for ever.
pub async fn in_time<T>(future: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, future)
        .await
        .expect("it ends within 30 s")
}
