//! What goes into the scheduler and what comes out.

use pappus_blueprint::Isolation;

use super::limits::{CPU_CHANGE_NS, MAX_JOB_REGIONS, RESIDENCY_NS, SHARED_LIMIT_NS};
use super::quarantine::Refusal;
use super::weights::Supply;
use crate::ids::{FunctionId, Generation, TenantId, TurnId, WorkerId};
use crate::limits::STAGING_BYTES;

/// A call in the scheduler; never used twice, so that a late answer cannot hit another call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// A call, as the scheduler has it and hands it on.
pub trait Call: Clone {
    /// What names memory of the device in which weights lie.
    type Memory: Clone + std::fmt::Debug;

    /// True if a call of the same function and caller is of the same shape, but for how many items it brings: both can run in one job.
    fn is_like(&self, _other: &Self) -> bool {
        false
    }
}

#[cfg(test)]
impl Call for u64 {
    type Memory = u64;

    fn is_like(&self, other: &Self) -> bool {
        self % 2 == other % 2
    }
}

/// An owner of functions and a caller of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Domain {
    /// Owner of the function (uid).
    pub owner: TenantId,
    /// Caller (uid), who pays for its calls.
    pub caller: TenantId,
}

/// What may share a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compartment {
    /// Calls of one domain.
    Of(Domain),
    /// Calls of all domains whose kernels cannot leave their window, as far as they are short.
    Shared,
}

/// What a device offers.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Slots for workers; how many processes there may be at most.
    pub workers: usize,
    /// Lanes of each: at most 64, the bits of the set of busy ones. Configurations give at most
    /// [`MAX_LANES`](crate::limits::MAX_LANES).
    pub lanes: u32,
    /// Workers that one domain may have.
    pub workers_per_domain: usize,
    /// How many workers all domains share: the first slots are for these.
    pub shared_workers: usize,
    /// The most device memory of one lane of these.
    pub shared_lane_bytes: u64,
    /// How long a call may have the device in a shared worker. One that takes longer begins again in a worker of its domain.
    pub shared_limit_ns: u64,
    /// How long after the end of its time there a call may stay, before the process is ended.
    pub shared_stuck_ns: u64,
    /// Workers submit by turns of so many microseconds; none says at any time.
    pub quantum_us: Option<u32>,
    /// What a change of turns costs until it was measured, in nanoseconds.
    pub change_ns: u64,
    /// How long a domain keeps a worker that another one waits for.
    pub residency_ns: u64,
    /// True if a fault in one worker hits the calls of all.
    pub shared_faults: bool,
    /// True if an idle worker is scrubbed for another domain; else a fresh process takes its place.
    pub scrubs: bool,
    /// What that takes.
    pub resident_price: ResidentPrice,
    /// Processes that are kept ready to take a slot, once they are there.
    pub standbys: usize,
    /// Processes that may be made for slots at the same time.
    pub starting: usize,
    /// Device memory for everything.
    pub memory_bytes: u64,
    /// What device memory is lent in: lanes get multiples of it.
    pub page_bytes: u64,
    /// The most that one lane may have.
    pub lane_bytes: u64,
    /// Device memory for weights, as far as nothing else takes it.
    pub weights_bytes: u64,
    /// True if weights take memory that calls could be lent.
    pub weights_take_memory: bool,
}

/// The price of a process: time until a domain that lost its process is served as before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResidentPrice {
    /// To make a process.
    pub made_ns: u64,
    /// To scrub it.
    pub process_ns: u64,
    /// To install a function again.
    pub function_ns: u64,
    /// To make a function's graphs for one lane again.
    pub graphs_ns: u64,
    /// To scrub residents in use takes one over so much of the time.
    pub scrub_share: u64,
}

impl ResidentPrice {
    /// On a GPU, as seen on an H200; but what a scrub costs those who use the device was 83 ms on an H100 where a call's eight
    /// graphs take long to make, and 19 ms where they do not, which the share makes up for.
    pub const GPU: Self = Self {
        made_ns: 150_000_000,
        process_ns: 5_000_000,
        function_ns: 10_000_000,
        graphs_ns: 2_000_000,
        scrub_share: 20,
    };
    /// On the CPU, which has no graphs. Two cores make about fifty processes in a second; what a scrub takes is of the order
    /// of a call's round trip, not measured by itself.
    pub const CPU: Self = Self {
        made_ns: 20_000_000,
        process_ns: 100_000,
        function_ns: 200_000,
        graphs_ns: 0,
        scrub_share: 10,
    };
}

