//! Permits for slow work: registration, reading from disk, compiling. Each tenant has a few, so that a tenant with a
//! thousand requests delays itself and no other tenant.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::ids::TenantId;
use crate::limits::MAX_SLOW_REQUESTS_PER_TENANT;
use crate::sync::{OrderedMutex, rank};

/// The permits of all tenants.
#[derive(Debug, Default)]
pub struct SlowWork(OrderedMutex<HashMap<TenantId, Arc<Semaphore>>, { rank::SLOW_WORK }>);

/// A permit for one piece of slow work, given back when dropped.
#[derive(Debug, Default)]
pub struct SlowWorkPermit {
    /// None for the operator, who needs no permit.
    _permit: Option<OwnedSemaphorePermit>,
}

impl SlowWork {
    /// Waits for a permit of this tenant; permits go out in the order of the requests.
    pub async fn acquire(&self, tenant: TenantId) -> SlowWorkPermit {
        let permits = {
            let mut all = self.0.lock();
            all.entry(tenant)
                .or_insert_with(|| Arc::new(Semaphore::new(MAX_SLOW_REQUESTS_PER_TENANT)))
                .clone()
        };
        // The semaphore is never closed, so the permit is always there.
        SlowWorkPermit { _permit: permits.acquire_owned().await.ok() }
    }
}
