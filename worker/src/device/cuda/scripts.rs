//! What was prepared for plans, per lane: scripts, and graphs once they pay. Bounded by bytes; what was
//! used longest ago goes first.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use pappus_blueprint::Plan;

use super::driver::GraphExec;
use super::launch::Script;
use super::layout::{GRAPH_NODE_BYTES, SCRIPTS_BYTES};

/// A prepared plan.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) script: Script,
    pub(super) graph: std::cell::OnceCell<GraphExec>,
    /// Times that it ran step by step.
    pub(super) runs: std::cell::Cell<u32>,
    /// No graph of it can be made.
    pub(super) direct_only: std::cell::Cell<bool>,
    /// Keeps the plan's address from being used for another.
    _plan: Arc<Plan>,
}

impl Prepared {
    pub(super) fn new(script: Script, plan: Arc<Plan>) -> Self {
        Self {
            script,
            graph: Default::default(),
            runs: Default::default(),
            direct_only: Default::default(),
            _plan: plan,
        }
    }
}

/// Function, plan, lane, and whether the call has the whole pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) function: u64,
    pub(super) plan: usize,
    pub(super) lane: usize,
    pub(super) wide: bool,
}

#[derive(Debug)]
struct Slot {
    prepared: Rc<Prepared>,
    bytes: u64,
    used: u64,
}

/// Everything prepared in this worker.
#[derive(Debug, Default)]
pub(super) struct Scripts {
    slots: HashMap<Key, Slot>,
    bytes: u64,
    clock: u64,
    functions: u64,
}

impl Scripts {
    /// A number for a function.
    pub(super) fn next_function(&mut self) -> u64 {
        self.functions += 1;
        self.functions
    }

    /// What was prepared, if it is still here.
    pub(super) fn get(&mut self, key: &Key) -> Option<Rc<Prepared>> {
        self.clock += 1;
        let slot = self.slots.get_mut(key)?;
        slot.used = self.clock;
        Some(slot.prepared.clone())
    }

    /// Keeps what was prepared.
    pub(super) fn insert(&mut self, key: Key, prepared: &Rc<Prepared>) {
        let bytes = prepared.script.approx_bytes();
        self.clock += 1;
        self.bytes += bytes;
        let slot = Slot { prepared: prepared.clone(), bytes, used: self.clock };
        if let Some(replaced) = self.slots.insert(key, slot) {
            self.bytes -= replaced.bytes;
        }
        self.shrink(&key);
    }

    /// A graph was added to what is kept under `key`.
    pub(super) fn grown(&mut self, key: &Key, nodes: u64) {
        if let Some(slot) = self.slots.get_mut(key) {
            slot.bytes += nodes * GRAPH_NODE_BYTES;
            self.bytes += nodes * GRAPH_NODE_BYTES;
        }
        self.shrink(key);
    }

    fn shrink(&mut self, keep: &Key) {
        while self.bytes > SCRIPTS_BYTES {
            let others = self.slots.iter().filter(|(key, _)| *key != keep);
            let Some(oldest) = others.min_by_key(|(_, slot)| slot.used).map(|(key, _)| *key) else {
                return;
            };
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, key: &Key) {
        if let Some(slot) = self.slots.remove(key) {
            self.bytes -= slot.bytes;
        }
    }

    fn remove_where(&mut self, gone: impl Fn(&Key) -> bool) {
        let keys: Vec<Key> = self.slots.keys().copied().filter(gone).collect();
        keys.iter().for_each(|key| self.remove(key));
    }

    /// The function is about to be unloaded.
    pub(super) fn forget(&mut self, function: u64) {
        self.remove_where(|key| key.function == function);
    }

    /// A lane's instance of one of the function's modules is gone.
    pub(super) fn forget_lane(&mut self, function: u64, lane: usize) {
        self.remove_where(|key| key.function == function && key.lane == lane);
    }

    /// Addresses of the pool changed.
    pub(super) fn forget_all(&mut self) {
        self.slots.clear();
        self.bytes = 0;
    }
}
