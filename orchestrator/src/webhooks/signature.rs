//! Signatures: `v1,` and base64 of HMAC-SHA256 over `id.timestamp.body`, one per key.

use std::fmt;

use anyhow::ensure;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// One key.
#[derive(Clone)]
pub struct Key(Vec<u8>);

/// The keys in force: the present one, and while receivers change over the one before.
#[derive(Clone)]
pub struct Keys(Vec<Key>);

impl Key {
    /// Reads `whsec_…`.
    ///
    /// # Errors
    /// If it is no key. It is not repeated.
    pub fn parse(text: &str) -> anyhow::Result<Key> {
        let words = "not whsec_ and base64 of 24 to 64 bytes; make one with: echo whsec_$(openssl rand -base64 32)";
        let bytes = text
            .trim()
            .strip_prefix("whsec_")
            .and_then(|text| STANDARD.decode(text).ok())
            .unwrap_or_default();
        ensure!((24..=64).contains(&bytes.len()), words);
        Ok(Key(bytes))
    }

    fn sign(&self, id: &str, timestamp: i64, body: &str) -> String {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(format!("{id}.{timestamp}.{body}").as_bytes());
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

impl Keys {
    /// The present key and the one before, if there is one.
    pub fn new(present: Key, before: Option<Key>) -> Keys {
        Keys(std::iter::once(present).chain(before).collect())
    }

    /// The header `webhook-signature`: a signature per key, separated by spaces.
    pub fn signature(&self, id: &str, timestamp: i64, body: &str) -> String {
        let signatures: Vec<String> = self
            .0
            .iter()
            .map(|key| key.sign(id, timestamp, body))
            .collect();
        signatures.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key, id, time and body that the libraries of Standard Webhooks test themselves with; the signature was computed
    /// apart, with Python's hmac.
    #[test]
    fn a_signature_is_that_of_the_standard() {
        let key = Key::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("a key");
        let before =
            Key::parse("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oDazfrf+WAAAAA").expect("a key");
        let sign = |keys: Keys| {
            keys.signature(
                "msg_p5jXN8AQM9LWM0D4loKWxJek",
                1_614_265_330,
                r#"{"test": 2432232314}"#,
            )
        };
        assert_eq!(
            sign(Keys::new(key.clone(), None)),
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
        assert_eq!(
            sign(Keys::new(key, Some(before))),
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE= v1,00MMZicuQcQL9WhPtqh2+dBj4l49YLdYJ1VtmVPNyBo="
        );
    }

    #[test]
    fn what_is_no_key_is_refused_without_repeating_it() {
        for text in [
            "",
            "whsec_",
            "hunter2",
            "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "whsec_aHVudGVyMg==",
        ] {
            let refused = Key::parse(text).expect_err("no key").to_string();
            assert!(refused.contains("openssl rand"), "{refused}");
            assert!(!refused.contains("hunter2") && !refused.contains("aHVu"));
        }
    }
}
