//! A GPU whose workers the test plays: what the supervisor tells workers, and what follows from their
//! answers.

mod batch_tests;
mod changing_tests;
mod clearing_tests;
mod draining_tests;
mod forgetting_tests;
mod model_tests;
mod order_tests;
mod panic_tests;
mod session_tests;
mod shared_tests;
mod weights_tests;

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use pappus_blueprint::Sizes;
use pappus_proto::frame::Decoder;
use pappus_proto::v1;
use pappus_protocol::from_worker::{Done, FaultRef};
use pappus_protocol::pipe::{self, Inbox, Outbox};
use pappus_protocol::to_worker::WeightsForm;
use pappus_protocol::turn_page::{Order, Orders, WorkerEnd};
use pappus_protocol::{FaultCode, FromWorker, Kind, ToWorker, control, now_ns};
use pappus_shmem::{SharedWords, memfd};
use prost::Message;
use tokio::sync::watch;

use super::Device;
use super::commands::ProcessEnd;
use super::ending::{Answer, Batch};
use super::unusable::Unusable;
use super::unwritten::Unwritten;
use super::worker_channel::{Arrival, staging};
use crate::call::Call;
use crate::client_io::ClientIo;
use crate::config::{DeviceConfig, Settings};
use crate::function::loaded::{Parsed, RunsOn};
use crate::function::{CodeTarget, Loaded, LoadedCache, PackedWeights};
use crate::ids::{Epoch, FunctionId, Generation, TenantId, WorkerId};
use crate::processes::confinement::Reached;
use crate::processes::process::Killer;
use crate::routing::Destination;
use crate::schedule::events::Reaped;
use crate::schedule::{CallId, Domain};
use crate::server::connection_slots::ConnectionSlots;
use crate::server::intake::Holder;
use crate::server::replies::Replies;
use crate::server::reply_handle::{Invocations, ReplyHandle};
use crate::store::StateDir;
use crate::store::records::{FunctionRecord, Hash, Weight};
use crate::tenants::{CountedPlan, Limit, Tenants};

const W0: WorkerId = WorkerId::new(0);
const W1: WorkerId = WorkerId::new(1);
const CALLER: TenantId = TenantId::new(1);
const MIB: u64 = 1 << 20;

/// The other end of a worker's channels.
struct Worker {
    inbox: Inbox,
    control: OwnedFd,
    page: WorkerEnd<SharedWords>,
    /// Not read.
    _answers: OwnedFd,
}

struct Gpu {
    device: Arc<Device>,
    workers: Vec<Worker>,
    cache: LoadedCache,
    tenants: Arc<Tenants>,
    invocations: Arc<Invocations>,
    runtime: tokio::runtime::Runtime,
    _dir: tempfile::TempDir,
    client: std::os::unix::net::UnixStream,
    requests: AtomicU64,
}

/// A configuration that does nothing.
const PLAIN: &str = r#"{"modules": [], "kernels": [], "blueprint":
    {"inputs": [], "weights": ["w"], "buffers": {}, "outputs": [], "control_flow": []}}"#;

fn config(turns: bool) -> DeviceConfig {
    DeviceConfig {
        name: "cuda:0".into(),
        kind: Kind::Cuda,
        uuid: "GPU-1".into(),
        arch: "sm_90".into(),
        driver: "580".into(),
        description: "a test".into(),
        numa_node: None,
        workers: 2,
        lanes: 4,
        standbys: 0,
        workers_per_domain: 1,
        shared_workers: 0,
        shared_limit: std::time::Duration::from_millis(10),
        interruptible: false,
        memory_bytes: 110 * MIB,
        there_bytes: u64::MAX,
        states_bytes: 10 * MIB,
        weights_bytes: 10 * MIB,
        stack_bytes: 5 * MIB,
        turns,
        quantum: Duration::from_millis(5),
        scrub_calls: false,
        min_residency: std::time::Duration::from_millis(100),
        scrub_switch: false,
        under_mps: false,
    }
}

impl Gpu {
    fn new(turns: bool) -> Self {
        Self::of(config(turns))
    }

