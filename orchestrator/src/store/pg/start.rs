//! Starting sagas: key, row, first history entry and counters in one transaction.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use chrono::NaiveDate;
use lapse_sagas::{SagaId, Timestamp, transition};
use sqlx::PgConnection;
use uuid::Uuid;

use super::columns::Columns;
use super::rollup::Counts;
use crate::store::db::{Abort, Db};
use crate::store::history::Line;
use crate::store::schema::day;
use crate::store::{Error, HistoryHead, Saga, Start, Started};

pub async fn start(db: &Db, batch: Vec<Start>) -> Result<Vec<Started>, Error> {
    if batch.is_empty() {
        return Ok(Vec::new());
    }
    let lines: Vec<Line> = batch.iter().map(first_line).collect();
    let work = Arc::new((batch, lines));
    let shared = Arc::clone(&work);
    let existing = db
        .tx(move |tx| {
            let work = Arc::clone(&shared);
            Box::pin(async move { write(tx, &work.0, &work.1).await })
        })
        .await?;
    let (batch, lines) = Arc::unwrap_or_clone(work);
    Ok(batch
        .into_iter()
        .zip(lines)
        .map(|(start, line)| started(start, &line, &existing))
        .collect())
}

fn first_line(start: &Start) -> Line {
    HistoryHead::EMPTY.append(&transition::started(&start.state, &start.event))
}

fn started(start: Start, line: &Line, existing: &HashMap<SagaId, SagaId>) -> Started {
    if let Some(&saga_id) = existing.get(&start.state.saga_id) {
        return Started::Duplicate { saga_id };
    }
    Started::New(Box::new(Saga {
        id: start.state.saga_id,
        version: 1,
        state: start.state,
        definition: start.definition,
        name: start.name,
        order: start.order,
        order_type: start.order_type,
        due_at: start.due_at,
        event: start.event,
        history: line.into(),
    }))
}

/// Returns the existing saga of every given one that was not stored.
async fn write(
    tx: &mut PgConnection,
    batch: &[Start],
    lines: &[Line],
) -> Result<HashMap<SagaId, SagaId>, Abort> {
    let mut rows: Vec<(&Start, &Line)> = batch.iter().zip(lines).collect();
    rows.sort_by(|(a, _), (b, _)| key(a).cmp(&key(b)));
    let fresh = insert_keys(tx, &rows).await?;
    let mut once = fresh.clone();
    rows.retain(|(start, _)| once.remove(&start.state.saga_id.0));
    insert_sagas(tx, &rows).await?;
    let is_fresh = |start: &&Start| fresh.contains(&start.state.saga_id.0);
    let rest: Vec<&Start> = batch.iter().filter(|start| !is_fresh(start)).collect();
    let existing = existing(tx, &rest).await?;

    let mut counts = Counts::default();
    for start in batch {
        let counter = if is_fresh(&start) {
            "started"
        } else {
            "duplicate"
        };
        counts.add(&start.name, &start.order_type, counter, 1);
    }
    counts.write(tx).await?;
    Ok(existing)
}

/// In the order of the primary key of `saga_key`.
fn key(start: &Start) -> (&str, &str, &str, i32) {
    (
        &start.order.order_id,
        &start.order.tenant,
        &start.name,
        start.order.generation,
    )
}

