//! Deciding under lock: lock rows, read the clock, decide, write what was decided.

use std::collections::HashMap;
use std::sync::Arc;

use chrono::NaiveDate;
use lapse_participants::kit::OrderKey;
use lapse_sagas::event::Entry;
use lapse_sagas::{SagaId, State, Timestamp};
use serde_json::Value;
use sqlx::PgConnection;
use tracing::error;
use uuid::Uuid;

use super::columns::first_day;
use super::record::{stored, write};
use super::rollup::Counts;
use crate::store::db::{Abort, Db};
use crate::store::schema::day;
use crate::store::text::storable;
use crate::store::{
    Decide, Decision, Error, HistoryHead, Move, Revised, Saga, StaleReply, Standing, Which,
};

pub async fn revise(db: &Db, which: Which, decide: Decide) -> Result<Vec<Revised>, Error> {
    let which = Arc::new(which);
    db.tx(move |tx| {
        let (which, decide) = (Arc::clone(&which), Arc::clone(&decide));
        Box::pin(async move {
            let rows = lock(tx, &which).await?;
            if rows.is_empty() {
                return Ok(Vec::new());
            }
            // After all locks are held: a transition never sees a time before an earlier one's.
            let (now, mut events) = clock_and_events(tx, &rows).await?;
            let (sagas, unreadable) = read(rows, &mut events);
            set_aside(tx, &unreadable).await?;
            decided(tx, sagas, &decide, now).await
        })
    })
    .await
}

async fn decided(
    tx: &mut PgConnection,
    sagas: Vec<Saga>,
    decide: &Decide,
    now: Timestamp,
) -> Result<Vec<Revised>, Abort> {
    let order: Vec<SagaId> = sagas.iter().map(|saga| saga.id).collect();
    let mut left = HashMap::new();
    let mut moves = Vec::new();
    let mut stale = Vec::new();
    let mut counts = Counts::default();
    for saga in sagas {
        match decide(&saga, now) {
            Decision::Move(state, effects) => {
                moves.push(Move {
                    saga,
                    state,
                    effects,
                });
                continue;
            }
            Decision::Leave => {}
            Decision::Stale(reply) => {
                counts.add(&saga.name, &saga.order_type, "stale_reply", 1);
                stale.push((saga.id, reply));
            }
        }
        left.insert(saga.id, saga);
    }
    let mut written = write(tx, &moves, Some(now), &mut counts).await?;
    log_stale(tx, &stale).await?;
    counts.write(tx).await?;

    let mut moves: HashMap<SagaId, Move> =
        moves.into_iter().map(|one| (one.saga.id, one)).collect();
    let revised = |id: SagaId| {
        if let Some(saga) = left.remove(&id) {
            return Ok(Revised { saga, moved: false });
        }
        match (moves.remove(&id), written.remove(&id)) {
            (Some(one), Some(history)) => Ok(Revised {
                saga: stored(one, history),
                moved: true,
            }),
            _ => Err(
                Error::Defect(format!("saga {id} was moved by somebody else while locked")).into(),
            ),
        }
    };
    order.into_iter().map(revised).collect()
}

/// A locked row; its state is still text.
struct Row {
    saga_id: Uuid,
    version: i64,
    definition: String,
    definition_hash: String,
    tenant: String,
    business_key: String,
    generation: i32,
    order_type: String,
    due_at: Option<Timestamp>,
    body: String,
    history_seq: i32,
    history_hash: Vec<u8>,
}

