//! A producer by itself, for processes that read no timers: a participant's answers, commands of the conformance suite.

use std::sync::Arc;

use async_trait::async_trait;

use super::Error;
use super::assignment::Assignment;
use super::producer::Producer;
use super::settings::Settings;
use super::shared::Shared;
use crate::bus::{Delivery, Outlet, Publish};

/// Messages out.
pub struct KafkaOutlet {
    producer: Producer,
}

impl KafkaOutlet {
    /// Connects in the background.
    ///
    /// # Errors
    /// [`Error::Settings`] if the client does not take the settings.
    pub fn new(settings: &Settings) -> Result<KafkaOutlet, Error> {
        let shares = settings.shares()?;
        let assignment = Assignment::new(settings.checked_buckets()?, shares.window);
        // Only hops, and there are none here, look at an assignment or a clock.
        let shared = Shared::new(assignment, Arc::new(chrono::Utc::now));
        let producer = Producer::new(settings, Arc::new(shared))?;
        Ok(KafkaOutlet { producer })
    }
}

#[async_trait]
impl Outlet for KafkaOutlet {
    async fn deliver(&self, messages: Vec<Publish>) -> Vec<Delivery> {
        self.producer.deliver(&messages).await
    }
}
