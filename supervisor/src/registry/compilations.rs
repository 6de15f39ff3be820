//! Who may compile now: so many modules at once in all, and one of each tenant, so that modules which keep the compiler
//! busy for as long as it may be leave a place to everybody else.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::ids::TenantId;
use crate::limits::MAX_COMPILATIONS;
use crate::sync::{OrderedMutex, rank};

/// The places.
#[derive(Debug)]
pub(super) struct Compilations {
    all: Arc<Semaphore>,
    tenants: OrderedMutex<HashMap<TenantId, Arc<Semaphore>>, { rank::COMPILATIONS }>,
}

/// A place, free again when dropped.
#[derive(Debug)]
pub(super) struct CompilePermit {
    // Never closed, so both are there.
    _all: Option<OwnedSemaphorePermit>,
    _tenant: Option<OwnedSemaphorePermit>,
}

impl Default for Compilations {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(MAX_COMPILATIONS)), tenants: OrderedMutex::default() }
    }
}

impl Compilations {
    /// Waits for a place: behind the tenant's own first, then behind everybody's.
    pub(super) async fn permit(&self, tenant: TenantId) -> CompilePermit {
        let own = {
            let mut tenants = self.tenants.lock();
            tenants.entry(tenant).or_insert_with(|| Arc::new(Semaphore::new(1))).clone()
        };
        let own = own.acquire_owned().await.ok();
        CompilePermit { _tenant: own, _all: self.all.clone().acquire_owned().await.ok() }
    }
}
