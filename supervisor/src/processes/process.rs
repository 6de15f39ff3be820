//! A worker process: started with exactly its descriptors, killed and reaped on drop.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use command_fds::{CommandFdExt, FdMapping};
pub use pappus_protocol::launch::Role;
use pappus_protocol::launch::{ANSWERS_FD, COMMANDS_FD, CONTROL_FD, EXIT_PIDNS_UNUSABLE, STAGING_FD};
use pappus_protocol::pipe::{Inbox, Outbox};
use pappus_protocol::{Kind, Layers};
use pappus_protocol::{control, pipe};
use pappus_shmem::ValidatedMemfd;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};

use super::cgroup::Membership;
use super::confinement::{self, Reached};
use super::mps::{MpsTermination, MpsTerminator};
use super::subreaper;
use crate::config::DeviceConfig;
use crate::limits::WORKER_START_S;

/// Which device a process is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// What runs it.
    pub kind: Kind,
    /// The UUID of a GPU; empty for the CPU, and for a survey of all.
    pub uuid: String,
    /// Concurrent calls of a serving worker.
    pub lanes: u32,
    /// The host's memory node to pin threads to.
    pub numa_node: Option<u32>,
    /// Host memory that is the device's.
    pub memory_bytes: u64,
}

impl Target {
    /// The device of a configuration.
    pub fn of(config: &DeviceConfig) -> Self {
        Self {
            kind: config.kind,
            uuid: config.uuid.clone(),
            lanes: config.lanes,
            numa_node: config.numa_node,
            // A call may have the memory of all workers.
            memory_bytes: if config.kind.traits().has_own_memory { 0 } else { config.memory_bytes },
        }
    }

    /// The environment of its processes: nothing but what the driver's library is found and told by.
    fn environment(&self) -> Vec<(&'static str, OsString)> {
        let present = |name: &&'static str| Some((*name, std::env::var_os(name)?));
        let mut environment: Vec<_> = TEST_HOOKS.iter().filter_map(present).collect();
        if !self.kind.traits().has_driver {
            return environment;
        }
        environment.extend(["LD_LIBRARY_PATH", "CUDA_MPS_PIPE_DIRECTORY"].iter().filter_map(present));
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

/// What workers that were built for tests are told through the environment; nothing where this was not.
#[cfg(feature = "test-hooks")]
const TEST_HOOKS: &[&str] = &["PAPPUS_TEST_UNCLEARED", "PAPPUS_TEST_WITHOUT"];
#[cfg(not(feature = "test-hooks"))]
const TEST_HOOKS: &[&str] = &[];

/// Signals that a process gets for what it does itself.
const OWN_SIGNALS: [Signal; 9] = [
    Signal::SEGV,
    Signal::BUS,
    Signal::ILL,
    Signal::FPE,
    Signal::ABORT,
    Signal::TRAP,
    Signal::SYS,
    Signal::XCPU,
    Signal::XFSZ,
];

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
    pid: u32,
    pidfd: OwnedFd,
    /// How it ends where a signal would hit others.
    mps: Option<Arc<MpsTermination>>,
    /// How it ended, once it is reaped.
    ended: Option<ExitStatus>,
    /// Pappus had it ended.
    killed: Arc<AtomicBool>,
    /// Its control groups.
    membership: Option<Arc<Membership>>,
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

/// Starts a worker and waits until it is in its sandbox. The calling thread must outlive it: where workers
/// have no pid namespace, the kernel ends them together with the thread that started them.
pub fn start(
    program: &Path,
    role: Role,
    target: &Target,
    staging: Option<&ValidatedMemfd>,
) -> std::io::Result<Started> {
    match launch(program, role, target, staging)? {
        Some(started) => Ok(started),
        None => {
            confinement::get().give_up_pidns();
            launch(program, role, target, staging)?.ok_or_else(|| {
                std::io::Error::other("the worker says twice that pid namespaces are of no use")
            })
        }
    }
}

/// Starts a worker; none if it cannot use the pid namespace that it could have.
fn launch(
    program: &Path,
    role: Role,
    target: &Target,
    staging: Option<&ValidatedMemfd>,
) -> std::io::Result<Option<Started>> {
    let confinement = confinement::get();
    let (commands_read, commands_write) = pipe::pipe()?;
    let (answers_read, answers_write) = pipe::pipe()?;
    let (control_ours, control_theirs) = control::pair()?;
    let mut mappings = vec![
        FdMapping { parent_fd: commands_read, child_fd: COMMANDS_FD },
        FdMapping { parent_fd: answers_write, child_fd: ANSWERS_FD },
        FdMapping { parent_fd: control_theirs, child_fd: CONTROL_FD },
    ];
    if let Some(staging) = staging {
        mappings.push(FdMapping { parent_fd: staging.as_fd().try_clone_to_owned()?, child_fd: STAGING_FD });
    }
    let mut command = Command::new(program);
    command
        .args(confinement.arguments(role, target).encode())
        .env_clear()
        .envs(target.environment())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .fd_mappings(mappings)
        .map_err(std::io::Error::other)?;
    let child = subreaper::spawn(&mut command)?;
    // Nothing of it is open in this process any more: whoever ends is heard of.
    drop(command);
    let process = Process::of(child)?;
    let mut process = match settle_in(process, &control_ours, &answers_read)? {
        Some(process) => process,
        None => return Ok(None),
    };
    process.membership = confinement.admit(process.pid, role, target);
    Ok(Some(Started {
        process,
        inbox: Inbox::new(answers_read),
        outbox: Outbox::new(commands_write),
        control: control_ours,
    }))
}

/// Waits until it is clear who the worker is: the process that was started, which then says something or
/// ends, or the first one of a pid namespace, which it hands over before it ends itself. None if it says that
/// the namespace is of no use.
fn settle_in(mut process: Process, control: &OwnedFd, answers: &OwnedFd) -> std::io::Result<Option<Process>> {
    let until = Instant::now() + Duration::from_secs(WORKER_START_S);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut polled = [
            PollFd::new(control, PollFlags::IN),
            PollFd::new(answers, PollFlags::IN),
            PollFd::new(&process.pidfd, PollFlags::IN),
        ];
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match rustix::event::poll(&mut polled, Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        let [_, answers_are, ended] = polled.map(|polled| polled.revents());
        // Looked at behind the others: a successor is handed over before anything else, perhaps since the poll looked
        // here. One that is closed can be read, too: a worker that did what it was for, or ended.
        if control::waits(control) {
            let (pid, pidfd) = control::recv_one(control).map_err(std::io::Error::other)?;
            // Somebody waits for it from here on, also if it is killed before the one before is gone.
            subreaper::adopt(pid as u32);
            let succeeded = process.end_by_itself().and_then(|_| process.succeeded_by(pid, pidfd));
            if succeeded.is_err() {
                subreaper::forget(pid as u32);
            }
            return succeeded.map(Some);
        }
        if answers_are.contains(PollFlags::IN) || left.is_zero() {
            return Ok(Some(process));
        }
        if !ended.is_empty() {
            let code = process.end_by_itself()?.code();
            return Ok((code != Some(EXIT_PIDNS_UNUSABLE.into())).then_some(process));
        }
        if !answers_are.is_empty() {
            // About to end, or it never will answer.
            let mut polled = [PollFd::new(&process.pidfd, PollFlags::IN)];
            let soon = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
            if rustix::event::poll(&mut polled, Some(&soon)) == Ok(0) {
                return Ok(Some(process));
            }
        }
    }
}

impl Process {
    fn of(mut child: Child) -> std::io::Result<Self> {
        match rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Self {
                pid: child.id(),
                pidfd,
                mps: None,
                ended: None,
                killed: Arc::default(),
                membership: None,
            }),
            Err(e) => {
                let _ = child.kill();
                let _ = child.wait();
                subreaper::forget(child.id());
                Err(e.into())
            }
        }
    }

