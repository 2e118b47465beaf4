//! Writing moved states: the fenced row first, then, for what passed the fence, history, alerts, outbox and counters.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use chrono::NaiveDate;
use lapse_sagas::{SagaId, Timestamp};
use sqlx::PgConnection;
use uuid::Uuid;

use super::columns::Columns;
use super::rollup::Counts;
use super::{alerts, messages};
use crate::store::consequence::{Consequences, consequences, outcome_message};
use crate::store::db::{Abort, Db};
use crate::store::schema::day;
use crate::store::{Error, HistoryHead, Move, Moved, Saga};

/// The new end of the history of every saga that passed the fence.
pub type Written = HashMap<SagaId, HistoryHead>;

pub async fn record(db: &Db, batch: Vec<Move>) -> Result<Vec<Moved>, Error> {
    if batch.is_empty() {
        return Ok(Vec::new());
    }
    let batch = Arc::new(batch);
    let shared = Arc::clone(&batch);
    let mut written = db
        .tx(move |tx| {
            let batch = Arc::clone(&shared);
            Box::pin(async move {
                #[cfg(feature = "planted")]
                let batch = crate::store::plant::unfenced(tx, batch).await?;
                let mut counts = Counts::default();
                let written = write(tx, &batch, None, &mut counts).await?;
                counts.write(tx).await?;
                Ok(written)
            })
        })
        .await?;
    let moved = |one: Move| match written.remove(&one.saga.id) {
        Some(history) => Moved::Stored(Box::new(stored(one, history))),
        None => Moved::Fenced,
    };
    Ok(Arc::unwrap_or_clone(batch).into_iter().map(moved).collect())
}

/// The saga as it is after its move was stored.
pub fn stored(moved: Move, history: HistoryHead) -> Saga {
    Saga {
        version: moved.saga.version + 1,
        state: moved.state,
        history,
        ..moved.saga
    }
}

/// Writes everything but the counters, which the caller must write last. `at` is the time to write; the statement's own
/// if none. Of two moves of one saga, the first counts.
pub async fn write(
    tx: &mut PgConnection,
    batch: &[Move],
    at: Option<Timestamp>,
    counts: &mut Counts,
) -> Result<Written, Abort> {
    if batch.is_empty() {
        return Ok(Written::new());
    }
    let mut seen = HashSet::new();
    let mut rows: Vec<Row<'_>> = batch
        .iter()
        .filter(|moved| seen.insert(moved.saga.id))
        .map(|moved| Row {
            moved,
            consequences: consequences(moved),
        })
        .collect();
    rows.sort_by_key(|row| row.moved.saga.id);
    let updated = update(tx, &rows, at).await?;
    let Some(&at) = updated.values().next() else {
        return Ok(Written::new());
    };
    rows.retain(|row| updated.contains_key(&row.moved.saga.id.0));

    append_history(tx, &rows, at).await?;
    change_alerts(tx, &rows, at).await?;
    tell_outcomes(tx, &rows, at).await?;
    for row in &rows {
        for counter in &row.consequences.counters {
            counts.add(&row.moved.saga.name, &row.moved.saga.order_type, counter, 1);
        }
    }
    Ok(rows
        .iter()
        .map(|row| (row.moved.saga.id, row.head()))
        .collect())
}

struct Row<'a> {
    moved: &'a Move,
    consequences: Consequences,
}

impl Row<'_> {
    fn head(&self) -> HistoryHead {
        self.consequences
            .lines
            .last()
            .map_or_else(|| self.moved.saga.history.clone(), HistoryHead::from)
    }
}

async fn update(
    tx: &mut PgConnection,
    rows: &[Row<'_>],
    at: Option<Timestamp>,
) -> Result<HashMap<Uuid, Timestamp>, sqlx::Error> {
    let columns = Columns::of(rows.iter().map(|row| &row.moved.state));
    let ids: Vec<Uuid> = rows.iter().map(|row| row.moved.saga.id.0).collect();
    let versions: Vec<i64> = rows.iter().map(|row| row.moved.saga.version).collect();
    let heads: Vec<HistoryHead> = rows.iter().map(Row::head).collect();
    let seqs: Vec<i32> = heads.iter().map(|head| head.seq).collect();
    let hashes: Vec<&[u8]> = heads.iter().map(|head| head.hash.as_slice()).collect();
    let updated = sqlx::query_file!(
        "src/store/pg/record.sql",
        columns.first_day(),
        &columns.days,
        &ids,
        &versions,
        &columns.causes as _,
        &columns.runs,
        &columns.states as _,
        &columns.reasons as _,
        &columns.steps as _,
        &columns.directions as _,
        &columns.phases as _,
        &columns.attempts as _,
        &columns.wake_ats as _,
        &columns.bodies,
        &seqs,
        &hashes as _,
        &columns.finished,
        at
    )
    .fetch_all(tx)
    .await?;
    Ok(updated
        .into_iter()
        .map(|row| (row.saga_id, row.updated_at))
        .collect())
}

async fn append_history(
    tx: &mut PgConnection,
    rows: &[Row<'_>],
    at: Timestamp,
) -> Result<(), sqlx::Error> {
    let mut days: Vec<NaiveDate> = Vec::new();
    let mut ids: Vec<Uuid> = Vec::new();
    let mut seqs: Vec<i32> = Vec::new();
    let mut entries: Vec<&str> = Vec::new();
    let mut hashes: Vec<&[u8]> = Vec::new();
    for row in rows {
        for line in &row.consequences.lines {
            days.push(day(row.moved.saga.id));
            ids.push(row.moved.saga.id.0);
            seqs.push(line.seq);
            entries.push(&line.text);
            hashes.push(&line.hash);
        }
    }
    if ids.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        "insert into lapse.history (day, saga_id, seq, entry, hash, at)
         select t.day, t.saga_id, t.seq, t.entry, t.hash, $6
         from unnest($1::date[], $2::uuid[], $3::integer[], $4::text[], $5::bytea[]) as t (day, saga_id, seq, entry, hash)",
        &days,
        &ids,
        &seqs,
        &entries as _,
        &hashes as _,
        at
    )
    .execute(tx)
    .await?;
    Ok(())
}

async fn change_alerts(
    tx: &mut PgConnection,
    rows: &[Row<'_>],
    at: Timestamp,
) -> Result<(), sqlx::Error> {
    let settled: Vec<Uuid> = rows
        .iter()
        .filter(|row| row.consequences.settled)
        .map(|row| row.moved.saga.id.0)
        .collect();
    let raised = rows
        .iter()
        .flat_map(|row| {
            row.consequences
                .raised
                .iter()
                .map(|raised| (row.moved.saga.id, raised.clone()))
        })
        .collect();
    alerts::change(tx, &settled, raised, at).await
}

async fn tell_outcomes(
    tx: &mut PgConnection,
    rows: &[Row<'_>],
    at: Timestamp,
) -> Result<(), sqlx::Error> {
    let outcomes = rows.iter().filter_map(|row| {
        let ended = row.consequences.ended.as_ref()?;
        Some((
            row.moved.saga.order.order_id.clone(),
            outcome_message(row.moved, ended, at),
        ))
    });
    messages::put(tx, "outcomes", outcomes.collect()).await
}
