//! A hostile supervisor: no sequence of frames makes a worker panic.

#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;

use std::os::fd::AsFd;
use std::sync::OnceLock;

use harness::{Worker, compile_cpu, item, target};
use pappus_protocol::pipe::Flushed;
use pappus_protocol::to_worker::{Configure, Install, Invoke, Load, WeightsForm};
use pappus_protocol::{ArenaId, FunctionId, LaneId, ToWorker, TurnId, control};
use pappus_shmem::memfd;
use pappus_worker::device::cpu::Cpu;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

/// One message. Numbers are small enough to name something, or as large as they can be.
#[derive(Debug, Clone)]
enum Step {
    Configure,
    GiveBack(u64),
    Install(u64, u32, Vec<u64>, usize),
    Uninstall(u64),
    OpenArena(u64, bool),
    CloseArena(u64),
    Scrub(u64),
    Invoke(u64, u64, u32, Vec<[u64; 5]>, Vec<[u64; 3]>, Vec<u64>),
    Turn(u64, bool),
    Load(u64, u64, Option<u64>),
    Unload(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let number = || prop_oneof![4 => 0u64..4, 4 => Just(4000), 1 => Just(u64::MAX), 1 => any::<u64>()];
    let triple = || [number(), number(), number()];
    prop_oneof![
        1 => Just(Step::Configure),
        1 => number().prop_map(Step::GiveBack),
        3 => (0u64..2).prop_map(|function| Step::Install(function, 1, vec![], 0)),
        1 => (0u64..2, 0u32..3, vec(number(), 0..2), 0usize..9)
            .prop_map(|(function, modules, weights, fds)| Step::Install(function, modules, weights, fds)),
        // As it should be, if the function is there.
        4 => (0u64..2, prop_oneof![9 => Just(1 << 20), 1 => number()]).prop_map(|(function, memory)| {
            let items = (0..2).map(|input| [input, 0, 0, 4000 * input, 4000]).collect();
            Step::Invoke(function, memory, 0, items, vec![[0, 8000, 4000]], vec![])
        }),
        1 => (0u64..2).prop_map(Step::Uninstall),
        1 => (0u64..2, 0u64..9, proptest::option::of(0u64..3)).prop_map(|(function, form, other)| Step::Load(function, form, other)),
        1 => (0u64..2).prop_map(Step::Unload),
        // A number in use ends the worker, so most are new.
        1 => (0u64..20, any::<bool>()).prop_map(|(arena, good)| Step::OpenArena(arena, good)),
        1 => (1u64..5).prop_map(Step::CloseArena),
        1 => any::<u64>().prop_map(Step::Scrub),
        9 => (0u64..3, 0u32..2, vec((0u64..2, 0u64..3, triple()), 0..4), vec(triple(), 0..3), vec(number(), 0..2))
            .prop_map(|(function, fds, items, outputs, scalars)| {
                let items = items.into_iter().map(|(i, k, [s, o, b])| [i, k, s, o, b]).collect();
                Step::Invoke(function, 1 << 20, fds, items, outputs, scalars)
            }),
        1 => (any::<u64>(), any::<bool>()).prop_map(|(turn, grant)| Step::Turn(turn, grant)),
    ]
}

/// The parts of a function that works.
fn parts() -> &'static [pappus_shmem::ValidatedMemfd; 2] {
    static PARTS: OnceLock<[pappus_shmem::ValidatedMemfd; 2]> = OnceLock::new();
    PARTS.get_or_init(|| {
        let config = include_bytes!("../../kernels/configs/vec_add.json");
        let code = compile_cpu(include_bytes!("../../kernels/built/linalg.wasm"));
        [memfd::sealed("config", config).unwrap(), memfd::sealed("code", &code).unwrap()]
    })
}

/// Writes a message with its descriptors; false if the worker ended over an earlier one.
fn send(worker: &mut Worker, id: u64, fds: &[&dyn AsFd], message: &ToWorker<'_>) -> bool {
    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    if control::send(worker.control.as_fd(), id, &fds).is_err() {
        return false;
    }
    worker.to.push_to_worker(message);
    matches!(worker.to.flush(), Ok(Flushed::All))
}

