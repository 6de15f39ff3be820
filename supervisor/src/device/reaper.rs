//! Processes that are about to be gone, off the path of those that serve: given a moment to exit by
//! themselves, killed, reaped. Only then their memory is free, and nothing writes to the regions of the
//! calls that were in them.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pappus_protocol::Fault;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::panics::contained;
use crate::call::Call;
use crate::ids::{Generation, WorkerId};
use crate::processes::process::{self, Process};
use crate::processes::process_table::ProcessReservation;
use crate::schedule::CallId;
use crate::sync::{OrderedMutex, Waker, rank};

/// A call whose process is gone.
pub(super) type Lost = (CallId, Arc<Call>);

/// The device whose processes are reaped.
pub(super) trait Home {
    /// True if processes that end are not replaced any more.
    fn is_closing(&self) -> bool;

    /// A process is reaped: its memory is free, and nothing writes to the regions of its calls.
    fn reaped(&self, remains: Remains);
}

/// What is left of a process that is reaped.
#[derive(Debug)]
pub(super) struct Remains {
    /// The slot and the generation of the process, if it served.
    pub(super) served: Option<(WorkerId, Generation)>,
    /// Calls that were in it.
    pub(super) lost: Vec<Lost>,
    /// How it ended, in words.
    pub(super) ended: String,
    /// The process's fault, if it lost its device context.
    pub(super) broken: Option<Fault>,
    /// True if neither Pappus nor the process itself ended it.
    pub(super) from_outside: bool,
}

/// A process that serves no more.
#[derive(Debug)]
pub(super) struct Dying {
    /// The process.
    pub(super) process: Process,
    /// When it is killed.
    pub(super) kill_at: Instant,
    /// Its place among the processes of the device.
    pub(super) reservation: ProcessReservation,
    /// The slot and the generation of the process, if it served.
    pub(super) served: Option<(WorkerId, Generation)>,
    /// Calls that were in it.
    pub(super) lost: Vec<Lost>,
    /// The process's fault, if it lost its device context.
    pub(super) broken: Option<Fault>,
    /// Why the process could not be used any more, if so.
    pub(super) why: Option<String>,
}

impl Dying {
    /// One that never served.
    pub(super) fn unused(process: Process, reservation: ProcessReservation, why: Option<String>) -> Self {
        let (kill_at, lost) = (Instant::now(), Vec::new());
        Self { process, kill_at, reservation, served: None, lost, broken: None, why }
    }
}

/// The processes of one device that are about to be gone.
#[derive(Debug)]
pub(super) struct Reaper {
    /// None once the reaper's thread has ended.
    dying: OrderedMutex<Option<Vec<Dying>>, { rank::DYING }>,
    waker: Waker,
}

impl Reaper {
    /// Without processes.
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self { dying: OrderedMutex::new(Some(Vec::new())), waker: Waker::new()? })
    }

    /// Takes a process over.
    pub(super) fn take(&self, device: &impl Home, process: Dying) {
        if process.kill_at <= Instant::now() {
            match process.broken {
                Some(_) => process.process.kill_now(),
                None => process.process.kill(),
            }
        }
        let mut dying = self.dying.lock();
        match &mut *dying {
            Some(dying) => dying.push(process),
            None => {
                drop(dying);
                reap(device, process);
                return;
            }
        }
        drop(dying);
        self.wake();
    }

    /// Makes the reaper look.
    pub(super) fn wake(&self) {
        self.waker.wake();
    }

    /// Reaps until the device closes and no process is left.
    pub(super) fn run(&self, device: &impl Home) {
        let mut mine: Vec<Dying> = Vec::new();
        loop {
            {
                let mut dying = self.dying.lock();
                mine.extend(dying.iter_mut().flat_map(|dying| dying.drain(..)));
                if mine.is_empty() && device.is_closing() {
                    *dying = None;
                    return;
                }
            }
            let over = self.wait(&mut mine);
            for process in over {
                if let Err(why) = contained(|| reap(device, process)) {
                    tracing::error!("a process is reaped, but not all that follows from it is done: {why}");
                }
            }
        }
    }

    /// Waits for something to happen, kills whose time is over, and takes out those that ended.
    fn wait(&self, mine: &mut Vec<Dying>) -> Vec<Dying> {
        let next = mine.iter().map(|process| process.kill_at).min();
        let left = next.map(|at| at.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)));
        let timeout =
            left.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
        let mut polled = vec![PollFd::new(&self.waker, PollFlags::IN)];
        polled
            .extend(mine.iter().map(|dying| PollFd::from_borrowed_fd(dying.process.as_fd(), PollFlags::IN)));
        let _ = rustix::event::poll(&mut polled, timeout.as_ref());
        let mut ended = polled[1..].iter().map(|polled| !polled.revents().is_empty()).collect::<Vec<_>>();
        let _ = rustix::io::read(&self.waker, &mut [0; 8]);
        let now = Instant::now();
        let mut over = Vec::new();
        for nth in (0..mine.len()).rev() {
            if ended.pop() == Some(true) {
                over.push(mine.swap_remove(nth));
            } else if mine[nth].kill_at <= now {
                mine[nth].process.kill();
                // A process in the driver's hands may take its time; no other process waits for it.
                mine[nth].kill_at = now + Duration::from_secs(3600);
            }
        }
        over
    }
}

fn reap(device: &impl Home, dying: Dying) {
    let Dying { mut process, reservation, served, lost, broken, why, .. } = dying;
    let status = process.end();
    let killed_by = process.ended_from_outside();
    let ended = process::describe_exit(status);
    let (worker, pid, calls) = (served.map(|(worker, _)| worker.get()), process.pid(), lost.len());
    match (&why, killed_by) {
        (_, Some(signal)) => tracing::warn!(
            worker,
            pid,
            signal,
            lost = calls,
            "worker {ended}, and not by Pappus: replacing it; its calls run again and no tenant is charged"
        ),
        (Some(why), None) => tracing::warn!(worker, pid, lost = calls, "worker {ended}: {why}; replacing it"),
        (None, None) if calls > 0 => {
            tracing::warn!(worker, pid, lost = calls, "worker {ended}; replacing it")
        }
        (None, None) => tracing::debug!(worker, pid, "worker {ended}; replacing it"),
    }
    drop(reservation);
    device.reaped(Remains { served, lost, ended, broken, from_outside: killed_by.is_some() });
}
