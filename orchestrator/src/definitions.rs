//! The definitions this coordinator knows: the active set, and every other one that some saga still runs by.
//!
//! Relies on the store, where definitions lie by hash, so that a coordinator without the file can run a saga that was
//! started with it. Never: reads a file.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use lapse_sagas::{Definition, DefinitionHash, OrderEvent, routing};

use crate::bus::BadRecord;
use crate::store::{self, ActiveSet, Store};

/// A cache over the store's definitions.
pub struct Definitions {
    store: Arc<dyn Store>,
    known: RwLock<Known>,
}

#[derive(Default)]
struct Known {
    active: ActiveSet,
    by_hash: HashMap<DefinitionHash, Arc<Definition>>,
}

impl Definitions {
    /// Loads the active set.
    ///
    /// # Errors
    /// Those of [`Store::active`].
    pub async fn load(store: Arc<dyn Store>) -> Result<Definitions, store::Error> {
        let definitions = Definitions {
            store,
            known: RwLock::default(),
        };
        definitions.refresh().await?;
        Ok(definitions)
    }

    /// Looks for a new active set.
    ///
    /// # Errors
    /// Those of [`Store::active`]; what was known stays.
    pub async fn refresh(&self) -> Result<(), store::Error> {
        let active = self.store.active().await?;
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        for definition in &active.definitions {
            known
                .by_hash
                .insert(definition.hash.clone(), definition.clone());
        }
        known.active = active;
        Ok(())
    }

    /// Fetches definitions that sagas run by and that are not known yet.
    ///
    /// # Errors
    /// Those of [`Store::definitions`].
    pub async fn fetch(&self, hashes: &[DefinitionHash]) -> Result<(), store::Error> {
        let fetched = self.store.definitions(hashes).await?;
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.by_hash.extend(
            fetched
                .into_iter()
                .map(|definition| (definition.hash.clone(), definition)),
        );
        Ok(())
    }

    /// The definition with this content, if known.
    pub fn get(&self, hash: &DefinitionHash) -> Option<Arc<Definition>> {
        self.known
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .by_hash
            .get(hash)
            .cloned()
    }

    /// The active definitions.
    pub fn active(&self) -> Vec<Arc<Definition>> {
        self.known
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .active
            .definitions
            .clone()
    }

    /// The one active definition that this event starts.
    ///
    /// # Errors
    /// Those of [`routing::route`].
    pub fn route(&self, event: &OrderEvent) -> Result<Arc<Definition>, BadRecord> {
        routing::route(self.active(), event).map_err(|bad| BadRecord {
            reason: bad.reason,
            detail: bad.detail,
        })
    }

    /// The active definition of this name.
    pub fn named(&self, name: &str) -> Option<Arc<Definition>> {
        self.active()
            .into_iter()
            .find(|definition| definition.name() == name)
    }
}