/// The sagas whose keys were free. Whoever stores the same key at this moment is waited for.
async fn insert_keys(
    tx: &mut PgConnection,
    rows: &[(&Start, &Line)],
) -> Result<HashSet<Uuid>, sqlx::Error> {
    let ids: Vec<Uuid> = rows
        .iter()
        .map(|(start, _)| start.state.saga_id.0)
        .collect();
    let days: Vec<NaiveDate> = rows
        .iter()
        .map(|(start, _)| day(start.state.saga_id))
        .collect();
    let business_keys: Vec<&str> = rows
        .iter()
        .map(|(start, _)| &*start.order.order_id)
        .collect();
    let tenants: Vec<&str> = rows.iter().map(|(start, _)| &*start.order.tenant).collect();
    let names: Vec<&str> = rows.iter().map(|(start, _)| &*start.name).collect();
    let generations: Vec<i32> = rows
        .iter()
        .map(|(start, _)| start.order.generation)
        .collect();
    let fresh = sqlx::query_scalar!(
        "insert into lapse.saga_key (business_key, tenant, definition, generation, day, saga_id)
         select t.business_key, t.tenant, t.definition, t.generation, t.day, t.saga_id
         from unnest($1::text[], $2::text[], $3::text[], $4::integer[], $5::date[], $6::uuid[])
           as t (business_key, tenant, definition, generation, day, saga_id)
         on conflict do nothing
         returning saga_id",
        &business_keys as _,
        &tenants as _,
        &names as _,
        &generations,
        &days,
        &ids
    )
    .fetch_all(tx)
    .await?;
    Ok(fresh.into_iter().collect())
}

async fn insert_sagas(tx: &mut PgConnection, rows: &[(&Start, &Line)]) -> Result<(), sqlx::Error> {
    if rows.is_empty() {
        return Ok(());
    }
    let column = |of: fn(&Start) -> &str| {
        rows.iter()
            .map(|(start, _)| of(start))
            .collect::<Vec<&str>>()
    };
    let columns = Columns::of(rows.iter().map(|(start, _)| &start.state));
    let generations: Vec<i32> = rows
        .iter()
        .map(|(start, _)| start.order.generation)
        .collect();
    let due_ats: Vec<Option<Timestamp>> = rows.iter().map(|(start, _)| start.due_at).collect();
    let entries: Vec<&str> = rows.iter().map(|(_, line)| line.text.as_str()).collect();
    let hashes: Vec<&[u8]> = rows.iter().map(|(_, line)| line.hash.as_slice()).collect();
    sqlx::query_file!(
        "src/store/pg/start.sql",
        &columns.saga_ids,
        &columns.days,
        &column(|start| &start.name) as _,
        &column(|start| start.definition.as_str()) as _,
        &column(|start| &start.order.tenant) as _,
        &column(|start| &start.order.order_id) as _,
        &generations,
        &column(|start| &start.order_type) as _,
        &columns.causes as _,
        &columns.steps as _,
        &columns.directions as _,
        &columns.phases as _,
        &columns.attempts as _,
        &columns.wake_ats as _,
        &due_ats as _,
        &columns.bodies,
        &hashes as _,
        &entries as _
    )
    .execute(tx)
    .await?;
    Ok(())
}

async fn existing(
    tx: &mut PgConnection,
    rest: &[&Start],
) -> Result<HashMap<SagaId, SagaId>, Abort> {
    if rest.is_empty() {
        return Ok(HashMap::new());
    }
    let ids: Vec<Uuid> = rest.iter().map(|start| start.state.saga_id.0).collect();
    let business_keys: Vec<&str> = rest
        .iter()
        .map(|start| start.order.order_id.as_str())
        .collect();
    let tenants: Vec<&str> = rest
        .iter()
        .map(|start| start.order.tenant.as_str())
        .collect();
    let names: Vec<&str> = rest.iter().map(|start| &*start.name).collect();
    let generations: Vec<i32> = rest.iter().map(|start| start.order.generation).collect();
    let found = sqlx::query!(
        r#"select t.saga_id as "given!", k.saga_id
           from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::integer[])
             as t (saga_id, business_key, tenant, definition, generation)
           join lapse.saga_key as k using (business_key, tenant, definition, generation)"#,
        &ids,
        &business_keys as _,
        &tenants as _,
        &names as _,
        &generations
    )
    .fetch_all(tx)
    .await?;
    if found.len() != rest.len() {
        return Err(Error::Defect(format!(
            "{} of {} existing saga keys were found",
            found.len(),
            rest.len()
        ))
        .into());
    }
    Ok(found
        .into_iter()
        .map(|row| (SagaId(row.given), SagaId(row.saga_id)))
        .collect())
}
