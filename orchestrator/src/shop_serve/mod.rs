//! The reference shop as a service of its own: what a participant outside the coordinator's process looks like.
//!
//! Relies on the kit's barrier in the shop's database, so any number of these may serve one database. Never: speaks to a
//! coordinator's database.

use async_trait::async_trait;
use lapse_participants::fault::Faulty;
use lapse_participants::kit::{CallError, Command, Participant, Reply};
use lapse_participants::order::Orders;
use lapse_participants::stock::Stock;
use lapse_sagas::Direction;
use sqlx::postgres::PgPool;

pub mod http;
pub mod kafka;

/// What the shop can do.
pub const OPERATIONS: [&str; 4] = [
    "CancelOrder",
    "ReopenOrder",
    "ReplenishStock",
    "WithdrawStock",
];

/// The names under which definitions know the shop: commands for them are for it.
pub const PARTICIPANTS: [&str; 2] = ["orders", "stock"];

/// Command ids are at most so long.
const ID_MAX: usize = 200;

/// A command as docs/participants.md has it, however it came; or what is wrong with it.
fn read_command(json: &[u8]) -> Result<Command, String> {
    let command: Command =
        serde_json::from_slice(json).map_err(|error| format!("not a command: {error}"))?;
    let length = command.command_id.as_str().chars().count();
    if !(1..=ID_MAX).contains(&length) {
        return Err(format!(
            "a command_id of {length} characters; allowed is 1 to {ID_MAX}"
        ));
    }
    if command.direction == Direction::Undo && command.action_id.is_none() {
        let id = &command.command_id;
        return Err(format!("compensation {id} names no action_id"));
    }
    Ok(command)
}

/// The shop's participants as one, by operation; faults planted with `lapse shop fail` happen here too.
pub struct ShopParticipant {
    orders: Faulty<Orders>,
    stock: Faulty<Stock>,
}

impl ShopParticipant {
    /// On a pool to the shop's primary.
    pub fn new(pool: PgPool) -> ShopParticipant {
        ShopParticipant {
            orders: Faulty::new(Orders::new(pool.clone()), pool.clone()),
            stock: Faulty::new(Stock::new(pool.clone()), pool),
        }
    }
}

#[async_trait]
impl Participant for ShopParticipant {
    async fn call(&self, operation: &str, commands: &[Command]) -> Result<Vec<Reply>, CallError> {
        match operation {
            "CancelOrder" | "ReopenOrder" => self.orders.call(operation, commands).await,
            "ReplenishStock" | "WithdrawStock" => self.stock.call(operation, commands).await,
            _ => Err(CallError::Configuration(format!(
                "operation: the shop doesn't know {operation}"
            ))),
        }
    }
}
