//! The barrier: one row per command id, in the same transaction as the command's effect.
//!
//! ```text
//!  action        no row ──► effect ──► reply stored        row with reply ──► the same reply
//!                no row, too old ──► expired               row of a compensation (blocked_by) ──► superseded
//!  compensation  no row of its own, action done ──► effect ──► reply stored
//!                action has no row ──► blocking row for the action; done, nothing undone
//!  either        row with another operation or input ──► mismatch
//! ```
//! Only final answers are stored; `failed` and `not_due` leave no row. Relies on the primary key of `shop.barrier`: a
//! second transaction with the same command waits for the first one. Rows are taken in the order of command ids, so
//! that batches can't deadlock here. Never: decides what a command does; that is the effect's.

use std::collections::{BTreeMap, HashMap, HashSet};

use chrono::TimeDelta;
use lapse_sagas::{CommandId, Direction, Outcome, Timestamp};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use sqlx::{PgConnection, PgPool};

use crate::kit::db::{self, Work};
use crate::kit::{CallError, Command, Reply};

/// How long a row outlives its command's time to live. It must be longer than the replay window of the topics (delay
/// plus 7 days) and than the longest that a saga stays parked with a step that may have been applied.
pub const RETENTION: TimeDelta = TimeDelta::days(90);

/// What a participant does with commands that passed the barrier: one outcome for each, in the same order, inside the
/// given transaction. An outcome that is not `done` must not have changed anything.
pub type Effect =
    for<'t> fn(&'t mut PgConnection, &'t [Command]) -> Work<'t, Vec<Outcome>, CallError>;

/// Does a batch of commands behind the barrier, in one transaction.
///
/// # Errors
/// [`CallError`] from the database. Except for its `Unknown`, nothing was applied.
pub async fn call(
    pool: &PgPool,
    operation: &str,
    commands: &[Command],
    effect: Effect,
) -> Result<Vec<Reply>, CallError> {
    if let Some(stray) = commands
        .iter()
        .find(|command| command.operation != operation)
    {
        let (id, other) = (&stray.command_id, &stray.operation);
        return Err(CallError::Data(format!(
            "operation: command {id} for {other} among those for {operation}"
        )));
    }
    if commands.is_empty() {
        return Ok(Vec::new());
    }
    let (batch, again) = distinct(commands);
    let mut replies = db::tx(pool, move |connection| {
        Box::pin(pass(connection, batch, effect))
    })
    .await?;
    replies.extend(answer_again(&again, commands, &replies));
    Ok(replies)
}

/// Removes up to `limit` rows whose time is over; returns how many it removed.
///
/// # Errors
/// [`CallError`] from the database.
pub async fn prune(pool: &PgPool, limit: u32) -> Result<u64, CallError> {
    db::statement(pool, move |connection| {
        Box::pin(async move {
            let removed = sqlx::query!(
                "delete from shop.barrier where command_id in (
                     select command_id from shop.barrier where expires_at < statement_timestamp()
                     limit $1 for update skip locked)",
                i64::from(limit),
            )
            .execute(connection)
            .await?;
            Ok(removed.rows_affected())
        })
    })
    .await
}

/// What must not differ between repetitions: operation, order and input, with the input's keys in order.
fn fingerprint(command: &Command) -> Vec<u8> {
    let order = &command.order;
    let text = json!([
        command.operation,
        order.tenant,
        order.order_id,
        order.generation
    ]);
    let mut hash = Sha256::new();
    hash.update(text.to_string());
    hash.update(canonical(&command.input).to_string());
    hash.finalize().to_vec()
}

/// The same value with sorted keys, whatever map type serde_json was built with.
fn canonical(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let sorted: BTreeMap<&String, Value> = fields
                .iter()
                .map(|(key, value)| (key, canonical(value)))
                .collect();
            json!(sorted)
        }
        Value::Array(items) => items.iter().map(canonical).collect(),
        scalar => scalar.clone(),
    }
}

/// The commands sorted by id, each id once; and the indices of those that repeat an id within this very call.
fn distinct(commands: &[Command]) -> (Vec<Command>, Vec<usize>) {
    let mut seen = HashSet::new();
    let (first, again): (Vec<usize>, Vec<usize>) =
        (0..commands.len()).partition(|at| seen.insert(&commands[*at].command_id));
    let mut batch: Vec<Command> = first.into_iter().map(|at| commands[at].clone()).collect();
    batch.sort_by(|a, b| a.command_id.cmp(&b.command_id));
    (batch, again)
}

fn answer_again(again: &[usize], commands: &[Command], replies: &[Reply]) -> Vec<Reply> {
    let answer = |at: &usize| {
        let command = &commands[*at];
        let first = commands
            .iter()
            .find(|other| other.command_id == command.command_id)?;
        let outcome = if fingerprint(first) == fingerprint(command) {
            let answered = replies
                .iter()
                .find(|reply| reply.command_id == command.command_id)?;
            answered.outcome.clone()
        } else {
            other_input(command)
        };
        Some(Reply {
            command_id: command.command_id.clone(),
            outcome,
        })
    };
    again.iter().filter_map(answer).collect()
}

