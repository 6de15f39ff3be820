//! The kinds of devices, and what the rest of Pappus must know about each.
//!
//! Outside of a kind's own backend nothing asks which kind a device is, only what it is like ([`KindTraits`]). A new
//! kind does not compile until [`Kind::traits`] has answered everything.

use pappus_blueprint::code::{CodeFormat, Cubin, Fatbin, Hsaco, Ptx, Wasm};
use serde::{Deserialize, Serialize};

/// A kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The built-in device: wasm kernels on the worker's own thread.
    Cpu,
    /// NVIDIA GPUs through their driver, found at run time.
    Cuda,
    /// AMD GPUs through HIP's library, found at run time.
    Hip,
}

/// What a kind of device is like.
#[derive(Debug)]
pub struct KindTraits {
    /// Its name, as in `--device`.
    pub name: &'static str,
    /// Its devices in messages, such as "the process that looks for …".
    pub devices: &'static str,
    /// It has memory of its own: processes hold contexts in it, kernels take stacks from it, and weights are loaded
    /// into it once, for all workers. Without, a device's memory is the host's, and weights are mapped where they are.
    pub has_own_memory: bool,
    /// It is reached through a driver of the host: its library reads files of the host and the environment, and takes
    /// a moment to start.
    pub has_driver: bool,
    /// Several calls run in one worker at the same time, each in a lane of its own.
    pub has_lanes: bool,
    /// Processes use it at the same time without any daemon, so that what one leaves inside a processor may be found by
    /// another: they take turns unless the operator says otherwise.
    pub has_concurrent_processes: bool,
    /// What lanes are lent in multiples of: the page that its memory is mapped in.
    pub page_bytes: u64,
    /// The most that one lane can have, where kernels cannot address all of a device's memory.
    pub max_lease_bytes: Option<u64>,
    /// The most processes of which its driver makes contexts on one device at the same time; none where no limit is known.
    pub max_contexts: Option<usize>,
    /// What UUIDs of slices begin with, where a GPU can be cut into such (MIG).
    pub slices: Option<&'static str>,
    /// True if there is code whose kernels cannot leave the memory that their call was given, whoever wrote them: calls of strangers
    /// may be in one process where all their code is such.
    pub keeps_kernels_in: bool,
    /// Its compiler can put a check in front of every access to memory, for checked calls.
    pub has_checks: bool,
    /// True if its library says what a device measures of itself: energy, power, how busy it is.
    pub has_meter: bool,
    /// The formats of modules that it runs.
    pub formats: &'static [&'static dyn CodeFormat],
    /// What its driver is told and found by; none where there is no driver.
    pub environment: Option<DriverEnvironment>,
}

/// Environment variables of processes that use a driver.
#[derive(Debug, PartialEq, Eq)]
pub struct DriverEnvironment {
    /// Those of the supervisor that are passed on.
    pub passed: &'static [&'static str],
    /// Those that are the same for all.
    pub fixed: &'static [(&'static str, &'static str)],
    /// The variable for the number of hardware queues.
    pub queues: &'static str,
    /// The variable for the devices that a process sees, by their UUIDs; passed on if all are meant.
    pub visible: &'static str,
    /// The variable for the same by positions among the devices of `visible`, for devices without a UUID of
    /// their own.
    pub positions: &'static str,
}

/// Memory of a GPU is mapped in pages of this size; weights and what lanes are lent are whole pages.
pub const GPU_PAGE_BYTES: u64 = 2 << 20;
/// Memory of the CPU device comes in wasm pages.
pub const WASM_PAGE_BYTES: u64 = 64 << 10;

/// The most memory of a call on the CPU device: of the 4 GiB that a wasm kernel addresses, this leaves room for what is the
/// module's own.
pub const MAX_CPU_LEASE_BYTES: u64 = (4 << 30) - (128 << 20);

