//! A saga that is asked for again, by a buyer or an operator: its cause is raised under its row's lock.
//!
//! Relies on the state machine for what may be raised. Never: shortens a retry delay, or takes what is under way.

use std::sync::{Arc, Mutex, PoisonError};

use lapse_sagas::{Active, Cause, Event, Phase, Refused, transition};

use super::Executor;
use crate::store::{self, Decision, Saga, Which};

impl Executor {
    /// Raises the cause of a saga. Whoever has it in hand goes on with it; a postponed one is due at once.
    ///
    /// # Errors
    /// Those of the store; `Ok(None)` if there is no such saga, `Ok(Some(Err(_)))` if the state machine refuses.
    pub async fn raise(
        &self,
        which: Which,
        cause: Cause,
    ) -> Result<Option<Result<Saga, Refused>>, store::Error> {
        let raised = self.raise_if_known(which.clone(), cause).await?;
        let Some(Ok(saga)) = &raised else {
            return Ok(raised);
        };
        if self.definitions.get(&saga.definition).is_some() {
            return Ok(raised);
        }
        self.definitions
            .fetch(std::slice::from_ref(&saga.definition))
            .await?;
        self.raise_if_known(which, cause).await
    }

    /// Leaves a saga alone whose definition is not known here.
    async fn raise_if_known(
        &self,
        which: Which,
        cause: Cause,
    ) -> Result<Option<Result<Saga, Refused>>, store::Error> {
        let refused: Arc<Mutex<Option<Refused>>> = Arc::default();
        let decide: store::Decide = {
            let (definitions, refused) = (Arc::clone(&self.definitions), Arc::clone(&refused));
            Arc::new(move |saga, now| {
                let Some(definition) = definitions.get(&saga.definition) else {
                    return Decision::Leave;
                };
                let moved = transition(
                    &definition,
                    saga.state.clone(),
                    Event::CauseRaised { cause },
                    now,
                );
                let mut refused = refused.lock().unwrap_or_else(PoisonError::into_inner);
                match moved {
                    Ok((state, effects)) => {
                        *refused = None;
                        Decision::Move(state, effects)
                    }
                    Err(why) => {
                        *refused = Some(why);
                        Decision::Leave
                    }
                }
            })
        };
        let Some(revised) = self.store.revise(which, decide).await?.pop() else {
            return Ok(None);
        };
        let refused = refused
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(why) = refused {
            return Ok(Some(Err(why)));
        }
        // What is under way stays where it is; what was only taken is fenced off from its holder now, so it is ours.
        let is_sent = |active: &Active| active.phase == Phase::Sent;
        if !revised.saga.state.active.values().any(is_sent) {
            self.submit([revised.saga.clone()]);
        }
        Ok(Some(Ok(revised.saga)))
    }
}
