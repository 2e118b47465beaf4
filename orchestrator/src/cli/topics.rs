//! `lapse topics create|check`: the topics that timers and messages need, with the settings that keep timers safe.

use serde_json::json;

use super::{Context, Exit, answer};
use crate::config::Config;
use crate::kafka::topics;

/// What to do with the topics.
#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Create those that are missing; those that are there stay as they are.
    Create,
    /// Say what is wrong with those that are there.
    Check,
}

pub(super) async fn run(context: Context, command: Command) -> anyhow::Result<()> {
    let mut created = Vec::new();
    if let Command::Create = command {
        let settings = context.config.kafka_settings();
        created = topics::create(&settings).await?;
    }
    check(&context.config).await?;
    let verb = if matches!(command, Command::Create) {
        "topics-create"
    } else {
        "topics-check"
    };
    answer::print(
        context.output,
        verb,
        &json!({ "ok": true, "created": created }),
        || words(&created),
    )
}

fn words(created: &[String]) -> String {
    let created = created.iter().map(|topic| format!("created {topic}\n"));
    let created: String = created.collect();
    format!("{created}the topics are as they should be")
}

/// Refuses topics that would lose timers.
pub(super) async fn check(config: &Config) -> anyhow::Result<()> {
    let problems = topics::check(&config.kafka_settings()).await?;
    if problems.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    Err(Exit::Invalid(format!(
        "the topics are not safe for timers:\n{}",
        lines.join("\n")
    ))
    .into())
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn there_is_a_line_for_each_topic_and_none_that_is_empty() {
        let verdict = "the topics are as they should be";
        assert_eq!(words(&[]), verdict);
        let made = words(&["a".to_owned(), "b".to_owned()]);
        assert_eq!(made, format!("created a\ncreated b\n{verdict}"));
    }
}
