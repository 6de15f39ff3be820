//! A device ready to use: a request, completed by what a survey found.

use std::collections::BTreeMap;
use std::time::Duration;

use bytesize::ByteSize;
use pappus_protocol::Kind;
use pappus_protocol::device_memory::whole_gpu_pages;
use pappus_protocol::from_worker::{FoundDevice, Survey};

use super::request::{DeviceRequest, Selector};
use super::{ConfigError, given_twice};
use crate::limits;

/// One device: its name, and the part that Pappus may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceConfig {
    /// Such as `cpu`, `cpu:1`, `cuda:0` or `hip:0`.
    pub name: String,
    /// What runs it.
    pub kind: Kind,
    /// The UUID of a GPU; empty for the CPU.
    pub uuid: String,
    /// The architecture of a GPU, such as `sm_90`; empty for the CPU.
    pub arch: String,
    /// The driver's version; empty for the CPU.
    pub driver: String,
    /// What people call it, such as `NVIDIA H200`.
    pub description: String,
    /// The host's memory node that it is attached to.
    pub numa_node: Option<u32>,
    /// The most worker processes that there may be.
    pub workers: usize,
    /// Concurrent calls of one worker.
    pub lanes: u32,
    /// Initialised processes kept ready to take a worker's place.
    pub standbys: usize,
    /// Workers that one domain may have.
    pub workers_per_domain: usize,
    /// Of the workers, those that all domains share whose kernels cannot leave their memory.
    pub shared_workers: usize,
    /// How long a call may run in one of these.
    pub shared_limit: Duration,
    /// True if kernels end in the middle when their call's time is over, where that takes machine code of its own: a device that
    /// shares workers needs it, and all devices of a kind run the same machine code.
    pub interruptible: bool,
    /// Device memory for everything, in bytes.
    pub memory_bytes: u64,
    /// All that the device has, in bytes; of the CPU, more than any machine has.
    pub there_bytes: u64,
    /// Device memory beside it for states of sessions, in bytes.
    pub states_bytes: u64,
    /// Of it, the most that weights may take.
    pub weights_bytes: u64,
    /// Of it, the most that the driver may take for the stacks of one worker's kernels.
    pub stack_bytes: u64,
    /// Workers submit by turns.
    pub turns: bool,
    /// How long a turn lasts while others wait.
    pub quantum: Duration,
    /// On-chip state is cleared between any two calls.
    pub scrub_calls: bool,
    /// How long a domain keeps a worker that another one waits for.
    pub min_residency: Duration,
    /// An idle worker is scrubbed for another domain; without this, another process takes its place.
    pub scrub_switch: bool,
    /// Processes use the device at the same time through an MPS daemon, which also spreads faults.
    pub under_mps: bool,
}

/// What a device that needs no driver is called.
pub(crate) const BUILT_IN: &str = "the built-in device for wasm";
/// What a process takes of a GPU's memory before any lease, until workers say what it really is.
const CONTEXT_BYTES: u64 = 540 << 20;
/// The most that an MPS daemon serves on one device ("Multi-Process Service", NVIDIA, section "Limitations": 48 clients).
const MPS_CONTEXTS: usize = 48;
/// Processes that compile at a time.
const COMPILERS: usize = 1;
/// What contexts must leave of a GPU's memory for calls.
const MIN_GPU_CALLS_BYTES: u64 = 64 << 20;
/// The share of a GPU's memory that contexts may take where the number of workers is not given: one in so many bytes.
const CONTEXTS_SHARE: u64 = 4;
/// The share of a GPU's memory that states of sessions may take besides: one in so many bytes.
const STATES_SHARE: u64 = 32;
/// Workers of the CPU where their number is not given: their memory is the host's, and most of them are idle.
const CPU_WORKERS: usize = 32;
/// Workers that one domain may have where several may overlap.
const GPU_WORKERS_PER_DOMAIN: usize = 4;
const DEFAULT_QUANTUM: Duration = Duration::from_millis(5);
const GIB: u64 = 1 << 30;

fn iec(bytes: u64) -> impl std::fmt::Display {
    ByteSize::b(bytes).display().iec()
}

impl DeviceConfig {
    /// True if the device's workers take turns: several do, if turns are on.
    pub fn takes_turns(&self) -> bool {
        self.turns && self.workers > 1
    }

    /// True if the process in a worker's slot is made to be shared, which a process in another slot is not. Where there is no driver,
    /// all processes are the same.
    pub fn makes_shared(&self, worker: usize) -> bool {
        self.kind.traits().has_driver && worker < self.shared_workers
    }

    /// True if the process of a standby is made to be shared: the second one, where there are such processes.
    pub fn stands_by_shared(&self, standby: usize) -> bool {
        standby == 1 && self.makes_shared(0)
    }

