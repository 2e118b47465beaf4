//! Counters by minute, one set of rows per writing connection. Always the last statement of its transaction.

use std::collections::BTreeMap;

use sqlx::PgConnection;

use crate::store::Error;
use crate::store::db::Db;

/// What to add, by definition, order type and counter.
#[derive(Default)]
pub struct Counts(BTreeMap<(String, String, String), i64>);

impl Counts {
    pub fn add(&mut self, definition: &str, order_type: &str, counter: &str, by: i64) {
        *self
            .0
            .entry((
                definition.to_owned(),
                order_type.to_owned(),
                counter.to_owned(),
            ))
            .or_default() += by;
    }

    pub async fn write(self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        if self.0.is_empty() {
            return Ok(());
        }
        let mut definitions = Vec::new();
        let mut order_types = Vec::new();
        let mut counters = Vec::new();
        let mut by = Vec::new();
        for ((definition, order_type, counter), n) in self.0 {
            definitions.push(definition);
            order_types.push(order_type);
            counters.push(counter);
            by.push(n);
        }
        sqlx::query!(
            "insert into lapse.rollup_minute as r (minute, definition, order_type, counter, writer, n)
             select date_trunc('minute', statement_timestamp(), 'UTC'), t.definition, t.order_type, t.counter, pg_backend_pid(), t.n
             from unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) as t (definition, order_type, counter, n)
             on conflict (minute, definition, order_type, counter, writer) do update set n = r.n + excluded.n",
            &definitions,
            &order_types,
            &counters,
            &by
        )
        .execute(connection)
        .await?;
        Ok(())
    }
}

pub async fn count(db: &Db, definition: &str, counter: &str, by: i64) -> Result<(), Error> {
    let (definition, counter) = (definition.to_owned(), counter.to_owned());
    db.statement(move |connection| {
        let mut counts = Counts::default();
        counts.add(&definition, "", &counter, by);
        Box::pin(async move { Ok(counts.write(connection).await?) })
    })
    .await
}
