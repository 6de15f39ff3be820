//! A worker process: how it is ended, and how it ended. Killed and reaped on drop.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pappus_protocol::Layers;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};

use super::cgroup::Membership;
use super::confinement::Reached;
use super::mps::{MpsTermination, MpsTerminator};
use super::subreaper;

/// Signals that a process causes itself.
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

impl Process {
    /// A child that was just started.
    pub(super) fn of(mut child: Child) -> std::io::Result<Self> {
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
    pub(super) fn succeeded_by(self, pid: u64, pidfd: OwnedFd) -> std::io::Result<Self> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), options).map_err(|e| {
            std::io::Error::other(format!("the worker handed over a process that is not its: {e}"))
        })?;
        Ok(Self { pid: pid as u32, pidfd, mps: None, ended: None, killed: Arc::default(), membership: None })
    }

    /// It joins control groups.
    pub(super) fn joins(&mut self, membership: Option<Arc<Membership>>) {
        self.membership = membership;
    }

    /// The process id, for people.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The layers that the process greeted with, and the supervisor's own.
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

    /// True if the process can end without a fault in other processes of the device.
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

    /// Kills the process without ending its work on the device first, since no work of it runs any more.
    pub fn kill_now(&self) {
        self.killed.store(true, Ordering::Release);
        if let Some(mps) = &self.mps {
            mps.give_up();
        }
        if rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL).is_err() {
            // By its number, which is its own until it is reaped: the thread that waits for its end must not wait for
            // ever.
            if let Some(pid) = Pid::from_raw(self.pid as i32) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
    }

    /// True if the process ended.
    pub fn has_ended(&self) -> bool {
        let mut polled = [PollFd::new(&self.pidfd, PollFlags::IN)];
        matches!(rustix::event::poll(&mut polled, Some(&Timespec::default())), Ok(1))
    }

    /// True if the process ends by itself within a moment: its pipes close a little before.
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
    pub(super) fn end_by_itself(&mut self) -> std::io::Result<ExitStatus> {
        if let Some(ended) = self.ended {
            return Ok(ended);
        }
        let mut polled = [PollFd::new(&self.pidfd, PollFlags::IN)];
        while let Err(rustix::io::Errno::INTR) = rustix::event::poll(&mut polled, None) {}
        let reap = |options: WaitIdOptions| {
            let status = rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), options);
            if !options.contains(WaitIdOptions::NOWAIT) {
                subreaper::forget(self.pid);
            }
            status
        };
        let status = match &self.membership {
            Some(membership) => membership.over(reap),
            None => reap(WaitIdOptions::EXITED),
        }?;
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

/// Kills one process, and never a later process with the same number.
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
            (None, Some(signal @ (7 | 11))) => format!("crashed on a memory access (signal {signal})"),
            (None, Some(signal)) => format!("ended by signal {signal}"),
            (None, None) => "ended".to_owned(),
        },
        Err(e) => format!("ended ({e})"),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

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
    fn an_end_is_described_with_the_signal_that_caused_it() {
        let describe = |raw| describe_exit(Ok(ExitStatus::from_raw(raw)));
        assert_eq!(describe(7), "crashed on a memory access (signal 7)");
        assert_eq!(describe(11), "crashed on a memory access (signal 11)");
        assert_eq!(describe(3 << 8), "exited with code 3");
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