    /// Estimated device memory of a process's context, until a process reports its own.
    pub fn context_estimate(&self) -> u64 {
        if self.kind.traits().has_own_memory { CONTEXT_BYTES } else { 0 }
    }

    /// The most device memory that one call can have of so many bytes, where a process takes `context_bytes` for its context. The
    /// rest is for the call's own process, `standbys`, one process that compiles, and shared workers, whose stacks stay.
    pub fn largest_call_of(&self, memory_bytes: u64, standbys: usize, context_bytes: u64) -> u64 {
        let traits = self.kind.traits();
        let shared = self.shared_workers as u64;
        let contexts = (standbys as u64 + 2 + shared).saturating_mul(context_bytes);
        let kept = contexts.saturating_add(shared * self.stack_bytes);
        let most = traits.whole_pages(memory_bytes.saturating_sub(kept));
        traits.max_lease_bytes.map_or(most, |address| most.min(traits.whole_pages(address)))
    }

    /// How many of a device's `workers` one domain may have.
    pub(super) fn per_domain(&self, workers: usize) -> usize {
        match (self.kind.traits().has_driver, self.turns) {
            // More than there are processors make no domain faster.
            (false, _) => workers.min(limits::processors().max(2)),
            (true, true) => 1,
            (true, false) => workers.min(GPU_WORKERS_PER_DOMAIN),
        }
    }

    fn built_in(request: &DeviceRequest) -> Result<Self, ConfigError> {
        let workers = request.workers.unwrap_or(CPU_WORKERS);
        let device = Self {
            name: request.selector.to_string(),
            kind: request.selector.kind(),
            uuid: String::new(),
            arch: String::new(),
            driver: String::new(),
            description: BUILT_IN.to_owned(),
            numa_node: None,
            workers,
            lanes: 1,
            // Where there is one worker, a standby would be of use only when it changes hands.
            standbys: request.standbys.unwrap_or(usize::from(workers > 1)),
            workers_per_domain: 1,
            // More than there are processors make none of them faster; one worker is for what they cannot run.
            shared_workers: match request.shares {
                Some(true) => limits::processors().min(workers.saturating_sub(1)),
                Some(false) | None => 0,
            },
            shared_limit: request.shared_limit(),
            interruptible: false,
            memory_bytes: request.memory_bytes.unwrap_or(512 << 20),
            there_bytes: limits::MAX_CPU_MEMORY_BYTES,
            // Arenas are in the same memory.
            states_bytes: 0,
            weights_bytes: request.weights_bytes.unwrap_or(u64::MAX),
            stack_bytes: 0,
            turns: request.turns.unwrap_or(false),
            quantum: request.quantum.unwrap_or(DEFAULT_QUANTUM),
            scrub_calls: false,
            min_residency: request.min_residency(),
            scrub_switch: request.scrub_switch.unwrap_or(false),
            under_mps: false,
        };
        device.with(device.settings()).check(request)
    }

    /// Checks what settings demand of each other and of the device.
    pub(super) fn check(self, request: &DeviceRequest) -> Result<Self, ConfigError> {
        let traits = self.kind.traits();
        if self.memory_bytes.saturating_add(self.states_bytes) > self.there_bytes {
            let (asked, there, name) = (iec(self.memory_bytes), iec(self.there_bytes), &self.name);
            return Err(request.bad(match traits.has_own_memory {
                false => format!("memory is {asked}, expected at most {there}: ask for less"),
                true => format!(
                    "memory is {asked}, and states of sessions have {}, but {name} has {there}: ask for less",
                    iec(self.states_bytes)
                ),
            }));
        }
        if !traits.has_own_memory && self.memory_bytes < traits.page_bytes {
            let memory = iec(self.memory_bytes);
            return Err(
                request.bad(format!("memory is {memory}, but a call takes 64KiB at least: give it more"))
            );
        }
        let shared = self.shared_workers.max(usize::from(request.shares == Some(true)));
        if shared > 0 && self.workers <= shared {
            return Err(request.bad(format!(
                "workers is {}, but tenants share {shared} with isolation=auto, and one more is for what cannot be shared: \
                 workers={} at least",
                self.workers,
                shared + 1
            )));
        }
        match traits.has_own_memory {
            true => self.check_contexts(request)?.check_standbys(request),
            false => self.check_standbys(request),
        }
    }

