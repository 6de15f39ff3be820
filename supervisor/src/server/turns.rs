//! Turns at what takes long: registration, reading from disk, compiling. Each tenant has a few, so that one
//! tenant's thousand requests wait behind each other and not before everyone else's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::MAX_TURNS_PER_TENANT;
use crate::registry::Tenant;

/// The turns of all tenants.
#[derive(Debug, Default)]
pub struct Turns(Mutex<HashMap<Tenant, Arc<Semaphore>>>);

/// A turn, over when dropped.
#[derive(Debug, Default)]
pub struct Turn {
    /// None for who never waits.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Turns {
    /// Waits for a turn of this tenant, in the order of asking.
    pub async fn wait(&self, tenant: Tenant) -> Turn {
        let turns = {
            let mut all = self.0.lock().unwrap_or_else(|e| e.into_inner());
            all.entry(tenant).or_insert_with(|| Arc::new(Semaphore::new(MAX_TURNS_PER_TENANT))).clone()
        };
        // Never closed, so there is always a permit in the end.
        Turn { _permit: turns.acquire_owned().await.ok() }
    }
}
