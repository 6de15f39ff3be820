//! A GPU whose workers are this test: what the supervisor tells them, and what follows from their answers.

mod batch_tests;

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pappus_blueprint::Sizes;
use pappus_proto::frame::Decoder;
use pappus_proto::v1;
use pappus_protocol::from_worker::Done;
use pappus_protocol::pipe::{self, Inbox, Outbox};
use pappus_protocol::to_worker::WeightsForm;
use pappus_protocol::{FromWorker, Kind, ToWorker, control, now_ns};
use pappus_shmem::memfd;
use prost::Message;
use tokio::sync::watch;

use super::Device;
use super::held::Held;
use super::runtime::Answer;
use super::thread::{End, listen};
use super::worker_channel::{Arrival, staging};
use super::write_coalescing::Batch;
use crate::call::{Call, Completion, CompletionBatch, Outcome};
use crate::config::{DeviceConfig, Settings};
use crate::function::loaded::{LoadedCache, Parsed};
use crate::function::{CodeTarget, Loaded};
use crate::ids::{Epoch, FunctionId, Generation, TenantId, TurnId, WorkerId};
use crate::processes::confinement::Reached;
use crate::processes::memory_ledger::Lease;
use crate::processes::process::Killer;
use crate::schedule::{Action, Address, CallId, Command, Domain};
use crate::server::replies::Replies;
use crate::server::reply_handle::ReplyHandle;
use crate::store::StateDir;
use crate::store::records::{FunctionRecord, Hash, Weight};
use crate::tenants::{Account, Limit, Quota, Tenants};

const W0: WorkerId = WorkerId::new(0);
const W1: WorkerId = WorkerId::new(1);
const MIB: u64 = 1 << 20;

/// The other end of a worker's channels.
struct Worker {
    inbox: Inbox,
    control: OwnedFd,
    _lease: Lease,
    /// Nobody reads them.
    _answers: OwnedFd,
}