    fn gpu(
        request: &DeviceRequest,
        kind: Kind,
        survey: &Survey,
        found: &FoundDevice,
    ) -> Result<Self, ConfigError> {
        let name = name_of(kind, found);
        let memory_bytes = request.memory_bytes.unwrap_or_else(|| default_memory(found.free_bytes));
        let share = request.memory_bytes.unwrap_or(found.memory_bytes) / CONTEXTS_SHARE;
        let shares = request.shares == Some(true);
        // One more is for the worker that tenants share: the process of such a worker is made for that.
        let standbys = request.standbys.unwrap_or(1 + usize::from(shares));
        let made = max_contexts(kind, survey.shared).saturating_sub(standbys + COMPILERS);
        let most = (share / CONTEXT_BYTES).min(made as u64).clamp(1, limits::MAX_WORKERS as u64) as usize;
        let workers = request.workers.unwrap_or(most);
        let concurrent = kind.traits().has_concurrent_processes;
        let turns = request.turns.unwrap_or(workers > 1 && !survey.shared);
        let scrub_calls = request.scrub_calls.unwrap_or(false);
        let scrub_switch = request.scrub_switch.unwrap_or(false);
        for (asked, setting, instead) in [
            (scrub_calls, "scrub=call", "scrub=switch"),
            (scrub_switch, "tenant-switch=scrub", "tenant-switch=replace"),
        ] {
            if asked && survey.shared {
                return Err(request.bad(format!(
                    "{setting} does not work under MPS, which lets other processes keep processors busy \
                     meanwhile: stop the MPS daemon or use {instead}"
                )));
            }
            if asked && concurrent && workers > 1 && !turns {
                return Err(request.bad(format!(
                    "{setting} works with turns=on only, since other processes may keep compute units of {name} busy \
                     meanwhile: leave turns out or use {instead}"
                )));
            }
        }
        let device = Self {
            kind,
            uuid: found.uuid.clone(),
            arch: found.arch.clone(),
            driver: survey.driver.clone(),
            description: found.name.clone(),
            numa_node: found.numa_node,
            workers,
            lanes: request.lanes.unwrap_or(8),
            standbys,
            workers_per_domain: 1,
            shared_workers: usize::from(shares),
            shared_limit: request.shared_limit(),
            interruptible: false,
            memory_bytes,
            there_bytes: found.memory_bytes,
            // Beside `memory` there is room, unless that was given.
            states_bytes: request.states_bytes.unwrap_or(
                (memory_bytes / STATES_SHARE).min(found.memory_bytes.saturating_sub(memory_bytes)),
            ),
            weights_bytes: request.weights_bytes.unwrap_or(memory_bytes / 4),
            // Small devices keep most of their memory for calls.
            stack_bytes: request.stack_bytes.unwrap_or(GIB.min(memory_bytes / 16)),
            turns,
            quantum: request.quantum.unwrap_or(DEFAULT_QUANTUM),
            scrub_calls,
            min_residency: request.min_residency(),
            scrub_switch,
            under_mps: survey.shared,
            name,
        };
        device.with(device.settings()).check(request)
    }

    /// Checks that all processes that the device may have fit.
    fn check_contexts(self, request: &DeviceRequest) -> Result<Self, ConfigError> {
        let processes = self.workers + self.standbys + COMPILERS;
        let most = max_contexts(self.kind, self.under_mps);
        if processes > most {
            let with = if self.under_mps { " under MPS" } else { "" };
            return Err(request.bad(format!(
                "the driver makes the contexts of {most} processes on one GPU{with}; {} workers, {} standbys and a compiler are \
                 {processes}: fewer workers or standbys",
                self.workers, self.standbys,
            )));
        }
        let contexts = (processes as u64).saturating_mul(CONTEXT_BYTES);
        let left = self.memory_bytes.saturating_sub(contexts);
        match left >= MIN_GPU_CALLS_BYTES {
            true => Ok(self),
            false => Err(request.bad(format!(
                "of memory={} on {}, the contexts of {} workers, {} standbys and a compiler may take about {}; that \
                 leaves {} for calls, expected at least {}: more memory, or fewer workers or standbys",
                iec(self.memory_bytes),
                self.name,
                self.workers,
                self.standbys,
                iec(contexts),
                iec(left),
                iec(MIN_GPU_CALLS_BYTES),
            ))),
        }
    }

    /// The number of workers may be a default.
    fn check_standbys(self, request: &DeviceRequest) -> Result<Self, ConfigError> {
        match self.standbys > self.workers {
            true => {
                Err(request.bad(format!("standbys must be 0 to {} (workers), e.g. standbys=1", self.workers)))
            }
            false => Ok(self),
        }
    }
}

/// The most processes of which the driver makes contexts on one device.
fn max_contexts(kind: Kind, under_mps: bool) -> usize {
    let most = kind.traits().max_contexts.unwrap_or(usize::MAX);
    if under_mps { most.min(MPS_CONTEXTS) } else { most }
}

/// Nine tenths of what is free, in whole GiB where there is that much.
fn default_memory(free_bytes: u64) -> u64 {
    let share = free_bytes / 10 * 9;
    match share {
        GIB.. => share / GIB * GIB,
        _ => whole_gpu_pages(share),
    }
}

