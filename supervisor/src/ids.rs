//! Names of things as types of their own, so that one cannot stand where another belongs.
//!
//! Each is a plain integer in messages and on disk; only `get` and `new` cross that border.

/// Defines a newtype over an integer.
macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($inner);

        impl $name {
            /// From the integer that messages carry.
            pub const fn new(value: $inner) -> Self {
                Self(value)
            }

            /// The integer that messages carry.
            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// A tenant: a uid, or a number that the supervisor gave to a name of the configuration.
    TenantId(u32)
);
id!(
    /// A function in memory, towards workers; a function that is removed and added again gets another.
    FunctionId(u64)
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
    /// A turn: one grant of the right to submit work to a device.
    TurnId(u64)
);
id!(
    /// An epoch of a device whose processes share faults (MPS): one fault ends all processes of it.
    Epoch(u64)
);

impl WorkerId {
    /// The workers of a device that has so many.
    pub fn first(count: usize) -> impl DoubleEndedIterator<Item = Self> + ExactSizeIterator {
        (0..count).map(Self)
    }
}
