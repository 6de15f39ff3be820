//! Functions ready to invoke: parsed, with what a worker needs to install them.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pappus_blueprint::Blueprint;
use pappus_protocol::Kind;
use pappus_protocol::to_worker::{Install, WeightsForm};
use pappus_shmem::{ValidatedMemfd, memfd};

use super::code_target::CodeTarget;
use super::variants::choose;
use crate::ids::{FunctionId, TenantId};
use crate::limits::MAX_LOADED;
use crate::refusal::{Failure, failed, internal};
use crate::store::StateDir;
use crate::store::records::FunctionRecord;
use crate::sync::{OrderedRwLock, rank};
use crate::tenants::Account;

/// Names of tenants that may call a function, sorted.
pub type Callers = Arc<[Box<str>]>;

/// A function in memory. It keeps working for calls that hold it when it is removed meanwhile.
#[derive(Debug)]
pub struct Loaded {
    /// Its name towards workers; a function that is removed and added again gets another.
    pub id: FunctionId,
    /// Who registered it.
    pub owner: TenantId,
    /// As registered.
    pub record: Arc<FunctionRecord>,
    /// As parsed.
    pub blueprint: Blueprint,
    /// Bytes of its weights, in the blueprint's order.
    pub weight_bytes: Vec<u64>,
    /// Its owner's account, which its weights are charged to.
    pub account: Arc<Account>,
    /// Names of tenants that may call it besides its owner, sorted.
    callers: OrderedRwLock<Callers, { rank::CALLERS }>,
    config: Vec<u8>,
    /// Weights packed into one sealed memfd; none if it has none.
    weights: Option<ValidatedMemfd>,
    /// Kinds and architectures of devices that have its machine code.
    runs_on: Vec<(Kind, String)>,
}

/// Descriptors that travel with an [`Install`], in its order.
#[derive(Debug)]
pub struct Parts<'a> {
    config: ValidatedMemfd,
    weights: Option<BorrowedFd<'a>>,
    modules: Vec<File>,
}

impl Parts<'_> {
    /// The descriptors in the order that [`Install`] fixes.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let weights = self.weights.iter().copied();
        std::iter::once(self.config.as_fd())
            .chain(weights)
            .chain(self.modules.iter().map(AsFd::as_fd))
            .collect()
    }
}

impl Loaded {
    /// Whether a tenant may call it.
    pub fn may_call(&self, caller: &Account) -> bool {
        self.owner == caller.tenant || {
            let callers = self.callers.read();
            callers.binary_search_by(|name| (**name).cmp(&caller.name)).is_ok()
        }
    }

    /// From now on exactly these may call it besides its owner.
    pub fn grant(&self, callers: Callers) {
        *self.callers.write() = callers;
    }

    /// Whether devices of this kind and architecture can run it.
    pub fn runs_on(&self, kind: Kind, arch: &str) -> bool {
        self.runs_on.iter().any(|(one, its)| *one == kind && its == arch)
    }

    /// Bytes of its weights as they are packed.
    pub fn packed_weight_bytes(&self) -> u64 {
        self.weights.as_ref().map_or(0, ValidatedMemfd::bytes)
    }

    /// What a worker with this target must be told to install the function, whose weights come in this form: as a
    /// descriptor of device memory, or as the host's copy.
    pub fn install<'a>(
        &'a self,
        state: &StateDir,
        target: &CodeTarget,
        form: WeightsForm,
        device_weights: Option<BorrowedFd<'a>>,
    ) -> Result<(Install, Parts<'a>), Failure> {
        let config = memfd::sealed("pappus-config", &self.config)
            .map_err(|e| failed("cannot pass the configuration", &e))?;
        let modules = self.record.modules.iter().map(|module| {
            // Registration made sure that there is a variant.
            let variant = choose(&module.variants, target.kind, &target.arch);
            let variant = variant.ok_or_else(|| internal("no variant for this device", &module.name))?;
            state
                .open_code(self.owner, variant.sha256, &target.fingerprint)
                .map_err(|e| failed("the machine code is missing; add the function again", &e))
        });
        let modules = modules.collect::<Result<Vec<_>, _>>()?;
        let install =
            Install { modules: modules.len() as u32, weight_bytes: self.weight_bytes.clone(), weights: form };
        let weights = device_weights.or(self.weights.as_ref().map(AsFd::as_fd));
        Ok((install, Parts { config, weights, modules }))
    }
}

