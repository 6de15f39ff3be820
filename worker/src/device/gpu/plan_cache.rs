//! Bound plans: for each function, plan and lane the command list, and graphs of it once they pay. The cache is
//! bounded by bytes; the bound plan that was used longest ago goes first.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use pappus_blueprint::Plan;
use pappus_protocol::LaneId;

use super::command_list::CommandList;
use super::copy_kernels::SmallCopies;
use super::driver::{Driver, DriverError};
use super::layout::{
    BOUND_PLANS_BYTES, EARLY_GRAPH_STEPS, GRAPH_NODE_BYTES, GRAPH_STEPS, RUNS_BEFORE_ANOTHER,
    RUNS_BEFORE_GRAPH, WHOLE_STEPS,
};
use super::whole_call::{Changed, Copies, WholeCall};

/// A plan with everything that one lane submits for it.
#[derive(Debug)]
pub(super) struct BoundPlan<D: Driver> {
    pub(super) commands: CommandList<D>,
    pub(super) graph: OnceCell<D::Graph>,
    /// Times that the plan ran step by step, on any lane.
    runs: Rc<Cell<u32>>,
    /// No graph of it can be made.
    pub(super) direct_only: Cell<bool>,
    /// The graph of a whole call, copies included.
    whole: RefCell<Option<WholeCall<D>>>,
    /// Calls in a row that it could not be changed for.
    unchanged: Cell<u32>,
    /// Keeps the plan's address from being used for another.
    plan: Arc<Plan>,
}

impl<D: Driver> BoundPlan<D> {
    /// Without graphs; `runs` is what [`BoundPlans::runs`] gives.
    pub(super) fn new(commands: CommandList<D>, plan: Arc<Plan>, runs: Rc<Cell<u32>>) -> Self {
        Self {
            commands,
            graph: Default::default(),
            runs,
            direct_only: Default::default(),
            whole: Default::default(),
            unchanged: Default::default(),
            plan,
        }
    }

    /// Counts one more run step by step.
    pub(super) fn ran(&self) {
        self.runs.set(self.runs.get().saturating_add(1));
    }

    /// True if the plan's steps should be a graph and are not yet. While a call `waits` for its turn, making a graph costs
    /// nobody time, so even the first call gets one.
    pub(super) fn wants_graph(&self, waits: bool) -> bool {
        let steps = self.plan.expanded_steps;
        let pays = match waits {
            true => EARLY_GRAPH_STEPS.contains(&steps),
            false => GRAPH_STEPS.contains(&steps) && self.came_again(),
        };
        pays && self.graph.get().is_none() && !self.direct_only.get()
    }

    /// True if a call of the plan may become a graph as a whole.
    pub(super) fn takes_whole(&self) -> bool {
        self.is_short() && self.came_again() && !self.direct_only.get()
    }

    /// True if the plan's steps are few enough for one graph with a call's copies.
    pub(super) fn is_short(&self) -> bool {
        self.plan.expanded_steps <= WHOLE_STEPS
    }

    /// True if the plan ran often enough for a graph to pay.
    fn came_again(&self) -> bool {
        self.runs.get() >= RUNS_BEFORE_GRAPH
    }

    /// What the graph of a whole call and its template may come to occupy.
    fn whole_bytes(&self) -> u64 {
        if self.is_short() { 2 * (self.plan.expanded_steps + 4) * GRAPH_NODE_BYTES } else { 0 }
    }

    /// Submits a call as one graph: the existing one, changed if its copies differ, or a new one from `capture`. True if the
    /// graph clears the call's range; none if there is no graph.
    pub(super) fn run_whole(
        &self,
        stream: &D::Stream,
        copies: Copies<'_>,
        small: impl FnOnce() -> Option<SmallCopies<D>>,
        capture: impl FnOnce(&SmallCopies<D>) -> Result<WholeCall<D>, D::Error>,
    ) -> Result<Option<bool>, D::Error> {
        let mut whole = self.whole.borrow_mut();
        if let Some(whole) = whole.as_ref().filter(|whole| whole.copies(copies)) {
            self.unchanged.set(0);
            return whole.launch(stream).map(Some);
        }
        let Some(small) = small() else { return Ok(None) };
        if let Some(there) = whole.as_mut() {
            match there.change(&small, copies)? {
                Changed::All => {
                    self.unchanged.set(0);
                    return there.launch(stream).map(Some);
                }
                Changed::Not if self.unchanged.get() < RUNS_BEFORE_ANOTHER => {
                    self.unchanged.set(self.unchanged.get() + 1);
                    return Ok(None);
                }
                Changed::Not | Changed::InPart => *whole = None,
            }
        }
        self.unchanged.set(0);
        match capture(&small) {
            Ok(made) => whole.insert(made).launch(stream).map(Some),
            Err(e) if e.is_fatal() => Err(e),
            Err(_) => {
                self.direct_only.set(true);
                Ok(None)
            }
        }
    }
}

/// Tells the functions loaded in this worker apart; a function that is loaded again gets a new key, unlike its
/// [`FunctionId`](pappus_protocol::FunctionId).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct FunctionKey(u64);

/// Function, plan and lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) function: FunctionKey,
    pub(super) plan: usize,
    pub(super) lane: LaneId,
}

#[derive(Debug)]
struct Slot<D: Driver> {
    bound: Rc<BoundPlan<D>>,
    bytes: u64,
    used: u64,
}

/// All bound plans of this worker.
#[derive(Debug)]
pub(super) struct BoundPlans<D: Driver> {
    slots: HashMap<Key, Slot<D>>,
    bytes: u64,
    clock: u64,
    functions: u64,
}

impl<D: Driver> Default for BoundPlans<D> {
    fn default() -> Self {
        Self { slots: HashMap::new(), bytes: 0, clock: 0, functions: 0 }
    }
}

impl<D: Driver> BoundPlans<D> {
    /// A key for a function.
    pub(super) fn next_function(&mut self) -> FunctionKey {
        self.functions += 1;
        FunctionKey(self.functions)
    }

    /// How often the plan ran step by step, which all `lanes` count together: what pays on one of them pays on the others.
    pub(super) fn runs(&self, key: &Key, lanes: usize) -> Rc<Cell<u32>> {
        let others = LaneId::first(lanes).filter_map(|lane| self.slots.get(&Key { lane, ..*key }));
        others.map(|slot| slot.bound.runs.clone()).next().unwrap_or_default()
    }

    /// A bound plan, if it is still here.
    pub(super) fn get(&mut self, key: &Key) -> Option<Rc<BoundPlan<D>>> {
        self.clock += 1;
        let slot = self.slots.get_mut(key)?;
        slot.used = self.clock;
        Some(slot.bound.clone())
    }

    /// Keeps a bound plan.
    pub(super) fn insert(&mut self, key: Key, bound: &Rc<BoundPlan<D>>) {
        let bytes = bound.commands.approx_bytes() + bound.whole_bytes();
        self.clock += 1;
        self.bytes += bytes;
        let slot = Slot { bound: bound.clone(), bytes, used: self.clock };
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
        while self.bytes > BOUND_PLANS_BYTES {
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
    pub(super) fn forget(&mut self, function: FunctionKey) {
        self.remove_where(|key| key.function == function);
    }

    /// A lane's instance of one of the function's modules is gone.
    pub(super) fn forget_lane(&mut self, function: FunctionKey, lane: LaneId) {
        self.remove_where(|key| key.function == function && key.lane == lane);
    }

    /// Another domain follows.
    pub(super) fn forget_all(&mut self) {
        self.slots.clear();
        self.bytes = 0;
    }
}
