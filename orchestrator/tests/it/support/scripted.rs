//! A participant that answers as it was told, order by order, and remembers what it was asked.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;

use async_trait::async_trait;
use lapse_participants::kit::{CallError, Command, Participant, Reply};
use lapse_sagas::Outcome;
use serde_json::Value;

/// One answer.
#[derive(Clone, Debug)]
pub enum Answer {
    /// This outcome.
    Outcome(Outcome),
    /// No answer for as long as anybody waits; the rest of the batch waits too.
    Hang,
    /// The whole call fails on this command's data.
    BadData,
    /// The whole call fails on this command's lock.
    Locked,
    /// The command is left out of the answer.
    LeftOut,
}

/// Answers `done` unless told otherwise.
#[derive(Default)]
pub struct Scripted {
    answers: Mutex<HashMap<(String, String), VecDeque<Answer>>>,
    calls: Mutex<Vec<Call>>,
}

/// One call as it came in.
#[derive(Clone, Debug)]
pub struct Call {
    /// The operation.
    pub operation: String,
    /// Its commands.
    pub commands: Vec<Command>,
}

impl Scripted {
    /// Queues answers for the next commands of this operation and order; the last one is repeated.
    pub fn answer(
        &self,
        operation: &str,
        order_id: &str,
        answers: impl IntoIterator<Item = Answer>,
    ) {
        let key = (operation.to_owned(), order_id.to_owned());
        self.answers
            .lock()
            .unwrap()
            .entry(key)
            .or_default()
            .extend(answers);
    }

    /// Every command of this operation and order, in the order in which they came.
    pub fn commands(&self, operation: &str, order_id: &str) -> Vec<Command> {
        let calls = self.calls.lock().unwrap();
        let of = calls
            .iter()
            .filter(|call| call.operation == operation)
            .flat_map(|call| &call.commands);
        of.filter(|command| command.order.order_id == order_id)
            .cloned()
            .collect()
    }

    fn peek(&self, command: &Command) -> Option<Answer> {
        let key = (command.operation.clone(), command.order.order_id.clone());
        self.answers.lock().unwrap().get(&key)?.front().cloned()
    }

    fn take(&self, command: &Command) -> Option<Answer> {
        let key = (command.operation.clone(), command.order.order_id.clone());
        let mut answers = self.answers.lock().unwrap();
        let queue = answers.get_mut(&key)?;
        if queue.len() > 1 {
            queue.pop_front()
        } else {
            queue.front().cloned()
        }
    }
}

#[async_trait]
impl Participant for Scripted {
    async fn call(&self, operation: &str, commands: &[Command]) -> Result<Vec<Reply>, CallError> {
        let call = Call {
            operation: operation.to_owned(),
            commands: commands.to_vec(),
        };
        self.calls.lock().unwrap().push(call);
        let first = |wanted: fn(&Answer) -> bool| {
            commands
                .iter()
                .find(|c| self.peek(c).as_ref().is_some_and(wanted))
        };
        if let Some(hanging) = first(|answer| matches!(answer, Answer::Hang)) {
            self.take(hanging);
            std::future::pending::<()>().await;
        }
        if let Some(bad) = first(|answer| matches!(answer, Answer::BadData)) {
            if commands.len() == 1 {
                self.take(bad);
            }
            return Err(CallError::Data(format!(
                "order {} is not storable",
                bad.order.order_id
            )));
        }
        if let Some(locked) = first(|answer| matches!(answer, Answer::Locked)) {
            if commands.len() == 1 {
                self.take(locked);
            }
            return Err(CallError::Locked("55P03".to_owned()));
        }
        let reply = |command: &Command| {
            let outcome = match self.take(command) {
                None => Outcome::Done {
                    output: Value::Null,
                },
                Some(Answer::Outcome(outcome)) => outcome,
                Some(_) => return None,
            };
            Some(Reply {
                command_id: command.command_id.clone(),
                outcome,
            })
        };
        Ok(commands.iter().filter_map(reply).collect())
    }
}
