//! Participants outside the coordinator's process keep the promises of those inside.

mod kafka;
mod queued;
