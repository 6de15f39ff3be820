//! Small cases of the scheduler.

use super::*;
use crate::ids::{FunctionId, Generation};
use crate::schedule::events::*;
use crate::schedule::limits::{DEADLINE_GRACE_NS, SETTLE_NS, SHARED_GRACE_NS, SHARED_LIMIT_NS};
use crate::schedule::{Address, Domain, Ended, Job, Loss, Order, WhyGone};

#[path = "charging_tests.rs"]
mod charging_tests;
#[path = "clearing_tests.rs"]
mod clearing_tests;
#[path = "exclusive_fairness_tests.rs"]
mod exclusive_fairness_tests;
#[path = "exclusive_tests.rs"]
mod exclusive_tests;
#[path = "handing_out_tests.rs"]
mod handing_out_tests;
#[path = "jobs_tests.rs"]
mod jobs_tests;
#[path = "memory_tests.rs"]
mod memory_tests;
#[path = "penalties_tests.rs"]
mod penalties_tests;
#[path = "quota_tests.rs"]
mod quota_tests;
#[path = "residents_tests.rs"]
mod residents_tests;
#[path = "resizing_tests.rs"]
mod resizing_tests;
#[path = "shared_tests.rs"]
mod shared_tests;
#[path = "starvation_tests.rs"]
mod starvation_tests;
#[path = "turn_calls_tests.rs"]
mod turn_calls_tests;
#[path = "weights_room_tests.rs"]
mod weights_room_tests;

const LIMITS: Limits = Limits { calls: 1000, bytes: 1 << 20, own_calls: 1000, own_bytes: 1 << 20 };
const ALICE: Domain = Domain { owner: TenantId::new(1), caller: TenantId::new(1) };
const BOB: Domain = Domain { owner: TenantId::new(2), caller: TenantId::new(2) };
const FUNCTION: FunctionId = FunctionId::new(1);
const W0: WorkerId = WorkerId::new(0);
const W1: WorkerId = WorkerId::new(1);
const MS: u64 = 1_000_000;
/// More than half of all memory, where a case does not say how much there is.
const WHOLE: u64 = (1 << 59) + 1;
const TERMS: CallSpec = CallSpec {
    domain: ALICE,
    function: FUNCTION,
    bytes: 1,
    deadline_ns: u64::MAX,
    memory_bytes: 0,
    stack_bytes: 0,
    weight_bytes: 0,
    sharing: Sharing::Never,
    batch: None,
};

/// Runs `events` on a scheduler with ready workers and returns the actions in short words.
struct Bench {
    scheduler: Scheduler<u64>,
    actions: Vec<Action<u64>>,
    now: u64,
}

impl Bench {
    fn new(workers: usize, lanes: u32) -> Self {
        Self::of(Shape::new(workers, lanes))
    }

    /// As most cases see it, failures have no consequences.
    fn of(shape: Shape) -> Self {
        Self::under(shape, Policy { quarantine_after: 0, fault_budget: 0, ..Policy::default() })
    }

    fn under(shape: Shape, policy: Policy) -> Self {
        let mut bench = Self::empty(shape, policy);
        WorkerId::first(shape.workers).for_each(|worker| bench.ready(worker));
        bench
    }

    /// No process is there yet.
    fn empty(shape: Shape, policy: Policy) -> Self {
        let mut bench = Self { scheduler: Scheduler::new(shape), actions: Vec::new(), now: 0 };
        bench.scheduler.handle(0, SetPolicy { policy }, &mut bench.actions);
        bench
    }

    fn ready(&mut self, worker: WorkerId) {
        let ready = Ready { worker, generation: Generation::new(1) };
        self.scheduler.handle(self.now, ready, &mut self.actions);
        // It is told its settings first.
        let first = self.actions.iter().position(|action| {
            matches!(action, Action::Tell { to, command: Command::Configure } if to.worker == worker)
        });
        self.actions.remove(first.unwrap());
    }

