//! A planted bug, for proving that the crash test would find it. Only with the feature `planted`, and only if asked for
//! by `LAPSE_PLANT=no_fence`: then a move is written whatever the row's version.

use std::sync::Arc;

use chrono::NaiveDate;
use sqlx::PgConnection;
use uuid::Uuid;

use super::Move;
use super::schema::day;

/// The batch, with versions that pass the fence if the bug is planted.
pub async fn unfenced(
    tx: &mut PgConnection,
    batch: Arc<Vec<Move>>,
) -> Result<Arc<Vec<Move>>, sqlx::Error> {
    if std::env::var("LAPSE_PLANT").as_deref() != Ok("no_fence") {
        return Ok(batch);
    }
    let ids: Vec<Uuid> = batch.iter().map(|moved| moved.saga.id.0).collect();
    let days: Vec<NaiveDate> = batch.iter().map(|moved| day(moved.saga.id)).collect();
    let rows = sqlx::query!(
        "select s.saga_id, s.version from unnest($1::date[], $2::uuid[]) as t (day, saga_id)
         join lapse.saga as s on s.day = t.day and s.saga_id = t.saga_id order by s.saga_id for update of s",
        &days,
        &ids
    )
    .fetch_all(tx)
    .await?;
    let mut batch = batch.to_vec();
    for moved in &mut batch {
        if let Some(row) = rows.iter().find(|row| row.saga_id == moved.saga.id.0) {
            moved.saga.version = row.version;
        }
    }
    Ok(Arc::new(batch))
}
