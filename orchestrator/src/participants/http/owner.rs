//! An order owner behind HTTP: `POST {base}/v1/overdue-orders` and `{base}/v1/paid-orders`.
//!
//! Relies on the owner's clock for what is due. Never: believes a page that does not go on where it was asked to, which
//! would be asked for for ever.

use std::time::Duration;

use async_trait::async_trait;
use lapse_participants::kit::{CallError, OrderKey, OrderOwner, Overdue};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{Address, Endpoint, Request};

/// An owner that takes longer is asked again by the next sweep.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Of an answer per order, beside as much for the whole.
const PER_ORDER: usize = 4 * 1024;

/// An order owner behind HTTP.
pub struct HttpOwner {
    endpoint: Endpoint,
    look_ahead: Duration,
}

impl HttpOwner {
    /// An owner that is asked so far ahead.
    ///
    /// # Errors
    /// If the address is none.
    pub fn new(address: &Address, look_ahead: Duration) -> anyhow::Result<HttpOwner> {
        Ok(HttpOwner {
            endpoint: Endpoint::new(address)?,
            look_ahead,
        })
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
        serde_json::from_slice(&body)
            .map_err(|error| CallError::Unknown(format!("garbage: {path}: {error}")))
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
        let page: Vec<Overdue> = self
            .ask("/v1/overdue-orders", &question, limit as usize)
            .await?;
        // In milliseconds: that is all that many languages know.
        let ms = |overdue: &Overdue| overdue.due_at.timestamp_millis();
        if !after.into_iter().chain(&page).is_sorted_by_key(ms) {
            return Err(CallError::Unknown(
                "garbage: the page of overdue orders does not ascend from where it was asked to"
                    .to_owned(),
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
            return Err(CallError::Unknown(format!(
                "garbage: asked of {asked} orders, told of {told}"
            )));
        }
        Ok(paid)
    }
}
