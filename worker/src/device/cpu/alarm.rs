//! Ends kernels whose call's time is over, also in the middle of a block: a thread that sleeps until then and takes away the page
//! that interruptible code [writes to](super::polls) in each loop and where a function begins, so that the next write traps.
//!
//! ```text
//!  asleep, no call runs ──set──► asleep until a call's time is over ──it is──► takes the page away ─┐
//!          ▲                        ▲       └─ a later call's time is looked at then ─┘             │
//!          └──────── no call runs ──┴───────────────────────────────────────────────────────────────┘
//! ```
//!
//! A call only wakes the thread if its time is over before the thread would wake up: of many short calls, few do.

use std::sync::{Arc, Barrier, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use pappus_protocol::{Fault, FaultCode, now_ns};

use super::memory::PollPage;

/// No moment ever comes to this.
const NEVER: u64 = u64::MAX;

/// The thread, which ends when this is dropped.
pub(super) struct Alarm {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// Moments are in `CLOCK_MONOTONIC` nanoseconds.
struct State {
    /// When the time of the call that runs is over; never, while no call runs or once its pages are taken away.
    rings_ns: u64,
    /// The pages of the call that runs, one for each module of its function.
    pages: Option<Arc<[PollPage]>>,
    /// True if they were taken away.
    rang: bool,
    /// When the thread wakes up by itself.
    wakes_ns: u64,
    /// True if the thread is to end.
    is_over: bool,
}

impl Default for State {
    fn default() -> Self {
        Self { rings_ns: NEVER, pages: None, rang: false, wakes_ns: NEVER, is_over: false }
    }
}

impl Alarm {
    /// Starts the thread, which needs no other system calls than to sleep and to take pages away when this returns: the sandbox may
    /// close.
    pub(super) fn start() -> Result<Self, Fault> {
        let shared = Arc::<Shared>::default();
        let started = Arc::new(Barrier::new(2));
        let (theirs, starts) = (shared.clone(), started.clone());
        let thread = std::thread::Builder::new().name("alarm".to_owned()).spawn(move || {
            starts.wait();
            theirs.watch();
        });
        let thread = thread.map_err(|e| {
            Fault::new(FaultCode::Device, format!("starting a thread that ends kernels: {e}"))
        })?;
        started.wait();
        Ok(Self { shared, thread: Some(thread) })
    }

    /// A call with these pages runs, whose time is over at that moment.
    pub(super) fn set(&self, pages: Arc<[PollPage]>, at_ns: u64) -> Ringing<'_> {
        let mut state = self.shared.state();
        (state.rings_ns, state.pages) = (at_ns, Some(pages));
        let wakes_too_late = at_ns < state.wakes_ns;
        if wakes_too_late {
            state.wakes_ns = at_ns;
        }
        drop(state);
        if wakes_too_late {
            self.shared.changed.notify_one();
        }
        Ringing(&self.shared)
    }
}

/// The alarm of a call that runs.
pub(super) struct Ringing<'a>(&'a Shared);

impl Ringing<'_> {
    /// True if the call's pages were taken away.
    pub(super) fn rang(&self) -> bool {
        self.0.state().rang
    }

    /// The call does not run any more. True if its pages were taken away.
    pub(super) fn end(self) -> bool {
        let mut state = self.0.state();
        (state.rings_ns, state.pages) = (NEVER, None);
        std::mem::take(&mut state.rang)
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.shared.state().is_over = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread ended the process.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of the thread.
    fn watch(&self) {
        let mut state = self.state();
        while !state.is_over {
            let now_ns = now_ns();
            if state.rings_ns <= now_ns {
                state.ring();
            }
            state.wakes_ns = state.rings_ns;
            state = match state.wakes_ns {
                NEVER => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                at_ns => {
                    let sleeps = Duration::from_nanos(at_ns.saturating_sub(now_ns));
                    let woken = self.changed.wait_timeout(state, sleeps);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

impl State {
    fn ring(&mut self) {
        for page in self.pages.iter().flat_map(|pages| pages.iter()) {
            if let Err(why) = page.take_away() {
                // The supervisor ends the process when the call's deadline has passed.
                crate::log(format_args!("a call goes on although its time is over: {why}"));
            }
        }
        (self.rings_ns, self.rang) = (NEVER, true);
    }
}
