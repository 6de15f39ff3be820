//! Random events of calls and of processes, through everything that stands between the scheduler and workers: what is
//! decided, how it is carried out, and what the workers are told. The workers here are honest and do one thing at a time:
//! what calls use goes behind those calls, and what was told of the same function stays in its order. Each call that is
//! accepted must be answered, once, and nothing may be left in the end.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::atomic::AtomicU32;

use proptest::prelude::*;

use super::*;
use crate::call::{Completion, CompletionBatch, Outcome};
use crate::device::reaper::Remains;
use crate::device::worker_channel::Forget;
use crate::schedule::events::Tick;
use crate::tenants::Account;

const MS: u64 = 1_000_000;

const LANES: u32 = 4;
/// Weights of the functions.
const WEIGHTS: [u64; 4] = [0, 1000, 5 * MIB, 7 * MIB];
/// What calls need: nothing, little, much, and more than half of the device.
const MEMORY: [u64; 4] = [0, 2 * MIB, 20 * MIB, 60 * MIB];
/// Memory that the device is given.
const SIZES: [&str; 3] = ["110MiB", "100MiB", "124MiB"];

#[derive(Debug, Clone)]
enum Event {
    Submit {
        function: usize,
        caller: u32,
        memory: usize,
    },
    Cancel {
        call: usize,
    },
    /// A worker reads what it was told, and does the first of what it has to do.
    Step {
        worker: usize,
    },
    /// A worker answers one of the calls that it runs.
    Answer {
        worker: usize,
        call: usize,
        well: bool,
    },
    /// A process ends by itself.
    Gone {
        worker: usize,
    },
    /// The next thing that a worker is to load does not.
    Fails {
        worker: usize,
    },
    Resize {
        memory: usize,
    },
    Uninstall {
        function: usize,
    },
    Tick,
}

fn event() -> impl Strategy<Value = Event> {
    let worker = 0..2usize;
    prop_oneof![
        8 => (0..WEIGHTS.len(), 1..4u32, 0..MEMORY.len())
            .prop_map(|(function, caller, memory)| Event::Submit { function, caller, memory }),
        1 => any::<usize>().prop_map(|call| Event::Cancel { call }),
        16 => worker.clone().prop_map(|worker| Event::Step { worker }),
        8 => (worker.clone(), any::<usize>(), prop::bool::weighted(0.9))
            .prop_map(|(worker, call, well)| Event::Answer { worker, call, well }),
        1 => worker.clone().prop_map(|worker| Event::Gone { worker }),
        1 => worker.prop_map(|worker| Event::Fails { worker }),
        1 => (0..SIZES.len()).prop_map(|memory| Event::Resize { memory }),
        1 => (0..WEIGHTS.len()).prop_map(|function| Event::Uninstall { function }),
        2 => Just(Event::Tick),
    ]
}

/// How often each request was answered.
type Answers = Arc<[AtomicU32; 256]>;

/// A client that counts.
#[derive(Debug)]
struct Counts {
    account: Arc<Account>,
    request: u64,
    answers: Answers,
}

impl Completion for Counts {
    fn complete(&self, _: &Call, _: &str, _: Outcome) {
        self.answers[self.request as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        false
    }

    fn account(&self) -> &Arc<Account> {
        &self.account
    }

    fn new_batch(&self) -> Box<dyn CompletionBatch> {
        Box::new(Gathered::default())
    }
}

#[derive(Debug, Default)]
struct Gathered(Vec<(Arc<Call>, Outcome)>);

impl CompletionBatch for Gathered {
    fn push(&mut self, call: Arc<Call>, outcome: Outcome) {
        self.0.push((call, outcome));
    }