/// What [`LoadedCache::insert`] puts into memory.
#[derive(Debug)]
pub struct Parsed {
    /// As parsed.
    pub blueprint: Blueprint,
    /// The configuration it was parsed from.
    pub config: Vec<u8>,
    /// Its weights, packed.
    pub weights: Option<ValidatedMemfd>,
    /// Kinds and architectures of devices that have its machine code.
    pub runs_on: Vec<(Kind, String)>,
}

#[derive(Debug)]
struct Slot {
    function: Arc<Loaded>,
    used: AtomicU64,
}

/// Loaded functions by owner and name, bounded; the one used longest ago goes first.
#[derive(Debug, Default)]
pub struct LoadedCache {
    slots: OrderedRwLock<HashMap<TenantId, HashMap<String, Slot>>, { rank::LOADED }>,
    clock: AtomicU64,
    ids: AtomicU64,
}

impl LoadedCache {
    /// The function, if it is in memory.
    pub fn get(&self, owner: TenantId, name: &str) -> Option<Arc<Loaded>> {
        let slots = self.slots.read();
        let slot = slots.get(&owner)?.get(name)?;
        slot.used.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        Some(slot.function.clone())
    }

    /// Whose function has this name towards workers, and what it is called; none if it is not in memory.
    pub fn owner_of(&self, id: FunctionId) -> Option<(TenantId, String)> {
        let slots = self.slots.read();
        let mut all = slots.values().flat_map(HashMap::values).map(|slot| &slot.function);
        all.find(|function| function.id == id).map(|function| (function.owner, function.record.name.clone()))
    }

    /// Puts a function into memory; if it got there meanwhile, that one stays. `current` says who may call it besides
    /// its owner as long as the record is listed: one that was removed meanwhile does not come back, as it is taken out
    /// of the list first and out of here then.
    pub fn insert(
        &self,
        account: Arc<Account>,
        record: Arc<FunctionRecord>,
        parsed: Parsed,
        current: impl FnOnce() -> Option<Callers>,
    ) -> Option<Arc<Loaded>> {
        let owner = account.tenant;
        let mut slots = self.slots.write();
        let callers = current()?;
        if let Some(slot) = slots.get(&owner).and_then(|names| names.get(&record.name))
            && Arc::ptr_eq(&slot.function.record, &record)
        {
            return Some(slot.function.clone());
        }
        if slots.values().map(HashMap::len).sum::<usize>() >= MAX_LOADED {
            Self::evict(&mut slots);
        }
        let function = Arc::new(Loaded {
            id: FunctionId::new(1 + self.ids.fetch_add(1, Ordering::Relaxed)),
            owner,
            weight_bytes: record.weights.iter().map(|w| w.bytes).collect(),
            blueprint: parsed.blueprint,
            account,
            callers: OrderedRwLock::new(callers),
            config: parsed.config,
            weights: parsed.weights,
            runs_on: parsed.runs_on,
            record: record.clone(),
        });
        let used = AtomicU64::new(self.clock.fetch_add(1, Ordering::Relaxed));
        let slot = Slot { function: function.clone(), used };
        slots.entry(owner).or_default().insert(record.name.clone(), slot);
        Some(function)
    }

    /// Takes a function out of memory, so that nobody finds it any more.
    pub fn remove(&self, owner: TenantId, name: &str) -> Option<Arc<Loaded>> {
        let mut slots = self.slots.write();
        slots.get_mut(&owner)?.remove(name).map(|slot| slot.function)
    }

    fn evict(slots: &mut HashMap<TenantId, HashMap<String, Slot>>) {
        let all =
            slots.iter().flat_map(|(owner, names)| names.iter().map(move |(name, slot)| (owner, name, slot)));
        let oldest = all.min_by_key(|(.., slot)| slot.used.load(Ordering::Relaxed));
        let Some((owner, name)) = oldest.map(|(owner, name, _)| (*owner, name.clone())) else {
            return;
        };
        if let Some(names) = slots.get_mut(&owner) {
            names.remove(&name);
        }
    }
}