    /// A worker gave back what it was told first, and has so much left.
    fn gave_back(&mut self, worker: WorkerId, left_bytes: u64) {
        assert!(self.scheduler.handle(self.now, GaveBack { worker, left_bytes }, &mut self.actions));
    }

    fn submit(&mut self, call: u64, domain: Domain) -> CallId {
        self.submit_sized(call, domain, 0)
    }

    /// A call that needs so much memory.
    fn submit_sized(&mut self, call: u64, domain: Domain, memory_bytes: u64) -> CallId {
        let spec = CallSpec { domain, deadline_ns: self.now + 1000 * MS, memory_bytes, ..TERMS };
        self.scheduler.handle(self.now, Submit { call, spec, limits: LIMITS }, &mut self.actions).unwrap()
    }

    /// A call that may be in a worker beside those of others.
    fn share(&mut self, call: u64, domain: Domain) -> CallId {
        let spec = CallSpec { domain, deadline_ns: self.now + 1000 * MS, sharing: Sharing::May, ..TERMS };
        self.scheduler.handle(self.now, Submit { call, spec, limits: LIMITS }, &mut self.actions).unwrap()
    }

    /// A worker says how long a call that it answers was on the device.
    fn ran(&mut self, worker: WorkerId, id: CallId, ms: u64) {
        self.scheduler.handle(self.now, Ran { worker, id, device_ns: ms * MS }, &mut self.actions);
    }

    /// A worker gives its turn back, of which it used so much; so many of its answers are not read yet.
    fn yields(&mut self, worker: WorkerId, turn: u64, used_ms: u64, answered: u64) {
        let yielded = Yielded { worker, turn: TurnId::new(turn), used_ns: used_ms * MS, answered };
        assert!(self.scheduler.handle(self.now, yielded, &mut self.actions));
    }

    /// Processes that took so much for themselves take another amount.
    fn contexts(&mut self, before: u64, now: u64) {
        self.scheduler.handle(self.now, ContextChanged { before, now }, &mut self.actions);
    }

    /// Calls in the first worker, in their order.
    fn running(&self) -> Vec<CallId> {
        self.scheduler.workers[W0].calls().collect()
    }

    fn finish(&mut self, worker: WorkerId, id: CallId) {
        self.scheduler
            .handle(self.now, Finished { worker, id, verdict: Verdict::Well }, &mut self.actions)
            .unwrap();
    }

    /// The process is gone, and nothing of it is left: the calls that are over, and why.
    fn dies(&mut self, worker: WorkerId) -> Vec<(u64, Ended)> {
        let lost = self.scheduler.handle(self.now, Gone { worker }, &mut self.actions);
        let (generation, from_outside) = (Generation::new(1), false);
        self.scheduler.handle(self.now, Reaped { worker, generation, from_outside }, &mut self.actions);
        let bury =
            |(id, _)| self.scheduler.handle(self.now, Buried { id, loss: Loss::InIt }, &mut self.actions);
        lost.into_iter().filter_map(bury).collect()
    }

    fn expect(&mut self, words: &str) {
        assert_eq!(self.told(|action| !matches!(action, Action::Bring { .. })), words);
    }

    /// The same, with slots that are to get a process.
    fn expect_all(&mut self, words: &str) {
        assert_eq!(self.told(|_| true), words);
    }

    fn told(&mut self, counts: impl Fn(&Action<u64>) -> bool) -> String {
        let told = self.actions.drain(..).filter(counts).map(short);
        told.collect::<Vec<_>>().join(", ")
    }
}

