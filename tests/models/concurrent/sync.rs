//! The names of the supervisor's `concurrent/sync.rs`, as loom has them.

pub use loom::sync::Arc;
use loom::sync::MutexGuard;
pub use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// A lock.
#[derive(Debug)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }
}

/// tokio's `Notify` for one waiting task: a notification that comes early is kept, two are one.
#[derive(Debug)]
pub struct Notify(loom::sync::Notify);

impl Notify {
    /// Not notified.
    pub fn new() -> Self {
        Self(loom::sync::Notify::new())
    }

    /// Wakes the task that waits, or the next one.
    pub fn notify_one(&self) {
        self.0.notify();
    }

    /// Returns after a notification; the task's thread waits with it.
    pub async fn notified(&self) {
        self.0.wait();
    }
}
