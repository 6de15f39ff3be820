//! Plans by their key: a function, the sizes and the words of a call. Bounded by number
//! and by memory; the plan used longest ago goes first.

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

/// A bounded cache of plans. It has no lock of its own.
#[derive(Debug)]
pub struct PlanCache {
    bounds: CacheBounds,
    plans: HashMap<Box<[u64]>, Entry>,
    bytes: usize,
    /// Counts lookups, so that entries can say when they were used.
    now: u64,
    /// The key being looked up, kept so that a hit does not allocate.
    key: Vec<u64>,
}

#[derive(Debug)]
struct Entry {
    plan: Arc<Plan>,
    bytes: usize,
    used: u64,
}

impl PlanCache {
    /// An empty cache.
    pub fn new(bounds: CacheBounds) -> PlanCache {
        PlanCache { bounds, plans: HashMap::new(), bytes: 0, now: 0, key: Vec::new() }
    }

    /// The plan of a call. `function` tells blueprints apart: the same number must always come with
    /// the same blueprint.
    pub fn get_or_plan(
        &mut self,
        function: u64,
        blueprint: &Blueprint,
        sizes: &Sizes<'_>,
    ) -> Result<Arc<Plan>, Error> {
        // Counts that do not match would make keys ambiguous.
        sizes.check(blueprint)?;
        self.now += 1;
        self.key.clear();
        self.key.push(function);
        for part in [sizes.inputs, sizes.weights, sizes.words] {
            self.key.extend_from_slice(part);
        }
        if let Some(entry) = self.plans.get_mut(self.key.as_slice()) {
            entry.used = self.now;
            return Ok(entry.plan.clone());
        }
        let plan = Arc::new(blueprint.plan(sizes)?);
        self.insert(plan.clone());
        Ok(plan)
    }

    /// Forgets the plans of a function.
    pub fn remove_function(&mut self, function: u64) {
        let bytes = &mut self.bytes;
        self.plans.retain(|key, entry| {
            let keep = key.first() != Some(&function);
            if !keep {
                *bytes -= entry.bytes;
            }
            keep
        });
    }

    /// The plans it holds.
    pub fn len(&self) -> usize {
        self.plans.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.plans.is_empty()
    }

    /// Roughly the bytes it holds.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps a plan under the current key, unless it alone is too large.
    fn insert(&mut self, plan: Arc<Plan>) {
        let bytes = plan.approx_bytes() + size_of_val(&*self.key) + size_of::<Entry>();
        if bytes > self.bounds.bytes || self.bounds.plans == 0 {
            return;
        }
        while self.plans.len() >= self.bounds.plans || self.bytes + bytes > self.bounds.bytes {
            self.evict_oldest();
        }
        self.bytes += bytes;
        self.plans.insert(self.key.as_slice().into(), Entry { plan, bytes, used: self.now });
    }

    /// A scan: it costs less than the planning that led here, as long as `bounds.plans` is some
    /// hundreds.
    fn evict_oldest(&mut self) {
        let oldest = self.plans.iter().min_by_key(|(_, entry)| entry.used).map(|(key, _)| key.clone());
        if let Some(entry) = oldest.and_then(|key| self.plans.remove(&key)) {
            self.bytes -= entry.bytes;
        }
    }
}
