//! Adding and removing modules and functions. Blocking: callers run it off the socket's threads.
//!
//! An acknowledged record is on disk with every blob it needs. The index lock is held while records and
//! blobs change on disk, so the two never disagree.

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Bound;
use std::sync::Arc;

use pappus_blueprint::Blueprint;
use pappus_proto::limits::is_valid_name;
use pappus_proto::v1;

use super::code::Wish;
use super::compilations::Compilations;
use super::device_class::DeviceClass;
use super::failures::Failures;
use super::grants;
use super::index::{Index, TenantIndex};
use crate::function::CodeTarget;
use crate::function::loaded::{Loaded, LoadedCache, Parsed};
use crate::ids::{FunctionId, TenantId};
use crate::limits::{LIST_PAGE, MAX_MODULES, MAX_SIGNATURE_BYTES};
use crate::refusal::{Reason, Refusal, failed, refusal};
use crate::store::records::{FunctionRecord, Hash, ModuleRecord, Output, Variant};
use crate::store::state_dir::{Kind, StateDir, StateError};
use crate::sync::{OrderedGuard, OrderedMutex, rank};
use crate::tenants::{Account, Limit, Tenants};

/// Everything that is registered.
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

/// A function that was registered.
#[derive(Debug)]
pub struct Registered {
    /// As its owner sees it.
    pub info: v1::FunctionInfo,
    /// The name towards workers of the function that it replaced, if that was in memory.
    pub replaced: Option<FunctionId>,
}

/// Blobs that one connection handed over and nothing refers to yet; released when it ends.
#[derive(Debug, Default)]
pub struct Handed(OrderedMutex<Vec<Hash>, { rank::HANDED_BLOBS }>);

impl Handed {
    /// Whether there is nothing to release.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
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
            let mine = index.tenant_mut(tenant);
            state.records(tenant, Kind::Module)?.into_iter().for_each(|record| mine.add_module(record));
            state.records(tenant, Kind::Function)?.into_iter().for_each(|record| mine.add_function(record));
            state.collect_garbage(tenant, |hash| mine.has_blob(hash))?;
            for hash in mine.unmeasured() {
                let blob = state.open_blob(tenant, hash).and_then(|blob| state.bytes_of(&blob));
                mine.measured(hash, blob.unwrap_or(0));
            }
            grants::read(&state, tenant, &mut index)?;
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

    /// What a tenant has registered of what is limited.
    pub fn used(&self, tenant: TenantId) -> [(Limit, u64); 3] {
        let index = self.index();
        let of = |amount: fn(&TenantIndex) -> u64| index.tenant(tenant).map_or(0, amount);
        [
            (Limit::Functions, of(|mine| mine.functions.len() as u64)),
            (Limit::ModuleBytes, of(TenantIndex::module_bytes)),
            (Limit::BlobBytes, of(TenantIndex::blob_bytes)),
        ]
    }

    /// Tenants that have anything registered, or had since the start.
    pub fn known_tenants(&self) -> Vec<TenantId> {
        self.index().tenants().collect()
    }

    /// Functions and modules of one tenant.
    pub fn counts_of(&self, tenant: TenantId) -> (u64, u64) {
        let index = self.index();
        index.tenant(tenant).map_or((0, 0), |t| (t.functions.len() as u64, t.modules.len() as u64))
    }

    /// Functions and modules of everyone.
    pub fn counts(&self) -> (u64, u64) {
        self.index().counts()
    }

    /// Stores bytes for later use by this connection.
    pub fn put_blob(
        &self,
        account: &Account,
        handed: &Handed,
        bytes: u64,
        content: impl Read,
    ) -> Result<(Hash, u64), Refusal> {
        let tenant = account.tenant;
        {
            let mut index = self.index();
            let mine = index.tenant_mut(tenant);
            account.check(Limit::BlobBytes, mine.blob_bytes(), bytes)?;
            mine.incoming_bytes += bytes;
        }
        // Stored before it is needed: the lock is only held for the bookkeeping. Garbage collection
        // runs at start, and a release in between removes at most a file that is written again below.
        let stored = self.state.put_blob(tenant, content);
        let mut index = self.index();
        let mine = index.tenant_mut(tenant);
        mine.incoming_bytes -= bytes;
        let stored = stored.map_err(|e| failed("cannot store the bytes", &e))?;
        mine.need(stored.0);
        mine.measured(stored.0, stored.1);
        handed.0.lock().push(stored.0);
        if let Err(e) = self.state.open_blob(tenant, stored.0) {
            self.release(&mut index, tenant, stored.0);
            return Err(failed("cannot store the bytes", &e));
        }
        Ok(stored)
    }

