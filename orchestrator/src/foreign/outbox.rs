//! An outbox of somebody else's: rows that a transaction left to be sent, in the columns that Debezium expects.
//!
//! A round locks rows (`skip locked`), has them sent and deletes what was delivered, all in one transaction: a relay that
//! dies lets go of its rows by dying. Relies on the database to keep that transaction open for as long as a delivery may
//! take. Never: sends a row while an earlier one of its key is still there, whoever holds that one.

use std::collections::{BTreeMap, HashSet};

use futures::future::BoxFuture;
use lapse_participants::kit::CallError;
use serde_json::Value;
use tokio::sync::OnceCell;

use super::db::{Access, Db, Row, Session};
use super::dialect::{Dialect, Sql};
use super::table::{Column, Kind, Table};

/// One transaction at a time, and one connection in reserve for when it breaks.
const CONNECTIONS: u32 = 2;

/// Where the rows are.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `postgres://…` or `mysql://…`.
    pub url: String,
    /// `table` or `schema.table`.
    pub table: String,
    /// A column with a JSON object of text, which become the record's headers.
    pub headers: Option<String>,
    /// What becomes of rows that are delivered.
    pub after: After,
    /// Rows per round.
    pub batch: u32,
}

/// What a round did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Rows that were delivered.
    pub delivered: usize,
    /// Rows that were not.
    pub left: usize,
}

/// What becomes of a row that is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// It is deleted.
    Delete,
    /// Its `published_at` is set.
    Keep,
}

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its id, as text.
    pub id: String,
    /// `aggregatetype`.
    pub topic: String,
    /// `aggregateid`.
    pub key: String,
    /// `payload`; none deletes the key from a compacted topic.
    pub payload: Option<Vec<u8>>,
    /// `id`, `type`, and those of its headers column.
    pub headers: Vec<(String, String)>,
    /// Why it can't be sent as it is.
    pub fault: Option<String>,
}

/// Topic and key: rows of one are sent in their order.
pub type Lane = (String, String);

/// What is left alone for a while.
#[derive(Clone, Debug, Default)]
pub struct LeftAlone {
    /// All rows of these topics.
    pub topics: Vec<String>,
    /// All rows of these keys.
    pub lanes: Vec<Lane>,
}

/// Rows to be sent.
pub struct Outbox {
    settings: Settings,
    db: Db,
    columns: OnceCell<Columns>,
}

#[derive(Clone, Debug)]
struct Columns {
    dialect: Dialect,
    path: String,
    id: Column,
    topic: Column,
    key: Column,
    /// Read as text, or as hexadecimal where it is bytes.
    payload: Column,
    kind: Column,
    headers: Option<Column>,
    published_at: Option<Column>,
    /// In which rows were written: the id where it is a number, else the time.
    order: Column,
}

impl Outbox {
    /// Connects when it is first used.
    ///
    /// # Errors
    /// In words, if the URL can't be read.
    pub fn open(settings: Settings) -> Result<Outbox, String> {
        Ok(Outbox {
            db: Db::open(&settings.url, Access::Write, CONNECTIONS)?,
            settings,
            columns: OnceCell::new(),
        })
    }

    /// Looks at the table.
    ///
    /// # Errors
    /// [`CallError::Configuration`] in words; others if the database does not answer.
    pub async fn check(&self) -> Result<(), CallError> {
        self.columns().await.map(drop)
    }

