//! What a scheduling decision costs: one that accepts a call, and one that ends one, while few or very many calls of very many
//! tenants wait. Four devices of the default shape with the router in front of them, as the supervisor puts them together,
//! but for the processes, which come at once. Decisions by which a worker changes hands, too, are counted apart; so are those
//! about weights that take the place of others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pappus_protocol::now_ns;
use pappus_supervisor::ids::{FunctionId, Generation, TenantId, TurnId, WorkerId};
use pappus_supervisor::routing::{Candidate, Routed, SharedHomes};
use pappus_supervisor::schedule::events::{Finished, Gone, Ready, StandbysReady, Submit, Tick, Yielded};
use pappus_supervisor::schedule::weights::{Weights, When};
use pappus_supervisor::schedule::{
    self, Action, CallId, CallSpec, Command, Domain, Job, Limits, Order, Scheduler, Sharing, Verdict,
};

use crate::Result;
use crate::harness::sampling::median;
use crate::report::{Report, Unit};
use crate::simulator::rules;

const DEVICES: usize = 4;
const TENANTS: u32 = 1000;
const DEPTHS: [u64; 4] = [10, 100, 1000, 10_000];
/// So many calls are accepted in a round, and as many ended.
const STEPS: u32 = 100_000;
/// What lies between two calls.
const STEP_NS: u64 = 100_000;
const TARGET_NS: f64 = 500.0;
/// What a device does with weights that come takes hundreds of times as long.
const WEIGHTS_TARGET_NS: f64 = 1000.0;
const EVICTIONS: u64 = 1000;
const LIMITS: Limits = Limits { calls: 1 << 20, bytes: u64::MAX, own_calls: u64::MAX, own_bytes: u64::MAX };

pub(super) fn measure(rounds: u32, report: &mut Report) -> Result<()> {
    let mut by_depth = Vec::new();
    for depth in DEPTHS {
        let mut means = [const { Vec::new() }; KINDS];
        for _ in 0..rounds {
            let spent = Host::new()?.steps(depth)?;
            means.iter_mut().zip(spent).for_each(|(means, mean)| means.extend(mean));
        }
        let [accept, end, change] = means.each_ref().map(|means| median(means));
        let title = format!("{depth} calls of {TENANTS} tenants wait on {DEVICES} devices");
        report.at_most(TARGET_NS, format!("{title}: to accept one"), accept, Unit::Nanoseconds);
        report.at_most(TARGET_NS, format!("{title}: to end one"), end, Unit::Nanoseconds);
        report.info(format!("{title}: either, and a worker changes hands"), change, Unit::Nanoseconds);
        by_depth.push(accept + end);
    }
    let ratio = by_depth[DEPTHS.len() - 1] / by_depth[0];
    report.info("to accept one and to end one, 10 000 calls wait / 10", ratio, Unit::Ratio);
    for functions in [DEPTHS[0], DEPTHS[DEPTHS.len() - 1]] {
        let rounds: Result<Vec<f64>> = (0..rounds).map(|_| weights(functions)).collect();
        let title = format!("weights of {functions} functions fill a device: others take the place of one");
        report.at_most(WEIGHTS_TARGET_NS, title, median(&rounds?), Unit::Nanoseconds);
    }
    Ok(())
}

/// The nanoseconds of a decision about weights that do not fit beside those that are there, until they are.
fn weights(functions: u64) -> Result<f64> {
    const BYTES: u64 = 2 << 20;
    let (mut weights, mut evicted, worker) =
        (Weights::<u64>::new(functions * BYTES), Vec::new(), WorkerId::new(0));
    let mut bring = |function: u64| -> Result<()> {
        let id = FunctionId::new(function);
        weights
            .claim(id, worker, BYTES, When::Now, u64::MAX, &mut evicted)
            .map_err(|why| format!("{why:?}"))?;
        weights.loaded(id, worker, Some(function), BYTES);
        evicted.drain(..).for_each(|gone| weights.uninstalled(gone, worker));
        Ok(())
    };
    (0..functions).try_for_each(&mut bring)?;
    let begin = Instant::now();
    (functions..functions + EVICTIONS).try_for_each(&mut bring)?;
    Ok(begin.elapsed().as_nanos() as f64 / EVICTIONS as f64)
}

