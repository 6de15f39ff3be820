//! What panics end, in the thread of a worker and where decisions are carried out; and what is done all the same.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command as Process, Stdio};

use pappus_protocol::to_worker::{Item, STAGING_ARENA};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::*;
use crate::call::{Completion, CompletionBatch, Outcome};
use crate::device::decisions::Actions;
use crate::device::thread::{End, listen};
use crate::device::turns_heard::TurnsHeard;
use crate::schedule::{Action, Address, Command, Job, Order};
use crate::tenants::Account;

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

impl Gpu {
    /// A call whose answer panics.
    fn panicking_call(&self, function: &Arc<Loaded>) -> Arc<Call> {
        let mut call = self.call(function, CALLER, 0);
        Arc::get_mut(&mut call).unwrap().reply = Arc::new(Panics(self.tenants.account(CALLER)));
        call
    }

    /// The worker reports that the calls are done, and its thread reads the report.
    fn listens(&self, calls: &[CallId]) -> End {
        let (answers, written) = pipe::pipe().unwrap();
        let mut outbox = Outbox::new(written);
        for id in calls {
            outbox.push_from_worker(&FromWorker::Done { call: id.0, timings: Done::default() });
        }
        outbox.flush().unwrap();
        let process = (Generation::new(1), Epoch::new(0));
        let mut turns = TurnsHeard::new(Arc::new(SharedWords::create("turns").unwrap().0));
        listen(&self.device, W0, process, &mut Inbox::new(answers), &mut turns)
    }
}

/// The answers that the client got, in order.
fn answers_of(gpu: &mut Gpu) -> Vec<v1::Response> {
    gpu.client.set_nonblocking(true).unwrap();
    let (mut bytes, mut answers, mut told) = ([0; 4096], Decoder::<OwnedFd>::default(), Vec::new());
    while let Ok(read) = gpu.client.read(&mut bytes) {
        answers.feed(&bytes[..read], Vec::new()).unwrap();
    }
    while let Some((frame, _)) = answers.next_frame().unwrap() {
        told.push(v1::Response::decode(frame).unwrap());
    }
    told
}

/// The request ids that they answer.
pub(super) fn answered(gpu: &mut Gpu) -> Vec<u64> {
    answers_of(gpu).into_iter().map(|told| told.id).collect()
}

#[test]
fn a_panic_in_a_workers_thread_ends_its_process_and_no_call_of_others() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 0);
    let id = gpu.device.submit(gpu.panicking_call(&function), 0, None).unwrap();
    let innocent = gpu.submit(&function, TenantId::new(1), 0);
    gpu.expect(W0, &["install 1", "invoke on 0 flags 0", "invoke on 1 flags 0"]);
    let end = gpu.listens(&[id]);
    assert!(matches!(&end, End::Bad(why) if why.to_string().contains("the test's own panic")), "{end:?}");
    // What its thread does next: the process is gone, its calls run again, and a fresh process gets the slot.
    gpu.device.slots.channel(W0).detach();
    let lost = gpu.device.events.worker_gone(W0);
    assert_eq!(lost.len(), 1, "the call whose answer panicked is over");
    gpu.device.events.bury(lost, &killed(), false);
    drop(gpu.workers.remove(0));
    gpu.workers.insert(0, attach_of(&gpu.device, W0, Generation::new(2), Epoch::new(0)).unwrap());
    gpu.done(W1, innocent);
}

#[test]
fn calls_that_ended_before_a_panic_are_answered_once() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 0);
    let first = gpu.submit(&function, CALLER, 0);
    let panics = gpu.device.submit(gpu.panicking_call(&function), 0, None).unwrap();
    let last = gpu.submit(&function, CALLER, 0);
    let end = gpu.listens(&[first, panics, last]);
    assert!(matches!(&end, End::Bad(why) if why.to_string().contains("the test's own panic")), "{end:?}");
    assert_eq!(answered(&mut gpu), [1, 3]);
    gpu.device.slots.channel(W0).detach();
    let lost = gpu.device.events.worker_gone(W0);
    assert!(lost.is_empty(), "they are over, and not answered again");
    assert!(answered(&mut gpu).is_empty());
}

#[test]
fn a_batch_that_is_not_settled_does_what_it_has_to_when_it_is_dropped() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 0);
    let calls: Vec<CallId> = (0..5).map(|_| gpu.submit(&function, CALLER, 0)).collect();
    let lanes: Vec<String> = (0..4).map(|lane| format!("invoke on {lane} flags 0")).collect();
    let mut expected = vec!["install 1"];
    expected.extend(lanes.iter().map(String::as_str));
    gpu.expect(W0, &expected);
    let mut batch = Batch::new(&gpu.device.completer);
    batch.finish(W0, calls[2], Answer::Done(&Done::default())).unwrap();
    gpu.expect(W0, &[]);
    assert!(answered(&mut gpu).is_empty());
    drop(batch);
    gpu.expect(W0, &[&lanes[2]]);
    assert_eq!(answered(&mut gpu), [3]);
}

