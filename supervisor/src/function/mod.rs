//! Functions as the registry keeps them in memory and as devices install them.
//!
//! - [`packed_weights`]: weights in the host's memory, each content of an owner once.
//! - [`loaded`]: a function ready to invoke: parsed, with what a worker needs to install it.
//! - [`loaded_cache`]: the functions that are kept, and which of them are evicted for room.
//! - [`code_target`]: what machine code is made for.
//! - [`variants`]: which compiled form of a module a device runs.
//! - [`uses`]: how a function was used.
//! - [`version`]: a number by which callers notice that a function was replaced by another one.

pub mod code_target;
pub mod loaded;
pub mod loaded_cache;
pub mod packed_weights;
pub mod uses;
pub mod variants;
pub mod version;

pub use code_target::CodeTarget;
pub use loaded::Loaded;
pub use loaded_cache::LoadedCache;
pub use packed_weights::PackedWeights;
pub use version::Versions;
