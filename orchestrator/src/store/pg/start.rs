//! Starting sagas: key, row, first history entry and counters in one transaction.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use lapse_sagas::{SagaId, Timestamp, transition};
use sqlx::PgConnection;
use uuid::Uuid;

use super::columns::Columns;
use super::rollup::Counts;
use crate::store::db::{Abort, Db};
use crate::store::history::Line;
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
    let stored = insert(tx, &rows).await?;
    let rest: Vec<&Start> = batch
        .iter()
        .filter(|start| !stored.contains(&start.state.saga_id.0))
        .collect();
    let existing = if rest.is_empty() {
        HashMap::new()
    } else {
        existing(tx, &rest).await?
    };

    let mut counts = Counts::default();
    for start in batch {
        let counter = if stored.contains(&start.state.saga_id.0) {
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

async fn insert(
    tx: &mut PgConnection,
    rows: &[(&Start, &Line)],
) -> Result<HashSet<Uuid>, sqlx::Error> {
    let column = |of: fn(&Start) -> &str| {
        rows.iter()
            .map(|(start, _)| of(start))
            .collect::<Vec<&str>>()
    };
    let columns = Columns::of(rows.iter().map(|(start, _)| &start.state));
    let names = column(|start| &start.name);
    let hashes = column(|start| start.definition.as_str());
    let tenants = column(|start| &start.order.tenant);
    let business_keys = column(|start| &start.order.order_id);
    let order_types = column(|start| &start.order_type);
    let generations: Vec<i32> = rows
        .iter()
        .map(|(start, _)| start.order.generation)
        .collect();
    let due_ats: Vec<Option<Timestamp>> = rows.iter().map(|(start, _)| start.due_at).collect();
    let entries: Vec<&str> = rows.iter().map(|(_, line)| line.text.as_str()).collect();
    let history_hashes: Vec<&[u8]> = rows.iter().map(|(_, line)| line.hash.as_slice()).collect();
    let stored = sqlx::query_file_scalar!(
        "src/store/pg/start.sql",
        &columns.saga_ids,
        &columns.days,
        &names as _,
        &hashes as _,
        &tenants as _,
        &business_keys as _,
        &generations,
        &order_types as _,
        &columns.causes as _,
        &columns.steps as _,
        &columns.directions as _,
        &columns.phases as _,
        &columns.attempts as _,
        &columns.wake_ats as _,
        &due_ats as _,
        &columns.bodies,
        &entries as _,
        &history_hashes as _
    )
    .fetch_all(tx)
    .await?;
    Ok(stored.into_iter().collect())
}

async fn existing(
    tx: &mut PgConnection,
    rest: &[&Start],
) -> Result<HashMap<SagaId, SagaId>, Abort> {
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
