//! What is on disk: the state directory and the records in it.
//!
//! - [`state_dir`]: content-addressed blobs, records, atomic writes.
//! - [`records`]: what a record holds.

pub mod records;
pub mod state_dir;

pub use state_dir::{StateDir, StateError};