/// Kinds of decisions: a call is accepted, one is ended, either with a worker that changes hands.
const KINDS: usize = 3;
const ACCEPT: usize = 0;
const END: usize = 1;
const CHANGE: usize = 2;

/// What decisions of one kind took, and how many there were.
#[derive(Debug, Clone, Copy, Default)]
struct Spent {
    time: Duration,
    count: u32,
}

/// What reading the clock takes, of which a decision's time has one.
fn clock_ns() -> f64 {
    let start = Instant::now();
    let times = 10_000;
    for _ in 0..times {
        std::hint::black_box(Instant::now());
    }
    start.elapsed().as_nanos() as f64 / f64::from(times)
}

/// A call: where it was routed, which counts until it is over.
#[derive(Debug, Clone)]
#[expect(dead_code, reason = "it is kept, and looked at by none")]
struct Call(Arc<Routed>);

impl schedule::Call for Call {
    type Memory = ();
}

/// Devices and the router.
struct Host {
    homes: Arc<SharedHomes>,
    devices: Vec<Device>,
    now_ns: u64,
    random: u64,
    lanes: u32,
    workers: usize,
    next_device: usize,
    spent: [Spent; KINDS],
}

/// A scheduler with the least of a world around it.
struct Device {
    scheduler: Scheduler<Call>,
    actions: Vec<Action<Call>>,
    running: Vec<(WorkerId, CallId)>,
    /// Turns that are to be given back.
    revoked: Vec<(WorkerId, TurnId)>,
    wanted: Vec<WorkerId>,
    leaving: Vec<WorkerId>,
    generation: u64,
}

impl Host {
    fn new() -> Result<Self> {
        let shape = rules::shape("")?;
        let device = || Device {
            scheduler: Scheduler::new(shape),
            actions: Vec::new(),
            running: Vec::new(),
            revoked: Vec::new(),
            wanted: vec![WorkerId::new(0)],
            leaving: Vec::new(),
            generation: 0,
        };
        let mut devices: Vec<Device> = (0..DEVICES).map(|_| device()).collect();
        for device in &mut devices {
            let ready = StandbysReady { count: shape.workers };
            device.scheduler.handle(0, ready, &mut device.actions);
        }
        let homes = SharedHomes::new(DEVICES);
        let (next_device, spent) = (0, [Spent::default(); KINDS]);
        let (lanes, workers) = (shape.lanes, shape.workers);
        Ok(Self { homes, devices, now_ns: 1, random: 1, lanes, workers, next_device, spent })
    }

    fn queued(&self) -> u64 {
        self.devices.iter().map(|device| device.scheduler.queued()).sum()
    }

    /// The mean nanoseconds of decisions of each kind, where there were some, while about so many calls wait.
    fn steps(&mut self, depth: u64) -> Result<[Option<f64>; KINDS]> {
        self.hold(depth, STEPS / 2)?;
        self.spent = [Spent::default(); KINDS];
        self.hold(depth, STEPS)?;
        let clock_ns = clock_ns();
        let mean = |spent: Spent| spent.time.as_nanos() as f64 / f64::from(spent.count) - clock_ns;
        Ok(self.spent.map(|spent| (spent.count > 0).then(|| mean(spent))))
    }

    /// Accepts so many calls, and ends as many as keep the number of those that wait about the same.
    fn hold(&mut self, depth: u64, steps: u32) -> Result<()> {
        let mut accepted = 0;
        while accepted < steps {
            let ends = self.queued() > depth && self.devices.iter().any(|device| !device.running.is_empty());
            let start = Instant::now();
            let at = match ends {
                true => self.end()?,
                false => self.accept()?,
            };
            let time = start.elapsed();
            let kind = match (self.devices[at].leaving.is_empty(), ends) {
                (false, _) => CHANGE,
                (true, true) => END,
                (true, false) => ACCEPT,
            };
            self.spent[kind].time += time;
            self.spent[kind].count += 1;
            accepted += u32::from(!ends);
            self.settle();
        }
        Ok(())
    }

