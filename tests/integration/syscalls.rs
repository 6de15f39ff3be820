//! Every system call failing once (ATTACKS 30), and a kill at each of them (ATTACKS 25): of the supervisor and of a
//! worker, while clients register, call and leave. An answer may be an error; it may not be wrong, late for ever or
//! missing, and the supervisor goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::errno::Errno;
use pappus_client::{Client, Error, Invocation};
use rustix::process::Signal;

use crate::fixture::{Supervisor, is_alive, signal, until};
use crate::kit;
use crate::tracer::{Call, Deed, Number, Tracer, trace};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(20);
const DEVICE: &str = "cpu:workers=1,memory=4MiB";
/// Calls that cannot fail for lack of something, by their numbers: `close`, ends of threads and signals
/// (`rt_sigreturn`, `exit`, `exit_group`, `restart_syscall`), waiting for a lock (`futex`), asking who one is
/// (`geteuid`, `gettid`), reading what a child says before it is executed (`recvfrom`, which the standard library
/// alone makes); and the heap's own (`mmap`, `mprotect`, `munmap`, `brk`, `madvise`, `mremap`): a process that gets no
/// memory for itself ends, as any Rust program does. And `rseq`: the C library ends a process in which a new thread has none.
/// And `getrandom`: it fails only while a machine starts, and the first hash map of a thread has no other answer than a panic.
const LEFT_OUT: [Number; 17] = [3, 9, 10, 11, 12, 15, 25, 28, 45, 60, 107, 186, 202, 219, 231, 318, 334];

/// What the machine might answer.
fn errno(number: Number) -> Errno {
    match number {
        // What makes descriptors: open, socket, accept, dup, openat, eventfd2, pipe2, accept4, memfd_create, clone…
        2 | 22 | 32 | 33 | 41 | 43 | 53 | 257 | 288 | 290 | 291 | 292 | 293 | 319 | 434 => Errno::EMFILE,
        // clone, fork, vfork, clone3
        56..=58 | 435 => Errno::EAGAIN,
        // write, pwrite64, fallocate, ftruncate, fsync, fdatasync
        1 | 18 | 74 | 75 | 77 | 285 => Errno::ENOSPC,
        _ => Errno::EIO,
    }
}

/// A client's day, which must have an end.
fn use_it(supervisor: &Supervisor) -> Result<(), Error> {
    let (socket, (said, hears)) = (supervisor.socket(), std::sync::mpsc::channel());
    let client = std::thread::spawn(move || {
        let outcome = day(&socket);
        let _ = said.send(());
        outcome
    });
    let waited = hears.recv_timeout(LONG);
    assert_ne!(waited, Err(RecvTimeoutError::Timeout), "a client waits in vain");
    client.join().unwrap()
}

/// Errors are answers, too; what succeeds is right.
fn day(socket: &Path) -> Result<(), Error> {
    static DAYS: AtomicU64 = AtomicU64::new(0);
    let nth = DAYS.fetch_add(1, Ordering::Relaxed);
    let mut client = Client::connect(socket)?;
    let name = format!("copy-{nth}");
    let section = [&[0, 9, 0][..], &nth.to_le_bytes()].concat();
    kit::add_copy_as(&mut client, &name, &[kit::probes(), &section].concat())?;
    let sent = nth.to_le_bytes();
    let inline = Invocation::new(&name).input("in", &sent[..]).output("out");
    let mut arena = client.open_arena(4096)?;
    let (from, to) = (arena.store(&sent)?, arena.alloc(8)?);
    let shared = Invocation::new(&name).input("in", from).output_to("out", to);
    let mut outcome = Ok(());
    for call in [&inline, &shared, &inline] {
        match client.invoke(call) {
            Ok(answer) if answer.outputs[0].inline.is_empty() => assert_eq!(arena.load(to)?, sent),
            Ok(answer) => assert_eq!(answer.outputs[0].inline[..], sent),
            // The next one may do better.
            Err(refused @ Error::Refused(_)) => outcome = Err(refused),
            Err(lost) => return Err(lost),
        }
    }
    client.remove_function(&name)?;
    outcome
}

/// The same, and a worker has to be replaced meanwhile.
fn use_it_up(supervisor: &Supervisor) {
    let _ = use_it(supervisor);
    let worker = supervisor.children().into_iter().next();
    if let Some(pid) = worker {
        signal(pid, Signal::KILL);
    }
    let _ = use_it(supervisor);
}

/// Nothing is left of it: everything succeeds again.
fn serves(supervisor: &Supervisor) {
    until("all is well again", || use_it(supervisor).is_ok());
}