async fn pass(
    connection: &mut PgConnection,
    batch: Vec<Command>,
    effect: Effect,
) -> Result<Vec<Reply>, CallError> {
    let entered = enter(connection, &batch).await?;
    let known = find(connection, &batch, &entered).await?;
    let mut settled: HashMap<&CommandId, Outcome> = HashMap::new();
    let mut fresh: Vec<&Command> = Vec::new();
    for command in &batch {
        if entered.contains(command.command_id.as_str()) {
            fresh.push(command);
        } else {
            let outcome = match known.get(command.command_id.as_str()) {
                Some(row) => repeated(command, row)?,
                None => Outcome::Expired,
            };
            settled.insert(&command.command_id, outcome);
        }
    }
    let undone = nothing_to_undo(connection, &fresh).await?;
    let to_do: Vec<Command> = fresh
        .iter()
        .filter(|command| !undone.contains_key(&command.command_id))
        .map(|command| (*command).clone())
        .collect();
    let mut outcomes = undone;
    if !to_do.is_empty() {
        let done = effect(connection, &to_do).await?;
        assert_eq!(done.len(), to_do.len(), "an effect answers every command");
        outcomes.extend(
            to_do
                .iter()
                .map(|command| command.command_id.clone())
                .zip(done),
        );
    }
    leave(connection, &outcomes).await?;
    let mut replies = Vec::with_capacity(batch.len());
    for command in &batch {
        let id = &command.command_id;
        let outcome = outcomes.remove(id).or_else(|| settled.remove(id));
        replies.extend(outcome.map(|outcome| Reply {
            command_id: id.clone(),
            outcome,
        }));
    }
    Ok(replies)
}

/// Inserts a row for every command that has none and is not too old. Another transaction that is doing one of them is
/// waited for.
async fn enter(
    connection: &mut PgConnection,
    batch: &[Command],
) -> Result<HashSet<String>, sqlx::Error> {
    let ids: Vec<&str> = batch
        .iter()
        .map(|command| command.command_id.as_str())
        .collect();
    let operations: Vec<&str> = batch
        .iter()
        .map(|command| command.operation.as_str())
        .collect();
    let fingerprints: Vec<Vec<u8>> = batch.iter().map(fingerprint).collect();
    let expiries: Vec<_> = batch.iter().map(|command| command.expires_at).collect();
    let entered = sqlx::query_scalar!(
        "insert into shop.barrier (command_id, operation, fingerprint, expires_at)
         select command_id, operation, fingerprint, expires_at + make_interval(secs => $5)
         from unnest($1::text[], $2::text[], $3::bytea[], $4::timestamptz[])
             as wanted (command_id, operation, fingerprint, expires_at)
         where expires_at >= clock_timestamp()
         order by command_id
         on conflict (command_id) do nothing
         returning command_id",
        &ids as &[&str],
        &operations as &[&str],
        &fingerprints,
        &expiries,
        retention_secs(),
    )
    .fetch_all(connection)
    .await?;
    Ok(entered.into_iter().collect())
}

fn retention_secs() -> f64 {
    RETENTION.as_seconds_f64()
}

/// A row that was there before.
struct Row {
    command_id: String,
    operation: String,
    fingerprint: Vec<u8>,
    reply: Option<String>,
    blocked_by: Option<String>,
}

async fn find(
    connection: &mut PgConnection,
    batch: &[Command],
    entered: &HashSet<String>,
) -> Result<HashMap<String, Row>, sqlx::Error> {
    let ids: Vec<String> = batch
        .iter()
        .map(|command| command.command_id.to_string())
        .filter(|id| !entered.contains(id))
        .collect();
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    rows(connection, &ids).await
}

async fn rows(
    connection: &mut PgConnection,
    ids: &[String],
) -> Result<HashMap<String, Row>, sqlx::Error> {
    let rows = sqlx::query_as!(
        Row,
        "select command_id, operation, fingerprint, reply::text, blocked_by
         from shop.barrier where command_id = any($1)",
        ids,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| (row.command_id.clone(), row))
        .collect())
}

/// The answer to a command whose row was there before.
fn repeated(command: &Command, row: &Row) -> Result<Outcome, sqlx::Error> {
    if row.blocked_by.is_some() {
        return Ok(Outcome::Superseded);
    }
    if row.operation != command.operation {
        let (id, was, is) = (&command.command_id, &row.operation, &command.operation);
        return Ok(Outcome::Mismatch {
            error: format!("operation: {id} was used for {was}, now for {is}"),
        });
    }
    if row.fingerprint != fingerprint(command) {
        return Ok(other_input(command));
    }
    stored(row)
}

