//! An order owner behind HTTP: `POST {base}/v1/overdue-orders` and `{base}/v1/paid-orders`.
//!
//! Relies on the owner's clock for what is due. Never: believes a page that does not go on where it was asked to, which
//! would be asked for for ever.

use std::time::Duration;

use async_trait::async_trait;
use lapse_participants::kit::{CallError, OrderKey, OrderOwner, Overdue};
use lapse_sagas::outcome::one_line;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tracing::warn;

use super::{Address, Endpoint, Request, WORDS_MAX};

/// An owner that takes longer is asked again by the next sweep.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Of an answer per order, beside as much for the whole.
const PER_ORDER: usize = 4 * 1024;

/// An order owner behind HTTP.
pub struct HttpOwner {
    name: String,
    endpoint: Endpoint,
    look_ahead: Duration,
}

impl HttpOwner {
    /// `name` as in definitions; it is asked so far ahead.
    ///
    /// # Errors
    /// If the address is none.
    pub fn new(name: &str, address: &Address, look_ahead: Duration) -> anyhow::Result<HttpOwner> {
        Ok(HttpOwner {
            name: name.to_owned(),
            endpoint: Endpoint::new(address)?,
            look_ahead,
        })
    }

    /// What can be read. Of a page of which nothing can the next one can't be asked for.
    fn readable(&self, page: Vec<Value>) -> Result<Vec<Overdue>, CallError> {
        let listed = page.len();
        let (mut readable, mut first) = (Vec::with_capacity(listed), None);
        for order in page {
            match serde_json::from_value(order) {
                Ok(order) => readable.push(order),
                Err(error) => first = first.or(Some(error.to_string())),
            }
        }
        let Some(error) = first else {
            return Ok(readable);
        };
        if readable.is_empty() {
            return Err(garbage(&format!("no order can be read: {error}")));
        }
        let orders = listed - readable.len();
        let owner = &self.name;
        warn!(
            owner,
            orders, error, "orders that can't be read are passed over; correct them where they are"
        );
        metrics::counter!("lapse_sweep_unreadable_rows_total", "owner" => owner.clone())
            .increment(orders as u64);
        Ok(readable)
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        path: &'static str,
        question: &impl Serialize,
        orders: usize,
    ) -> Result<T, CallError> {
        let body = serde_json::to_vec(question)
            .map_err(|error| CallError::Data(format!("question: {error}")))?;
        let request = Request {
            path,
            headers: Vec::new(),
            body,
            timeout: TIMEOUT,
        };
        let answer_max = PER_ORDER.saturating_mul(orders + 1);
        let body = self.endpoint.post(request, answer_max).await?;
        serde_json::from_slice(&body).map_err(|error| garbage(&format!("{path}: {error}")))
    }
}

#[async_trait]
impl OrderOwner for HttpOwner {
    async fn overdue_orders(
        &self,
        after: Option<&Overdue>,
        ahead: Duration,
        limit: u32,
    ) -> Result<Vec<Overdue>, CallError> {
        let question = json!({
            "after": after.map(|after| json!({ "due_at": after.due_at, "order": after.order })),
            "ahead_ms": u64::try_from(ahead.as_millis()).unwrap_or(u64::MAX),
            "limit": limit,
        });
        let page: Vec<Value> = self
            .ask("/v1/overdue-orders", &question, limit as usize)
            .await?;
        let page = self.readable(page)?;
        // In milliseconds: that is all that many languages know.
        let ms = |overdue: &Overdue| overdue.due_at.timestamp_millis();
        if !after.into_iter().chain(&page).is_sorted_by_key(ms) {
            return Err(garbage(
                "the page of overdue orders does not ascend from where it was asked to",
            ));
        }
        Ok(page)
    }

    fn look_ahead(&self) -> Duration {
        self.look_ahead
    }

    async fn paid(&self, orders: &[OrderKey]) -> Result<Vec<bool>, CallError> {
        let paid: Vec<bool> = self.ask("/v1/paid-orders", &orders, orders.len()).await?;
        if paid.len() != orders.len() {
            let (asked, told) = (orders.len(), paid.len());
            return Err(garbage(&format!("asked of {asked} orders, told of {told}")));
        }
        Ok(paid)
    }
}

fn garbage(words: &str) -> CallError {
    CallError::Unknown(one_line(&format!("garbage: {words}"), WORDS_MAX))
}
