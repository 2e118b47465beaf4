//! The state machine: every reachable state, told stories, and random walks with several actors.

mod given;
mod picture;
mod recovery;
mod simulation;
mod stories;
mod walk;
