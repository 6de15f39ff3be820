//! Resource limits: how much a role may take from the host.

use pappus_protocol::Kind;
use rustix::process::{Resource, Rlimit};

use crate::Role;

/// Limits of a role; what is not here is the same for all.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Open descriptors.
    descriptors: u64,
    /// Seconds of processor time, where the role has an end.
    cpu_seconds: Option<u64>,
    /// Bytes of address space, where the role does not reserve it by the gigabyte.
    memory_bytes: Option<u64>,
}

impl Limits {
    /// Of a role.
    pub(super) fn of(role: Role, kind: Kind) -> Self {
        match (role, kind) {
            // Arenas, descriptors of calls in flight, module files while they load.
            (Role::Serve, _) => Self { descriptors: 2048, cpu_seconds: None, memory_bytes: None },
            // A module at a time; one that keeps the compiler busy for longer is a bomb. A GPU's driver reserves
            // more addresses than any limit on them could allow, and needs more descriptors.
            (Role::Compile, Kind::Cpu) => {
                Self { descriptors: 64, cpu_seconds: Some(120), memory_bytes: Some(4 << 30) }
            }
            (Role::Compile, Kind::Cuda | Kind::Hip) => {
                Self { descriptors: 256, cpu_seconds: Some(120), memory_bytes: None }
            }
            // A few questions to a driver.
            (Role::Survey, _) => Self { descriptors: 256, cpu_seconds: Some(60), memory_bytes: None },
        }
    }

    /// Puts them in force.
    pub(super) fn set(self) -> rustix::io::Result<()> {
        // A core file would hold the caller's data.
        lower(Resource::Core, 0)?;
        lower(Resource::Nofile, self.descriptors)?;
        // A worker needs neither message queues nor priority over other processes.
        lower(Resource::Msgqueue, 0)?;
        lower(Resource::Rtprio, 0)?;
        lower(Resource::Nice, 0)?;
        if let Some(seconds) = self.cpu_seconds {
            lower(Resource::Cpu, seconds)?;
        }
        if let Some(bytes) = self.memory_bytes {
            lower(Resource::As, bytes)?;
        }
        Ok(())
    }
}

/// Sets both limits, never above what is already in force.
fn lower(resource: Resource, to: u64) -> rustix::io::Result<()> {
    let now = rustix::process::getrlimit(resource);
    let limit = Some(now.maximum.map_or(to, |maximum| maximum.min(to)));
    rustix::process::setrlimit(resource, Rlimit { current: limit, maximum: limit })
}
