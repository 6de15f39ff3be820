//! Starts worker processes, each with exactly its descriptors and confined as was decided, and waits until it is clear
//! which process the worker is: where it can, the worker goes on as the first process of a pid namespace.
//!
//! ```text
//! supervisor: control groups, execute ──►  worker: sandbox entered, device started, sandbox closed ──► first frame read
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use pappus_protocol::launch::Role;
use pappus_protocol::launch::{
    ANSWERS_FD, COMMANDS_FD, CONTROL_FD, EXIT_PIDNS_UNUSABLE, STAGING_FD, TURNS_FD,
};
use pappus_protocol::pipe::{Inbox, Outbox};
use pappus_protocol::{control, pipe};
use pappus_shmem::ValidatedMemfd;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};

use super::confinement::Confinement;
use super::process::Process;
use super::spawner::{Program, Spawner};
use super::subreaper;
use super::target::DeviceTarget;
use super::words;
use crate::limits::WORKER_START_S;

/// The descriptor of a process's standard error.
const STDERR_FD: RawFd = 2;

/// Starts worker processes from one program, all confined by one decision.
#[derive(Debug)]
pub struct Launcher {
    program: PathBuf,
    /// The file at `program` when the launcher was made. An update puts another file there for the next supervisor; this
    /// supervisor goes on with the workers that it came with.
    file: Option<OwnedFd>,
    confinement: Confinement,
    /// Their standard error.
    words: OwnedFd,
    spawner: Spawner,
}

/// Memory that a serving worker shares with the supervisor and none else.
#[derive(Debug, Clone, Copy)]
pub struct SharedMemory<'a> {
    /// The arena for inline bytes.
    pub staging: &'a ValidatedMemfd,
    /// The turn page.
    pub turns: &'a ValidatedMemfd,
}

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

impl Launcher {
    /// Of processes of this program, confined like this. To be made before there are clients; processes may end with it.
    pub fn new(program: impl AsRef<Path>, confinement: Confinement) -> std::io::Result<Self> {
        let program = program.as_ref().to_owned();
        let file = rustix::fs::open(&program, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok();
        let words = words::listen(|line| tracing::warn!("a worker process writes: {line}"))?;
        Ok(Self { program, file, confinement, words, spawner: Spawner::start()? })
    }

    /// How the processes are confined.
    pub fn confinement(&self) -> &Confinement {
        &self.confinement
    }

    /// The file to run where another one, or none, lies at its path by now.
    fn replaced(&self) -> Option<BorrowedFd<'_>> {
        let file = self.file.as_ref()?;
        let own = rustix::fs::fstat(file).ok()?;
        let there = rustix::fs::stat(&self.program);
        let is_same = there.is_ok_and(|there| (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino));
        (!is_same).then(|| file.as_fd())
    }

    /// Starts a worker and waits until it is in its sandbox. Where workers have no pid namespace, the kernel ends them
    /// together with the thread that started them, which is this launcher's.
    pub fn start(
        &self,
        role: Role,
        target: &DeviceTarget,
        memory: Option<SharedMemory<'_>>,
    ) -> std::io::Result<Started> {
        if let Some(started) = self.launch(role, target, memory)? {
            return Ok(started);
        }
        self.confinement.give_up_pidns();
        let started = self.launch(role, target, memory)?;
        started
            .ok_or_else(|| std::io::Error::other("the worker says twice that pid namespaces are of no use"))
    }

    /// Starts a worker; none if it cannot use the pid namespace that it could have.
    fn launch(
        &self,
        role: Role,
        target: &DeviceTarget,
        memory: Option<SharedMemory<'_>>,
    ) -> std::io::Result<Option<Started>> {
        let (commands_read, commands_write) = pipe::pipe()?;
        let (answers_read, answers_write) = pipe::pipe()?;
        let (control_ours, control_theirs) = control::pair()?;
        let mut descriptors = vec![
            (commands_read.as_fd(), COMMANDS_FD),
            (answers_write.as_fd(), ANSWERS_FD),
            (control_theirs.as_fd(), CONTROL_FD),
            (self.words.as_fd(), STDERR_FD),
        ];
        if let Some(SharedMemory { staging, turns }) = memory {
            descriptors.extend([(staging.as_fd(), STAGING_FD), (turns.as_fd(), TURNS_FD)]);
        }
        let program = Program {
            path: self.program.clone(),
            arguments: self
                .confinement
                .arguments(role, target)
                .encode()
                .into_iter()
                .map(Into::into)
                .collect(),
            environment: Some(
                target.environment().into_iter().map(|(name, value)| (name.into(), value)).collect(),
            ),
        };
        let child = match self.replaced() {
            None => self.spawner.spawn(program, &descriptors)?,
            Some(file) => self.spawner.spawn_file(file, program, &descriptors)?,
        };
        // The other ends are closed in this process: an end of a pipe that the worker closes is noticed here.
        drop((commands_read, answers_write, control_theirs));
        let process = settle_in(Process::of(child)?, &control_ours, &answers_read)?;
        let Some(mut process) = process else { return Ok(None) };
        process.joins(self.confinement.admit(process.pid(), role, target));
        Ok(Some(Started {
            process,
            inbox: Inbox::new(answers_read),
            outbox: Outbox::new(commands_write),
            control: control_ours,
        }))
    }
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
            PollFd::new(&process, PollFlags::IN),
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
            // This thread waits for it from here on, also if it is killed before its predecessor is gone.
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
            let mut polled = [PollFd::new(&process, PollFlags::IN)];
            let soon = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
            if rustix::event::poll(&mut polled, Some(&soon)) == Ok(0) {
                return Ok(Some(process));
            }
        }
    }
}
