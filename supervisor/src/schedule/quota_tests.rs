//! A caller with fewer workers than there are.

use crate::ids::{FunctionId, Generation, TenantId, WorkerId};
use crate::schedule::events::*;
use crate::schedule::{Action, CallId, Command, Domain, Limits, Scheduler, Shape, Size, Terms, Verdict};

const W0: WorkerId = WorkerId::new(0);
const W1: WorkerId = WorkerId::new(1);
const W2: WorkerId = WorkerId::new(2);
const LIMITS: Limits = Limits { calls: 1000, bytes: 1 << 20 };
const MS: u64 = 1_000_000;

const fn domain(owner: u32, caller: u32) -> Domain {
    Domain { owner: TenantId::new(owner), caller: TenantId::new(caller) }
}

/// A device whose calls are named by the order in which they come.
struct Device {
    scheduler: Scheduler<u64>,
    now: u64,
    calls: u64,
    started: Vec<(WorkerId, CallId, u64)>,
    replaced: Vec<WorkerId>,
    actions: Vec<Action<u64>>,
}

impl Device {
    fn new(workers: usize) -> Self {
        Self::of(Shape::new(workers, 1))
    }

    fn of(shape: Shape) -> Self {
        let workers = shape.workers;
        let mut device = Self {
            scheduler: Scheduler::new(shape),
            now: 1,
            calls: 0,
            started: Vec::new(),
            replaced: Vec::new(),
            actions: Vec::new(),
        };
        WorkerId::first(workers).for_each(|worker| device.ready(worker));
        device
    }

    fn ready(&mut self, worker: WorkerId) {
        self.scheduler.handle(self.now, Ready { worker, generation: Generation::new(1) }, &mut self.actions);
        self.look();
    }

    fn submit(&mut self, domain: Domain) {
        let deadline_ns = self.now + 1_000_000 * MS;
        let terms = Terms { domain, function: FunctionId::new(1), bytes: 0, deadline_ns, size: Size::Lane };
        self.scheduler
            .handle(self.now, Submit { call: self.calls, terms, limits: LIMITS }, &mut self.actions)
            .unwrap();
        self.calls += 1;
        self.look();
    }

    fn look(&mut self) {
        for action in self.actions.drain(..) {
            match action {
                Action::Tell { to, command: Command::Start { id, call, .. } } => {
                    self.started.push((to.worker, id, call));
                }
                Action::Tell { to, command: Command::Leave } => self.replaced.push(to.worker),
                Action::Tell { command: Command::Configure(_), .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// The call in a worker ends, a while later.
    fn finish(&mut self, worker: WorkerId) {
        self.now += 1000 * MS;
        let at = self.started.iter().position(|(w, ..)| *w == worker).unwrap();
        let (_, id, _) = self.started.remove(at);
        self.scheduler
            .handle(self.now, Finished { worker, id, verdict: Verdict::Well }, &mut self.actions)
            .unwrap();
        self.look();
    }

    /// A replaced worker is gone, and a fresh one there.
    fn renew(&mut self) {
        for worker in std::mem::take(&mut self.replaced) {
            let lost = self.scheduler.handle(self.now, Gone { worker }, &mut self.actions);
            assert!(lost.is_empty());
            self.ready(worker);
        }
    }

    /// Which calls are where.
    fn running(&self) -> Vec<(WorkerId, u64)> {
        self.started.iter().map(|(worker, _, call)| (*worker, *call)).collect()
    }
}

#[test]
fn a_caller_gets_no_more_workers_than_it_may_have() {
    let mut device = Device::new(3);
    device.scheduler.handle(
        device.now,
        Allow { caller: TenantId::new(1), most: Some(1) },
        &mut device.actions,
    );
    (0..3).for_each(|_| device.submit(domain(1, 1)));
    assert_eq!(device.running(), [(W0, 0)], "two wait though two workers are free");
    // The control: one without a limit takes both.
    (0..2).for_each(|_| device.submit(domain(2, 2)));
    assert_eq!(device.running(), [(W0, 0), (W1, 3), (W2, 4)]);
    device.finish(W0);
    assert_eq!(device.running(), [(W1, 3), (W2, 4), (W0, 1)]);
}

#[test]
fn two_domains_of_one_caller_share_what_it_may_have() {
    let mut device = Device::new(3);
    device.scheduler.handle(
        device.now,
        Allow { caller: TenantId::new(1), most: Some(1) },
        &mut device.actions,
    );
    device.submit(domain(1, 1));
    device.submit(domain(2, 1));
    assert_eq!(device.running(), [(W0, 0)]);
    assert!(device.replaced.is_empty());
    device.finish(W0);
    assert_eq!(device.replaced, [W0], "its own idle worker gives way");
    device.renew();
    assert_eq!(device.running().len(), 1);
    assert_eq!(device.running()[0].1, 1);
}

#[test]
fn a_caller_at_its_own_limit_takes_nothing_from_others() {
    let mut device = Device::of(Shape { workers_per_domain: 1, ..Shape::new(2, 1) });
    device.scheduler.handle(
        device.now,
        Allow { caller: TenantId::new(1), most: Some(1) },
        &mut device.actions,
    );
    device.submit(domain(1, 1));
    device.submit(domain(2, 2));
    // Unplaced, and only worker 0 could be its.
    device.submit(domain(2, 1));
    (0..3).for_each(|_| device.submit(domain(2, 2)));
    for _ in 0..3 {
        device.finish(W1);
        assert!(device.replaced.is_empty(), "the other's worker stays");
    }
    device.finish(W1);
    assert!(device.replaced.is_empty(), "idle, too");
    device.finish(W0);
    assert_eq!(device.replaced, [W0]);
}

#[test]
fn more_is_allowed_while_calls_wait() {
    let mut device = Device::new(2);
    device.scheduler.handle(
        device.now,
        Allow { caller: TenantId::new(1), most: Some(1) },
        &mut device.actions,
    );
    (0..2).for_each(|_| device.submit(domain(1, 1)));
    assert_eq!(device.running().len(), 1);
    device.scheduler.handle(device.now, Allow { caller: TenantId::new(1), most: None }, &mut device.actions);
    device.scheduler.handle(device.now, LimitsChanged {}, &mut device.actions);
    device.look();
    assert_eq!(device.running().len(), 2);
    assert_eq!((device.scheduler.workers_of(TenantId::new(1)), device.scheduler.limited()), (2, vec![]));
    assert_eq!(device.scheduler.serving(domain(1, 1)), [0, 1].map(WorkerId::new));
    // Less than it has: what runs runs on.
    device.scheduler.handle(
        device.now,
        Allow { caller: TenantId::new(1), most: Some(1) },
        &mut device.actions,
    );
    device.submit(domain(1, 1));
    device.finish(W1);
    assert_eq!(device.running().len(), 2);
}
