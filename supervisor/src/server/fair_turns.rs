//! Processor time for requests, shared among tenants: deficit round robin over measured time. There are turns on socket
//! threads, and turns of threads that make plans which take long.
//!
//! A connection takes a turn before it decodes and handles requests, and ends it within a bounded time. While there
//! are free turns that costs two atomic operations. Where connections wait, tenants are served in a ring: each
//! may use a quantum, what it used more is taken off its next ones, however many connections it has. The operator's
//! connections are one more tenant.
//!
//! ```text
//! begin ──free turn, none waits──► FairTurn ──dropped──► free
//!   └──────► its tenant's queue ──its tenant has time left──► Grant ──► FairTurn ──dropped──► charged, the next one
//! ```
//!
//! Source: Shreedhar and Varghese, "Efficient Fair Queuing using Deficit Round-Robin", SIGCOMM 1995; the cost of a
//! turn is known only when it is over, so that a tenant may overdraw by one turn.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::defences::Defence;
use crate::ids::TenantId;
use crate::sync::{OrderedMutex, rank};

/// What a tenant may use before the next one's turn.
const QUANTUM_NS: i64 = 200_000;
/// The most that a tenant owes: one request is bounded, and no tenant waits for ever.
const MAX_DEBT_NS: i64 = 20_000_000;
/// Tenants without waiting connections that are remembered for what they owe.
const MAX_REMEMBERED: usize = 1024;

/// Who shares: a tenant, or the operator.
type Sharer = Option<TenantId>;

/// The turns of all socket threads.
#[derive(Debug)]
pub struct FairTurns {
    /// Turns that no connection has. Changed without the lock only while no connection waits.
    free: AtomicUsize,
    /// Connections that wait; changed with the lock held.
    waiting: AtomicUsize,
    ring: OrderedMutex<Ring, { rank::FAIR_TURNS }>,
}

#[derive(Debug, Default)]
struct Ring {
    sharers: HashMap<Sharer, SharerState>,
    /// Those with waiting connections, the next one first.
    order: VecDeque<Sharer>,
}

#[derive(Debug, Default)]
struct SharerState {
    /// Time it may use still; what it used too much is negative.
    left_ns: i64,
    waiting: VecDeque<oneshot::Sender<Grant>>,
}

/// The right to use a socket thread; it ends when dropped.
#[derive(Debug)]
pub struct FairTurn<'a> {
    /// None where this defence is off.
    turns: Option<&'a Arc<FairTurns>>,
    sharer: Sharer,
    since: Instant,
}

/// A turn on its way to the connection that waits for it. One that is not taken, because the connection is gone, goes
/// to the next one.
#[derive(Debug)]
struct Grant {
    /// None once it is taken.
    turns: Option<Arc<FairTurns>>,
    sharer: Sharer,
}

impl FairTurns {
    /// As many turns at once as there are threads.
    pub fn new(threads: usize) -> Arc<Self> {
        Arc::new(Self {
            free: AtomicUsize::new(threads),
            waiting: AtomicUsize::new(0),
            ring: OrderedMutex::default(),
        })
    }

    /// A turn for a connection of this tenant, or of the operator.
    pub async fn begin(self: &Arc<Self>, sharer: Sharer) -> FairTurn<'_> {
        if Defence::FairTurns.is_off() {
            return FairTurn { turns: None, sharer, since: Instant::now() };
        }
        if !(self.waiting.load(Ordering::Acquire) == 0 && self.take_free())
            && let Some(granted) = self.enqueue(sharer)
            // The ring keeps the sender until it grants.
            && let Ok(mut grant) = granted.await
        {
            grant.turns = None;
        }
        FairTurn { turns: Some(self), sharer, since: Instant::now() }
    }

    fn take_free(&self) -> bool {
        let taken = self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, |free| free.checked_sub(1));
        taken.is_ok()
    }

    /// A place in the queue; none where a turn is free now.
    fn enqueue(&self, sharer: Sharer) -> Option<oneshot::Receiver<Grant>> {
        let mut ring = self.ring.lock();
        // Counted before the second look: who ends a turn from now on looks into the ring.
        self.waiting.fetch_add(1, Ordering::AcqRel);
        if ring.order.is_empty() && self.take_free() {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            return None;
        }
        let (grant, granted) = oneshot::channel();
        let state = ring.sharers.entry(sharer).or_default();
        let is_first = state.waiting.is_empty();
        state.waiting.push_back(grant);
        if is_first {
            ring.order.push_back(sharer);
        }
        Some(granted)
    }

    /// A turn is over: the next connection's begins, if one waits.
    fn end(self: &Arc<Self>, sharer: Sharer, used_ns: i64) {
        if self.waiting.load(Ordering::Acquire) == 0 {
            self.free.fetch_add(1, Ordering::AcqRel);
            // A connection may have begun to wait just before, and seen no free turn.
            if self.waiting.load(Ordering::Acquire) == 0 || !self.take_free() {
                return;
            }
        }
        let mut ring = self.ring.lock();
        ring.charge(sharer, used_ns);
        while let Some((next, grant)) = ring.next() {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            match grant.send(Grant { turns: Some(self.clone()), sharer: next }) {
                Ok(()) => return,
                // Its connection ended meanwhile: the turn is the next one's.
                Err(mut unused) => unused.turns = None,
            }
        }
        self.free.fetch_add(1, Ordering::AcqRel);
    }
}

