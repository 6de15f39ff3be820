//! What follows when a function goes. One that is not listed any more is found by no call, and its bytes go with the last
//! call that holds it; one that is only evicted from memory comes back when it is called.

use std::sync::Arc;
use std::time::Duration;

use super::state::Registry;
use super::tenant::Change;
use crate::function::Loaded;
use crate::ids::FunctionId;
use crate::store::records::FunctionRecord;

/// How long a function stays in memory that no connected tenant uses: this, and as long again at most.
const UNUSED: Duration = Duration::from_secs(30);

impl Registry {
    /// A record is not listed any more: its function cannot be found in memory, and its bytes go with the last call that
    /// holds it. Returns its name towards workers if it was in memory.
    pub(super) fn retire(&self, change: &mut Change<'_>, record: &FunctionRecord) -> Option<FunctionId> {
        let loaded = self.loaded.remove(change.account.tenant, &record.name);
        let id = loaded.as_ref().map(|function| function.id);
        if let Some(function) = &loaded {
            self.forget_plans(function);
        }
        match loaded {
            // Calls hold it: a worker may still have to be given its parts.
            Some(function) if Arc::strong_count(&function) > 1 => change.leaving.push(function),
            _ => {
                let unneeded = change.blobs.release_function(record);
                change.remove(unneeded);
            }
        }
        id
    }

    /// A function is not in memory any more: plans of it are of no use.
    fn forget_plans(&self, function: &Loaded) {
        let callers = function.callers();
        self.tenants.forget_plans(function.id, function.owner, callers.iter().map(|name| &**name));
        self.tenants.forget_plans(function.id.checked(), function.owner, std::iter::empty());
    }

    /// What is kept of functions under the name that they have in memory goes with them: plans here, and everything else
    /// that `told` forgets. Said once.
    pub fn on_eviction(self: &Arc<Self>, told: impl Fn(FunctionId) + Send + Sync + 'static) {
        let registry = Arc::downgrade(self);
        self.loaded.on_eviction(move |function| {
            registry.upgrade().inspect(|registry| registry.forget_plans(function));
            told(function.id);
            if function.checked().is_some() {
                told(function.id.checked());
            }
        });
    }

    /// Evicts functions that nothing uses and whose owner and callers are not connected, from time to time.
    pub async fn run_evictions(self: Arc<Self>) {
        loop {
            tokio::time::sleep(UNUSED).await;
            let this = self.clone();
            let _ = tokio::task::spawn_blocking(move || this.evict_unused()).await;
        }
    }

    fn evict_unused(&self) {
        let names = self.tenants.names();
        self.loaded.evict_unused(|function| {
            let callers = function.callers();
            let callers = callers.iter().filter_map(|name| names.find(name));
            std::iter::once(function.owner).chain(callers).any(|tenant| self.tenants.is_connected(tenant))
        });
    }
}
