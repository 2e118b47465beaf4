//! Definitions by hash, and the one set of active ones.

use std::sync::Arc;

use lapse_sagas::definition::Body;
use lapse_sagas::{Definition, DefinitionHash};
use sqlx::PgConnection;

use crate::store::db::{Abort, Db};
use crate::store::text::json_text;
use crate::store::{ActiveSet, Error};

pub async fn deploy(db: &Db, definitions: &[Arc<Definition>]) -> Result<ActiveSet, Error> {
    let definitions = Arc::new(definitions.to_vec());
    db.tx(move |tx| {
        let definitions = Arc::clone(&definitions);
        Box::pin(async move {
            // Whoever deploys waits here for whoever deployed before.
            sqlx::query!("select version from lapse.active_set for update")
                .fetch_one(&mut *tx)
                .await?;
            add(tx, &definitions).await?;
            load_active(tx).await?.refuse_overlaps(&definitions)?;
            activate(tx, &definitions).await?;
            load_active(tx).await
        })
    })
    .await
}

pub async fn active(db: &Db) -> Result<ActiveSet, Error> {
    db.statement(|connection| Box::pin(load_active(connection)))
        .await
}

pub async fn by_hash(db: &Db, hashes: &[DefinitionHash]) -> Result<Vec<Arc<Definition>>, Error> {
    let hashes: Arc<[String]> = hashes.iter().map(|hash| hash.as_str().to_owned()).collect();
    db.statement(move |connection| {
        let hashes = Arc::clone(&hashes);
        Box::pin(async move {
            let rows = sqlx::query!(
                r#"select d.hash, d.text, d.body::text as "body!" from lapse.definition as d
                   where d.hash = any($1) order by d.name, d.version"#,
                &hashes[..]
            );
            let rows = rows.fetch_all(connection).await?;
            let definitions = rows
                .into_iter()
                .map(|row| definition(&row.hash, &row.text, &row.body));
            Ok(definitions.collect::<Result<_, _>>()?)
        })
    })
    .await
}

async fn add(tx: &mut PgConnection, definitions: &[Arc<Definition>]) -> Result<(), Abort> {
    let hashes: Vec<&str> = definitions
        .iter()
        .map(|definition| definition.hash.as_str())
        .collect();
    let names: Vec<&str> = definitions
        .iter()
        .map(|definition| definition.name())
        .collect();
    let versions: Vec<i32> = definitions
        .iter()
        .map(|definition| i32::try_from(definition.body.version).unwrap_or(i32::MAX))
        .collect();
    let texts: Vec<&str> = definitions
        .iter()
        .map(|definition| &*definition.text)
        .collect();
    let bodies: Vec<String> = definitions
        .iter()
        .map(|definition| json_text(&definition.body))
        .collect();
    let repeats_ms: Vec<i64> = definitions
        .iter()
        .map(|definition| {
            i64::try_from(definition.body.alert_repeat.as_millis()).unwrap_or(i64::MAX)
        })
        .collect();
    sqlx::query!(
        "insert into lapse.definition (hash, name, version, text, body, alert_repeat_ms)
         select t.hash, t.name, t.version, t.text, t.body::json, t.alert_repeat_ms
         from unnest($1::text[], $2::text[], $3::integer[], $4::text[], $5::text[], $6::bigint[])
           as t (hash, name, version, text, body, alert_repeat_ms)
         on conflict do nothing",
        &hashes as _,
        &names as _,
        &versions,
        &texts as _,
        &bodies,
        &repeats_ms
    )
    .execute(&mut *tx)
    .await?;
    let taken = sqlx::query!(
        r#"select t.name as "name!", t.version as "version!"
           from unnest($1::text[], $2::text[], $3::integer[]) as t (hash, name, version)
           join lapse.definition as d on d.name = t.name and d.version = t.version
           where d.hash <> t.hash order by t.name limit 1"#,
        &hashes as _,
        &names as _,
        &versions
    )
    .fetch_optional(tx)
    .await?;
    match taken {
        Some(taken) => Err(Error::VersionTaken {
            name: taken.name,
            version: taken.version.unsigned_abs(),
        }
        .into()),
        None => Ok(()),
    }
}

/// The version of the set is raised only if the set changes.
async fn activate(tx: &mut PgConnection, definitions: &[Arc<Definition>]) -> Result<(), Abort> {
    let hashes: Vec<&str> = definitions
        .iter()
        .map(|definition| definition.hash.as_str())
        .collect();
    let names: Vec<&str> = definitions
        .iter()
        .map(|definition| definition.name())
        .collect();
    sqlx::query!(
        "with changed as (
           insert into lapse.active_definition as a (name, hash)
           select t.name, t.hash from unnest($1::text[], $2::text[]) as t (name, hash)
           on conflict (name) do update set hash = excluded.hash where a.hash <> excluded.hash
           returning name
         )
         update lapse.active_set set version = version + 1 where exists (select from changed)",
        &names as _,
        &hashes as _
    )
    .execute(tx)
    .await?;
    Ok(())
}

async fn load_active(connection: &mut PgConnection) -> Result<ActiveSet, Abort> {
    let rows = sqlx::query!(
        r#"select s.version, d.hash as "hash?", d.text as "text?", d.body::text as body
           from lapse.active_set as s
           left join lapse.active_definition as a on true
           left join lapse.definition as d on d.hash = a.hash
           order by d.name"#
    )
    .fetch_all(connection)
    .await?;
    let mut set = ActiveSet::default();
    for row in rows {
        set.version = row.version;
        if let (Some(hash), Some(text), Some(body)) = (row.hash, row.text, row.body) {
            set.definitions.push(definition(&hash, &text, &body)?);
        }
    }
    Ok(set)
}

/// As it was understood when it was deployed; the rules for new ones may be stricter by now.
fn definition(hash: &str, text: &str, body: &str) -> Result<Arc<Definition>, Error> {
    let body: Body = serde_json::from_str(body)
        .map_err(|error| Error::Defect(format!("read definition {hash}: {error}")))?;
    Ok(Arc::new(Definition {
        hash: hash.into(),
        text: text.into(),
        body,
        warnings: Vec::new(),
    }))
}
