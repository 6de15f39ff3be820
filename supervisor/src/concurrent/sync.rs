//! The synchronisation that the types of this folder are built from. `tests/models` has a file of the same names that
//! takes them from loom.

pub(super) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
pub(super) use std::sync::{Arc, Mutex};

pub(super) use tokio::sync::Notify;