fn other_input(command: &Command) -> Outcome {
    Outcome::Mismatch {
        error: format!(
            "input: {} was used with another order or input",
            command.command_id
        ),
    }
}

fn stored(row: &Row) -> Result<Outcome, sqlx::Error> {
    let reply = row.reply.as_deref().unwrap_or("null");
    serde_json::from_str(reply).map_err(|error| sqlx::Error::Decode(error.into()))
}

/// The compensations among these whose action was not applied: answered at once. Where the action has no row yet, it
/// gets a blocking one, and will be answered `superseded` when it arrives.
async fn nothing_to_undo(
    connection: &mut PgConnection,
    fresh: &[&Command],
) -> Result<HashMap<CommandId, Outcome>, sqlx::Error> {
    let mut answered = HashMap::new();
    let mut compensations: BTreeMap<&str, Vec<&Command>> = BTreeMap::new();
    for command in fresh
        .iter()
        .filter(|command| command.direction == Direction::Undo)
    {
        match &command.action_id {
            Some(action_id) => compensations
                .entry(action_id.as_str())
                .or_default()
                .push(command),
            None => {
                let reason =
                    "no_action_id: a compensation must name the action it undoes".to_owned();
                answered.insert(command.command_id.clone(), Outcome::Rejected { reason });
            }
        }
    }
    if compensations.is_empty() {
        return Ok(answered);
    }
    let blocked = block(connection, &compensations).await?;
    let there: Vec<String> = compensations
        .keys()
        .filter(|id| !blocked.contains(**id))
        .map(|id| (*id).to_owned())
        .collect();
    let actions = rows(connection, &there).await?;
    for (action_id, commands) in compensations {
        let was_done = match actions.get(action_id) {
            Some(row) if row.blocked_by.is_none() => matches!(stored(row)?, Outcome::Done { .. }),
            _ => false,
        };
        if !was_done {
            let output = json!({ "undone": false, "because": "the action was not applied" });
            answered.extend(commands.into_iter().map(|command| {
                let outcome = Outcome::Done {
                    output: output.clone(),
                };
                (command.command_id.clone(), outcome)
            }));
        }
    }
    Ok(answered)
}

/// Inserts blocking rows for the actions that have none; an action that is being done now is waited for.
async fn block(
    connection: &mut PgConnection,
    compensations: &BTreeMap<&str, Vec<&Command>>,
) -> Result<HashSet<String>, sqlx::Error> {
    let actions: Vec<&str> = compensations.keys().copied().collect();
    let (blockers, expiries): (Vec<&str>, Vec<Timestamp>) = compensations
        .values()
        .map(|commands| (commands[0].command_id.as_str(), commands[0].expires_at))
        .unzip();
    let blocked = sqlx::query_scalar!(
        "insert into shop.barrier (command_id, operation, fingerprint, blocked_by, expires_at)
         select action_id, '', '', blocked_by, expires_at + make_interval(secs => $4)
         from unnest($1::text[], $2::text[], $3::timestamptz[]) as wanted (action_id, blocked_by, expires_at)
         order by action_id
         on conflict (command_id) do nothing
         returning command_id",
        &actions as &[&str],
        &blockers as &[&str],
        &expiries,
        retention_secs(),
    )
    .fetch_all(connection)
    .await?;
    Ok(blocked.into_iter().collect())
}

/// Stores what is final and takes back the rows of what is not.
async fn leave(
    connection: &mut PgConnection,
    outcomes: &HashMap<CommandId, Outcome>,
) -> Result<(), CallError> {
    let (mut ids, mut replies, mut open) = (Vec::new(), Vec::new(), Vec::new());
    for (id, outcome) in outcomes {
        if outcome.is_final() {
            ids.push(id.as_str());
            replies.push(serde_json::to_string(outcome).map_err(|error| {
                CallError::Configuration(format!("store the reply to {id}: {error}"))
            })?);
        } else {
            open.push(id.to_string());
        }
    }
    if !ids.is_empty() {
        sqlx::query!(
            "update shop.barrier set reply = given.reply::json
             from unnest($1::text[], $2::text[]) as given (command_id, reply)
             where barrier.command_id = given.command_id",
            &ids as &[&str],
            &replies,
        )
        .execute(&mut *connection)
        .await?;
    }
    if !open.is_empty() {
        sqlx::query!("delete from shop.barrier where command_id = any($1)", &open)
            .execute(connection)
            .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_keys_is_no_difference() {
        let one: Value =
            serde_json::from_str(r#"{"b":[{"y":1,"x":2}],"a":null}"#).expect("valid JSON");
        let other: Value =
            serde_json::from_str(r#"{"a":null,"b":[{"x":2,"y":1}]}"#).expect("valid JSON");
        assert_eq!(canonical(&one).to_string(), canonical(&other).to_string());
    }
}
