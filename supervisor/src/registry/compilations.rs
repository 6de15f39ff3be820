//! Compilations that may run now: so many in all, and one of each tenant. A place that becomes free goes to the tenant
//! that compiled least lately, so that modules which keep the compiler busy for as long as it may be delay their own
//! tenant. The operator has places of its own. Who waits keeps no thread.

use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::ids::TenantId;
use crate::limits::OPERATOR_COMPILATIONS;
use crate::sync::{OrderedMutex, rank};

/// What a tenant used counts half after so long.
const HALF_LIFE: Duration = Duration::from_secs(60);

/// Places for one kind of compilation.
#[derive(Debug, Clone)]
pub(super) struct Compilations(Arc<OrderedMutex<Queue, { rank::COMPILATIONS }>>);

/// Whose compilation: a tenant's, or the operator's.
pub(super) type Compiles = Option<TenantId>;

/// A place, free again when dropped.
#[derive(Debug)]
pub(super) struct CompileTurn {
    queue: Compilations,
    whose: Compiles,
    since: Instant,
}

#[derive(Debug)]
struct Queue {
    places: Places,
    /// Those that compile, wait, or did lately.
    all: HashMap<Compiles, Sharer>,
}

#[derive(Debug)]
struct Places {
    tenants: usize,
    operator: usize,
}

#[derive(Debug, Default)]
struct Sharer {
    running: usize,
    waiting: VecDeque<oneshot::Sender<CompileTurn>>,
    /// Seconds that it compiled, as much as still counted at `at`.
    used: f64,
    at: Option<Instant>,
}

impl Sharer {
    /// What it used lately.
    fn used(&self, now: Instant) -> f64 {
        let Some(at) = self.at else { return 0.0 };
        let half_lives = now.saturating_duration_since(at).as_secs_f64() / HALF_LIFE.as_secs_f64();
        self.used * (-half_lives).exp2()
    }
}

impl Compilations {
    /// So many at once.
    pub(super) fn new(places: usize) -> Self {
        let places = Places { tenants: places, operator: OPERATOR_COMPILATIONS };
        Self(Arc::new(OrderedMutex::new(Queue { places, all: HashMap::new() })))
    }

    /// Waits for a place.
    pub(super) async fn turn(&self, whose: Compiles) -> Option<CompileTurn> {
        let granted = {
            let mut queue = self.0.lock();
            let (sender, granted) = oneshot::channel();
            queue.all.entry(whose).or_default().waiting.push_back(sender);
            granted
        };
        self.grant(Instant::now());
        // The sender stays in the queue until it sends.
        granted.await.ok()
    }

    /// Gives free places away.
    fn grant(&self, now: Instant) {
        loop {
            let Some((whose, sender)) = self.0.lock().next(now) else { return };
            // If it is not waited for any more, it comes back here, and its place is free again.
            drop(sender.send(CompileTurn { queue: self.clone(), whose, since: now }));
        }
    }
}

impl Queue {
    /// Takes a place for the one that waits and used least lately.
    fn next(&mut self, now: Instant) -> Option<(Compiles, oneshot::Sender<CompileTurn>)> {
        // Requests that ended meanwhile.
        self.all.values_mut().for_each(|sharer| sharer.waiting.retain(|sender| !sender.is_closed()));
        let (mut tenants, mut operator) = (0, 0);
        for (whose, sharer) in &self.all {
            match whose {
                Some(_) => tenants += sharer.running,
                None => operator += sharer.running,
            }
        }
        let may = |whose: &Compiles, sharer: &Sharer| match whose {
            Some(_) => sharer.running == 0 && tenants < self.places.tenants,
            None => operator < self.places.operator,
        };
        let waiting =
            self.all.iter().filter(|(whose, sharer)| !sharer.waiting.is_empty() && may(whose, sharer));
        let order = |one: &Sharer, other: &Sharer| -> Ordering { one.used(now).total_cmp(&other.used(now)) };
        let whose = waiting.min_by(|(_, one), (_, other)| order(one, other)).map(|(whose, _)| *whose)?;
        let sharer = self.all.get_mut(&whose)?;
        let sender = sharer.waiting.pop_front()?;
        sharer.running += 1;
        Some((whose, sender))
    }

