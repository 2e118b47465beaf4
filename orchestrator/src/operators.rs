//! What an operator does to a saga that stopped: run + 1, or closed by hand.
//!
//! Relies on the state machine to say what may be done, on the row's lock to let one of two operators win, and on the poll
//! to go on with the saga: it is due at once, in nobody's hand. Never: needs a coordinator.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use lapse_sagas::{
    Definition, DefinitionHash, Effect, Event, Refused, SagaId, State, Timestamp, transition,
};

use crate::executor::taken;
use crate::store::{self, Decision, Saga, Store, Which};

/// The longest reason, in characters.
const LONGEST_REASON: usize = 1_000;
/// The longest name of an actor, in characters.
const LONGEST_ACTOR: usize = 200;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Run + 1.
    Retry,
    /// Close by hand.
    Resolve,
}

impl Act {
    /// As in history, once it is done.
    pub fn done(self) -> &'static str {
        match self {
            Act::Retry => "retried",
            Act::Resolve => "resolved",
        }
    }
}

/// What is to be done, by whom and why; both go into the saga's history.
#[derive(Clone, Debug)]
pub struct Deed {
    act: Act,
    actor: String,
    reason: String,
}

/// One saga and what became of it.
#[derive(Clone, Debug)]
pub struct Operated {
    /// As it now is.
    pub saga: Saga,
    /// Why it was left alone; none if it was done.
    pub refused: Option<Refused>,
}

impl Deed {
    /// # Errors
    /// What is wrong with actor or reason.
    pub fn new(act: Act, actor: &str, reason: &str) -> Result<Deed, String> {
        Ok(Deed {
            act,
            actor: name(actor)?,
            reason: line("reason", reason, LONGEST_REASON)?,
        })
    }

    /// The act.
    pub fn act(&self) -> Act {
        self.act
    }

    fn event(&self) -> Event {
        let (actor, reason) = (self.actor.clone(), self.reason.clone());
        match self.act {
            Act::Retry => Event::Retry { actor, reason },
            Act::Resolve => Event::Resolve { actor, reason },
        }
    }
}

/// Who did it, as histories have it.
///
/// # Errors
/// What is wrong with it.
pub fn name(actor: &str) -> Result<String, String> {
    line("actor", actor, LONGEST_ACTOR)
}

/// A line of text that says something.
///
/// # Errors
/// What is wrong with it.
pub fn line(name: &str, text: &str, longest: usize) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() {
        return Err(format!("{name} is empty; it goes into the history"));
    }
    if text.chars().count() > longest {
        return Err(format!("{name} is longer than {longest} characters"));
    }
    if text.chars().any(char::is_control) {
        return Err(format!(
            "{name} has a line break or another control character"
        ));
    }
    Ok(text.to_owned())
}

/// Does it to these sagas, in one transaction. Those that are not there are left out.
///
/// # Errors
/// Those of [`Store::revise`] and [`Store::definitions`]; nothing was done.
pub async fn operate(
    store: &dyn Store,
    ids: &[SagaId],
    deed: &Deed,
) -> Result<Vec<Operated>, store::Error> {
    // The first look only says by which definitions they run: an older one may not be active any more.
    let unknown = decided(store, ids, deed, HashMap::new()).await?.unknown;
    let definitions = store.definitions(&unknown).await?;
    let known: HashMap<_, _> = definitions
        .into_iter()
        .map(|definition| (definition.hash.clone(), definition))
        .collect();
    if let Some(missing) = unknown.iter().find(|hash| !known.contains_key(*hash)) {
        return Err(store::Error::Defect(format!(
            "definition {missing} is not in the database, yet sagas run by it"
        )));
    }
    Ok(decided(store, ids, deed, known).await?.operated)
}

/// What one transaction gave.
struct Decided {
    operated: Vec<Operated>,
    unknown: Vec<DefinitionHash>,
}

async fn decided(
    store: &dyn Store,
    ids: &[SagaId],
    deed: &Deed,
    known: HashMap<DefinitionHash, Arc<Definition>>,
) -> Result<Decided, store::Error> {
    let refused: Arc<Mutex<HashMap<SagaId, Refused>>> = Arc::default();
    let unknown: Arc<Mutex<BTreeSet<DefinitionHash>>> = Arc::default();
    let decide: store::Decide = {
        let (refused, unknown, deed) = (refused.clone(), unknown.clone(), deed.clone());
        Arc::new(move |saga, now| {
            let Some(definition) = known.get(&saga.definition) else {
                let mut unknown = unknown.lock().unwrap_or_else(PoisonError::into_inner);
                unknown.insert(saga.definition.clone());
                return Decision::Leave;
            };
            let mut refused = refused.lock().unwrap_or_else(PoisonError::into_inner);
            match done(definition, saga.state.clone(), deed.event(), now) {
                Ok((state, effects)) => {
                    refused.remove(&saga.id);
                    Decision::Move(state, effects)
                }
                Err(why) => {
                    refused.insert(saga.id, why);
                    Decision::Leave
                }
            }
        })
    };
    let revised = store.revise(Which::Ids(ids.to_vec()), decide).await?;
    let mut refused = std::mem::take(&mut *refused.lock().unwrap_or_else(PoisonError::into_inner));
    let operated = revised.into_iter().map(|revised| Operated {
        refused: refused.remove(&revised.saga.id),
        saga: revised.saga,
    });
    let operated = operated.collect();
    let unknown = std::mem::take(&mut *unknown.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(Decided {
        operated,
        unknown: unknown.into_iter().collect(),
    })
}

/// A step that is open again waits for the next poll, as if its turn had come: taken it would seem to be in somebody's hand.
fn done(
    definition: &Definition,
    state: State,
    event: Event,
    now: Timestamp,
) -> Result<(State, Vec<Effect>), Refused> {
    let (mut state, mut effects) = transition(definition, state, event, now)?;
    for step in taken(&state) {
        let queued = Event::Queued { step, until: now };
        let (next, more) = transition(definition, state, queued, now)?;
        state = next;
        effects.extend(more);
    }
    Ok((state, effects))
}
