//! Capacity planning: what tenants take of a GPU's memory, whether it is enough, and what would be. Pure.
//!
//! The account is the one that the supervisor keeps (`supervisor/src/schedule/book.rs`) and `pappus status` shows:
//!
//! ```text
//! | contexts of processes | stacks | weights | leases of calls … | free |
//! |◀───────────────────────────── memory ─────────────────────────────▶|
//! ```

use std::fmt;

use crate::units::{nanoseconds, rough_bytes};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

// What the supervisor takes where nothing is said; a test compares these with its own (`tests/integration/pages.rs`).

/// What a process takes of a GPU's memory before any lease, until workers say what it really is.
pub(crate) const CONTEXT_BYTES: u64 = 540 << 20;
/// What contexts must leave of a GPU's memory for calls.
const MIN_GPU_CALLS_BYTES: u64 = 64 << 20;
/// The share of a GPU's memory that contexts may take where the number of workers is not given: one in so many bytes.
const CONTEXTS_SHARE: u64 = 4;
/// Processes of which NVIDIA's driver makes contexts on one GPU: workers, standbys and one that compiles.
const MAX_CONTEXTS: u64 = 64;
/// Lanes of a worker of a GPU.
const DEFAULT_LANES: u64 = 8;

/// Leases are lent in steps of this.
const STEP_BYTES: u64 = 2 * MIB;
/// Copies of weights from the host: what one H200 does (docs/benchmarks/latest.md).
const RELOAD_BYTES_PER_S: u64 = 52_600_000_000;
/// The most GPUs that are tried.
const MAX_GPUS: u64 = 1024;

/// A kind of GPU, and the memory that its driver reports. For kinds that were not measured here the number is a
/// published one: `pappus-supervisor --list-devices` says what a machine really has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gpu {
    pub(crate) name: &'static str,
    /// The backend whose devices they are.
    pub(crate) backend: &'static str,
    pub(crate) memory_mib: u64,
    pub(crate) measured: bool,
}

/// One of NVIDIA's.
const fn nvidia(name: &'static str, memory_mib: u64) -> Gpu {
    Gpu { name, backend: "cuda", memory_mib, measured: false }
}

/// A kind of AMD's; of a card with two chips, one chip.
const fn amd(name: &'static str, memory_mib: u64) -> Gpu {
    Gpu { name, backend: "hip", memory_mib, measured: false }
}

/// The kinds that have a name here.
pub(crate) const GPUS: [Gpu; 27] = [
    Gpu { measured: true, ..nvidia("H200", 143_155) },
    nvidia("B200", 182_600),
    nvidia("B300", 268_000),
    nvidia("GB200", 184_000),
    nvidia("GH200", 96_500),
    nvidia("H100", 81_000),
    nvidia("H100-NVL", 94_900),
    nvidia("H20", 96_900),
    nvidia("A100", 81_000),
    nvidia("A100-40", 40_300),
    nvidia("A40", 45_400),
    nvidia("A30", 24_000),
    nvidia("A10", 22_500),
    nvidia("L40S", 45_400),
    nvidia("L40", 45_400),
    nvidia("L4", 22_500),
    nvidia("T4", 14_900),
    nvidia("V100", 32_400),
    nvidia("V100-16", 16_100),
    nvidia("RTX-PRO-6000", 96_900),
    nvidia("RTX-6000-Ada", 48_400),
    nvidia("RTX-5090", 32_000),
    nvidia("RTX-4090", 24_000),
    nvidia("RTX-3090", 24_000),
    amd("MI300X", 196_000),
    amd("MI250X", 65_000),
    amd("MI210", 65_000),
];

impl Gpu {
    /// The kind that somebody means, however its name is written: `rtx 4090`, `A100_40`, `NVIDIA H200`.
    pub(crate) fn named(asked: &str) -> Option<Self> {
        let plain = |name: &str| -> String {
            let name = name.to_ascii_lowercase();
            let name = name.trim_start_matches("nvidia").trim_start_matches("amd");
            name.chars().filter(char::is_ascii_alphanumeric).collect()
        };
        let asked = plain(asked);
        GPUS.into_iter().find(|gpu| plain(gpu.name) == asked)
    }
}