struct Gpu {
    device: Arc<Device>,
    workers: Vec<Worker>,
    cache: LoadedCache,
    tenants: Arc<Tenants>,
    replies: Arc<Replies>,
    runtime: tokio::runtime::Runtime,
    _dir: tempfile::TempDir,
    client: std::os::unix::net::UnixStream,
    requests: AtomicU64,
}

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
        memory_bytes: 110 * MIB,
        weights_bytes: 10 * MIB,
        stack_bytes: 5 * MIB,
        turns,
        quantum: Duration::from_millis(5),
        scrub_calls: false,
        min_residency: std::time::Duration::from_millis(100),
        scrub_switch: false,
        shared: false,
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
        let replies = runtime.block_on(async { Replies::new(socket.into()) });
        let (_, settings) = watch::channel(Settings::default());
        let (targets, _) = watch::channel(Vec::new());
        let store = Arc::new(StateDir::open(dir.path()).unwrap());
        let device = Arc::new(Device::new(config, settings, targets, store).unwrap());
        let tenants = Arc::new(Tenants::default());
        device.ledger.reserve_process().unwrap().measured(10 * MIB);
        let workers = (0..2).map(|worker| attach(&device, WorkerId::new(worker))).collect();
        let cache = LoadedCache::default();
        let requests = AtomicU64::new(1);
        let mut gpu = Self { device, workers, cache, tenants, replies, runtime, _dir: dir, client, requests };
        gpu.expect(W0, &["lease 30"]);
        gpu.expect(W1, &["lease 30"]);
        (0..2).for_each(|worker| gpu.device.leased(WorkerId::new(worker), 30 * MIB).unwrap());
        gpu
    }

    /// A function with so many bytes of weights.
    fn function(&self, name: &str, weight_bytes: u64) -> Arc<Loaded> {
        let config = r#"{"modules": [], "kernels": [], "blueprint":
            {"inputs": [], "weights": ["w"], "buffers": {}, "outputs": [], "control_flow": []}}"#;
        let weight = Weight { name: "w".into(), sha256: Hash([0; 32]), bytes: weight_bytes };
        let record = FunctionRecord {
            name: name.into(),
            config: Hash([0; 32]),
            modules: Box::default(),
            weights: Box::new([weight]),
            inputs: Box::default(),
            outputs: Box::default(),
        };
        let parsed = Parsed {
            blueprint: pappus_blueprint::parse(config.as_bytes()).unwrap(),
            config: config.into(),
            weights: Some(memfd::sealed("weights", &vec![1; weight_bytes as usize]).unwrap()),
            runs_on: vec![(Kind::Cuda, "sm_90".into())],
            callers: Arc::default(),
        };
        self.cache.insert(self.tenants.account(TenantId::new(1)), Arc::new(record), parsed)
    }

    /// A call of a tenant that needs so much memory.
    fn submit(&self, function: &Arc<Loaded>, caller: TenantId, pool_bytes: u64) -> CallId {
        self.device.submit(self.call(function, caller, pool_bytes), 0, None).unwrap()
    }

    fn call(&self, function: &Arc<Loaded>, caller: TenantId, pool_bytes: u64) -> Arc<Call> {
        let _runtime = self.runtime.enter();
        let sizes = Sizes { inputs: &[], weights: &function.weight_bytes, words: &[] };
        let mut plan = function.blueprint.plan(&sizes).unwrap();
        plan.pool_bytes = pool_bytes;
        let accepted = self.tenants.account(caller).accept().unwrap();
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        Arc::new(Call {
            function: function.clone(),
            domain: Domain { owner: TenantId::new(1), caller },
            plan: Arc::new(plan),
            items: vec![],
            outputs: vec![],
            words: vec![],
            inline: vec![],
            descriptors: vec![],
            arenas: vec![],
            deadline_ns: u64::MAX,
            arrived_ns: now_ns(),
            started_ns: AtomicU64::new(0),
            sent_at: AtomicU64::new(0),
            reply: Arc::new(ReplyHandle::new(self.replies.clone(), request, accepted)),
        })
    }

    fn done(&self, worker: WorkerId, id: CallId) {
        self.finish(worker, id).unwrap();
    }

    fn finish(&self, worker: WorkerId, id: CallId) -> Result<(), &'static str> {
        let mut batch = Batch::new(&self.device);
        let finished = self.device.finish(worker, id, Answer::Done(&Done::default()), &mut batch);
        self.device.settle(&mut batch);
        finished
    }

    /// What a worker was told since the last time, in short words.
    fn expect(&mut self, worker: WorkerId, words: &[&str]) {
        let Worker { inbox, control, .. } = &mut self.workers[worker.get()];
        inbox.fill().unwrap();
        let mut got = Vec::new();
        while let Some(frame) = inbox.frame().unwrap() {
            got.push(match ToWorker::decode(frame).unwrap() {
                ToWorker::Configure(configure) => format!("lease {}", configure.lease_bytes / MIB),
                ToWorker::Install { function, install } => {
                    let parts = control::recv(&*control, function, install.descriptors()).unwrap();
                    let weights = rustix::fs::fstat(&parts[1]).unwrap().st_size;
                    match install.weights {
                        WeightsForm::Host => format!("install {function} from {weights}"),
                        WeightsForm::Export => format!("install {function} from {weights}, export"),
                        WeightsForm::Device(bytes) => {
                            format!("install {function}, {} of {weights}", bytes / MIB)
                        }
                    }
                }
                ToWorker::Uninstall { function } => format!("uninstall {function}"),
                ToWorker::Scrub { handover } => format!("scrub {handover}"),
                ToWorker::Invoke { invoke, .. } => {
                    format!("invoke on {} flags {}", invoke.lane, invoke.flags)
                }
                ToWorker::Grant { turn, quantum_us } => format!("grant {turn} for {quantum_us}"),
                ToWorker::Revoke { turn } => format!("revoke {turn}"),
                other => format!("{other:?}"),
            });
        }
        assert_eq!(got, words);
    }

    /// The worker sends a function's weights: memory of so many bytes.
    fn exports(&self, worker: WorkerId, function: &Loaded, bytes: u64) {
        let fake = memfd::sealed("exported", b"exported").unwrap();
        control::send(self.workers[worker.get()].control.as_fd(), function.id.get(), &[fake.as_fd()])
            .unwrap();
        self.device.exported(worker, function.id, bytes).unwrap();
    }
}

