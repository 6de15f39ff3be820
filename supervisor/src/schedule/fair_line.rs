//! A line that is fair among callers: the one that had least lately is next, and what each caller has in line itself
//! goes in its own order (start-time fair queueing: P. Goyal, H. Vin, H. Cheng, SIGCOMM 1996). `share_line` has one for each class.
//!
//! A clock counts device time that every caller had. Each caller has a tag on it: how far it would be with the next beginning. The
//! smallest tag is next and sets the clock; what a caller used is added to its tag. A caller that comes, or comes back, begins
//! where it was before, but not further behind the clock than the credit: time without wishes costs nothing, and earns the credit
//! at most.

use std::collections::BTreeSet;

use crate::ids::{IdMap, TenantId};

/// What callers have in line: items of `K`, of which the smallest is first. What an operation costs grows with the
/// logarithm of callers and items.
#[derive(Debug)]
pub(super) struct FairLine<K> {
    callers: IdMap<TenantId, Caller<K>>,
    /// First items of callers, the next one first.
    ready: BTreeSet<Tagged<K>>,
    /// Callers without items, until the clock has passed their tags by the credit.
    idle: BTreeSet<(u64, TenantId)>,
    clock_ns: u64,
    /// So far behind the clock may a caller begin.
    credit_ns: u64,
}

/// A caller's tag, its first item, and its name. Of equal tags the smaller item is first.
type Tagged<K> = (u64, K, TenantId);

#[derive(Debug)]
struct Caller<K> {
    items: BTreeSet<K>,
    tag_ns: u64,
}

impl<K: Ord + Copy> Caller<K> {
    fn place(&self, caller: TenantId) -> Option<Tagged<K>> {
        Some((self.tag_ns, *self.items.first()?, caller))
    }
}

/// What is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct First<K> {
    /// The item.
    pub(super) id: K,
    /// Whose it is.
    pub(super) caller: TenantId,
}

impl<K> FairLine<K> {
    /// An empty line, in which a caller may begin so far behind the clock.
    pub(super) fn new(credit_ns: u64) -> Self {
        let (callers, ready, idle) = (IdMap::default(), BTreeSet::new(), BTreeSet::new());
        Self { callers, ready, idle, clock_ns: 0, credit_ns }
    }

    /// A caller may begin so far behind the clock from now on.
    pub(super) fn set_credit(&mut self, credit_ns: u64) {
        self.credit_ns = credit_ns;
    }

    /// Where a caller begins at the least.
    fn least_tag_ns(&self) -> u64 {
        self.clock_ns.saturating_sub(self.credit_ns)
    }
}

impl<K: Ord + Copy> FairLine<K> {
    /// What is next.
    pub(super) fn first(&self) -> Option<First<K>> {
        self.ready.first().map(|(_, id, caller)| First { id: *id, caller: *caller })
    }

    /// All that stands in line, in its order: the callers by their tags, and what each has.
    pub(super) fn iter(&self) -> impl Iterator<Item = (TenantId, K)> {
        let of = |caller: TenantId| self.callers.get(&caller).into_iter().flat_map(|state| &state.items);
        self.ready.iter().flat_map(move |(_, _, caller)| of(*caller).map(|id| (*caller, *id)))
    }

    /// A caller's tag: where it would begin now.
    pub(super) fn tag_ns(&self, caller: TenantId) -> u64 {
        let least_ns = self.least_tag_ns();
        self.callers.get(&caller).map_or(least_ns, |state| match state.items.is_empty() {
            true => state.tag_ns.max(least_ns),
            false => state.tag_ns,
        })
    }

    /// Something waits. A caller that had nothing here is owed one over `parts` of the credit at most: where its tag moves as
    /// much slower, that is the same device time as another's whole credit.
    pub(super) fn push(&mut self, caller: TenantId, id: K, parts: u32) {
        let least_ns = self.clock_ns.saturating_sub(self.credit_ns / u64::from(parts.max(1)));
        self.change(caller, |state| {
            if state.items.is_empty() {
                state.tag_ns = state.tag_ns.max(least_ns);
            }
            state.items.insert(id);
        });
    }

    /// An item waits no more. True if it did.
    pub(super) fn remove(&mut self, caller: TenantId, id: K) -> bool {
        self.change(caller, |state| state.items.remove(&id))
    }

    /// Takes all that a caller has, in its order.
    pub(super) fn take(&mut self, caller: TenantId) -> impl Iterator<Item = K> {
        self.change(caller, |state| std::mem::take(&mut state.items)).into_iter()
    }

    /// A caller has the device: all others begin at its tag, if they come now; or at the tag of who waits with a smaller one, and
    /// is to find what it is owed when its turn comes, but that is `held_ns` at most: who waits for what cannot be had does not keep
    /// newcomers at what was long ago.
    pub(super) fn serve(&mut self, caller: TenantId, held_ns: u64) {
        if let Some(tag_ns) = self.callers.get(&caller).map(|state| state.tag_ns) {
            let first_ns = self.ready.first().map_or(tag_ns, |(first_ns, ..)| *first_ns);
            self.set_clock(first_ns.max(tag_ns.saturating_sub(held_ns)).min(tag_ns));
        }
    }

    /// A caller had the device for so long.
    pub(super) fn charge(&mut self, caller: TenantId, used_ns: u64) {
        self.change(caller, |state| state.tag_ns = state.tag_ns.saturating_add(used_ns));
    }

