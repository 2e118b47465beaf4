//! What a participant can answer to one command. A command is all of its lines or none.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Timestamp;

/// One answer. The JSON form is `{"outcome": "done", …}` with the variant's fields beside it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// Applied, now or by an earlier attempt or by somebody else; go on.
    Done {
        /// What later steps may read, a JSON object or null.
        #[serde(default)]
        output: Value,
    },
    /// There is nothing to do here and never will be (paid, exempt, another generation). Nothing was applied.
    NotApplicable {
        /// One word, such as `paid`.
        reason: String,
    },
    /// The order's deadline moved; ask again then. Nothing was applied.
    NotDue {
        /// The order's own due time.
        until: Timestamp,
    },
    /// Final: nothing was applied and a repetition would be answered the same.
    Rejected {
        /// Why, for people; its first word is the error class.
        reason: String,
    },
    /// Nothing was applied; try again.
    Failed {
        /// Why, for people; its first word is the error class.
        error: String,
    },
    /// May have been applied: time-out, reset, garbage. The same command id goes out again.
    Unknown {
        /// Why, for people; its first word is the error class.
        error: String,
    },
    /// The action came after its own compensation and was not applied. Legal only once compensating.
    Superseded,
    /// The same command id was used before with another operation or another input.
    Mismatch {
        /// What differs.
        error: String,
    },
    /// The command is older than its time to live; the participant no longer knows whether it was applied.
    Expired,
}

impl Outcome {
    /// The answer's name, as in its JSON form and in history.
    pub fn name(&self) -> &'static str {
        match self {
            Outcome::Done { .. } => "done",
            Outcome::NotApplicable { .. } => "not_applicable",
            Outcome::NotDue { .. } => "not_due",
            Outcome::Rejected { .. } => "rejected",
            Outcome::Failed { .. } => "failed",
            Outcome::Unknown { .. } => "unknown",
            Outcome::Superseded => "superseded",
            Outcome::Mismatch { .. } => "mismatch",
            Outcome::Expired => "expired",
        }
    }

    /// Whether this settles an open step whichever attempt it answers.
    pub fn is_final(&self) -> bool {
        matches!(
            self,
            Outcome::Done { .. } | Outcome::NotApplicable { .. } | Outcome::Rejected { .. }
        )
    }

    /// The words for people, if the answer has any.
    pub fn error(&self) -> Option<&str> {
        match self {
            Outcome::NotApplicable { reason } | Outcome::Rejected { reason } => Some(reason),
            Outcome::Failed { error }
            | Outcome::Unknown { error }
            | Outcome::Mismatch { error } => Some(error),
            Outcome::Done { .. }
            | Outcome::NotDue { .. }
            | Outcome::Superseded
            | Outcome::Expired => None,
        }
    }
}

/// The class of an error text: its first word, lower-case letters, digits and `_` only, at most 40 characters.
///
/// Alerts group by it, so a participant should begin its errors with a stable word: `timeout: no answer in 5 s`.
pub fn error_class(text: &str) -> String {
    let word: String = text
        .trim_start()
        .chars()
        .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
        .take(40)
        .collect::<String>()
        .to_ascii_lowercase();
    if word.is_empty() {
        "other".to_owned()
    } else {
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_is_the_first_word_and_never_empty() {
        assert_eq!(error_class("timeout: no answer in 5 s"), "timeout");
        assert_eq!(error_class("Unknown_sku X-1"), "unknown_sku");
        assert_eq!(error_class("<html>"), "other");
    }
}
