//! `lapse validate FILE…`: every mistake of every definition, with file, line and column. Exit code 3 if there is one.

use std::path::PathBuf;

use lapse_sagas::Definition;
use lapse_sagas::definition::Problem;
use serde_json::{Value, json};

use super::answer::count;
use super::{Context, Exit, answer};
use crate::service;

/// Flags of `lapse validate`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Definition files, or directories of them; the shipped definition if there are none.
    paths: Vec<PathBuf>,
}

pub(super) fn run(context: &Context, args: &Args) -> anyhow::Result<()> {
    let mut problems = Vec::new();
    let mut definitions = Vec::new();
    let texts = service::definition_texts(&args.paths)
        .map_err(|error| Exit::NotFound(error.to_string()))?;
    for (file, text) in &texts {
        match Definition::parse(file, text) {
            Ok(definition) => {
                problems.extend(definition.warnings.iter().cloned());
                definitions.push(definition);
            }
            Err(found) => problems.extend(found),
        }
    }
    problems.extend(lapse_sagas::routing::overlaps(
        &definitions.iter().collect::<Vec<_>>(),
    ));
    let mistakes = problems
        .iter()
        .filter(|problem| !problem.is_warning())
        .count();
    let listed: Vec<Value> = problems.iter().map(as_json).collect();
    let body = json!({ "ok": mistakes == 0, "files": texts.len(), "problems": listed });
    answer::print(context.output, "validate", &body, || {
        words(&problems, texts.len())
    })?;
    if mistakes > 0 {
        let (mistakes, files) = (count(mistakes, "mistake"), count(texts.len(), "file"));
        return Err(Exit::Invalid(format!("{mistakes} in {files}")).into());
    }
    Ok(())
}

fn as_json(problem: &Problem) -> Value {
    json!({
        "file": problem.file, "line": problem.line, "column": problem.column,
        "code": problem.code, "message": problem.message, "warning": problem.is_warning(),
    })
}

fn words(problems: &[Problem], files: usize) -> String {
    if problems.is_empty() {
        return format!("{}, no mistakes", count(files, "file"));
    }
    problems
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}
