//! Who does operations, and who knows the orders: here, over HTTP, over Kafka, in a table.
//!
//! Relies on docs/participants.md, which is the contract. Never: retries; that is the executor's.

use std::sync::Arc;

use anyhow::Context;
use lapse_participants::fault::Faulty;
use lapse_participants::kit::{CallError, OrderOwner, Participant};
use lapse_participants::order::Orders;
use lapse_participants::stock::Stock;
use tracing::{info, warn};

use crate::config::{self, Config, Transport};
use crate::executor::Participants;
use crate::foreign::SqlOwner;
use crate::service::{self, Unfit};

pub mod http;

use http::{HttpOwner, HttpParticipant};

/// Those that the settings name, each looked at as far as it can be.
///
/// # Errors
/// What can't work with these settings.
pub async fn open(config: &Config) -> anyhow::Result<Participants> {
    let mut participants = Participants::default();
    if config.shop.enabled {
        serve_shop(config, &mut participants)?;
    }
    for (name, settings) in &config.participants {
        let key = format!("participants.{name}");
        let is_taken = match settings.transport {
            Transport::Http => {
                let (address, style) = (settings.address(&key)?, settings.style());
                let participant = HttpParticipant::new(name, &address, style, settings.in_flight)
                    .with_context(|| key.clone())?;
                let participant: Arc<dyn Participant> = Arc::new(participant);
                participants
                    .operations
                    .insert(name.clone(), participant)
                    .is_some()
            }
            Transport::Kafka => {
                participants.queued.names.insert(name.clone());
                participants.operations.contains_key(name)
            }
        };
        refuse_second(is_taken, &key)?;
    }
    for (name, settings) in &config.order_owners {
        let key = format!("order_owners.{name}");
        let owner = if settings.is_table() {
            table_owner(name, settings).await?
        } else {
            let (address, ahead) = (settings.address(&key)?, settings.look_ahead.into());
            let owner = HttpOwner::new(name, &address, ahead).with_context(|| key.clone())?;
            Arc::new(owner)
        };
        let is_taken = participants.owners.insert(name.clone(), owner).is_some();
        refuse_second(is_taken, &key)?;
    }
    Ok(participants)
}

fn serve_shop(config: &Config, participants: &mut Participants) -> anyhow::Result<()> {
    let pool = service::shop_database(config)?;
    let orders = Orders::new(pool.clone());
    let owner: Arc<dyn OrderOwner> = Arc::new(orders.clone());
    let orders: Arc<dyn Participant> = Arc::new(Faulty::new(orders, pool.clone()));
    let stock: Arc<dyn Participant> = Arc::new(Faulty::new(Stock::new(pool.clone()), pool));
    participants.owners.insert("orders".to_owned(), owner);
    participants.operations.insert("orders".to_owned(), orders);
    participants.operations.insert("stock".to_owned(), stock);
    Ok(())
}

/// An owner whose database is away is looked at later; what is wrong with its table is said now.
async fn table_owner(
    name: &str,
    settings: &config::OrderOwner,
) -> Result<Arc<dyn OrderOwner>, Unfit> {
    let owner = SqlOwner::open(name, settings).map_err(Unfit)?;
    match owner.check().await {
        Ok(()) => info!(
            owner = name,
            table = settings.table,
            "orders are read from a table"
        ),
        Err(CallError::Configuration(words) | CallError::Data(words)) => return Err(Unfit(words)),
        Err(error) => warn!(owner = name, %error, "the order owner's database does not answer yet"),
    }
    Ok(Arc::new(owner))
}

fn refuse_second(is_taken: bool, key: &str) -> Result<(), Unfit> {
    if !is_taken {
        return Ok(());
    }
    Err(Unfit(format!(
        "{key} is set, and shop.enabled serves the same here; take one of them away"
    )))
}
