//! Random sequences of events, checked against what must always hold.

use std::collections::{BTreeMap, HashMap, HashSet};

use proptest::prelude::*;

use super::*;
use crate::ids::{FunctionId, Generation};
use crate::schedule::events::{
    Allow, Buried, Cancel, Clearing, FellApart, Finished, Gone, Outlasted, Ready, Scrubbed, SetPolicy,
    StandbysReady, Submit, Tick, Yielded, Yielding,
};
use crate::schedule::limits::{CLEAR_NS, OVERRUN_QUANTA};
use crate::schedule::{Address, Domain, Ended, Loss, Order, Outlast};

#[path = "event_model.rs"]
mod event;
#[path = "memory_model.rs"]
mod memory;
#[path = "play_model.rs"]
mod play;
#[path = "resizing_model.rs"]
mod resizing;
#[path = "shape_model.rs"]
mod shape;
#[path = "start_model.rs"]
mod start;
#[path = "trouble_model.rs"]
mod trouble;
#[path = "weights_model.rs"]
mod weights;
use event::events;
use memory::{Dying, Memory, batch, has_weights, sharing};
use play::play;
use shape::{Granted, policies, shapes};
use trouble::{Admits, Trouble};
use weights::Weights;

const LIMITS: Limits = Limits { calls: 1000, bytes: 1 << 20, own_calls: 1000, own_bytes: 1 << 20 };
const MS: u64 = 1_000_000;
/// All memory of the device. Calls that need more than half have it for themselves.
const MEMORY: u64 = 100;
/// What a process takes for itself, and a function's weights.
const OTHERS: u64 = 10;
/// A caller that may be lent less, and how much.
const LIMITED: (TenantId, u64) = (TenantId::new(4), 60);

/// A call as the outside world knows it.
#[derive(Debug)]
struct Known {
    domain: TenantId,
    function: FunctionId,
    memory: u64,
    /// It needs the device for itself.
    whole: bool,
    id: Option<CallId>,
    running: Option<(WorkerId, u32)>,
    lost: bool,
    /// Until when what it wrote may take to be cleared, while that goes on.
    clearing_ns: Option<u64>,
    deadline_ns: u64,
    suspect: bool,
    detached: bool,
    overran: bool,
    /// Its process is killed for its sake.
    paid: bool,
    /// It was on another device meanwhile.
    came_back: bool,
    /// It took too long in a shared worker.
    moved_out: bool,
    /// It was in a job that failed.
    apart: bool,
    /// It was given to a process, be it in vain.
    started: bool,
    /// When that was, the last time.
    started_ns: u64,
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
    serves: HashMap<WorkerId, TenantId>,
    /// Since when they do.
    since: HashMap<WorkerId, u64>,
    scrubbing: HashSet<WorkerId>,
    /// Some call needed the whole device, or memory of processes, for which workers are taken at any time.
    whole_wanted: bool,
    /// Slots that are to get a process.
    wanted: HashSet<WorkerId>,
    /// What contexts take.
    contexts: u64,
    /// True if a worker's process waits for what it takes for itself.
    context_awaited: bool,
    /// What workers have to say of weights.
    weights: Weights,
    shape: Shape,
    /// Slots that there are: as many as there could be processes at some time.
    slots: usize,
    /// The shortest quantum so far.
    quantum_us: u32,
    /// What may be had of the device's memory at most: more than there is after it became less.
    at_most: u64,
    holders: BTreeMap<WorkerId, Granted>,
    /// Processes in slots: generation, number of commands, memory.
    processes: HashMap<WorkerId, (u64, u64, Memory)>,
    dying: Vec<Dying>,
    trouble: Trouble,
}

