//! One accepted invocation on its way through the supervisor, and how it ends.

use std::any::Any;
use std::fmt::Debug;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use pappus_blueprint::Isolation;
use pappus_protocol::Fault;
use pappus_protocol::from_worker::Done;
use pappus_protocol::now_ns;
use pappus_protocol::to_worker::{Item, Target};
use pappus_shmem::memfd;
use zerocopy::little_endian::U64;

use crate::arena::Arena;
use crate::client_memfd::ClientMemfd;
use crate::config::DeviceConfig;
use crate::function::Loaded;
use crate::limits::{SHARED_ARENA_BYTES, SHARED_POOL_BYTES, SHARED_WEIGHTS_BYTES};
use crate::refusal::Refusal;
use crate::routing::Routed;
use crate::schedule::{Batch, Domain, Ended, Sharing, quarantine};
use crate::session::Turn;
use crate::tenants::{Account, CountedPlan, Taken};

/// Where inline bytes of a call lie in its lane's staging range.
#[derive(Debug)]
pub struct Inline {
    /// Offset in the staging range.
    pub offset: u64,
    /// The bytes.
    pub bytes: Bytes,
}

/// Everything about one call that does not change while it waits and runs.
#[derive(Debug)]
pub struct Call {
    /// What to run.
    pub function: Arc<Loaded>,
    /// Whose worker may run it.
    pub domain: Domain,
    /// What the worker will do; planned here only to know sizes and limits.
    pub plan: Arc<CountedPlan>,
    /// Input items; offsets of staged ones are relative to the lane's staging range.
    pub items: Vec<Item>,
    /// Output targets, likewise.
    pub outputs: Vec<Target>,
    /// The words that the plan depends on, then the free dimensions.
    pub scalars: Vec<U64>,
    /// Inline inputs.
    pub inline: Vec<Inline>,
    /// Bytes of a lane's staging range that its inline inputs and outputs take.
    pub staged_bytes: u64,
    /// One-off inputs.
    pub descriptors: Vec<ClientMemfd>,
    /// The memory that the caller is charged for while the call waits and runs.
    pub memory: Option<Taken>,
    /// Arenas that items and targets name.
    pub arenas: Vec<Arc<Arena>>,
    /// The turn in its session, whose memory is one of the arenas.
    pub turn: Option<Turn>,
    /// Absolute, in `CLOCK_MONOTONIC` nanoseconds.
    pub deadline_ns: u64,
    /// When it arrived, likewise.
    pub arrived_ns: u64,
    /// When it was handed to a worker, likewise; 0 while it waits, for the first time or again.
    pub started_ns: AtomicU64,
    /// Where the call's frame ends in the bytes that its worker was sent.
    pub sent_at: AtomicU64,
    /// Counts the call on its device, if there are several devices.
    pub routed: Option<Routed>,
    /// Where the answer goes.
    pub reply: Arc<dyn Completion>,
}

impl Call {
    /// Whether the call is in a worker of a device that strangers share, where weights of its function take `weight_bytes`; an error if
    /// it may be nowhere else, and not there either.
    pub fn sharing(&self, device: &DeviceConfig, weight_bytes: u64) -> Result<Sharing, WhyApart> {
        let function = &self.function;
        let wishes =
            [function.blueprint.isolation(), function.account.isolation(), self.reply.account().isolation()];
        let only = wishes.contains(&Isolation::Shared);
        match self.why_apart(device, weight_bytes, &wishes) {
            Some(why) if only => Err(why),
            Some(_) => Ok(Sharing::Never),
            None if only => Ok(Sharing::Only),
            None => Ok(Sharing::May),
        }
    }

    /// Why the call is in no such worker; none if it may be: no kernel of it can leave what the call is given there, which a window of
    /// addresses has room for, and neither its function, nor its owner, nor the caller wants it in a process of its own.
    fn why_apart(
        &self,
        device: &DeviceConfig,
        weight_bytes: u64,
        wishes: &[Isolation; 3],
    ) -> Option<WhyApart> {
        let (function, has_own_memory) = (&self.function, device.kind.traits().has_own_memory);
        let is_large = || self.plan.pool_bytes > SHARED_POOL_BYTES || weight_bytes > SHARED_WEIGHTS_BYTES;
        if device.shared_workers == 0 {
            Some(WhyApart::Device)
        } else if wishes.contains(&Isolation::Process) {
            Some(WhyApart::Asked)
        } else if function.blueprint.is_checked() {
            // It says where it left its memory.
            Some(WhyApart::Checked)
        } else if function.is_special() {
            Some(WhyApart::Special)
        } else if !function.is_fenced(device.kind, &device.arch) {
            Some(WhyApart::Unfenced)
        } else if has_own_memory && is_large() {
            Some(WhyApart::Large)
        } else if has_own_memory && self.pinned_bytes() > SHARED_ARENA_BYTES {
            Some(WhyApart::Arenas)
        } else {
            None
        }
    }

    /// What the worker of a GPU pins before the call, unless it did so before: the memory of a session is not pinned.
    fn pinned_bytes(&self) -> u64 {
        let state = self.turn.as_ref().map(|turn| turn.memory.id);
        self.arenas.iter().filter(|arena| Some(arena.id) != state).map(|arena| arena.memfd.bytes()).sum()
    }

    /// What the call brings into a job with others, if its function runs calls together.
    pub fn batch(&self) -> Option<Batch> {
        let limits = self.function.blueprint.batch()?;
        let items = self.scalars.get(limits.free)?.get();
        // Descriptors are sent beside the frame of one call.
        let alone = !self.descriptors.is_empty() || self.function.blueprint.is_checked();
        let regions = self.items.len().max(self.outputs.len());
        (!alone).then_some(Batch {
            items,
            most: limits.most,
            delay_ns: 1000 * limits.delay_us,
            regions,
            staged_bytes: self.staged_bytes,
        })
    }