    /// The clock.
    pub(super) fn clock_ns(&self) -> u64 {
        self.clock_ns
    }

    /// Sets the clock, which never goes back.
    pub(super) fn set_clock(&mut self, clock_ns: u64) {
        self.clock_ns = self.clock_ns.max(clock_ns);
        let least_ns = self.least_tag_ns();
        while let Some((tag_ns, caller)) =
            self.idle.first().copied().filter(|(tag_ns, _)| *tag_ns <= least_ns)
        {
            self.idle.remove(&(tag_ns, caller));
            self.callers.remove(&caller);
        }
    }

    /// Changes what is known of a caller, and its place with it.
    fn change<T>(&mut self, caller: TenantId, change: impl FnOnce(&mut Caller<K>) -> T) -> T {
        let least_ns = self.least_tag_ns();
        let fresh = || Caller { items: BTreeSet::new(), tag_ns: least_ns };
        let state = self.callers.entry(caller).or_insert_with(fresh);
        if let Some(place) = state.place(caller) {
            self.ready.remove(&place);
        }
        if state.items.is_empty() {
            self.idle.remove(&(state.tag_ns, caller));
            state.tag_ns = state.tag_ns.max(least_ns);
        }
        let changed = change(state);
        if let Some(place) = state.place(caller) {
            self.ready.insert(place);
        } else if state.items.is_empty() && state.tag_ns > least_ns {
            self.idle.insert((state.tag_ns, caller));
        } else if state.items.is_empty() {
            self.callers.remove(&caller);
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::CallId;

    const ALICE: TenantId = TenantId::new(1);
    const BOB: TenantId = TenantId::new(2);

    /// Serves `count` calls, each for so long. Returns their callers.
    fn serve(line: &mut FairLine<CallId>, count: usize, used_ns: impl Fn(TenantId) -> u64) -> Vec<TenantId> {
        let mut served = Vec::new();
        for _ in 0..count {
            let first = line.first().unwrap();
            line.serve(first.caller, 0);
            line.remove(first.caller, first.id);
            line.charge(first.caller, used_ns(first.caller));
            served.push(first.caller);
        }
        served
    }

    #[test]
    fn callers_share_by_time_and_not_by_calls() {
        let mut line = FairLine::new(0);
        (0..100).for_each(|id| line.push(ALICE, CallId(id), 1));
        assert_eq!(serve(&mut line, 1, |_| 10), [ALICE]);
        (100..200).for_each(|id| line.push(BOB, CallId(id), 1));
        // Bob's calls are five times as long.
        let served = serve(&mut line, 60, |caller| if caller == BOB { 50 } else { 10 });
        assert_eq!(served.iter().filter(|caller| **caller == BOB).count(), 10);
        assert_eq!(served[0], BOB, "has had nothing");
    }

    #[test]
    fn a_caller_that_comes_back_is_owed_nothing() {
        let mut line = FairLine::new(0);
        line.push(BOB, CallId(0), 1);
        serve(&mut line, 1, |_| 10);
        (1..100).for_each(|id| line.push(ALICE, CallId(id), 1));
        serve(&mut line, 50, |_| 10);
        line.push(BOB, CallId(100), 1);
        line.push(BOB, CallId(101), 1);
        assert_eq!(serve(&mut line, 4, |_| 10), [BOB, ALICE, BOB, ALICE]);
    }

    #[test]
    fn a_caller_that_comes_back_is_owed_the_credit_at_most() {
        // How often Bob goes first who had less by 30 when he left, and wanted nothing for a while.
        let firsts = |credit_ns| {
            let mut line = FairLine::new(credit_ns);
            (0..200).for_each(|id| line.push(ALICE, CallId(id), 1));
            line.push(BOB, CallId(1000), 1);
            serve(&mut line, 52, |caller| if caller == BOB { 5 } else { 10 });
            (1001..1100).for_each(|id| line.push(BOB, CallId(id), 1));
            serve(&mut line, 20, |_| 10).iter().take_while(|caller| **caller == BOB).count()
        };
        assert_eq!([0, 25, 60].map(firsts), [1, 4, 7], "one of which is his turn");
    }

    #[test]
    fn a_callers_own_calls_go_in_their_order() {
        let mut line = FairLine::new(0);
        [5, 9, 7].into_iter().for_each(|id| line.push(ALICE, CallId(id), 1));
        line.push(BOB, CallId(6), 1);
        assert_eq!(line.first().map(|first| first.id), Some(CallId(5)));
        assert!(line.remove(ALICE, CallId(5)) && !line.remove(ALICE, CallId(5)));
        assert_eq!(line.first().map(|first| first.id), Some(CallId(6)));
        assert_eq!(line.take(ALICE).collect::<Vec<_>>(), [7, 9].map(CallId));
        line.remove(BOB, CallId(6));
        assert_eq!(line.first(), None);
    }

    #[test]
    fn callers_without_calls_are_forgotten() {
        let mut line = FairLine::new(0);
        for caller in 0..100 {
            line.push(TenantId::new(caller), CallId(caller.into()), 1);
        }
        serve(&mut line, 100, |_| 10);
        assert_eq!(line.callers.len(), 100, "each had the device");
        line.set_clock(10);
        assert!(line.callers.is_empty() && line.idle.is_empty() && line.ready.is_empty());
    }
}
