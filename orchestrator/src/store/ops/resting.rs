//! Sagas that wait for an operator, chosen by what they stopped at.
//!
//! Relies on alerts: each parked or compensated saga is a member of one of its state's kind until it is settled.
//! Never: changes anything.

use lapse_sagas::{SagaId, Timestamp};
use serde::Serialize;
use uuid::Uuid;

use super::Ops;
use crate::store::Error;
use crate::store::schema::day;

/// Which parked or compensated sagas; the oldest first.
#[derive(Clone, Debug, Default)]
pub struct Resting {
    /// `parked` or `compensated`; none: both.
    pub state: Option<String>,
    /// Only of this definition.
    pub definition: Option<String>,
    /// Only of this tenant.
    pub tenant: Option<String>,
    /// Only those that stopped at this step.
    pub step: Option<String>,
    /// Only those with this error class.
    pub class: Option<String>,
    /// Only members of this alert.
    pub alert: Option<String>,
    /// Only those younger than this one: the last of the page before.
    pub after: Option<SagaId>,
    /// At most so many.
    pub limit: u32,
}

/// A saga that waits for an operator.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct RestingRow {
    pub saga_id: Uuid,
    pub definition: String,
    pub tenant: String,
    pub order_id: String,
    pub generation: i32,
    pub state: String,
    pub reason: Option<String>,
    pub updated_at: Timestamp,
}

impl Ops {
    /// One page of sagas that wait for an operator.
    ///
    /// # Errors
    /// As Postgres says.
    pub async fn resting(&self, filter: Resting) -> Result<Vec<RestingRow>, Error> {
        self.db
            .read(move |tx| {
                let filter = filter.clone();
                Box::pin(async move {
                    let rows = sqlx::query_as!(
                        RestingRow,
                        r#"select s.saga_id as "saga_id!", s.definition as "definition!", s.tenant as "tenant!",
                             s.order_id as "order_id!", s.generation as "generation!", s.state as "state!", s.reason,
                             s.updated_at as "updated_at!"
                           from ops_v1.saga_list as s
                           where s.state in ('parked', 'compensated') and ($1::text is null or s.state = $1)
                             and ($2::text is null or s.definition = $2) and ($3::text is null or s.tenant = $3)
                             and ($4::date is null or (s.day, s.saga_id) > ($4, $5::uuid))
                             and exists (
                               select from ops_v1.alert_sagas as m
                               join ops_v1.alerts as a on a.fingerprint = m.fingerprint and a.kind = s.state
                               where m.saga_id = s.saga_id and m.settled_at is null
                                 and ($6::text is null or a.step = $6) and ($7::text is null or a.class = $7)
                                 and ($8::text is null or a.fingerprint = $8))
                           order by s.day, s.saga_id limit $9"#,
                        filter.state,
                        filter.definition,
                        filter.tenant,
                        filter.after.map(day),
                        filter.after.map(|after| after.0),
                        filter.step,
                        filter.class,
                        filter.alert,
                        i64::from(filter.limit)
                    );
                    Ok(rows.fetch_all(tx).await?)
                })
            })
            .await
    }
}
