//! Where it was measured: a number without its machine says nothing.

use std::fmt;
use std::process::Command;

use serde::Serialize;

/// The machine, as far as it matters to the figures.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Cores this process may use.
    pub cores: usize,
    /// The kernel's release.
    pub kernel: String,
    /// The compiler on this machine, usually the one that built the measured programs.
    pub rustc: String,
    /// The GPU and its driver, where one is measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// How busy the machine was just before, averaged over a minute.
    pub load: String,
}

impl Machine {
    /// The machine this runs on.
    pub fn describe() -> Self {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            processor: processor().unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            rustc: rustc().unwrap_or_else(|| "unknown".to_owned()),
            gpu: None,
            load: load.split(' ').next().unwrap_or_default().to_owned(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { processor, cores, kernel, rustc, gpu, load } = self;
        if let Some(gpu) = gpu {
            write!(f, "{gpu}; ")?;
        }
        write!(f, "{processor}, {cores} cores; Linux {kernel}; {rustc}; load {load}")
    }
}

fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_owned())
}

fn rustc() -> Option<String> {
    let output = Command::new("rustc").arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}
