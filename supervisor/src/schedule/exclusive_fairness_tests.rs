//! Devices that are full of calls of several callers, some for the whole device: each caller gets its share.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::schedule::ResidentPrice;
use crate::schedule::limits::RESIDENCY_NS;

/// What a caller does: so many calls wait at any time, each for so long, for the whole device or not.
#[derive(Debug, Clone, Copy)]
struct Load {
    waiting: u64,
    call_ns: u64,
    whole: bool,
}

impl Load {
    /// True if a call waits also while others run. Who waits for an answer first lets others go first meanwhile.
    fn always_waits(&self) -> bool {
        self.waiting > 2
    }
}

/// A device with callers that always have calls.
struct Device {
    scheduler: Scheduler<u64>,
    actions: Vec<Action<u64>>,
    now: u64,
    loads: Vec<Load>,
    /// Whose each call is.
    callers: Vec<usize>,
    /// Calls in workers, by the time at which they end.
    ends: BTreeMap<(u64, CallId), WorkerId>,
    /// Processes that start, by the time at which each is ready.
    comes: BTreeSet<(u64, WorkerId)>,
    start_ns: u64,
    generation: u64,
    /// In which order callers' calls started, and when.
    started: Vec<(usize, u64)>,
}

impl Device {
    fn new(workers: usize, start_ns: u64, loads: &[Load]) -> Self {
        // What a process takes to be made is told by the case.
        let resident_price = ResidentPrice { made_ns: 10 * start_ns, ..ResidentPrice::GPU };
        let shape = Shape { resident_price, ..Shape::new(workers, 1) };
        let mut device = Self {
            scheduler: Scheduler::new(shape),
            actions: Vec::new(),
            now: 0,
            loads: loads.to_vec(),
            callers: Vec::new(),
            ends: BTreeMap::new(),
            comes: BTreeSet::new(),
            start_ns,
            generation: 0,
            started: Vec::new(),
        };
        let policy = Policy { quarantine_after: 0, fault_budget: 0, ..Policy::default() };
        device.scheduler.handle(0, SetPolicy { policy }, &mut device.actions);
        WorkerId::first(shape.workers).for_each(|worker| device.comes(worker));
        device
    }

    /// A fresh process is in a worker's slot.
    fn comes(&mut self, worker: WorkerId) {
        self.generation += 1;
        let generation = Generation::new(self.generation);
        self.scheduler.handle(self.now, Ready { worker, generation }, &mut self.actions);
    }

    fn submit(&mut self, caller: usize) {
        let Load { whole, .. } = self.loads[caller];
        let tenant = TenantId::new(caller as u32);
        let spec = CallSpec {
            domain: Domain { owner: tenant, caller: tenant },
            function: FUNCTION,
            bytes: 0,
            deadline_ns: u64::MAX,
            memory_bytes: if whole { WHOLE } else { 0 },
            ..TERMS
        };
        let limits = Limits { calls: 1 << 20, own_calls: 1 << 20, ..LIMITS };
        let call = self.callers.len() as u64;
        self.callers.push(caller);
        self.scheduler.handle(self.now, Submit { call, spec, limits }, &mut self.actions).unwrap();
        self.carry_out();
    }

