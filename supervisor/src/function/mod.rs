//! Functions as the registry keeps them in memory and as devices install them.
//!
//! - [`loaded`]: functions ready to invoke: parsed, with what a worker needs to install them.
//! - [`code_target`]: what machine code is made for.
//! - [`variants`]: which compiled form of a module a device runs.

pub mod code_target;
pub mod loaded;
pub mod variants;

pub use code_target::CodeTarget;
pub use loaded::{Loaded, LoadedCache};
