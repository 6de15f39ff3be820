//! What is on disk: the state directory and the records in it.
//!
//! - [`state_dir`]: content-addressed blobs, records, atomic writes.
//! - `state_root`: which directory may be the state directory.
//! - [`staged`]: files on their way into it, and what files take on disk.
//! - [`records`]: what a record holds.
//! - `error`: why the state directory cannot be used.

mod error;
pub mod records;
pub mod staged;
pub mod state_dir;
mod state_root;

pub use error::{StateError, Unfit};
pub use state_dir::StateDir;
