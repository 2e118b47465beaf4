//! A saga's history: numbered without gaps, each entry's hash over the one before and the entry's stored text.
//!
//! ```text
//! hash(0) = 32 zero bytes      hash(n) = sha256(hash(n - 1) || text(n))      n = 1, 2, 3 …
//! ```
//! Relies on nothing. Never: changes an entry.

use lapse_sagas::event::Entry;
use sha2::{Digest, Sha256};

use super::HistoryHead;
use super::text::json_text;

/// One entry as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Its number, from 1.
    pub seq: i32,
    /// The JSON that is hashed.
    pub text: String,
    /// SHA-256 over the previous hash and the text.
    pub hash: [u8; 32],
}

impl HistoryHead {
    /// Of a history without entries.
    pub const EMPTY: HistoryHead = HistoryHead {
        seq: 0,
        hash: [0; 32],
    };

    /// The head after one more entry, with the line to store.
    pub fn append(&self, entry: &Entry) -> Line {
        let text = json_text(entry);
        Line {
            seq: self.seq + 1,
            hash: self.hash_of(&text),
            text,
        }
    }

    /// The hash of the entry that comes next, if this is its text.
    pub fn hash_of(&self, text: &str) -> [u8; 32] {
        Sha256::new()
            .chain_update(self.hash)
            .chain_update(text)
            .finalize()
            .into()
    }
}

impl From<&Line> for HistoryHead {
    fn from(line: &Line) -> Self {
        HistoryHead {
            seq: line.seq,
            hash: line.hash,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: &str) -> Entry {
        Entry {
            kind: kind.to_owned(),
            step: None,
            direction: None,
            attempt: None,
            state: "running".to_owned(),
            detail: serde_json::Value::Null,
        }
    }

    #[test]
    fn a_changed_entry_changes_every_hash_after_it() {
        let first = HistoryHead::EMPTY.append(&entry("started"));
        let second = HistoryHead::from(&first).append(&entry("replied"));
        assert_eq!((first.seq, second.seq), (1, 2));

        let forged = HistoryHead::EMPTY.append(&entry("Started"));
        assert_ne!(
            HistoryHead::from(&forged).hash_of(&second.text),
            second.hash
        );
        assert_eq!(HistoryHead::from(&first).hash_of(&second.text), second.hash);
    }
}
