//! What is read from outside: definitions, events, and which of them belong together.

mod definitions;
mod events;
mod routing;