    fn flush(&mut self, device: &str, _: u64) {
        self.0.drain(..).for_each(|(call, outcome)| call.reply.complete(&call, device, outcome));
    }
}

/// What a worker was told and did not do yet.
#[derive(Debug, Clone, Copy)]
enum Duty {
    Settings,
    /// What its lanes have then.
    GiveBack {
        left: u64,
    },
    Load {
        function: FunctionId,
        bytes: u64,
        exports: bool,
    },
    /// One that was installed as the worker's so many-th.
    Forget(FunctionId, Forget, u64),
    /// It does not load.
    Refuse(FunctionId),
    Scrub(u64),
    Run(CallId, Of),
}

/// Which function a call is of, and how many were installed in its worker when that one was.
type Of = (FunctionId, u64);

impl Duty {
    /// Whose weights change, or where the function does; true if calls that come behind have to wait.
    fn changes(&self) -> Option<(FunctionId, bool)> {
        match *self {
            Self::Load { function, .. } | Self::Forget(function, Forget::Weights, _) => {
                Some((function, true))
            }
            Self::Forget(function, Forget::Function, _) | Self::Refuse(function) => Some((function, false)),
            Self::Settings | Self::GiveBack { .. } | Self::Scrub(_) | Self::Run(..) => None,
        }
    }
}

/// An honest process.
#[derive(Debug, Default)]
struct Process {
    generation: u64,
    /// Bytes of the worker's lanes once all its duties are done, and the calls of lanes in use.
    lanes: [u64; LANES as usize],
    busy: BTreeMap<CallId, (u32, FunctionId)>,
    functions: BTreeMap<FunctionId, u64>,
    installed: u64,
    weights: HashSet<FunctionId>,
    duties: VecDeque<Duty>,
    running: BTreeMap<CallId, Of>,
    fails: bool,
    /// Those whose weights did not load, until they are told to go.
    failed: HashSet<FunctionId>,
}

impl Process {
    /// Takes the first duty out that need not wait for calls that came before.
    fn take_duty(&mut self) -> Option<Duty> {
        let may_go = |(at, duty): (usize, &Duty)| {
            let before = || self.duties.iter().take(at);
            match *duty {
                Duty::Forget(function, _, nth) => {
                    let is_its = |of: &Of| *of == (function, nth);
                    let waits = |duty: &Duty| matches!(duty, Duty::Run(_, of) if is_its(of));
                    !self.running.values().any(is_its)
                        && !before().any(|duty| {
                            waits(duty) || duty.changes().is_some_and(|(other, _)| other == function)
                        })
                }
                Duty::Load { function, .. } | Duty::Refuse(function) => {
                    !before().filter_map(Duty::changes).any(|(other, _)| other == function)
                }
                Duty::Run(_, (function, _)) => {
                    !before().filter_map(Duty::changes).any(|of| of == (function, true))
                }
                Duty::Settings | Duty::GiveBack { .. } | Duty::Scrub(_) => true,
            }
        };
        let at = self.duties.iter().enumerate().position(may_go)?;
        self.duties.remove(at)
    }
}

/// Every second function has kernels that cannot leave a window.
fn function(gpu: &Gpu, nth: usize) -> Arc<Loaded> {
    gpu.function_of(PLAIN, &format!("of {}", WEIGHTS[nth]), WEIGHTS[nth], nth.is_multiple_of(2))
}

struct Model {
    gpu: Gpu,
    functions: Vec<Arc<Loaded>>,
    gone: Vec<FunctionId>,
    processes: [Option<Process>; 2],
    answers: Answers,
    accepted: BTreeMap<u64, CallId>,
    withdrawn: HashSet<u64>,
    generation: u64,
}

impl Model {
    /// Of a GPU whose first worker is shared, or not.
    fn new(shared: bool) -> Self {
        let gpu = Gpu::of(DeviceConfig { shared_workers: usize::from(shared), ..config(false) });
        let functions = (0..WEIGHTS.len()).map(|nth| function(&gpu, nth)).collect();
        let process = || Some(Process { generation: 1, ..Process::default() });
        Self {
            gpu,
            functions,
            gone: Vec::new(),
            processes: [process(), process()],
            answers: Arc::new([const { AtomicU32::new(0) }; 256]),
            accepted: BTreeMap::new(),
            withdrawn: HashSet::new(),
            generation: 1,
        }
    }

    fn device(&self) -> Arc<Device> {
        self.gpu.device.clone()
    }