    /// One round: `send` gets rows in their order and says of each whether it was delivered.
    ///
    /// # Errors
    /// If the database does not answer; what was delivered may then come again.
    pub async fn round<F>(&self, left_alone: LeftAlone, send: F) -> Result<Round, CallError>
    where
        F: FnOnce(Vec<Message>) -> BoxFuture<'static, Vec<bool>> + Send + 'static,
    {
        let columns = self.columns().await?;
        let limit = self.settings.batch;
        self.db
            .tx(move |mut session| {
                Box::pin(async move {
                    let locked = session.rows(columns.lock(&left_alone, limit)).await?;
                    let locked: Vec<Message> = locked
                        .into_iter()
                        .filter_map(|row| columns.read(row))
                        .collect();
                    let first = columns.first_of_their_keys(&mut session, locked).await?;
                    if first.is_empty() {
                        return Ok(Round::default());
                    }
                    let ids: Vec<String> = first.iter().map(|message| message.id.clone()).collect();
                    let found = ids.len();
                    let delivered = send(first).await;
                    let delivered: Vec<String> = ids
                        .into_iter()
                        .zip(delivered)
                        .filter(|(_, delivered)| *delivered)
                        .map(|(id, _)| id)
                        .collect();
                    if !delivered.is_empty() {
                        session.rows(columns.finish(&delivered)).await?;
                    }
                    Ok(Round {
                        delivered: delivered.len(),
                        left: found - delivered.len(),
                    })
                })
            })
            .await
    }

    /// Looked up once, when the database first answers.
    async fn columns(&self) -> Result<Columns, CallError> {
        let looked = self.columns.get_or_try_init(|| async {
            let settings = self.settings.clone();
            self.db
                .tx(move |mut session| {
                    Box::pin(async move { Columns::look(&mut session, &settings).await })
                })
                .await
        });
        looked.await.cloned()
    }
}

impl Columns {
    async fn look(session: &mut Session<'_>, settings: &Settings) -> Result<Columns, CallError> {
        let dialect = session.dialect();
        let table = Table::look(session, &settings.table).await?;
        let column = |name: &str, kinds: &[Kind]| table.column("outbox", name, kinds).cloned();
        let words = [Kind::Text, Kind::Integer, Kind::Uuid];
        let times = [Kind::Instant, Kind::LocalTime];
        let id = column("id", &words)?;
        let order = match id.kind {
            Kind::Integer => id.clone(),
            _ => column("created_at", &times)?,
        };
        Ok(Columns {
            dialect,
            path: table.path()?,
            id,
            topic: column("aggregatetype", &[Kind::Text])?,
            key: column("aggregateid", &words)?,
            payload: column("payload", &[Kind::Text, Kind::Bytes])?,
            kind: column("type", &[Kind::Text])?,
            headers: match &settings.headers {
                Some(headers) => Some(column(headers, &[Kind::Text])?),
                None => None,
            },
            published_at: match settings.after {
                After::Keep => Some(column("published_at", &times)?),
                After::Delete => None,
            },
            order,
        })
    }

    /// The oldest rows that nobody else has in hand.
    fn lock(&self, left_alone: &LeftAlone, limit: u32) -> Sql {
        let text = |column: &Column| self.dialect.text(&column.name);
        let payload = match (self.payload.kind, self.dialect) {
            (Kind::Bytes, Dialect::Postgres) => format!("encode({}, 'hex')", self.payload.name),
            (Kind::Bytes, Dialect::MySql) => {
                self.dialect.text(&format!("hex({})", self.payload.name))
            }
            _ => text(&self.payload),
        };
        let headers = match &self.headers {
            Some(headers) => text(headers),
            None => self.dialect.text("null"),
        };
        let mut sql = self.dialect.select(&[
            text(&self.id),
            text(&self.topic),
            text(&self.key),
            text(&self.kind),
            payload,
            headers,
        ]);
        sql.push(&format!(" from {} where {}", self.path, self.waiting()));
        if !left_alone.topics.is_empty() {
            sql.push(&format!(" and {} not in ", self.topic.name))
                .bind_list(&left_alone.topics, &self.topic.cast);
        }
        if !left_alone.lanes.is_empty() {
            sql.push(&format!(
                " and ({}, {}) not in ",
                self.topic.name, self.key.name
            ));
            self.bind_lanes(&mut sql, &left_alone.lanes);
        }
        sql.push(&format!(
            " order by {}, {} limit {limit} for update skip locked",
            self.order.name, self.id.name
        ));
        sql
    }