fn attach(device: &Arc<Device>, worker: WorkerId) -> Worker {
    attach_of(device, worker, 1, Epoch::new(0)).unwrap()
}

fn attach_of(
    device: &Arc<Device>,
    worker: WorkerId,
    generation: u64,
    epoch: Epoch,
) -> Result<Worker, &'static str> {
    let (commands_read, commands_write) = pipe::pipe().unwrap();
    let (answers, _) = pipe::pipe().unwrap();
    let (ours, theirs) = control::pair().unwrap();
    let pidfd = rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty());
    let target = CodeTarget { kind: Kind::Cuda, arch: "sm_90".into(), fingerprint: "test".into() };
    let arrival = Arrival {
        generation: Generation::new(generation),
        pid: 1,
        outbox: Outbox::new(commands_write),
        control: ours,
        staging: staging(4).unwrap(),
        killer: Killer::new(pidfd.unwrap()),
        target,
        epoch,
        reached: Reached::default(),
    };
    let lease = device.ledger.lease().unwrap();
    device.attach(worker, arrival, lease.bytes)?;
    Ok(Worker { inbox: Inbox::new(commands_read), control: theirs, _lease: lease, _answers: answers })
}

#[test]
fn weights_are_loaded_once_and_shared() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 1000);
    let first = gpu.submit(&function, TenantId::new(1), 0);
    gpu.expect(W0, &["install 1 from 1000, export", "invoke on 0 flags 0"]);
    assert_eq!(gpu.device.memory().weight_bytes, 2 * MIB);
    gpu.exports(W0, &function, 2 * MIB);
    gpu.done(W0, first);
    let second = gpu.submit(&function, TenantId::new(2), 0);
    gpu.expect(W1, &["install 1, 2 of 8", "invoke on 0 flags 0"]);
    gpu.done(W1, second);
    assert_eq!(gpu.device.memory().weight_bytes, 2 * MIB);
    gpu.device.uninstall(function.id);
    gpu.expect(W0, &["uninstall 1"]);
    gpu.expect(W1, &["uninstall 1"]);
    // It is free once everybody says so, and nobody says so for another.
    assert_eq!(gpu.device.memory().weight_bytes, 2 * MIB);
    assert!(gpu.device.uninstalled(W0, FunctionId::new(function.id.get() + 1)).is_err());
    gpu.device.uninstalled(W1, function.id).unwrap();
    assert_eq!(gpu.device.memory().weight_bytes, 2 * MIB);
    gpu.workers.remove(0);
    gpu.device.channel(W0).detach(gpu.device.weights.as_ref());
    let (lost, zombie) = gpu.device.worker_gone(W0);
    assert_eq!((lost.len(), gpu.device.memory().weight_bytes), (0, 2 * MIB), "it is not reaped");
    gpu.device.weights.as_ref().unwrap().reaped(zombie);
    assert_eq!(gpu.device.memory().weight_bytes, 0);
}

