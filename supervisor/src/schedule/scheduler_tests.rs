//! Small cases of the scheduler, and random sequences of events checked against what must always hold.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits { calls: 1000, bytes: 1 << 20 };
const ALICE: Domain = Domain { owner: 1, caller: 1 };
const BOB: Domain = Domain { owner: 2, caller: 2 };
const MS: u64 = 1_000_000;

/// Runs `events` on a scheduler with ready workers and returns the actions in short words.
struct Bench {
    scheduler: Scheduler<u64>,
    actions: Vec<Action<u64>>,
    now: u64,
}

impl Bench {
    fn new(workers: usize, lanes: u32) -> Self {
        let mut bench = Self { scheduler: Scheduler::new(workers, lanes), actions: Vec::new(), now: 0 };
        for worker in 0..workers {
            bench.ready(worker);
        }
        bench
    }

    fn ready(&mut self, worker: WorkerId) {
        self.scheduler.worker_ready(self.now, worker, 1, &mut self.actions);
    }

    fn submit(&mut self, call: u64, domain: Domain) -> CallId {
        let terms = Terms { domain, bytes: 1, deadline_ns: self.now + 1000 * MS };
        self.scheduler.submit(self.now, call, terms, LIMITS, &mut self.actions).unwrap()
    }

    fn finish(&mut self, worker: WorkerId, id: CallId) {
        self.scheduler.finished(self.now, worker, id, &mut self.actions).unwrap();
    }

    fn expect(&mut self, words: &str) {
        let got: Vec<String> = self.actions.drain(..).map(|a| short(&a)).collect();
        assert_eq!(got.join(", "), words);
    }
}

fn short(action: &Action<u64>) -> String {
    match action {
        Action::Start { worker, lane, call, .. } => format!("{call} on {worker}.{lane}"),
        Action::Expired(call) => format!("{call} expired"),
        Action::Kill { worker, .. } => format!("kill {worker}"),
        Action::Replace { worker, .. } => format!("replace {worker}"),
    }
}

#[test]
fn calls_spread_over_free_workers_then_wait_in_order() {
    let mut b = Bench::new(2, 1);
    let first = b.submit(1, ALICE);
    b.submit(2, ALICE);
    b.submit(3, ALICE);
    b.submit(4, ALICE);
    b.expect("1 on 0.0, 2 on 1.0");
    b.finish(0, first);
    b.expect("3 on 0.0");
}

#[test]
fn lanes_of_one_worker_fill_before_the_next_is_woken() {
    let mut b = Bench::new(2, 2);
    for call in 1..=3 {
        b.submit(call, ALICE);
    }
    b.expect("1 on 0.0, 2 on 0.1, 3 on 1.0");
}

#[test]
fn a_worker_is_replaced_before_it_serves_another_domain() {
    let mut b = Bench::new(1, 1);
    let first = b.submit(1, ALICE);
    b.finish(0, first);
    b.submit(2, BOB);
    b.expect("1 on 0.0, replace 0");
    assert!(b.scheduler.worker_gone(0).is_empty());
    b.ready(0);
    b.expect("2 on 0.0");
}

#[test]
fn a_busy_domain_keeps_its_worker_for_its_residency_only() {
    let mut b = Bench::new(1, 1);
    let first = b.submit(1, ALICE);
    let second = b.submit(2, ALICE);
    b.submit(3, BOB);
    b.now = 50 * MS;
    b.finish(0, first);
    b.expect("1 on 0.0, 2 on 0.0");
    b.submit(4, ALICE);
    b.now = 150 * MS;
    b.finish(0, second);
    b.expect("replace 0");
    b.scheduler.worker_gone(0);
    b.ready(0);
    b.expect("3 on 0.0");
}

#[test]
fn a_restarted_worker_helps_a_domain_that_has_another_one() {
    let mut b = Bench::new(2, 1);
    b.submit(1, ALICE);
    b.submit(2, ALICE);
    b.submit(3, ALICE);
    b.expect("1 on 0.0, 2 on 1.0");
    assert_eq!(b.scheduler.worker_gone(1), [(2, false)]);
    b.ready(1);
    b.expect("3 on 1.0");
}