/// What is asked of the GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Load {
    /// Domains that call: pairs of a function's owner and its caller.
    pub(crate) domains: u64,
    /// Of these, domains that call at the same time.
    pub(crate) busy: u64,
    /// Calls that such a domain has in flight.
    pub(crate) in_flight: u64,
    /// Device memory that a call needs for its buffers.
    pub(crate) call_bytes: u64,
    /// Weights that one domain's functions have.
    pub(crate) weight_bytes: u64,
    /// Weights of functions that all domains call: on every GPU once.
    pub(crate) shared_weight_bytes: u64,
    /// What the driver takes for stacks of one worker's kernels.
    pub(crate) stack_bytes: u64,
}

/// How each GPU is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) memory_bytes: u64,
    pub(crate) workers: u64,
    pub(crate) lanes: u64,
    pub(crate) standbys: u64,
    /// The most that weights may take.
    pub(crate) weights_bytes: u64,
    /// What a process takes for itself.
    pub(crate) context_bytes: u64,
}

/// The most workers beside so many standbys and a process that compiles.
pub(crate) fn most_workers(standbys: u64) -> u64 {
    MAX_CONTEXTS.saturating_sub(standbys + 1).max(1)
}

impl Setup {
    /// What the supervisor takes on a GPU with so much memory, all of it free, where nothing but this is said.
    pub(crate) fn of(there_bytes: u64, memory: Option<u64>, context_bytes: u64) -> Self {
        let share = there_bytes / 10 * 9;
        let most = if share >= GIB { share / GIB * GIB } else { whole_steps(share) };
        let memory_bytes = memory.unwrap_or(most);
        let contexts = memory.unwrap_or(there_bytes) / CONTEXTS_SHARE / CONTEXT_BYTES;
        Self {
            memory_bytes,
            workers: contexts.clamp(1, most_workers(1)),
            lanes: DEFAULT_LANES,
            standbys: 1,
            weights_bytes: memory_bytes / 4,
            context_bytes,
        }
    }
}

/// What each of so many GPUs has to hold, the fullest one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) gpus: u64,
    pub(crate) setup: Setup,
    /// Domains whose home it is.
    pub(crate) domains: u64,
    /// Of these, those that have a worker at the same time.
    pub(crate) residents: u64,
    pub(crate) contexts_bytes: u64,
    pub(crate) stacks_bytes: u64,
    /// Weights that its domains have.
    pub(crate) weights_bytes: u64,
    /// Bytes of weights that are there at the same time.
    pub(crate) weights_there_bytes: u64,
    /// What is left for leases.
    pub(crate) left_bytes: u64,
    /// Calls in flight that have a lane.
    pub(crate) calls: u64,
    /// Of these, calls that are lent memory at the same time.
    pub(crate) calls_at_once: u64,
    /// The most that one call can have.
    pub(crate) largest_call_bytes: u64,
    /// Copies of weights in the host's memory, on a machine with all of these GPUs.
    pub(crate) host_weights_bytes: u64,
    /// What is short.
    pub(crate) short: Vec<Shortage>,
}

/// What is short, and what helps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// The supervisor does not start so.
    Contexts { wanted_bytes: u64, memory_bytes: u64 },
    /// Workers wait for memory before they have any for calls.
    Stacks { wanted_bytes: u64, memory_bytes: u64 },
    /// Domains take workers from each other.
    Workers { domains: u64, workers: u64 },
    /// A call is refused.
    Call { call_bytes: u64, most_bytes: u64 },
    /// A call has the device for itself.
    Exclusive { call_bytes: u64, memory_bytes: u64 },
    /// Weights are loaded again and again.
    Weights { wanted_bytes: u64, most_bytes: u64, reload_us: u64 },
    /// Calls wait for memory.
    Leases { calls: u64, at_once: u64 },
    /// Calls wait for lanes of their own worker.
    Lanes { in_flight: u64, lanes: u64 },
}