    /// The process that goes on for this one, which ended, as a child of the supervisor.
    fn succeeded_by(self, pid: u64, pidfd: OwnedFd) -> std::io::Result<Self> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), options).map_err(|e| {
            std::io::Error::other(format!("the worker handed over a process that is not its: {e}"))
        })?;
        Ok(Self { pid: pid as u32, pidfd, mps: None, ended: None, killed: Arc::default(), membership: None })
    }

    /// The process id, for people.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The layers that it greeted with and those that it has from here.
    pub fn reached(&self, greeted: Layers) -> Reached {
        Reached::new(greeted, self.membership.clone())
    }

    /// A handle that can kill the process from any thread, and nothing but this process.
    pub fn killer(&self) -> std::io::Result<Killer> {
        let (pidfd, mps, killed) = (self.pidfd.try_clone()?, self.mps.clone(), self.killed.clone());
        Ok(Killer { pidfd, pid: self.pid(), mps, killed })
    }

    /// Its work on the device is ended through the MPS daemon before it is killed.
    pub fn end_through(&mut self, terminator: &Arc<MpsTerminator>) {
        self.mps = Some(MpsTermination::new(terminator));
    }

    /// Whether its end hits no other process that uses the device.
    pub fn ends_alone(&self) -> bool {
        self.mps.as_ref().is_none_or(|mps| mps.was_alone())
    }

    /// Another handle on the process, readable once it ended.
    pub fn pidfd(&self) -> std::io::Result<OwnedFd> {
        self.pidfd.try_clone()
    }

    /// Kills the process, which is still to be reaped.
    pub fn kill(&self) {
        self.killed.store(true, Ordering::Release);
        match &self.mps {
            Some(mps) => mps.end(self.pid(), self.pidfd.as_fd()),
            None => self.kill_now(),
        }
    }

    /// Kills it whatever its work is: none of it runs any more.
    pub fn kill_now(&self) {
        self.killed.store(true, Ordering::Release);
        if let Some(mps) = &self.mps {
            mps.give_up();
        }
        if rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL).is_err() {
            // By its number, which is its own until it is reaped: whoever waits for its end must not wait for ever.
            if let Some(pid) = Pid::from_raw(self.pid as i32) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
    }

    /// Whether it ended.
    pub fn has_ended(&self) -> bool {
        let mut polled = [PollFd::new(&self.pidfd, PollFlags::IN)];
        matches!(rustix::event::poll(&mut polled, Some(&Timespec::default())), Ok(1))
    }

    /// Whether it ends by itself within a moment: its pipes are closed a little before it is gone.
    pub fn ends_soon(&self) -> bool {
        let mut polled = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let soon = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        matches!(rustix::event::poll(&mut polled, Some(&soon)), Ok(1))
    }

    /// Ends the process and says how it ended, whether by itself or by this.
    pub fn end(&mut self) -> std::io::Result<ExitStatus> {
        if self.ended.is_none() && !self.has_ended() {
            self.kill();
        }
        self.end_by_itself()
    }

    /// The signal that ended it, if something else than Pappus, the process itself or a limit of its sent that.
    pub fn ended_from_outside(&self) -> Option<i32> {
        let signal = self.ended?.signal()?;
        let own = OWN_SIGNALS.iter().any(|own| own.as_raw() == signal);
        let starved = || self.membership.as_ref().is_some_and(|membership| membership.was_starved());
        (!own && !self.killed.load(Ordering::Acquire) && !starved()).then_some(signal)
    }

    /// Waits for its end.
    fn end_by_itself(&mut self) -> std::io::Result<ExitStatus> {
        if let Some(ended) = self.ended {
            return Ok(ended);
        }
        let mut polled = [PollFd::new(&self.pidfd, PollFlags::IN)];
        while let Err(rustix::io::Errno::INTR) = rustix::event::poll(&mut polled, None) {}
        let status = confinement::get().over(self.membership.as_deref(), |options| {
            let status = rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), options);
            if !options.contains(WaitIdOptions::NOWAIT) {
                subreaper::forget(self.pid);
            }
            status
        })?;
        let status = status.ok_or(std::io::ErrorKind::NotFound)?;
        let raw = match status.exit_status() {
            Some(code) => code << 8,
            None => status.terminating_signal().unwrap_or_default(),
        };
        let ended = ExitStatus::from_raw(raw);
        self.ended = Some(ended);
        if ended.signal() == Some(Signal::SYS.as_raw()) {
            crate::metrics::sandbox_violation();
            tracing::error!(
                pid = self.pid,
                "sandbox violation: the worker process made a system call that its policy does not have, and was killed"
            );
        }
        Ok(ended)
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
pub struct Killer {
    pidfd: OwnedFd,
    pid: u32,
    mps: Option<Arc<MpsTermination>>,
    killed: Arc<AtomicBool>,
}