async fn lock(tx: &mut PgConnection, which: &Which) -> Result<Vec<Row>, sqlx::Error> {
    match which {
        Which::Due { limit } => {
            sqlx::query_file_as!(Row, "src/store/pg/lock_due.sql", i64::from(*limit))
                .fetch_all(tx)
                .await
        }
        Which::Ids(ids) => {
            let mut ids = ids.clone();
            ids.sort_unstable();
            ids.dedup();
            let days: Vec<NaiveDate> = ids.iter().map(|id| day(*id)).collect();
            let first = first_day(&days);
            let ids: Vec<Uuid> = ids.into_iter().map(|id| id.0).collect();
            sqlx::query_file_as!(Row, "src/store/pg/lock_ids.sql", first, &days, &ids)
                .fetch_all(tx)
                .await
        }
        Which::Key { definition, order } => {
            let OrderKey {
                tenant,
                order_id,
                generation,
            } = order;
            sqlx::query_file_as!(
                Row,
                "src/store/pg/lock_key.sql",
                order_id,
                tenant,
                definition,
                generation
            )
            .fetch_all(tx)
            .await
        }
    }
}

/// The time, and the producer's event of each row, out of the first entry of its history. Its number comes in an array:
/// a constant would make the planner read all first entries.
async fn clock_and_events(
    tx: &mut PgConnection,
    rows: &[Row],
) -> Result<(Timestamp, HashMap<Uuid, String>), sqlx::Error> {
    let ids: Vec<Uuid> = rows.iter().map(|row| row.saga_id).collect();
    let days: Vec<NaiveDate> = rows.iter().map(|row| day(SagaId(row.saga_id))).collect();
    let found = sqlx::query!(
        r#"select clock_timestamp() as "now!", t.saga_id as "saga_id!", h.entry as "entry?"
           from unnest($2::date[], $3::uuid[], $4::integer[]) as t (day, saga_id, seq)
           left join lapse.history as h
             on h.day >= $1 and h.day = t.day and h.saga_id = t.saga_id and h.seq = t.seq"#,
        first_day(&days),
        &days,
        &ids,
        &vec![1; ids.len()]
    )
    .fetch_all(tx)
    .await?;
    let now = found.iter().map(|row| row.now).max().unwrap_or_default();
    Ok((
        now,
        found
            .into_iter()
            .filter_map(|row| Some((row.saga_id, row.entry?)))
            .collect(),
    ))
}

/// The sagas, and the rows whose state this binary does not understand.
fn read(rows: Vec<Row>, events: &mut HashMap<Uuid, String>) -> (Vec<Saga>, Vec<Uuid>) {
    let mut sagas = Vec::with_capacity(rows.len());
    let mut unreadable = Vec::new();
    for row in rows {
        let id = row.saga_id;
        let event = events
            .remove(&id)
            .map_or(Value::Null, |entry| event(&entry));
        match saga(row, event) {
            Ok(saga) => sagas.push(saga),
            Err(error) => {
                error!(saga_id = %id, %error, "state is not understood; a newer binary has to go on with this saga");
                unreadable.push(id);
            }
        }
    }
    (sagas, unreadable)
}

fn event(entry: &str) -> Value {
    let entry = serde_json::from_str::<Entry>(entry).ok();
    entry
        .and_then(|mut entry| entry.detail.get_mut("event").map(Value::take))
        .unwrap_or_default()
}

fn saga(row: Row, event: Value) -> Result<Saga, String> {
    let state: State = serde_json::from_str(&row.body).map_err(|error| error.to_string())?;
    let hash = row
        .history_hash
        .try_into()
        .map_err(|_| "the history hash is not 32 bytes")?;
    Ok(Saga {
        id: SagaId(row.saga_id),
        version: row.version,
        state,
        definition: row.definition_hash.as_str().into(),
        name: row.definition.into(),
        order: OrderKey {
            tenant: row.tenant,
            order_id: row.business_key,
            generation: row.generation,
        },
        order_type: row.order_type.into(),
        due_at: row.due_at,
        event: Arc::new(event),
        history: HistoryHead {
            seq: row.history_seq,
            hash,
        },
    })
}

