//! Event v1.
/// x
pub struct OrderEvent;
