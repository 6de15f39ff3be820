//! Every id has a type of its own, so that no id can stand where another belongs.
//!
//! Each is a plain integer in messages and on disk; only `get` and `new` cross that border. Ids that workers are told
//! are the protocol's.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use pappus_protocol::id;
pub use pappus_protocol::{FunctionId, TurnId};

id!(
    /// A tenant: a uid, or a number that the supervisor gave to a name of the configuration.
    TenantId(u32)
);
id!(
    /// A worker's slot on its device. The process in it may be replaced.
    WorkerId(usize)
);
id!(
    /// Which process it is that took a worker's slot, counted from 1.
    Generation(u64)
);
id!(
    /// An epoch of a device whose processes share faults (MPS): one fault ends all processes of it.
    Epoch(u64)
);

/// Numbers that are never used twice, and that tell nobody how many others were given: a counter behind a Feistel network, which
/// maps no two counts to one number, with keys of this process.
#[derive(Debug, Default)]
pub struct Serials {
    rounds: [RandomState; 4],
    next: AtomicU64,
}

impl Serials {
    /// Another one.
    pub fn next(&self) -> u64 {
        let count = self.next.fetch_add(1, Ordering::Relaxed);
        let (mut left, mut right) = ((count >> 32) as u32, count as u32);
        for keyed in &self.rounds {
            (left, right) = (right, left ^ keyed.hash_one(right) as u32);
        }
        u64::from(left) << 32 | u64::from(right)
    }
}

/// A map by ids that the supervisor gives out: nobody can choose ids that collide.
pub type IdMap<K, V> = HashMap<K, V, rustc_hash::FxBuildHasher>;

impl TenantId {
    /// Whose turns are those of workers that all domains share. No tenant has this number, which is no uid either.
    pub const EVERYBODY: Self = Self(u32::MAX);
}

impl WorkerId {
    /// The workers of a device that has so many.
    pub fn first(count: usize) -> impl DoubleEndedIterator<Item = Self> + ExactSizeIterator {
        (0..count).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn serials_differ_and_say_nothing_of_their_order() {
        let serials = Serials::default();
        let given: Vec<u64> = (0..10_000).map(|_| serials.next()).collect();
        assert_eq!(given.iter().collect::<HashSet<_>>().len(), given.len());
        // Steps of a counter, or of one that is multiplied by a key, come again.
        let steps: HashSet<_> = given.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
        assert_eq!(steps.len(), given.len() - 1);
        assert_ne!(Serials::default().next(), given[0], "keys of its own");
    }
}