    fn waiting(&self) -> String {
        match &self.published_at {
            Some(published_at) => format!("{} is null", published_at.name),
            None => "1 = 1".to_owned(),
        }
    }

    fn bind_lanes<'a>(&self, sql: &mut Sql, lanes: impl IntoIterator<Item = &'a Lane>) {
        sql.push("(");
        for (index, (topic, key)) in lanes.into_iter().enumerate() {
            sql.push(if index > 0 { ", (" } else { "(" })
                .bind(topic, &self.topic.cast)
                .push(", ")
                .bind(key, &self.key.cast)
                .push(")");
        }
        sql.push(")");
    }

    fn read(&self, row: Row) -> Option<Message> {
        let [id, topic, key, kind, payload, headers] = row.try_into().ok()?;
        let id = id?;
        let payload = payload.map(|payload| match self.payload.kind {
            Kind::Bytes => hex::decode(&payload).unwrap_or_default(),
            _ => payload.into_bytes(),
        });
        let mut all = vec![("id".to_owned(), id.clone())];
        all.extend(kind.map(|kind| ("type".to_owned(), kind)));
        let mut fault = None;
        let headers: Option<Option<BTreeMap<String, Value>>> = headers.map(|headers| {
            serde_json::from_str(&headers).unwrap_or_else(|_| {
                fault = Some("its headers are no JSON object".to_owned());
                None
            })
        });
        let word = |value: Value| match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        let headers = headers.into_iter().flatten().flatten();
        all.extend(headers.map(|(name, value)| (name, word(value))));
        Some(Message {
            id,
            topic: topic.unwrap_or_default(),
            key: key.unwrap_or_default(),
            payload,
            headers: all,
            fault,
        })
    }

    /// Without those that come after a row of their key that somebody else holds, or that was committed late.
    async fn first_of_their_keys(
        &self,
        session: &mut Session<'_>,
        locked: Vec<Message>,
    ) -> Result<Vec<Message>, CallError> {
        let Some(last) = locked.last() else {
            return Ok(locked);
        };
        let own: HashSet<&str> = locked.iter().map(|message| message.id.as_str()).collect();
        let lanes: HashSet<Lane> = locked.iter().map(lane).collect();
        let text = |column: &Column| self.dialect.text(&column.name);
        let mut sql = self
            .dialect
            .select(&[text(&self.id), text(&self.topic), text(&self.key)]);
        let (path, order) = (&self.path, &self.order.name);
        sql.push(&format!(
            " from {path} where {} and {order} <= (select {order} from {path} where {} = ",
            self.waiting(),
            self.id.name,
        ));
        sql.bind(&last.id, &self.id.cast).push(&format!(
            ") and ({}, {}) in ",
            self.topic.name, self.key.name
        ));
        self.bind_lanes(&mut sql, &lanes);
        sql.push(&format!(" order by {}, {}", self.order.name, self.id.name));
        let (mut closed, mut free) = (HashSet::new(), HashSet::new());
        for row in session.rows(sql).await? {
            let Ok([Some(id), topic, key]) = <[Option<String>; 3]>::try_from(row) else {
                continue;
            };
            let lane = (topic.unwrap_or_default(), key.unwrap_or_default());
            if !own.contains(id.as_str()) {
                closed.insert(lane);
            } else if !closed.contains(&lane) {
                free.insert(id);
            }
        }
        let mut locked = locked;
        locked.retain(|message| free.contains(&message.id));
        Ok(locked)
    }

    fn finish(&self, ids: &[String]) -> Sql {
        let change = match &self.published_at {
            Some(published_at) => format!(
                "update {} set {} = current_timestamp where {} in ",
                self.path, published_at.name, self.id.name
            ),
            None => format!("delete from {} where {} in ", self.path, self.id.name),
        };
        let mut sql = Sql::new(self.dialect, change);
        sql.bind_list(ids, &self.id.cast);
        sql
    }
}

/// What keeps its order.
pub fn lane(message: &Message) -> Lane {
    (message.topic.clone(), message.key.clone())
}
