//! From a definition's text to its [`Body`]: size, YAML, shape. The first mistake ends it.
//!
//! Relies on serde-saphyr with tight budgets, so that a hostile file costs milliseconds. Never: looks at the meaning.

use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};
use serde_saphyr::{Error, MessageFormatter, Options, UserMessageFormatter};

use super::{Body, Problem};
use crate::printable;

/// Largest definition file.
const LARGEST_BYTES: usize = 256 * 1024;

pub(super) fn read(file: &str, text: &str) -> Result<Body, Problem> {
    if text.len() > LARGEST_BYTES {
        let words = format!(
            "the file has {} bytes; a definition has at most {LARGEST_BYTES}",
            text.len()
        );
        return Err(Problem::of_file(file, "D001", words));
    }
    serde_saphyr::from_str_with_options(text, options())
        .map_err(|error| problem(file, error.without_snippet()))
}

/// Also for the second pass that looks up positions: both must read a text the same way.
pub(super) fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 50_000,
            max_nodes: 20_000,
            max_depth: 24,
            flow_nesting_limit: 24,
            max_aliases: 200,
            max_anchors: 200,
            max_recorded_anchor_events: 20_000,
            max_recorded_anchor_bytes: 512 * 1024,
            max_documents: 1,
            max_merge_keys: 0,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 20_000,
            max_replay_stack_depth: 8,
        },
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Error,
        strict_booleans: true,
    }
}

fn problem(file: &str, error: &Error) -> Problem {
    let place = error.location().filter(|place| place.line() > 0);
    let (code, message) = describe(error);
    Problem {
        file: file.to_owned(),
        line: place.map(|place| place.line()),
        column: place.map(|place| place.column()),
        code,
        message,
    }
}

fn describe(error: &Error) -> (&'static str, String) {
    match error {
        Error::SerdeUnknownField {
            field, expected, ..
        } => {
            let hint = match closest(field, expected) {
                Some(known) => format!("did you mean `{known}`?"),
                None => format!("known are {}", expected.join(", ")),
            };
            (
                "D003",
                format!("unknown field `{}`; {hint}", printable(field)),
            )
        }
        Error::SerdeUnknownVariant {
            variant, expected, ..
        } => (
            "D006",
            format!(
                "`{}` is none of {}",
                printable(variant),
                expected.join(", ")
            ),
        ),
        Error::SerdeMissingField { field, .. } => {
            ("D004", format!("the field `{field}` is missing"))
        }
        Error::DuplicateMappingKey { key, .. } => {
            let key = key.as_deref().unwrap_or("a key");
            (
                "D005",
                format!("`{}` stands twice in one mapping; keep one", printable(key)),
            )
        }
        other => (
            "D002",
            printable(&UserMessageFormatter.format_message(other)),
        ),
    }
}

/// The known name that is at most two typing slips away.
fn closest<'a>(written: &str, known: &[&'a str]) -> Option<&'a str> {
    known
        .iter()
        .map(|name| (slips(written, name), *name))
        .filter(|(slips, name)| *slips <= 2 && *slips < name.len())
        .min()
        .map(|(_, name)| name)
}

/// Levenshtein distance.
fn slips(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().take(100).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
