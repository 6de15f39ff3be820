//! All records in memory, and how often each blob is needed. Pure bookkeeping.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::Tenant;
use super::records::{FunctionRecord, Hash, ModuleRecord};

/// One tenant's records.
#[derive(Debug, Default)]
pub struct TenantIndex {
    /// Functions by name.
    pub functions: BTreeMap<String, Arc<FunctionRecord>>,
    /// Modules by name.
    pub modules: BTreeMap<String, Arc<ModuleRecord>>,
    /// How many records and connections need a blob.
    needed: HashMap<Hash, u32>,
}

impl TenantIndex {
    /// Whether the tenant holds this blob.
    pub fn has_blob(&self, hash: Hash) -> bool {
        self.needed.contains_key(&hash)
    }

    /// Somebody needs a blob.
    pub fn need(&mut self, hash: Hash) {
        *self.needed.entry(hash).or_default() += 1;
    }

    /// Somebody needs a blob no longer; true if nobody does.
    #[must_use]
    pub fn release(&mut self, hash: Hash) -> bool {
        let Some(count) = self.needed.get_mut(&hash) else {
            return false;
        };
        *count -= 1;
        if *count == 0 {
            self.needed.remove(&hash);
            return true;
        }
        false
    }

    /// Adds a function and what it needs.
    pub fn add_function(&mut self, record: FunctionRecord) {
        record.blobs().for_each(|hash| self.need(hash));
        self.functions.insert(record.name.clone(), Arc::new(record));
    }

    /// Adds a module and what it needs.
    pub fn add_module(&mut self, record: ModuleRecord) {
        record.variants.iter().for_each(|v| self.need(v.sha256));
        self.modules.insert(record.name.clone(), Arc::new(record));
    }
}

/// All tenants.
#[derive(Debug, Default)]
pub struct Index {
    tenants: HashMap<Tenant, TenantIndex>,
}

impl Index {
    /// A tenant's records, if there are any.
    pub fn tenant(&self, tenant: Tenant) -> Option<&TenantIndex> {
        self.tenants.get(&tenant)
    }

    /// A tenant's records.
    pub fn tenant_mut(&mut self, tenant: Tenant) -> &mut TenantIndex {
        self.tenants.entry(tenant).or_default()
    }

    /// Functions and modules of everyone.
    pub fn counts(&self) -> (u64, u64) {
        let sum = |f: fn(&TenantIndex) -> usize| self.tenants.values().map(f).sum::<usize>() as u64;
        (sum(|t| t.functions.len()), sum(|t| t.modules.len()))
    }
}
