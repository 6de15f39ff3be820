//! The kinds of devices that both sides know.

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

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 2] = [Kind::Cpu, Kind::Cuda];

    /// Its name, as in `--device`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            format!("unknown device `{name}`, this build has: {}", Self::ALL.map(Self::name).join(", "))
        })
    }
}