    /// For the operator's log: the function, its owner, and the caller.
    pub fn names(&self) -> (&str, &str, &str) {
        (&self.function.record.name, &self.function.account.name, &self.reply.account().name)
    }

    /// The regions that the call's worker may have written; none if its outputs go elsewhere.
    pub fn written_regions(&self) -> Option<WrittenRegions> {
        let region = |target: &Target| {
            let arena = self.arenas.iter().find(|arena| arena.id == target.arena.get())?;
            let start = target.offset.get();
            Some((arena.clone(), start..start + target.bytes.get()))
        };
        let regions: Vec<_> = self.outputs.iter().filter_map(region).collect();
        (!regions.is_empty()).then_some(WrittenRegions(regions))
    }
}

/// Why a call is in no worker that tenants share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WhyApart {
    /// It has none.
    #[error("the device has no such worker: the operator sets isolation=auto")]
    Device,
    /// Its configuration, its owner's or its caller's says so.
    #[error("isolation is \"process\" for its function, its owner or its caller")]
    Asked,
    /// Accesses are checked.
    #[error("it is a checked call")]
    Checked,
    /// Tensor maps or clusters.
    #[error("a launch of it has a tensor map or a cluster")]
    Special,
    /// See `pappus function check`.
    #[error("a kernel could leave its memory: `pappus function check` says which, and why")]
    Unfenced,
    /// The pool, or the weights.
    #[error(
        "its buffers take more than {} MiB, or its weights more than {} MiB",
        SHARED_POOL_BYTES >> 20,
        SHARED_WEIGHTS_BYTES >> 20
    )]
    Large,
    /// While a worker pins them, nobody else is served there.
    #[error("its arenas have more than {} MiB, and a GPU pins all of an arena", SHARED_ARENA_BYTES >> 20)]
    Arenas,
}

/// Regions of a caller's arenas that a worker may have written which is gone.
#[derive(Debug)]
pub struct WrittenRegions(Vec<(Arc<Arena>, Range<u64>)>);

impl WrittenRegions {
    /// Zeroes them on the caller's own threads, as the worker would have done, and says so `then`; not if that is later
    /// than `until_ns`, when its client may use them for something else. Never waits.
    pub fn clear(self, until_ns: u64, then: impl FnOnce() + Send + 'static) {
        // All arenas of a call are its caller's.
        let Some(first) = self.0.first().map(|(arena, _)| arena.clone()) else { return then() };
        first.memfd.on_thread(move || {
            if self.zero(until_ns) {
                then();
            }
        });
    }

    /// True if all ranges were zeroed in time.
    fn zero(&self, until_ns: u64) -> bool {
        const ZEROS: [u8; 16 << 10] = [0; 16 << 10];
        for (arena, range) in &self.0 {
            for start in range.clone().step_by(ZEROS.len()) {
                if now_ns() >= until_ns {
                    return false;
                }
                let bytes = (range.end - start).min(ZEROS.len() as u64) as usize;
                // The client's own memory: if it cannot be written, only that client is harmed.
                let _ = memfd::write_all_at(arena.memfd.as_fd(), start, &ZEROS[..bytes]);
            }
        }
        true
    }
}

/// How a call ended.
#[derive(Debug)]
pub enum Outcome {
    /// It succeeded.
    Done {
        /// Where the call's time went, as the worker says.
        timings: Done,
        /// The staged outputs, in the blueprint's order.
        staged: Vec<Vec<u8>>,
    },
    /// It failed, as its worker says.
    Failed(Fault),
    /// It had as much of a worker that tenants share as it may have, and may be in no other.
    HadItsPart,
    /// Its process is gone, and its outputs could not be cleared in time.
    NotCleared,
    /// It does not run again after its process ended.
    Lost {
        /// Why it does not.
        why: Ended,
        /// How the process ended.
        process: String,
        /// What the process said before.
        broken: Option<Fault>,
    },
    /// Its deadline passed while it waited for a worker.
    Expired {
        /// The caller's fault budget, if the call waited because that was spent.
        budget: Option<SpentBudget>,
    },
    /// Its function was put into quarantine while it waited.
    Quarantined(quarantine::Refusal),
    /// It could not be handed to a worker.
    Refused(Refusal),
}

/// A caller's fault budget that kept a call waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpentBudget {
    /// How long it would have kept the call waiting on.
    pub left_ns: u64,
    /// How many worker processes may end under one caller in a minute.
    pub per_minute: u32,
}

/// Where the one answer to an accepted call goes.
pub trait Completion: Any + Debug + Send + Sync {
    /// Answers the call, unless it was answered.
    fn complete(&self, call: &Call, device: &str, outcome: Outcome);

    /// True if the call was answered, or needs no answer any more.
    fn is_over(&self) -> bool;

    /// Whose call it is.
    fn account(&self) -> &Arc<Account>;

    /// An empty batch for calls of this and other clients.
    fn new_batch(&self) -> Box<dyn CompletionBatch>;
}

/// Calls that ended together. Each client gets the answers to its calls at once, in the order in which they ended.
pub trait CompletionBatch: Debug + Send {
    /// One more call ended; it is answered by [`CompletionBatch::flush`].
    fn push(&mut self, call: Arc<Call>, outcome: Outcome);

    /// Answers all of them. Calls are dropped behind their answers.
    fn flush(&mut self, device: &str, now_ns: u64);
}