#[test]
fn waiting_calls_expire_and_overdue_ones_cost_their_worker() {
    let mut b = Bench::new(1, 1);
    b.submit(1, ALICE);
    b.submit(2, ALICE);
    b.now = 1000 * MS;
    b.scheduler.expire(b.now, &mut b.actions);
    b.expect("1 on 0.0, 2 expired");
    assert_eq!(b.scheduler.next_deadline_ns(), Some(1000 * MS + DEADLINE_GRACE_NS));
    b.now += DEADLINE_GRACE_NS;
    b.scheduler.expire(b.now, &mut b.actions);
    b.expect("kill 0");
    b.submit(3, ALICE);
    b.expect("");
    assert_eq!(b.scheduler.worker_gone(0), [(1, true)]);
    b.ready(0);
    b.expect("3 on 0.0");
}

#[test]
fn liars_and_strangers_get_nothing() {
    let mut b = Bench::new(2, 1);
    let id = b.submit(1, ALICE);
    assert!(b.scheduler.finished(0, 1, id, &mut b.actions).is_none(), "not that worker's call");
    assert!(b.scheduler.finished(0, 0, CallId(id.0 ^ 1), &mut b.actions).is_none(), "no such call");
    b.finish(0, id);
    assert!(b.scheduler.finished(0, 0, id, &mut b.actions).is_none(), "answered already");
}

#[test]
fn a_full_queue_says_so() {
    let mut b = Bench::new(1, 1);
    b.submit(1, ALICE);
    let mut full = |limits| {
        b.scheduler.submit(0, 9, Terms { domain: ALICE, bytes: 10, deadline_ns: 1 }, limits, &mut b.actions)
    };
    assert_eq!(full(Limits { calls: 0, bytes: 100 }), Err(Full::Calls(0)));
    assert_eq!(full(Limits { calls: 1, bytes: 9 }), Err(Full::Bytes(0)));
    assert!(full(Limits { calls: 1, bytes: 10 }).is_ok());
    assert_eq!(full(Limits { calls: 1, bytes: 100 }), Err(Full::Calls(1)));
}

#[derive(Debug, Clone)]
enum Event {
    Submit { domain: u32, deadline_ms: u64 },
    Finish(usize),
    Gone(usize),
    Ready(usize),
    Cancel(usize),
    Wait(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        6 => (0..5u32, 1..400u64).prop_map(|(domain, deadline_ms)| Event::Submit { domain, deadline_ms }),
        6 => any::<usize>().prop_map(Event::Finish),
        1 => (0..4usize).prop_map(Event::Gone),
        4 => (0..4usize).prop_map(Event::Ready),
        1 => any::<usize>().prop_map(Event::Cancel),
        3 => (1..80u64).prop_map(Event::Wait),
    ];
    proptest::collection::vec(event, 0..200)
}

/// What the outside world believes, built from the actions alone.
#[derive(Default)]
struct Model {
    domain_of: HashMap<u64, Domain>,
    open: HashSet<u64>,
    running: HashMap<u64, (WorkerId, u32, CallId)>,
    ids: HashMap<u64, CallId>,
    present: HashSet<WorkerId>,
    serves: HashMap<WorkerId, Domain>,
}