/// A row nobody here can read must not be the first to be polled for ever: it waits a minute for a newer binary.
async fn set_aside(tx: &mut PgConnection, unreadable: &[Uuid]) -> Result<(), sqlx::Error> {
    if unreadable.is_empty() {
        return Ok(());
    }
    let days: Vec<NaiveDate> = unreadable.iter().map(|id| day(SagaId(*id))).collect();
    sqlx::query!(
        "update lapse.saga set version = version + 1, wake_at = statement_timestamp() + interval '1 minute'
         where day = any($1) and saga_id = any($2) and wake_at is not null",
        &days,
        unreadable
    )
    .execute(tx)
    .await?;
    Ok(())
}

async fn log_stale(
    tx: &mut PgConnection,
    stale: &[(SagaId, StaleReply)],
) -> Result<(), sqlx::Error> {
    if stale.is_empty() {
        return Ok(());
    }
    let ids: Vec<Uuid> = stale.iter().map(|(id, _)| id.0).collect();
    let steps: Vec<_> = stale
        .iter()
        .map(|(_, reply)| storable(&reply.step).into_owned())
        .collect();
    let attempts: Vec<i32> = stale.iter().map(|(_, reply)| reply.attempt).collect();
    let outcomes: Vec<_> = stale
        .iter()
        .map(|(_, reply)| storable(&reply.outcome).into_owned())
        .collect();
    let whys: Vec<_> = stale
        .iter()
        .map(|(_, reply)| storable(&reply.why).into_owned())
        .collect();
    sqlx::query!(
        "insert into lapse.stale_reply (saga_id, step, attempt, outcome, why)
         select t.saga_id, t.step, t.attempt, t.outcome, t.why
         from unnest($1::uuid[], $2::text[], $3::integer[], $4::text[], $5::text[]) as t (saga_id, step, attempt, outcome, why)",
        &ids,
        &steps,
        &attempts,
        &outcomes,
        &whys
    )
    .execute(tx)
    .await?;
    Ok(())
}

pub async fn standing(
    db: &Db,
    definition: &str,
    orders: &[OrderKey],
) -> Result<Vec<Standing>, Error> {
    if orders.is_empty() {
        return Ok(Vec::new());
    }
    let definition = definition.to_owned();
    let orders: Arc<[OrderKey]> = orders.into();
    db.statement(move |connection| {
        let (definition, orders) = (definition.clone(), Arc::clone(&orders));
        Box::pin(async move {
            let business_keys: Vec<&str> = orders.iter().map(|order| order.order_id.as_str()).collect();
            let tenants: Vec<&str> = orders.iter().map(|order| order.tenant.as_str()).collect();
            let generations: Vec<i32> = orders.iter().map(|order| order.generation).collect();
            let rows = sqlx::query!(
                r#"select t.at as "at!", k.saga_id, s.state as "state?"
                   from unnest($2::text[], $3::text[], $4::integer[]) with ordinality
                     as t (business_key, tenant, generation, at)
                   join lapse.saga_key as k on k.business_key = t.business_key and k.tenant = t.tenant
                     and k.definition = $1 and k.generation = t.generation
                   left join lapse.saga as s on s.day = k.day and s.saga_id = k.saga_id"#,
                definition,
                &business_keys as _,
                &tenants as _,
                &generations
            );
            let mut all = vec![Standing::None; orders.len()];
            for row in rows.fetch_all(connection).await? {
                let at = usize::try_from(row.at - 1).unwrap_or_default();
                all[at] = standing_of(SagaId(row.saga_id), row.state);
            }
            Ok(all)
        })
    })
    .await
}

/// A saga whose partition was dropped was at rest, long ago: its order is worth an alert too.
fn standing_of(saga_id: SagaId, state: Option<String>) -> Standing {
    match state.as_deref() {
        None => Standing::Closed {
            saga_id,
            state: "dropped".to_owned(),
        },
        Some(state @ ("completed" | "skipped" | "compensated")) => Standing::Closed {
            saga_id,
            state: state.to_owned(),
        },
        Some(_) => Standing::InHand,
    }
}