const CPU: KindTraits = KindTraits {
    name: "cpu",
    devices: "the CPU",
    has_own_memory: false,
    has_driver: false,
    has_lanes: false,
    has_concurrent_processes: false,
    page_bytes: WASM_PAGE_BYTES,
    max_lease_bytes: Some(MAX_CPU_LEASE_BYTES),
    max_contexts: None,
    slices: None,
    keeps_kernels_in: true,
    has_checks: true,
    has_meter: false,
    formats: &[&Wasm],
    environment: None,
};

const CUDA: KindTraits = KindTraits {
    name: "cuda",
    devices: "NVIDIA GPUs",
    has_own_memory: true,
    has_driver: true,
    has_lanes: true,
    has_concurrent_processes: false,
    page_bytes: GPU_PAGE_BYTES,
    max_lease_bytes: None,
    // Driver 580 on an H200: the 65th is "out of memory" (docs/benchmarks/history.md).
    max_contexts: Some(64),
    slices: Some("MIG-"),
    keeps_kernels_in: true,
    has_checks: false,
    has_meter: true,
    formats: &[&Cubin, &Fatbin, &Ptx],
    environment: Some(DriverEnvironment {
        passed: &["LD_LIBRARY_PATH", "CUDA_MPS_PIPE_DIRECTORY"],
        // Positions follow the bus; machine code comes from the registry alone and is loaded whole.
        fixed: &[
            ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
            ("CUDA_MODULE_LOADING", "EAGER"),
            ("CUDA_CACHE_DISABLE", "1"),
        ],
        queues: "CUDA_DEVICE_MAX_CONNECTIONS",
        visible: "CUDA_VISIBLE_DEVICES",
        positions: "CUDA_VISIBLE_DEVICES",
    }),
};

const HIP: KindTraits = KindTraits {
    name: "hip",
    devices: "AMD GPUs",
    has_own_memory: true,
    has_driver: true,
    has_lanes: true,
    has_concurrent_processes: true,
    page_bytes: GPU_PAGE_BYTES,
    max_lease_bytes: None,
    max_contexts: None,
    slices: None,
    keeps_kernels_in: false,
    has_checks: false,
    has_meter: false,
    formats: &[&Hsaco],
    environment: Some(DriverEnvironment {
        // Nothing that loads tools or pretends to another GPU (HSA_TOOLS_LIB, HSA_OVERRIDE_GFX_VERSION).
        passed: &["LD_LIBRARY_PATH"],
        // A fault is an answer: the process reports it and is replaced.
        fixed: &[("HIP_SKIP_ABORT_ON_GPU_ERROR", "1"), ("HSA_ENABLE_VM_FAULT_MESSAGE", "0")],
        queues: "GPU_MAX_HW_QUEUES",
        visible: "ROCR_VISIBLE_DEVICES",
        positions: "HIP_VISIBLE_DEVICES",
    }),
};

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Cpu, Kind::Cuda, Kind::Hip];

    /// The kind that is there on every machine, without a driver.
    pub const BUILT_IN: Kind = Kind::Cpu;

    /// What it is like.
    pub const fn traits(self) -> &'static KindTraits {
        match self {
            Self::Cpu => &CPU,
            Self::Cuda => &CUDA,
            Self::Hip => &HIP,
        }
    }

    /// Its name, as in `--device`.
    pub const fn name(self) -> &'static str {
        self.traits().name
    }
}

impl KindTraits {
    /// The most whole pages in `bytes`.
    pub const fn whole_pages(&self, bytes: u64) -> u64 {
        bytes / self.page_bytes * self.page_bytes
    }

    /// True if a UUID is that of a slice.
    pub fn is_slice(&self, uuid: &str) -> bool {
        self.slices.is_some_and(|beginning| uuid.starts_with(beginning))
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no kind's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown device `{0}`, this build has: {all}", all = Kind::ALL.map(Kind::name).join(", "))]
pub struct UnknownKind(String);

impl std::str::FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(name: &str) -> Result<Self, UnknownKind> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| UnknownKind(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_others_are_refused_with_what_there_is() {
        for kind in Kind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        let refused = "toaster".parse::<Kind>().map_err(|e| e.to_string());
        assert_eq!(refused, Err("unknown device `toaster`, this build has: cpu, cuda, hip".to_owned()));
    }
}
