//! Repetition, order and concurrency: what the barrier is for.

use std::time::Duration;

use futures::future::join_all;
use lapse_participants::kit::Command;
use lapse_sagas::Outcome;
use serde_json::json;

use super::scene::{Checked, Scene, Stop, failed, words};

/// Rounds of what depends on luck.
const ROUNDS: usize = 5;
/// Copies of a command at once.
const COPIES: usize = 4;
/// After so long the caller gives up.
const GIVES_UP_AFTER_MS: [u64; 6] = [1, 3, 10, 30, 100, 300];

pub(super) async fn repeated_action(scene: &Scene<'_>) -> Checked {
    let order = scene.place().await?;
    let action = scene.action(&order);
    let first = scene.done(&action).await?;
    let again = scene.again(&action);
    scene.answers(&again, &first, "as the first time").await?;
    scene.is_acted_on_once(&order, "two attempts").await?;
    scene.answers(&again, &first, "as the first time").await?;
    scene.is_acted_on_once(&order, "three attempts").await
}

pub(super) async fn other_payload(scene: &Scene<'_>) -> Checked {
    let (order, other) = (scene.place().await?, scene.place().await?);
    let action = scene.action(&order);
    let first = scene.done(&action).await?;
    let mut changed = vec![
        (
            "order",
            Command {
                order: other.clone(),
                ..action.clone()
            },
        ),
        (
            "input",
            Command {
                input: json!({ "conform": "another input" }),
                ..action.clone()
            },
        ),
    ];
    if let Ok(compensation) = scene.compensation(&action) {
        let operation = compensation.operation;
        changed.push((
            "operation",
            Command {
                operation,
                ..action.clone()
            },
        ));
    }
    for (what, command) in changed {
        let outcome = scene.settle(&command).await?;
        if !matches!(outcome, Outcome::Mismatch { .. }) {
            return failed(
                format!("mismatch for a known id with another {what}"),
                words(&outcome),
            );
        }
        scene
            .is_acted_on_once(&order, &format!("its id came with another {what}"))
            .await?;
    }
    scene.is_untouched(&other, "a mismatch").await?;
    scene.answers(&action, &first, "after mismatches").await
}

pub(super) async fn undone_action(scene: &Scene<'_>) -> Checked {
    let order = scene.place().await?;
    let action = scene.action(&order);
    let compensation = scene.compensation(&action)?;
    let first = scene.done(&action).await?;
    let undone = scene.done(&compensation).await?;
    scene
        .is_untouched(&order, "action and compensation")
        .await?;
    let again = scene.again(&compensation);
    scene.answers(&again, &undone, "as the first time").await?;
    scene
        .is_untouched(&order, "the repeated compensation")
        .await?;
    let again = scene.again(&action);
    scene
        .answers(&again, &first, "as the first time, though it is undone")
        .await?;
    scene
        .is_untouched(&order, "a copy of the action that was undone")
        .await
}

pub(super) async fn compensation_first(scene: &Scene<'_>) -> Checked {
    let order = scene.place().await?;
    let compensation = scene.compensation(&scene.action(&order))?;
    let first = scene.done(&compensation).await?;
    scene
        .is_untouched(&order, "a compensation without its action")
        .await?;
    let again = scene.again(&compensation);
    scene.answers(&again, &first, "as the first time").await?;
    scene
        .is_untouched(&order, "the repeated compensation")
        .await
}

pub(super) async fn late_action(scene: &Scene<'_>) -> Checked {
    let order = scene.place().await?;
    let action = scene.action(&order);
    let compensation = scene.compensation(&action)?;
    scene.done(&compensation).await?;
    for command in [&action, &scene.again(&action)] {
        let why = "for an action after its own compensation";
        scene.answers(command, &Outcome::Superseded, why).await?;
        scene
            .is_untouched(&order, "an action after its own compensation")
            .await?;
    }
    // Only that saga's action is blocked.
    scene.done(&scene.action(&order)).await?;
    scene
        .is_acted_on_once(&order, "another saga's action")
        .await
}

pub(super) async fn concurrent_pair(scene: &Scene<'_>) -> Checked {
    for _ in 0..ROUNDS {
        same_at_once(scene).await?;
    }
    for round in 0..ROUNDS {
        match both_at_once(scene, round).await {
            Err(Stop::NotRun(_)) => return Ok(()),
            ended => ended?,
        }
    }
    Ok(())
}

async fn same_at_once(scene: &Scene<'_>) -> Checked {
    let order = scene.place().await?;
    let action = scene.action(&order);
    let answers = join_all((0..COPIES).map(|_| scene.done(&action))).await;
    let answers = answers.into_iter().collect::<Checked<Vec<Outcome>>>()?;
    scene
        .is_acted_on_once(&order, &format!("{COPIES} copies of one command at once"))
        .await?;
    if let Some(other) = answers.iter().find(|answer| **answer != answers[0]) {
        return failed(
            format!("{} for every copy", words(&answers[0])),
            words(other),
        );
    }
    Ok(())
}

async fn both_at_once(scene: &Scene<'_>, round: usize) -> Checked {
    let order = scene.place().await?;
    let action = scene.action(&order);
    let compensation = scene.compensation(&action)?;
    let pair = if round.is_multiple_of(2) {
        [&action, &compensation]
    } else {
        [&compensation, &action]
    };
    let answers = join_all(pair.map(|command| scene.settle(command))).await;
    let answers = answers.into_iter().collect::<Checked<Vec<Outcome>>>()?;
    for (command, answer) in pair.into_iter().zip(&answers) {
        let legal = match answer {
            Outcome::Done { .. } => true,
            Outcome::Superseded => command.action_id.is_none(),
            _ => false,
        };
        if !legal {
            let expected = "done, or superseded for the action, when both come at once";
            return failed(
                expected,
                format!("{}: {}", command.operation, words(answer)),
            );
        }
    }
    scene
        .is_untouched(&order, "action and compensation at once")
        .await
}

pub(super) async fn expired(scene: &Scene<'_>) -> Checked {
    let order = scene.place().await?;
    let action = scene.action(&order);
    let late = scene.expired(&action);
    let why = "for a command past its expires_at";
    scene.answers(&late, &Outcome::Expired, why).await?;
    scene.is_untouched(&order, "an expired command").await?;
    let first = scene.done(&action).await?;
    let why = "for a known command, however old";
    scene.answers(&late, &first, why).await?;
    scene.is_acted_on_once(&order, "an old copy").await
}

pub(super) async fn slow(scene: &Scene<'_>) -> Checked {
    for limit_ms in GIVES_UP_AFTER_MS {
        let order = scene.place().await?;
        let action = scene.action(&order);
        let limit = Duration::from_millis(limit_ms);
        scene.call_briefly(&action, limit).await;
        one_effect(scene, &action, &format!("giving up after {limit_ms} ms")).await?;
    }
    Ok(())
}

/// A command of which nobody knows whether it was applied is repeated, and undone.
pub(super) async fn one_effect(scene: &Scene<'_>, action: &Command, after: &str) -> Checked {
    let first = scene.done(action).await?;
    scene
        .is_acted_on_once(&action.order, &format!("{after} and a repetition"))
        .await?;
    let again = scene.again(action);
    scene.answers(&again, &first, "as the first time").await?;
    if let Ok(compensation) = scene.compensation(action) {
        scene.done(&compensation).await?;
        scene
            .is_untouched(
                &action.order,
                &format!("{after}, a repetition and the compensation"),
            )
            .await?;
    }
    Ok(())
}