    fn settle(&mut self) {
        let now_ns = self.now_ns;
        self.devices.iter_mut().for_each(|device| device.settle(now_ns));
    }

    /// A call of any of the tenants; which device it went to.
    fn accept(&mut self) -> Result<usize> {
        self.now_ns += STEP_NS;
        // Knuth's MMIX generator; its high bits are the random ones.
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let owner = TenantId::new((self.random >> 33) as u32 % TENANTS);
        let (domain, function) = (Domain { owner, caller: owner }, FunctionId::new(1));
        let (lanes, workers) = (self.lanes, self.workers);
        let able = |device| Some(Candidate { device, lanes, workers, weights_ns: 0 });
        let routed = self.homes.route(now_ns, domain, function, &able).ok_or("no device for a call")?;
        let at = routed.device();
        let spec = CallSpec {
            domain,
            function,
            bytes: 1,
            deadline_ns: self.now_ns + 30_000_000_000,
            memory_bytes: 1 << 20,
            stack_bytes: 0,
            weight_bytes: 0,
            sharing: Sharing::Never,
            batch: None,
        };
        let device = &mut self.devices[at];
        let submit = Submit { call: Call(Arc::new(routed)), spec, limits: LIMITS };
        device.scheduler.handle(self.now_ns, submit, &mut device.actions)?;
        device.carry_out();
        Ok(at)
    }

    /// A running call ends, on one device after the other; which one.
    fn end(&mut self) -> Result<usize> {
        for _ in 0..DEVICES {
            self.next_device = (self.next_device + 1) % DEVICES;
            let device = &mut self.devices[self.next_device];
            let Some((worker, id)) = device.running.pop() else { continue };
            let finished = Finished { worker, id, verdict: Verdict::Well };
            let ended = device.scheduler.handle(self.now_ns, finished, &mut device.actions);
            // The router is told when it is dropped.
            drop(ended.ok_or("the scheduler does not know a call it started")?);
            device.carry_out();
            break;
        }
        Ok(self.next_device)
    }
}

impl Device {
    /// Processes come where they are wanted, turns are given back, the clock ticks.
    fn settle(&mut self, now_ns: u64) {
        while !(self.leaving.is_empty() && self.wanted.is_empty()) {
            while let Some(worker) = self.leaving.pop() {
                self.scheduler.handle(now_ns, Gone { worker }, &mut self.actions);
            }
            self.carry_out();
            while let Some(worker) = self.wanted.pop() {
                self.generation += 1;
                let ready = Ready { worker, generation: Generation::new(self.generation) };
                self.scheduler.handle(now_ns, ready, &mut self.actions);
            }
            self.carry_out();
        }
        // One turn at a time: the next holder is told at once that others wait.
        while let Some((worker, turn)) = self.revoked.pop() {
            let yielded = Yielded { worker, turn, used_ns: 0, answered: 0 };
            let had_it = self.scheduler.handle(now_ns, yielded, &mut self.actions);
            self.carry_out();
            if had_it {
                break;
            }
        }
        if self.scheduler.next_deadline_ns().is_some_and(|at_ns| at_ns <= now_ns) {
            self.scheduler.handle(now_ns, Tick {}, &mut self.actions);
            self.carry_out();
        }
    }

    fn carry_out(&mut self) {
        for action in self.actions.drain(..) {
            match action {
                Action::Tell { to, command: Command::Start { job: Job { id, .. }, .. } } => {
                    self.running.push((to.worker, id))
                }
                Action::Tell { to, command: Command::Leave } => self.leaving.push(to.worker),
                Action::Tell { to, command: Command::Turn(Order::Revoke { turn }) } => {
                    self.revoked.push((to.worker, turn))
                }
                Action::Bring { worker } => self.wanted.push(worker),
                _ => {}
            }
        }
    }
}
