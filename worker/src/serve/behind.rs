//! What waits for the end of calls: functions and weights go, and come again, behind the calls that came before.
//!
//! ```text
//!   told ──► waits ──► done, and said
//!              │
//!              └── for calls that came before and use what goes, and for all that was told before of the same function
//! ```
//!
//! Nothing waits for calls of other functions. A call waits for what was told of its own function before it came.

use std::os::fd::OwnedFd;

use pappus_protocol::FunctionId;
use pappus_protocol::to_worker::WeightsForm;

use super::installed::Installation;
use super::lane::Lane;

/// What is to happen to a function.
#[derive(Debug)]
pub(super) enum Step {
    /// Its weights come.
    Load {
        form: WeightsForm,
        descriptor: OwnedFd,
        /// Whose weights go first and leave their memory.
        instead_of: Option<Installation>,
    },
    /// Its weights go.
    Unload,
    /// The function goes, which is retired; true if the supervisor is told so.
    Forget(bool),
    /// The supervisor is told that the function did not load.
    Refuse,
}

#[derive(Debug)]
struct Waiting {
    nth: u64,
    of: Installation,
    step: Step,
}

/// Steps that wait, in the order in which they were told.
#[derive(Debug, Default)]
pub(super) struct BehindCalls {
    waiting: Vec<Waiting>,
    /// How many were told so far.
    told: u64,
}

impl Waiting {
    /// Whose weights go.
    fn takes_weights_of(&self) -> Option<Installation> {
        match self.step {
            Step::Load { instead_of, .. } => instead_of,
            Step::Unload | Step::Forget(_) => Some(self.of),
            Step::Refuse => None,
        }
    }

    fn functions(&self) -> impl Iterator<Item = FunctionId> {
        [Some(self.of), self.takes_weights_of()].into_iter().flatten().map(|of| of.function)
    }

    /// True if the step has to wait for a lane's call, which came before.
    fn waits_for(&self, lane: &Lane) -> bool {
        self.takes_weights_of().is_some_and(|of| lane.uses(of)) && lane.told <= self.nth
    }
}

impl BehindCalls {
    /// How many steps were told so far: a call that comes now waits for those of its function.
    pub(super) fn told(&self) -> u64 {
        self.told
    }

    /// One more is to be done.
    pub(super) fn push(&mut self, of: Installation, step: Step) {
        self.waiting.push(Waiting { nth: self.told, of, step });
        self.told += 1;
    }

    /// Takes a step out that waits for nothing any more.
    pub(super) fn take_next(&mut self, lanes: &[Lane]) -> Option<(Installation, Step)> {
        let may_go = |(at, waiting): (usize, &Waiting)| {
            let mut before = self.waiting[..at].iter().flat_map(Waiting::functions);
            let is_next = !before.any(|function| waiting.functions().any(|own| own == function));
            is_next && !lanes.iter().any(|lane| waiting.waits_for(lane))
        };
        let next = self.waiting.iter().enumerate().position(may_go)?;
        let Waiting { of, step, .. } = self.waiting.remove(next);
        Some((of, step))
    }

    /// True if a lane's call has to wait for a step that was told before the call came.
    pub(super) fn holds(&self, lane: &Lane) -> bool {
        let is_its = |waiting: &&Waiting| match waiting.step {
            Step::Load { instead_of, .. } => {
                waiting.of == lane.function || instead_of.is_some_and(|other| other == lane.function)
            }
            Step::Unload => waiting.of == lane.function,
            Step::Forget(_) | Step::Refuse => false,
        };
        self.waiting.iter().filter(|waiting| waiting.nth < lane.told).any(|waiting| is_its(&waiting))
    }
}