/// The system calls of `pid` during `work`, in order; `None` where this user may not trace.
fn recorded(pid: u32, work: impl FnOnce()) -> Option<Vec<Number>> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = seen.clone();
    let tracer = trace(pid, move |call| {
        notes.lock().unwrap().push(call.number);
        Deed::Pass
    })?;
    work();
    tracer.stop();
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    Some(seen)
}

/// True if a system call may fail: not on what a runtime wakes itself with, which cannot run out of anything.
fn may_fail(pid: u32, call: Call) -> bool {
    let file = std::fs::read_link(format!("/proc/{pid}/fd/{}", call.first)).unwrap_or_default();
    let file = file.to_string_lossy();
    !(file.contains("eventfd") || file.contains("eventpoll"))
}

/// The `nth` call of a kind from here on fails, counted from 0.
fn failing(pid: u32, kind: Number, nth: usize) -> Option<Tracer> {
    let mut left = nth;
    trace(pid, move |call| match call.number == kind && may_fail(pid, call) {
        true if left == 0 => Deed::Fail(errno(kind)),
        true => {
            left -= 1;
            Deed::Pass
        }
        false => Deed::Pass,
    })
}

/// Kills the process at its `nth` system call from here on.
fn killed_at(pid: u32, nth: usize) -> Option<Tracer> {
    let mut left = nth;
    trace(pid, move |_| match left {
        0 => Deed::Kill,
        _ => {
            left -= 1;
            Deed::Pass
        }
    })
}

/// Which ones fail, by kind and how many of it came before: of every kind the first, the last and one in between;
/// all of them where `PAPPUS_EVERY_SYSTEM_CALL` is set, which takes a minute.
fn cases(calls: &[Number]) -> BTreeSet<(Number, usize)> {
    let every = std::env::var_os("PAPPUS_EVERY_SYSTEM_CALL").is_some();
    let mut counts = BTreeMap::new();
    for kind in calls.iter().filter(|kind| !LEFT_OUT.contains(kind)) {
        *counts.entry(*kind).or_insert(0) += 1;
    }
    let some = |count| if every { (0..count).collect() } else { vec![0, count / 2, count - 1] };
    counts.into_iter().flat_map(|(kind, count)| some(count).into_iter().map(move |nth| (kind, nth))).collect()
}

fn start() -> Supervisor {
    let supervisor =
        Supervisor::with(&["--fault-budget", "0", "--quarantine-after", "0", "--device", DEVICE]);
    supervisor.worker_pids();
    serves(&supervisor);
    supervisor
}

#[test]
fn a_supervisor_outlives_the_failure_of_any_system_call() {
    let supervisor = start();
    let pid = supervisor.pid();
    let Some(calls) = recorded(pid, || use_it_up(&supervisor)) else { return };
    let cases = cases(&calls);
    // The control: it was looked at.
    assert!(cases.len() > 20, "{cases:?}");
    for (kind, nth) in cases {
        println!("system call {kind} fails after {nth}");
        let tracer = failing(pid, kind, nth).unwrap();
        use_it_up(&supervisor);
        tracer.stop();
        assert!(is_alive(pid), "system call {kind} failed once, and the supervisor is gone");
        serves(&supervisor);
    }
}

/// Once its worker is there.
fn worker(supervisor: &Supervisor) -> u32 {
    supervisor.worker_pids()[0]
}

#[test]
fn a_worker_may_fail_at_any_system_call() {
    let supervisor = start();
    let Some(calls) = recorded(worker(&supervisor), || drop(use_it(&supervisor))) else { return };
    let cases = cases(&calls);
    assert!(cases.len() > 8, "{cases:?}");
    for (kind, nth) in cases {
        println!("system call {kind} fails after {nth}");
        let mut tracer = None;
        until("a worker that lives", || {
            tracer = failing(worker(&supervisor), kind, nth);
            tracer.is_some()
        });
        let _ = use_it(&supervisor);
        tracer.unwrap().stop();
        serves(&supervisor);
    }
}

#[test]
fn a_worker_may_be_killed_at_each_system_call() {
    let supervisor = start();
    let Some(calls) = recorded(worker(&supervisor), || drop(use_it(&supervisor))) else { return };
    let mut killed = 0;
    for nth in 0..calls.len() {
        let mut tracer = None;
        // The one before may be about to end: it was killed behind its last answer.
        until("a worker that lives", || {
            tracer = killed_at(worker(&supervisor), nth);
            tracer.is_some()
        });
        // Once is an accident: every call gets its result.
        use_it(&supervisor).unwrap();
        killed += usize::from(tracer.unwrap().stop());
    }
    // The control: nearly all of them were reached.
    assert!(killed > calls.len() / 2, "{killed} of {}", calls.len());
    assert_eq!(supervisor.device().failed, 0);
}