    fn end(&mut self, whose: Compiles, since: Instant, now: Instant) {
        let Some(sharer) = self.all.get_mut(&whose) else { return };
        sharer.running -= 1;
        sharer.used = sharer.used(now) + now.saturating_duration_since(since).as_secs_f64();
        sharer.at = Some(now);
        // What was used long ago does not count any more.
        self.all.retain(|_, one| one.running > 0 || !one.waiting.is_empty() || one.used(now) > 1e-3);
    }
}

impl Drop for CompileTurn {
    fn drop(&mut self) {
        let now = Instant::now();
        self.queue.0.lock().end(self.whose, self.since, now);
        self.queue.grant(now);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn tenant(number: u32) -> Compiles {
        Some(TenantId::new(number))
    }

    fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    /// A place that must be free.
    fn now(queue: &Compilations, whose: Compiles) -> CompileTurn {
        match poll(pin!(queue.turn(whose))) {
            Poll::Ready(turn) => turn.unwrap(),
            Poll::Pending => panic!("no place is free"),
        }
    }

    /// As if it had compiled for so long.
    fn used(queue: &Compilations, whose: Compiles, seconds: u64) {
        let now = Instant::now();
        queue.0.lock().all.entry(whose).or_default().running += 1;
        queue.0.lock().end(whose, now - Duration::from_secs(seconds), now);
    }

    #[test]
    fn a_place_goes_to_the_tenant_that_compiled_least_lately() {
        let queue = Compilations::new(1);
        used(&queue, tenant(1), 60);
        used(&queue, tenant(2), 5);
        let first = now(&queue, tenant(3));
        let (mut much, mut less, mut none) =
            (pin!(queue.turn(tenant(1))), pin!(queue.turn(tenant(2))), pin!(queue.turn(tenant(4))));
        assert!(poll(much.as_mut()).is_pending() && poll(less.as_mut()).is_pending());
        assert!(poll(none.as_mut()).is_pending());
        drop(first);
        let Poll::Ready(turn) = poll(none.as_mut()) else { panic!("the one that compiled nothing") };
        assert!(poll(much.as_mut()).is_pending() && poll(less.as_mut()).is_pending());
        drop(turn);
        assert!(poll(much.as_mut()).is_pending() && poll(less.as_mut()).is_ready());
    }

    #[test]
    fn a_tenant_has_one_place_and_the_operator_its_own() {
        let queue = Compilations::new(2);
        let _first = now(&queue, tenant(1));
        let mut second = pin!(queue.turn(tenant(1)));
        assert!(poll(second.as_mut()).is_pending(), "one of each tenant");
        let _other = now(&queue, tenant(2));
        assert!(poll(pin!(queue.turn(tenant(3)))).is_pending(), "no place is left to tenants");
        let _operators = [now(&queue, None), now(&queue, None)];
        assert!(poll(pin!(queue.turn(None))).is_pending());
    }

    #[test]
    fn who_left_takes_no_place_and_what_was_used_is_forgotten() {
        let queue = Compilations::new(1);
        let first = now(&queue, tenant(1));
        {
            let mut left = pin!(queue.turn(tenant(2)));
            assert!(poll(left.as_mut()).is_pending());
        }
        drop(first);
        drop(now(&queue, tenant(3)));
        used(&queue, tenant(4), 1);
        let later = Instant::now() + Duration::from_secs(3600);
        queue.0.lock().all.entry(tenant(5)).or_default().running += 1;
        queue.0.lock().end(tenant(5), later, later);
        assert!(queue.0.lock().all.is_empty());
    }
}