impl Model {
    fn apply(&mut self, actions: &mut Vec<Action<u64>>) {
        for action in actions.drain(..) {
            match action {
                Action::Start { worker, lane, id, call, .. } => {
                    assert!(self.open.contains(&call), "{call} started but not open");
                    assert!(self.present.contains(&worker), "{call} started on an absent worker");
                    let domain = self.domain_of[&call];
                    assert_eq!(
                        *self.serves.entry(worker).or_insert(domain),
                        domain,
                        "a worker of two domains"
                    );
                    assert!(!self.running.values().any(|(w, l, _)| (*w, *l) == (worker, lane)), "lane taken");
                    assert!(self.running.insert(call, (worker, lane, id)).is_none(), "{call} started twice");
                }
                Action::Expired(call) => {
                    assert!(!self.running.contains_key(&call));
                    assert!(self.open.remove(&call), "{call} ended twice");
                }
                Action::Replace { worker, .. } => {
                    assert!(!self.running.values().any(|(w, ..)| *w == worker), "a busy worker replaced");
                    self.present.remove(&worker);
                }
                Action::Kill { worker, .. } => {
                    self.present.remove(&worker);
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn whatever_happens_every_call_ends_once_and_domains_stay_apart(
        lanes in 1..3u32, workers in 1..4usize, events in events()
    ) {
        let mut s = Scheduler::<u64>::new(workers, lanes);
        let (mut model, mut actions, mut now, mut next, mut generation) = (Model::default(), Vec::new(), 0, 0, 0);
        for event in events {
            match event {
                Event::Submit { domain, deadline_ms } => {
                    next += 1;
                    let domain = Domain { owner: domain, caller: domain };
                    model.domain_of.insert(next, domain);
                    model.open.insert(next);
                    let id = {
                        let terms = Terms { domain, bytes: 1, deadline_ns: now + deadline_ms * MS };
                        s.submit(now, next, terms, LIMITS, &mut actions)
                    }.unwrap();
                    model.ids.insert(next, id);
                }
                Event::Finish(pick) if !model.running.is_empty() => {
                    let mut all: Vec<_> = model.running.keys().copied().collect();
                    all.sort_unstable();
                    let call = all[pick % all.len()];
                    let (worker, _, id) = model.running.remove(&call).unwrap();
                    prop_assert_eq!(s.finished(now, worker, id, &mut actions), Some(call));
                    prop_assert!(model.open.remove(&call));
                }
                Event::Gone(worker) if worker < workers => {
                    for (call, _) in s.worker_gone(worker) {
                        prop_assert_eq!(model.running.remove(&call).map(|r| r.0), Some(worker));
                        prop_assert!(model.open.remove(&call));
                    }
                    model.present.remove(&worker);
                    model.serves.remove(&worker);
                    prop_assert!(!model.running.values().any(|(w, ..)| *w == worker), "a lost call is missing");
                }
                Event::Ready(worker) if worker < workers && !model.present.contains(&worker) => {
                    for (call, _) in s.worker_gone(worker) {
                        model.running.remove(&call);
                        prop_assert!(model.open.remove(&call));
                    }
                    model.serves.remove(&worker);
                    model.present.insert(worker);
                    generation += 1;
                    s.worker_ready(now, worker, generation, &mut actions);
                }
                Event::Cancel(pick) if !model.ids.is_empty() => {
                    let call = 1 + pick as u64 % next;
                    let gone = s.cancel(model.ids[&call]);
                    let waiting = model.open.contains(&call) && !model.running.contains_key(&call);
                    prop_assert_eq!(gone, waiting.then_some(call));
                    if waiting { model.open.remove(&call); }
                }
                Event::Wait(ms) => {
                    now += ms * MS;
                    s.expire(now, &mut actions);
                }
                _ => {}
            }
            model.apply(&mut actions);
            prop_assert_eq!(s.running() as usize, model.running.len());
            prop_assert_eq!((s.queued() + s.running()) as usize, model.open.len());
        }
        // With every worker there and every call answered, nothing is left behind.
        for _ in 0..3 * (next + 1) {
            for worker in 0..workers {
                if !model.present.contains(&worker) {
                    for (call, _) in s.worker_gone(worker) {
                        model.running.remove(&call);
                        model.open.remove(&call);
                    }
                    model.serves.remove(&worker);
                    model.present.insert(worker);
                    s.worker_ready(now, worker, 0, &mut actions);
                    model.apply(&mut actions);
                }
            }
            let Some((&call, &(worker, _, id))) = model.running.iter().next() else { continue };
            model.running.remove(&call);
            model.open.remove(&call);
            s.finished(now, worker, id, &mut actions).unwrap();
            model.apply(&mut actions);
        }
        prop_assert!(model.open.is_empty(), "left waiting: {:?}", model.open);
        prop_assert_eq!(s.next_deadline_ns(), None);
    }
}
