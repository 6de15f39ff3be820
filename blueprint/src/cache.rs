//! Plans by what they depend on: a function, the sizes, words and free dimensions of a call. That there is none for some sizes is
//! remembered, too: finding it out takes as long as a plan. Bounded by number and by memory; what was used longest ago goes
//! first.

use std::collections::HashMap;
use std::sync::Arc;

use crate::blueprint::Blueprint;
use crate::error::Error;
use crate::plan::Plan;
use crate::planner::Sizes;

/// Limits of a [`PlanCache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheBounds {
    /// Plans.
    pub plans: usize,
    /// Bytes, roughly.
    pub bytes: usize,
}

/// A bounded cache of plans, or of something that holds a plan. It has no lock of its own.
#[derive(Debug)]
pub struct PlanCache<P = Plan> {
    bounds: CacheBounds,
    entries: HashMap<Box<[u64]>, Entry<P>>,
    bytes: usize,
    /// Counts uses, so that entries can say when they were used.
    now: u64,
    /// The key being looked up, kept so that a hit does not allocate.
    key: Vec<u64>,
}

#[derive(Debug)]
struct Entry<P> {
    outcome: Result<Arc<P>, Error>,
    bytes: usize,
    used: u64,
}

impl PlanCache<Plan> {
    /// The plan of a call. `function` tells blueprints apart: the same number must always come with
    /// the same blueprint.
    pub fn get_or_plan(
        &mut self,
        function: u64,
        blueprint: &Blueprint,
        sizes: &Sizes<'_>,
    ) -> Result<Arc<Plan>, Error> {
        if let Some(plan) = self.find(function, blueprint, sizes)? {
            return Ok(plan);
        }
        let outcome = blueprint.plan(sizes).map(Arc::new);
        let bytes = outcome.as_ref().map_or(0, |plan| plan.approx_bytes());
        self.keep(function, sizes, outcome.clone(), bytes);
        outcome
    }
}

impl<P> PlanCache<P> {
    /// An empty cache.
    pub fn new(bounds: CacheBounds) -> Self {
        Self { bounds, entries: HashMap::new(), bytes: 0, now: 0, key: Vec::new() }
    }

    /// The cached plan of a call; the cached error if the call is known to have no plan.
    pub fn find(
        &mut self,
        function: u64,
        blueprint: &Blueprint,
        sizes: &Sizes<'_>,
    ) -> Result<Option<Arc<P>>, Error> {
        // Counts that do not match would make keys ambiguous.
        sizes.check(blueprint)?;
        self.now += 1;
        self.set_key(function, sizes);
        match self.entries.get_mut(self.key.as_slice()) {
            Some(entry) => {
                entry.used = self.now;
                entry.outcome.clone().map(Some)
            }
            None => Ok(None),
        }
    }

    /// Keeps what came of planning, unless it alone is too large. `bytes` is what the plan takes.
    pub fn keep(&mut self, function: u64, sizes: &Sizes<'_>, outcome: Result<Arc<P>, Error>, bytes: usize) {
        self.now += 1;
        self.set_key(function, sizes);
        let error = outcome.as_ref().err().map_or(0, |error| error.path.len() + error.message.len());
        let bytes = bytes + error + size_of_val(&*self.key) + size_of::<Entry<P>>();
        if bytes > self.bounds.bytes || self.bounds.plans == 0 {
            return;
        }
        // Another thread may have planned the same.
        if let Some(before) = self.entries.remove(self.key.as_slice()) {
            self.bytes -= before.bytes;
        }
        while self.entries.len() >= self.bounds.plans || self.bytes + bytes > self.bounds.bytes {
            self.evict_oldest(|_| true);
        }
        self.bytes += bytes;
        self.entries.insert(self.key.as_slice().into(), Entry { outcome, bytes, used: self.now });
    }

    /// Gives up the least recently used of the plans that only the cache has; false if there is none.
    pub fn give_up_one(&mut self) -> bool {
        self.evict_oldest(|entry| entry.outcome.as_ref().is_ok_and(|plan| Arc::strong_count(plan) == 1))
    }

    /// Forgets the plans of a function.
    pub fn remove_function(&mut self, function: u64) {
        let bytes = &mut self.bytes;
        self.entries.retain(|key, entry| {
            let keep = key.first() != Some(&function);
            if !keep {
                *bytes -= entry.bytes;
            }
            keep
        });
    }

    /// Cached plans, and cached sizes that have no plan.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Roughly the bytes of all cached plans.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn set_key(&mut self, function: u64, sizes: &Sizes<'_>) {
        self.key.clear();
        self.key.push(function);
        for part in [sizes.inputs, sizes.weights, sizes.words, sizes.free] {
            self.key.extend_from_slice(part);
        }
    }

    /// Evicts the least recently used of the plans that may go; false if there is none. A scan costs less
    /// than the planning that led here, as long as `bounds.plans` is some hundreds.
    fn evict_oldest(&mut self, may_go: impl Fn(&Entry<P>) -> bool) -> bool {
        let all = self.entries.iter().filter(|(_, entry)| may_go(entry));
        let oldest = all.min_by_key(|(_, entry)| entry.used).map(|(key, _)| key.clone());
        let gone = oldest.and_then(|key| self.entries.remove(&key));
        self.bytes -= gone.as_ref().map_or(0, |entry| entry.bytes);
        gone.is_some()
    }
}
