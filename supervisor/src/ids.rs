//! Names of things as types of their own, so that one cannot stand where another belongs.
//!
//! Each is a plain integer in messages and on disk; only `get` and `new` cross that border. Those that workers are told
//! are the protocol's.

use std::collections::HashMap;

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

/// A map by ids that the supervisor gives out itself: nobody can choose them so that they collide.
pub type IdMap<K, V> = HashMap<K, V, rustc_hash::FxBuildHasher>;

impl WorkerId {
    /// The workers of a device that has so many.
    pub fn first(count: usize) -> impl DoubleEndedIterator<Item = Self> + ExactSizeIterator {
        (0..count).map(Self)
    }
}
