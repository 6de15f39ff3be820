//! A function ready to invoke: parsed, with what a worker needs to install it.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use pappus_blueprint::Blueprint;
use pappus_blueprint::compose::Steps;
use pappus_protocol::Kind;
use pappus_protocol::to_worker::Install;
use pappus_shmem::{ValidatedMemfd, memfd};

use super::code_target::CodeTarget;
use super::packed_weights::PackedWeights;
use super::uses::Uses;
use super::variants::{choose, choose_shared};
use super::version::Versions;
use crate::ids::{FunctionId, TenantId};
use crate::metrics::calls::{self, CallCounts};
use crate::refusal::{Reason, Refusable, Refusal, failed, internal};
use crate::store::StateDir;
use crate::store::records::FunctionRecord;
use crate::sync::{OrderedRwLock, rank};
use crate::tenants::{Account, Taken};

/// Names of tenants that may call a function, sorted.
pub type Callers = Arc<[Box<str>]>;

/// A function in memory. A function that is removed keeps working for calls that hold it.
#[derive(Debug)]
pub struct Loaded {
    /// Its name towards workers; a function that is removed and added again gets another.
    pub id: FunctionId,
    /// Who registered it.
    pub owner: TenantId,
    /// As registered.
    pub record: Arc<FunctionRecord>,
    /// What callers were told whose calls are made for it.
    pub versions: Versions,
    /// As parsed.
    pub blueprint: Blueprint,
    /// The steps of a composition that is not linked.
    pub steps: Option<Box<Steps>>,
    /// Bytes of its weights, in the blueprint's order.
    pub weight_bytes: Vec<u64>,
    /// The owner's account, which pays for the weights.
    pub account: Arc<Account>,
    /// How it was used since it came into memory.
    pub uses: Uses,
    /// Counts its calls, where that is exported.
    pub calls: Option<Arc<CallCounts>>,
    /// Names of tenants that may call it besides its owner, sorted.
    callers: OrderedRwLock<Callers, { rank::CALLERS }>,
    config: Vec<u8>,
    /// The packed weights; none for a function without weights.
    weights: Option<Arc<PackedWeights>>,
    /// Kinds and architectures of devices that have its machine code.
    runs_on: Vec<RunsOn>,
    /// See [`Loaded::is_special`].
    special: bool,
    /// Machine code that is in memory only, for each module: a checked version's.
    pub(super) code: Option<Vec<ValidatedMemfd>>,
    /// The checked version, once one was made; removed together with the function.
    pub(super) checked: OnceLock<Arc<Loaded>>,
    /// True if machine code of the function was missing or damaged: loading the function anew makes the code
    /// again.
    lacks_code: AtomicBool,
    /// What its owner is charged for it.
    _taken: Charges,
}

/// Machine code is missing or damaged.
#[derive(Debug, thiserror::Error)]
#[error(
    "the machine code of module {module} is missing or damaged, and is made again by the next call: call again"
)]
struct NoCode {
    module: Box<str>,
}

impl Refusable for NoCode {
    fn reason(&self) -> Reason {
        Reason::Unavailable
    }

    fn retry_after_ms(&self) -> Option<u64> {
        Some(0)
    }
}

/// What the owner is charged for a function in memory: a place, and its bytes.
pub(super) type Charges = [Taken; 2];

/// Descriptors that travel with an [`Install`], in its order.
#[derive(Debug)]
pub struct Parts {
    config: ValidatedMemfd,
    modules: Vec<File>,
}

impl Parts {
    /// The descriptors in the order that [`Install`] fixes.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        std::iter::once(self.config.as_fd()).chain(self.modules.iter().map(AsFd::as_fd)).collect()
    }
}

impl Loaded {
    /// A function made of a record, which `callers` may call besides the owner.
    pub(super) fn new(
        id: FunctionId,
        account: Arc<Account>,
        record: Arc<FunctionRecord>,
        parsed: Parsed,
        callers: Callers,
        taken: Charges,
    ) -> Self {
        let special = parsed.blueprint.launches().any(|launch| launch.special().is_some());
        Self {
            id,
            owner: account.tenant,
            versions: Versions::of(&record),
            weight_bytes: record.weights.iter().map(|w| w.bytes).collect(),
            special,
            blueprint: parsed.blueprint,
            calls: calls::of_function(&account.name, &record.name),
            account,
            uses: Uses::default(),
            callers: OrderedRwLock::new(callers),
            config: parsed.config,
            weights: parsed.weights,
            runs_on: parsed.runs_on,
            steps: parsed.steps,
            code: None,
            checked: OnceLock::new(),
            record,
            lacks_code: AtomicBool::new(false),
            _taken: taken,
        }
    }

    /// True if a tenant may call the function.
    pub fn may_call(&self, caller: &Account) -> bool {
        self.owner == caller.tenant || {
            let callers = self.callers.read();
            callers.binary_search_by(|name| (**name).cmp(&caller.name)).is_ok()
        }
    }

