//! A producer by itself, for processes that read no timers: a participant's answers, commands of the conformance suite.

use async_trait::async_trait;

use super::Error;
use super::plain::{Fate, Message, Plain};
use super::settings::Settings;
use crate::bus::{Delivery, Outlet, Publish};

/// Messages out.
pub struct KafkaOutlet {
    settings: Settings,
    producer: Plain,
}

impl KafkaOutlet {
    /// Connects in the background.
    ///
    /// # Errors
    /// [`Error::Settings`] if the client does not take the settings.
    pub fn new(settings: &Settings) -> Result<KafkaOutlet, Error> {
        Ok(KafkaOutlet {
            settings: settings.clone(),
            producer: Plain::new(settings)?,
        })
    }
}

#[async_trait]
impl Outlet for KafkaOutlet {
    async fn deliver(&self, messages: Vec<Publish>) -> Vec<Delivery> {
        let message = |message: Publish| Message {
            topic: self.settings.topic(&message.topic),
            key: message.key,
            payload: Some(message.payload.into_bytes()),
            headers: Vec::new(),
        };
        let messages: Vec<Message> = messages.into_iter().map(message).collect();
        let fates = self.producer.send(&messages).await.into_iter();
        let delivery = |fate| match fate {
            Fate::Delivered => Delivery::Delivered,
            Fate::Refused(_) | Fate::NoTopic(_) => Delivery::NotSent,
            Fate::Later(_) | Fate::Behind => Delivery::Unknown,
        };
        fates.map(delivery).collect()
    }
}