    fn happens(&mut self, event: &Event) {
        match *event {
            Event::Submit { function, caller, memory } => {
                self.submit(function, TenantId::new(caller), memory)
            }
            Event::Cancel { call } if !self.accepted.is_empty() => {
                let (request, id) = self.accepted.iter().nth(call % self.accepted.len()).unwrap();
                if self.gpu.device.cancel(*id).is_some() {
                    self.withdrawn.insert(*request);
                }
            }
            Event::Cancel { .. } => {}
            Event::Step { worker } => drop(self.step(worker)),
            Event::Answer { worker, call, well } => {
                let running = self.processes[worker].iter().flat_map(|process| &process.running);
                let running: Vec<CallId> = running.map(|(call, _)| *call).collect();
                if !running.is_empty() {
                    self.answer(worker, running[call % running.len()], well);
                }
            }
            Event::Gone { worker } => self.gone(worker),
            Event::Fails { worker } => {
                self.processes[worker].iter_mut().for_each(|process| process.fails = true);
            }
            Event::Resize { memory } => {
                // Calls may need more than there would be.
                let _ = self.gpu.device.change_pairs([("memory", SIZES[memory])]);
            }
            Event::Uninstall { function } => {
                let again = self::function(&self.gpu, function);
                let gone = std::mem::replace(&mut self.functions[function], again);
                self.gpu.device.uninstall(gone.id);
                self.gone.push(gone.id);
            }
            Event::Tick => self.ticks(20 * MS),
        }
        self.check();
    }

    fn submit(&mut self, function: usize, caller: TenantId, memory: usize) {
        let mut call = self.gpu.call(&self.functions[function], caller, MEMORY[memory]);
        let request = self.gpu.requests.load(Ordering::Relaxed) - 1;
        let reply =
            Counts { account: self.gpu.tenants.account(caller), request, answers: self.answers.clone() };
        Arc::get_mut(&mut call).unwrap().reply = Arc::new(reply);
        // What was quarantined, or needs more than there is now, is refused.
        if let Ok(id) = self.gpu.device.submit(call, 0, None) {
            self.accepted.insert(request, id);
        }
    }

    /// Lets the worker do the next of its duties; true if there was something to do.
    fn step(&mut self, worker: usize) -> bool {
        let id = WorkerId::new(worker);
        let device = self.device();
        if self.processes[worker].is_none() {
            let is_wanted = device.slots.take_wanted(id);
            if is_wanted {
                self.attach(worker);
            }
            return is_wanted;
        }
        self.read(worker);
        let process = self.processes[worker].as_mut().unwrap();
        if device.slots.channel(id).is_hung_up(Generation::new(process.generation)) {
            assert!(process.busy.is_empty(), "a worker with calls is told to leave");
            self.gone(worker);
            return true;
        }
        let Some(duty) = process.take_duty() else { return false };
        match duty {
            Duty::Settings => device.events.leased(id, 0).unwrap(),
            Duty::GiveBack { left } => device.events.leased(id, left).unwrap(),
            Duty::Load { function, .. } if std::mem::take(&mut process.fails) => {
                process.failed.insert(function);
                device.events.not_loaded(id, function);
            }
            Duty::Load { function, bytes, exports: true } => {
                let fake = memfd::sealed("exported", b"exported").unwrap();
                let control = self.gpu.workers[worker].control.as_fd();
                control::send(control, function.get(), &[fake.as_fd()]).unwrap();
                device.events.loaded(id, function, bytes, true).unwrap();
            }
            Duty::Load { function, bytes, exports: false } => {
                device.events.loaded(id, function, bytes, false).unwrap();
            }
            Duty::Forget(function, what, _) => device.events.forgot(id, function, what).unwrap(),
            Duty::Refuse(function) => device.events.not_installed(id, function),
            Duty::Scrub(handover) => {
                assert!(process.running.is_empty(), "a worker with calls is scrubbed");
                assert!(process.duties.is_empty(), "a worker is told more before it is scrubbed");
                process.functions.clear();
                process.weights.clear();
                device.events.scrubbed(id, handover).unwrap();
            }
            Duty::Run(call, of) => drop(process.running.insert(call, of)),
        }
        true
    }

