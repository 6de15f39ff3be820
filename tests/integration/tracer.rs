//! Stops a process at its system calls, to let one of them fail or to kill the process right there. A process acts
//! on others by system calls only: between two calls nothing changes for another process.
//!
//! A thread of ours traces all threads of the process, and lets go of it by ending.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// The number of `sched_yield`.
const SCHED_YIELD: u64 = 24;

/// The number of a system call.
pub(crate) type Number = u64;

/// A system call that is about to be made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(crate) number: Number,
    /// Its first argument, often a descriptor.
    pub(crate) first: u64,
}

/// What happens at a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Nothing.
    Pass,
    /// It does nothing and answers this.
    Fail(Errno),
    /// The process is killed before it does anything.
    Kill,
}

/// A process under observation.
pub(crate) struct Tracer {
    pid: Pid,
    over: Arc<AtomicBool>,
    thread: JoinHandle<bool>,
}

/// Observes a process until something other than [`Deed::Pass`] was done, or [`Tracer::stop`]; `None` where that is
/// not allowed.
pub(crate) fn trace(pid: u32, decide: impl FnMut(Call) -> Deed + Send + 'static) -> Option<Tracer> {
    let pid = Pid::from_raw(pid.try_into().unwrap());
    let over = Arc::new(AtomicBool::new(false));
    let (said, hears) = std::sync::mpsc::channel();
    let stop = over.clone();
    let thread = std::thread::spawn(move || {
        let attached = attach(pid);
        let _ = said.send(attached.is_ok());
        attached.is_ok() && follow(pid, &stop, decide)
    });
    match hears.recv() {
        Ok(true) => Some(Tracer { pid, over, thread }),
        _ => None,
    }
}

impl Tracer {
    /// Lets go of the process; true if something was done to it.
    pub(crate) fn stop(self) -> bool {
        self.over.store(true, Ordering::Release);
        while !self.thread.is_finished() {
            // Its delivery is an event, and it does nothing else.
            let _ = kill(self.pid, Signal::SIGWINCH);
            std::thread::park_timeout(std::time::Duration::from_millis(1));
        }
        self.thread.join().unwrap()
    }
}

/// All threads, also those that start meanwhile.
fn attach(pid: Pid) -> nix::Result<()> {
    let options = Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE;
    let mut known = Vec::new();
    loop {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).map_err(|_| Errno::ESRCH)?;
        let names = threads.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let fresh: Vec<i32> = names.filter(|tid| !known.contains(tid)).collect();
        if fresh.is_empty() {
            return Ok(());
        }
        for tid in fresh {
            let thread = Pid::from_raw(tid);
            match ptrace::seize(thread, options) {
                Ok(()) => ptrace::interrupt(thread)?,
                // A thread that ended, or that its parent brought along.
                Err(Errno::ESRCH | Errno::EPERM) if tid != pid.as_raw() => {}
                Err(error) => return Err(error),
            }
            known.push(tid);
        }
    }
}

/// True if the disturbance was made.
fn follow(pid: Pid, over: &AtomicBool, mut decide: impl FnMut(Call) -> Deed) -> bool {
    // Waits only for tracees of this very thread: other cases have children of their own.
    let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
    let mut inside: HashMap<Pid, Deed> = HashMap::new();
    // One thing is done: another thread let go of in the middle of its own would get a result that is none.
    let mut chosen = false;
    loop {
        let Ok(status) = waitpid(None, Some(flags)) else { return false };
        // Nor is the one that is to fail let go of in its middle: it would have the result of what stands in its place.
        let fails = inside.values().any(|deed| matches!(deed, Deed::Fail(_)));
        if over.load(Ordering::Acquire) && !fails {
            return false;
        }
        let (thread, signal) = match status {
            WaitStatus::PtraceSyscall(thread) => {
                match inside.remove(&thread) {
                    None => {
                        let Ok(mut registers) = ptrace::getregs(thread) else { continue };
                        let deed = match chosen {
                            true => Deed::Pass,
                            false => decide(Call { number: registers.orig_rax, first: registers.rdi }),
                        };
                        chosen |= deed != Deed::Pass;
                        match deed {
                            Deed::Pass => {}
                            Deed::Fail(_) => {
                                // One that does nothing in its place. None at all would end a worker, whose
                                // sandbox has no rule for it.
                                registers.orig_rax = SCHED_YIELD;
                                let _ = ptrace::setregs(thread, registers);
                            }
                            Deed::Kill => {
                                let _ = kill(pid, Signal::SIGKILL);
                                return true;
                            }
                        }
                        inside.insert(thread, deed);
                    }
                    Some(Deed::Fail(errno)) => {
                        let Ok(mut registers) = ptrace::getregs(thread) else { continue };
                        registers.rax = (-i64::from(errno as i32)) as u64;
                        let _ = ptrace::setregs(thread, registers);
                        return true;
                    }
                    Some(_) => {}
                }
                (thread, None)
            }
            // A signal of the thread's own is passed on.
            WaitStatus::Stopped(thread, signal) => (thread, Some(signal)),
            WaitStatus::PtraceEvent(thread, signal, event) => {
                // Stops for job control are no signals to hand on.
                let own = event != 0 || signal == Signal::SIGTRAP;
                (thread, (!own).then_some(signal))
            }
            _ => continue,
        };
        // One that was killed meanwhile cannot go on.
        let _ = ptrace::syscall(thread, signal);
    }
}
