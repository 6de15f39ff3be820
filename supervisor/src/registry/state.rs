//! Everything that is registered: its parts, and how they are read from the state directory.
//!
//! Each tenant's part has a lock of its own, under which its files change; what is read of it is a snapshot.

use std::collections::HashMap;
use std::sync::Arc;

use super::compilations::Compilations;
use super::device_class::DeviceClass;
use super::failures::Failures;
use super::snapshot::{FunctionEntry, Granted, ModuleEntry, Snapshot};
use super::tenant::{Counts, TenantRegistry};
use super::version_names::base;
use crate::blocking::BlockingThreads;
use crate::client_io::ClientIo;
use crate::function::loaded::Callers;
use crate::function::packed_weights::WeightsCache;
use crate::function::{CodeTarget, LoadedCache};
use crate::ids::TenantId;
use crate::limits::MAX_COMPILATIONS;
use crate::store::StateError;
use crate::store::records::{
    AliasRecord, Aliases, DeclinedRecord, FunctionRecord, GrantRecord, Kind, ModuleRecord,
};
use crate::store::state_dir::{StateDir, Stored};
use crate::sync::{OrderedMutex, OrderedRwLock, rank};
use crate::tenants::Tenants;

/// Everything that is registered. Lookups and changes are methods in files of their own.
#[derive(Debug)]
pub struct Registry {
    pub(super) state: Arc<StateDir>,
    /// Whose all of it is.
    pub tenants: Arc<Tenants>,
    /// Those that have anything registered, or had since the start.
    registries: OrderedRwLock<HashMap<TenantId, Arc<TenantRegistry>>, { rank::REGISTRIES }>,
    pub(super) granted: OrderedMutex<Granted, { rank::GRANTED }>,
    pub(super) counts: Arc<Counts>,
    /// Functions in memory.
    pub loaded: LoadedCache,
    /// Weights that they have.
    pub(super) weights: WeightsCache,
    /// Gives memory of weights back.
    pub(super) io: ClientIo,
    /// Devices to make machine code for.
    pub(super) classes: Vec<DeviceClass>,
    /// What it must have been made for, as far as workers said so.
    pub(super) targets: tokio::sync::watch::Receiver<Vec<CodeTarget>>,
    /// Who may compile, for each class of devices.
    pub(super) compilations: Vec<Compilations>,
    /// Who may have modules read that no device here runs.
    pub(super) describing: Compilations,
    /// Where work that waits is done.
    pub threads: BlockingThreads,
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
        let registry = Self {
            state: state.clone(),
            tenants,
            registries: OrderedRwLock::default(),
            granted: OrderedMutex::default(),
            counts: Arc::default(),
            loaded: LoadedCache::default(),
            weights: WeightsCache::default(),
            io: ClientIo::default(),
            compilations: classes.iter().map(places).collect(),
            classes,
            targets,
            describing: Compilations::new(MAX_COMPILATIONS),
            threads: BlockingThreads::default(),
            failures: Failures::default(),
        };
        for tenant in state.tenants()? {
            registry.read(tenant)?;
        }
        Ok(registry)
    }

    /// Reads a tenant's modules, functions and grants; bytes that they do not need go. While a record is damaged it is not known
    /// what it needs, so everything that was there stays: its bytes, and the grants of functions that are not.
    fn read(&self, tenant: TenantId) -> Result<(), StateError> {
        self.state.finish_change(tenant)?;
        // Records that were changing together and are damaged may need anything.
        let damaged = self.state.damaged_change(tenant)?;
        let is_whole = damaged.is_none();
        let mine = self.registry_of(tenant);
        let mut change = mine.change(self.tenants.account(tenant));
        let mut read = Snapshot::default();
        let modules = self.state.records::<ModuleRecord>(tenant)?;
        for (record, disk_bytes) in modules.fit {
            change.blobs.need_variants(&record);
            let entry = ModuleEntry { record: record.into(), disk_bytes };
            change.module_written(None, Some(&entry));
            read.put_module(entry);
        }
        for (record, disk_bytes) in self.state.records::<DeclinedRecord>(tenant)?.fit {
            change.declined_written(&record.name, None, Some(disk_bytes));
            read.declined.insert_mut(record.name, disk_bytes);
        }
        let grants = self.state.records::<GrantRecord>(tenant)?;
        let aliases = self.state.records::<AliasRecord>(tenant)?;
        let mut functions = self.state.records::<FunctionRecord>(tenant)?;
        self.remove_copies(tenant, &mut functions.fit)?;
        let mut aliased: HashMap<String, (Arc<Aliases>, u64)> =
            aliases.fit.into_iter().map(|(one, bytes)| (one.name, (one.aliases.into(), bytes))).collect();
        let mut granted = by_function(grants.fit);
        let owner = self.tenants.names().name(tenant);
        for (record, disk_bytes) in functions.fit {
            change.blobs.need_function(&record);
            let (callers, grant_disk_bytes) = granted.remove(&record.name).unwrap_or_default();
            self.granted.lock().change(&owner, &record.name, &Callers::default(), &callers);
            let (aliases, alias_disk_bytes) = aliased.remove(&record.name).unwrap_or_default();
            let record = record.into();
            let entry =
                FunctionEntry { record, callers, aliases, disk_bytes, grant_disk_bytes, alias_disk_bytes };
            change.function_written(None, Some(&entry));
            read.put_function(entry);
        }
        functions.corrupt = functions.corrupt.or(damaged);
        let granted = granted.into_keys().map(|name| (Kind::Grant, name));
        for (kind, name) in granted.chain(aliased.into_keys().map(|name| (Kind::Alias, name))) {
            match functions.corrupt {
                Some(_) => drop(change.alone.insert((kind, name))),
                // What is left of a function that is gone.
                None => self.state.remove_record(tenant, kind, &name)?,
            }
        }
        let mut stored = self.state.stored(tenant, is_whole)?;
        let there = stored.iter().filter(|stored| stored.code.is_none()).map(|stored| stored.hash).collect();
        let corrupt = functions.corrupt.or(modules.corrupt).or(grants.corrupt);
        let lacks = change.blobs.first_missing_from(&there).map(|hash| self.state.blob_path(tenant, hash));
        if let Some(path) = corrupt.as_ref().or(lacks.as_ref()) {
            let why = match corrupt {
                Some(_) => "does not fit, and may need them",
                None => "is missing, so that what needs it may be damaged",
            };
            let path = path.display();
            tracing::warn!(tenant = &*owner, "bytes that no function needs are not removed: {path} {why}");
            stored
                .iter()
                .filter(|stored| stored.code.is_none())
                .for_each(|stored| change.blobs.need(stored.hash));
        }
        let unneeded = stored.extract_if(.., |stored| !change.blobs.has(stored.hash)).collect();
        self.state.remove_stored(unneeded);
        for Stored { hash, code, bytes, disk_bytes, .. } in stored {
            match code {
                None => change.blobs.measured(hash, bytes, disk_bytes),
                Some(fingerprint) => change.blobs.add_code(hash, &fingerprint, disk_bytes, 1),
            }
        }
        change.publish(|next| *next = read);
        Ok(())
    }

    /// Removes kept versions that are current, too: what is left where a file was brought back.
    fn remove_copies(
        &self,
        tenant: TenantId,
        functions: &mut Vec<(FunctionRecord, u64)>,
    ) -> Result<(), StateError> {
        let current: HashMap<String, u32> =
            functions.iter().map(|(record, _)| (record.name.clone(), record.number)).collect();
        let is_copy = |(record, _): &mut (FunctionRecord, u64)| {
            let name = base(&record.name);
            name != record.name && current.get(name) == Some(&record.number)
        };
        for (copy, _) in functions.extract_if(.., is_copy) {
            self.state.remove_record(tenant, Kind::Function, &copy.name)?;
        }
        Ok(())
    }

    /// A tenant's part, empty if it has none yet.
    pub(super) fn registry_of(&self, tenant: TenantId) -> Arc<TenantRegistry> {
        if let Some(found) = self.found(tenant) {
            return found;
        }
        let new = || Arc::new(TenantRegistry::new(tenant, self.state.clone(), self.counts.clone()));
        self.registries.write().entry(tenant).or_insert_with(new).clone()
    }

    fn found(&self, tenant: TenantId) -> Option<Arc<TenantRegistry>> {
        self.registries.read().get(&tenant).cloned()
    }

    /// What a tenant registered.
    pub(super) fn snapshot(&self, tenant: TenantId) -> Snapshot {
        self.found(tenant).map(|found| found.published()).unwrap_or_default()
    }

    /// Looks at what a tenant registered, without a copy of it.
    pub(super) fn look<T>(&self, tenant: TenantId, look: impl FnOnce(&Snapshot) -> T) -> Option<T> {
        self.found(tenant).map(|found| found.look(look))
    }

    /// Tenants that have anything registered, or had since the start.
    pub fn known_tenants(&self) -> Vec<TenantId> {
        self.registries.read().keys().copied().collect()
    }
}

/// By function, who else may call it, and what that record takes on disk.
fn by_function(records: Vec<(GrantRecord, u64)>) -> HashMap<String, (Callers, u64)> {
    let sorted = records.into_iter().map(|(GrantRecord { name, mut callers }, disk_bytes)| {
        callers.sort_unstable();
        callers.dedup();
        (name, (callers.into(), disk_bytes))
    });
    sorted.collect()
}

/// Places to compile for these devices: a GPU has memory for one context besides those of its workers.
fn places(class: &DeviceClass) -> Compilations {
    Compilations::new(if class.kind.traits().has_own_memory { 1 } else { MAX_COMPILATIONS })
}
