//! What the two sides call functions, turns, arenas and lanes, as types of their own, so that one cannot stand where
//! another belongs.
//!
//! Each is a plain integer on the wire; only `new` and `get` cross that border.

/// Defines a newtype over an integer.
#[macro_export]
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
    /// A function, from its installation on; one that is removed and added again gets another.
    #[derive(Default)]
    FunctionId(u64)
);
id!(
    /// A turn: one grant of the right to submit work to a device.
    TurnId(u64)
);
id!(
    /// An arena that is open in a worker; [`STAGING_ARENA`](crate::to_worker::STAGING_ARENA) always is.
    ArenaId(u64)
);
id!(
    /// A lane of a worker, counted from 0.
    LaneId(u32)
);

impl FunctionId {
    /// The name of its checked version: the highest bit is for that alone.
    pub const fn checked(self) -> Self {
        Self(self.0 | 1 << 63)
    }
}

impl LaneId {
    /// The lanes of a worker that has `count`.
    pub fn first(count: usize) -> impl ExactSizeIterator<Item = Self> {
        (0..count as u32).map(Self)
    }

    /// Its position in a list of all lanes.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}
