//! What was chosen by hand for the scheduler, each with its reason, and what an operator sets for it beside what the configuration says of
//! a device; what processes cost on a kind of device, in [`ResidentPrice`](super::types::ResidentPrice).

/// How failures are answered; may change while running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Failures in a row after which a function is refused to its caller; 0: never.
    pub quarantine_after: u32,
    /// Worker processes that may end under one caller in a minute before its calls wait; 0: any number.
    pub fault_budget: u32,
    /// How long a call that was given up may run on.
    pub cancel_grace_ns: u64,
    /// How long a call may be in the way of others that wait for their turn; 0: for ever.
    pub overrun_ns: u64,
    /// True if workers and the supervisor's threads poll while they wait for each other.
    pub polls: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            quarantine_after: 3,
            fault_budget: 5,
            cancel_grace_ns: 1_000_000_000,
            overrun_ns: 2_000_000_000,
            polls: false,
        }
    }
}

/// Limits of a queue.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Calls.
    pub calls: u64,
    /// Inline bytes.
    pub bytes: u64,
    /// Of these, calls of one caller.
    pub own_calls: u64,
    /// Their inline bytes.
    pub own_bytes: u64,
}

// Calls.

/// Calls that there can be at once: so many names fit into half a word beside a serial number, and no machine holds more.
pub const MAX_CALLS: u64 = 1 << 23;

/// How long after its deadline a call may still answer by itself before its worker is killed: the worker ends the call at its deadline,
/// and needs a processor then to see that and to write its answer; a busy host may take two slices of its own scheduler to give it one.
pub const DEADLINE_GRACE_NS: u64 = 10_000_000;
/// The same for a worker that tenants share: it ends calls by itself, and a host that has it wait for a processor is no reason to take
/// it from all of them. Where processors are limited, Linux stops a process for a whole period of 100 ms, and may do so twice.
pub const SHARED_GRACE_NS: u64 = 250_000_000;
/// A function may take so many times as long to be installed as usual: the driver installs one at a time, and other workers of the
/// device may install theirs.
pub const INSTALLATION: u64 = 20;
/// How long the outputs of a call whose process is gone may take to be cleared, also after its deadline: gigabytes are zeroed in that
/// time, and its client waits for its answer.
pub const CLEAR_NS: u64 = 2_000_000_000;
/// How often a call may be started in all, since its process may end under it: beside others, alone, and once more for a process that
/// something else ended.
pub const MAX_RUNS: u8 = 3;
/// How long a worker may take until new settings are in force, until it gave memory back, and until it has forgotten a domain: it does
/// that between two commands, and a few driver calls are all it takes; others wait for it, so that it is less than a call may wait.
pub const SETTLE_NS: u64 = 2_000_000_000;
/// Moments of calls that are over which may be kept besides two for each call: enough that they are rarely thrown out all at once, and a
/// few tens of kilobytes.
pub const SPARE_MOMENTS: usize = if cfg!(test) { 4 } else { 1024 };

// Workers that all domains share.

/// How long a call may have the device in a worker that all domains share, where the device does not say: short calls wait for a lane
/// that long at most, times the lanes that have the device together.
pub const SHARED_LIMIT_NS: u64 = 10_000_000;
/// So long after the end of a call's time there the process is ended, where kernels do not always end by themselves: their
/// fuel ends them, and a process that everybody uses is not ended for a host that stalls.
pub const SHARED_STUCK_NS: u64 = 1_000_000_000;

// Jobs of several calls.

/// The most calls that run together in one lane: what a frame of several calls takes is still little beside what they compute, and a job
/// that fails runs again call by call.
pub const MAX_JOB_CALLS: usize = 64;
/// The most regions of inputs and outputs that they have together: one frame to a worker names them all.
pub const MAX_JOB_REGIONS: usize = 512;

// Turns.