impl World {
    fn new(shape: Shape, policy: Policy) -> Self {
        let mut scheduler = Scheduler::new(shape);
        scheduler.handle(0, SetPolicy { policy }, &mut Vec::new());
        let allow = Allow { tenant: LIMITED.0, most_bytes: Some(LIMITED.1) };
        scheduler.handle(0, allow, &mut Vec::new());
        Self {
            scheduler,
            actions: Vec::new(),
            now: 0,
            generation: 0,
            calls: HashMap::new(),
            present: HashSet::new(),
            serves: HashMap::new(),
            since: HashMap::new(),
            scrubbing: HashSet::new(),
            whole_wanted: false,
            wanted: [WorkerId::new(0)].into(),
            contexts: 0,
            context_awaited: false,
            weights: Weights::default(),
            slots: shape.workers,
            quantum_us: 5000,
            at_most: shape.memory_bytes,
            shape,
            holders: BTreeMap::new(),
            processes: HashMap::new(),
            dying: Vec::new(),
            trouble: Trouble::new(policy),
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

    fn submit(&mut self, call: u64, domain: TenantId, function: FunctionId, deadline_ms: u64, memory: u64) {
        // No other tenant's function has the same weights.
        let own = FunctionId::new(10 + 2 * u64::from(domain.get()) + function.get());
        let function = if has_weights(call) { own } else { function };
        let is_probe = match self.trouble.admits(self.now, (function, domain)) {
            Admits::Never => false,
            Admits::All => false,
            Admits::Probe => true,
        };
        let is_suspect = is_probe || self.trouble.is_unproven(self.now, domain);
        let known = Known {
            domain,
            function,
            memory,
            whole: memory > self.shape.memory_bytes / 2,
            id: None,
            running: None,
            lost: false,
            clearing_ns: None,
            deadline_ns: self.now + deadline_ms * MS,
            suspect: is_suspect,
            detached: false,
            overran: false,
            paid: false,
            came_back: false,
            moved_out: false,
            apart: false,
            started: false,
            started_ns: 0,
            runs: 0,
        };
        self.calls.insert(call, known);
        self.whole_wanted |= memory > self.shape.memory_bytes / 2 || is_suspect && self.shape.shared_faults;
        let spec = CallSpec {
            domain: Domain { owner: domain, caller: domain },
            function,
            bytes: 1,
            deadline_ns: self.now + deadline_ms * MS,
            memory_bytes: memory,
            stack_bytes: 0,
            weight_bytes: if has_weights(call) { OTHERS } else { 0 },
            sharing: sharing(call),
            batch: batch(call),
        };
        match self.scheduler.handle(self.now, Submit { call, spec, limits: LIMITS }, &mut self.actions) {
            Ok(id) => {
                assert_ne!(self.trouble.admits(self.now, (function, domain)), Admits::Never, "{call}");
                if is_probe {
                    self.trouble.case((function, domain)).probe = Some(call);
                }
                self.calls.get_mut(&call).unwrap().id = Some(id);
            }
            Err(why) => {
                assert!(matches!(why, NotNow::Quarantined(_)), "{why}");
                assert_eq!(self.trouble.admits(self.now, (function, domain)), Admits::Never, "{call}");
                self.calls.remove(&call);
            }
        }
    }

    fn finish(&mut self, pick: usize, verdict: Verdict) {
        let running = self.running();
        let Some(&(call, worker)) = running.get(pick % running.len().max(1)) else { return };
        let known = self.calls.remove(&call).unwrap();
        match verdict {
            Verdict::Well => self.trouble.ended_well(self.now, (known.function, known.domain)),
            Verdict::Fault => self.trouble.failed(self.now, (known.function, known.domain), call),
            Verdict::Neither => self.trouble.ended(call),
        }
        assert_eq!(
            self.scheduler.handle(
                self.now,
                Finished { worker, id: known.id.unwrap(), verdict },
                &mut self.actions
            ),
            Some(call)
        );
    }

    /// True if all domains share a worker.
    fn is_shared(&self, worker: WorkerId) -> bool {
        worker.get() < self.shape.shared_workers
    }

    /// A shared worker says that a call took too long: it begins again elsewhere if that is so.
    fn outlast(&mut self, pick: usize) {
        let running = self.running();
        let Some(&(call, worker)) = running.get(pick % running.len().max(1)) else { return };
        let (is_shared, limit_ns) = (self.is_shared(worker), self.shape.shared_limit_ns);
        let known = self.calls.get_mut(&call).unwrap();
        let was_long = self.now - known.started_ns >= limit_ns && known.deadline_ns > self.now;
        let expected = is_shared && self.present.contains(&worker) && was_long && !known.detached;
        if expected {
            (known.running, known.moved_out) = (None, true);
            known.waits_again(&self.shape);
            known.runs -= 1;
        }
        let id = known.id.unwrap();
        let outlast = self.scheduler.handle(self.now, Outlasted { worker, id }, &mut self.actions);
        assert_eq!(outlast == Outlast::BeginsAgain, expected);
    }

    /// A job failed, of which this is said of one call.
    fn fall_apart(&mut self, pick: usize) {
        let running = self.running();
        let Some(&(call, worker)) = running.get(pick % running.len().max(1)) else { return };
        let known = self.calls.get_mut(&call).unwrap();
        let was_in_job = batch(call).is_some() && !known.apart && !known.whole && !known.suspect;
        let expected = was_in_job && known.deadline_ns > self.now && !known.detached;
        if expected {
            (known.running, known.apart) = (None, true);
            known.waits_again(&self.shape);
            known.runs -= 1;
        }
        let id = known.id.unwrap();
        assert_eq!(self.scheduler.handle(self.now, FellApart { worker, id }, &mut self.actions), expected);
    }

    fn gone(&mut self, worker: WorkerId, from_outside: bool) {
        let mut drawn = None;
        // Not if it was told to leave, or is killed already.
        if self.present.contains(&worker)
            && !self.shape.shared_faults
            && let Some(domain) = self.serves.get(&worker)
        {
            drawn = Some(*domain);
        }
        let lost = self.scheduler.handle(self.now, Gone { worker }, &mut self.actions);
        if let Some((generation, _, memory)) = self.processes.remove(&worker) {
            self.dying.push(Dying { worker, generation, memory, from_outside, drawn });
        }
        for (id, call) in lost {
            let known = self.calls.get_mut(&call).unwrap();
            assert_eq!((known.running.take().map(|at| at.0), known.id), (Some(worker), Some(id)));
            known.lost = true;
        }
        assert!(!self.running().iter().any(|(_, w)| *w == worker), "a lost call is missing");
        self.present.remove(&worker);
        self.serves.remove(&worker);
        self.since.remove(&worker);
        self.scrubbing.remove(&worker);
        self.holders.remove(&worker);
        self.weights.gone(worker);
    }

    fn clear(&mut self, pick: usize) {
        let lost = self.lost();
        let Some(&call) = lost.get(pick % lost.len().max(1)) else { return };
        let (known, now) = (self.calls.get_mut(&call).unwrap(), self.now);
        let until = self.scheduler.handle(now, Clearing { id: known.id.unwrap() }, &mut self.actions);
        assert_eq!(until.is_none(), known.clearing_ns.is_some(), "cleared twice");
        if let Some(until_ns) = until {
            assert!(until_ns >= now + CLEAR_NS);
            known.clearing_ns = Some(until_ns);
        }
    }

    fn bury(&mut self, pick: usize, loss: Loss) {
        let lost = self.lost();
        let Some(&call) = lost.get(pick % lost.len().max(1)) else { return };
        let id = self.calls[&call].id.unwrap();
        let over = self.scheduler.handle(self.now, Buried { id, loss }, &mut self.actions);
        let known = self.calls.get_mut(&call).unwrap();
        known.lost = false;
        let late = known.deadline_ns <= self.now;
        known.clearing_ns = None;
        assert!(!late || over.is_some(), "runs again after its deadline");
        match over {
            Some((ended, why)) => {
                assert_eq!(ended, call);
                let may_be_guilty = known.suspect && loss == Loss::InIt;
                assert!(why != Ended::Guilty || may_be_guilty, "guilty the first time");
                assert!(why != Ended::Detached || known.detached);
                assert!(why != Ended::Overran || known.overran && loss == Loss::InIt);
                let may_be_interrupted =
                    known.runs == 3 && matches!(loss, Loss::EndedFromOutside | Loss::Unexplained);
                assert!(why != Ended::Interrupted || may_be_interrupted);
                let known = self.calls.remove(&call).unwrap();
                if why == Ended::Guilty {
                    if self.shape.shared_faults {
                        self.trouble.draw(self.now, known.domain);
                    }
                    self.trouble.failed(self.now, (known.function, known.domain), call);
                }
                let is_open = matches!(why, Ended::Deadline | Ended::Detached);
                if self.shape.shared_faults
                    && is_open
                    && !known.paid
                    && matches!(loss, Loss::InIt | Loss::Unexplained)
                {
                    let since = (loss == Loss::InIt).then_some(known.started_ns);
                    self.trouble.left_open(self.now, (known.function, known.domain), since);
                }
                self.trouble.ended(call);
            }
            None => {
                assert!(!known.detached, "runs again although its caller left");
                assert!(!(known.suspect && loss == Loss::InIt), "runs again though it is guilty");
                known.waits_again(&self.shape);
                match loss {
                    Loss::InIt | Loss::Unexplained => {
                        known.suspect = true;
                        self.whole_wanted |= self.shape.shared_faults;
                    }
                    Loss::NeverHanded => known.runs -= 1,
                    Loss::EndedFromOutside => assert!(known.runs < 3),
                }
            }
        }
    }

    fn ready(&mut self, worker: WorkerId) {
        if self.present.contains(&worker) {
            return;
        }
        if self.processes.contains_key(&worker) {
            self.gone(worker, false);
            self.apply();
        }
        if self.wanted.remove(&worker) {
            self.present.insert(worker);
            self.generation += 1;
            let memory = Memory::new(self.shape.lanes);
            self.processes.insert(worker, (self.generation, 0, memory));
            self.scheduler.handle(
                self.now,
                Ready { worker, generation: Generation::new(self.generation) },
                &mut self.actions,
            );
        }
    }

    /// A worker forgot its domain.
    fn scrubbed(&mut self, worker: WorkerId) {
        if self.scrubbing.remove(&worker) {
            self.serves.remove(&worker);
            self.since.remove(&worker);
            self.present.insert(worker);
            self.weights.gone(worker);
            assert!(self.scheduler.handle(self.now, Scrubbed { worker }, &mut self.actions));
        }
    }

    /// A worker is taken from its domain.
    fn taken(&mut self, worker: WorkerId) {
        assert!(!self.running().iter().any(|(_, w)| *w == worker), "a busy worker taken");
        assert!(self.present.remove(&worker), "taken twice");
        let kept_ns = self.since.get(&worker).map_or(u64::MAX, |since| self.now - since);
        let may_be_taken = self.whole_wanted || self.left_for_memory(worker);
        assert!(may_be_taken || kept_ns >= self.shape.residency_ns, "taken after {kept_ns} ns");
    }

    fn cancel(&mut self, call: u64) {
        let Some(known) = self.calls.get_mut(&call) else { return };
        let waits = known.running.is_none() && !known.lost;
        known.detached |= !waits;
        let cancelled = self.scheduler.handle(self.now, Cancel { id: known.id.unwrap() }, &mut self.actions);
        assert_eq!(cancelled, waits.then_some(call));
        if waits {
            self.calls.remove(&call);
            self.trouble.ended(call);
        }
    }

    fn yields(&mut self, used_ms: u64) {
        let revoked: Vec<_> = self.holders.iter().filter(|(_, holder)| holder.revoked).collect();
        let pick = used_ms as usize % revoked.len().max(1);
        if let Some((worker, turn)) = revoked.get(pick).map(|(worker, holder)| (**worker, holder.turn)) {
            assert!(self.scheduler.handle(
                self.now,
                Yielding { worker, turn: TurnId::new(turn) },
                &mut self.actions
            ));
            self.apply();
            self.holders.remove(&worker);
            assert!(self.scheduler.handle(
                self.now,
                Yielded { worker, turn: TurnId::new(turn), used_ns: used_ms * MS, answered: 0 },
                &mut self.actions
            ));
        }
    }

    /// Commands are numbered in the order in which they are decided.
    fn told(&mut self, worker: WorkerId, generation: u64, nth: u64) {
        let (current, commands, _) =
            self.processes.get_mut(&worker).expect("told to a process that is not there");
        assert_eq!((*current, *commands), (generation, nth), "worker {worker}");
        *commands += 1;
    }

    /// Carries out what was decided, and what was decided because of it.
    fn apply(&mut self) {
        for round in 0.. {
            assert!(round < 1000, "decisions without an end: {:?}", self.actions);
            self.carry_out();
            if self.actions.is_empty() {
                break;
            }
        }
        self.check_standstill();
    }

    fn carry_out(&mut self) {
        // A worker belongs to a domain before it has a call, while memory moves.
        for worker in self.present.iter().copied() {
            if let Some(domain) = self.scheduler.workers[worker].served() {
                self.serves.entry(worker).or_insert(domain.caller);
                self.since.entry(worker).or_insert(self.now);
            }
        }
        for action in std::mem::take(&mut self.actions) {
            match action {
                Action::Tell { to: Address { worker, generation, nth }, command } => {
                    self.told(worker, generation.get(), nth);
                    self.command(worker, command);
                }
                Action::Expired { call, .. } => {
                    let known = self.calls.remove(&call).expect("expired and not open");
                    assert!(known.running.is_none() && !known.lost);
                    self.trouble.ended(call);
                }
                Action::Refused { call, .. } => {
                    let known = self.calls.remove(&call).expect("refused and not open");
                    assert!(known.running.is_none() && !known.lost && !known.suspect);
                    let admits = self.trouble.admits(self.now, (known.function, known.domain));
                    assert_eq!(admits, Admits::Never, "{call} refused for nothing");
                }
                Action::NotCleared { call } => {
                    let known = self.calls.remove(&call).expect("not cleared and not open");
                    assert!(known.lost && (known.detached || known.clearing_ns.unwrap() <= self.now));
                    self.trouble.ended(call);
                }
                Action::Kill { worker, why, .. } => self.killed(worker, why),
                Action::Bring { worker } => {
                    assert!(!self.present.contains(&worker) && self.wanted.insert(worker), "{worker} twice");
                }
                Action::OverQuota { call, .. } => {
                    let known = self.calls.remove(&call).expect("refused and not open");
                    assert!(known.running.is_none() && !known.lost && known.domain == LIMITED.0);
                    self.trouble.ended(call);
                }
                Action::Release { memory } => self.weights.released(memory),
            }
        }
        self.check_memory();
    }

    fn check_standstill(&self) {
        let running = self.running();
        assert_eq!(self.scheduler.running() as usize, running.len() + self.lost().len());
        assert_eq!((self.scheduler.queued() + self.scheduler.running()) as usize, self.calls.len());
        // No worker with calls waits for a grant that no other has, unless its tenant was fined.
        let may_wait = self.scheduler.turns.as_ref().is_none_or(Turns::keeps_waiting);
        if !may_wait && self.holders.is_empty() {
            assert_eq!(running, [], "the device stands still");
        }
        for (_, worker) in running {
            assert!(
                may_wait
                    || self.holders.values().any(|holder| holder.revoked)
                    || self.holders.contains_key(&worker),
                "a worker waits and the holder does not know"
            );
        }
    }

    fn command(&mut self, worker: WorkerId, command: Command<u64>) {
        match command {
            Command::Start { lane, alone, memory_bytes, until_ns, job, load } => {
                let call = job.call;
                let job: Vec<(CallId, u64)> = job.calls().map(|(id, call)| (id, *call)).collect();
                self.ends_in_time(worker, &job, until_ns);
                self.supplied(worker, call, load);
                self.processes.get_mut(&worker).unwrap().2.lent(lane, memory_bytes);
                let needs = job.iter().map(|(_, call)| self.calls[call].memory).sum::<u64>();
                assert!(memory_bytes >= needs, "{call} has too little");
                self.check_job(&job);
                for (at, (id, call)) in job.iter().enumerate() {
                    self.started(worker, lane, alone, *id, *call, &job[..at]);
                }
            }
            Command::Configure => {}
            Command::Load { call, load } => {
                assert!(has_weights(call) && self.calls[&call].running.is_none(), "{call} needs nothing");
                self.supplied(worker, call, Some(load));
            }
            Command::Unload { function } => self.weights.unload(worker, function),
            Command::Uninstall { .. } => unreachable!("no function goes"),
            Command::GiveBack { lanes } => {
                let busy =
                    |k: &Known| k.running.is_some_and(|(w, lane)| w == worker && lanes >> lane & 1 == 1);
                assert!(!self.calls.values().any(busy), "{lanes:b} of {worker} have calls");
                self.processes.get_mut(&worker).unwrap().2.gives(lanes);
            }
            Command::Leave => {
                let may_replace = !self.shape.scrubs || self.whole_wanted || self.left_for_memory(worker);
                assert!(may_replace, "replaced where it could be scrubbed");
                self.taken(worker);
            }
            Command::Scrub => {
                assert!(self.shape.scrubs);
                self.taken(worker);
                self.scrubbing.insert(worker);
            }
            Command::Turn(Order::Grant { turn, .. }) => {
                let long_ns = OVERRUN_QUANTA * u64::from(self.quantum_us) * 1000;
                let overran = |holder: &Granted| holder.revoked && self.now >= holder.granted_ns + long_ns;
                assert!(
                    self.holders.is_empty() || self.holders.values().any(overran),
                    "two have the device: {:?}",
                    self.holders
                );
                let holder = Granted { turn: turn.get(), granted_ns: self.now, revoked: false };
                assert!(self.holders.insert(worker, holder).is_none(), "granted twice");
            }
            Command::Turn(Order::Revoke { turn }) => {
                let holder = self.holders.get_mut(&worker).expect("revoked and not granted");
                assert_eq!(holder.turn, turn.get());
                assert!(!std::mem::replace(&mut holder.revoked, true), "revoked twice");
            }
            Command::Turn(Order::Soon) => {
                assert!(!self.holders.is_empty() && !self.holders.contains_key(&worker))
            }
        }
    }
}

proptest! {

    /// A change to the scheduler deserves more cases: `PROPTEST_CASES=2000000 cargo test --release -p
    /// pappus-supervisor --lib model_tests` takes six minutes.
    #[test]
    fn every_call_ends_once_and_domains_stay_apart_under_random_events(
        shape in shapes(), policy in policies(), events in events()
    ) {
        play(shape, policy, &events)?;
    }
}