/// Which tenants go first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Before all others.
    Latency,
    /// In between.
    #[default]
    Normal,
    /// After all others.
    Batch,
}

impl Class {
    /// All of them, the highest first.
    pub const ALL: [Self; 3] = [Self::Latency, Self::Normal, Self::Batch];

    /// As the configuration calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Normal => "normal",
            Self::Batch => "batch",
        }
    }
}

/// Whether a call is in a worker that strangers share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Its kernels could leave their memory, or somebody wants it in a process of its own.
    Never,
    /// While it is short, and ends no process.
    May,
    /// As `May`; where it may not be there, it is refused.
    Only,
}

/// What a tenant is given of a device that others want, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantShare {
    /// Its part of the device time of its class.
    pub weight: u32,
    /// Its class.
    pub class: Class,
    /// How long one of its calls may be in the way of others, where that is not what the settings say; 0: for ever.
    pub overrun_ns: Option<u64>,
    /// Whether its calls, and calls of its functions, are in workers beside those of others.
    pub isolation: Isolation,
}

impl Default for TenantShare {
    fn default() -> Self {
        Self { weight: 1, class: Class::Normal, overrun_ns: None, isolation: Isolation::Auto }
    }
}

impl Shape {
    /// So many workers of so many lanes, without further rules, and with more memory than any call needs.
    pub fn new(workers: usize, lanes: u32) -> Self {
        Self {
            workers,
            lanes,
            workers_per_domain: workers,
            shared_workers: 0,
            shared_lane_bytes: u64::MAX,
            shared_limit_ns: SHARED_LIMIT_NS,
            shared_stuck_ns: u64::MAX,
            quantum_us: None,
            change_ns: CPU_CHANGE_NS,
            residency_ns: RESIDENCY_NS,
            scrubs: false,
            resident_price: ResidentPrice::GPU,
            shared_faults: false,
            standbys: 0,
            starting: 64,
            memory_bytes: 1 << 60,
            page_bytes: 1,
            lane_bytes: u64::MAX,
            weights_bytes: u64::MAX,
            weights_take_memory: true,
        }
    }
}

/// A device's memory at one moment, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemorySnapshot {
    /// Everything that Pappus may use.
    pub total_bytes: u64,
    /// Contexts of processes.
    pub context_bytes: u64,
    /// Stacks of workers' kernels.
    pub stack_bytes: u64,
    /// Lent to lanes for calls.
    pub lease_bytes: u64,
    /// Weights.
    pub weight_bytes: u64,
    /// The rest.
    pub free_bytes: u64,
}

/// What the scheduler needs to know of a call.
#[derive(Debug, Clone, Copy)]
pub struct CallSpec {
    /// Whose worker may run it.
    pub domain: Domain,
    /// The function's name towards workers.
    pub function: FunctionId,
    /// Inline bytes it holds while it waits.
    pub bytes: u64,
    /// Absolute, in `CLOCK_MONOTONIC` nanoseconds.
    pub deadline_ns: u64,
    /// Device memory of its buffers. A call that needs more than half of all has the device for itself.
    pub memory_bytes: u64,
    /// Device memory that its process keeps for the stacks of its kernels.
    pub stack_bytes: u64,
    /// What weights of its function take on the device.
    pub weight_bytes: u64,
    /// Whether it is in a worker that strangers share.
    pub sharing: Sharing,
    /// What it brings into a job with others, if its function runs calls together.
    pub batch: Option<Batch>,
}

/// What a call brings into a job with others of its function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// Items of the dimension along which calls are put side by side.
    pub items: u64,
    /// The most items that a job may have.
    pub most: u64,
    /// How long the call may wait for others.
    pub delay_ns: u64,
    /// Regions of its inputs and outputs.
    pub regions: usize,
    /// Bytes of a lane's staging range that it takes.
    pub staged_bytes: u64,
}