#[test]
fn a_worker_that_is_scrubbed_has_nothing_of_its_domain() {
    let mut gpu =
        Gpu::of(DeviceConfig { scrub_switch: true, min_residency: Duration::ZERO, ..config(false) });
    let function = gpu.function("f", 1000);
    let first = gpu.submit(&function, TenantId::new(1), 0);
    let second = gpu.submit(&function, TenantId::new(2), 0);
    gpu.expect(W0, &["install 1 from 1000, export", "invoke on 0 flags 0"]);
    gpu.expect(W1, &["install 1 from 1000", "invoke on 0 flags 0"]);
    assert_eq!(gpu.device.memory().weight_bytes, 4 * MIB);
    gpu.exports(W0, &function, 2 * MIB);
    gpu.done(W0, first);
    // A third caller takes the worker that is idle.
    let third = gpu.submit(&function, TenantId::new(3), 0);
    gpu.expect(W0, &["scrub 1"]);
    // What is forgotten meanwhile is no matter for a worker that forgets everything.
    gpu.device.uninstall(FunctionId::new(77));
    gpu.expect(W0, &[]);
    assert!(gpu.device.scrubbed(W0, 2).is_err(), "another number");
    let _ = (second, third);
}

#[test]
fn a_confirmed_scrub_is_followed_by_the_next_domains_call() {
    let mut gpu =
        Gpu::of(DeviceConfig { scrub_switch: true, min_residency: Duration::ZERO, ..config(false) });
    let function = gpu.function("f", 1000);
    let first = gpu.submit(&function, TenantId::new(1), 0);
    gpu.submit(&function, TenantId::new(2), 0);
    gpu.expect(W0, &["install 1 from 1000, export", "invoke on 0 flags 0"]);
    gpu.expect(W1, &["install 1 from 1000", "invoke on 0 flags 0"]);
    gpu.exports(W0, &function, 2 * MIB);
    gpu.done(W0, first);
    gpu.submit(&function, TenantId::new(3), 0);
    gpu.expect(W0, &["scrub 1"]);
    gpu.device.scrubbed(W0, 1).unwrap();
    // It is installed again, whatever it had before.
    gpu.expect(W0, &["install 1, 2 of 8", "invoke on 0 flags 0"]);
    assert!(gpu.device.scrubbed(W0, 1).is_err(), "nobody asked");
}

#[test]
fn weights_give_way_to_others_everywhere_but_not_under_a_call() {
    let mut gpu = Gpu::new(false);
    let [a, b, c] = ["a", "b", "c"].map(|name| gpu.function(name, 5 * MIB - 1));
    let first = gpu.submit(&a, TenantId::new(1), 0);
    gpu.exports(W0, &a, 6 * MIB);
    let second = gpu.submit(&a, TenantId::new(2), 0);
    gpu.expect(W0, &["install 1 from 5242879, export", "invoke on 0 flags 0"]);
    gpu.expect(W1, &["install 1, 6 of 8", "invoke on 0 flags 0"]);
    // Both workers use them.
    let refused = gpu.submit(&b, TenantId::new(1), 0);
    gpu.expect(W0, &[]);
    gpu.done(W0, first);
    gpu.done(W1, second);
    assert!(gpu.finish(W0, refused).is_err(), "answered already");
    let third = gpu.submit(&b, TenantId::new(1), 0);
    gpu.expect(W0, &["uninstall 1", "install 2 from 5242879, export", "invoke on 0 flags 0"]);
    gpu.expect(W1, &["uninstall 1"]);
    gpu.done(W0, third);
    gpu.submit(&c, TenantId::new(2), 0);
    gpu.expect(W1, &["install 3 from 5242879, export", "invoke on 0 flags 0"]);
    gpu.expect(W0, &["uninstall 2"]);
}

#[test]
fn a_worker_that_ends_before_it_shared_weights_leaves_no_trace() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 1000);
    gpu.submit(&function, TenantId::new(1), 0);
    assert_eq!(gpu.device.memory().weight_bytes, 2 * MIB);
    gpu.device.channel(W0).detach(gpu.device.weights.as_ref());
    let (lost, zombie) = gpu.device.worker_gone(W0);
    assert_eq!(gpu.device.memory().weight_bytes, 2 * MIB, "it is not reaped");
    gpu.device.weights.as_ref().unwrap().reaped(zombie);
    assert_eq!(gpu.device.memory().weight_bytes, 0);
    gpu.device.bury(lost, "was killed", None, false);
    // The call runs again, alone, in the other worker.
    gpu.expect(W1, &["install 1 from 1000, export", "invoke on 0 flags 1"]);
}

