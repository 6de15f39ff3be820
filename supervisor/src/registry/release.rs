//! What follows when a function is not listed any more: no call finds it, and its bytes go with the last call that holds it.

use std::sync::Arc;

use super::state::Registry;
use super::tenant::Change;
use crate::ids::FunctionId;
use crate::store::records::FunctionRecord;

impl Registry {
    /// A record is not listed any more: its function cannot be found in memory, and its bytes go with the last call that
    /// holds it. Returns its name towards workers if it was in memory.
    pub(super) fn retire(&self, change: &mut Change<'_>, record: &FunctionRecord) -> Option<FunctionId> {
        let loaded = self.loaded.remove(change.account.tenant, &record.name);
        let id = loaded.as_ref().map(|function| function.id);
        match loaded {
            // Calls hold it: a worker may still have to be given its parts.
            Some(function) if Arc::strong_count(&function) > 1 => change.leaving.push(function),
            _ => {
                let unneeded = change.blobs.release_function(record);
                change.remove(unneeded);
            }
        }
        if let Some(id) = id {
            self.tenants.live().iter().for_each(|account| account.forget_plans(id));
        }
        id
    }
}
