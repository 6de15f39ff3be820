//! Threads for system calls on what clients own. A client decides how long such a call takes: closing a file of a
//! file system that it serves itself, writing to memory whose inode it keeps locked, giving gigabytes of pages back.
//! Each tenant has a few threads here, which it can keep as long as it likes; no other tenant's work waits for them.
//!
//! ```text
//! run ──the tenant has a thread free──► a thread that is idle, or a new one
//!  └──else──► the tenant's queue ──one of its threads is done──► that thread
//! ```
//!
//! What waits holds what the tenant was charged for, so that quotas bound the queues.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar};
use std::time::Duration;

use crate::defences::Defence;
use crate::ids::TenantId;
use crate::limits::MAX_CONNECTIONS;
use crate::sync::{OrderedMutex, rank};

/// Threads of one tenant.
const THREADS_PER_TENANT: usize = 2;
/// Threads of all tenants: as many as tenants that are connected at once can keep.
const MAX_THREADS: usize = THREADS_PER_TENANT * MAX_CONNECTIONS;
/// How long a thread without work stays.
const IDLE: Duration = Duration::from_secs(2);

type Job = Box<dyn FnOnce() + Send>;

/// The threads of all tenants.
#[derive(Debug, Clone, Default)]
pub struct ClientIo(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: OrderedMutex<WorkState, { rank::CLIENT_IO }>,
    work: Condvar,
}

#[derive(Default)]
struct WorkState {
    /// Of tenants that have work.
    tenants: HashMap<TenantId, TenantWork>,
    /// Work that no thread has taken yet, of tenants that have a thread free.
    ready: VecDeque<(TenantId, Job)>,
    threads: usize,
    idle: usize,
}

#[derive(Default)]
struct TenantWork {
    /// Work that is ready or done now.
    active: usize,
    waiting: VecDeque<Job>,
}

impl std::fmt::Debug for WorkState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { threads, idle, .. } = self;
        f.debug_struct("WorkState").field("threads", threads).field("idle", idle).finish_non_exhaustive()
    }
}

impl ClientIo {
    /// Does this on a thread of the tenant's. Never waits.
    pub fn run(&self, tenant: TenantId, job: impl FnOnce() + Send + 'static) {
        if Defence::ClientIo.is_off() {
            return job();
        }
        let mut state = self.0.state.lock();
        let work = state.tenants.entry(tenant).or_default();
        if work.active >= THREADS_PER_TENANT {
            work.waiting.push_back(Box::new(job));
            return;
        }
        work.active += 1;
        state.ready.push_back((tenant, Box::new(job)));
        self.0.work.notify_one();
        let needs_thread = state.ready.len() > state.idle && state.threads < MAX_THREADS;
        if needs_thread {
            let shared = self.0.clone();
            let thread =
                std::thread::Builder::new().name("client-io".to_owned()).spawn(move || shared.serve());
            match thread {
                Ok(_) => state.threads += 1,
                // What is ready waits for a thread that becomes idle, or for the next one that can be had.
                Err(error) => tracing::warn!("cannot start a thread for clients' descriptors: {error}"),
            }
        }
    }

    /// Drops this on a thread of the tenant's: a descriptor, or what holds some.
    pub fn drop_there<T: Send + 'static>(&self, tenant: TenantId, value: T) {
        self.run(tenant, move || drop(value));
    }

    /// How much of a tenant's work is not done yet.
    pub fn backlog(&self, tenant: TenantId) -> usize {
        let state = self.0.state.lock();
        state.tenants.get(&tenant).map_or(0, |work| work.active + work.waiting.len())
    }
}

impl Shared {
    /// One thread, until it has had nothing to do for a while.
    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            let Some((tenant, job)) = state.ready.pop_front() else {
                state.idle += 1;
                state = state.wait_timeout_while(&self.work, IDLE, |state| state.ready.is_empty());
                state.idle -= 1;
                if state.ready.is_empty() {
                    state.threads -= 1;
                    return;
                }
                continue;
            };
            drop(state);
            // A panic ends this piece of work; what it held is dropped.
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).is_err() {
                tracing::error!("work on a client's descriptor panicked: please report this with the log");
            }
            state = self.state.lock();
            state.done(tenant);
        }
    }
}

impl WorkState {
    /// A piece of a tenant's work is done: its next one is ready.
    fn done(&mut self, tenant: TenantId) {
        let Some(work) = self.tenants.get_mut(&tenant) else { return };
        match work.waiting.pop_front() {
            Some(next) => self.ready.push_back((tenant, next)),
            None => {
                work.active -= 1;
                if work.active == 0 {
                    self.tenants.remove(&tenant);
                }
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::mpsc;

    use super::*;

    /// All threads of a tenant, kept until this is dropped.
    pub(crate) struct Kept(Vec<mpsc::Sender<()>>);

    impl Kept {
        pub(crate) fn all_threads(io: &ClientIo, tenant: TenantId) -> Self {
            let (started, starts) = mpsc::channel();
            let keep = |_| {
                let (release, released) = mpsc::channel::<()>();
                let started = started.clone();
                io.run(tenant, move || {
                    started.send(()).unwrap();
                    // Ends when the sender is dropped.
                    let _ = released.recv();
                });
                release
            };
            let kept = (0..THREADS_PER_TENANT).map(keep).collect();
            (0..THREADS_PER_TENANT).for_each(|_| starts.recv().unwrap());
            Self(kept)
        }
    }

    #[test]
    fn a_tenant_that_keeps_its_threads_delays_itself_only() {
        let io = ClientIo::default();
        let (stuck, free) = (TenantId::new(1), TenantId::new(2));
        let kept = Kept::all_threads(&io, stuck);
        assert_eq!(kept.0.len(), THREADS_PER_TENANT);
        let (late, comes_late) = mpsc::channel();
        io.run(stuck, move || late.send(()).unwrap());
        let (other, comes) = mpsc::channel();
        io.run(free, move || other.send(()).unwrap());
        comes.recv().unwrap();
        // The control: that of the tenant whose threads are kept waits.
        assert!(comes_late.try_recv().is_err());
        drop(kept);
        comes_late.recv().unwrap();
    }

    #[test]
    fn what_panics_ends_alone() {
        let io = ClientIo::default();
        let tenant = TenantId::new(1);
        for _ in 0..2 * THREADS_PER_TENANT {
            io.run(tenant, || panic!("meant to"));
        }
        let (done, is_done) = mpsc::channel();
        io.run(tenant, move || done.send(()).unwrap());
        is_done.recv().unwrap();
    }
}
