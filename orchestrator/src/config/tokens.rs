//! `[http.tokens]`: who may use the HTTP interface. Settings hold hashes, never secrets.
//!
//! Relies on secrets of 256 random bits: a hash of one can't be turned back or guessed, so neither salt nor a slow hash is
//! needed. Never: keeps a secret, or repeats what stands in the settings (somebody may have put the secret there).

use std::fmt;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Bytes of a secret, from the system's source of randomness.
const SECRET_BYTES: usize = 32;
/// Before the digits of a secret, so that scanners for leaked secrets find it.
const SECRET_PREFIX: &str = "lapse_";
const HASH_PREFIX: &str = "sha256:";
const READ_ONLY: &str = " read-only";

/// What a token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everything.
    Full,
    /// Look.
    ReadOnly,
}

/// One token, by its hash: `sha256:<64 hex digits>`, with ` read-only` behind it or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Token {
    /// SHA-256 of the secret.
    pub hash: [u8; 32],
    /// What it may do.
    pub access: Access,
}

impl Token {
    /// A new secret and what the settings hold of it.
    ///
    /// # Errors
    /// If the system has no randomness to give.
    pub fn generate(access: Access) -> anyhow::Result<(String, Token)> {
        let mut bytes = [0; SECRET_BYTES];
        rustls::crypto::ring::default_provider()
            .secure_random
            .fill(&mut bytes)
            .map_err(|_| anyhow::anyhow!("no randomness"))
            .context("ask the system for random bytes")?;
        let secret = format!("{SECRET_PREFIX}{}", hex::encode(bytes));
        let hash = Token::hash_of(&secret);
        Ok((secret, Token { hash, access }))
    }

    /// The hash of a secret.
    pub fn hash_of(secret: &str) -> [u8; 32] {
        Sha256::digest(secret.as_bytes()).into()
    }

    /// # Errors
    /// What a name may be.
    pub fn check_name(name: &str) -> Result<(), String> {
        let legal =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
        if (1..=64).contains(&name.len()) && name.bytes().all(legal) {
            return Ok(());
        }
        Err(format!(
            "http.tokens: {name:?} is no name; allowed are 1 to 64 lower-case letters, digits, underscores and hyphens"
        ))
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let access = match self.access {
            Access::Full => "",
            Access::ReadOnly => READ_ONLY,
        };
        write!(f, "{HASH_PREFIX}{}{access}", hex::encode(self.hash))
    }
}

impl From<Token> for String {
    fn from(token: Token) -> String {
        token.to_string()
    }
}

impl TryFrom<String> for Token {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Token, &'static str> {
        let (digits, access) = match text.strip_suffix(READ_ONLY) {
            Some(digits) => (digits, Access::ReadOnly),
            None => (&*text, Access::Full),
        };
        let form = "a token in http.tokens is not \"sha256:<64 hex digits>\" (with \" read-only\" behind it or not); \
                    make one with: lapse token new NAME";
        let digits = digits.strip_prefix(HASH_PREFIX).ok_or(form)?;
        let mut hash = [0; 32];
        hex::decode_to_slice(digits, &mut hash).map_err(|_| form)?;
        Ok(Token { hash, access })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_256_random_bits_and_known_by_its_hash_alone() {
        for access in [Access::Full, Access::ReadOnly] {
            let (secret, token) = Token::generate(access).expect("there is randomness");
            let (other, _) = Token::generate(access).expect("there is randomness");
            assert_ne!(secret, other);
            let digits = secret
                .strip_prefix(SECRET_PREFIX)
                .expect("told from other secrets");
            assert_eq!(hex::decode(digits).expect("hex").len() * 8, 256);
            let setting = token.to_string();
            assert!(!setting.contains(digits), "{setting}");
            assert_eq!(Token::try_from(setting), Ok(token));
            assert_eq!(Token::hash_of(&secret), token.hash);
        }
    }

    #[test]
    fn what_is_no_hash_is_refused_and_not_repeated() {
        let digits = "ab".repeat(32);
        for wrong in [
            "lapse_0123456789",
            "sha256:",
            "sha256:hushed",
            &digits,
            &format!("sha256:{digits}00"),
            &format!("sha256:{digits} admin"),
        ] {
            let words = Token::try_from(wrong.to_owned()).expect_err(wrong);
            assert!(
                !words.contains("hushed") && words.contains("lapse token new"),
                "{words}"
            );
        }
        for name in ["", "Two Words", "a.b", "ümlaut", &"x".repeat(65)] {
            assert!(Token::check_name(name).is_err(), "{name}");
        }
    }
}
