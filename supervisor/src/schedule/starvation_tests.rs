//! No domain waits for ever: callers with several domains each, whose calls never end to come, on a few workers.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;

use super::*;
use crate::schedule::{Class, TenantShare};

/// What one domain asks for: so many calls at a time, each about as long as this.
#[derive(Debug, Clone, Copy)]
struct Load {
    in_flight: usize,
    ms: u64,
}

/// How long a process takes to be made, and to be scrubbed.
const START_NS: u64 = 20 * MS;
const SCRUB_NS: u64 = 5 * MS;
/// How long it goes on for callers of one class, and how long a domain may wait for its next call to start.
const RUN_NS: u64 = 60_000 * MS;
const LONGEST_NS: u64 = 30_000 * MS;

/// What comes of a worker.
#[derive(Debug)]
enum Coming {
    Ended(u64, CallId),
    Process,
    Scrubbed,
}

/// A device with calls of several domains, in its own time.
struct Device {
    bench: Bench,
    domains: Vec<(Domain, Load)>,
    /// Running calls have numbers that say whose they are.
    calls: u64,
    coming: BTreeMap<(u64, u64), (WorkerId, Coming)>,
    started_ns: Vec<u64>,
    waited_ns: Vec<u64>,
    random: u64,
    /// How long all of it goes on.
    run_ns: u64,
}

impl Device {
    fn new(shape: Shape, callers: &[Vec<Load>]) -> Self {
        let of = |caller, owner| Domain { owner: TenantId::new(owner), caller: TenantId::new(caller) };
        let domains: Vec<_> = (1..)
            .zip(callers)
            .flat_map(|(caller, loads)| (1..).zip(loads).map(move |(owner, load)| (of(caller, owner), *load)))
            .collect();
        let (started_ns, waited_ns) = (vec![0; domains.len()], vec![0; domains.len()]);
        let (bench, coming) = (Bench::of(shape), BTreeMap::new());
        Self { bench, domains, calls: 0, coming, started_ns, waited_ns, random: 1, run_ns: RUN_NS }
    }

    fn set_class(&mut self, caller: u32, class: Class) {
        let share = TenantShare { class, ..TenantShare::default() };
        let set_share = SetShare { tenant: TenantId::new(caller), share };
        self.bench.scheduler.handle(self.bench.now, set_share, &mut self.bench.actions);
    }

    fn domain_of(&self, call: u64) -> usize {
        (call % self.domains.len() as u64) as usize
    }

    fn submit(&mut self, nth: usize) {
        let call = self.calls * self.domains.len() as u64 + nth as u64;
        self.calls += 1;
        let spec = CallSpec { domain: self.domains[nth].0, deadline_ns: u64::MAX, ..TERMS };
        let submit = Submit { call, spec, limits: LIMITS };
        self.bench.scheduler.handle(self.bench.now, submit, &mut self.bench.actions).unwrap();
    }

    fn comes(&mut self, after_ns: u64, worker: WorkerId, what: Coming) {
        // No two take equally long: ties would be decided by the order of this test.
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let jitter_ns = (self.random >> 33) % (after_ns / 4);
        let key = (self.bench.now + after_ns + jitter_ns, self.random);
        self.coming.insert(key, (worker, what));
    }

    /// Does what the scheduler says.
    fn obey(&mut self) {
        while !self.bench.actions.is_empty() {
            for action in std::mem::take(&mut self.bench.actions) {
                match action {
                    Action::Tell { to, command: Command::Start { job: Job { id, call, .. }, .. } } => {
                        let nth = self.domain_of(call);
                        self.waited_ns[nth] = self.waited_ns[nth].max(self.bench.now - self.started_ns[nth]);
                        self.started_ns[nth] = self.bench.now;
                        self.comes(self.domains[nth].1.ms * MS, to.worker, Coming::Ended(call, id));
                    }
                    Action::Tell { to, command: Command::Leave } => {
                        assert!(self.bench.dies(to.worker).is_empty(), "it has no call");
                    }
                    Action::Tell { to, command: Command::Scrub } => {
                        self.comes(SCRUB_NS, to.worker, Coming::Scrubbed);
                    }
                    Action::Bring { worker } => self.comes(START_NS, worker, Coming::Process),
                    Action::Tell { .. } => {}
                    other => panic!("{}", short(other)),
                }
            }
        }
    }

