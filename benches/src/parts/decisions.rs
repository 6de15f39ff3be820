//! What a scheduling decision costs: one that accepts a call, and one that ends one, while few or very many calls of very many
//! tenants wait. Four devices of the default shape with the router in front of them, as the supervisor puts them together,
//! but for the processes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pappus_protocol::now_ns;
use pappus_supervisor::ids::{FunctionId, Generation, TenantId, TurnId, WorkerId};
use pappus_supervisor::placement::{Candidate, Placement, Routed};
use pappus_supervisor::schedule::events::{Finished, Gone, Ready, Submit, Tick, Yielded};
use pappus_supervisor::schedule::{Action, CallId, Command, Domain, Limits, Scheduler, Terms, Verdict};

use crate::Result;
use crate::harness::sampling::median;
use crate::report::{Report, Unit};
use crate::simulator::rules;

const DEVICES: usize = 4;
const TENANTS: u32 = 1000;
const DEPTHS: [u64; 4] = [10, 100, 1000, 10_000];
/// One call answered and another accepted, so many times a round.
const STEPS: u32 = 100_000;
/// How long a call runs, and what lies between two steps.
const STEP_NS: u64 = 2_000;
const TARGET_NS: f64 = 500.0;
const LIMITS: Limits = Limits { calls: 1 << 20, bytes: u64::MAX };

pub(super) fn measure(rounds: u32, report: &mut Report) -> Result<()> {
    let mut by_depth = Vec::new();
    for depth in DEPTHS {
        let (mut accept, mut end) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let mut host = Host::new()?;
            host.fill(depth)?;
            let (accepting, ending) = host.steps()?;
            accept.push(accepting);
            end.push(ending);
        }
        let title = format!("{depth} calls of {TENANTS} tenants wait on {DEVICES} devices");
        report.at_most(TARGET_NS, format!("{title}: to accept one"), median(&accept), Unit::Nanoseconds);
        report.at_most(TARGET_NS, format!("{title}: to end one"), median(&end), Unit::Nanoseconds);
        by_depth.push(median(&accept) + median(&end));
    }
    let ratio = by_depth[DEPTHS.len() - 1] / by_depth[0];
    report.info("both decisions, 10 000 calls wait / 10", ratio, Unit::Ratio);
    Ok(())
}

/// A call: where it was routed.
type Call = Arc<Routed>;

/// Devices and the router.
struct Host {
    placement: Arc<Placement>,
    devices: Vec<Device>,
    now_ns: u64,
    random: u64,
    lanes: u32,
    next_device: usize,
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
        let devices = (0..DEVICES).map(|_| device()).collect();
        let placement = Placement::new(DEVICES);
        Ok(Self { placement, devices, now_ns: 1, random: 1, lanes: shape.lanes, next_device: 0 })
    }

    fn queued(&self) -> u64 {
        self.devices.iter().map(|device| device.scheduler.queued()).sum()
    }

    /// Calls come until so many wait.
    fn fill(&mut self, depth: u64) -> Result<()> {
        while self.queued() < depth {
            let device = self.accept()?;
            self.devices[device].settle(self.now_ns);
        }
        Ok(())
    }

    /// Nanoseconds to accept a call, and to end one, without what is done for processes that come and go.
    fn steps(&mut self) -> Result<(f64, f64)> {
        let (mut accepting, mut ending) = (Duration::ZERO, Duration::ZERO);
        // A batch of each, so that reading the clock costs little.
        const BATCH: u32 = 8;
        for _ in 0..STEPS / BATCH {
            let start = Instant::now();
            for _ in 0..BATCH {
                self.accept()?;
            }
            accepting += start.elapsed();
            self.settle();
            let start = Instant::now();
            let mut ended = Vec::with_capacity(BATCH as usize);
            for _ in 0..BATCH {
                ended.extend(self.end()?);
            }
            ending += start.elapsed();
            self.settle();
        }
        Ok((accepting.as_nanos() as f64 / f64::from(STEPS), ending.as_nanos() as f64 / f64::from(STEPS)))
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
        let lanes = self.lanes;
        let able = |device| Some(Candidate { device, lanes, weights_ns: 0 });
        let routed = self.placement.route(now_ns, domain, function, &able).ok_or("no device for a call")?;
        let at = routed.device();
        let terms = Terms {
            domain,
            function,
            bytes: 1,
            deadline_ns: self.now_ns + 30_000_000_000,
            memory_bytes: 1 << 20,
            stack_bytes: 0,
            weight_bytes: 0,
        };
        let device = &mut self.devices[at];
        let submit = Submit { call: Arc::new(routed), terms, limits: LIMITS };
        device.scheduler.handle(self.now_ns, submit, &mut device.actions)?;
        device.carry_out();
        Ok(at)
    }

    /// A running call ends, on one device after the other; what of it is still to be dropped.
    fn end(&mut self) -> Result<Option<Call>> {
        for _ in 0..DEVICES {
            self.next_device = (self.next_device + 1) % DEVICES;
            let device = &mut self.devices[self.next_device];
            let Some((worker, id)) = device.running.pop() else { continue };
            let finished = Finished { worker, id, verdict: Verdict::Well };
            let ended = device.scheduler.handle(self.now_ns, finished, &mut device.actions);
            let call = ended.ok_or("the scheduler does not know a call it started")?;
            device.carry_out();
            return Ok(Some(call));
        }
        Ok(None)
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
            let yielded = Yielded { worker, turn, used_ns: 0 };
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
                Action::Tell { to, command: Command::Start { id, .. } } => self.running.push((to.worker, id)),
                Action::Tell { to, command: Command::Leave } => self.leaving.push(to.worker),
                Action::Tell { to, command: Command::Revoke { turn } } => self.revoked.push((to.worker, turn)),
                Action::Bring { worker } => self.wanted.push(worker),
                _ => {}
            }
        }
    }
}
