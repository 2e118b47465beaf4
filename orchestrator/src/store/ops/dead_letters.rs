//! Dead letters as people work on them: looked at, grouped, closed.
//!
//! Relies on `ops_v1.dead_letters` to read and on the state of a letter as the fence of every change. Never: decides
//! whether a letter can become a saga ([`crate::replay`] does), removes a row.

use lapse_sagas::{SagaId, Timestamp};
use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use super::{MAX_LIMIT, Ops};
use crate::store::Error;
use crate::store::text::storable;

/// After so many replays in vain a letter is quarantined.
const QUARANTINED_AFTER: i32 = 3;

/// Which dead letters, the newest first.
#[derive(Clone, Debug, Default)]
pub struct LetterFilter {
    /// Of `open`, `replayed`, `quarantined`, `discarded`; none: all.
    pub states: Vec<String>,
    /// Only of this topic, by its full name.
    pub topic: Option<String>,
    /// Only with this reason.
    pub reason: Option<String>,
    /// Only those buried since.
    pub since: Option<Timestamp>,
    /// Only those older than this one: the last of the page before.
    pub before: Option<i64>,
    /// At most so many, at most 1,000.
    pub limit: u32,
}

impl LetterFilter {
    /// What a state that is asked for stands for: `all`, `waiting` (open and quarantined), or itself.
    pub fn states_named(name: &str) -> Vec<String> {
        match name {
            "all" => Vec::new(),
            "waiting" => vec!["open".to_owned(), "quarantined".to_owned()],
            state => vec![state.to_owned()],
        }
    }
}

/// One row of `ops_v1.dead_letters`, which says what is what.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct DeadLetterRow {
    pub id: i64,
    pub at: Timestamp,
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    pub reason: String,
    pub detail: String,
    pub key: Option<String>,
    pub value: Option<String>,
    pub value_bytes: Option<i32>,
    pub headers: Value,
    pub state: String,
    pub replays: i32,
    pub last_error: Option<String>,
    pub resolved_by: Option<String>,
    pub resolved_at: Option<Timestamp>,
    pub note: Option<String>,
    pub saga_id: Option<Uuid>,
    pub appended_at: Option<Timestamp>,
    pub is_cut: bool,
}

/// A letter with its bytes.
#[derive(Clone, Debug)]
pub struct StoredLetter {
    /// All that is listed.
    pub row: DeadLetterRow,
    /// Raw key.
    pub raw_key: Option<Vec<u8>>,
    /// Raw value.
    pub raw_value: Option<Vec<u8>>,
}

/// Letters of one reason in one state.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct DeadLetterGroup {
    pub reason: String,
    pub state: String,
    pub letters: i64,
    pub newest_id: i64,
    pub newest_at: Timestamp,
    pub newest_detail: String,
}

/// How many letters are in a state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct LettersByState {
    pub state: String,
    pub letters: i64,
}

/// What becomes of an open or quarantined letter.
#[derive(Clone, Debug)]
pub enum Closing {
    /// It has its saga.
    Replayed {
        /// New, or there before.
        saga_id: SagaId,
    },
    /// It was refused again; the third time it is quarantined.
    Refused {
        /// Reason and detail.
        error: String,
    },
    /// Nobody needs it.
    Discarded {
        /// Why.
        note: String,
    },
}

/// `ops_v1.dead_letters` as [`DeadLetterRow`], with what follows `from`.
macro_rules! letter_rows {
    ($tail:tt $(, $argument:expr)*) => {
        sqlx::query_as!(
            DeadLetterRow,
            r#"select d.id as "id!", d.at as "at!", d.topic as "topic!", d.partition as "partition!",
                 d."offset" as "offset!", d.reason as "reason!", d.detail as "detail!", d.key, d.value, d.value_bytes,
                 d.headers as "headers!", d.state as "state!", d.replays as "replays!", d.last_error, d.resolved_by,
                 d.resolved_at, d.note, d.saga_id, d.appended_at, d.is_cut as "is_cut!"
               from "# + $tail $(, $argument)*
        )
    };
}

impl Ops {
    /// Dead letters, the newest first, one page.
    ///
    /// # Errors
    /// As Postgres says; so for every method here.
    pub async fn dead_letters(&self, filter: LetterFilter) -> Result<Vec<DeadLetterRow>, Error> {
        self.db
            .read(move |tx| {
                let filter = filter.clone();
                Box::pin(async move {
                    let rows = letter_rows!(
                        "ops_v1.dead_letters as d
                         where (cardinality($1::text[]) = 0 or d.state = any($1)) and ($2::text is null or d.topic = $2)
                           and ($3::text is null or d.reason = $3) and ($4::timestamptz is null or d.at >= $4)
                           and ($5::bigint is null or d.id < $5)
                         order by d.id desc limit $6",
                        &filter.states,
                        filter.topic,
                        filter.reason,
                        filter.since,
                        filter.before,
                        i64::from(filter.limit.min(MAX_LIMIT))
                    );
                    Ok(rows.fetch_all(tx).await?)
                })
            })
            .await
    }