#[test]
fn all_memory_moves_to_one_worker_and_back_without_ever_being_there_twice() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 0);
    assert_eq!(gpu.device.largest_call_bytes(), 60 * MIB);
    let large = gpu.submit(&function, TenantId::new(1), 60 * MIB);
    let behind = gpu.submit(&function, TenantId::new(2), 0);
    gpu.expect(W0, &[]);
    gpu.expect(W1, &["lease 0"]);
    gpu.device.leased(W1, 0).unwrap();
    gpu.expect(W0, &["lease 60"]);
    gpu.device.leased(W0, 60 * MIB).unwrap();
    gpu.expect(W0, &["install 1 from 0", "invoke on 0 flags 0"]);
    gpu.expect(W1, &[]);
    gpu.done(W0, large);
    gpu.expect(W0, &["lease 0"]);
    gpu.expect(W1, &[]);
    gpu.device.leased(W0, 0).unwrap();
    gpu.expect(W0, &["lease 30"]);
    gpu.expect(W1, &["lease 30"]);
    gpu.device.leased(W1, 30 * MIB).unwrap();
    gpu.expect(W1, &[]);
    gpu.device.leased(W0, 30 * MIB).unwrap();
    gpu.expect(W1, &["install 1 from 0", "invoke on 0 flags 0"]);
    gpu.done(W1, behind);
    assert!(gpu.device.leased(W1, 1).is_err(), "nobody asked it");
}

#[test]
fn commands_are_written_as_they_were_decided_whichever_comes_first() {
    let mut gpu = Gpu::new(true);
    let generation = Generation::new(1);
    let turn = TurnId::new(7);
    // The first command was its settings.
    let commands = [Command::Revoke { turn }, Command::Soon, Command::Grant { turn, quantum_us: 5000 }];
    for (nth, command) in [2, 3].into_iter().zip(commands.clone()) {
        gpu.device.carry_out(
            &mut vec![Action::Tell { to: Address { worker: W0, generation, nth }, command }],
            None,
        );
        gpu.expect(W0, &[]);
    }
    let to = Address { worker: W0, generation, nth: 1 };
    gpu.device.carry_out(&mut vec![Action::Tell { to, command: commands[2].clone() }], None);
    gpu.expect(W0, &["grant 7 for 5000", "revoke 7", "Soon"]);
    // What was decided about a process before is void.
    let to = Address { worker: W0, generation: Generation::new(0), nth: 4 };
    gpu.device.carry_out(&mut vec![Action::Tell { to, command: Command::Soon }], None);
    gpu.expect(W0, &[]);
}

#[test]
fn a_process_of_an_epoch_that_is_over_gets_no_calls() {
    let mut gpu = Gpu::new(false);
    drop(gpu.workers.remove(0));
    assert!(gpu.device.ledger.end_epoch(Epoch::new(0)));
    let refused = attach_of(&gpu.device, W0, 2, Epoch::new(0));
    assert_eq!(refused.err(), Some("another process failed, and all with it"));
    // The control: one of the next epoch is taken.
    assert!(attach_of(&gpu.device, W0, 3, Epoch::new(1)).is_ok());
}