    /// A connection ended: what it handed over and nothing refers to goes.
    pub fn release_handed(&self, tenant: TenantId, handed: &Handed) {
        let hashes = std::mem::take(&mut *handed.0.lock());
        let mut index = self.index();
        self.sweep(&mut index);
        hashes.into_iter().for_each(|hash| self.release(&mut index, tenant, hash));
    }

    fn release(&self, index: &mut Index, tenant: TenantId, hash: Hash) {
        if index.tenant_mut(tenant).release(hash) {
            self.state.remove_blob(tenant, hash);
        }
    }

    /// Registers a module by name.
    pub fn add_module(&self, account: &Account, request: v1::AddModule) -> Result<v1::ModuleInfo, Refusal> {
        let tenant = account.tenant;
        check_name("module", &request.name)?;
        let variants = self.check_variants(tenant, &request.name, &request.variants)?;
        let infos = self.inspect(tenant, &request.name, &variants, Wish::Afresh)?;
        let record = ModuleRecord { name: request.name, variants };
        let mut index = self.index();
        let mine = index.tenant_mut(tenant);
        match mine.modules.get(&record.name) {
            Some(existing) if **existing == record => {}
            Some(_) => return Err(exists("module", &record.name)),
            None if !record.variants.iter().all(|v| mine.has_blob(v.sha256)) => return Err(vanished()),
            None if mine.modules.len() >= MAX_MODULES => return Err(too_many("modules", MAX_MODULES)),
            None => {
                check_module_bytes(account, mine, record.variants.iter())?;
                self.state.put_module(tenant, &record).map_err(|e| failed("cannot store the module", &e))?;
                mine.add_module(record.clone());
            }
        }
        Ok(v1::ModuleInfo { name: record.name, variants: infos })
    }

    /// Removes a module; functions that use it keep their copy.
    pub fn remove_module(&self, tenant: TenantId, name: &str) -> Result<(), Refusal> {
        let mut index = self.index();
        let Some(record) = index.tenant_mut(tenant).modules.get(name).cloned() else {
            return Err(unknown("module", name));
        };
        self.state
            .remove_record(tenant, Kind::Module, name)
            .map_err(|e| failed("cannot remove the module", &e))?;
        let unneeded = index.tenant_mut(tenant).remove_module(&record);
        unneeded.into_iter().for_each(|hash| self.state.remove_blob(tenant, hash));
        Ok(())
    }

    /// A tenant's modules with names after `after`, a page of them.
    pub fn list_modules(&self, tenant: TenantId, after: &str) -> v1::ModuleList {
        let (page, more) = page(self.index().tenant(tenant).map(|t| &t.modules), after);
        let info = |m: &Arc<ModuleRecord>| {
            let variants = m.variants.iter().map(plain_info).collect();
            v1::ModuleInfo { name: m.name.clone(), variants }
        };
        v1::ModuleList { modules: page.iter().map(info).collect(), more }
    }

    /// One module with its kernels.
    pub fn show_module(&self, tenant: TenantId, name: &str) -> Result<v1::ModuleInfo, Refusal> {
        let record = self.index().tenant(tenant).and_then(|t| t.modules.get(name).cloned());
        let record = record.ok_or_else(|| unknown("module", name))?;
        let variants = self.inspect(tenant, name, &record.variants, Wish::Known)?;
        Ok(v1::ModuleInfo { name: record.name.clone(), variants })
    }