    fn read(&mut self, worker: usize) {
        let process = self.processes[worker].as_mut().unwrap();
        let Worker { inbox, control, .. } = &mut self.gpu.workers[worker];
        // At its end there is nothing more.
        let _ = inbox.fill();
        while let Some(frame) = inbox.frame().unwrap() {
            let duty = match ToWorker::decode(frame).unwrap() {
                ToWorker::Configure(_) => Duty::Settings,
                ToWorker::GiveBack { lanes } => {
                    for lane in (0..LANES).filter(|lane| lanes >> lane & 1 == 1) {
                        assert!(
                            !process.busy.values().any(|(busy, _)| *busy == lane),
                            "a lane with a call gives back"
                        );
                        process.lanes[lane as usize] = 0;
                    }
                    Duty::GiveBack { left: process.lanes.iter().sum() }
                }
                ToWorker::Install { function, install } => {
                    control::recv(&*control, function.get(), install.descriptors()).unwrap();
                    if self.gpu.device.config.makes_shared(worker) {
                        let is_it = |other: &&Arc<Loaded>| other.id == function;
                        let found = self.functions.iter().find(is_it);
                        let is_fenced = |function: &Arc<Loaded>| function.is_fenced(Kind::Cuda, "sm_90");
                        assert!(found.is_none_or(is_fenced), "{function} is not fenced");
                    }
                    process.installed += 1;
                    let before = process.functions.insert(function, process.installed);
                    assert!(before.is_none(), "{function} is installed twice");
                    if !std::mem::take(&mut process.fails) {
                        continue;
                    }
                    Duty::Refuse(function)
                }
                ToWorker::Load { function, load } => {
                    let weights = control::recv(&*control, function.get(), 1).unwrap();
                    let bytes = match load.weights {
                        WeightsForm::Device(bytes) => bytes,
                        _ => {
                            (rustix::fs::fstat(&weights[0]).unwrap().st_size as u64).next_multiple_of(2 * MIB)
                        }
                    };
                    assert!(
                        process.functions.contains_key(&function),
                        "weights of {function}, which is not there"
                    );
                    assert!(process.weights.insert(function), "weights of {function} are loaded twice");
                    if let Some(replaced) = load.instead_of {
                        assert!(process.weights.remove(&FunctionId::new(replaced)));
                    }
                    // Reused memory is known to other workers: its descriptor exists.
                    let exports = load.weights == WeightsForm::Export && load.instead_of.is_none();
                    Duty::Load { function, bytes, exports }
                }
                ToWorker::Unload { function } => {
                    process.weights.remove(&function);
                    let is_used = process.busy.values().any(|(_, used)| *used == function);
                    assert!(process.failed.remove(&function) || !is_used, "weights give way under a call");
                    Duty::Forget(function, Forget::Weights, process.functions[&function])
                }
                ToWorker::Uninstall { function } => {
                    process.weights.remove(&function);
                    let nth = process.functions.remove(&function);
                    Duty::Forget(function, Forget::Function, nth.expect("what is forgotten was installed"))
                }
                ToWorker::Scrub { handover } => Duty::Scrub(handover),
                ToWorker::Invoke { call, invoke } => {
                    let (id, lane) = (CallId(call), invoke.lane.get());
                    let nth = process.functions.get(&invoke.function);
                    let of = (invoke.function, *nth.expect("what is called is installed"));
                    assert!(!process.busy.values().any(|(busy, _)| *busy == lane), "two calls on one lane");
                    let has = &mut process.lanes[lane as usize];
                    assert!(
                        invoke.memory_bytes >= *has,
                        "a lane has {has} and is lent {}",
                        invoke.memory_bytes
                    );
                    *has = invoke.memory_bytes;
                    process.busy.insert(id, (lane, invoke.function));
                    Duty::Run(id, of)
                }
                other => panic!("{other:?}"),
            };
            process.duties.push_back(duty);
        }
    }

    fn answer(&mut self, worker: usize, id: CallId, well: bool) {
        let process = self.processes[worker].as_mut().unwrap();
        process.running.remove(&id);
        process.busy.remove(&id);
        let mut batch = Batch::new(&self.gpu.device.completer);
        let done = Done::default();
        let code = if id.0.is_multiple_of(2) { FaultCode::KernelTrap } else { FaultCode::Exhausted };
        let fault = FaultRef { code, message: "a test's", kernel: None };
        let answer = if well { Answer::Done(&done) } else { Answer::Failed(&fault) };
        batch.finish(WorkerId::new(worker), id, answer).unwrap();
        batch.settle();
    }

    /// The process is gone and reaped.
    fn gone(&mut self, worker: usize) {
        let Some(process) = self.processes[worker].take() else { return };
        let (device, id) = (self.device(), WorkerId::new(worker));
        let taken = device.slots.channel(id).detach();
        let lost = device.events.worker_gone(id);
        device.events.never_read(&lost, taken);
        let served = Some((id, Generation::new(process.generation)));
        let ended = "a test ended it".to_owned();
        device.events.reaped(Remains { served, lost, ended, broken: None, from_outside: false });
    }