impl Batch {
    /// Both together; none if that is more than a job may have.
    pub(super) fn with(self, other: Self) -> Option<Self> {
        let both = Self {
            items: self.items.checked_add(other.items)?,
            most: self.most.min(other.most),
            delay_ns: self.delay_ns,
            regions: self.regions + other.regions,
            staged_bytes: self.staged_bytes + other.staged_bytes,
        };
        let fits = both.items <= both.most && both.regions <= MAX_JOB_REGIONS;
        (fits && both.staged_bytes <= STAGING_BYTES).then_some(both)
    }
}

/// What the outside must do now.
#[derive(Debug, PartialEq, Eq)]
pub enum Action<C: Call> {
    /// Tell a process something, after everything with a lower number.
    Tell {
        /// Whom.
        to: Address,
        /// What.
        command: Command<C>,
    },
    /// Answer that the deadline passed while the call was waiting.
    Expired {
        /// The call.
        call: C,
        /// Remaining wait imposed by the caller's fault budget, if the budget was the reason.
        budget_ns: Option<u64>,
    },
    /// Answer that the call's function is refused, since it failed meanwhile.
    Refused {
        /// The call.
        call: C,
        /// For how long.
        refusal: Refusal,
    },
    /// Answer that the call's process is gone and that what it wrote cannot be cleared.
    NotCleared {
        /// The call.
        call: C,
    },
    /// Put a process into a slot that has none: [`Ready`](super::events::Ready) follows.
    Bring {
        /// Which slot.
        worker: WorkerId,
    },
    /// Answer that a tenant may not have so much more device memory: the owner of the call's function for its weights, or the caller
    /// for the call.
    OverQuota {
        /// The call.
        call: C,
        /// True if it is the caller.
        is_caller: bool,
        /// Bytes that the tenant has on the device.
        has_bytes: u64,
        /// Bytes that the weights or the call take.
        needs_bytes: u64,
    },
    /// Drop what names memory: no process has it any more.
    Release {
        /// The name.
        memory: C::Memory,
    },
    /// Kill the process, without regard to commands that it was sent or is still to be sent.
    Kill {
        /// Which slot.
        worker: WorkerId,
        /// Which process in it.
        generation: Generation,
        /// Why.
        why: KillReason<C>,
    },
}

/// Whom a command is for, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// Which slot.
    pub worker: WorkerId,
    /// Which process in it. A command to one that is gone is void.
    pub generation: Generation,
    /// Counts the commands to this process from 0.
    pub nth: u64,
}

/// What a lane runs: a call, or several of one function and caller that lie side by side. One answer is about all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job<C> {
    /// The first call's name, which is the job's in the answer.
    pub id: CallId,
    /// The first call.
    pub call: C,
    /// Those behind the first one.
    pub others: Vec<(CallId, C)>,
}

impl<C> Job<C> {
    /// All calls with their names, in the order in which they lie side by side.
    pub fn calls(&self) -> impl Iterator<Item = (CallId, &C)> + Clone {
        std::iter::once((self.id, &self.call)).chain(self.others.iter().map(|(id, call)| (*id, call)))
    }
}

/// What a process is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command<C: Call> {
    /// To run a job.
    Start {
        /// In which of its lanes.
        lane: u32,
        /// True if its call is a suspect: no other call is in the worker, nor on the device where faults are shared, and its kernels
        /// run one by one.
        alone: bool,
        /// Device memory that the lane has from now on.
        memory_bytes: u64,
        /// When the worker ends it: at its deadline, or sooner in a worker that others share.
        until_ns: u64,
        /// What it runs.
        job: Job<C>,
        /// How it gets weights that it does not have and the call needs.
        load: Option<Supply<C::Memory>>,
    },
    /// Its settings.
    Configure,
    /// To load the weights of the function of a call that waits for a lane there.
    Load {
        /// The call.
        call: C,
        /// How it gets them.
        load: Supply<C::Memory>,
    },
    /// To let weights go that no call uses. [`WeightsLeft`](super::events::WeightsLeft) follows if it has them.
    Unload {
        /// Whose weights.
        function: FunctionId,
    },
    /// To forget a function, its weights included. [`WeightsLeft`](super::events::WeightsLeft) follows if it has these.
    Uninstall {
        /// Which.
        function: FunctionId,
    },
    /// Lanes without calls give all their memory back. [`GaveBack`](super::events::GaveBack) follows.
    GiveBack {
        /// One bit for each of them.
        lanes: u64,
    },
    /// About its turns.
    Turn(Order),
    /// To end: the process is idle, and others need its slot or its memory.
    Leave,
    /// To forget the domain that it served: it is idle. [`Scrubbed`](super::events::Scrubbed) follows.
    Scrub,
}