    /// Registers a function; with `replace`, in the place of one of the same name. Calls that were accepted finish with
    /// the old one, whose grants the new one has.
    pub fn add_function(&self, account: &Account, request: v1::AddFunction) -> Result<Registered, Refusal> {
        let tenant = account.tenant;
        check_name("function", &request.name)?;
        let config_hash = self.check_blob(tenant, "config_sha256", &request.config_sha256)?;
        let config = self.read_config(tenant, config_hash)?;
        let blueprint = parse(&config)?;
        let modules = self.check_modules(tenant, &blueprint, &request.modules)?;
        let classes = self.runnable(&modules)?;
        let weights = self.check_weights(tenant, &blueprint, &request.weights)?;
        let classes = self.with_room(&weights, classes)?;
        self.check_code(tenant, &blueprint, &modules, &classes, Wish::Afresh)?;
        self.check_declared(tenant, &blueprint, &modules)?;
        let buffers = blueprint.buffers();
        let inputs = blueprint.inputs().iter().map(|id| buffers[id.index()].name.as_str().into()).collect();
        let outputs = blueprint.outputs().iter().map(|id| &buffers[id.index()]).map(|buffer| Output {
            name: buffer.name.as_str().into(),
            dtype: buffer.dtype.map_or("", |d| d.name()).into(),
        });
        let (mut inputs, mut outputs): (Box<[Box<str>]>, Box<[Output]>) = (inputs, outputs.collect());
        let names = inputs.iter().chain(outputs.iter().map(|output| &output.name));
        if names.map(|name| name.len()).sum::<usize>() > MAX_SIGNATURE_BYTES {
            (inputs, outputs) = Default::default();
        }
        let record =
            FunctionRecord { name: request.name, config: config_hash, modules, weights, inputs, outputs };
        let info = function_info(&record);
        let mut index = self.index();
        self.sweep(&mut index);
        let mine = index.tenant_mut(tenant);
        let before = mine.functions.get(&record.name).cloned();
        match &before {
            Some(existing) if **existing == record => return Ok(Registered { info, replaced: None }),
            Some(_) if !request.replace => return Err(exists("function", &record.name)),
            _ if !record.blobs().all(|hash| mine.has_blob(hash)) => return Err(vanished()),
            Some(existing) => {
                let (kept, more) = mine.replaced_module_bytes(existing, &record);
                account.check(Limit::ModuleBytes, kept, more)?;
            }
            None => {
                account.check(Limit::Functions, mine.functions.len() as u64, 1)?;
                check_module_bytes(account, mine, record.variants())?;
            }
        }
        // By rename: after a crash the record is the old one or the new one.
        self.state.put_function(tenant, &record).map_err(|e| failed("cannot store the function", &e))?;
        tracing::debug!(tenant = &*account.name, function = record.name, "registered");
        let name = record.name.clone();
        // Before the old one is released: what both need stays.
        mine.add_function(record);
        let replaced = before.and_then(|before| self.retire(&mut index, tenant, &name, &before));
        Ok(Registered { info, replaced })
    }

    /// A record is not listed any more: nobody finds the function in memory, and its bytes go with the last call that
    /// holds it. Returns its name towards workers if it was in memory.
    fn retire(
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

    /// Removes a function; calls that were accepted finish. Returns its name towards workers if it was in
    /// memory.
    pub fn remove_function(&self, account: &Account, name: &str) -> Result<Option<FunctionId>, Refusal> {
        let tenant = account.tenant;
        let name = self.own(account, name)?;
        let mut index = self.index();
        self.sweep(&mut index);
        let Some(record) = index.tenant_mut(tenant).functions.get(name).cloned() else {
            return Err(unknown("function", name));
        };
        // First, so that whatever breaks off here, another function of this name is nobody else's.
        self.forget_grants(&mut index, account, name)?;
        self.state
            .remove_record(tenant, Kind::Function, name)
            .map_err(|e| failed("cannot remove the function", &e))?;
        index.tenant_mut(tenant).functions.remove(name);
        Ok(self.retire(&mut index, tenant, name, &record))
    }

    fn release_function(&self, index: &mut Index, tenant: TenantId, record: &FunctionRecord) {
        let unneeded = index.tenant_mut(tenant).release_function(record);
        unneeded.into_iter().for_each(|hash| self.state.remove_blob(tenant, hash));
    }

    fn leaving(&self) -> OrderedGuard<'_, Vec<(TenantId, Arc<Loaded>)>, { rank::LEAVING_FUNCTIONS }> {
        self.leaving.lock()
    }

