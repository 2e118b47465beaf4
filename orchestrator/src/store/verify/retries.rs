//! When operators had sagas tried again, as their histories say: an order that a human left lying is not late by that.

use std::collections::HashMap;

use lapse_sagas::event::Entry;
use lapse_sagas::{SagaId, Timestamp};

use crate::store::Error;
use crate::store::db::Db;
use crate::store::schema::day;

/// The times of the retries of these sagas, each saga's in order.
///
/// # Errors
/// As Postgres says.
pub async fn of(db: &Db, sagas: Vec<SagaId>) -> Result<HashMap<SagaId, Vec<Timestamp>>, Error> {
    db.read(move |tx| {
        let days: Vec<_> = sagas.iter().copied().map(day).collect();
        let ids: Vec<_> = sagas.iter().map(|saga| saga.0).collect();
        Box::pin(async move {
            let rows = sqlx::query!(
                "select h.saga_id, h.entry, h.at from unnest($1::date[], $2::uuid[]) as t (day, saga_id)
                 join lapse.history as h on h.day = t.day and h.saga_id = t.saga_id
                 where h.entry like '%\"retried\"%' order by h.saga_id, h.seq",
                &days,
                &ids
            );
            let mut retries: HashMap<SagaId, Vec<Timestamp>> = HashMap::new();
            for row in rows.fetch_all(tx).await? {
                let entry = serde_json::from_str::<Entry>(&row.entry);
                if entry.is_ok_and(|entry| entry.kind == "retried") {
                    retries.entry(SagaId(row.saga_id)).or_default().push(row.at);
                }
            }
            Ok(retries)
        })
    })
    .await
}