impl Killer {
    /// Of the process that a pidfd names.
    pub fn new(pidfd: OwnedFd) -> Self {
        Self { pidfd, pid: 0, mps: None, killed: Arc::default() }
    }

    /// Kills it; a process that is gone already is no error.
    pub fn kill(&self) {
        self.killed.store(true, Ordering::Release);
        match &self.mps {
            Some(mps) => mps.end(self.pid, self.pidfd.as_fd()),
            None => self.kill_now(),
        }
    }

    /// As [`Process::kill_now`].
    pub fn kill_now(&self) {
        self.killed.store(true, Ordering::Release);
        if let Some(mps) = &self.mps {
            mps.give_up();
        }
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

/// How a process ended, in words.
pub fn describe_exit(status: std::io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("exited with code {code}"),
            (None, Some(9)) => "was killed (signal 9)".to_owned(),
            (None, Some(31)) => "broke its sandbox's rules for system calls (signal 31)".to_owned(),
            (None, Some(11 | 7)) => "crashed on a memory access (signal 11)".to_owned(),
            (None, Some(signal)) => format!("ended by signal {signal}"),
            (None, None) => "ended".to_owned(),
        },
        Err(e) => format!("ended ({e})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that waits, and the signal that is found to have ended it from outside.
    fn ended_from_outside(end: impl FnOnce(&Process)) -> Option<i32> {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let mut process = Process::of(child).unwrap();
        end(&process);
        process.end().unwrap();
        process.ended_from_outside()
    }

    fn send(process: &Process, signal: Signal) {
        rustix::process::pidfd_send_signal(&process.pidfd, signal).unwrap();
        while !process.has_ended() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_signal_that_is_neither_ours_nor_its_own_came_from_outside() {
        assert_eq!(ended_from_outside(|process| send(process, Signal::KILL)), Some(9));
        assert_eq!(ended_from_outside(|process| send(process, Signal::TERM)), Some(15));
        // A crash, and what Pappus ends itself.
        assert_eq!(ended_from_outside(|process| send(process, Signal::SEGV)), None);
        assert_eq!(ended_from_outside(|_| {}), None);
        assert_eq!(ended_from_outside(|process| process.killer().unwrap().kill()), None);
    }
}