    fn of(config: DeviceConfig) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (client, socket) = std::os::unix::net::UnixStream::pair().unwrap();
        let tenants = Arc::new(Tenants::default());
        let holder = Holder { account: tenants.account(TenantId::new(1)), operator: false };
        let slot = Arc::new(ConnectionSlots::default()).admit(1, None, &holder.account).unwrap();
        let replies = runtime
            .block_on(async { Replies::new(socket.into(), Arc::new(slot), holder, ClientIo::default()) });
        let invocations = Invocations::new(replies);
        let (_, settings) = watch::channel(Settings::default());
        let (targets, _) = watch::channel(Vec::new());
        let store = Arc::new(StateDir::open(dir.path()).unwrap());
        let device = Arc::new(Device::new(config, settings, targets, store).unwrap());
        device.processes.reserve_process(true).unwrap().measured(10 * MIB);
        let workers = (0..2).map(|worker| attach(&device, WorkerId::new(worker))).collect();
        let cache = LoadedCache::default();
        let requests = AtomicU64::new(1);
        let mut gpu =
            Self { device, workers, cache, tenants, invocations, runtime, _dir: dir, client, requests };
        for worker in [W0, W1] {
            gpu.expect(worker, &["settings"]);
            gpu.device.events.leased(worker, 0).unwrap();
        }
        gpu
    }

    /// A function with so many bytes of weights.
    fn function(&self, name: &str, weight_bytes: u64) -> Arc<Loaded> {
        self.function_of(PLAIN, name, weight_bytes, false)
    }

    /// The same of a configuration, with kernels that cannot leave a window, or such that can.
    fn function_of(&self, config: &str, name: &str, weight_bytes: u64, fenced: bool) -> Arc<Loaded> {
        let weight = Weight { name: "w".into(), sha256: Hash([0; 32]), bytes: weight_bytes };
        let record = FunctionRecord {
            name: name.into(),
            config: Hash([0; 32]),
            modules: Box::default(),
            weights: Box::new([weight]),
            inputs: Box::default(),
            outputs: Box::default(),
            input_types: Box::default(),
            state_bytes: 0,
            composition: None,
            number: 1,
            largest: 0,
        };
        let account = self.tenants.account(TenantId::new(1));
        let taken = account.charge(Limit::WeightBytes, weight_bytes);
        let memfd = memfd::sealed("weights", &vec![1; weight_bytes as usize]).unwrap();
        let weights = PackedWeights::new(memfd, taken, account.tenant, ClientIo::default());
        let parsed = Parsed {
            blueprint: pappus_blueprint::parse(config.as_bytes()).unwrap(),
            config: config.into(),
            weights: Some(Arc::new(weights)),
            runs_on: vec![RunsOn { kind: Kind::Cuda, arch: "sm_90".into(), stack_bytes: 0, fenced }],
            steps: None,
        };
        self.cache.insert(account, Arc::new(record), parsed, || Some(Arc::default())).unwrap().unwrap()
    }

    /// A call of a tenant that needs so much memory.
    fn submit(&self, function: &Arc<Loaded>, caller: TenantId, pool_bytes: u64) -> CallId {
        self.device.submit(self.call(function, caller, pool_bytes), 0, None).unwrap()
    }

    fn call(&self, function: &Arc<Loaded>, caller: TenantId, pool_bytes: u64) -> Arc<Call> {
        let _runtime = self.runtime.enter();
        let sizes = Sizes { inputs: &[], weights: &function.weight_bytes, words: &[], free: &[] };
        let mut plan = function.blueprint.plan(&sizes).unwrap();
        plan.pool_bytes = pool_bytes;
        let account = self.tenants.account(caller);
        let plan_bytes = account.charge(Limit::PlanBytes, 0);
        let accepted = account.accept().unwrap();
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        Arc::new(Call {
            function: function.clone(),
            routed: None,
            domain: Domain { owner: TenantId::new(1), caller },
            plan: Arc::new(CountedPlan::new(plan, plan_bytes)),
            items: vec![],
            outputs: vec![],
            scalars: vec![],
            inline: vec![],
            staged_bytes: 0,
            descriptors: vec![],
            memory: None,
            arenas: vec![],
            turn: None,
            deadline_ns: u64::MAX,
            arrived_ns: now_ns(),
            started_ns: AtomicU64::new(0),
            sent_at: AtomicU64::new(0),
            reply: Arc::new(ReplyHandle::new(self.invocations.clone(), request, accepted, String::new())),
        })
    }

    /// Nothing is left of a worker's first process.
    fn reaped(&self, worker: WorkerId) {
        let reaped = Reaped { worker, generation: Generation::new(1), from_outside: false };
        self.device.commands.handle(reaped);
    }

    fn done(&self, worker: WorkerId, id: CallId) {
        self.finish(worker, id).unwrap();
    }

    fn fail(&self, worker: WorkerId, id: CallId, code: FaultCode) {
        let fault = FaultRef { code, message: "a test's", kernel: None };
        let mut batch = Batch::new(&self.device.completer);
        batch.finish(worker, id, Answer::Failed(&fault)).unwrap();
        batch.settle();
    }

    fn finish(&self, worker: WorkerId, id: CallId) -> Result<(), Unusable> {
        let mut batch = Batch::new(&self.device.completer);
        let finished = batch.finish(worker, id, Answer::Done(&Done::default()));
        batch.settle();
        finished
    }

    /// What a worker was told since the last time, in short words.
    fn expect(&mut self, worker: WorkerId, words: &[&str]) {
        let Worker { inbox, control, page, .. } = &mut self.workers[worker.get()];
        // As a worker does: what the page says follows the frames that are there when it is seen.
        let order = page.look();
        inbox.fill().unwrap();
        let mut got = Vec::new();
        while let Some(frame) = inbox.frame().unwrap() {
            got.push(match ToWorker::decode(frame).unwrap() {
                ToWorker::Configure(_) => "settings".to_owned(),
                ToWorker::GiveBack { lanes } => format!("give back {lanes:b}"),
                ToWorker::Install { function, install } => {
                    control::recv(&*control, function.get(), install.descriptors()).unwrap();
                    format!("install {function}")
                }
                ToWorker::Load { function, load } => {
                    let weights = control::recv(&*control, function.get(), 1).unwrap();
                    let weights = rustix::fs::fstat(&weights[0]).unwrap().st_size;
                    let instead_of = load.instead_of.map(|other| format!(" instead of {other}"));
                    let instead_of = instead_of.unwrap_or_default();
                    match load.weights {
                        WeightsForm::Host => format!("load {function} from {weights}"),
                        WeightsForm::Export => format!("load {function} from {weights}, export{instead_of}"),
                        WeightsForm::Device(bytes) => {
                            format!("load {function}, {} of {weights}", bytes / MIB)
                        }
                    }
                }
                ToWorker::Unload { function } => format!("unload {function}"),
                ToWorker::Uninstall { function } => format!("uninstall {function}"),
                ToWorker::Scrub { handover } => format!("scrub {handover}"),
                ToWorker::Invoke { invoke, .. } => {
                    format!("invoke on {} flags {}", invoke.lane, invoke.flags)
                }
                other => format!("{other:?}"),
            });
        }
        if let Some(Order { turn, granted, revoked, prices }) = order {
            let orders = [
                granted.then(|| format!("grant {turn} for {}", prices.quantum_us)),
                revoked.then(|| format!("revoke {turn}")),
            ];
            got.extend(orders.into_iter().flatten());
        }
        assert_eq!(got, words);
    }

    /// The worker sends a function's weights: memory of so many bytes.
    fn exports(&self, worker: WorkerId, function: &Loaded, bytes: u64) {
        let fake = memfd::sealed("exported", b"exported").unwrap();
        control::send(self.workers[worker.get()].control.as_fd(), function.id.get(), &[fake.as_fd()])
            .unwrap();
        self.device.events.loaded(worker, function.id, bytes, true).unwrap();
    }
}

