//! A worker's words on its turn page, as its thread hears them.
//!
//! A worker gives its turn back before it writes its last answers, so that the next worker need not wait for them. The page
//! says how many calls the worker answered since it began; the thread knows how many answers it has read. The difference is
//! on its way: a worker with no more calls than that wants no further turn. If more calls wait for its lanes, the answers
//! are read first: the tenant stands in line for its next turn with the calls that take their places.

use std::sync::Arc;

use pappus_protocol::turn_page::{Yield, Yields};
use pappus_shmem::SharedWords;

use super::unusable::Unusable;
use super::worker_events::WorkerEvents;
use crate::ids::{TurnId, WorkerId};

/// The page, and the answers that were read.
#[derive(Debug)]
pub(super) struct TurnsHeard {
    page: Yields<Arc<SharedWords>>,
    answers: u64,
    /// The turn that it gave back, the time used, and answers that are to be read before.
    over: Option<(TurnId, u64, u64)>,
    /// How often it may still wake the thread.
    wakes: u32,
}

/// How often a worker changes the page in a turn: it is about to give the turn back, and it does.
const CHANGES: u32 = 2;

impl TurnsHeard {
    /// Of a process that said nothing yet.
    pub(super) fn new(words: Arc<SharedWords>) -> Self {
        Self { page: Yields::new(words), answers: 0, over: None, wakes: 0 }
    }

    /// To wait for.
    pub(super) fn page(&self) -> &Yields<Arc<SharedWords>> {
        &self.page
    }

    /// Takes in what the worker said since the last look.
    pub(super) fn look(&mut self, events: &WorkerEvents, worker: WorkerId) -> Result<(), Unusable> {
        if let Some(said) = self.page.look() {
            self.wakes = CHANGES;
            match said {
                Yield::Ending(turn) => events.yielding(worker, turn)?,
                Yield::Over { turn, used_ns, answered } => self.over = Some((turn, used_ns, answered)),
            }
        }
        let Some((turn, used_ns, answered)) = self.over else { return Ok(()) };
        if events.yielded(worker, turn, used_ns, answered.saturating_sub(self.answers))? {
            self.over = None;
        }
        Ok(())
    }

    /// The worker wakes the thread because it changed the page, which the thread may have seen already.
    pub(super) fn woken(&mut self) -> Result<(), Unusable> {
        self.wakes = self.wakes.checked_sub(1).ok_or(Unusable::NothingToSee)?;
        Ok(())
    }

    /// An answer to a call was read.
    pub(super) fn answered(&mut self) {
        self.answers += 1;
    }

    /// The worker serves another domain from now on, and has no call.
    pub(super) fn forget(&mut self) {
        (self.answers, self.over) = (0, None);
        self.page.forget();
    }
}
