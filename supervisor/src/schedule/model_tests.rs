//! Random sequences of events, checked against what must always hold.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;
use crate::schedule::Ended;

const LIMITS: Limits = Limits { calls: 1000, bytes: 1 << 20 };
const MS: u64 = 1_000_000;

#[derive(Debug, Clone)]
enum Event {
    Submit { domain: u32, deadline_ms: u64, size: Size },
    Finish(usize),
    Gone(usize),
    Bury { pick: usize, handed: bool },
    Ready(usize),
    Cancel(usize),
    Yield { used_ms: u64 },
    Moved,
    Wait(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let size = prop_oneof![12 => Just(Size::Lane), 2 => Just(Size::Wide), 1 => Just(Size::Exclusive)];
    let event = prop_oneof![
        6 => (0..5u32, 1..400u64, size).prop_map(|(domain, deadline_ms, size)| Event::Submit { domain, deadline_ms, size }),
        6 => any::<usize>().prop_map(Event::Finish),
        1 => (0..4usize).prop_map(Event::Gone),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(pick, handed)| Event::Bury { pick, handed }),
        4 => (0..4usize).prop_map(Event::Ready),
        1 => any::<usize>().prop_map(Event::Cancel),
        4 => (0..9u64).prop_map(|used_ms| Event::Yield { used_ms }),
        3 => Just(Event::Moved),
        3 => (1..80u64).prop_map(Event::Wait),
    ];
    proptest::collection::vec(event, 0..200)
}

/// A call as the outside world knows it.
#[derive(Debug, Default)]
struct Known {
    domain: u32,
    size: Size,
    id: Option<CallId>,
    running: Option<(WorkerId, u32)>,
    lost: bool,
    suspect: bool,
    detached: bool,
    runs: u32,
}

/// What the outside world believes, built from the actions alone.
struct World {
    scheduler: Scheduler<u64>,
    actions: Vec<Action<u64>>,
    now: u64,
    generation: u64,
    /// Open calls.
    calls: HashMap<u64, Known>,
    present: HashSet<WorkerId>,
    serves: HashMap<WorkerId, u32>,
    shape: Shape,
    holder: Option<(WorkerId, u64)>,
    revoked: bool,
    /// Whose the device is, or becomes; none while it is given back.
    whole: Option<Option<WorkerId>>,
}

impl World {
    fn new(shape: Shape) -> Self {
        Self {
            scheduler: Scheduler::new(shape),
            actions: Vec::new(),
            now: 0,
            generation: 0,
            calls: HashMap::new(),
            present: HashSet::new(),
            serves: HashMap::new(),
            shape,
            holder: None,
            revoked: false,
            whole: None,
        }
    }

    fn running(&self) -> Vec<(u64, WorkerId)> {
        let mut all: Vec<_> = self.calls.iter().filter_map(|(call, k)| Some((*call, k.running?.0))).collect();
        all.sort_unstable();
        all
    }

    fn lost(&self) -> Vec<u64> {
        let mut all: Vec<_> = self.calls.iter().filter(|(_, k)| k.lost).map(|(call, _)| *call).collect();
        all.sort_unstable();
        all
    }

    fn submit(&mut self, call: u64, domain: u32, deadline_ms: u64, size: Size) {
        self.calls.insert(call, Known { domain, size, ..Known::default() });
        let terms = Terms {
            domain: Domain { owner: domain, caller: domain },
            bytes: 1,
            deadline_ns: self.now + deadline_ms * MS,
            size,
        };
        let id = self.scheduler.submit(self.now, call, terms, LIMITS, &mut self.actions).unwrap();
        self.calls.get_mut(&call).unwrap().id = Some(id);
    }

    fn finish(&mut self, pick: usize) {
        let running = self.running();
        let Some(&(call, worker)) = running.get(pick % running.len().max(1)) else { return };
        let known = self.calls.remove(&call).unwrap();
        assert_eq!(
            self.scheduler.finished(self.now, worker, known.id.unwrap(), &mut self.actions),
            Some(call)
        );
    }