/// How a process ended.
fn killed() -> ProcessEnd {
    ProcessEnd { ended: "was killed".to_owned(), broken: None }
}

fn attach(device: &Arc<Device>, worker: WorkerId) -> Worker {
    attach_of(device, worker, Generation::new(1), Epoch::new(0)).unwrap()
}

fn attach_of(
    device: &Arc<Device>,
    worker: WorkerId,
    generation: Generation,
    epoch: Epoch,
) -> Result<Worker, Unusable> {
    let shared = device.config.makes_shared(worker.get());
    attach_process(device, worker, (generation, shared), epoch, ended_process(), device.made_for().edition)
}

/// A process that ended already: a device may kill it whenever it likes.
fn ended_process() -> OwnedFd {
    static ENDED: LazyLock<OwnedFd> = LazyLock::new(|| {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        child.wait().unwrap();
        pidfd
    });
    ENDED.try_clone().unwrap()
}

/// A process that can be killed is in a worker's slot; it is made to be shared, or not.
fn attach_process(
    device: &Arc<Device>,
    worker: WorkerId,
    (generation, shared): (Generation, bool),
    epoch: Epoch,
    pidfd: OwnedFd,
    edition: u64,
) -> Result<Worker, Unusable> {
    let (commands_read, commands_write) = pipe::pipe().unwrap();
    let (answers, _) = pipe::pipe().unwrap();
    let (ours, theirs) = control::pair().unwrap();
    let target = CodeTarget { kind: Kind::Cuda, arch: "sm_90".into(), fingerprint: "test".into() };
    let (turns, page) = SharedWords::create("turns").unwrap();
    let arrival = Arrival {
        generation,
        pid: 1,
        outbox: Outbox::new(commands_write),
        control: ours,
        staging: staging(4).unwrap(),
        turns: Orders::new(Arc::new(turns)),
        killer: Killer::new(pidfd),
        target,
        states: device.states.clone(),
        shared,
        epoch,
        edition,
        reached: Reached::default(),
    };
    device.events.attach(worker, arrival)?;
    let page = WorkerEnd::new(SharedWords::open(&page).unwrap());
    Ok(Worker { inbox: Inbox::new(commands_read), control: theirs, page, _answers: answers })
}
