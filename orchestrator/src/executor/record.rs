//! From answers to rows: transitions, fenced records, and replies for rows that somebody else moved meanwhile.
//!
//! ```text
//! answers ─transition─► moves ─fenced─► stored ─► in hand again, if a step follows
//!                                 └─ fenced out ─► under the row's lock: settles the open step, or is logged as stale
//! ```
//! Relies on the fence to make a repeated record harmless. Never: drops a reply without a trace.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lapse_sagas::{CommandId, Event, SagaId, Timestamp, transition};
use tracing::{debug, error, warn};

use super::{Executor, Promised, batch, deferred, observe};
use crate::store::{self, Decision, Move, Moved, Saga, StaleReply, Which};

impl Executor {
    /// Stores transitions; what is fenced out is treated as replies to whatever the rows say now. Gives what is in hand
    /// afterwards.
    pub(super) async fn record(self: &Arc<Self>, answered: Vec<batch::Answered>) -> Vec<Saga> {
        let now = self.clock.now();
        let mut moves = Vec::with_capacity(answered.len());
        let mut replies = HashMap::new();
        let promised = Promised::default();
        for answer in answered {
            let Some(definition) = self.definitions.get(&answer.saga.definition) else {
                continue;
            };
            match transition(
                &definition,
                answer.saga.state.clone(),
                answer.event.clone(),
                now,
            ) {
                Ok((state, effects)) => {
                    let (state, effects) =
                        self.go_on(&definition, state, now, &promised, effects, deferred);
                    // A deferral says something of the row it was made for, and nothing of what it is now.
                    if let Event::Replied { .. } = answer.event {
                        replies.insert(answer.saga.id, Reply::to(&answer.saga, answer.event));
                    }
                    moves.push(Move {
                        saga: answer.saga,
                        state,
                        effects,
                    });
                }
                Err(why) => {
                    debug!(saga_id = %answer.saga.id, error = %why, "an answer changed nothing")
                }
            }
        }
        let mut in_hand = Vec::with_capacity(moves.len());
        let mut fenced = HashMap::new();
        let mut parts = vec![moves];
        while let Some(mut part) = parts.pop() {
            let moved = match self.until_stored(&part).await {
                Ok(moved) => moved,
                Err(store::Error::Data(_)) if part.len() > 1 => {
                    let second = part.split_off(part.len() / 2);
                    parts.extend([second, part]);
                    continue;
                }
                Err(error) => {
                    error!(%error, sagas = part.len(), "recording given up; the poll takes over");
                    continue;
                }
            };
            for (moved, Move { saga, effects, .. }) in moved.into_iter().zip(part) {
                match moved {
                    Moved::Stored(stored) => {
                        observe(&saga, &effects, now);
                        in_hand.push(*stored);
                    }
                    Moved::Fenced => fenced.extend(replies.remove_entry(&saga.id)),
                }
            }
        }
        if !fenced.is_empty() {
            in_hand.extend(self.settle(fenced).await);
        }
        in_hand
    }

    /// Tries for a second: a commit of unknown fate that is repeated is fenced out, which is safe. Then the rows' own
    /// wake-up times bring them back.
    async fn until_stored(&self, moves: &[Move]) -> Result<Vec<Moved>, store::Error> {
        let began = Instant::now();
        loop {
            match self.store.record(moves.to_vec()).await {
                Err(error @ store::Error::Data(_)) => return Err(error),
                Err(error) if began.elapsed() < Duration::from_secs(1) => {
                    warn!(%error, sagas = moves.len(), "recording again");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                result => return result,
            }
        }
    }

    /// Replies for rows that somebody else moved meanwhile: matched by command and attempt under the row's lock.
    async fn settle(self: &Arc<Self>, replies: HashMap<SagaId, Reply>) -> Vec<Saga> {
        let ids = replies.keys().copied().collect();
        let decide: store::Decide = {
            let executor = Arc::clone(self);
            let promised = Promised::default();
            Arc::new(move |saga, now| {
                executor.decide_reply(saga, replies.get(&saga.id), now, &promised)
            })
        };
        match self.store.revise(Which::Ids(ids), decide).await {
            Ok(revised) => revised
                .into_iter()
                .filter(|revised| revised.moved)
                .map(|revised| revised.saga)
                .collect(),
            Err(error) => {
                warn!(%error, "replies of fenced sagas are lost; the same commands go out again");
                Vec::new()
            }
        }
    }

    pub(super) fn decide_reply(
        &self,
        saga: &Saga,
        reply: Option<&Reply>,
        now: Timestamp,
        promised: &Promised,
    ) -> Decision {
        let (Some(definition), Some(reply)) = (self.definitions.get(&saga.definition), reply)
        else {
            return Decision::Leave;
        };
        let event = &reply.event;
        if command_of(saga, event) != reply.command_id {
            return stale(event, "another run's command is current");
        }
        match transition(&definition, saga.state.clone(), event.clone(), now) {
            Ok((state, effects)) => {
                observe(saga, &effects, now);
                self.heard_later(&definition, saga, event, now);
                let (state, effects) =
                    self.go_on(&definition, state, now, promised, effects, deferred);
                Decision::Move(state, effects)
            }
            Err(why) => stale(event, &why.to_string()),
        }
    }
}

/// What came back for a command. A later run's command for the same step has another id.
pub(super) struct Reply {
    pub(super) command_id: Option<CommandId>,
    pub(super) event: Event,
}

impl Reply {
    /// `saga` is as it was when the command went out.
    fn to(saga: &Saga, event: Event) -> Reply {
        Reply {
            command_id: command_of(saga, &event),
            event,
        }
    }
}

/// The id of the command that the event answers, as the saga now names it.
fn command_of(saga: &Saga, event: &Event) -> Option<CommandId> {
    match event {
        Event::Replied {
            step, direction, ..
        } => Some(saga.state.command_id(step, *direction)),
        _ => None,
    }
}

fn stale(event: &Event, why: &str) -> Decision {
    let Event::Replied {
        step,
        attempt,
        outcome,
        ..
    } = event
    else {
        return Decision::Leave;
    };
    metrics::counter!("lapse_stale_replies_total", "outcome" => outcome.name()).increment(1);
    Decision::Stale(StaleReply {
        step: step.to_string(),
        attempt: i32::try_from(*attempt).unwrap_or(i32::MAX),
        outcome: outcome.name().to_owned(),
        why: why.to_owned(),
    })
}
