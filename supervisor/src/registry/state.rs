//! Everything that is registered: its parts, and how they are read from the state directory.
//!
//! The lock on the index is held while records and blobs change on disk, so the two never disagree.

use std::sync::Arc;

use super::compilations::Compilations;
use super::device_class::DeviceClass;
use super::failures::Failures;
use super::index::Index;
use crate::function::CodeTarget;
use crate::function::loaded::{Loaded, LoadedCache};
use crate::ids::TenantId;
use crate::store::StateError;
use crate::store::records::{FunctionRecord, GrantRecord, ModuleRecord};
use crate::store::state_dir::{Kind, StateDir};
use crate::sync::{OrderedGuard, OrderedMutex, rank};
use crate::tenants::Tenants;

/// Everything that is registered. Lookups and changes are methods in files of their own.
#[derive(Debug)]
pub struct Registry {
    pub(super) state: Arc<StateDir>,
    /// Whose all of it is.
    pub tenants: Arc<Tenants>,
    index: OrderedMutex<Index, { rank::INDEX }>,
    /// Functions in memory.
    pub loaded: LoadedCache,
    /// Removed functions that calls still hold.
    leaving: OrderedMutex<Vec<(TenantId, Arc<Loaded>)>, { rank::LEAVING_FUNCTIONS }>,
    /// Devices to make machine code for.
    pub(super) classes: Vec<DeviceClass>,
    /// What it must have been made for, as far as workers said so.
    pub(super) targets: tokio::sync::watch::Receiver<Vec<CodeTarget>>,
    pub(super) compilations: Compilations,
    /// Those that need not be tried again.
    pub(super) failures: Failures,
}

impl Registry {
    /// Reads what is registered and removes what nothing needs.
    pub fn open(
        state: Arc<StateDir>,
        tenants: Arc<Tenants>,
        classes: Vec<DeviceClass>,
        targets: tokio::sync::watch::Receiver<Vec<CodeTarget>>,
    ) -> Result<Self, StateError> {
        let mut index = Index::default();
        for tenant in state.tenants()? {
            read(&state, tenant, &mut index)?;
            read_grants(&state, tenant, &mut index)?;
        }
        Ok(Self {
            state,
            tenants,
            index: OrderedMutex::new(index),
            loaded: LoadedCache::default(),
            leaving: OrderedMutex::default(),
            classes,
            targets,
            compilations: Compilations::default(),
            failures: Failures::default(),
        })
    }

    pub(super) fn index(&self) -> OrderedGuard<'_, Index, { rank::INDEX }> {
        self.index.lock()
    }

    pub(super) fn leaving(
        &self,
    ) -> OrderedGuard<'_, Vec<(TenantId, Arc<Loaded>)>, { rank::LEAVING_FUNCTIONS }> {
        self.leaving.lock()
    }
}

/// Reads a tenant's modules and functions; bytes that they do not need go.
fn read(state: &StateDir, tenant: TenantId, index: &mut Index) -> Result<(), StateError> {
    let mine = index.tenant_mut(tenant);
    let modules: Vec<ModuleRecord> = state.records(tenant, Kind::Module)?;
    modules.into_iter().for_each(|record| mine.add_module(record.into()));
    let functions: Vec<FunctionRecord> = state.records(tenant, Kind::Function)?;
    functions.into_iter().for_each(|record| mine.add_function(record.into()));
    state.collect_garbage(tenant, |hash| mine.has_blob(hash))?;
    for hash in mine.unmeasured() {
        let blob = state.open_blob(tenant, hash).and_then(|blob| state.bytes_of(&blob));
        mine.measured(hash, blob.unwrap_or(0));
    }
    Ok(())
}

/// Reads what a tenant granted; what is left of functions that are gone goes.
fn read_grants(state: &StateDir, owner: TenantId, index: &mut Index) -> Result<(), StateError> {
    for GrantRecord { name, mut callers } in state.records(owner, Kind::Grant)? {
        if !index.tenant_mut(owner).functions.contains_key(&name) {
            state.remove_record(owner, Kind::Grant, &name)?;
            continue;
        }
        callers.sort_unstable();
        callers.dedup();
        index.grant(owner, &state.names().name(owner), &name, callers.into());
    }
    Ok(())
}