/// What a worker is told about turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The worker has the device.
    Grant {
        /// Names the turn.
        turn: TurnId,
        /// How long the turn may last while others wait.
        quantum_us: u32,
        /// What a change of turns costs.
        change_us: u32,
    },
    /// Others wait for the device.
    Revoke {
        /// Names the turn.
        turn: TurnId,
    },
    /// The worker's turn is next.
    Soon,
}

/// Why a domain lost its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhyGone {
    /// Another domain needed the slot.
    SlotWanted,
    /// A call needed the memory of its process.
    MemoryWanted,
    /// The device was set up otherwise.
    SettingsChanged,
    /// Its process was killed for a call, or since it did not do what it was told.
    Killed,
    /// Its process ended.
    Ended,
}

/// A worker's process, as it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resident {
    /// True if a process is there or coming.
    pub is_used: bool,
    /// Whose calls it serves.
    pub serves: Option<Compartment>,
    /// Device memory that it has for calls and stacks.
    pub lent_bytes: u64,
    /// Functions that ran in it.
    pub functions: usize,
    /// Why the last domain of the slot lost its process.
    pub last_gone: Option<WhyGone>,
}

/// Why a process is killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KillReason<C> {
    /// This call is overdue, or was given up and does not end.
    Overdue(C),
    /// This call was in the way of others for longer than it may.
    Overran(C),
    /// It has no calls and keeps its turn.
    TurnKept,
    /// It does not forget a domain.
    NotScrubbed,
    /// It does not give memory back that others wait for.
    NotGivenBack,
}

/// How a call was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Its process ended while it was in it.
    InIt,
    /// The same, but the device failed under it, of no kernel that it ran: where faults hit the calls of other processes, that
    /// may have been another's.
    Unexplained,
    /// Its process ended before it took the call.
    NeverHanded,
    /// Its process was ended by something that is neither Pappus nor the process itself.
    EndedFromOutside,
}

/// Why a call whose process is gone does not run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Its deadline passed.
    Deadline,
    /// It ran alone when its process ended, or ran too often.
    Guilty,
    /// Its processes were ended from outside, again and again.
    Interrupted,
    /// Its client gave it up.
    Detached,
    /// It was in the way of others for longer than it may.
    Overran,
}

/// How a call ended that its worker answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Well.
    Well,
    /// A kernel of it did something illegal.
    Fault,
    /// Otherwise: nothing speaks against its function.
    Neither,
}

/// Why a call is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotNow {
    /// Too many calls wait.
    #[error("{0} invocations wait, as many as queue-calls lets")]
    Calls(u64),
    /// Too many inline bytes wait.
    #[error("{0} inline bytes wait, and no more fit into queue-bytes")]
    Bytes(u64),
    /// Too many calls of its caller wait.
    #[error("as many invocations of this tenant wait as may")]
    OwnCalls(u64),
    /// Too many inline bytes of its caller wait.
    #[error("as many inline bytes of this tenant wait as may")]
    OwnBytes(u64),
    /// Its deadline would pass before it could end.
    #[error(
        "the calls of this tenant that wait before it take {queue_ms} ms and the call itself {call_ms} ms at least, by what \
         they took lately, which is later than its deadline"
    )]
    TooLate {
        /// How long those before it take, in milliseconds.
        queue_ms: u64,
        /// How long it takes itself.
        call_ms: u64,
    },
    /// Its function keeps failing.
    #[error("it failed {} times in a row", .0.failures)]
    Quarantined(Refusal),
    /// It may be in workers only that strangers share, and may not be there.
    #[error(
        "calls of this function took longer than shared-limit there, ended their process, or need the device for themselves"
    )]
    NotShared {
        /// For how many nanoseconds; the largest number: until the function is replaced.
        left_ns: u64,
    },
}
