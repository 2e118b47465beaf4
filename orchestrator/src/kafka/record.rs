//! A record as it is held: raw bytes, when it is due, and how far it has come.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use chrono::TimeDelta;
use lapse_sagas::order_event::parse_due_header;
use lapse_sagas::{Span, Timestamp};
use rdkafka::Message;
use rdkafka::message::{BorrowedMessage, Header, Headers, OwnedHeaders};

use crate::bus::{BadRecord, DueTime, Origin, Ripe};
use crate::timer::Stay;

/// Due time, epoch milliseconds; wins over the value.
pub const DUE_HEADER: &str = "lapse-due-at-ms";

/// Hops so far.
pub const HOPS_HEADER: &str = "lapse-hops";

/// Time of the last hop by the coordinators' clock, epoch milliseconds.
pub const HOPPED_AT_HEADER: &str = "lapse-hopped-at-ms";

/// A due time longer ago is taken for a mistake. Topics keep records for their delay and 7 days more.
const OLDEST: TimeDelta = TimeDelta::days(30);

/// What keeping a record costs beside its bytes.
const OVERHEAD_BYTES: usize = 256;

/// Header name and raw value; Kafka allows none.
type RawHeader = (String, Option<Vec<u8>>);

/// A timer record.
#[derive(Debug)]
pub(super) struct Record {
    pub key: Option<Vec<u8>>,
    pub value: Arc<[u8]>,
    pub headers: Vec<RawHeader>,
    pub appended_at: Timestamp,
    pub due: Result<Timestamp, BadRecord>,
    pub stay: Stay,
}

impl Record {
    /// Copies a message and works out its due time; none for a tombstone.
    pub fn read(
        message: &BorrowedMessage<'_>,
        bucket: Option<Span>,
        due_time: &DueTime,
        now: Timestamp,
    ) -> Option<Record> {
        let value: Arc<[u8]> = message.payload()?.into();
        let key = message.key().map(<[u8]>::to_vec);
        let appended_at = message
            .timestamp()
            .to_millis()
            .and_then(Timestamp::from_timestamp_millis)
            .unwrap_or(now);
        let (headers, due) = match read_headers(message) {
            Ok(headers) => {
                let due = match text(&headers, DUE_HEADER) {
                    Some(text) => parse_due(&text, now),
                    None => due_time(&value, bucket, appended_at, now),
                };
                (headers, due)
            }
            Err(bad) => (Vec::new(), Err(bad)),
        };
        let hopped_at = text(&headers, HOPPED_AT_HEADER)
            .and_then(|text| text.parse().ok())
            .and_then(Timestamp::from_timestamp_millis);
        let hops = text(&headers, HOPS_HEADER)
            .and_then(|text| text.parse().ok())
            .unwrap_or(0);
        let stay = Stay {
            bucket,
            entered: hopped_at.unwrap_or(appended_at),
            hops,
        };
        Some(Record {
            key,
            value,
            headers,
            appended_at,
            due,
            stay,
        })
    }

    /// What it costs to keep.
    pub fn bytes(&self) -> usize {
        let headers: usize = self
            .headers
            .iter()
            .map(|(name, value)| name.len() + value.as_ref().map_or(0, Vec::len))
            .sum();
        self.key.as_ref().map_or(0, Vec::len) + self.value.len() + headers + OVERHEAD_BYTES
    }

    /// For handing out.
    pub fn into_ripe(self, origin: Origin) -> Ripe {
        let as_text = |(name, value): RawHeader| {
            (
                name,
                String::from_utf8_lossy(&value.unwrap_or_default()).into_owned(),
            )
        };
        Ripe {
            origin,
            key: self.key,
            value: self.value,
            headers: self.headers.into_iter().map(as_text).collect(),
            appended_at: self.appended_at,
            due: self.due,
        }
    }

    /// A handed-out record again. It is not moved any more, so its headers only have to be readable.
    pub fn from_ripe(ripe: Ripe) -> Record {
        let entered = ripe.due.as_ref().map_or(Timestamp::UNIX_EPOCH, |due| *due);
        Record {
            key: ripe.key,
            value: ripe.value,
            headers: ripe
                .headers
                .into_iter()
                .map(|(name, value)| (name, Some(value.into_bytes())))
                .collect(),
            appended_at: ripe.appended_at,
            due: ripe.due,
            stay: Stay {
                bucket: None,
                entered,
                hops: 0,
            },
        }
    }

