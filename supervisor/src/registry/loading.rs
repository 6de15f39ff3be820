//! Functions in memory: those ready to invoke, others from disk, and what follows when one goes. A function that is not listed
//! any more is found by no call, and its bytes go with the last call that holds it; one that is only evicted comes back when it
//! is called.

use std::sync::Arc;
use std::time::Duration;

use pappus_blueprint::Blueprint;
use pappus_blueprint::compose::{self, Steps};
use pappus_blueprint::limits::PARSE_MEMORY;
use pappus_shmem::memfd;

use super::admission::able;
use super::codes::Codes;
use super::error::RegistryError;
use super::state::Registry;
use super::tenant::Change;
use super::version_names::is_marked;
use crate::function::PackedWeights;
use crate::function::loaded::{Loaded, Parsed};
use crate::ids::{FunctionId, TenantId};
use crate::refusal::{Reason, Refusable, failed};
use crate::store::records::{FunctionRecord, Hash, Weight};
use crate::tenants::{Account, Limit, QuotaError, Taken};

/// Weights of so many bytes are read when their function is registered: a memfd of them is made in a moment.
const SMALL_WEIGHT_BYTES: u64 = 1 << 20;
/// How long a function stays in memory that no connected tenant uses: this, and as long again at most.
const UNUSED: Duration = Duration::from_secs(30);

impl Registry {
    /// The function that a caller means, if it is in memory and the caller may call it.
    pub fn find(&self, caller: &Account, reference: &str) -> Option<Arc<Loaded>> {
        let (owner, name) = self.resolve(caller, reference)?;
        let found =
            self.loaded.get(owner, name).or_else(|| self.loaded.get(owner, &self.record_of(owner, name)?));
        found.filter(|function| function.may_call(caller) && !function.lacks_code())
    }

    /// As [`Registry::find`]; to ask does not count as a use.
    pub fn peek(&self, caller: &Account, reference: &str) -> Option<Arc<Loaded>> {
        let (owner, name) = self.resolve(caller, reference)?;
        let found =
            self.loaded.peek(owner, name).or_else(|| self.loaded.peek(owner, &self.record_of(owner, name)?));
        found.filter(|function| function.may_call(caller))
    }

    /// What the record of a version is called that a reference names by number or alias; none of a plain name.
    fn record_of(&self, owner: TenantId, reference: &str) -> Option<String> {
        if !is_marked(reference) {
            return None;
        }
        self.look(owner, |theirs| theirs.find(reference).map(|entry| entry.record.name.clone()))?
    }

    /// Loads a function whose machine code is there.
    pub(super) fn try_load(
        &self,
        caller: &Account,
        reference: &str,
        codes: &mut Codes,
    ) -> Result<Arc<Loaded>, RegistryError> {
        let nothing = || RegistryError::unknown_function(reference);
        let (owner, name) = self.resolve(caller, reference).ok_or_else(nothing)?;
        if owner == caller.tenant {
            return self.load_own(owner, name, codes);
        }
        if !self.is_granted(caller, owner, name) {
            return Err(nothing());
        }
        let function = self.load_own(owner, name, codes).map_err(|error| match error.reason() {
            Reason::NotFound => nothing(),
            reason => {
                tracing::debug!(
                    caller = &*caller.name,
                    function = reference,
                    "a granted function does not load: {error}"
                );
                let (reference, retry_after_ms) = (reference.to_owned(), error.retry_after_ms());
                RegistryError::GrantedDoesNotLoad { reference, reason, retry_after_ms }
            }
        })?;
        // It may have been revoked while it was loaded.
        if function.may_call(caller) { Ok(function) } else { Err(nothing()) }
    }

    /// An owner's function ready to invoke, from disk if need be.
    fn load_own(
        &self,
        tenant: TenantId,
        reference: &str,
        codes: &mut Codes,
    ) -> Result<Arc<Loaded>, RegistryError> {
        loop {
            // Which one an alias names, and which one is current, may change meanwhile.
            let version = self.record_of(tenant, reference);
            let name = version.as_deref().unwrap_or(reference);
            match self.loaded.get(tenant, name) {
                Some(loaded) if loaded.lacks_code() => self.loaded.evict(&loaded),
                Some(loaded) => return Ok(loaded),
                None => {}
            }
            let record =
                self.function(tenant, reference).ok_or_else(|| RegistryError::unknown_function(reference))?;
            let outcome = self.load_record(tenant, &record, codes);
            // One that was replaced meanwhile is loaded again; its bytes may have been gone already.
            match self.function(tenant, reference) {
                Some(current) if !Arc::ptr_eq(&current, &record) => {}
                _ => return outcome?.ok_or_else(|| RegistryError::unknown_function(reference)),
            }
        }
    }

    /// Puts a record's function into memory; none if it is not listed any more.
    fn load_record(
        &self,
        tenant: TenantId,
        record: &Arc<FunctionRecord>,
        codes: &mut Codes,
    ) -> Result<Option<Arc<Loaded>>, RegistryError> {
        let account = self.tenants.account(tenant);
        let (config, blueprint) = self.parse_config(&account, record.config)?;
        // A new build of Pappus needs new machine code, and the devices may be others than before.
        let classes = self.with_room(&record.weights, able(&blueprint, self.runnable(&record.modules)?)?)?;
        let runs_on = self.check_code(tenant, &blueprint, &record.modules, &classes, codes)?;
        let weights = self.packed_weights(&account, record, &blueprint)?;
        let parsed = Parsed { blueprint, config, weights, runs_on, steps: self.steps(&account, record)? };
        let current = || self.look(tenant, |mine| mine.callers_of(record))?;
        Ok(self.loaded.insert(account, record.clone(), parsed, current)?)
    }