impl Ring {
    fn charge(&mut self, sharer: Sharer, used_ns: i64) {
        if self.sharers.len() > MAX_REMEMBERED {
            self.sharers.retain(|_, state| !state.waiting.is_empty());
        }
        let state = self.sharers.entry(sharer).or_default();
        state.left_ns = (state.left_ns - used_ns).max(-MAX_DEBT_NS);
    }

    /// The connection that has waited longest of the tenant whose time it is.
    fn next(&mut self) -> Option<(Sharer, oneshot::Sender<Grant>)> {
        loop {
            let sharer = *self.order.front()?;
            let state = self.sharers.get_mut(&sharer)?;
            if state.left_ns <= 0 {
                state.left_ns += QUANTUM_NS;
                self.order.rotate_left(1);
                continue;
            }
            let grant = state.waiting.pop_front()?;
            if state.waiting.is_empty() {
                // Unused time is not kept for later.
                state.left_ns = state.left_ns.min(0);
                self.order.pop_front();
            }
            return Some((sharer, grant));
        }
    }
}

impl FairTurn<'_> {
    /// True if the turn lasts longer than `most`; never if this defence is off.
    pub fn exceeds(&self, most: Duration) -> bool {
        self.turns.is_some() && self.since.elapsed() > most
    }
}

impl Drop for FairTurn<'_> {
    fn drop(&mut self) {
        if let Some(turns) = self.turns.take() {
            let used_ns = i64::try_from(self.since.elapsed().as_nanos()).unwrap_or(i64::MAX);
            turns.end(self.sharer, used_ns);
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if let Some(turns) = self.turns.take() {
            turns.end(self.sharer, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn tenant(number: u32) -> Sharer {
        Some(TenantId::new(number))
    }

    fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    /// A turn that must be free.
    fn now(turns: &Arc<FairTurns>, sharer: Sharer) -> FairTurn<'_> {
        match poll(pin!(turns.begin(sharer))) {
            Poll::Ready(turn) => turn,
            Poll::Pending => panic!("no turn is free"),
        }
    }

    /// Queues `connections` of a tenant; what they wait for.
    fn queue(turns: &Arc<FairTurns>, sharer: Sharer, connections: usize) -> Vec<oneshot::Receiver<Grant>> {
        (0..connections).map(|_| turns.enqueue(sharer).expect("a turn is free")).collect()
    }

    /// How many of them were granted. Their ends are told apart from this.
    fn granted(waiting: &mut [oneshot::Receiver<Grant>]) -> usize {
        waiting.iter_mut().filter_map(|one| one.try_recv().ok()).map(std::mem::forget).count()
    }

    #[test]
    fn a_free_turn_is_had_at_once_and_comes_back() {
        let turns = FairTurns::new(2);
        let (one, two) = (now(&turns, tenant(1)), now(&turns, tenant(1)));
        let mut third = pin!(turns.begin(tenant(2)));
        assert!(poll(third.as_mut()).is_pending());
        drop(one);
        assert!(poll(third.as_mut()).is_ready());
        drop(two);
        assert_eq!((turns.free.load(Ordering::Relaxed), turns.waiting.load(Ordering::Relaxed)), (2, 0));
    }

    #[test]
    fn a_tenant_with_many_connections_gets_as_much_time_as_one_with_few() {
        let turns = FairTurns::new(1);
        std::mem::forget(now(&turns, tenant(1)));
        let mut many = queue(&turns, tenant(1), 200);
        let mut few = queue(&turns, tenant(2), 20);
        let mut running = tenant(1);
        let (mut of_many, mut of_few) = (0, 0);
        while of_few < 20 {
            turns.end(running, QUANTUM_NS / 2);
            let (before, after) = (of_few, of_few + granted(&mut few));
            running = if after > before { tenant(2) } else { tenant(1) };
            of_few = after;
            of_many += granted(&mut many);
        }
        assert!((18..=24).contains(&of_many), "{of_many} turns beside 20 of the other tenant's");
    }

    #[test]
    fn a_tenant_with_dear_turns_gets_fewer_of_them() {
        let turns = FairTurns::new(1);
        std::mem::forget(now(&turns, tenant(1)));
        let mut dear = queue(&turns, tenant(1), 100);
        let mut cheap = queue(&turns, tenant(2), 100);
        let mut running = tenant(1);
        let mut of_dear = 0;
        for _ in 0..100 {
            turns.end(running, if running == tenant(1) { 10 * QUANTUM_NS } else { QUANTUM_NS / 2 });
            let is_dear = granted(&mut dear) == 1;
            assert!(is_dear || granted(&mut cheap) == 1);
            of_dear += usize::from(is_dear);
            running = if is_dear { tenant(1) } else { tenant(2) };
        }
        assert!((3..=7).contains(&of_dear), "{of_dear} turns of twenty times the length beside 100");
    }

    #[test]
    fn a_turn_that_was_granted_to_a_connection_that_is_gone_is_free_again() {
        let turns = FairTurns::new(1);
        let first = now(&turns, tenant(1));
        let waiting = queue(&turns, tenant(2), 1);
        drop(first);
        assert_eq!(turns.free.load(Ordering::Relaxed), 0);
        drop(waiting);
        assert_eq!(turns.free.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_connection_that_left_while_it_waited_takes_no_turn() {
        let turns = FairTurns::new(1);
        std::mem::forget(now(&turns, tenant(1)));
        drop(queue(&turns, tenant(1), 3));
        let mut stays = queue(&turns, None, 1);
        turns.end(tenant(1), 0);
        assert_eq!(granted(&mut stays), 1);
        turns.end(None, 0);
        assert_eq!((turns.free.load(Ordering::Relaxed), turns.waiting.load(Ordering::Relaxed)), (1, 0));
    }
}
