//! Defences that a test can switch off, to show that an attack would bite without them. Programs that are delivered
//! cannot: the switch is behind the feature `test-hooks`.
//!
//! `PAPPUS_TEST_UNDEFENDED=decoding,plan-bytes` switches off two. Names are those below and those of
//! [limits](crate::quota::Limit).

use crate::quota::Limit;

/// A defence that is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defence {
    /// What a request may hold is bounded before it is decoded.
    Decoding,
    /// Socket threads are shared among tenants.
    FairTurns,
    /// System calls on clients' descriptors have threads of their own, and closing a socket does not wait for what it sends.
    ClientIo,
    /// Urgent bytes are read in their place, with their descriptors.
    UrgentBytes,
    /// A tenant fills a share of the log only.
    Logs,
    /// Calls for the whole device take turns by caller.
    WholeDevice,
    /// A tenant that has too many functions in memory takes the room from its own.
    OwnFunctions,
    /// Weights are in memory once for each content.
    WeightSharing,
}

impl Defence {
    /// True if a test switched it off.
    #[inline]
    pub fn is_off(self) -> bool {
        is_named(match self {
            Self::Decoding => "decoding",
            Self::FairTurns => "fair-turns",
            Self::ClientIo => "client-io",
            Self::UrgentBytes => "urgent-bytes",
            Self::Logs => "logs",
            Self::WholeDevice => "whole-device",
            Self::OwnFunctions => "own-functions",
            Self::WeightSharing => "weight-sharing",
        })
    }
}

/// True if a test switched a limit off.
#[inline]
pub fn is_unlimited(limit: Limit) -> bool {
    is_named(limit.name())
}

#[cfg(not(feature = "test-hooks"))]
#[inline]
fn is_named(_name: &str) -> bool {
    false
}

#[cfg(feature = "test-hooks")]
fn is_named(name: &str) -> bool {
    static OFF: std::sync::OnceLock<Vec<String>> = std::sync::OnceLock::new();
    let off = OFF.get_or_init(|| {
        let names = std::env::var("PAPPUS_TEST_UNDEFENDED").unwrap_or_default();
        names.split(',').map(str::to_owned).collect()
    });
    off.iter().any(|one| one == name)
}
