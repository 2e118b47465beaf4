//! Messages to Kafka: the outbox, and dead letters, which are rows first and messages second.

use std::collections::HashSet;
use std::sync::Arc;

use lapse_sagas::Timestamp;
use sqlx::PgConnection;

use super::rollup::Counts;
use crate::store::consequence::{dead_letter_message, digest};
use crate::store::db::{Abort, Db};
use crate::store::text::{json_text, storable};
use crate::store::{DeadLetter, Error, OutboxMessage};

/// Puts messages into the outbox: keys and payloads.
pub async fn put(
    tx: &mut PgConnection,
    topic: &str,
    messages: Vec<(String, String)>,
) -> Result<(), sqlx::Error> {
    if messages.is_empty() {
        return Ok(());
    }
    let (keys, payloads): (Vec<String>, Vec<String>) = messages.into_iter().unzip();
    sqlx::query!(
        "insert into lapse.outbox (topic, key, payload)
         select $1, t.key, t.payload from unnest($2::text[], $3::text[]) as t (key, payload)",
        topic,
        &keys,
        &payloads
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// The claim outlasts the producer's patience (10 s for room in its queue, 30 s for the delivery report): during an
/// outage nobody else sends the same again.
pub async fn claim_outbox(db: &Db, limit: u32) -> Result<Vec<OutboxMessage>, Error> {
    db.statement(move |connection| {
        Box::pin(async move {
            let claimed = sqlx::query_as!(
                OutboxMessage,
                "with free as (
                   select id from lapse.outbox where claimed_until <= statement_timestamp()
                   order by id limit $1 for update skip locked
                 )
                 update lapse.outbox as o set claimed_until = statement_timestamp() + interval '45 seconds'
                 from free where o.id = free.id
                 returning o.id, o.topic, o.key, o.payload",
                i64::from(limit)
            );
            let mut messages = claimed.fetch_all(connection).await?;
            messages.sort_by_key(|message| message.id);
            Ok(messages)
        })
    })
    .await
}

pub async fn delete_outbox(db: &Db, ids: &[i64]) -> Result<(), Error> {
    if ids.is_empty() {
        return Ok(());
    }
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    let ids: Arc<[i64]> = ids.into();
    db.statement(move |connection| {
        let ids = Arc::clone(&ids);
        Box::pin(async move {
            sqlx::query!("delete from lapse.outbox where id = any($1)", &ids[..])
                .execute(connection)
                .await?;
            Ok(())
        })
    })
    .await
}

pub async fn dead_letter(db: &Db, batch: Vec<DeadLetter>) -> Result<(), Error> {
    if batch.is_empty() {
        return Ok(());
    }
    let mut batch = batch;
    batch.sort_by(|a, b| (&a.topic, a.partition, a.offset).cmp(&(&b.topic, b.partition, b.offset)));
    let batch: Arc<[DeadLetter]> = batch.into();
    db.tx(move |tx| {
        let batch = Arc::clone(&batch);
        Box::pin(async move { write(tx, &batch).await })
    })
    .await
}

async fn write(tx: &mut PgConnection, batch: &[DeadLetter]) -> Result<(), Abort> {
    let digests: Vec<[u8; 32]> = batch.iter().map(digest).collect();
    let mut stored = insert(tx, batch, &digests).await?;
    let fresh: Vec<&DeadLetter> = batch
        .iter()
        .zip(&digests)
        .filter(|(letter, digest)| {
            stored.remove(&(
                letter.topic.clone(),
                letter.partition,
                letter.offset,
                digest.to_vec(),
            ))
        })
        .map(|(letter, _)| letter)
        .collect();
    let messages = fresh
        .iter()
        .map(|letter| dead_letter_message(letter))
        .collect();
    put(tx, "dead-letters", messages).await?;
    let mut counts = Counts::default();
    for _ in &fresh {
        counts.add("", "", "dead_letter", 1);
    }
    counts.write(tx).await?;
    Ok(())
}

/// Topic, partition, offset, digest.
type Place = (String, i32, i64, Vec<u8>);

/// The places of those that were not there yet.
async fn insert(
    tx: &mut PgConnection,
    batch: &[DeadLetter],
    digests: &[[u8; 32]],
) -> Result<HashSet<Place>, sqlx::Error> {
    let topics: Vec<&str> = batch.iter().map(|letter| letter.topic.as_str()).collect();
    let partitions: Vec<i32> = batch.iter().map(|letter| letter.partition).collect();
    let offsets: Vec<i64> = batch.iter().map(|letter| letter.offset).collect();
    let digests: Vec<&[u8]> = digests.iter().map(|digest| digest.as_slice()).collect();
    let keys: Vec<Option<&[u8]>> = batch.iter().map(|letter| letter.key.as_deref()).collect();
    let values: Vec<Option<&[u8]>> = batch.iter().map(|letter| letter.value.as_deref()).collect();
    let headers: Vec<String> = batch
        .iter()
        .map(|letter| json_text(&letter.headers))
        .collect();
    let whole_bytes: Vec<i32> = batch
        .iter()
        .map(|letter| i32::try_from(letter.whole_bytes).unwrap_or(i32::MAX))
        .collect();
    let appended_ats: Vec<Timestamp> = batch.iter().map(|letter| letter.appended_at).collect();
    let reasons: Vec<_> = batch
        .iter()
        .map(|letter| storable(&letter.reason).into_owned())
        .collect();
    let details: Vec<_> = batch
        .iter()
        .map(|letter| storable(&letter.detail).into_owned())
        .collect();
    let stored = sqlx::query!(
        r#"insert into lapse.dead_letter (topic, partition, "offset", digest, key, value, headers, reason, detail,
             whole_bytes, appended_at)
           select t.topic, t.partition, t."offset", t.digest, t.key, t.value, t.headers::json, t.reason, t.detail,
             t.whole_bytes, t.appended_at
           from unnest($1::text[], $2::integer[], $3::bigint[], $4::bytea[], $5::bytea[], $6::bytea[], $7::text[],
             $8::text[], $9::text[], $10::integer[], $11::timestamptz[])
             as t (topic, partition, "offset", digest, key, value, headers, reason, detail, whole_bytes, appended_at)
           on conflict do nothing
           returning topic, partition, "offset", digest"#,
        &topics as _,
        &partitions,
        &offsets,
        &digests as _,
        &keys as _,
        &values as _,
        &headers,
        &reasons,
        &details,
        &whole_bytes,
        &appended_ats
    )
    .fetch_all(tx)
    .await?;
    Ok(stored
        .into_iter()
        .map(|row| (row.topic, row.partition, row.offset, row.digest))
        .collect())
}
