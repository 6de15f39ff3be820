//! What is on disk: the state directory and the records in it.
//!
//! - [`state_dir`]: content-addressed blobs, atomic writes; [`record_changes`]: records, and several that change together.
//! - `keeper`: the lock on it.
//! - `sockets`: which socket files supervisors of the directory bound.
//! - `state_root`: which directory may be the state directory.
//! - [`staged`]: files on their way into it, and what files take on disk; `stored_bytes`: what is read back, compared with its hash.
//! - [`records`]: what a record holds; `record_files`: how it lies on disk, and what becomes of one that does not fit.
//! - `error`: why the state directory cannot be used.

mod error;
mod keeper;
pub mod record_changes;
mod record_files;
pub mod records;
mod sockets;
pub mod staged;
pub mod state_dir;
mod state_root;
mod stored_bytes;

pub use error::{StateError, Unfit};
pub use sockets::Bound;
pub use state_dir::StateDir;
pub use stored_bytes::StagedCode;