    /// True if the function must be loaded anew before a call.
    pub fn lacks_code(&self) -> bool {
        self.lacks_code.load(Ordering::Acquire)
    }

    /// Who may call it besides its owner.
    pub fn callers(&self) -> Callers {
        self.callers.read().clone()
    }

    /// From now on exactly these may call it besides its owner.
    pub fn grant(&self, callers: Callers) {
        *self.callers.write() = callers;
    }

    /// Its checked version, if one was made.
    pub fn checked(&self) -> Option<Arc<Loaded>> {
        self.checked.get().cloned()
    }

    /// True if devices of this kind and architecture can run it.
    pub fn runs_on(&self, kind: Kind, arch: &str) -> bool {
        self.on(kind, arch).is_some()
    }

    /// Device memory that the stacks of its kernels take on devices of this kind and architecture.
    pub fn stack_bytes(&self, kind: Kind, arch: &str) -> u64 {
        self.on(kind, arch).map_or(0, |on| on.stack_bytes)
    }

    /// True if no kernel of it can leave a window of addresses on devices of this kind and architecture.
    pub fn is_fenced(&self, kind: Kind, arch: &str) -> bool {
        self.on(kind, arch).is_some_and(|on| on.fenced)
    }

    /// True if a launch of it takes a tensor map or clusters of blocks.
    pub fn is_special(&self) -> bool {
        self.special
    }

    fn on(&self, kind: Kind, arch: &str) -> Option<&RunsOn> {
        self.runs_on.iter().find(|on| on.kind == kind && on.arch == arch)
    }

    /// Bytes of its weights as they are packed.
    pub fn packed_weight_bytes(&self) -> u64 {
        self.weights.as_ref().map_or(0, |weights| weights.bytes())
    }

    /// The host's copy of the weights; none for a function without weights.
    pub fn host_weights(&self) -> Option<BorrowedFd<'_>> {
        self.weights.as_ref().and_then(|weights| weights.descriptor())
    }

    /// What a worker with this target, whose process is made to be `shared` or not, must be told to install the function.
    pub fn install(
        &self,
        state: &StateDir,
        target: &CodeTarget,
        shared: bool,
    ) -> Result<(Install, Parts), Refusal> {
        let config = memfd::sealed("pappus-config", &self.config)
            .map_err(|e| failed("cannot pass the configuration", &e))?;
        let modules = match &self.code {
            Some(code) => code
                .iter()
                .map(|code| code.as_fd().try_clone_to_owned().map(File::from))
                .collect::<Result<Vec<_>, _>>()
                .map_err(|e| failed("cannot pass the machine code", &e))?,
            None => self.stored_code(state, target, shared)?,
        };
        let install = Install {
            modules: modules.len() as u32,
            weight_bytes: self.weight_bytes.clone(),
            checked: self.blueprint.is_checked(),
        };
        Ok((install, Parts { config, modules }))
    }

    /// The machine code of its modules, as it is stored for a target.
    fn stored_code(&self, state: &StateDir, target: &CodeTarget, shared: bool) -> Result<Vec<File>, Refusal> {
        let choose = if shared { choose_shared } else { choose };
        let modules = self.record.modules.iter().map(|module| {
            // Registration made sure that there is a variant.
            let variant = choose(&module.variants, target.kind, &target.arch);
            let variant = variant.ok_or_else(|| internal("no variant for this device", &module.name))?;
            let code = state.open_code(self.owner, variant.sha256, &target.fingerprint);
            code.map_err(|e| failed("cannot open the machine code", &e))?.ok_or_else(|| {
                self.lacks_code.store(true, Ordering::Release);
                Refusal::from(NoCode { module: module.name.clone() })
            })
        });
        modules.collect()
    }
}

/// Devices that have a function's machine code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunsOn {
    /// Their kind.
    pub kind: Kind,
    /// Their architecture.
    pub arch: String,
    /// Device memory that the stacks of its kernels take there.
    pub stack_bytes: u64,
    /// True if none of its kernels can leave a window of addresses there.
    pub fenced: bool,
}

/// What a function in memory is made of.
#[derive(Debug)]
pub struct Parsed {
    /// As parsed.
    pub blueprint: Blueprint,
    /// The configuration it was parsed from.
    pub config: Vec<u8>,
    /// The packed weights; none for a function without weights.
    pub weights: Option<Arc<PackedWeights>>,
    /// Kinds and architectures of devices that have its machine code.
    pub runs_on: Vec<RunsOn>,
    /// The steps of a composition that is not linked.
    pub steps: Option<Box<Steps>>,
}

impl Parsed {
    /// Roughly the memory of the function, without its weights.
    pub fn bytes(&self) -> u64 {
        let steps = self.steps.as_ref().map_or(0, |steps| steps.approx_bytes);
        (size_of::<Loaded>() + self.blueprint.approx_bytes() + self.config.capacity() + steps) as u64
    }
}
