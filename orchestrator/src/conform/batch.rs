//! Many commands in one call: a bad one, an operation nobody knows, very many.

use std::collections::HashSet;

use lapse_participants::kit::{CallError, Command, OrderKey, Reply};
use lapse_sagas::Outcome;

use super::scene::{Checked, Scene, answer_to, failed, words};
use super::wire;

/// Commands in a huge call, over so many orders.
const HUGE: usize = 500;
const HUGE_ORDERS: usize = 10;

pub(super) async fn one_bad_command(scene: &Scene<'_>) -> Checked {
    let nowhere = scene.nowhere();
    // Many databases can't store this character in a text.
    let unstorable = OrderKey {
        order_id: format!("{}\0", nowhere.order_id),
        ..nowhere.clone()
    };
    for bad in [nowhere, unstorable] {
        let (one, other) = (scene.place().await?, scene.place().await?);
        let (first, second) = (scene.action(&one), scene.action(&other));
        let commands = [first.clone(), scene.action(&bad), second.clone()];
        halving(scene, &commands, &[&one, &other]).await?;
        for good in [&first, &second] {
            scene.done(good).await?;
            scene
                .is_acted_on_once(&good.order, "a batch with a command that can't be done")
                .await?;
        }
    }
    wire::unreadable_among_good(scene).await
}

/// As a coordinator does: a call that is refused for its data is halved. After the first refusal all is untouched.
async fn halving(scene: &Scene<'_>, commands: &[Command], orders: &[&OrderKey]) -> Checked {
    let mut parts = vec![commands.to_vec()];
    while let Some(mut part) = parts.pop() {
        match scene.call(&part).await {
            Ok(_) => {}
            Err(CallError::Data(_) | CallError::Locked(_)) => {
                if part.len() == commands.len() {
                    for order in orders {
                        scene
                            .is_untouched(order, "a batch that was refused")
                            .await?;
                    }
                }
                if part.len() > 1 {
                    let half = part.split_off(part.len() / 2);
                    parts.extend([half, part]);
                }
            }
            Err(error) => {
                let expected = "answers, or 400, 413, 422 or 423 for a batch with a bad command";
                return failed(expected, error.to_string());
            }
        }
    }
    Ok(())
}

pub(super) async fn unknown_operation(scene: &Scene<'_>) -> Checked {
    let order = scene.place().await?;
    let mut command = scene.action(&order);
    "ConformNoSuchOperation".clone_into(&mut command.operation);
    let answered = scene.call(std::slice::from_ref(&command)).await;
    match answered {
        Err(CallError::Configuration(_)) => {}
        Ok(replies) if !scene.has_refusals() => match answer_to(&command, &replies) {
            Some(Outcome::Failed { .. } | Outcome::Rejected { .. }) => {}
            Some(outcome) => return failed("failed or rejected", words(&outcome)),
            None => return failed("failed or rejected", "no answer"),
        },
        Ok(replies) => {
            let came = replies.first().map(|reply| words(&reply.outcome));
            return failed("404", format!("200: {}", came.unwrap_or_default()));
        }
        Err(error) => return failed("404", error.to_string()),
    }
    scene
        .is_untouched(&order, "an operation that nobody knows")
        .await?;
    scene.works_on("an operation that nobody knows").await
}

pub(super) async fn huge(scene: &Scene<'_>) -> Checked {
    let mut orders = Vec::new();
    for _ in 0..HUGE_ORDERS {
        orders.push(scene.place().await?);
    }
    let commands: Vec<Command> = orders
        .iter()
        .cycle()
        .take(HUGE)
        .map(|order| scene.action(order))
        .collect();
    let first = all_answered(scene, &commands).await?;
    for order in &orders {
        scene
            .is_acted_on_once(order, "50 sagas that want the same")
            .await?;
    }
    let again: Vec<Command> = commands
        .iter()
        .map(|command| scene.again(command))
        .collect();
    let second = all_answered(scene, &again).await?;
    for command in &commands {
        let (was, is) = (answer_to(command, &first), answer_to(command, &second));
        if was != is {
            let text = |outcome: Option<Outcome>| outcome.as_ref().map(words).unwrap_or_default();
            return failed(format!("the same answer again: {}", text(was)), text(is));
        }
    }
    for order in &orders {
        scene.is_acted_on_once(order, "all of them again").await?;
    }
    wire::far_too_large(scene).await
}

async fn all_answered(scene: &Scene<'_>, commands: &[Command]) -> Checked<Vec<Reply>> {
    let replies = match scene.call(commands).await {
        Ok(replies) => replies,
        Err(error) => return failed(format!("{HUGE} answers"), error.to_string()),
    };
    let answered: HashSet<&str> = replies
        .iter()
        .map(|reply| reply.command_id.as_str())
        .collect();
    let missing = commands
        .iter()
        .filter(|command| !answered.contains(command.command_id.as_str()))
        .count();
    if missing > 0 {
        return failed(
            format!("{HUGE} answers"),
            format!("{missing} commands have none"),
        );
    }
    let unfinal = replies.iter().find(|reply| !reply.outcome.is_final());
    match unfinal {
        Some(reply) => failed(
            "done or not_applicable for every command",
            words(&reply.outcome),
        ),
        None => Ok(replies),
    }
}