    /// Workers do at once what they are told.
    fn carry_out(&mut self) {
        while !self.actions.is_empty() {
            for action in std::mem::take(&mut self.actions) {
                let Action::Tell { to: Address { worker, generation, .. }, command } = action else {
                    // The time that a process takes to come is counted from when the one before leaves.
                    assert!(matches!(action, Action::Bring { .. }), "{action:?}");
                    continue;
                };
                match command {
                    Command::Start { job: Job { id, call, .. }, .. } => {
                        let caller = self.callers[call as usize];
                        self.started.push((caller, self.now));
                        self.ends.insert((self.now + self.loads[caller].call_ns, id), worker);
                    }
                    Command::Configure => {}
                    Command::GiveBack { .. } => {
                        let left_bytes = 0;
                        self.scheduler.handle(self.now, GaveBack { worker, left_bytes }, &mut self.actions);
                    }
                    Command::Leave => {
                        self.scheduler.handle(self.now, Gone { worker }, &mut self.actions);
                        let reaped = Reaped { worker, generation, from_outside: false };
                        self.scheduler.handle(self.now, reaped, &mut self.actions);
                        self.comes.insert((self.now + self.start_ns, worker));
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    /// Lets time pass; who had a call that ended has another one.
    fn run_until(&mut self, end_ns: u64) {
        loop {
            let ends_ns = self.ends.first_key_value().map_or(u64::MAX, |((at_ns, _), _)| *at_ns);
            let comes_ns = self.comes.first().map_or(u64::MAX, |(at_ns, _)| *at_ns);
            let due_ns = self.scheduler.next_deadline_ns().unwrap_or(u64::MAX).max(self.now);
            let next_ns = ends_ns.min(comes_ns).min(due_ns);
            if next_ns > end_ns {
                self.now = end_ns;
                return;
            }
            self.now = next_ns;
            if comes_ns == next_ns {
                let (_, worker) = self.comes.pop_first().unwrap();
                self.comes(worker);
                self.carry_out();
            } else if ends_ns == next_ns {
                let ((_, id), worker) = self.ends.pop_first().unwrap();
                let finished = Finished { worker, id, verdict: Verdict::Well };
                let call = self.scheduler.handle(self.now, finished, &mut self.actions).unwrap();
                self.carry_out();
                self.submit(self.callers[call as usize]);
            } else {
                self.scheduler.handle(self.now, Tick {}, &mut self.actions);
                self.carry_out();
            }
        }
    }

    /// Time in which calls of a caller ran.
    fn had_ns(&self, caller: usize) -> u64 {
        let calls = self.started.iter().filter(|(started, _)| *started == caller).count() as u64;
        calls * self.loads[caller].call_ns
    }
}

fn loads() -> impl Strategy<Value = Vec<Load>> {
    let waiting = prop_oneof![Just(1u64), 2..20u64, Just(200)];
    let load = (waiting, 1..300u64, prop::bool::weighted(0.6));
    let load = load.prop_map(|(waiting, call_ms, whole)| Load { waiting, call_ns: call_ms * MS, whole });
    prop::collection::vec(load, 2..6)
}

/// Time in which a caller waits for its turn where it had nothing: each other has one call, and every change takes a
/// process's start, empty lanes, and a call that has the device when the process comes.
fn round_ns(loads: &[Load], start_ns: u64) -> u64 {
    let longest_ns = loads.iter().map(|load| load.call_ns).max().unwrap();
    (loads.len() as u64 + 1) * (3 * longest_ns + 2 * start_ns)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn every_caller_gets_its_share_beside_any_load_of_others(loads in loads(), workers in 1..3usize) {
        let mut device = Device::new(workers, 0, &loads);
        for (caller, load) in loads.iter().enumerate() {
            (0..load.waiting).for_each(|_| device.submit(caller));
        }
        let (time_ns, callers) = (60_000 * MS, loads.len() as u64);
        device.run_until(time_ns);
        let is_near = |had_ns: u64, share_ns: u64| had_ns + round_ns(&loads, 0) >= share_ns / 20 * 19;
        let mut others_ns = 0;
        for (caller, load) in loads.iter().enumerate() {
            let had_ns = device.had_ns(caller);
            match load.whole {
                true if !load.always_waits() => {}
                true => prop_assert!(is_near(had_ns, time_ns / callers), "{caller} had {} ms", had_ns / MS),
                false => others_ns += had_ns,
            }
        }
        let others = loads.iter().filter(|load| !load.whole && load.always_waits()).count() as u64;
        prop_assert!(is_near(others_ns, time_ns * others / callers), "others had {} ms", others_ns / MS);
    }

    #[test]
    fn no_caller_starves_where_processes_take_long_to_start(
        loads in loads(), workers in 1..3usize, start_ms in 1..1000u64
    ) {
        let mut device = Device::new(workers, start_ms * MS, &loads);
        for (caller, load) in loads.iter().enumerate() {
            (0..load.waiting).for_each(|_| device.submit(caller));
        }
        for _ in 0..3 {
            let before = device.started.len();
            device.run_until(device.now + 2 * round_ns(&loads, start_ms * MS));
            for caller in 0..loads.len() {
                prop_assert!(device.started[before..].iter().any(|(had, _)| *had == caller), "{caller} waits");
            }
        }
    }

    #[test]
    fn a_new_caller_waits_for_a_call_of_each_other_at_most(loads in loads(), whole in any::<bool>()) {
        let mut loads = loads;
        loads.iter_mut().for_each(|load| load.waiting = load.waiting.max(10));
        let newcomer = loads.len();
        let mut device = Device::new(1, 0, &loads);
        for (caller, load) in loads.iter().enumerate() {
            (0..load.waiting).for_each(|_| device.submit(caller));
        }
        device.run_until(5_000 * MS);
        let before = device.started.len();
        loads.push(Load { waiting: 1, call_ns: MS, whole });
        device.loads = loads.clone();
        device.submit(newcomer);
        // Beside, each other caller may keep its worker for a residency, however short its calls are.
        device.run_until(device.now + round_ns(&loads, 0) + loads.len() as u64 * RESIDENCY_NS);
        let waited = device.started[before..].iter().position(|(caller, _)| *caller == newcomer);
        prop_assert!(waited.is_some(), "never started");
        let is_whole = |(caller, _): &&(usize, u64)| loads[*caller].whole;
        let first = device.started[before..][..waited.unwrap()].iter().filter(is_whole).count();
        prop_assert!(!whole || first <= loads.len(), "{first} calls before it");
    }
}

#[test]
fn a_thousand_calls_of_one_caller_delay_another_by_one() {
    let load = |waiting, whole| Load { waiting, call_ns: 10 * MS, whole };
    let mut device = Device::new(2, 0, &[load(1000, true), load(1, true), load(1, false)]);
    (0..1000).for_each(|_| device.submit(0));
    device.run_until(1005 * MS);
    let before = device.started.len();
    device.submit(1);
    device.submit(2);
    device.run_until(2000 * MS);
    let order: Vec<usize> = device.started[before..].iter().map(|(caller, _)| *caller).collect();
    assert!(order[..2].contains(&1), "{:?}", &order[..4]);
    assert!(order[..4].contains(&2), "{:?}", &order[..8]);
}

#[test]
fn who_is_never_idle_at_the_right_moment_gives_way_all_the_same() {
    let load = |waiting, ms| Load { waiting, call_ns: ms * MS, whole: false };
    let loads = [load(2, 33), load(1, 155), load(1, 104), load(1, 239)];
    let mut device = Device::new(2, 582 * MS, &loads);
    for (caller, load) in loads.iter().enumerate() {
        (0..load.waiting).for_each(|_| device.submit(caller));
    }
    device.run_until(60_000 * MS);
    for caller in 0..loads.len() {
        let starts = device.started.iter().filter(|(had, _)| *had == caller).map(|(_, at_ns)| *at_ns);
        let starts: Vec<_> = starts.chain([device.now]).collect();
        let longest_ns = starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        assert!(longest_ns < 10_000 * MS, "{caller} waited for {} ms", longest_ns / MS);
    }
}

#[test]
fn who_waits_for_a_worker_while_others_have_the_device_gets_what_it_missed() {
    let load = |waiting, ms, whole| Load { waiting, call_ns: ms * MS, whole };
    let loads = [load(3, 1, false), load(2, 66, true), load(1, 22, true)];
    let mut device = Device::new(2, 0, &loads);
    for (caller, load) in loads.iter().enumerate() {
        (0..load.waiting).for_each(|_| device.submit(caller));
    }
    device.run_until(60_000 * MS);
    let had_ns: Vec<u64> = (0..3).map(|caller| device.had_ns(caller)).collect();
    let (least, most) = (had_ns.iter().min().unwrap(), had_ns.iter().max().unwrap());
    assert!(least * 100 >= most * 99, "{had_ns:?}");
}