    /// The next thing happens; false where it would be too late.
    fn step(&mut self) -> bool {
        let b = &mut self.bench;
        let next_ns = self.coming.first_key_value().map_or(u64::MAX, |((at_ns, _), _)| *at_ns);
        let tick_ns = b.scheduler.next_deadline_ns().map_or(u64::MAX, |at_ns| at_ns.max(b.now));
        if next_ns.min(tick_ns) > self.run_ns {
            return false;
        }
        b.now = next_ns.min(tick_ns);
        if tick_ns < next_ns {
            b.scheduler.handle(b.now, Tick {}, &mut b.actions);
        } else if let Some((_, (worker, what))) = self.coming.pop_first() {
            match what {
                Coming::Ended(call, id) => {
                    b.finish(worker, id);
                    let nth = self.domain_of(call);
                    self.submit(nth);
                }
                Coming::Process => b.ready(worker),
                Coming::Scrubbed => {
                    assert!(b.scheduler.handle(b.now, Scrubbed { worker }, &mut b.actions));
                }
            }
        }
        self.obey();
        true
    }

    /// The longest time for which no call of a domain started, of each.
    fn run(mut self) -> HashMap<Domain, u64> {
        for nth in 0..self.domains.len() {
            (0..self.domains[nth].1.in_flight).for_each(|_| self.submit(nth));
        }
        self.obey();
        while self.step() {}
        let waits = self.waited_ns.iter().zip(&self.started_ns);
        let longest = waits.map(|(waited_ns, started_ns)| (*waited_ns).max(self.run_ns - started_ns));
        self.domains.iter().map(|(domain, _)| *domain).zip(longest).collect()
    }
}

fn load() -> impl Strategy<Value = Load> {
    (1_usize..4, 4_u64..40).prop_map(|(in_flight, ms)| Load { in_flight, ms })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    #[test]
    fn a_domain_of_any_caller_is_served_again_and_again(
        workers in 1_usize..4,
        lanes in 1_u32..3,
        scrubs in any::<bool>(),
        callers in prop::collection::vec(prop::collection::vec(load(), 1..4), 2..9),
    ) {
        let shape = Shape { workers_per_domain: 1, residency_ns: 10 * MS, scrubs, ..Shape::new(workers, lanes) };
        let waits = Device::new(shape, &callers).run();
        prop_assert!(waits.values().all(|ns| *ns <= LONGEST_NS), "{waits:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, ..ProptestConfig::default() })]
    /// Lower classes have a twentieth of the device at least, and each domain its part of that.
    #[test]
    fn a_lower_class_is_served_again_and_again(
        workers in 1_usize..4,
        scrubs in any::<bool>(),
        callers in prop::collection::vec(prop::collection::vec(load(), 1..3), 2..5),
        classes in prop::collection::vec(prop::sample::select(Class::ALL.to_vec()), 5),
    ) {
        let shape = Shape { workers_per_domain: 1, residency_ns: 10 * MS, scrubs, ..Shape::new(workers, 1) };
        let mut device = Device::new(shape, &callers);
        device.run_ns = 6 * RUN_NS;
        (1..).zip(classes).for_each(|(caller, class)| device.set_class(caller, class));
        let waits = device.run();
        prop_assert!(waits.values().all(|ns| *ns <= 5 * LONGEST_NS), "{waits:?}");
    }
}

#[test]
fn a_domain_that_waits_for_long_would_be_seen() {
    let load = |ms| vec![Load { in_flight: 1, ms }];
    let shape = Shape { workers_per_domain: 1, residency_ns: 10 * MS, ..Shape::new(1, 1) };
    let waits = Device::new(shape, &[load(31_000), load(1)]).run();
    assert!(waits.values().any(|ns| *ns > LONGEST_NS), "{waits:?}");
}
