//! The kinds of devices, and what the rest of Pappus must know about each.
//!
//! Outside of a kind's own backend nothing asks which kind a device is, only what it is like ([`KindTraits`]). A new
//! kind does not compile until [`Kind::traits`] has answered everything.

use serde::{Deserialize, Serialize};

/// A kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The built-in device: wasm kernels on the worker's own thread.
    Cpu,
    /// NVIDIA GPUs through their driver, found at run time.
    Cuda,
}

/// What a kind of device is like.
#[derive(Debug, PartialEq, Eq)]
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
    /// What lanes are lent in multiples of: the page that its memory is mapped in.
    pub page_bytes: u64,
    /// The most that one lane can have, where kernels cannot address all of a device's memory.
    pub max_lease_bytes: Option<u64>,
    /// The machine code that it runs.
    pub code: CodeFamily,
}

/// Families of machine code: the variants that a module can have, and those that a device takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeFamily {
    /// `wasm`, one form for all devices.
    Wasm,
    /// `cubin`, `fatbin` and `ptx`, for architectures such as `sm_90`.
    Nvidia,
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
    page_bytes: WASM_PAGE_BYTES,
    max_lease_bytes: Some(MAX_CPU_LEASE_BYTES),
    code: CodeFamily::Wasm,
};

const CUDA: KindTraits = KindTraits {
    name: "cuda",
    devices: "GPUs",
    has_own_memory: true,
    has_driver: true,
    has_lanes: true,
    page_bytes: GPU_PAGE_BYTES,
    max_lease_bytes: None,
    code: CodeFamily::Nvidia,
};

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 2] = [Kind::Cpu, Kind::Cuda];

    /// What it is like.
    pub const fn traits(self) -> &'static KindTraits {
        match self {
            Self::Cpu => &CPU,
            Self::Cuda => &CUDA,
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
        assert_eq!(refused, Err("unknown device `toaster`, this build has: cpu, cuda".to_owned()));
    }
}
