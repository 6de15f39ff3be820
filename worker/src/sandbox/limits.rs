//! Resource limits: how much a role may take from the host.

use rustix::process::{Resource, Rlimit};

use crate::Role;

/// Limits of a role; what is not here is the same for all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Open descriptors.
    descriptors: u64,
    /// Seconds of processor time, where the role has an end.
    cpu_seconds: Option<u64>,
    /// Bytes of address space, where the role does not reserve it by the gigabyte.
    memory_bytes: Option<u64>,
}

impl Limits {
    /// A module at a time: one that keeps the compiler busy for longer is a bomb.
    pub(crate) const fn compiling(descriptors: u64, memory_bytes: Option<u64>) -> Self {
        Self { descriptors, cpu_seconds: Some(120), memory_bytes }
    }

    /// Of a role, on a kind of device with these limits of compiling.
    pub(super) fn of(role: Role, compiling: Self) -> Self {
        match role {
            // Arenas, descriptors of calls in flight, module files while they load.
            Role::Serve => Self { descriptors: 2048, cpu_seconds: None, memory_bytes: None },
            Role::Compile => compiling,
            // A few questions to a driver.
            Role::Survey => Self { descriptors: 256, cpu_seconds: Some(60), memory_bytes: None },
            // The same few, for as long as somebody wants to know.
            Role::Meter => Self { descriptors: 256, cpu_seconds: None, memory_bytes: None },
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