    /// Releases the bytes of removed functions whose last call is over.
    fn sweep(&self, index: &mut Index) {
        let over = |(_, function): &mut (TenantId, Arc<Loaded>)| Arc::strong_count(function) == 1;
        let gone: Vec<_> = self.leaving().extract_if(.., over).collect();
        for (tenant, function) in gone {
            self.release_function(index, tenant, &function.record);
        }
    }

    /// A page of a tenant's functions with names after `after`, without their modules, and then of those that
    /// others granted.
    pub fn list_functions(&self, account: &Account, after: &str) -> v1::FunctionList {
        let index = self.index();
        let (page, more) = match after.contains('/') {
            true => (Vec::new(), false),
            false => page(index.tenant(account.tenant).map(|t| &t.functions), after),
        };
        let room = if more { 0 } else { LIST_PAGE - page.len() };
        let (granted, more_granted) = self.granted(&index, account, after, room);
        drop(index);
        let info = |record: &Arc<FunctionRecord>| v1::FunctionInfo {
            modules: vec![],
            weights: vec![],
            ..function_info(record)
        };
        let functions = page.iter().map(info).chain(granted).collect();
        v1::FunctionList { functions, more: more || more_granted }
    }

    /// One function with its configuration.
    pub fn show_function(&self, account: &Account, name: &str) -> Result<v1::FunctionInfo, Refusal> {
        let tenant = account.tenant;
        let name = self.own(account, name)?;
        let record = self.index().tenant(tenant).and_then(|t| t.functions.get(name).cloned());
        let record = record.ok_or_else(|| unknown("function", name))?;
        let config = self.read_config(tenant, record.config)?;
        let mut info = function_info(&record);
        info.config = String::from_utf8_lossy(&config).into_owned();
        for module in &record.modules {
            // The configuration is worth showing even where machine code cannot be made any more.
            let variants = self.inspect(tenant, &module.name, &module.variants, Wish::Known);
            let variants = variants.unwrap_or_else(|_| module.variants.iter().map(plain_info).collect());
            info.found.push(v1::ModuleInfo { name: module.name.to_string(), variants });
        }
        Ok(info)
    }

    /// An owner's function ready to invoke, from disk if need be.
    pub(super) fn load_own(&self, tenant: TenantId, name: &str) -> Result<Arc<Loaded>, Refusal> {
        loop {
            if let Some(loaded) = self.loaded.get(tenant, name) {
                return Ok(loaded);
            }
            let record = self.index().tenant(tenant).and_then(|t| t.functions.get(name).cloned());
            let record = record.ok_or_else(|| unknown("function", name))?;
            let outcome = self.load_record(tenant, &record);
            // One that was replaced meanwhile is loaded again; its bytes may have been gone already.
            let current = self.index().tenant(tenant).and_then(|t| t.functions.get(name).cloned());
            match current {
                Some(current) if !Arc::ptr_eq(&current, &record) => {}
                _ => return outcome?.ok_or_else(|| unknown("function", name)),
            }
        }
    }

    /// Puts a record's function into memory; none if it is not listed any more.
    fn load_record(
        &self,
        tenant: TenantId,
        record: &Arc<FunctionRecord>,
    ) -> Result<Option<Arc<Loaded>>, Refusal> {
        let config = self.read_config(tenant, record.config)?;
        let blueprint = parse(&config)?;
        // A new build of Pappus needs new machine code, and the devices may be others than before.
        let classes = self.with_room(&record.weights, self.runnable(&record.modules)?)?;
        self.check_code(tenant, &blueprint, &record.modules, &classes, Wish::Known)?;
        let runs_on = classes.iter().map(|class| (class.kind, class.arch.clone())).collect();
        let weights = self.packed_weights(tenant, record, &blueprint)?;
        // Inserted under the lock: a function removed meanwhile must not come back.
        let index = self.index();
        let Some(mine) = index.tenant(tenant) else { return Ok(None) };
        if !mine.functions.get(&record.name).is_some_and(|current| Arc::ptr_eq(current, record)) {
            return Ok(None);
        }
        let parsed = Parsed { blueprint, config, weights, runs_on, callers: mine.callers(&record.name) };
        Ok(Some(self.loaded.insert(self.tenants.account(tenant), record.clone(), parsed)))
    }
}