impl Shortage {
    /// What programs call it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Contexts { .. } => "contexts",
            Self::Stacks { .. } => "stacks",
            Self::Workers { .. } => "workers",
            Self::Call { .. } => "call",
            Self::Exclusive { .. } => "exclusive",
            Self::Weights { .. } => "weights",
            Self::Leases { .. } => "leases",
            Self::Lanes { .. } => "lanes",
        }
    }

    /// True if more GPUs help.
    fn shrinks(&self) -> bool {
        matches!(
            self,
            Self::Stacks { .. } | Self::Workers { .. } | Self::Weights { .. } | Self::Leases { .. }
        )
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Contexts { wanted_bytes, memory_bytes } => write!(
                f,
                "contexts may take {} of memory={}: the supervisor does not start; fewer workers or standbys, or more memory",
                rough_bytes(wanted_bytes),
                rough_bytes(memory_bytes)
            ),
            Self::Stacks { wanted_bytes, memory_bytes } => write!(
                f,
                "contexts and stacks of the residents take {} of memory={}: smaller stack=, fewer workers, or more GPUs",
                rough_bytes(wanted_bytes),
                rough_bytes(memory_bytes)
            ),
            Self::Workers { domains, workers } => write!(
                f,
                "{domains} tenants share {workers} workers: one that calls may wait until another gives up its worker, \
                 about seven in a second; more workers, memory or GPUs"
            ),
            Self::Call { call_bytes, most_bytes } => write!(
                f,
                "a call needs {} and can have {}: it is refused with OUT_OF_MEMORY; a larger GPU, or less in a call",
                rough_bytes(call_bytes),
                rough_bytes(most_bytes)
            ),
            Self::Exclusive { call_bytes, memory_bytes } => write!(
                f,
                "a call needs {}, more than half of memory={}: it has the device for itself, and all others wait",
                rough_bytes(call_bytes),
                rough_bytes(memory_bytes)
            ),
            Self::Weights { wanted_bytes, most_bytes, reload_us } => write!(
                f,
                "weights take {} and may have {}: those of a tenant that was away are loaded again, {} each; a larger \
                 weights=, or more GPUs",
                rough_bytes(wanted_bytes),
                rough_bytes(most_bytes),
                nanoseconds(reload_us * 1000)
            ),
            Self::Leases { calls, at_once } => write!(
                f,
                "{at_once} of {calls} calls are lent memory at the same time, the others wait: fewer in flight, or more GPUs"
            ),
            Self::Lanes { in_flight, lanes } => {
                write!(
                    f,
                    "a tenant with {in_flight} calls in flight runs {lanes} of them at a time: more lanes"
                )
            }
        }
    }
}

fn whole_steps(bytes: u64) -> u64 {
    bytes / STEP_BYTES * STEP_BYTES
}

/// What each of `gpus` GPUs has to hold if domains are spread evenly, as they are: each has a home.
pub(crate) fn plan(load: &Load, setup: Setup, gpus: u64) -> Plan {
    let memory = setup.memory_bytes;
    let domains = load.domains.div_ceil(gpus);
    let residents = domains.min(setup.workers);
    // Beside the residents a process compiles now and then.
    let processes = |workers: u64| (workers + setup.standbys + 1).saturating_mul(setup.context_bytes);
    let contexts_bytes = processes(residents);
    let stacks_bytes = residents.saturating_mul(load.stack_bytes);
    let weights_bytes = domains.saturating_mul(load.weight_bytes).saturating_add(load.shared_weight_bytes);
    let weights_most =
        setup.weights_bytes.min(memory.saturating_sub(contexts_bytes).saturating_sub(stacks_bytes));
    let weights_there_bytes = weights_bytes.min(weights_most);
    let left_bytes = memory
        .saturating_sub(contexts_bytes)
        .saturating_sub(stacks_bytes)
        .saturating_sub(weights_there_bytes);
    let busy = load.busy.min(load.domains).div_ceil(gpus).min(residents);
    let calls = busy.saturating_mul(load.in_flight.min(setup.lanes));
    let lease_bytes = load.call_bytes.div_ceil(STEP_BYTES).saturating_mul(STEP_BYTES);
    let calls_at_once = left_bytes.checked_div(lease_bytes).map_or(calls, |most| most.min(calls));
    let largest_call_bytes = whole_steps(memory.saturating_sub(processes(1)));
    let host_weights_bytes =
        load.domains.saturating_mul(load.weight_bytes).saturating_add(load.shared_weight_bytes);

    let mut short = Vec::new();
    let all_contexts = processes(setup.workers);
    let residents_bytes = contexts_bytes.saturating_add(stacks_bytes);
    if memory.saturating_sub(all_contexts) < MIN_GPU_CALLS_BYTES {
        short.push(Shortage::Contexts { wanted_bytes: all_contexts, memory_bytes: memory });
    } else if residents_bytes > memory {
        short.push(Shortage::Stacks { wanted_bytes: residents_bytes, memory_bytes: memory });
    }
    if domains > setup.workers {
        short.push(Shortage::Workers { domains, workers: setup.workers });
    }
    if load.call_bytes > largest_call_bytes {
        short.push(Shortage::Call { call_bytes: load.call_bytes, most_bytes: largest_call_bytes });
    } else if load.call_bytes > memory / 2 {
        short.push(Shortage::Exclusive { call_bytes: load.call_bytes, memory_bytes: memory });
    } else if calls_at_once < calls {
        short.push(Shortage::Leases { calls, at_once: calls_at_once });
    }
    if weights_bytes > weights_most {
        let reload_us = u128::from(load.weight_bytes.max(1)) * 1_000_000 / u128::from(RELOAD_BYTES_PER_S);
        short.push(Shortage::Weights {
            wanted_bytes: weights_bytes,
            most_bytes: weights_most,
            reload_us: reload_us as u64,
        });
    }
    if load.in_flight > setup.lanes {
        short.push(Shortage::Lanes { in_flight: load.in_flight, lanes: setup.lanes });
    }
    Plan {
        gpus,
        setup,
        domains,
        residents,
        contexts_bytes,
        stacks_bytes,
        weights_bytes,
        weights_there_bytes,
        left_bytes,
        calls,
        calls_at_once,
        largest_call_bytes,
        host_weights_bytes,
        short,
    }
}