#[test]
fn a_call_whose_answer_cannot_be_made_is_told_so_and_the_others_get_theirs() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 0);
    let config = r#"{"modules": [], "kernels": [], "blueprint": {"inputs": [], "weights": ["w"],
        "buffers": {"b": {"Sizeof": "w"}}, "outputs": ["b"], "control_flow": []}}"#;
    let parsed = Parsed {
        blueprint: pappus_blueprint::parse(config.as_bytes()).unwrap(),
        config: config.into(),
        weights: None,
        runs_on: vec![RunsOn { kind: Kind::Cuda, arch: "sm_90".into(), stack_bytes: 0, fenced: false }],
        steps: None,
    };
    let record = FunctionRecord { name: "with an output".into(), ..FunctionRecord::clone(&function.record) };
    let other =
        gpu.cache.insert(gpu.tenants.account(CALLER), Arc::new(record), parsed, || Some(Arc::default()));
    let other = other.unwrap().unwrap();
    // The call of the second one has no place for its output.
    let calls = [&function, &other, &function].map(|function| gpu.submit(function, CALLER, 0));
    let end = gpu.listens(&calls);
    assert!(matches!(&end, End::Bad(why) if why.to_string().contains("index out of bounds")), "{end:?}");
    let told = answers_of(&mut gpu);
    assert_eq!(told.iter().map(|told| told.id).collect::<Vec<_>>(), [1, 2, 3]);
    let failed = |told: &v1::Response| match &told.body {
        Some(v1::response::Body::Error(error)) => error.message.contains("cannot make the answer"),
        _ => false,
    };
    assert_eq!(told.iter().map(failed).collect::<Vec<_>>(), [false, true, false]);
}

#[test]
fn a_panic_in_one_action_leaves_none_of_the_others_undone() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 0);
    let expired = |call| Action::Expired { call, budget_ns: None };
    let nowhere = Address { worker: WorkerId::new(99), generation: Generation::new(1), nth: 0 };
    let (panics, other) = (gpu.panicking_call(&function), gpu.call(&function, CALLER, 0));
    let request = gpu.requests.load(Ordering::Relaxed) - 1;
    let mut actions = Actions::from(vec![
        expired(panics),
        Action::Tell { to: nowhere, command: Command::Turn(Order::Soon) },
        Action::Tell { to: Address { worker: W1, nth: 1, ..nowhere }, command: Command::Turn(Order::Soon) },
        expired(other),
    ]);
    gpu.device.commands.carry_out(&mut actions, None);
    gpu.expect(W1, &["Soon"]);
    assert_eq!(answered(&mut gpu), [request]);
}

/// What panics is an addition of numbers that are too large, which release builds do not notice.
#[test]
#[cfg(debug_assertions)]
fn a_process_that_is_not_told_a_call_for_a_panic_is_killed_and_the_call_counts_as_handed_over() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 0);
    let mut process = Process::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let pidfd = pidfd_open(Pid::from_child(&process), PidfdFlags::empty()).unwrap();
    let generation = Generation::new(2);
    gpu.device.slots.channel(W0).detach();
    gpu.device.events.worker_gone(W0);
    drop(gpu.workers.remove(0));
    let worker = attach_process(&gpu.device, W0, (generation, false), Epoch::new(0), pidfd, 0).unwrap();
    gpu.workers.insert(0, worker);
    gpu.expect(W0, &["settings"]);
    let mut call = gpu.call(&function, CALLER, 0);
    let item = Item {
        input: 0.into(),
        kind: Item::ARENA.into(),
        source: STAGING_ARENA.get().into(),
        offset: u64::MAX.into(),
        bytes: 1.into(),
    };
    Arc::get_mut(&mut call).unwrap().items = vec![item];
    let start = Command::Start {
        lane: 1,
        alone: false,
        memory_bytes: 0,
        until_ns: u64::MAX,
        job: Job { id: CallId(77), call: call.clone(), others: Vec::new() },
        load: None,
    };
    let tell = |nth, command| Action::Tell { to: Address { worker: W0, generation, nth }, command };
    // The second command came early.
    gpu.device
        .commands
        .carry_out(&mut vec![tell(2, Command::Turn(Order::Soon)), tell(1, start)].into(), None);
    gpu.expect(W0, &["install 1", "Soon"]);
    assert_ne!(call.started_ns.load(Ordering::Relaxed), 0);
    assert_eq!(process.wait().unwrap().signal(), Some(9));
}
