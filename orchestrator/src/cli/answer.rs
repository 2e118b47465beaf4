//! What a command prints: one JSON object, or text for people.
//!
//! Relies on the body being a struct or an object. Never: prints both.

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
    match output {
        Output::Text => println!("{}", text().trim_end()),
        Output::Json => {
            let answer = Answer {
                format: format!("lapse-{verb}/v1"),
                body,
            };
            println!("{}", serde_json::to_string_pretty(&answer)?);
        }
    }
    Ok(())
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
