//! What a command prints: one JSON object, or text for people.
//!
//! Relies on the body being a struct or an object. Never: prints both.

use std::io::{self, Write};

use anyhow::Context as _;
use serde::Serialize;

use super::Output;

/// The JSON form: `format` comes first.
#[derive(Serialize)]
struct Answer<'a, T: Serialize> {
    format: String,
    #[serde(flatten)]
    body: &'a T,
}

/// Prints the answer of `lapse <verb>`. `text` is only made for people.
pub(super) fn print(
    output: Output,
    verb: &str,
    body: &impl Serialize,
    text: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    let text = match output {
        Output::Text => text(),
        Output::Json => serde_json::to_string_pretty(&Answer {
            format: format!("lapse-{verb}/v1"),
            body,
        })?,
    };
    match write(text.trim_end()) {
        // Whoever read has read enough, as `head` does.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("write to stdout"),
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{text}")?;
    stdout.flush()
}

/// So many of something: `1 file`, `2 files`.
pub(super) fn count(number: usize, one: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        more => format!("{more} {one}s"),
    }
}

/// A table without ruled lines.
pub(super) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = comfy_table::Table::new();
    table
        .load_style(comfy_table::presets::NOTHING)
        .set_header(header);
    for row in rows {
        table.add_row(row);
    }
    table.to_string()
}