    /// Puts a fresh process into the slot; always true: something was done.
    fn attach(&mut self, worker: usize) {
        self.generation += 1;
        let (device, generation) = (self.device(), Generation::new(self.generation));
        device.slots.arrived();
        self.gpu.workers[worker] =
            attach_of(&device, WorkerId::new(worker), generation, Epoch::new(0)).unwrap();
        self.processes[worker] = Some(Process { generation: self.generation, ..Process::default() });
    }

    /// Time passes.
    fn ticks(&self, passed_ns: u64) {
        let decisions = &self.gpu.device.commands.decisions;
        decisions.passed_ns.fetch_add(passed_ns, Ordering::Relaxed);
        self.gpu.device.commands.handle(Tick {});
    }

    /// No request is answered twice, and nobody has more than there is.
    fn check(&self) {
        for request in 0..self.answers.len() as u64 {
            let is_open = self.accepted.contains_key(&request) && !self.withdrawn.contains(&request);
            let times = self.answers[request as usize].load(Ordering::Relaxed);
            assert!(times <= u32::from(is_open), "request {request}: {times} answers");
        }
        let memory = self.gpu.device.memory();
        let had = memory.context_bytes + memory.stack_bytes + memory.lease_bytes + memory.weight_bytes;
        assert!(had <= 124 * MIB, "{memory:?}");
    }

    /// Nothing new comes: what was accepted is answered.
    fn runs_out(&mut self) {
        for round in 0..2_000 {
            let mut goes_on = false;
            for worker in 0..2 {
                // Without an end or a new call there is little to do.
                let steps = (0..500).take_while(|_| self.step(worker)).count();
                assert!(steps < 500, "a worker has always something to do");
                goes_on |= steps > 0;
                let running = self.processes[worker].iter().flat_map(|process| &process.running);
                if let Some(id) = running.map(|(call, _)| *call).next() {
                    self.answer(worker, id, true);
                    goes_on = true;
                }
            }
            if !goes_on && self.gpu.device.load() == 0 {
                break;
            }
            // First what takes moments, then what a tenant that failed waits for.
            self.ticks(if round < 1_000 { 5 * MS } else { 500 * MS });
        }
        self.check();
        let is_answered = |request: u64| self.answers[request as usize].load(Ordering::Relaxed) == 1;
        let open: Vec<_> = self
            .accepted
            .keys()
            .filter(|request| !is_answered(**request) && !self.withdrawn.contains(request))
            .collect();
        assert!(open.is_empty(), "not answered: {open:?}, {:?}", self.gpu.device.status());
        assert_eq!(self.gpu.device.load(), 0);
        // Nor is anything left of functions that are gone: those that calls still had came again behind that.
        let ids = self.gone.iter().copied().chain(self.functions.iter().map(|function| function.id));
        ids.for_each(|id| self.gpu.device.uninstall(id));
        for worker in 0..2 {
            while self.step(worker) {}
        }
        assert_eq!(self.gpu.device.memory().weight_bytes, 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn every_accepted_call_is_answered_once(
        shared in any::<bool>(),
        events in prop::collection::vec(event(), 1..120),
    ) {
        let mut model = Model::new(shared);
        events.iter().for_each(|event| model.happens(event));
        model.runs_out();
    }
}

/// What the model found.
#[test]
fn every_accepted_call_is_answered_once_where_one_was_not() {
    use Event::{Cancel, Gone, Step, Submit, Uninstall};
    let submit = |function, caller, memory| Submit { function, caller, memory };
    for events in [
        // A worker that forgot a function without its weights seemed to have forgotten those that it loads now.
        &[submit(2, 1, 0), submit(2, 2, 0), submit(2, 1, 1), Uninstall { function: 2 }][..],
        // Weights whose last call was lost did not give way to a call that waited for that.
        &[
            submit(3, 1, 3),
            Step { worker: 0 },
            submit(2, 1, 0),
            Gone { worker: 0 },
            Cancel { call: 0 },
            submit(0, 1, 0),
        ],
    ] {
        let mut model = Model::new(false);
        events.iter().for_each(|event| model.happens(event));
        model.runs_out();
    }
}
