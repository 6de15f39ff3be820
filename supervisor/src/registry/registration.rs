//! Adding and removing modules and functions. Blocking: callers run it off the socket's threads.
//!
//! An acknowledged record is on disk with every blob it needs. The index lock is held while records and
//! blobs change on disk, so the two never disagree.

use std::io::Read;
use std::sync::{Arc, Mutex, MutexGuard};

use pappus_blueprint::Blueprint;
use pappus_proto::limits::is_valid_name;
use pappus_proto::{Code, v1};

use super::compile::Compiler;
use super::index::Index;
use super::loaded::{Loaded, LoadedCache};
use super::records::{CodeInfo, FunctionModule, FunctionRecord, Hash, ModuleRecord, Variant, Weight};
use super::state::{Kind, StateDir};
use super::{Refusal, Tenant, internal, refusal};
use crate::limits::{MAX_COMPILATIONS, MAX_FUNCTIONS, MAX_MODULE_BYTES, MAX_MODULES, MAX_VARIANTS};

/// Formats a variant can have.
const FORMATS: [&str; 5] = ["wasm", "ptx", "cubin", "fatbin", "hsaco"];

/// Everything that is registered.
#[derive(Debug)]
pub struct Registry {
    state: StateDir,
    index: Mutex<Index>,
    /// Functions in memory.
    pub loaded: LoadedCache,
    compiler: Compiler,
    /// What machine code must have been made for; known once a first worker said so.
    fingerprint: tokio::sync::watch::Receiver<Option<String>>,
    compilations: Arc<tokio::sync::Semaphore>,
}

/// Blobs that one connection handed over and nothing refers to yet; released when it ends.
#[derive(Debug, Default)]
pub struct Handed(Mutex<Vec<Hash>>);

impl Registry {
    /// Reads what is registered and removes what nothing needs.
    pub fn open(
        state: StateDir,
        compiler: Compiler,
        fingerprint: tokio::sync::watch::Receiver<Option<String>>,
    ) -> Self {
        let mut index = Index::default();
        for tenant in state.tenants() {
            let mine = index.tenant_mut(tenant);
            state
                .records(tenant, Kind::Module)
                .into_iter()
                .for_each(|record| mine.add_module(record));
            state
                .records(tenant, Kind::Function)
                .into_iter()
                .for_each(|record| mine.add_function(record));
            state.collect_garbage(tenant, |hash| mine.has_blob(hash));
        }
        Self {
            state,
            index: Mutex::new(index),
            loaded: LoadedCache::default(),
            compiler,
            fingerprint,
            compilations: Arc::new(tokio::sync::Semaphore::new(MAX_COMPILATIONS)),
        }
    }