fn short(action: Action<u64>) -> String {
    match action {
        Action::Expired { call, budget_ns: None } => format!("{call} expired"),
        Action::Expired { call, budget_ns: Some(left_ns) } => {
            format!("{call} expired, budget in {} s", left_ns / 1000 / MS)
        }
        Action::Refused { call, refusal } => format!("{call} refused for {} s", refusal.retry_ns / 1000 / MS),
        Action::NotCleared { call } => format!("{call} not cleared"),
        Action::Kill { worker, .. } => format!("kill {worker}"),
        Action::Bring { worker } => format!("bring {worker}"),
        Action::OverQuota { call, needs_bytes, .. } => format!("{call} may not have {needs_bytes}"),
        Action::Release { memory } => format!("drop {memory}"),
        Action::Tell { to: Address { worker, .. }, command } => match command {
            Command::Start { lane, alone, job: Job { call, others, .. }, .. } => {
                let others: String = others.iter().map(|(_, call)| format!("+{call}")).collect();
                format!("{call}{others} on {worker}.{lane}{}", if alone { " alone" } else { "" })
            }
            Command::Leave => format!("replace {worker}"),
            Command::Scrub => format!("scrub {worker}"),
            Command::Load { call, .. } => format!("{worker} loads for {call}"),
            Command::Unload { function } => format!("{worker} unloads {function}"),
            Command::Uninstall { function } => format!("{worker} uninstalls {function}"),
            Command::Configure => format!("configure {worker}"),
            Command::GiveBack { lanes } => format!("{worker} gives {lanes:b}"),
            Command::Turn(Order::Grant { turn, .. }) => format!("grant {worker} turn {turn}"),
            Command::Turn(Order::Revoke { turn }) => format!("revoke {worker} turn {turn}"),
            Command::Turn(Order::Soon) => format!("soon {worker}"),
        },
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
    b.finish(W0, first);
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
    b.finish(W0, first);
    b.now = 100 * MS;
    b.submit(2, BOB);
    b.expect("1 on 0.0, replace 0");
    assert!(b.dies(W0).is_empty());
    b.ready(W0);
    b.expect("2 on 0.0");
}

#[test]
fn switches_do_not_thrash() {
    let mut b = Bench::of(Shape { residency_ns: 40 * MS, ..Shape::new(1, 1) });
    let first = b.submit(1, ALICE);
    b.submit(2, BOB);
    b.now = 10 * MS;
    b.finish(W0, first);
    // A caller that calls again and again keeps its worker between two calls.
    b.expect("1 on 0.0");
    assert_eq!(b.scheduler.next_deadline_ns(), Some(40 * MS));
    let again = b.submit(3, ALICE);
    b.expect("3 on 0.0");
    b.now = 20 * MS;
    b.finish(W0, again);
    b.now = 39 * MS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.expect("");
    b.now = 40 * MS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.expect("replace 0");
    assert_eq!(b.scheduler.next_deadline_ns(), Some(1000 * MS), "nothing to look for any more");
    b.dies(W0);
    b.ready(W0);
    b.expect("2 on 0.0");
    // Without a residency, the next one may have it at once.
    let mut b = Bench::of(Shape { residency_ns: 0, ..Shape::new(1, 1) });
    let first = b.submit(1, ALICE);
    b.finish(W0, first);
    b.submit(2, BOB);
    b.expect("1 on 0.0, replace 0");
}

/// One worker, which is scrubbed for another domain.
fn scrubbing() -> Bench {
    let mut b = Bench::of(Shape { residency_ns: 0, scrubs: true, ..Shape::new(1, 1) });
    let first = b.submit(1, ALICE);
    b.finish(W0, first);
    b.submit(2, BOB);
    b.expect("1 on 0.0, scrub 0");
    b
}

#[test]
fn a_scrubbed_worker_is_as_good_as_a_fresh_one() {
    let mut b = scrubbing();
    // No domain gets the worker before it said so.
    b.submit(3, ALICE);
    b.expect("");
    assert!(b.scheduler.handle(b.now, Scrubbed { worker: W0 }, &mut b.actions));
    b.expect("2 on 0.0");
    assert!(!b.scheduler.handle(b.now, Scrubbed { worker: W0 }, &mut b.actions), "it was not asked");
}

#[test]
fn a_worker_that_does_not_finish_scrubbing_is_killed() {
    let mut b = scrubbing();
    assert_eq!(b.scheduler.next_deadline_ns(), Some(1000 * MS));
    b.submit(3, ALICE);
    b.now = 1500 * MS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.expect("2 expired, 3 expired");
    assert_eq!(b.scheduler.next_deadline_ns(), Some(SETTLE_NS));
    b.now = SETTLE_NS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.expect("kill 0");
    assert!(!b.scheduler.handle(b.now, Scrubbed { worker: W0 }, &mut b.actions), "too late");
    b.submit(4, BOB);
    b.expect("");
    b.dies(W0);
    b.ready(W0);
    b.expect("4 on 0.0");
}

#[test]
fn a_process_with_a_fault_is_replaced_never_scrubbed() {
    let mut b = Bench::of(Shape { residency_ns: 0, scrubs: true, ..Shape::new(1, 1) });
    let first = b.submit(1, ALICE);
    b.scheduler.handle(b.now, Tainted { worker: W0 }, &mut b.actions);
    b.finish(W0, first);
    let second = b.submit(2, ALICE);
    b.finish(W0, second);
    b.submit(3, BOB);
    b.expect("1 on 0.0, 2 on 0.0, replace 0");
    b.dies(W0);
    b.ready(W0);
    b.expect("3 on 0.0");
}

#[test]
fn a_busy_domain_keeps_its_worker_for_its_residency_only() {
    let mut b = Bench::new(1, 1);
    let first = b.submit(1, ALICE);
    let second = b.submit(2, ALICE);
    b.submit(3, BOB);
    b.now = 50 * MS;
    b.finish(W0, first);
    b.expect("1 on 0.0, 2 on 0.0");
    b.submit(4, ALICE);
    b.now = 150 * MS;
    b.finish(W0, second);
    b.expect("replace 0");
    b.dies(W0);
    b.ready(W0);
    b.expect("3 on 0.0");
}

#[test]
fn a_restarted_worker_helps_a_domain_that_has_another_one() {
    let mut b = Bench::new(2, 1);
    b.submit(1, ALICE);
    b.submit(2, ALICE);
    b.submit(3, ALICE);
    b.expect("1 on 0.0, 2 on 1.0");
    b.dies(W1);
    b.ready(W1);
    // Its own call first, which waited longest.
    b.expect("2 on 1.0 alone");
}

#[test]
fn waiting_calls_expire_and_overdue_ones_cost_their_worker() {
    let mut b = Bench::new(1, 1);
    b.submit(1, ALICE);
    b.submit(2, ALICE);
    b.now = 1000 * MS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.expect("1 on 0.0, 2 expired");
    assert_eq!(b.scheduler.next_deadline_ns(), Some(1000 * MS + DEADLINE_GRACE_NS));
    b.now += DEADLINE_GRACE_NS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.expect("kill 0");
    b.submit(3, ALICE);
    b.expect("");
    assert_eq!(b.dies(W0), [(1, Ended::Deadline)]);
    b.ready(W0);
    b.expect("3 on 0.0");
}

#[test]
fn liars_and_strangers_get_nothing() {
    let mut b = Bench::new(2, 1);
    let id = b.submit(1, ALICE);
    assert!(
        b.scheduler.handle(0, Finished { worker: W1, id, verdict: Verdict::Well }, &mut b.actions).is_none(),
        "not that worker's call"
    );
    assert!(
        b.scheduler
            .handle(0, Finished { worker: W0, id: CallId(id.0 ^ 1), verdict: Verdict::Well }, &mut b.actions)
            .is_none(),
        "no such call"
    );
    b.finish(W0, id);
    assert!(
        b.scheduler.handle(0, Finished { worker: W0, id, verdict: Verdict::Well }, &mut b.actions).is_none(),
        "answered already"
    );
}

#[test]
fn a_full_queue_says_so() {
    let mut b = Bench::new(1, 1);
    b.submit(1, ALICE);
    let mut full = |limits| {
        let spec = CallSpec { domain: ALICE, function: FUNCTION, bytes: 10, deadline_ns: 1, ..TERMS };
        b.scheduler.handle(0, Submit { call: 9, spec, limits }, &mut b.actions)
    };
    assert_eq!(full(Limits { calls: 0, bytes: 100, ..LIMITS }), Err(NotNow::Calls(0)));
    assert_eq!(full(Limits { calls: 1, bytes: 9, ..LIMITS }), Err(NotNow::Bytes(0)));
    assert!(full(Limits { calls: 1, bytes: 10, ..LIMITS }).is_ok());
    assert_eq!(full(Limits { calls: 1, bytes: 100, ..LIMITS }), Err(NotNow::Calls(1)));
}

#[test]
fn suspects_run_again_alone_and_before_all_others() {
    let mut b = Bench::new(1, 3);
    let ids = [1, 2, 3, 4].map(|call| b.submit(call, ALICE));
    b.expect("1 on 0.0, 2 on 0.1, 3 on 0.2");
    b.finish(W0, ids[1]);
    b.expect("4 on 0.1");
    b.submit(5, ALICE);
    assert!(b.dies(W0).is_empty());
    assert_eq!((b.scheduler.queued(), b.scheduler.running()), (4, 0));
    b.ready(W0);
    b.expect("1 on 0.0 alone");
    b.finish(W0, ids[0]);
    b.expect("3 on 0.0 alone");
    b.finish(W0, ids[2]);
    b.expect("4 on 0.0 alone");
    b.finish(W0, ids[3]);
    b.expect("5 on 0.0");
}

#[test]
fn a_call_that_ran_alone_when_its_process_ended_is_guilty() {
    let mut b = Bench::new(1, 2);
    b.submit(1, ALICE);
    b.submit(2, ALICE);
    b.dies(W0);
    b.ready(W0);
    b.expect("1 on 0.0, 2 on 0.1, 1 on 0.0 alone");
    assert_eq!(b.dies(W0), [(1, Ended::Guilty)]);
    b.ready(W0);
    b.expect("2 on 0.0 alone");
}

#[test]
fn where_faults_are_shared_suspects_have_the_device_for_themselves() {
    let mut b = Bench::of(Shape { shared_faults: true, ..Shape::new(2, 2) });
    b.submit(1, ALICE);
    b.submit(2, ALICE);
    b.submit(3, BOB);
    b.expect("1 on 0.0, 2 on 0.1, 3 on 1.0");
    // One of them did it; all processes are about to be gone.
    b.scheduler.handle(b.now, EpochEnded {}, &mut b.actions);
    b.dies(W0);
    b.dies(W1);
    b.ready(W0);
    b.expect("1 on 0.0 alone");
    b.ready(W1);
    b.submit(4, BOB);
    b.expect("");
    // It was the first one. The others do not start in processes that are about to be gone.
    b.scheduler.handle(b.now, EpochEnded {}, &mut b.actions);
    assert_eq!(b.dies(W0), [(1, Ended::Guilty)]);
    b.expect("");
    b.dies(W1);
    b.ready(W1);
    // Bob had less.
    b.expect("3 on 1.0 alone");
    let third = b.scheduler.workers.take_all(W1)[0];
    b.finish(W1, third);
    b.expect("");
    b.ready(W0);
    b.expect("2 on 0.0 alone");
    let second = b.scheduler.workers.take_all(W0)[0];
    b.finish(W0, second);
    b.expect("4 on 1.0");
}

#[test]
fn an_overdue_call_costs_its_neighbours_nothing_but_time() {
    let mut b = Bench::new(1, 2);
    b.submit(1, ALICE);
    b.now = 500 * MS;
    b.submit(2, ALICE);
    b.now = 1000 * MS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.now += DEADLINE_GRACE_NS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.expect("1 on 0.0, 2 on 0.1, kill 0");
    assert_eq!(b.dies(W0), [(1, Ended::Deadline)]);
    b.ready(W0);
    b.expect("2 on 0.0 alone");
    // Its deadline is still its own.
    assert_eq!(b.scheduler.next_deadline_ns(), Some(1500 * MS));
}

#[test]
fn cancelled_and_overdue_calls_are_not_retried() {
    let mut b = Bench::new(1, 3);
    let cancelled = b.submit(1, ALICE);
    b.submit(2, ALICE);
    let again = b.submit(3, ALICE);
    assert_eq!(b.scheduler.handle(b.now, Cancel { id: cancelled }, &mut b.actions), None, "it runs");
    let lost = b.scheduler.handle(b.now, Gone { worker: W0 }, &mut b.actions);
    let bury = |b: &mut Bench, nth: usize| {
        b.scheduler.handle(b.now, Buried { id: lost[nth].0, loss: Loss::InIt }, &mut b.actions)
    };
    assert_eq!(bury(&mut b, 0), Some((1, Ended::Detached)));
    assert_eq!(bury(&mut b, 2), None);
    assert_eq!(b.scheduler.handle(b.now, Cancel { id: again }, &mut b.actions), Some(3), "it waits again");
    // The deadline passes while what it wrote is cleared.
    b.now = 1000 * MS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    assert_eq!(bury(&mut b, 1), Some((2, Ended::Deadline)));
    assert_eq!((b.scheduler.queued(), b.scheduler.running(), b.scheduler.next_deadline_ns()), (0, 0, None));
}

#[test]
fn a_suspect_waits_for_an_empty_worker_and_takes_any() {
    let mut b = Bench::new(2, 2);
    let ids = [1, 2, 3].map(|call| b.submit(call, ALICE));
    b.expect("1 on 0.0, 2 on 0.1, 3 on 1.0");
    b.dies(W1);
    b.expect("");
    b.finish(W0, ids[0]);
    b.submit(4, ALICE);
    b.expect("");
    b.finish(W0, ids[1]);
    b.expect("3 on 0.0 alone");
    b.ready(W1);
    b.expect("4 on 1.0");
}

#[test]
fn queue_limits_do_not_hit_calls_that_come_back() {
    let mut b = Bench::new(1, 1);
    b.submit(1, ALICE);
    assert!(b.dies(W0).is_empty());
    let spec = CallSpec { domain: ALICE, function: FUNCTION, bytes: 1, deadline_ns: 1, ..TERMS };
    let full = b.scheduler.handle(
        0,
        Submit { call: 2, spec, limits: Limits { calls: 1, bytes: 9, ..LIMITS } },
        &mut b.actions,
    );
    assert_eq!(full, Err(NotNow::Calls(1)));
    b.ready(W0);
    b.expect("1 on 0.0, 1 on 0.0 alone");
}

#[test]
fn a_domain_gets_no_more_workers_than_it_may_have() {
    let mut b = Bench::of(Shape { workers_per_domain: 2, ..Shape::new(3, 1) });
    let ids = [1, 2, 3].map(|call| b.submit(call, ALICE));
    b.expect("1 on 0.0, 2 on 1.0");
    b.submit(4, BOB);
    b.expect("4 on 2.0");
    // One of its workers is replaced: the place is for it again, and no third one.
    b.dies(W1);
    b.expect("");
    b.ready(W1);
    b.expect("2 on 1.0 alone");
    b.dies(WorkerId::new(2));
    b.ready(WorkerId::new(2));
    b.expect("4 on 2.0 alone");
    b.finish(W0, ids[0]);
    b.expect("3 on 0.0");
}
