//! What a scheduling decision costs while very many calls of very many tenants wait.

use std::time::{Duration, Instant};

use pappus_supervisor::ids::{FunctionId, Generation, TenantId, WorkerId};
use pappus_supervisor::schedule::events::{Finished, Gone, Ready, Submit};
use pappus_supervisor::schedule::{
    Action, CallId, Command, Domain, Limits, Scheduler, Shape, Terms, Verdict,
};

use crate::Result;
use crate::harness::sampling::median;
use crate::report::{Report, Unit};

const DOMAINS: u32 = 1000;
const QUEUED: u64 = 10_000;
const WORKERS: usize = 2;
/// One call answered and another accepted, so many times a round.
const STEPS: u32 = 100_000;
const TARGET_NS: f64 = 500.0;
const LIMITS: Limits =
    Limits { calls: QUEUED * 2, bytes: u64::MAX, own_calls: u64::MAX, own_bytes: u64::MAX };

pub(super) fn measure(rounds: u32, report: &mut Report) -> Result<()> {
    let mut steps = Vec::new();
    let mut replacements = Vec::new();
    for _ in 0..rounds {
        let mut device = Device::new();
        while device.scheduler.queued() < QUEUED {
            device.submit()?;
        }
        let start = Instant::now();
        let mut replacing = Duration::ZERO;
        let mut replaced = 0;
        for _ in 0..STEPS {
            device.submit()?;
            device.finish()?;
            let (time, count) = device.replace();
            replacing += time;
            replaced += count;
        }
        steps.push((start.elapsed() - replacing).as_nanos() as f64 / f64::from(STEPS));
        replacements.push(replacing.as_nanos() as f64 / f64::from(replaced.max(1)));
    }
    let what = "decisions to accept a call and to end one, 10 000 calls of 1000 tenants wait";
    report.at_most(TARGET_NS, what, median(&steps), Unit::Nanoseconds);
    let what = "decisions around a worker that is replaced, of which there are far fewer";
    report.info(what, median(&replacements), Unit::Nanoseconds);
    Ok(())
}

/// A scheduler with the least of a world around it.
struct Device {
    scheduler: Scheduler<u64>,
    actions: Vec<Action<u64>>,
    running: Vec<(WorkerId, CallId)>,
    leaving: Vec<WorkerId>,
    now_ns: u64,
    random: u64,
    generation: u64,
}

impl Device {
    fn new() -> Self {
        let mut device = Self {
            // Workers change hands at once: how long a domain keeps one is not what is measured.
            scheduler: Scheduler::new(Shape { residency_ns: 0, ..Shape::new(WORKERS, 1) }),
            actions: Vec::new(),
            running: Vec::new(),
            leaving: Vec::new(),
            now_ns: 1,
            random: 1,
            generation: 0,
        };
        WorkerId::first(WORKERS).for_each(|worker| device.ready(worker));
        device
    }

    /// A call of any of the tenants.
    fn submit(&mut self) -> Result<()> {
        self.now_ns += 1000;
        // Knuth's MMIX generator; its high bits are the random ones.
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let owner = TenantId::new((self.random >> 33) as u32 % DOMAINS);
        let terms = Terms {
            domain: Domain { owner, caller: owner },
            function: FunctionId::new(1),
            bytes: 1,
            deadline_ns: self.now_ns + 30_000_000_000,
            memory_bytes: 1 << 20,
            stack_bytes: 0,
            weight_bytes: 0,
        };
        let submit = Submit { call: self.now_ns, terms, limits: LIMITS };
        self.scheduler.handle(self.now_ns, submit, &mut self.actions)?;
        self.carry_out();
        Ok(())
    }

    /// A running call ends.
    fn finish(&mut self) -> Result<()> {
        let Some((worker, id)) = self.running.pop() else {
            return Ok(());
        };
        let finished = Finished { worker, id, verdict: Verdict::Well };
        let ended = self.scheduler.handle(self.now_ns, finished, &mut self.actions);
        ended.ok_or("the scheduler does not know a call it started")?;
        self.carry_out();
        Ok(())
    }

    /// Workers that were to leave are gone, and fresh ones are there; how long deciding that took.
    fn replace(&mut self) -> (Duration, u32) {
        if self.leaving.is_empty() {
            return (Duration::ZERO, 0);
        }
        let start = Instant::now();
        let mut count = 0;
        while let Some(worker) = self.leaving.pop() {
            self.scheduler.handle(self.now_ns, Gone { worker }, &mut self.actions);
            self.ready(worker);
            count += 1;
        }
        (start.elapsed(), count)
    }

    fn ready(&mut self, worker: WorkerId) {
        self.generation += 1;
        let ready = Ready { worker, generation: Generation::new(self.generation) };
        self.scheduler.handle(self.now_ns, ready, &mut self.actions);
        self.carry_out();
    }

    fn carry_out(&mut self) {
        for action in self.actions.drain(..) {
            match action {
                Action::Tell { to, command: Command::Start { id, .. } } => self.running.push((to.worker, id)),
                Action::Tell { to, command: Command::Leave } => self.leaving.push(to.worker),
                _ => {}
            }
        }
    }
}
