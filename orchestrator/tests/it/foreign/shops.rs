//! Two shops that know nothing of Lapse but how to cancel: one on MariaDB with local times, one on Postgres with numbers.

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta, Utc};
use lapse::config::{Columns, OrderOwner};
use lapse_participants::kit::{CallError, Command, Participant, Reply};
use lapse_sagas::{Outcome, Span};
use serde_json::json;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Executor, MySqlPool, PgPool, QueryBuilder};

use crate::database::TestDatabase;

/// How long its buyers may take; the MariaDB shop writes the end of it, the Postgres shop only the beginning.
pub const PAY_WITHIN: TimeDelta = TimeDelta::minutes(30);

/// Of the Postgres shop: too large for a double, and in a large shop ids come to have one digit more.
pub const FIRST_ID: &str = "9999999999980001";

/// Orders with their due time in `t_order.expire_time`, a `datetime` of Shanghai.
#[derive(Clone)]
pub struct MariaShop {
    pub pool: MySqlPool,
    pub url: String,
}

/// Orders with their creation in `trade.orders.created_at`, a `timestamp` of Paris; ids and states are numbers.
#[derive(Clone)]
pub struct PostgresShop {
    pub pool: PgPool,
    pub url: String,
}

impl MariaShop {
    /// In a database of its own on this server.
    pub async fn open(server: &str) -> MariaShop {
        let options: sqlx::mysql::MySqlConnectOptions = server.parse().unwrap();
        let name = format!("lapse_test_{}", uuid::Uuid::now_v7().simple());
        let mut admin = options.connect().await.unwrap();
        let create = format!("create database {name}");
        admin
            .execute(sqlx::raw_sql(AssertSqlSafe(create)))
            .await
            .unwrap();
        let options = options.database(&name);
        let url = options.to_url_lossy().to_string();
        let pool = MySqlPoolOptions::new().max_connections(4);
        let pool = pool.connect_with(options).await.unwrap();
        pool.execute(
            "create table t_order (
               order_no varchar(32) not null primary key,
               status varchar(16) not null,
               kind varchar(16) null,
               expire_time datetime not null,
               cancelled_at datetime(6) null,
               key by_expiry (status, expire_time)
             )",
        )
        .await
        .unwrap();
        MariaShop { pool, url }
    }

    /// Orders with these due times, `M-000000` and so on.
    pub async fn place(&self, dues: &[DateTime<Utc>]) {
        for (chunk, dues) in dues.chunks(1_000).enumerate() {
            let mut insert =
                QueryBuilder::new("insert into t_order (order_no, status, expire_time) ");
            let local = |due: &DateTime<Utc>| (*due + TimeDelta::hours(8)).naive_utc();
            insert.push_values(dues.iter().enumerate(), |mut row, (n, due)| {
                row.push_bind(format!("M-{:06}", chunk * 1_000 + n))
                    .push_bind("WAIT_PAY")
                    .push_bind(local(due));
            });
            insert.build().execute(&self.pool).await.unwrap();
        }
    }

    /// The settings under which Lapse reads it.
    pub fn settings(&self) -> OrderOwner {
        OrderOwner {
            database_url: self.url.clone(),
            table: "t_order".to_owned(),
            columns: Columns {
                order_id: "order_no".to_owned(),
                status: "status".to_owned(),
                due_at: "expire_time".to_owned(),
                order_type: "kind".to_owned(),
                ..Columns::default()
            },
            pending: vec!["WAIT_PAY".to_owned()],
            paid: vec!["PAID".to_owned()],
            order_type: "normal".to_owned(),
            time_zone: "Asia/Shanghai".to_owned(),
            ..OrderOwner::default()
        }
    }

    async fn cancel(&self, ids: &[&str]) -> Result<Vec<(String, String)>, sqlx::Error> {
        let marks = vec!["?"; ids.len()].join(", ");
        let update = format!(
            "update t_order set status = 'CANCELLED', cancelled_at = utc_timestamp(6) + interval 8 hour
             where status = 'WAIT_PAY' and expire_time <= utc_timestamp(6) + interval 8 hour
               and order_no in ({marks})"
        );
        let mut query = sqlx::query(AssertSqlSafe(update)).persistent(false);
        for id in ids {
            query = query.bind(*id);
        }
        query.execute(&self.pool).await?;
        let select = format!("select order_no, status from t_order where order_no in ({marks})");
        let mut query = sqlx::query_as(AssertSqlSafe(select)).persistent(false);
        for id in ids {
            query = query.bind(*id);
        }
        query.fetch_all(&self.pool).await
    }
}