    /// Its headers with the due time fixed and one more hop; foreign ones as they are.
    pub fn headers_after_hop(&self, due: Timestamp, now: Timestamp) -> OwnedHeaders {
        let own = [DUE_HEADER, HOPS_HEADER, HOPPED_AT_HEADER];
        let foreign = self
            .headers
            .iter()
            .filter(|(name, _)| !own.contains(&name.as_str()));
        let add = |headers: OwnedHeaders, (key, value): &RawHeader| {
            headers.insert(Header {
                key,
                value: value.as_deref(),
            })
        };
        let headers = foreign.fold(
            OwnedHeaders::new_with_capacity(self.headers.len() + own.len()),
            add,
        );
        let added =
            |name: &str, number: i64| (name.to_string(), Some(number.to_string().into_bytes()));
        [
            added(DUE_HEADER, ceil_ms(due)),
            added(HOPS_HEADER, i64::from(self.stay.hops) + 1),
            added(HOPPED_AT_HEADER, ceil_ms(now)),
        ]
        .iter()
        .fold(headers, add)
    }
}

/// All headers, raw. The client panics on a header name that isn't UTF-8, so that is caught here.
fn read_headers(message: &BorrowedMessage<'_>) -> Result<Vec<RawHeader>, BadRecord> {
    let Some(headers) = message.headers() else {
        return Ok(Vec::new());
    };
    let copy = || {
        headers
            .iter()
            .map(|header| (header.key.to_string(), header.value.map(<[u8]>::to_vec)))
            .collect()
    };
    catch_unwind(AssertUnwindSafe(copy)).map_err(|_| {
        bad(
            "header_not_text",
            "the name of a header is not UTF-8; name headers in plain text".into(),
        )
    })
}

/// The last header of that name, if it has a value.
fn text(headers: &[RawHeader], name: &str) -> Option<String> {
    let (_, value) = headers.iter().rfind(|(key, _)| key == name)?;
    Some(String::from_utf8_lossy(value.as_ref()?).into_owned())
}

/// A due header's time. What lies too far ahead is refused later, with what the buckets reach.
///
/// # Errors
/// `bad_time`, `time_unit`, `time_range`.
pub fn parse_due(text: &str, now: Timestamp) -> Result<Timestamp, BadRecord> {
    let due = parse_due_header(text).map_err(|event| bad(event.reason, event.detail))?;
    if due < now - OLDEST {
        return Err(bad(
            "time_range",
            format!("header {DUE_HEADER} is {text}, which is {due}, over 30 days ago"),
        ));
    }
    Ok(due)
}

fn bad(reason: &'static str, detail: String) -> BadRecord {
    BadRecord { reason, detail }
}

/// Epoch milliseconds, rounded up: never early.
fn ceil_ms(at: Timestamp) -> i64 {
    let floor = at.timestamp_millis();
    if at.timestamp_subsec_nanos().is_multiple_of(1_000_000) {
        floor
    } else {
        floor + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_times_are_rounded_up() {
        let exact = Timestamp::from_timestamp_millis(1_700_000_000_123).expect("in range");
        assert_eq!(ceil_ms(exact), 1_700_000_000_123);
        assert_eq!(
            ceil_ms(exact + TimeDelta::microseconds(1)),
            1_700_000_000_124
        );
    }

    #[test]
    fn a_due_header_is_milliseconds_or_refused_with_words() {
        let now = Timestamp::from_timestamp_millis(1_700_000_000_000).expect("in range");
        assert_eq!(
            parse_due("1700000000123", now)
                .expect("good")
                .timestamp_millis(),
            1_700_000_000_123
        );
        for (text, reason) in [
            ("soon", "bad_time"),
            ("1700000000", "time_unit"),
            ("1500000000000", "time_range"),
        ] {
            assert_eq!(parse_due(text, now).expect_err(text).reason, reason);
        }
    }
}