    /// What calls of a composition run that is not linked; none of any other function.
    fn steps(
        &self,
        account: &Arc<Account>,
        record: &FunctionRecord,
    ) -> Result<Option<Box<Steps>>, RegistryError> {
        let Some(composition) = record.composition.as_ref().filter(|of| of.consecutive) else {
            return Ok(None);
        };
        let json = self.read_config(account.tenant, composition.text)?;
        let _taken = self.loaded.make_room(account, Limit::PlanBytes, PARSE_MEMORY * json.len() as u64)?;
        Ok(Some(Box::new(compose::steps(&json)?)))
    }

    /// A function's weights as workers map them, one copy of each content; none without weights.
    fn packed_weights(
        &self,
        account: &Arc<Account>,
        record: &FunctionRecord,
        blueprint: &Blueprint,
    ) -> Result<Option<Arc<PackedWeights>>, RegistryError> {
        if record.weights.is_empty() {
            return Ok(None);
        }
        let take = |bytes| self.loaded.make_room(account, Limit::WeightBytes, bytes);
        let pack = || self.pack_weights(account, record, blueprint, take);
        self.weights.get(account.tenant, &record.weights, pack).map(Some)
    }

    /// What is to be put into memory with its weights, if these are small and leave half of what there may be for what is called.
    pub(super) fn with_small_weights(
        &self,
        account: &Arc<Account>,
        record: &FunctionRecord,
        mut parsed: Parsed,
    ) -> Option<Parsed> {
        if record.weights.is_empty() {
            return Some(parsed);
        }
        let bytes: Vec<u64> = record.weights.iter().map(|weight| weight.bytes).collect();
        let bytes = parsed.blueprint.weight_layout(&bytes).ok()?.total;
        if bytes > SMALL_WEIGHT_BYTES || !account.leaves_half(Limit::WeightBytes, bytes) {
            return None;
        }
        let take = |bytes| account.take(Limit::WeightBytes, bytes);
        let pack = || self.pack_weights(account, record, &parsed.blueprint, take);
        parsed.weights = Some(self.weights.get(account.tenant, &record.weights, pack).ok()?);
        Some(parsed)
    }

    pub(super) fn pack_weights(
        &self,
        account: &Arc<Account>,
        record: &FunctionRecord,
        blueprint: &Blueprint,
        take: impl FnOnce(u64) -> Result<Taken, QuotaError>,
    ) -> Result<PackedWeights, RegistryError> {
        let tenant = account.tenant;
        let failed = |e: &(dyn std::error::Error + 'static)| failed("cannot pack the weights", e);
        let bytes: Vec<u64> = record.weights.iter().map(|w| w.bytes).collect();
        let layout = blueprint.weight_layout(&bytes).map_err(|e| failed(&e))?;
        let taken = take(layout.total)?;
        let mut unread = None;
        let packed = memfd::sealed_from("pappus-weights", layout.total, |memfd| {
            for (weight, offset) in record.weights.iter().zip(&layout.offsets) {
                std::io::Seek::seek(memfd, std::io::SeekFrom::Start(*offset))?;
                let Weight { name, sha256, bytes } = weight;
                if let Err(why) = self.state.copy_blob(tenant, *sha256, *bytes, memfd) {
                    unread = Some((format!("weights {name}"), why));
                    return Err(std::io::ErrorKind::InvalidData.into());
                }
            }
            Ok(())
        });
        if let Some((place, why)) = unread {
            return Err(RegistryError::unread("cannot pack the weights", place, &why));
        }
        let packed = packed.map_err(|e| failed(&e))?;
        Ok(PackedWeights::new(packed, taken, tenant, self.io.clone()))
    }

    /// A configuration as it is stored.
    pub(super) fn read_config(&self, tenant: TenantId, hash: Hash) -> Result<Vec<u8>, RegistryError> {
        let most = pappus_blueprint::limits::JSON_BYTES as u64;
        let read = self.state.read_blob(tenant, hash, most);
        read.map_err(|e| RegistryError::unread("cannot read the configuration", "the configuration", &e))
    }

    /// A configuration and what it says. The tenant is charged for the memory that reading it takes.
    pub(super) fn parse_config(
        &self,
        account: &Arc<Account>,
        hash: Hash,
    ) -> Result<(Vec<u8>, Blueprint), RegistryError> {
        let config = self.read_config(account.tenant, hash)?;
        let _taken = self.loaded.make_room(account, Limit::PlanBytes, PARSE_MEMORY * config.len() as u64)?;
        let blueprint = pappus_blueprint::parse(&config)?;
        Ok((config, blueprint))
    }

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
            Some(function) if Arc::strong_count(&function) > 1 => {
                change.leaving.push((Arc::downgrade(&function), function.record.clone()));
            }
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
