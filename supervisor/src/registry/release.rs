//! Bytes that nothing needs any more go from the disk: those of removed functions with the last call that holds them.

use std::sync::Arc;

use super::index::Index;
use super::state::Registry;
use crate::function::Loaded;
use crate::ids::{FunctionId, TenantId};
use crate::store::records::{FunctionRecord, Hash};

impl Registry {
    /// One record or connection needs a blob no longer.
    pub(super) fn release(&self, index: &mut Index, tenant: TenantId, hash: Hash) {
        if index.tenant_mut(tenant).release(hash) {
            self.state.remove_blob(tenant, hash);
        }
    }

    /// A record is not listed any more: its function cannot be found in memory, and its bytes go with the last call that
    /// holds it. Returns its name towards workers if it was in memory.
    pub(super) fn retire(
        &self,
        index: &mut Index,
        tenant: TenantId,
        name: &str,
        record: &FunctionRecord,
    ) -> Option<FunctionId> {
        let loaded = self.loaded.remove(tenant, name);
        let id = loaded.as_ref().map(|function| function.id);
        match loaded {
            // Calls hold it: a worker may still have to be given its parts.
            Some(function) if Arc::strong_count(&function) > 1 => self.leaving().push((tenant, function)),
            _ => self.release_function(index, tenant, record),
        }
        if let Some(id) = id {
            self.tenants.live().iter().for_each(|account| account.forget_plans(id));
        }
        id
    }

    fn release_function(&self, index: &mut Index, tenant: TenantId, record: &FunctionRecord) {
        let unneeded = index.tenant_mut(tenant).release_function(record);
        unneeded.into_iter().for_each(|hash| self.state.remove_blob(tenant, hash));
    }

    /// Releases the bytes of removed functions whose last call is over.
    pub(super) fn sweep(&self, index: &mut Index) {
        let over = |(_, function): &mut (TenantId, Arc<Loaded>)| Arc::strong_count(function) == 1;
        let gone: Vec<_> = self.leaving().extract_if(.., over).collect();
        for (tenant, function) in gone {
            self.release_function(index, tenant, &function.record);
        }
    }
}