/// A slice keeps its UUID as its name, since positions count whole GPUs.
pub(crate) fn name_of(kind: Kind, found: &FoundDevice) -> String {
    match kind.traits().is_slice(&found.uuid) {
        true => format!("{kind}:{}", found.uuid),
        false => format!("{kind}:{}", found.index),
    }
}

/// What a survey found, for people: `cuda:0 NVIDIA H200 GPU-…`.
fn listed(kind: Kind, survey: &Survey) -> String {
    let mut there: Vec<_> =
        survey.devices.iter().map(|d| format!("{} {} {}", name_of(kind, d), d.name, d.uuid)).collect();
    there.dedup();
    let (is, s) = if there.len() == 1 { ("is", "") } else { ("are", "s") };
    format!("there {is} {} GPU{s}: {}", there.len(), there.join(", "))
}

/// What surveys found, of each kind of GPU that was looked for.
pub type Surveys = BTreeMap<Kind, Survey>;

/// The devices that were asked for, with what surveys of the GPUs found where some are among them.
pub fn resolve(requests: &[DeviceRequest], surveys: &Surveys) -> Result<Vec<DeviceConfig>, ConfigError> {
    let mut devices: Vec<DeviceConfig> = Vec::new();
    for request in requests {
        for device in resolve_one(request, surveys, requests)? {
            if devices.iter().any(|other| other.name == device.name) {
                return Err(given_twice(&device.name));
            }
            devices.push(device);
        }
    }
    for kind in Kind::ALL {
        let of_kind = |device: &&mut DeviceConfig| device.kind == kind;
        let interruptible = devices.iter().any(|device| device.kind == kind && device.shared_workers > 0);
        devices.iter_mut().filter(of_kind).for_each(|device| device.interruptible = interruptible);
    }
    Ok(devices)
}

fn resolve_one(
    request: &DeviceRequest,
    surveys: &Surveys,
    all: &[DeviceRequest],
) -> Result<Vec<DeviceConfig>, ConfigError> {
    let kind = request.selector.kind();
    let none = Survey::default();
    let survey = surveys.get(&kind).unwrap_or(&none);
    let is_named =
        |found: &FoundDevice| all.iter().any(|r| r.selector == Selector::SliceUuid(kind, found.uuid.clone()));
    let found: Vec<&FoundDevice> = match &request.selector {
        Selector::BuiltIn(..) => return Ok(vec![DeviceConfig::built_in(request)?]),
        // A container may see nothing but a slice; slices that were named have settings of their own.
        Selector::AllGpus(_) => survey.devices.iter().filter(|d| !is_named(d)).collect(),
        Selector::Gpu(_, index) => {
            survey.devices.iter().filter(|d| !is_named(d) && d.index == *index).collect()
        }
        Selector::GpuUuid(_, uuid) => {
            let begins = |d: &&FoundDevice| d.uuid.to_lowercase().starts_with(&uuid.to_lowercase());
            survey.devices.iter().filter(begins).collect()
        }
        Selector::SliceUuid(_, uuid) => survey.devices.iter().filter(|d| d.uuid == *uuid).collect(),
    };
    match (&request.selector, found.len()) {
        (_, 0) => Err(ConfigError::Device {
            name: request.selector.to_string(),
            why: if survey.devices.is_empty() { "there is no GPU".to_owned() } else { listed(kind, survey) },
        }),
        (Selector::GpuUuid(..), 2..) => Err(ConfigError::Device {
            name: request.selector.to_string(),
            why: format!("several UUIDs begin so; {}", listed(kind, survey)),
        }),
        _ => found.into_iter().map(|found| DeviceConfig::gpu(request, kind, survey, found)).collect(),
    }
}

/// What is taken where nothing is asked for: every GPU that is large enough, else the CPU. Also says, for
/// the log, which GPUs were left out and why.
pub fn default_devices(surveys: &Surveys) -> Result<(Vec<DeviceConfig>, Vec<ConfigError>), ConfigError> {
    let (mut devices, mut left_out) = (Vec::new(), Vec::new());
    for (&kind, survey) in surveys {
        let request = DeviceRequest::plain(Selector::AllGpus(kind), &format!("{kind}:all"));
        for found in &survey.devices {
            match DeviceConfig::gpu(&request, kind, survey, found) {
                Ok(device) => devices.push(device),
                Err(why) => left_out.push(why),
            }
        }
    }
    if devices.is_empty() {
        let first = Selector::BuiltIn(Kind::BUILT_IN, 0);
        let text = first.to_string();
        devices.push(DeviceConfig::built_in(&DeviceRequest::plain(first, &text))?);
    }
    Ok((devices, left_out))
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
