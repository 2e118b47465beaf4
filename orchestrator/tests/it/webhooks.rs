//! Alerts reach webhooks: signed, under one id, until they are taken; and no webhook waits for another.

mod documented;
mod posting;
pub mod receiver;

/// A key, as settings have it.
pub const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// The key that is to follow it.
const NEXT_SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oDazfrf+WAAAAA";