fn apply(worker: &mut Worker, call: u64, step: &Step) -> bool {
    let [config, code] = parts();
    match step {
        Step::Configure => {
            let configure = Configure { poll_us: 1, turns: false, scrub_calls: false, scrub_switch: false };
            send(worker, 0, &[], &ToWorker::Configure(configure))
        }
        Step::GiveBack(lanes) => send(worker, 0, &[], &ToWorker::GiveBack { lanes: *lanes }),
        Step::Install(function, modules, weight_bytes, count) => {
            let fds: [&dyn AsFd; 3] = [config, code, code];
            // Mostly the right number of descriptors; else the worker waits for more, or ends.
            let checked = weight_bytes.len() == 1;
            let install = Install { modules: *modules, weight_bytes: weight_bytes.clone(), checked };
            let count = if *count == 8 { 2 } else { install.descriptors() };
            let id = FunctionId::new(*function);
            send(worker, *function, &fds[..count], &ToWorker::Install { function: id, install })
        }
        Step::Load(function, form, instead_of) => {
            let weights = match *form {
                0 => WeightsForm::Host,
                1 => WeightsForm::Export,
                bytes => WeightsForm::Device(bytes),
            };
            let load = Load { weights, instead_of: *instead_of };
            send(worker, *function, &[code], &ToWorker::Load { function: FunctionId::new(*function), load })
        }
        Step::Unload(function) => {
            send(worker, 0, &[], &ToWorker::Unload { function: FunctionId::new(*function) })
        }
        Step::Scrub(handover) => send(worker, 0, &[], &ToWorker::Scrub { handover: *handover }),
        Step::Uninstall(function) => {
            send(worker, 0, &[], &ToWorker::Uninstall { function: FunctionId::new(*function) })
        }
        Step::OpenArena(arena, good) => {
            let memfd = memfd::arena("arena", 8192).unwrap();
            let fd: &dyn AsFd = if *good { &memfd } else { config };
            send(worker, *arena, &[fd], &ToWorker::OpenArena { arena: ArenaId::new(*arena) })
        }
        Step::CloseArena(arena) => {
            send(worker, 0, &[], &ToWorker::CloseArena { arena: ArenaId::new(*arena) })
        }
        Step::Invoke(function, memory_bytes, descriptors, items, outputs, scalars) => {
            let items: Vec<_> = items
                .iter()
                .map(|&[i, kind, source, at, bytes]| item(i as u32, kind as u32, source, at, bytes))
                .collect();
            let outputs: Vec<_> =
                outputs.iter().map(|&[arena, at, bytes]| target(arena, at, bytes)).collect();
            let scalars: Vec<_> = scalars.iter().map(|&scalar| scalar.into()).collect();
            let invoke = Invoke {
                flags: 0,
                calls: 1,
                function: FunctionId::new(*function),
                deadline_ns: u64::MAX,
                memory_bytes: *memory_bytes,
                lane: LaneId::new(u32::from(call % 50 == 49)),
                descriptors: *descriptors,
                items: &items,
                outputs: &outputs,
                scalars: &scalars,
            };
            let fds: [&dyn AsFd; 1] = [config];
            send(worker, call, &fds[..*descriptors as usize], &ToWorker::Invoke { call, invoke })
        }
        Step::Turn(turn, grants) => {
            let turn = TurnId::new(*turn);
            match grants {
                true => worker.grant(turn, 1),
                false => worker.revoke(turn),
            };
            true
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        // Proptest's own place is found by a lib.rs or main.rs, which this folder lacks.
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("proptest-regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_messages_never_panic(steps in vec(step(), 0..60)) {
        let mut worker = Worker::start(|| Cpu::new(false).unwrap());
        for (call, step) in (1..).zip(&steps) {
            if !apply(&mut worker, call, step) {
                break;
            }
        }
        // Ends well or with an error; `end` fails the test on a panic.
        let _ = worker.end();
    }

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..200), tag in 0u16..70, length in 0u32..64) {
        let worker = Worker::start(|| Cpu::new(false).unwrap());
        let mut frame = Vec::new();
        frame.extend_from_slice(&length.to_le_bytes());
        frame.extend_from_slice(&tag.to_le_bytes());
        frame.extend_from_slice(&1u16.to_le_bytes());
        frame.extend_from_slice(&[0; 8]);
        frame.extend_from_slice(&bytes);
        let _ = rustix::io::write(worker.to.as_fd(), &frame);
        let _ = worker.end();
    }
}