    /// The state directory, to open what workers need.
    pub fn state(&self) -> &StateDir {
        &self.state
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        // Index updates do not panic halfway; a panic elsewhere must not take the registry along.
        self.index.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Functions and modules of everyone.
    pub fn counts(&self) -> (u64, u64) {
        self.index().counts()
    }

    /// Stores bytes for later use by this connection.
    pub fn put_blob(
        &self,
        tenant: Tenant,
        handed: &Handed,
        content: impl Read,
    ) -> Result<(Hash, u64), Refusal> {
        // Stored before it is needed: the lock is only held for the bookkeeping. Garbage collection
        // runs at start, and a release in between removes at most a file that is written again below.
        let stored = self
            .state
            .put_blob(tenant, content)
            .map_err(|e| internal("cannot store the bytes", e))?;
        let mut index = self.index();
        index.tenant_mut(tenant).need(stored.0);
        handed.0.lock().unwrap_or_else(|e| e.into_inner()).push(stored.0);
        if self.state.open_blob(tenant, stored.0).is_err() {
            self.release(&mut index, tenant, stored.0);
            return Err(internal("cannot store the bytes", "they vanished; try again"));
        }
        Ok(stored)
    }

    /// A connection ended: what it handed over and nothing refers to goes.
    pub fn release_handed(&self, tenant: Tenant, handed: &Handed) {
        let hashes = std::mem::take(&mut *handed.0.lock().unwrap_or_else(|e| e.into_inner()));
        let mut index = self.index();
        hashes
            .into_iter()
            .for_each(|hash| self.release(&mut index, tenant, hash));
    }

    fn release(&self, index: &mut Index, tenant: Tenant, hash: Hash) {
        if index.tenant_mut(tenant).release(hash) {
            self.state.remove_blob(tenant, hash);
        }
    }

    /// Registers a module by name.
    pub fn add_module(&self, tenant: Tenant, request: v1::AddModule) -> Result<v1::ModuleInfo, Refusal> {
        check_name("module", &request.name)?;
        let variants = self.check_variants(tenant, &request.name, &request.variants)?;
        let infos = self.inspect(tenant, &request.name, &variants)?;
        let record = ModuleRecord {
            name: request.name,
            variants,
        };
        let mut index = self.index();
        let mine = index.tenant_mut(tenant);
        match mine.modules.get(&record.name) {
            Some(existing) if **existing == record => {}
            Some(_) => return Err(exists("module", &record.name)),
            None if mine.modules.len() >= MAX_MODULES => return Err(too_many("modules", MAX_MODULES)),
            None => {
                self.state
                    .put_module(tenant, &record)
                    .map_err(|e| internal("cannot store the module", e))?;
                mine.add_module(record.clone());
            }
        }
        Ok(v1::ModuleInfo {
            name: record.name,
            variants: infos,
        })
    }

    /// Removes a module; functions that use it keep their copy.
    pub fn remove_module(&self, tenant: Tenant, name: &str) -> Result<(), Refusal> {
        let mut index = self.index();
        let Some(record) = index.tenant_mut(tenant).modules.get(name).cloned() else {
            return Err(unknown("module", name));
        };
        self.state
            .remove_record(tenant, Kind::Module, name)
            .map_err(|e| internal("cannot remove the module", e))?;
        index.tenant_mut(tenant).modules.remove(name);
        record
            .variants
            .iter()
            .for_each(|v| self.release(&mut index, tenant, v.sha256));
        Ok(())
    }

    /// All modules of a tenant.
    pub fn list_modules(&self, tenant: Tenant) -> Vec<v1::ModuleInfo> {
        let index = self.index();
        let modules = index.tenant(tenant).into_iter().flat_map(|t| t.modules.values());
        modules
            .map(|m| v1::ModuleInfo {
                name: m.name.clone(),
                variants: m.variants.iter().map(plain_info).collect(),
            })
            .collect()
    }

    /// One module with its kernels.
    pub fn show_module(&self, tenant: Tenant, name: &str) -> Result<v1::ModuleInfo, Refusal> {
        let record = self
            .index()
            .tenant(tenant)
            .and_then(|t| t.modules.get(name).cloned());
        let record = record.ok_or_else(|| unknown("module", name))?;
        let variants = self.inspect(tenant, name, &record.variants)?;
        Ok(v1::ModuleInfo {
            name: record.name.clone(),
            variants,
        })
    }

    /// Registers a function.
    pub fn add_function(
        &self,
        tenant: Tenant,
        request: v1::AddFunction,
    ) -> Result<v1::FunctionInfo, Refusal> {
        check_name("function", &request.name)?;
        let config_hash = self.check_blob(tenant, "config_sha256", &request.config_sha256)?;
        let config = self.read_config(tenant, config_hash)?;
        let blueprint = parse(&config)?;
        let modules = self.check_modules(tenant, &blueprint, &request.modules)?;
        let weights = self.check_weights(tenant, &blueprint, &request.weights)?;
        let record = FunctionRecord {
            name: request.name,
            config: config_hash,
            modules,
            weights,
        };
        let info = function_info(&record, Some(&blueprint));
        let mut index = self.index();
        let mine = index.tenant_mut(tenant);
        match mine.functions.get(&record.name) {
            Some(existing) if **existing == record => {}
            Some(_) => return Err(exists("function", &record.name)),
            None if mine.functions.len() >= MAX_FUNCTIONS => {
                return Err(too_many("functions", MAX_FUNCTIONS));
            }
            None => {
                self.state
                    .put_function(tenant, &record)
                    .map_err(|e| internal("cannot store the function", e))?;
                mine.add_function(record);
            }
        }
        Ok(info)
    }

    /// Removes a function; calls that run finish. Returns it if it was in memory.
    pub fn remove_function(&self, tenant: Tenant, name: &str) -> Result<Option<Arc<Loaded>>, Refusal> {
        let mut index = self.index();
        let Some(record) = index.tenant_mut(tenant).functions.get(name).cloned() else {
            return Err(unknown("function", name));
        };
        self.state
            .remove_record(tenant, Kind::Function, name)
            .map_err(|e| internal("cannot remove the function", e))?;
        index.tenant_mut(tenant).functions.remove(name);
        record
            .blobs()
            .for_each(|hash| self.release(&mut index, tenant, hash));
        Ok(self.loaded.remove(tenant, name))
    }

    /// All functions of a tenant.
    pub fn list_functions(&self, tenant: Tenant) -> Vec<v1::FunctionInfo> {
        let index = self.index();
        let functions = index
            .tenant(tenant)
            .into_iter()
            .flat_map(|t| t.functions.values());
        functions.map(|record| function_info(record, None)).collect()
    }

    /// One function with its configuration.
    pub fn show_function(&self, tenant: Tenant, name: &str) -> Result<v1::FunctionInfo, Refusal> {
        let record = self
            .index()
            .tenant(tenant)
            .and_then(|t| t.functions.get(name).cloned());
        let record = record.ok_or_else(|| unknown("function", name))?;
        let config = self.read_config(tenant, record.config)?;
        let mut info = function_info(&record, Some(&parse(&config)?));
        info.config = String::from_utf8_lossy(&config).into_owned();
        Ok(info)
    }

    /// A function ready to invoke, from disk if need be.
    pub fn load(&self, tenant: Tenant, name: &str) -> Result<Arc<Loaded>, Refusal> {
        if let Some(loaded) = self.loaded.get(tenant, name) {
            return Ok(loaded);
        }
        let record = self
            .index()
            .tenant(tenant)
            .and_then(|t| t.functions.get(name).cloned());
        let record = record.ok_or_else(|| unknown("function", name))?;
        let config = self.read_config(tenant, record.config)?;
        let blueprint = parse(&config)?;
        // A new build of Pappus needs new machine code.
        for module in &record.modules {
            self.inspect(tenant, &module.name, &module.variants)?;
        }
        let index = self.index();
        let current = index.tenant(tenant).and_then(|t| t.functions.get(name));
        match current {
            // Inserted under the lock: a function removed meanwhile must not come back.
            Some(current) if Arc::ptr_eq(current, &record) => {
                Ok(self.loaded.insert(tenant, record.clone(), blueprint, config))
            }
            _ => Err(unknown("function", name)),
        }
    }

    fn read_config(&self, tenant: Tenant, hash: Hash) -> Result<Vec<u8>, Refusal> {
        let failed = |e: &dyn std::fmt::Display| internal("cannot read the configuration", e);
        let blob = self.state.open_blob(tenant, hash).map_err(|e| failed(&e))?;
        let mut config = Vec::new();
        let limit = pappus_blueprint::limits::JSON_BYTES as u64 + 1;
        blob.take(limit)
            .read_to_end(&mut config)
            .map_err(|e| failed(&e))?;
        Ok(config)
    }

    /// A blob that this tenant really holds.
    fn check_blob(&self, tenant: Tenant, place: &str, sha256: &[u8]) -> Result<Hash, Refusal> {
        let at = |e: Refusal| Box::new(e.at(place));
        let hash = Hash::try_from(sha256).map_err(|e| at(refusal(Code::InvalidArgument, e.to_string())))?;
        match self.index().tenant(tenant).is_some_and(|t| t.has_blob(hash)) {
            true => Ok(hash),
            false => Err(at(refusal(
                Code::NotFound,
                format!("no bytes with hash {hash}: hand them over with PutBlob on this connection first"),
            ))),
        }
    }

    fn check_variants(
        &self,
        tenant: Tenant,
        module: &str,
        variants: &[v1::Variant],
    ) -> Result<Vec<Variant>, Refusal> {
        let bad = |why: String| refusal(Code::InvalidArgument, format!("module {module}: {why}"));
        if variants.is_empty() || variants.len() > MAX_VARIANTS {
            return Err(bad(format!(
                "{} variants, expected 1 to {MAX_VARIANTS}",
                variants.len()
            )));
        }
        let mut checked: Vec<Variant> = Vec::with_capacity(variants.len());
        for variant in variants {
            if !FORMATS.contains(&variant.format.as_str()) {
                return Err(bad(format!(
                    "unknown format {:?}, expected one of {FORMATS:?}",
                    variant.format
                )));
            }
            if !variant.arch.is_empty() && !is_valid_name(&variant.arch) {
                return Err(bad(format!(
                    "{:?} is no architecture such as sm_90",
                    variant.arch
                )));
            }
            let same =
                |v: &Variant| (&*v.format, &*v.arch) == (variant.format.as_str(), variant.arch.as_str());
            if checked.iter().any(same) {
                return Err(bad(format!(
                    "two variants for {} {}",
                    variant.format, variant.arch
                )));
            }
            let hash = self.check_blob(tenant, "variants.sha256", &variant.sha256)?;
            let failed = |e: &dyn std::fmt::Display| internal("cannot read the module", e);
            let blob = self.state.open_blob(tenant, hash).map_err(|e| failed(&e))?;
            let bytes = blob.metadata().map_err(|e| failed(&e))?.len();
            if bytes > MAX_MODULE_BYTES {
                return Err(bad(format!(
                    "{bytes} bytes, at most {MAX_MODULE_BYTES} are allowed"
                )));
            }
            checked.push(Variant {
                format: (*variant.format).into(),
                arch: (*variant.arch).into(),
                sha256: hash,
                bytes,
            });
        }
        Ok(checked)
    }

    /// Compiles what the devices here can run, and says which kernels there are.
    fn inspect(
        &self,
        tenant: Tenant,
        module: &str,
        variants: &[Variant],
    ) -> Result<Vec<v1::VariantInfo>, Refusal> {
        let infos = variants.iter().map(|variant| {
            let mut info = plain_info(variant);
            if &*variant.format == "wasm" {
                info.kernels = self.ensure_code(tenant, module, variant.sha256)?.kernels;
            }
            Ok(info)
        });
        infos.collect()
    }

    /// Machine code for a wasm variant: made once, by a process of its own.
    fn ensure_code(&self, tenant: Tenant, module: &str, hash: Hash) -> Result<CodeInfo, Refusal> {
        if let Some(fingerprint) = &*self.fingerprint.borrow()
            && let Some(info) = self.state.code_info(tenant, hash, fingerprint)
        {
            return Ok(info);
        }
        let runtime = tokio::runtime::Handle::current();
        let permit = runtime.block_on(self.compilations.acquire());
        let bytes = self
            .state
            .read_blob(tenant, hash)
            .map_err(|e| internal("cannot read the module", e))?;
        let compiled = self.compiler.compile(&bytes).map_err(|mut e| {
            e.message = format!("module {module} (wasm): {}", e.message);
            e
        })?;
        drop(permit);
        let failed = |e: &dyn std::fmt::Display| internal("cannot store the machine code", e);
        let code = compiled.code.reader().map_err(|e| failed(&e))?;
        self.state
            .put_code(tenant, hash, &compiled.fingerprint, code, &compiled.info)
            .map_err(|e| failed(&e))?;
        Ok(compiled.info)
    }

    /// The modules of a function in the blueprint's order, checked for the kernels it names.
    fn check_modules(
        &self,
        tenant: Tenant,
        blueprint: &Blueprint,
        given: &[v1::FunctionModule],
    ) -> Result<Box<[FunctionModule]>, Refusal> {
        let mut modules = Vec::with_capacity(blueprint.modules().len());
        for (position, module) in blueprint.modules().iter().enumerate() {
            let name = module.name.as_str();
            let at = |e: Refusal| Box::new(e.at(format!("module {name}")));
            let source = given.iter().find(|m| m.name == name).ok_or_else(|| {
                at(refusal(
                    Code::InvalidArgument,
                    "its files are missing: hand over at least one variant",
                ))
            })?;
            let variants = match source.variants.is_empty() {
                false => self.check_variants(tenant, name, &source.variants)?,
                true => {
                    let registered = self
                        .index()
                        .tenant(tenant)
                        .and_then(|t| t.modules.get(&source.registered).cloned());
                    registered
                        .ok_or_else(|| at(unknown("module", &source.registered)))?
                        .variants
                        .clone()
                }
            };
            let infos = self.inspect(tenant, name, &variants)?;
            let Some(wasm) = infos
                .iter()
                .find(|i| i.variant.as_ref().is_some_and(|v| v.format == "wasm"))
            else {
                let formats: Vec<_> = variants.iter().map(|v| &*v.format).collect();
                let why = format!(
                    "the device cpu needs its .wasm variant, but there is only {}",
                    formats.join(", ")
                );
                return Err(at(refusal(Code::Unsupported, why)));
            };
            let mut needed = blueprint.kernels().iter().filter(|k| k.module == position);
            if let Some(missing) = needed.find(|k| !wasm.kernels.contains(&k.symbol)) {
                let why = format!(
                    "has no kernel `{}`; it has {}",
                    missing.symbol,
                    wasm.kernels.join(", ")
                );
                return Err(at(refusal(Code::InvalidArgument, why)));
            }
            modules.push(FunctionModule {
                name: name.into(),
                variants: variants.into(),
            });
        }
        Ok(modules.into())
    }

    fn check_weights(
        &self,
        tenant: Tenant,
        blueprint: &Blueprint,
        given: &[v1::Weight],
    ) -> Result<Box<[Weight]>, Refusal> {
        if let Some(extra) = given.iter().find(|w| {
            blueprint
                .weights()
                .iter()
                .all(|id| blueprint.buffers()[id.index()].name != w.name)
        }) {
            let why = format!("the blueprint has no weights `{}`", extra.name);
            return Err(refusal(Code::InvalidArgument, why));
        }
        let weights = blueprint.weights().iter().map(|id| {
            let name = &blueprint.buffers()[id.index()].name;
            let weight = given.iter().find(|w| w.name == *name).ok_or_else(|| {
                let why = format!("weights `{name}` have no content: name a file for them");
                Box::new(refusal(Code::InvalidArgument, why).at("blueprint.weights"))
            })?;
            let hash = self.check_blob(tenant, name, &weight.sha256)?;
            let blob = self
                .state
                .open_blob(tenant, hash)
                .map_err(|e| internal("cannot read the weights", e))?;
            let bytes = blob
                .metadata()
                .map_err(|e| internal("cannot read the weights", e))?
                .len();
            Ok(Weight {
                name: name.as_str().into(),
                sha256: hash,
                bytes,
            })
        });
        weights.collect()
    }
}

fn parse(config: &[u8]) -> Result<Blueprint, Refusal> {
    pappus_blueprint::parse(config)
        .map_err(|e| Box::new(refusal(Code::InvalidArgument, e.message).at(e.path)))
}

fn plain_info(variant: &Variant) -> v1::VariantInfo {
    v1::VariantInfo {
        variant: Some(variant.to_proto()),
        bytes: variant.bytes,
        kernels: vec![],
    }
}

fn function_info(record: &FunctionRecord, blueprint: Option<&Blueprint>) -> v1::FunctionInfo {
    let modules = record.modules.iter().map(|m| v1::FunctionModule {
        name: m.name.to_string(),
        variants: m.variants.iter().map(Variant::to_proto).collect(),
        registered: String::new(),
    });
    let weights = record.weights.iter().map(|w| v1::WeightInfo {
        name: w.name.to_string(),
        bytes: w.bytes,
    });
    let mut info = v1::FunctionInfo {
        name: record.name.clone(),
        config_sha256: record.config.0.to_vec().into(),
        modules: modules.collect(),
        weights: weights.collect(),
        ..Default::default()
    };
    if let Some(blueprint) = blueprint {
        let buffers = blueprint.buffers();
        info.inputs = blueprint
            .inputs()
            .iter()
            .map(|id| buffers[id.index()].name.clone())
            .collect();
        let outputs = blueprint
            .outputs()
            .iter()
            .map(|id| &buffers[id.index()])
            .map(|buffer| v1::OutputInfo {
                name: buffer.name.clone(),
                dtype: buffer.dtype.map_or(String::new(), |d| d.name().to_owned()),
            });
        info.outputs = outputs.collect();
    }
    info
}

fn check_name(what: &str, name: &str) -> Result<(), Refusal> {
    match is_valid_name(name) {
        true => Ok(()),
        false => Err(refusal(
            Code::InvalidArgument,
            format!(
                "{name:?} cannot name a {what}: use 1 to 128 letters, digits, '.', '_' or '-', no leading dot"
            ),
        )),
    }
}

fn exists(what: &str, name: &str) -> Refusal {
    refusal(
        Code::AlreadyExists,
        format!("there is another {what} `{name}`: remove it first or use another name"),
    )
}

fn unknown(what: &str, name: &str) -> Refusal {
    refusal(
        Code::NotFound,
        format!("there is no {what} `{name}`: `pappus {what} list` shows what there is"),
    )
}

fn too_many(what: &str, limit: usize) -> Refusal {
    refusal(
        Code::ResourceExhausted,
        format!("you have {limit} {what}, the most that is allowed: remove some"),
    )
}
