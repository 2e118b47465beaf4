//! Planted faults: a participant that goes wrong on request, for demonstrations and tests.
//!
//! Relies on `shop.fault`: while a row has something remaining, each call that names its order and operation uses one
//! up. Never: invents a fault; without rows it costs one indexed query per call.

use std::collections::HashMap;
use std::str::FromStr;

use async_trait::async_trait;
use lapse_sagas::{CommandId, Outcome};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;

use crate::kit::{CallError, Command, Participant, Reply, db};

/// How a command goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Not applied, answered `failed`.
    Failed,
    /// Not applied, answered `unknown`.
    Unknown,
    /// Applied, answered `unknown`.
    UnknownApplied,
    /// Not applied, answered `rejected`.
    Rejected,
    /// Not applied, never answered: the caller gives up, and the rest of the batch with it.
    Hang,
}

impl Answer {
    /// The name, as in JSON and SQL.
    pub fn name(self) -> &'static str {
        match self {
            Answer::Failed => "failed",
            Answer::Unknown => "unknown",
            Answer::UnknownApplied => "unknown_applied",
            Answer::Rejected => "rejected",
            Answer::Hang => "hang",
        }
    }
}

/// A name that is no [`Answer`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no such fault: {0}; there are failed, unknown, unknown_applied, rejected and hang")]
pub struct NoSuchAnswer(String);

impl FromStr for Answer {
    type Err = NoSuchAnswer;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [
            Answer::Failed,
            Answer::Unknown,
            Answer::UnknownApplied,
            Answer::Rejected,
            Answer::Hang,
        ];
        let found = all.into_iter().find(|answer| answer.name() == text);
        found.ok_or_else(|| NoSuchAnswer(text.to_owned()))
    }
}

/// A participant with planted faults.
pub struct Faulty<P> {
    inner: P,
    pool: PgPool,
}

impl<P> Faulty<P> {
    /// Around a participant, with the faults of this database.
    pub fn new(inner: P, pool: PgPool) -> Self {
        Faulty { inner, pool }
    }
}

#[async_trait]
impl<P: Participant> Participant for Faulty<P> {
    async fn call(&self, operation: &str, commands: &[Command]) -> Result<Vec<Reply>, CallError> {
        let planted = use_up(&self.pool, operation, commands).await?;
        if planted.is_empty() {
            return self.inner.call(operation, commands).await;
        }
        if planted.values().any(|answer| *answer == Answer::Hang) {
            return std::future::pending().await;
        }
        let let_through = |command: &&Command| {
            let answer = planted.get(&command.command_id);
            matches!(answer, None | Some(Answer::UnknownApplied))
        };
        let applied: Vec<Command> = commands.iter().filter(let_through).cloned().collect();
        let mut replies = self.inner.call(operation, &applied).await?;
        replies.retain(|reply| !planted.contains_key(&reply.command_id));
        replies.extend(planted.into_iter().map(|(command_id, answer)| Reply {
            command_id,
            outcome: outcome(answer),
        }));
        Ok(replies)
    }
}

fn outcome(answer: Answer) -> Outcome {
    match answer {
        Answer::Failed => Outcome::Failed {
            error: "planted: failed, not applied".to_owned(),
        },
        Answer::Rejected => Outcome::Rejected {
            reason: "planted: rejected, not applied".to_owned(),
        },
        Answer::Unknown | Answer::UnknownApplied | Answer::Hang => Outcome::Unknown {
            error: "planted: no usable answer".to_owned(),
        },
    }
}

/// The faults that hit these commands, each used up once.
async fn use_up(
    pool: &PgPool,
    operation: &str,
    commands: &[Command],
) -> Result<HashMap<CommandId, Answer>, CallError> {
    let operation = operation.to_owned();
    let (tenants, order_ids): (Vec<String>, Vec<String>) = commands
        .iter()
        .map(|command| (command.order.tenant.clone(), command.order.order_id.clone()))
        .unzip();
    let rows = db::statement(pool, move |connection| {
        Box::pin(async move {
            let rows = sqlx::query!(
                "update shop.fault f set remaining = f.remaining - 1
                 from (select distinct tenant, order_id
                       from unnest($1::text[], $2::text[]) as given (tenant, order_id)) wanted
                 where f.tenant = wanted.tenant and f.order_id = wanted.order_id
                   and f.operation = $3 and f.remaining > 0
                 returning f.tenant, f.order_id, f.answer",
                &tenants,
                &order_ids,
                operation,
            )
            .fetch_all(connection)
            .await?;
            Ok::<_, CallError>(rows)
        })
    })
    .await?;
    let mut answers = HashMap::new();
    for row in rows {
        let answer: Answer = row
            .answer
            .parse()
            .map_err(|error: NoSuchAnswer| CallError::Configuration(error.to_string()))?;
        answers.insert((row.tenant, row.order_id), answer);
    }
    let hit = commands.iter().filter_map(|command| {
        let key = (command.order.tenant.clone(), command.order.order_id.clone());
        let answer = answers.get(&key)?;
        Some((command.command_id.clone(), *answer))
    });
    Ok(hit.collect())
}
