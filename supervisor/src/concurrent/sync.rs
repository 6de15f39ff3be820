//! The synchronisation that the types of this folder are built from. `tests/models` has a file of the same names that
//! takes them from loom.

pub(super) use std::sync::Arc;
use std::sync::MutexGuard;
pub(super) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

pub(super) use tokio::sync::Notify;

/// A lock that is used as if nothing had happened where a holder panicked: changes here do not panic halfway.
#[derive(Debug)]
pub(super) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(super) fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}
