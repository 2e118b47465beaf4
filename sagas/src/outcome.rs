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

/// So many characters of an answer's words are kept: they are shown in lists, and alerts carry them.
const WORDS_MAX: usize = 1_000;
/// So many bytes may output have, as JSON text: the saga carries it to its end.
const OUTPUT_MAX: usize = 64 * 1024;

impl Outcome {
    /// As it is taken from whoever answers: words become one line of at most a thousand characters, and a `done` whose output
    /// is neither an object nor null, or has more than 64 KiB, is `unknown`: nobody can say what it means.
    pub fn received(self) -> Outcome {
        let kept = |text: String| one_line(&text, WORDS_MAX);
        match self {
            Outcome::Done { output } => match flaw(&output) {
                None => Outcome::Done { output },
                Some(flaw) => Outcome::Unknown {
                    error: format!("garbage: output {flaw}"),
                },
            },
            Outcome::NotApplicable { reason } => Outcome::NotApplicable {
                reason: kept(reason),
            },
            Outcome::Rejected { reason } => Outcome::Rejected {
                reason: kept(reason),
            },
            Outcome::Failed { error } => Outcome::Failed { error: kept(error) },
            Outcome::Unknown { error } => Outcome::Unknown { error: kept(error) },
            Outcome::Mismatch { error } => Outcome::Mismatch { error: kept(error) },
            same @ (Outcome::NotDue { .. } | Outcome::Superseded | Outcome::Expired) => same,
        }
    }

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

fn flaw(output: &Value) -> Option<&'static str> {
    if !(output.is_object() || output.is_null()) {
        return Some("is neither an object nor null");
    }
    let is_large = output.to_string().len() > OUTPUT_MAX;
    is_large.then_some("has more than 64 KiB")
}

/// Other people's text as one line for people: control characters, which could move a cursor or forge a line of a log, are
/// blanks, and it is cut to so many characters.
pub fn one_line(text: &str, characters: usize) -> String {
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    let line: String = text.chars().map(printable).take(characters).collect();
    line.trim().to_owned()
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
    use serde_json::json;

    use super::*;

    #[test]
    fn words_of_others_are_one_short_line() {
        let forged = format!("no:\u{1b}[2J\r\nalert paid{}", "x".repeat(2_000));
        let received = Outcome::Rejected { reason: forged }.received();
        let words = received.error().expect("words");
        assert!(words.starts_with("no: [2J  alert paidx"), "{words:?}");
        assert_eq!(words.chars().count(), WORDS_MAX);
    }

    #[test]
    fn output_that_nobody_can_use_is_unknown() {
        let outputs = [
            json!([1]),
            json!(7),
            json!("text"),
            json!({ "text": "x".repeat(OUTPUT_MAX) }),
        ];
        for output in outputs {
            let received = Outcome::Done { output }.received();
            assert_eq!(error_class(received.error().expect("words")), "garbage");
        }
        for output in [json!(null), json!({ "coupon_ids": ["c1"] })] {
            let done = Outcome::Done { output };
            assert_eq!(done.clone().received(), done);
        }
    }

    #[test]
    fn the_class_is_the_first_word_and_never_empty() {
        assert_eq!(error_class("timeout: no answer in 5 s"), "timeout");
        assert_eq!(error_class("Unknown_sku X-1"), "unknown_sku");
        assert_eq!(error_class("<html>"), "other");
    }
}
