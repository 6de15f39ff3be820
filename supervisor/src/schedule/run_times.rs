//! How long calls of a function take on the device at least, by those that ended lately.
//!
//! It is the least that was seen, which rises slowly while none is as short. Where it is known from enough calls, a call
//! that cannot end before its deadline, behind those that wait before it, is refused at once; a call that could end in
//! time is never refused for being expected to be slow.

use crate::ids::{FunctionId, IdMap};

/// So many calls must have ended before anything is expected of the next one.
const ENOUGH: u32 = 16;
/// While no call is as short as the shortest, that rises by one part in so many.
const RISE: u64 = 64;
/// Functions that are remembered.
const MOST: usize = 65_536;

/// What was seen of one function.
#[derive(Debug, Clone, Copy)]
struct Seen {
    calls: u32,
    shortest_ns: u64,
}

/// What was seen of all functions that calls ended of.
#[derive(Debug, Default)]
pub(super) struct RunTimes(IdMap<FunctionId, Seen>);

impl RunTimes {
    /// A call was on the device for so long.
    pub(super) fn ended(&mut self, function: FunctionId, device_ns: u64) {
        if let Some(seen) = self.0.get_mut(&function) {
            seen.calls = seen.calls.saturating_add(1);
            seen.shortest_ns = (seen.shortest_ns + seen.shortest_ns / RISE).min(device_ns);
        } else if self.0.len() < MOST {
            self.0.insert(function, Seen { calls: 1, shortest_ns: device_ns });
        }
    }

    /// How long a call takes at least; none if too few ended.
    pub(super) fn at_least_ns(&self, function: FunctionId) -> Option<u64> {
        self.0.get(&function).filter(|seen| seen.calls >= ENOUGH).map(|seen| seen.shortest_ns)
    }

    /// The shortest of the calls that ended, of few ones, too.
    pub(super) fn shortest_ns(&self, function: FunctionId) -> Option<u64> {
        self.0.get(&function).map(|seen| seen.shortest_ns)
    }

    /// A function is gone for good.
    pub(super) fn forget(&mut self, function: FunctionId) {
        self.0.remove(&function);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F: FunctionId = FunctionId::new(1);

    #[test]
    fn little_is_known_of_few_calls() {
        let mut times = RunTimes::default();
        (1..ENOUGH).for_each(|_| times.ended(F, 70));
        assert_eq!((times.at_least_ns(F), times.shortest_ns(F)), (None, Some(70)));
        times.ended(F, 90);
        assert!(times.at_least_ns(F).is_some_and(|ns| (70..=72).contains(&ns)));
        times.forget(F);
        assert_eq!(times.shortest_ns(F), None);
    }

    #[test]
    fn the_least_follows_short_calls_at_once_and_long_ones_slowly() {
        let mut times = RunTimes::default();
        (0..100).for_each(|_| times.ended(F, 1_000_000));
        times.ended(F, 1_000);
        assert_eq!(times.at_least_ns(F), Some(1_000));
        (0..10).for_each(|_| times.ended(F, 1_000_000));
        assert!(times.at_least_ns(F).is_some_and(|ns| ns < 1_200));
        (0..1000).for_each(|_| times.ended(F, 1_000_000));
        assert_eq!(times.at_least_ns(F), Some(1_000_000));
    }
}