#[test]
fn turns_go_around_and_calls_come_before_their_grant() {
    let mut gpu = Gpu::new(true);
    let function = gpu.function("f", 0);
    let first = gpu.submit(&function, TenantId::new(1), 0);
    gpu.expect(W0, &["install 1 from 0", "invoke on 0 flags 0", "grant 1 for 5000"]);
    gpu.submit(&function, TenantId::new(2), 0);
    gpu.expect(W1, &["install 1 from 0", "invoke on 0 flags 0"]);
    gpu.expect(W0, &["revoke 1"]);
    gpu.device.yielding(W0, TurnId::new(1)).unwrap();
    gpu.expect(W1, &["Soon"]);
    gpu.done(W0, first);
    gpu.device.yielded(W0, TurnId::new(1), 1000).unwrap();
    gpu.expect(W1, &["grant 2 for 5000"]);
    assert!(gpu.device.yielded(W0, TurnId::new(1), 1000).is_err());
}

#[test]
fn what_needs_more_weights_than_there_may_be_is_refused() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 10 * MIB + 1);
    let store = gpu.device.weights.as_ref().unwrap();
    let error = store.deliver(&function, W0, &mut Vec::new()).unwrap_err();
    assert_eq!(error.reason, crate::refusal::Reason::OutOfMemory);
    gpu.expect(W0, &[]);
}

#[test]
fn answers_of_one_read_are_followed_by_one_write_each() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 1000);
    let calls: Vec<CallId> = (0..6).map(|_| gpu.submit(&function, TenantId::new(1), 0)).collect();
    let started: Vec<String> = (0..4).map(|lane| format!("invoke on {lane} flags 0")).collect();
    let mut expected = vec!["install 1 from 1000, export"];
    expected.extend(started.iter().map(String::as_str));
    gpu.expect(W0, &expected);
    gpu.client.set_nonblocking(true).unwrap();
    let mut batch = Batch::new(&gpu.device);
    for id in [calls[2], calls[0]] {
        gpu.device.finish(W0, id, Answer::Done(&Done::default()), &mut batch).unwrap();
    }
    gpu.expect(W0, &[]);
    let mut bytes = [0; 4096];
    assert!(gpu.client.read(&mut bytes).is_err(), "nothing was sent yet");
    gpu.device.settle(&mut batch);
    gpu.expect(W0, &[&started[2], &started[0]]);
    let mut answers = Decoder::<OwnedFd>::default();
    let read = gpu.client.read(&mut bytes).unwrap();
    answers.feed(&bytes[..read], Vec::new()).unwrap();
    for request in [3, 1] {
        let (frame, _) = answers.next_frame().unwrap().unwrap();
        assert_eq!(v1::Response::decode(frame).unwrap().id, request);
    }
    assert_eq!(answers.pending(), 0);
}

#[test]
fn a_call_that_was_never_written_does_not_count_as_handed_over() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 1000);
    let call = gpu.call(&function, TenantId::new(1), 0);
    let mut held = Held::default();
    gpu.device.submit(call.clone(), 0, Some(&mut held)).unwrap();
    gpu.expect(W0, &[]);
    assert_ne!(call.started_ns.load(Ordering::Relaxed), 0);
    gpu.device.channel(W0).detach(gpu.device.weights.as_ref());
    assert_eq!(call.started_ns.load(Ordering::Relaxed), 0);
    gpu.device.release(&mut held);
}