/// How long a worker without calls may keep a turn that others wait for: it has to write one word, for which it needs a processor once.
pub const YIELD_NS: u64 = 100_000_000;
/// A turn that lasts longer than so many quanta while others wait is not exclusive any more: one quantum is the worker's own, in the
/// second one its lanes run empty, and with the third one a kernel of a quantum that began last may end, too.
pub const OVERRUN_QUANTA: u64 = 3;
/// How often it is looked at whether calls are in the way of others for too long, while others wait: half of the shortest limit that a
/// tenant may have, so that none is exceeded by more than that.
pub const OVERRUN_CHECK_NS: u64 = 50_000_000;
/// A call that has been in the way of others for so long shares the chip with others that have: it was there at the last look, or came
/// soon after.
pub const LONG_NS: u64 = OVERRUN_CHECK_NS / 2;
/// What a change of turns costs on a GPU until it is measured: the chip's own part on an H200.
pub const GPU_CHANGE_NS: u64 = 140_000;
/// The same on the CPU: a process is woken.
pub const CPU_CHANGE_NS: u64 = 20_000;
/// No change of turns costs less: two processes meet at a word of memory.
pub const LEAST_CHANGE_NS: u64 = 1_000;
/// Nor more, whatever a worker says: the longest that a host leaves a process that is woken without a processor.
pub const MOST_CHANGE_NS: u64 = 5_000_000;
/// Each sample moves the cost of a change by this part of the difference: a worker that lies about one change moves it little.
pub const CHANGE_SHARE: u64 = 16;
/// Where turns are shorter than this, the worker that is next is woken when the one before it gets the device: to wake
/// it takes about as long.
pub const SHORT_TURN_NS: u64 = 500_000;
/// Who wanted nothing for a while is owed one over so much of a quantum at most: a whole one could be had again and again by coming
/// rarely, and with none the calls of a tenant with few would stand behind all others.
pub const CREDIT: u64 = 2;
/// A waiting class is owed one part in so many of the time that higher classes use: none starves, and a higher one does not notice.
pub const OWED_SHARE: i64 = 20;
/// What counts as a quantum at most: a class that is owed one does not wait for longer than a call may be in line.
pub const LONGEST_QUANTUM_NS: i64 = 10_000_000_000;

// Who keeps a process.

/// How long a domain keeps a worker that another domain waits for, where the device does not say: for less than it takes to make a
/// process, more time would go by without one than with one.
pub const RESIDENCY_NS: u64 = 100_000_000;
/// Device time that a caller may be ahead of those that wait for a worker, before it loses its worker at any pace. So a worker that
/// always has a call when one may go does not keep domains waiting for longer: well below the default deadline of calls.
pub const OVERSTAY_NS: u64 = 1_000_000_000;
/// How long a domain that waits for a slot waits for a standby, once one was taken, before a process is made in the slot itself: a
/// slot whose process is made only then stays empty for as long as that takes.
pub const STANDBY_PATIENCE_NS: u64 = 1_000_000_000;
/// A resident that had no call for so long is not in use; where scrubs are cheap, one that had none for as long as the next scrub
/// of one in use has to wait.
pub const UNUSED_NS: u64 = 80_000_000;
/// Functions of a process that count in its price; more make it no dearer: beyond, it is dearer than any other.
pub const PRICED_FUNCTIONS: usize = 64;

// Memory and weights.

/// How long a call waits for room for its weights while other domains' calls go on using theirs: what a domain keeps a worker for.
pub const WEIGHTS_PATIENCE_NS: u64 = RESIDENCY_NS;
/// What a reload of weights costs however small they are, in nanoseconds: a message to the worker, a reservation and a mapping.
pub const RELOAD_NS: f64 = 200_000.0;
/// Bytes of weights that are copied in a microsecond: what a GPU's link to pinned memory carries.
pub const COPIED_PER_US: u64 = 50_000;
/// Uses that count; more make a function's weights no dearer, so that what was used often once is forgotten.
pub const COUNTED_USES: u32 = 64;
/// Calls of a domain that wait whose weights are loaded before they start: more would take room for longer than a load lasts.
pub const LOADED_AHEAD: usize = 4;

// What is known of calls that ended.

/// So many calls must have ended before anything is expected of the next one: a refusal should not rest on a few.
pub const ENOUGH_CALLS: u32 = 16;
/// While no call is as short as the shortest, that rises by one part in so many: a shortest one that will not come again is forgotten
/// within some hundred calls.
pub const RISE: u64 = 64;
/// Tenants whose device time is counted, kinds of calls, and functions of a worker, that are remembered: a few megabytes.
pub const MAX_REMEMBERED: usize = 65_536;
/// How long calls of a function by one caller run apart once some of them failed together: what fails is tried twice.
pub const APART_NS: u64 = 10_000_000_000;
/// More uses of functions are not kept apart at a time, so that nobody fills the memory: one more takes the place of one of the caller
/// who has most.
pub const MAX_APART: usize = 1024;
/// How long the first refusal of a function that fails lasts, each further one twice as long: a client that waits for its result in
/// person tries again at about that pace.
pub const FIRST_REFUSAL_NS: u64 = 1_000_000_000;
/// The longest: whoever mends a function does not wait for longer than a break.
pub const LONGEST_REFUSAL_NS: u64 = 300_000_000_000;
/// Uses of functions that failed which are remembered, so that nobody fills the memory; the one that failed longest ago goes first.
pub const MAX_FAILED: usize = 4096;
/// Functions of a caller that are open at the same time where it is not known who made the device fail; with more of them it waits for
/// the minute.
pub const MAX_OPEN: usize = 16;
/// In which budgets of faults come back, and after which it does not matter any more what stayed open: a minute.
pub const MINUTE_NS: u64 = 60_000_000_000;

// What a job has, one frame may have.
const _: () = assert!(
    MAX_JOB_REGIONS <= pappus_protocol::limits::MAX_ITEMS
        && MAX_JOB_REGIONS <= pappus_protocol::limits::MAX_OUTPUTS
);
