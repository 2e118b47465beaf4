//! The saga state machine of Lapse, without any effect of its own.
//!
//! For: definitions (what a saga does), [`State`] (how far one instance is) and [`transition()`] (the only way from one
//! state to the next). Relies on nothing but its arguments: no async, no I/O, no clock, no randomness; the time is a
//! parameter and the manifest is the proof. Never: sends a command, writes a row, or asks what time it is.

pub mod definition;
pub mod duration;
pub mod event;
pub mod expression;
pub mod ids;
pub mod order_event;
pub mod outcome;
pub mod printable;
pub mod routing;
pub mod state;
pub mod transition;

pub use definition::{Definition, Problem};
pub use duration::Span;
pub use event::{Cause, Effect, Event, Refused};
pub use ids::{CommandId, DefinitionHash, SagaId, StepId};
pub use order_event::{BadEvent, OrderEvent};
pub use outcome::Outcome;
pub use printable::printable;
pub use routing::{overlaps, route};
pub use state::{Active, Direction, Phase, State, Status};
pub use transition::transition;

/// A point in time, UTC. Stored and compared to the microsecond, as Postgres does.
pub type Timestamp = chrono::DateTime<chrono::Utc>;
