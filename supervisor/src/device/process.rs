//! A worker process: started with exactly its descriptors, killed and reaped on drop.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use command_fds::{CommandFdExt, FdMapping};
use pappus_protocol::Kind;
use pappus_protocol::pipe::{Inbox, Outbox};
use pappus_protocol::{control, pipe};
use pappus_shmem::Judged;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::config::DeviceConfig;

/// What a worker is started for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Executes invocations.
    Serve,
    /// Checks and compiles one module.
    Compile,
    /// Says which devices there are.
    Survey,
}

/// Which device a process is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// What runs it.
    pub kind: Kind,
    /// The UUID of a GPU; empty for the CPU, and for a survey of all.
    pub uuid: String,
    /// Concurrent calls of a serving worker.
    pub lanes: u32,
    /// The host's memory node to stay near.
    pub numa_node: Option<u32>,
}

impl Target {
    /// The device of a configuration.
    pub fn of(config: &DeviceConfig) -> Self {
        Self {
            kind: config.kind,
            uuid: config.uuid.clone(),
            lanes: config.lanes,
            numa_node: config.numa_node,
        }
    }

    /// The environment of its processes: nothing but what the driver's library is found and told by.
    fn environment(&self) -> Vec<(&'static str, OsString)> {
        if self.kind == Kind::Cpu {
            return Vec::new();
        }
        // The last one is heard by workers that were built for tests only.
        let inherited = ["LD_LIBRARY_PATH", "CUDA_MPS_PIPE_DIRECTORY", "PAPPUS_TEST_UNCLEARED"];
        let mut environment: Vec<_> =
            inherited.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))).collect();
        // Positions follow the bus; machine code comes from the registry alone and is loaded whole.
        // Lanes that share a hardware queue wait for each other; queues cost time when the process ends.
        let queues = self.lanes.clamp(8, 32).to_string();
        environment.push(("CUDA_DEVICE_MAX_CONNECTIONS", queues.into()));
        let fixed = [
            ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
            ("CUDA_MODULE_LOADING", "EAGER"),
            ("CUDA_CACHE_DISABLE", "1"),
        ];
        environment.extend(fixed.map(|(name, value)| (name, value.into())));
        if !self.uuid.is_empty() {
            // The process sees this device and no other.
            environment.push(("CUDA_VISIBLE_DEVICES", self.uuid.clone().into()));
        } else if let Some(visible) = std::env::var_os("CUDA_VISIBLE_DEVICES") {
            environment.push(("CUDA_VISIBLE_DEVICES", visible));
        }
        environment
    }
}

/// The descriptors' numbers in the worker; its `main` knows the same.
const COMMANDS: i32 = 3;
const ANSWERS: i32 = 4;
const CONTROL: i32 = 5;
const STAGING: i32 = 6;

/// The supervisor's ends of a fresh worker.
#[derive(Debug)]
pub struct Started {
    /// The process.
    pub process: Process,
    /// Answers from it.
    pub inbox: Inbox,
    /// Commands to it.
    pub outbox: Outbox,
    /// Descriptors to and from it.
    pub control: OwnedFd,
}

/// A running worker process.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pidfd: OwnedFd,
}

/// Finds `pappus-worker` beside the running supervisor.
pub fn worker_program() -> std::io::Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name("pappus-worker");
    match program.is_file() {
        true => Ok(program),
        false => Err(std::io::Error::new(
            std::io::ErrorKind::NotFound,
            format!("{} is missing: install pappus-worker beside pappus-supervisor", program.display()),
        )),
    }
}

/// Starts a worker. The calling thread must outlive it: the worker asks the kernel to end it together
/// with the thread that started it.
pub fn start(
    program: &Path,
    role: Role,
    target: &Target,
    staging: Option<&Judged>,
) -> std::io::Result<Started> {
    let (commands_read, commands_write) = pipe::pipe()?;
    let (answers_read, answers_write) = pipe::pipe()?;
    let (control_ours, control_theirs) = control::pair()?;
    let mut mappings = vec![
        FdMapping { parent_fd: commands_read, child_fd: COMMANDS },
        FdMapping { parent_fd: answers_write, child_fd: ANSWERS },
        FdMapping { parent_fd: control_theirs, child_fd: CONTROL },
    ];
    if let Some(staging) = staging {
        mappings.push(FdMapping { parent_fd: staging.as_fd().try_clone_to_owned()?, child_fd: STAGING });
    }
    let mut command = Command::new(program);
    command
        .arg(match role {
            Role::Serve => "serve",
            Role::Compile => "compile",
            Role::Survey => "survey",
        })
        .args(["--device", target.kind.name(), "--lanes", &target.lanes.to_string()])
        .args(target.numa_node.map(|node| format!("--numa-node={node}")))
        .env_clear()
        .envs(target.environment())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .fd_mappings(mappings)
        .map_err(std::io::Error::other)?;
    let mut child = command.spawn()?;
    let pid = Pid::from_child(&child);
    let pidfd = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(e) => {
            let _ = child.kill();
            let _ = child.wait();
            return Err(e.into());
        }
    };
    Ok(Started {
        process: Process { child, pidfd },
        inbox: Inbox::new(answers_read),
        outbox: Outbox::new(commands_write),
        control: control_ours,
    })
}

impl Process {
    /// The process id, for people.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A handle that can kill the process from any thread, and nothing but this process.
    pub fn killer(&self) -> std::io::Result<Killer> {
        Ok(Killer::new(self.pidfd.try_clone()?))
    }

    /// Another handle on the process, readable once it ended.
    pub fn pidfd(&self) -> std::io::Result<OwnedFd> {
        self.pidfd.try_clone()
    }

    /// Kills the process, which is still to be reaped.
    pub fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Ends the process and says how it ended, whether by itself or by this.
    pub fn end(&mut self) -> std::io::Result<ExitStatus> {
        self.kill();
        self.child.wait()
    }
}

impl AsFd for Process {
    /// Readable once the process ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Kills one process, whatever its number is used for later.
#[derive(Debug)]
pub struct Killer(OwnedFd);

impl Killer {
    /// Of the process that a pidfd names.
    pub fn new(pidfd: OwnedFd) -> Self {
        Self(pidfd)
    }

    /// Kills it; a process that is gone already is no error.
    pub fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.0, Signal::KILL);
    }
}

/// How a process ended, in words.
pub fn describe_exit(status: std::io::Result<ExitStatus>) -> String {
    use std::os::unix::process::ExitStatusExt;
    match status {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("exited with code {code}"),
            (None, Some(9)) => "was killed (signal 9)".to_owned(),
            (None, Some(11 | 7)) => "crashed on a memory access (signal 11)".to_owned(),
            (None, Some(signal)) => format!("ended by signal {signal}"),
            (None, None) => "ended".to_owned(),
        },
        Err(e) => format!("ended ({e})"),
    }
}