#[test]
fn what_a_tenant_may_have_of_a_device_covers_leases_and_weights() {
    let mut gpu = Gpu::new(false);
    let [a, b] = ["a", "b"].map(|name| gpu.function(name, 4 * MIB));
    let owner = gpu.tenants.account(TenantId::new(1));
    let allow = |mib: u64| {
        let mut quota = Quota::default();
        quota.set(Limit::DeviceMemory, mib * MIB);
        owner.allow(quota);
    };
    allow(29);
    let refused = gpu.device.submit(gpu.call(&a, TenantId::new(1), 0), 0, None).unwrap_err();
    assert!(refused.to_string().contains("the quota device-memory of tenant 1 is"), "{refused}");
    // A lease fits, the weights do not; they are the owner's, whoever calls.
    allow(33);
    gpu.submit(&a, TenantId::new(1), 0);
    gpu.expect(W0, &[]);
    assert_eq!(gpu.device.held_bytes(TenantId::new(1)), 30 * MIB);
    allow(36);
    let first = gpu.submit(&a, TenantId::new(1), 0);
    gpu.expect(W0, &["install 1 from 4194304, export", "invoke on 0 flags 0"]);
    assert_eq!(gpu.device.held_bytes(TenantId::new(1)), 34 * MIB);
    // Under a call they stay; then they give way to others of the same owner.
    gpu.submit(&b, TenantId::new(1), 0);
    gpu.expect(W0, &[]);
    gpu.done(W0, first);
    gpu.submit(&b, TenantId::new(1), 0);
    gpu.expect(W0, &["uninstall 1", "install 2 from 4194304, export", "invoke on 0 flags 0"]);
    // Another's calls cost the owner no lease.
    gpu.submit(&b, TenantId::new(2), 0);
    assert_eq!(
        (gpu.device.held_bytes(TenantId::new(1)), gpu.device.held_bytes(TenantId::new(2))),
        (34 * MIB, 30 * MIB)
    );
}

#[test]
fn a_revoked_function_leaves_the_workers_of_that_pair_only() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 0);
    let (own, granted) =
        (gpu.submit(&function, TenantId::new(1), 0), gpu.submit(&function, TenantId::new(2), 0));
    gpu.expect(W0, &["install 1 from 0", "invoke on 0 flags 0"]);
    gpu.expect(W1, &["install 1 from 0", "invoke on 0 flags 0"]);
    gpu.device.uninstall_for(function.id, Domain { owner: TenantId::new(1), caller: TenantId::new(2) });
    gpu.expect(W0, &[]);
    gpu.expect(W1, &["uninstall 1"]);
    gpu.done(W0, own);
    gpu.done(W1, granted);
}

/// A client whose answers cannot be given, nor the first one gathered.
#[derive(Debug)]
struct Panics(Arc<Account>);

impl Completion for Panics {
    fn complete(&self, _: &Call, _: &str, _: Outcome) {
        panic!("the test's own panic");
    }

    fn is_over(&self) -> bool {
        false
    }

    fn account(&self) -> &Arc<Account> {
        &self.0
    }

    fn new_batch(&self) -> Box<dyn CompletionBatch> {
        panic!("the test's own panic");
    }
}

#[test]
fn a_panic_in_a_workers_thread_ends_its_process_and_no_call_of_others() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 0);
    let mut call = gpu.call(&function, TenantId::new(1), 0);
    Arc::get_mut(&mut call).unwrap().reply = Arc::new(Panics(gpu.tenants.account(TenantId::new(1))));
    let id = gpu.device.submit(call, 0, None).unwrap();
    let innocent = gpu.submit(&function, TenantId::new(1), 0);
    gpu.expect(W0, &["install 1 from 0", "invoke on 0 flags 0", "invoke on 1 flags 0"]);
    let (answers, written) = pipe::pipe().unwrap();
    let mut outbox = Outbox::new(written);
    outbox.push_from_worker(&FromWorker::Done { call: id.0, timings: Done::default() });
    outbox.flush().unwrap();
    let end = listen(&gpu.device, W0, Generation::new(1), Epoch::new(0), &mut Inbox::new(answers));
    assert!(matches!(&end, End::Bad(why) if why.contains("the test's own panic")), "{end:?}");
    // What its thread does next: the process is gone, its calls run again, and a fresh process gets the slot.
    gpu.device.channel(W0).detach(None);
    let (lost, _) = gpu.device.worker_gone(W0);
    assert_eq!(lost.len(), 1, "the call whose answer panicked is over");
    gpu.device.bury(lost, "was killed", None, false);
    drop(gpu.workers.remove(0));
    gpu.workers.insert(0, attach_of(&gpu.device, W0, 2, Epoch::new(0)).unwrap());
    gpu.done(W1, innocent);
}
