//! What processes have of weights, as they were told and did, in the order in which they were told.

use std::collections::{HashMap, HashSet, VecDeque};

use super::memory::has_weights;
use super::{OTHERS, World};
use crate::ids::{FunctionId, WorkerId};
use crate::schedule::events::{Loaded, WeightsLeft};
use crate::schedule::weights::{Source, Supply};

/// What a process was told of weights and did not do yet.
#[derive(Debug, Clone, Copy)]
enum Duty {
    Load { function: FunctionId, exports: bool },
    Forget(FunctionId),
}

/// What processes have of weights.
#[derive(Debug, Default)]
pub(super) struct Weights {
    has: HashMap<WorkerId, HashSet<FunctionId>>,
    duties: HashMap<WorkerId, VecDeque<Duty>>,
    /// Names of memory that were made, and those that were not dropped.
    made: u64,
    known: HashSet<u64>,
}

impl Weights {
    /// A process is told to let weights go: it is to have them.
    pub(super) fn unload(&mut self, worker: WorkerId, function: FunctionId) {
        // It is told again where it had them a second time, or is about to let them go.
        if !self.has.entry(worker).or_default().remove(&function) {
            return;
        }
        let duties = self.duties.entry(worker).or_default();
        // What it says of them until then counts no more.
        duties.retain(|duty| !matches!(duty, Duty::Load { function: loads, .. } if *loads == function));
        duties.push_back(Duty::Forget(function));
    }

    /// A process has nothing any more.
    pub(super) fn gone(&mut self, worker: WorkerId) {
        self.has.remove(&worker);
        self.duties.remove(&worker);
    }

    /// A name is dropped.
    pub(super) fn released(&mut self, memory: u64) {
        assert!(self.known.remove(&memory), "{memory} dropped twice");
    }
}

impl World {
    /// A process is told of a call's weights, or has them.
    pub(super) fn supplied(&mut self, worker: WorkerId, call: u64, load: Option<Supply<u64>>) {
        let function = self.calls[&call].function;
        let weights = &mut self.weights;
        let has = weights.has.entry(worker).or_default();
        let Some(Supply { source, instead_of }) = load else {
            assert!(!has_weights(call) || has.contains(&function), "{call} without its weights");
            return;
        };
        assert!(has_weights(call) && has.insert(function), "{call} has its weights");
        if let Some(replaced) = instead_of {
            assert!(has.remove(&replaced), "{replaced} is replaced, and is not there");
        }
        let exports = match source {
            Source::Device(memory, bytes) => {
                assert!(weights.known.contains(&memory) && bytes == OTHERS);
                return;
            }
            Source::Export => instead_of.is_none(),
            Source::Host => false,
        };
        weights.duties.entry(worker).or_default().push_back(Duty::Load { function, exports });
    }

    /// Each process does the first of what it was told.
    pub(super) fn do_duties(&mut self) {
        for worker in WorkerId::first(self.slots) {
            let duty = self.weights.duties.get_mut(&worker).and_then(VecDeque::pop_front);
            match duty {
                Some(Duty::Load { function, exports }) => {
                    self.weights.made += u64::from(exports);
                    let memory = exports.then_some(self.weights.made);
                    self.weights.known.extend(memory);
                    let loaded = Loaded { worker, function, memory, bytes: OTHERS };
                    assert!(self.scheduler.handle(self.now, loaded, &mut self.actions));
                }
                Some(Duty::Forget(function)) => {
                    self.scheduler.handle(self.now, WeightsLeft { worker, function }, &mut self.actions);
                }
                None => {}
            }
            self.apply();
        }
    }
}
