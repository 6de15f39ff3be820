//! Calls that count where they were routed to, until they end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::homes::{Able, Homes, Visit};
use crate::ids::FunctionId;
use crate::schedule::Domain;
use crate::sync::{OrderedMutex, rank};

/// The homes of all domains, as threads share them.
#[derive(Debug)]
pub struct SharedHomes(pub(super) OrderedMutex<Homes, { rank::HOMES }>);

impl SharedHomes {
    /// For so many devices.
    pub fn new(devices: usize) -> Arc<Self> {
        Arc::new(Self(OrderedMutex::new(Homes::new(devices))))
    }

    /// The device for a call, chosen among those that are able; none if no device is. `clock` tells the time.
    pub fn route(
        self: &Arc<Self>,
        clock: fn() -> u64,
        domain: Domain,
        function: FunctionId,
        able: Able<'_>,
    ) -> Option<Routed> {
        let visit = self.0.lock().route(clock(), domain, function, able)?;
        let (homes, visit, ran_ns) = (self.clone(), OrderedMutex::new(visit), AtomicU64::new(0));
        Some(Routed { homes, visit, clock, ran_ns })
    }

    /// A function is gone.
    pub fn forget(&self, function: FunctionId) {
        self.0.lock().forget(function);
    }
}

/// A call on its way to a device and there, until this is dropped.
#[derive(Debug)]
pub struct Routed {
    homes: Arc<SharedHomes>,
    visit: OrderedMutex<Visit, { rank::ROUTED }>,
    clock: fn() -> u64,
    /// How long it ran, once it ended well.
    ran_ns: AtomicU64,
}

impl Routed {
    /// It ended well and ran for so long. Not to be said of a call that may have waited for its caller's own sake: nothing is
    /// learned of such a one.
    pub fn ran(&self, ran: Duration) {
        let ran_ns = u64::try_from(ran.as_nanos()).unwrap_or(u64::MAX);
        self.ran_ns.store(ran_ns.max(1), Ordering::Relaxed);
    }

    /// Where it went.
    pub fn device(&self) -> usize {
        self.visit().device
    }

    fn visit(&self) -> Visit {
        *self.visit.lock()
    }

    /// Each of two calls of one domain and function counts where the other did.
    pub fn swap(&self, other: &Self) {
        let (own, others) = (self.visit(), other.visit());
        *self.visit.lock() = others;
        *other.visit.lock() = own;
    }
}

impl Drop for Routed {
    fn drop(&mut self) {
        let now_ns = (self.clock)();
        let (visit, ran_ns) = (self.visit(), self.ran_ns.load(Ordering::Relaxed) as f64);
        self.homes.0.lock().ended(visit, ran_ns, now_ns);
    }
}