/// The plan with the fewest GPUs that more GPUs would not make better.
pub(crate) fn fewest(load: &Load, setup: Setup) -> Plan {
    // More GPUs never make anything shorter, so the first that lacks as little as the most do is found by halving.
    let lacks = |gpus: u64| plan(load, setup, gpus).short.iter().filter(|short| short.shrinks()).count();
    let least = lacks(MAX_GPUS);
    let (mut low, mut high) = (1, MAX_GPUS);
    while low < high {
        let middle = (low + high) / 2;
        match lacks(middle) == least {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    plan(load, setup, low)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const H200: u64 = 143_155 * MIB;

    fn load() -> Load {
        Load {
            domains: 62,
            busy: 62,
            in_flight: 1,
            call_bytes: 0,
            weight_bytes: 0,
            shared_weight_bytes: 0,
            stack_bytes: 0,
        }
    }

    fn names(plan: &Plan) -> Vec<&'static str> {
        plan.short.iter().map(Shortage::name).collect()
    }

    #[test]
    fn the_defaults_of_an_h200_are_the_supervisors() {
        let setup = Setup::of(H200, None, CONTEXT_BYTES);
        assert_eq!((setup.memory_bytes, setup.workers), (125 * GIB, 62));
        assert_eq!(setup.weights_bytes, 125 * GIB / 4);
        // As docs/operations/devices.md has it: a quarter of the memory that was given.
        assert_eq!(Setup::of(H200, Some(100 * GIB), CONTEXT_BYTES).workers, 47);
        assert_eq!(Setup::of(900 * MIB, None, CONTEXT_BYTES).memory_bytes, 810 * MIB);
    }

    #[test]
    fn sixty_two_idle_tenants_fit_one_h200() {
        let plan = plan(&load(), Setup::of(H200, None, CONTEXT_BYTES), 1);
        assert_eq!(names(&plan), [""; 0]);
        assert_eq!((plan.residents, plan.contexts_bytes), (62, 64 * CONTEXT_BYTES));
        assert_eq!(plan.left_bytes, 125 * GIB - 64 * CONTEXT_BYTES);
    }

    #[test]
    fn each_shortage_is_found() {
        let setup = Setup::of(H200, None, CONTEXT_BYTES);
        let check = |change: &dyn Fn(&mut Load, &mut Setup), wanted: &[&str]| {
            let (mut load, mut setup) = (load(), setup);
            change(&mut load, &mut setup);
            assert_eq!(names(&plan(&load, setup, 1)), wanted);
        };
        check(&|load, _| load.domains = 63, &["workers"]);
        check(&|load, _| load.call_bytes = 2 * GIB, &["leases"]);
        check(&|load, _| load.call_bytes = 100 * GIB, &["exclusive"]);
        check(&|load, _| load.call_bytes = 124 * GIB, &["call"]);
        check(&|load, _| load.weight_bytes = GIB, &["weights"]);
        check(&|load, _| load.in_flight = 9, &["lanes"]);
        check(&|_, setup| setup.memory_bytes = 33 * GIB, &["contexts"]);
    }

    #[test]
    fn a_reload_takes_what_was_measured() {
        let load = Load { weight_bytes: GIB, ..load() };
        let plan = plan(&load, Setup::of(H200, None, CONTEXT_BYTES), 1);
        let [Shortage::Weights { reload_us, .. }] = plan.short[..] else { panic!("{:?}", plan.short) };
        // 1 GiB at 52.6 GB/s.
        assert_eq!(reload_us, 20_413);
    }

    #[test]
    fn the_fewest_gpus_are_found() {
        let setup = Setup::of(H200, None, CONTEXT_BYTES);
        let gpus = |load: Load| {
            let plan = fewest(&load, setup);
            (plan.gpus, plan.short.len())
        };
        assert_eq!(gpus(load()), (1, 0));
        assert_eq!(gpus(Load { domains: 63, ..load() }), (2, 0));
        assert_eq!(gpus(Load { domains: 1000, ..load() }), (17, 0));
        assert_eq!(gpus(Load { weight_bytes: GIB, ..load() }), (2, 0));
        // No number of GPUs makes one larger.
        assert_eq!(gpus(Load { call_bytes: 200 * GIB, ..load() }), (1, 1));
        assert_eq!(gpus(Load { shared_weight_bytes: 200 * GIB, ..load() }), (1, 1));
    }

    proptest! {
        #[test]
        fn the_account_never_exceeds_the_memory_and_more_gpus_never_lack_more(
            domains in 1_u64..5000,
            busy in 1_u64..5000,
            in_flight in 1_u64..64,
            call_mib in 0_u64..200_000,
            weight_mib in 0_u64..50_000,
            shared_mib in 0_u64..200_000,
            stack_mib in 0_u64..4096,
            there_mib in 1_u64..400_000,
            gpus in 1_u64..64,
        ) {
            let load = Load {
                domains, busy, in_flight,
                call_bytes: call_mib * MIB, weight_bytes: weight_mib * MIB,
                shared_weight_bytes: shared_mib * MIB, stack_bytes: stack_mib * MIB,
            };
            let setup = Setup::of(there_mib * MIB, None, CONTEXT_BYTES);
            let one = plan(&load, setup, gpus);
            let leases = one.calls_at_once * load.call_bytes;
            let used = one.contexts_bytes + one.stacks_bytes + one.weights_there_bytes;
            prop_assert!(leases <= one.left_bytes || load.call_bytes == 0);
            prop_assert!(used + one.left_bytes <= setup.memory_bytes.max(one.contexts_bytes + one.stacks_bytes));
            prop_assert!(one.residents <= one.domains && one.residents <= setup.workers);
            let more = plan(&load, setup, gpus + 1);
            prop_assert!(more.contexts_bytes <= one.contexts_bytes && more.weights_bytes <= one.weights_bytes);
            let lacking = |plan: &Plan| plan.short.iter().filter(|one| one.shrinks()).map(Shortage::name).collect::<Vec<_>>();
            let (before, after) = (lacking(&one), lacking(&more));
            prop_assert!(after.iter().all(|name| before.contains(name)), "{before:?} {after:?}");
        }

        #[test]
        fn no_size_overflows(bytes in any::<u64>(), count in 1_u64..=u64::from(u32::MAX), gpus in 1..=MAX_GPUS) {
            let load = Load {
                domains: count, busy: count, in_flight: count, call_bytes: bytes, weight_bytes: bytes,
                shared_weight_bytes: bytes, stack_bytes: bytes,
            };
            let setup = Setup { context_bytes: bytes, ..Setup::of(bytes, Some(bytes), CONTEXT_BYTES) };
            let plan = plan(&load, setup, gpus);
            prop_assert!(plan.short.iter().all(|short| !short.to_string().is_empty()));
            fewest(&load, setup);
        }
    }

    #[test]
    fn stacks_that_do_not_fit_are_short_and_what_more_gpus_cure_is_cured_beside_what_they_do_not() {
        let setup = Setup::of(H200, None, CONTEXT_BYTES);
        let stacks = Load { domains: 4, stack_bytes: 40 * GIB, ..load() };
        assert_eq!(names(&plan(&stacks, setup, 1)), ["stacks"]);
        assert_eq!(fewest(&stacks, setup).gpus, 2);
        // Shared weights are on every GPU once: no number of GPUs makes them fit.
        let both = Load { domains: 620, shared_weight_bytes: 200 * GIB, ..load() };
        let found = fewest(&both, setup);
        assert_eq!((found.gpus, names(&found)), (10, vec!["weights"]));
    }
}
