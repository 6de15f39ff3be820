//! The table of backends: for each kind of device, what its processes may do, and a whole life of one of them. Nothing
//! else asks of which kind a device is: a new kind is a folder in `device` and a row here.

use std::time::Duration;

use pappus_protocol::from_worker::{Hello, Readings, Survey};
use pappus_protocol::launch::Arguments;
use pappus_protocol::pipe::Got;
use pappus_protocol::{Fault, FaultCode, FromWorker, Kind, Layers, cpu_affinity};
use pappus_shmem::{SharedWords, memfd};

use crate::device::cpu::Cpu;
use crate::device::cuda::Cuda;
use crate::device::hip::Hip;
use crate::device::{Backend, Mode};
use crate::sandbox::SandboxError;
use crate::sandbox::policy::Policy;
use crate::serve::Memory;
use crate::{Channels, Role, compile, launch, meter, serve};

/// How much less of busy processors a process that compiles gets than one that serves: a tenth.
const COMPILER_NICE: i32 = 10;

/// How a process ended.
pub type Outcome = Result<(), Box<dyn std::error::Error>>;

/// What the roles of a process need of a kind of device.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// What its processes may do.
    pub policy: &'static Policy,
    /// Is a worker from its arguments to its end, in any role.
    pub run: fn(&Arguments) -> Outcome,
}

/// The row of a kind.
pub fn of(kind: Kind) -> Row {
    fn row<B: Backend>() -> Row {
        Row { policy: B::POLICY, run: run::<B> }
    }
    match kind {
        Kind::Cpu => row::<Cpu>(),
        Kind::Cuda => row::<Cuda>(),
        Kind::Hip => row::<Hip>(),
    }
}

fn run<B: Backend>(arguments: &Arguments) -> Outcome {
    cpu_affinity::pin_to_numa_node(arguments.numa_node);
    match arguments.role {
        Role::Serve => serve::<B>(arguments),
        Role::Compile => compile::<B>(arguments),
        Role::Survey => survey::<B>(arguments),
        Role::Meter => meter::<B>(arguments),
    }
}

/// The device starts before the sandbox is closed; nothing of a tenant is read before that.
fn serve<B: Backend>(arguments: &Arguments) -> Outcome {
    let ([commands, answers, control, staging, turns], sandbox) =
        launch::adopt(launch::confinement(arguments, B::POLICY))?;
    let staging = memfd::judge_arena(staging, u64::MAX)?;
    let turns = SharedWords::open(&memfd::judge_arena(turns, u64::MAX)?)?;
    let mut channels = Channels::new(commands, answers, control);
    let shared = arguments.shared_limit_us.map(|limit| Duration::from_micros(limit.into()));
    let mode = Mode { interruptible: arguments.interruptible, shared };
    let device = B::device(arguments.lanes as usize, mode)?;
    channels.layers = sandbox.close()?;
    Ok(serve::run(channels, Memory { staging: &staging, turns }, device)?)
}

/// A device that does not start may start a moment later, so the supervisor is told, not only the log.
fn compile<B: Backend>(arguments: &Arguments) -> Outcome {
    // Calls that are served meanwhile go first where processors are short.
    rustix::process::nice(COMPILER_NICE)?;
    let ([commands, answers, control], sandbox) = launch::adopt(launch::confinement(arguments, B::POLICY))?;
    let mut channels = Channels::new(commands, answers, control);
    let compiler = B::compiler(arguments.interruptible);
    channels.layers = sandbox.close()?;
    match compiler {
        Ok(compiler) => Ok(compile::run(channels, &compiler)?),
        Err(fault) => {
            channels.send(&FromWorker::Refused { job: 0, fault: fault.as_ref() })?;
            Err(fault.into())
        }
    }
}

fn survey<B: Backend>(arguments: &Arguments) -> Outcome {
    let ([commands, answers, control], sandbox) = launch::adopt(launch::confinement(arguments, B::POLICY))?;
    let mut channels = Channels::new(commands, answers, control);
    let found = B::survey();
    let layers = sandbox.close()?;
    match found {
        Ok(found) => channels.send(&FromWorker::Survey(Survey { layers, ..found }))?,
        Err(fault) => channels.send(&FromWorker::Refused { job: 0, fault: fault.as_ref() })?,
    }
    // The supervisor may still look at this process to see which layers it reached.
    while channels.inbox.wait(Duration::ZERO, None, None)? != Got::Closed {}
    Ok(())
}

/// The sandbox is closed behind the first reading, when all is open that the library opens.
fn meter<B: Backend>(arguments: &Arguments) -> Outcome {
    let ([commands, answers, control], sandbox) = launch::adopt(launch::confinement(arguments, B::POLICY))?;
    let mut channels = Channels::new(commands, answers, control);
    channels.send(&FromWorker::Hello(Hello::new(arguments.kind.name(), "")))?;
    let (mut sandbox, mut layers) = (Some(sandbox), Layers::default());
    let read = |devices: &[String]| {
        let devices = B::readings(devices)?;
        if let Some(sandbox) = sandbox.take() {
            let failed = |why: SandboxError| Fault::new(FaultCode::Internal, why.to_string());
            layers = sandbox.close().map_err(failed)?;
        }
        Ok(Readings { devices, layers })
    };
    Ok(meter::run(channels, read)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Role;

    #[test]
    fn nothing_is_allowed_twice_and_everything_is_documented() {
        let page = include_str!("../../docs/sandbox.md");
        for kind in Kind::ALL {
            for role in Role::ALL {
                let mut names: Vec<_> = of(kind).policy.rules(role).iter().map(|rule| rule.name).collect();
                let undocumented: Vec<_> =
                    names.iter().filter(|name| !page.contains(&format!("`{name}`"))).collect();
                assert!(undocumented.is_empty(), "docs/sandbox.md does not name {undocumented:?}");
                names.sort_unstable();
                let before = names.len();
                names.dedup();
                assert_eq!(names.len(), before, "{kind} {role:?}");
            }
        }
    }

    #[test]
    fn what_no_worker_needs_is_in_no_policy() {
        let never = [
            "execve",
            "execveat",
            "fork",
            "vfork",
            "socket",
            "connect",
            "bind",
            "ptrace",
            "process_vm_readv",
            "process_vm_writev",
            "kill",
            "tkill",
            "mount",
            "unshare",
            "setns",
            "io_uring_setup",
            "bpf",
            "userfaultfd",
            "perf_event_open",
            "keyctl",
            "add_key",
            "request_key",
            "pidfd_open",
            "pidfd_getfd",
        ];
        for kind in Kind::ALL {
            for role in Role::ALL {
                let rules = of(kind).policy.rules(role);
                let found: Vec<_> = rules.iter().filter(|rule| never.contains(&rule.name)).collect();
                assert!(found.is_empty(), "{kind} {role:?}: {found:?}");
            }
        }
    }
}