/// One page of a list by name, and whether there is more behind it. Only this much happens under the
/// index's lock.
fn page<T>(all: Option<&BTreeMap<String, Arc<T>>>, after: &str) -> (Vec<Arc<T>>, bool) {
    let behind = (Bound::Excluded(after), Bound::Unbounded);
    let mut rest = all.into_iter().flat_map(|all| all.range::<str, _>(behind)).map(|(_, one)| one);
    (rest.by_ref().take(LIST_PAGE).cloned().collect(), rest.next().is_some())
}

fn parse(config: &[u8]) -> Result<Blueprint, Refusal> {
    pappus_blueprint::parse(config)
        .map_err(|e| Box::new(refusal(Reason::InvalidArgument, e.message).at(e.path)))
}

pub(super) fn plain_info(variant: &Variant) -> v1::VariantInfo {
    v1::VariantInfo { variant: Some(variant.to_proto()), bytes: variant.bytes, ..Default::default() }
}

fn function_info(record: &FunctionRecord) -> v1::FunctionInfo {
    let modules = record.modules.iter().map(|m| v1::FunctionModule {
        name: m.name.to_string(),
        variants: m.variants.iter().map(Variant::to_proto).collect(),
        registered: String::new(),
    });
    let weights = record.weights.iter().map(|w| v1::WeightInfo { name: w.name.to_string(), bytes: w.bytes });
    let outputs = record
        .outputs
        .iter()
        .map(|output| v1::OutputInfo { name: output.name.to_string(), dtype: output.dtype.to_string() });
    v1::FunctionInfo {
        name: record.name.clone(),
        config_sha256: record.config.0.to_vec().into(),
        modules: modules.collect(),
        weights: weights.collect(),
        inputs: record.inputs.iter().map(|name| name.to_string()).collect(),
        outputs: outputs.collect(),
        config: String::new(),
        found: vec![],
        quarantine: vec![],
        granted: false,
    }
}

fn check_name(what: &str, name: &str) -> Result<(), Refusal> {
    match is_valid_name(name) {
        true => Ok(()),
        false => Err(refusal(
            Reason::InvalidArgument,
            format!(
                "{name:?} cannot name a {what}: use 1 to 128 letters, digits, '.', '_' or '-', no leading dot"
            ),
        )),
    }
}

/// Whether a tenant may have these modules besides what it has.
fn check_module_bytes<'v>(
    account: &Account,
    mine: &TenantIndex,
    variants: impl Iterator<Item = &'v Variant>,
) -> Result<(), Refusal> {
    let more = mine.new_module_bytes(variants.map(|v| (v.sha256, v.bytes)));
    Ok(account.check(Limit::ModuleBytes, mine.module_bytes(), more)?)
}

pub(super) fn vanished() -> Refusal {
    refusal(Reason::NotFound, "bytes that it needs were removed meanwhile: add it again")
}

fn exists(what: &str, name: &str) -> Refusal {
    refusal(
        Reason::AlreadyExists,
        format!("there is another {what} `{name}`: remove it first or use another name"),
    )
}

pub(super) fn unknown(what: &str, name: &str) -> Refusal {
    refusal(
        Reason::NotFound,
        format!("there is no {what} `{name}`: `pappus {what} list` shows what there is"),
    )
}

fn too_many(what: &str, limit: usize) -> Refusal {
    refusal(
        Reason::ResourceExhausted,
        format!("you have {limit} {what}, the most that is allowed: remove some"),
    )
}