    fn gone(&mut self, worker: WorkerId) {
        let lost = self.scheduler.worker_gone(self.now, worker, &mut self.actions);
        for (id, call) in lost {
            let known = self.calls.get_mut(&call).unwrap();
            assert_eq!((known.running.take().map(|at| at.0), known.id), (Some(worker), Some(id)));
            known.lost = true;
        }
        assert!(!self.running().iter().any(|(_, w)| *w == worker), "a lost call is missing");
        self.present.remove(&worker);
        self.serves.remove(&worker);
        if self.holder.is_some_and(|(w, _)| w == worker) {
            self.holder = None;
        }
    }

    fn bury(&mut self, pick: usize, handed: bool) {
        let lost = self.lost();
        let Some(&call) = lost.get(pick % lost.len().max(1)) else { return };
        let id = self.calls[&call].id.unwrap();
        let over = self.scheduler.buried(self.now, id, handed, &mut self.actions);
        let known = self.calls.get_mut(&call).unwrap();
        known.lost = false;
        match over {
            Some((ended, why)) => {
                assert_eq!(ended, call);
                assert!(why != Ended::Guilty || known.suspect && handed, "nobody is guilty the first time");
                assert!(why != Ended::Detached || known.detached);
                self.calls.remove(&call);
            }
            None => {
                assert!(!known.detached, "runs again for nobody");
                assert!(!(known.suspect && handed), "runs again though it is guilty");
                match handed {
                    true => known.suspect = true,
                    false => known.runs -= 1,
                }
            }
        }
    }

    fn ready(&mut self, worker: WorkerId) {
        if !self.present.contains(&worker) {
            self.gone(worker);
            self.present.insert(worker);
            self.generation += 1;
            self.scheduler.worker_ready(self.now, worker, self.generation, &mut self.actions);
        }
    }

    fn cancel(&mut self, call: u64) {
        let Some(known) = self.calls.get_mut(&call) else { return };
        let waits = known.running.is_none() && !known.lost;
        known.detached |= !waits;
        let cancelled = self.scheduler.cancel(self.now, known.id.unwrap(), &mut self.actions);
        assert_eq!(cancelled, waits.then_some(call));
        if waits {
            self.calls.remove(&call);
        }
    }

    fn yields(&mut self, used_ms: u64) {
        if let Some((worker, turn)) = self.holder.filter(|_| self.revoked) {
            assert!(self.scheduler.yielding(worker, turn, &mut self.actions));
            self.apply();
            self.holder = None;
            assert!(self.scheduler.yielded(self.now, worker, turn, used_ms * MS, &mut self.actions));
        }
    }

    /// The memory is where it was to be.
    fn moved(&mut self) {
        match self.whole {
            None => {}
            Some(Some(worker)) => self.scheduler.whole_ready(self.now, worker, &mut self.actions),
            Some(None) => {
                self.whole = None;
                self.scheduler.whole_over(self.now, &mut self.actions);
            }
        }
    }

    fn apply(&mut self) {
        for action in std::mem::take(&mut self.actions) {
            match action {
                Action::Start { worker, lane, alone, id, call, .. } => {
                    self.started(worker, lane, alone, id, call)
                }
                Action::Expired(call) => {
                    let known = self.calls.remove(&call).expect("expired and not open");
                    assert!(known.running.is_none() && !known.lost);
                }
                Action::Replace { worker, .. } => {
                    assert!(!self.running().iter().any(|(_, w)| *w == worker), "a busy worker replaced");
                    self.present.remove(&worker);
                }
                Action::Kill { worker, .. } => {
                    self.present.remove(&worker);
                }
                Action::GiveAll { worker } => {
                    assert_eq!(self.whole.replace(Some(worker)), None, "given twice");
                    assert_eq!(self.running(), [], "given while something runs");
                    assert!(self.present.contains(&worker));
                }
                Action::GiveBack => {
                    assert!(matches!(self.whole.replace(None), Some(Some(_))), "given back twice");
                }
                Action::Turn { order: Order::Grant { worker, turn }, .. } => {
                    assert_eq!(self.holder.replace((worker, turn)), None, "two have the device");
                    self.revoked = false;
                }
                Action::Turn { order: Order::Revoke { worker, turn }, .. } => {
                    assert_eq!(self.holder, Some((worker, turn)));
                    assert!(!std::mem::replace(&mut self.revoked, true), "revoked twice");
                }
                Action::Turn { order: Order::Soon { worker }, .. } => {
                    assert!(self.holder.is_some_and(|(holder, _)| holder != worker));
                }
            }
        }
        let running = self.running();
        assert_eq!(self.scheduler.running() as usize, running.len() + self.lost().len());
        assert_eq!((self.scheduler.queued() + self.scheduler.running()) as usize, self.calls.len());
        // Nobody who has calls waits for a grant that nobody else has.
        if self.shape.turns && self.holder.is_none() {
            assert_eq!(running, [], "the device stands still");
        }
        for (_, worker) in running {
            assert!(
                !self.shape.turns || self.revoked || self.holder.is_some_and(|(w, _)| w == worker),
                "a worker waits and the holder does not know"
            );
        }
    }

