//! What the process gives up before it reads its first byte: to outlive its supervisor, to gain
//! privileges, to leave core files, to open more than its share.

use pappus_protocol::Kind;
use rustix::process::{Resource, Rlimit, Signal};

/// Which step of the lock-down failed.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {source}")]
pub struct SandboxError {
    step: &'static str,
    source: rustix::io::Errno,
}

/// How much a role may take from the host.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Open descriptors.
    pub descriptors: u64,
    /// Seconds of processor time, where the role has an end.
    pub cpu_seconds: Option<u64>,
    /// Bytes of address space, where the role does not reserve it by the gigabyte.
    pub memory_bytes: Option<u64>,
}

/// Arenas, descriptors of calls in flight, module files while they load.
pub fn serve(_: Kind) -> Limits {
    Limits { descriptors: 1024, cpu_seconds: None, memory_bytes: None }
}

/// A module at a time; a module that keeps the compiler busy for longer is a bomb. A GPU's driver reserves
/// more addresses than any limit on them could allow, and needs more descriptors.
pub fn compile(kind: Kind) -> Limits {
    match kind {
        Kind::Cpu => Limits { descriptors: 64, cpu_seconds: Some(120), memory_bytes: Some(4 << 30) },
        Kind::Cuda => Limits { descriptors: 256, cpu_seconds: Some(120), memory_bytes: None },
    }
}

/// A few questions to a driver.
pub const SURVEY: Limits = Limits { descriptors: 256, cpu_seconds: Some(60), memory_bytes: None };

/// Locks the process down. Every step is one system call and none can be taken back.
pub fn enter(limits: Limits) -> Result<(), SandboxError> {
    let at = |step| move |source| SandboxError { step, source };
    // A killed supervisor leaves no process behind, even if this one is inside a kernel then.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(at("PR_SET_PDEATHSIG"))?;
    rustix::thread::set_no_new_privs(true).map_err(at("PR_SET_NO_NEW_PRIVS"))?;
    // A core file would hold the caller's data.
    lower(Resource::Core, 0).map_err(at("RLIMIT_CORE"))?;
    lower(Resource::Nofile, limits.descriptors).map_err(at("RLIMIT_NOFILE"))?;
    if let Some(seconds) = limits.cpu_seconds {
        lower(Resource::Cpu, seconds).map_err(at("RLIMIT_CPU"))?;
    }
    if let Some(bytes) = limits.memory_bytes {
        lower(Resource::As, bytes).map_err(at("RLIMIT_AS"))?;
    }
    Ok(())
}

/// Sets both limits, never above what is already in force.
fn lower(resource: Resource, to: u64) -> rustix::io::Result<()> {
    let now = rustix::process::getrlimit(resource);
    let limit = Some(now.maximum.map_or(to, |maximum| maximum.min(to)));
    rustix::process::setrlimit(resource, Rlimit { current: limit, maximum: limit })
}