    /// The same letters by reason and state, most of them first.
    pub async fn dead_letter_groups(
        &self,
        filter: LetterFilter,
    ) -> Result<Vec<DeadLetterGroup>, Error> {
        self.db
            .read(move |tx| {
                let filter = filter.clone();
                Box::pin(async move {
                    let rows = sqlx::query_as!(
                        DeadLetterGroup,
                        r#"select g.reason as "reason!", g.state as "state!", g.letters as "letters!",
                             d.id as "newest_id!", d.at as "newest_at!", d.detail as "newest_detail!"
                           from (
                             select d.reason, d.state, count(*) as letters, max(d.id) as newest_id
                             from ops_v1.dead_letters as d
                             where (cardinality($1::text[]) = 0 or d.state = any($1)) and ($2::text is null or d.topic = $2)
                               and ($3::text is null or d.reason = $3) and ($4::timestamptz is null or d.at >= $4)
                             group by d.reason, d.state
                           ) as g
                           join ops_v1.dead_letters as d on d.id = g.newest_id
                           order by g.letters desc, g.reason, g.state limit $5"#,
                        &filter.states,
                        filter.topic,
                        filter.reason,
                        filter.since,
                        i64::from(filter.limit.min(MAX_LIMIT))
                    );
                    Ok(rows.fetch_all(tx).await?)
                })
            })
            .await
    }

    /// One letter with its bytes; none if there is none.
    pub async fn dead_letter(&self, id: i64) -> Result<Option<StoredLetter>, Error> {
        self.db
            .read(move |tx| {
                Box::pin(async move {
                    let row = letter_rows!("ops_v1.dead_letters as d where d.id = $1", id);
                    let Some(row) = row.fetch_optional(&mut *tx).await? else {
                        return Ok(None);
                    };
                    let bytes = sqlx::query!(
                        "select d.raw_key, d.raw_value from ops_v1.dead_letters as d where d.id = $1",
                        id
                    );
                    let bytes = bytes.fetch_one(tx).await?;
                    Ok(Some(StoredLetter {
                        row,
                        raw_key: bytes.raw_key,
                        raw_value: bytes.raw_value,
                    }))
                })
            })
            .await
    }

    /// Ids of the letters that a replay of all of them would take, the oldest first: a page after this one. Replies, under
    /// whatever prefix, are none of them.
    pub async fn dead_letter_ids(
        &self,
        filter: LetterFilter,
        after: i64,
    ) -> Result<Vec<i64>, Error> {
        self.db
            .read(move |tx| {
                let filter = filter.clone();
                Box::pin(async move {
                    let ids = sqlx::query_scalar!(
                        r#"select d.id as "id!" from ops_v1.dead_letters as d
                           where d.state in ('open', 'quarantined') and d.topic not like '%replies'
                             and (cardinality($1::text[]) = 0 or d.state = any($1))
                             and ($2::text is null or d.topic = $2) and ($3::text is null or d.reason = $3)
                             and ($4::timestamptz is null or d.at >= $4) and d.id > $5
                           order by d.id limit $6"#,
                        &filter.states,
                        filter.topic,
                        filter.reason,
                        filter.since,
                        after,
                        i64::from(filter.limit.min(MAX_LIMIT))
                    );
                    Ok(ids.fetch_all(tx).await?)
                })
            })
            .await
    }

    /// How many letters there are by state.
    pub async fn letters_by_state(&self) -> Result<Vec<LettersByState>, Error> {
        self.db
            .read(|tx| {
                Box::pin(async move {
                    let rows = sqlx::query_as!(
                        LettersByState,
                        r#"select s.state as "state!", count(d.state) as "letters!"
                           from unnest(array['open', 'replayed', 'quarantined', 'discarded']) as s (state)
                           left join ops_v1.dead_letters as d on d.state = s.state
                           group by s.state order by s.state"#
                    );
                    Ok(rows.fetch_all(tx).await?)
                })
            })
            .await
    }

    /// Writes down what became of a letter; its state afterwards, or none if it is neither open nor quarantined any more. One
    /// that was discarded while it was replayed is replayed: its saga is there.
    pub async fn close_letter(
        &self,
        id: i64,
        closing: Closing,
        actor: &str,
    ) -> Result<Option<String>, Error> {
        let actor = storable(actor).into_owned();
        let (state, saga_id, error, note) = match closing {
            Closing::Replayed { saga_id } => (Some("replayed"), Some(saga_id.0), None, None),
            Closing::Refused { error } => (None, None, Some(storable(&error).into_owned()), None),
            Closing::Discarded { note } => {
                let note = storable(&note).into_owned();
                (Some("discarded"), None, None, Some(note))
            }
        };
        self.db
            .tx(move |tx| {
                let (actor, error, note) = (actor.clone(), error.clone(), note.clone());
                Box::pin(async move {
                    let closed = sqlx::query_scalar!(
                        "update lapse.dead_letter as d
                         set state = coalesce($2, case when d.replays + 1 >= $6 then 'quarantined' else d.state end),
                           replays = d.replays + case when $2 is null then 1 else 0 end,
                           last_error = coalesce($4, d.last_error), saga_id = coalesce($3, d.saga_id),
                           note = coalesce($5, d.note),
                           resolved_by = case when $2 is null then d.resolved_by else $7 end,
                           resolved_at = case when $2 is null then d.resolved_at else statement_timestamp() end
                         where d.id = $1
                           and (d.state in ('open', 'quarantined') or d.state = 'discarded' and $2 = 'replayed')
                         returning d.state",
                        id,
                        state,
                        saga_id,
                        error,
                        note,
                        QUARANTINED_AFTER,
                        actor
                    );
                    Ok(closed.fetch_optional(tx).await?)
                })
            })
            .await
    }
}