impl PostgresShop {
    /// In a database of its own.
    pub async fn open() -> PostgresShop {
        let database = TestDatabase::create().await;
        let pool = PgPoolOptions::new().max_connections(4);
        let pool = pool.connect_with(database.options).await.unwrap();
        pool.execute(
            "create schema trade;
             create table trade.orders (
               id bigint generated always as identity (start with 9999999999980001) primary key,
               state smallint not null default 10,
               created_at timestamp not null,
               deleted boolean not null default false,
               cancelled_at timestamptz
             );
             create index on trade.orders (state, created_at)",
        )
        .await
        .unwrap();
        PostgresShop {
            pool,
            url: database.url,
        }
    }

    /// Orders with these due times.
    pub async fn place(&self, dues: &[DateTime<Utc>]) {
        let placed: Vec<DateTime<Utc>> = dues.iter().map(|due| *due - PAY_WITHIN).collect();
        sqlx::query(
            "insert into trade.orders (created_at)
             select t.at at time zone 'Europe/Paris' from unnest($1::timestamptz[]) as t (at)",
        )
        .bind(placed)
        .execute(&self.pool)
        .await
        .unwrap();
    }

    /// The settings under which Lapse reads it.
    pub fn settings(&self) -> OrderOwner {
        OrderOwner {
            database_url: self.url.clone(),
            table: "trade.orders".to_owned(),
            columns: Columns {
                order_id: "id".to_owned(),
                status: "state".to_owned(),
                created_at: "created_at".to_owned(),
                ..Columns::default()
            },
            pending: vec!["10".to_owned()],
            paid: vec!["20".to_owned(), "30".to_owned()],
            order_type: "normal".to_owned(),
            pay_within: Span::from_secs(30 * 60),
            time_zone: "Europe/Paris".to_owned(),
            filter: "not deleted".to_owned(),
            ..OrderOwner::default()
        }
    }

    async fn cancel(&self, ids: &[&str]) -> Result<Vec<(String, String)>, sqlx::Error> {
        let ids: Vec<i64> = ids.iter().filter_map(|id| id.parse().ok()).collect();
        sqlx::query(
            "update trade.orders set state = 40, cancelled_at = statement_timestamp()
             where id = any($1) and state = 10
               and (created_at at time zone 'Europe/Paris') + interval '30 minutes' <= statement_timestamp()",
        )
        .bind(&ids)
        .execute(&self.pool)
        .await?;
        sqlx::query_as(
            "select id::text,
               case state when 40 then 'CANCELLED' when 10 then 'WAIT_PAY' else 'PAID' end
             from trade.orders where id = any($1)",
        )
        .bind(&ids)
        .fetch_all(&self.pool)
        .await
    }
}

/// Both as participant: `CancelOrder` asks the table, everything else has nothing to do.
macro_rules! participant {
    ($shop:ty) => {
        #[async_trait]
        impl Participant for $shop {
            async fn call(
                &self,
                operation: &str,
                commands: &[Command],
            ) -> Result<Vec<Reply>, CallError> {
                let ids: Vec<&str> = commands
                    .iter()
                    .map(|command| command.order.order_id.as_str())
                    .collect();
                let known = match operation {
                    "CancelOrder" => self.cancel(&ids).await?,
                    _ => ids
                        .iter()
                        .map(|id| (id.to_string(), "CANCELLED".to_owned()))
                        .collect(),
                };
                Ok(replies(commands, &known))
            }
        }
    };
}
participant!(MariaShop);
participant!(PostgresShop);

fn replies(commands: &[Command], known: &[(String, String)]) -> Vec<Reply> {
    let known: std::collections::HashMap<_, _> = known.iter().cloned().collect();
    let outcome = |order_id: &str| match known.get(order_id).map(String::as_str) {
        Some("CANCELLED") => Outcome::Done {
            output: json!(null),
        },
        Some("WAIT_PAY") => Outcome::NotDue {
            until: Utc::now() + TimeDelta::milliseconds(100),
        },
        _ => Outcome::NotApplicable {
            reason: "paid".to_owned(),
        },
    };
    commands
        .iter()
        .map(|command| Reply {
            command_id: command.command_id.clone(),
            outcome: outcome(&command.order.order_id),
        })
        .collect()
}