    fn started(&mut self, worker: WorkerId, lane: u32, alone: bool, id: CallId, call: u64) {
        assert!(self.present.contains(&worker), "{call} started on an absent worker");
        for (other, known) in self.calls.iter().filter(|(_, k)| k.running.is_some_and(|(w, _)| w == worker)) {
            assert_ne!(known.running, Some((worker, lane)), "lane taken");
            assert!(!known.suspect && known.size == Size::Lane, "{call} beside {other}, which must be alone");
            assert!(
                !alone && self.calls[&call].size == Size::Lane,
                "{call}, which must be alone, beside {other}"
            );
        }
        let size = self.calls[&call].size;
        assert_eq!(
            self.whole,
            (size == Size::Exclusive).then_some(Some(worker)),
            "{call} on a device that is not its"
        );
        for (other, known) in self.calls.iter().filter(|(_, known)| known.running.is_none()) {
            assert!(known.size != Size::Exclusive || known.lost || *other >= call, "{call} overtook {other}");
            assert!(size != Size::Exclusive || *other >= call, "{call} overtook {other}");
        }
        let known = self.calls.get_mut(&call).expect("started and not open");
        assert_eq!(
            *self.serves.entry(worker).or_insert(known.domain),
            known.domain,
            "a worker of two domains"
        );
        assert_eq!(alone, known.suspect);
        assert!(known.id.is_none_or(|known| known == id));
        assert!(!known.lost && known.running.replace((worker, lane)).is_none(), "{call} started twice");
        known.runs += 1;
        assert!(known.runs <= 3, "{call} ran too often");
        let domain = known.domain;
        let workers = self.serves.iter().filter(|(w, d)| **d == domain && self.present.contains(w)).count();
        assert!(workers <= self.shape.workers_per_domain, "a domain has too many workers");
    }
}

proptest! {
    #[test]
    fn whatever_happens_every_call_ends_once_and_domains_stay_apart(
        lanes in 1..4u32, workers in 1..4usize, workers_per_domain in 1..4usize, turns: bool, events in events()
    ) {
        let mut w = World::new(Shape { workers, lanes, workers_per_domain, turns });
        let mut next = 0;
        for event in events {
            match event {
                Event::Submit { domain, deadline_ms, size } => {
                    next += 1;
                    w.submit(next, domain, deadline_ms, size);
                }
                Event::Finish(pick) => w.finish(pick),
                Event::Gone(worker) if worker < workers => w.gone(worker),
                Event::Bury { pick, handed } => w.bury(pick, handed),
                Event::Ready(worker) if worker < workers => w.ready(worker),
                Event::Cancel(pick) => w.cancel(1 + pick as u64 % (next + 1)),
                Event::Yield { used_ms } => w.yields(used_ms),
                Event::Moved => w.moved(),
                Event::Wait(ms) => {
                    w.now += ms * MS;
                    w.scheduler.expire(w.now, &mut w.actions);
                }
                Event::Gone(_) | Event::Ready(_) => {}
            }
            w.apply();
        }
        // With every worker there, every lost call buried and every call answered, nothing is left behind.
        for _ in 0..9 * (next + 1) {
            (0..workers).for_each(|worker| {
                w.ready(worker);
                w.apply();
            });
            w.bury(0, true);
            w.apply();
            w.yields(0);
            w.apply();
            w.moved();
            w.apply();
            w.finish(0);
            w.apply();
        }
        prop_assert!(w.calls.is_empty(), "left waiting: {:?}", w.calls);
        prop_assert_eq!(w.scheduler.queued() + w.scheduler.running(), 0);
    }
}
