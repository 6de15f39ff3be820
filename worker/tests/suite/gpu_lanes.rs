//! Several calls in flight in one worker, graphs, calls of many sizes, memory that comes and goes, and turns.

use std::os::fd::{AsFd, OwnedFd};

use pappus_protocol::to_worker::{Item, StateForm};
use pappus_protocol::turn_page::Yield;
use pappus_protocol::{ArenaId, FaultCode, FromWorker, FunctionId, ToWorker, TurnId, control};
use pappus_shmem::{Mapping, ValidatedMemfd, memfd};

use super::GpuUnderTest;
use super::blueprints::{Blueprint, filling, i64, launch, launch_on, offset, ptr};
use crate::harness::{ARENA, ARENA_BYTES, Call, OUTPUTS_AT, UNTOUCHED, Worker, item, target};

const LANES: u32 = 8;
/// Between the regions of two lanes.
const APART: u64 = 4096;
const BYTES: u64 = 64;

fn worker<T: GpuUnderTest>() -> Worker {
    T::worker_with(LANES)
}

/// `in` → `out`, taking `ns` in between.
fn copying(ns: u64) -> String {
    let copy = launch("copy", &[ptr("in"), ptr("out"), i64(BYTES)].join(","));
    Blueprint {
        inputs: &["in"],
        weights: &[],
        buffers: &[("out", BYTES)],
        outputs: &["out"],
        steps: &[launch("occupy", &i64(ns)), copy],
    }
    .json()
}

/// A call on a lane, with an input of `byte`s and its own regions.
fn call_of(worker: &Worker, function: u64, lane: u32, byte: u8) -> Call<'static> {
    let at = u64::from(lane) * APART;
    worker.arena.fill(at, BYTES, byte).unwrap();
    worker.arena.fill(OUTPUTS_AT + at, BYTES, UNTOUCHED).unwrap();
    Call::on(function, at, &[BYTES], OUTPUTS_AT + at, &[BYTES]).lane(lane)
}

/// Waits for that many answers, all good, whatever their order.
fn all_done(worker: &mut Worker, mut calls: Vec<u64>) {
    let mut answered: Vec<_> = calls
        .iter()
        .map(|_| {
            let (call, result) = worker.finished().expect("the device failed");
            result.unwrap();
            call
        })
        .collect();
    answered.sort_unstable();
    calls.sort_unstable();
    assert_eq!(answered, calls);
}

pub fn calls_on_all_lanes_at_once_get_their_own_results<T: GpuUnderTest>() {
    let mut worker = worker::<T>();
    worker.install(1, &copying(100_000), T::probes(), &[]);
    for round in 0..20 {
        let calls: Vec<_> =
            (0..LANES).map(|lane| call_of(&worker, 1, lane, round * 8 + lane as u8)).collect();
        let sent = calls.iter().map(|call| worker.begin(call)).collect();
        all_done(&mut worker, sent);
        for (lane, call) in (0..).zip(&calls) {
            assert_eq!(worker.outputs(call), [[round * 8 + lane; BYTES as usize]]);
        }
    }
    worker.end().unwrap();
}

pub fn answers_come_as_calls_end<T: GpuUnderTest>() {
    let mut worker = worker::<T>();
    worker.install(1, &copying(300_000_000), T::probes(), &[]);
    worker.install(2, &copying(1000), T::probes(), &[]);
    // What a first call prepares is not part of this.
    for function in [1, 2] {
        let call = call_of(&worker, function, function as u32, 1);
        worker.invoke(&call).unwrap();
    }
    let (long, short) = (call_of(&worker, 1, 1, 2), call_of(&worker, 2, 2, 3));
    let (long, short) = (worker.begin(&long), worker.begin(&short));
    let order = [worker.finished().unwrap().0, worker.finished().unwrap().0];
    assert_eq!(order, [short, long]);
    worker.end().unwrap();
}

pub fn each_lane_has_its_own_module_globals<T: GpuUnderTest>() {
    let mut worker = worker::<T>();
    let json = Blueprint {
        inputs: &[],
        weights: &[],
        buffers: &[("first", 8), ("then", 8)],
        outputs: &["first", "then"],
        steps: &[
            launch("module_global", &ptr("first")),
            launch("occupy", &i64(1_000_000)),
            launch("module_global", &ptr("then")),
        ],
    };
    worker.install(1, &json.json(), T::probes(), &[]);
    for _ in 0..5 {
        let calls: Vec<_> = (0..LANES)
            .map(|lane| Call::on(1, 0, &[], OUTPUTS_AT + u64::from(lane) * APART, &[8, 8]).lane(lane))
            .collect();
        let sent = calls.iter().map(|call| worker.begin(call)).collect();
        all_done(&mut worker, sent);
        for call in &calls {
            assert_eq!(worker.outputs(call), [*b"pristine", [0xff; 8]]);
        }
    }
    worker.end().unwrap();
}

pub fn a_call_repeated_gives_the_same_with_and_without_a_graph<T: GpuUnderTest>() {
    let count = launch_on("count_blocks", &ptr("n"), [3, 1, 1], 0);
    let json = Blueprint {
        inputs: &["in"],
        weights: &[],
        buffers: &[("n", 8), ("out", BYTES)],
        outputs: &["n", "out"],
        steps: &[
            format!(r#"{{"Repeat": [{{"Absolute": 50}}, [{count}]]}}"#),
            launch("copy", &[ptr("in"), ptr("out"), i64(BYTES)].join(",")),
        ],
    };
    let mut worker = worker::<T>();
    worker.install(1, &json.json(), T::probes(), &[]);
    let check = |worker: &mut Worker, at: u64, byte: u8| {
        worker.arena.fill(at, BYTES, byte).unwrap();
        let call = Call::on(1, at, &[BYTES], OUTPUTS_AT + at, &[8, BYTES]).lane(1);
        worker.invoke(&call).unwrap();
        let outputs = worker.outputs(&call);
        assert_eq!(outputs, [150u64.to_le_bytes().to_vec(), vec![byte; BYTES as usize]]);
    };
    for round in 0..20 {
        check(&mut worker, 0, round);
    }
    for round in 0..5 {
        check(&mut worker, 8192 + 256 * u64::from(round), round);
    }
    // Another arena in the place of the first: other memory, the same number.
    worker.send(&ToWorker::CloseArena { arena: ArenaId::new(ARENA) });
    let second = memfd::arena("second", ARENA_BYTES).unwrap();
    worker.arena = pappus_shmem::Mapping::writable(&second).unwrap();
    worker.open_arena(ARENA, &second);
    for round in 0..5 {
        check(&mut worker, 0, 100 + round);
    }
    // And after the lane gave its memory back.
    worker.give_back(0b10);
    for round in 0..5 {
        check(&mut worker, 0, 200 + round);
    }
    worker.end().unwrap();
}

/// Writes and reads the end of a buffer of so many bytes.
fn reaching(bytes: u64) -> String {
    Blueprint {
        inputs: &[],
        weights: &[],
        buffers: &[("big", bytes), ("out", 8)],
        outputs: &["out"],
        steps: &[
            launch("fill", &[offset("big", bytes - 8), i64(7), i64(8)].join(",")),
            launch("copy", &[offset("big", bytes - 8), ptr("out"), i64(8)].join(",")),
        ],
    }
    .json()
}

pub fn a_call_may_need_far_more_than_those_beside_it<T: GpuUnderTest>() {
    let mut worker = worker::<T>();
    worker.install(1, &copying(1_000_000), T::probes(), &[]);
    worker.install(2, &reaching(3 * T::LANE_BYTES), T::probes(), &[]);
    for round in 0..5u8 {
        let narrow: Vec<_> =
            (0..LANES).filter(|lane| *lane != 3).map(|lane| call_of(&worker, 1, lane, round + 1)).collect();
        let mut wide = Call::on(2, 0, &[], OUTPUTS_AT + 3 * APART, &[8]).lane(3);
        wide.memory_bytes = Some(4 * T::LANE_BYTES);
        let mut sent: Vec<_> = narrow[..4].iter().map(|call| worker.begin(call)).collect();
        sent.push(worker.begin(&wide));
        sent.extend(narrow[4..].iter().map(|call| worker.begin(call)));
        all_done(&mut worker, sent);
        assert_eq!(worker.outputs(&wide), [[7; 8]]);
        for call in &narrow {
            assert_eq!(worker.outputs(call), [[round + 1; BYTES as usize]]);
        }
    }
    worker.end().unwrap();
}

pub fn a_lane_grows_and_gives_back_beside_running_calls<T: GpuUnderTest>() {
    let mut worker = worker::<T>();
    let (small, large) = (T::LANE_BYTES, T::LANE_BYTES * 64);
    worker.install(1, &copying(1_000_000), T::probes(), &[]);
    worker.install(2, &reaching(large - (2 << 20)), T::probes(), &[]);
    for round in 1..4 {
        let call = call_of(&worker, 1, 0, round);
        worker.invoke(&call).unwrap();
        assert_eq!(worker.outputs(&call), [[round; BYTES as usize]]);
        let mut long = Call::on(2, 0, &[], OUTPUTS_AT + APART, &[8]).lane(1);
        long.memory_bytes = Some(small);
        assert_eq!(worker.invoke(&long).unwrap_err().code, FaultCode::OutOfMemory);
        long.memory_bytes = Some(large);
        worker.invoke(&long).unwrap();
        assert_eq!(worker.outputs(&long), [[7; 8]]);
        // One lane gives back while another has a call.
        let sent = worker.begin(&call_of(&worker, 1, 0, round));
        worker.send(&ToWorker::GiveBack { lanes: 0b10 });
        all_done(&mut worker, vec![sent]);
        if worker.leased.take().is_none() {
            worker.until_leased();
        }
        assert_eq!(worker.give_back(0), small, "the first lane keeps what it has");
    }
    worker.end().unwrap();
}

/// What a worker says about calls.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Done(u64),
}

fn said(worker: &mut Worker) -> Said {
    let said = worker.answer(|message| match message {
        FromWorker::Done { call, .. } => Said::Done(call),
        other => panic!("{other:?}"),
    });
    said.expect("the worker ended")
}

/// Many settings come and go, and no answer to a call between them.
fn nothing_is_said(worker: &mut Worker) {
    for _ in 0..100 {
        worker.configure(|_| ());
        worker.until_leased();
    }
}

pub fn work_is_submitted_in_turns_only<T: GpuUnderTest>() {
    let mut worker = worker::<T>();
    worker.install(1, &copying(1000), T::probes(), &[]);
    worker.configure(|settings| settings.turns = true);
    worker.until_leased();
    for nth in 1..5 {
        let turn = TurnId::new(nth.into());
        let calls = [0, 1].map(|lane| call_of(&worker, 1, lane, nth));
        let sent = calls.each_ref().map(|call| worker.begin(call));
        nothing_is_said(&mut worker);
        assert_eq!(worker.outputs(&calls[0]), [[UNTOUCHED; BYTES as usize]]);
        worker.send(&ToWorker::Soon);
        worker.grant(turn, 5000);
        all_done(&mut worker, sent.to_vec());
        assert_eq!(worker.outputs(&calls[1]), [[nth; BYTES as usize]]);
        worker.revoke(turn);
        assert!(matches!(worker.yields(), Yield::Over { turn: over, .. } if over == turn));
    }
    worker.end().unwrap();
}

pub fn a_turn_ends_with_its_quantum_and_its_running_calls<T: GpuUnderTest>() {
    let mut worker = worker::<T>();
    worker.install(1, &copying(200_000_000), T::probes(), &[]);
    let call = call_of(&worker, 1, 0, 1);
    worker.invoke(&call).unwrap();
    worker.configure(|settings| settings.turns = true);
    worker.until_leased();
    let first = TurnId::new(1);
    worker.grant(first, 1000);
    let running = worker.begin(&call);
    worker.revoke(first);
    assert_eq!(worker.yields(), Yield::Ending(first));
    // Too late for this turn.
    let late = call_of(&worker, 1, 1, 2);
    let late = worker.begin(&late);
    assert_eq!(said(&mut worker), Said::Done(running));
    assert!(matches!(worker.yields(), Yield::Over { turn, .. } if turn == first));
    nothing_is_said(&mut worker);
    worker.grant(TurnId::new(2), 1000);
    assert_eq!(said(&mut worker), Said::Done(late));
    worker.end().unwrap();
}

pub fn a_fault_beside_other_calls_blames_none_of_them<T: GpuUnderTest>() {
    let mut worker = worker::<T>();
    worker.install(1, &copying(1_000_000), T::probes(), &[]);
    worker.install(2, &filling(8, &[launch("illegal", &i64(64))]), T::probes(), &[]);
    let calls: Vec<_> = (1..LANES).map(|lane| call_of(&worker, 1, lane, 5)).collect();
    for call in &calls {
        worker.begin(call);
    }
    worker.begin(&Call::on(2, 0, &[], OUTPUTS_AT, &[8]));
    // Answers of those that ended before are fine; the guilty call gets none.
    while let Some((call, result)) = worker.finished() {
        assert!(result.is_ok() && call < u64::from(LANES), "{call}: {result:?}");
    }
    let fault = worker.breaks();
    assert_eq!(fault.kernel, None, "{fault}");
}

pub fn weights_travel_as_device_memory<T: GpuUnderTest>() {
    let weights = [9u8; 300];
    let json = |step: String| {
        Blueprint {
            inputs: &[],
            weights: &["w"],
            buffers: &[("out", 300)],
            outputs: &["out"],
            steps: &[step],
        }
        .json()
    };
    let read = json(launch("copy", &[ptr("w"), ptr("out"), i64(300)].join(",")));
    let write = json(launch("fill", &[ptr("w"), i64(1), i64(300)].join(",")));
    let mut packed = weights.to_vec();
    packed.resize(512, 0);
    let packed = memfd::sealed("weights", &packed).unwrap();
    let form = pappus_protocol::to_worker::WeightsForm::Export;
    let mut first = T::worker();
    first.install_with(1, &read, &[T::probes()], vec![300], form, packed.as_fd());
    let exported = first.answer(|message| match message {
        FromWorker::Exported { function, bytes } if function == FunctionId::new(1) => bytes,
        other => panic!("{other:?}"),
    });
    let bytes = exported.expect("the worker ended");
    let memory = control::recv(&first.control, 1, 1).unwrap().remove(0);
    assert_eq!(first.call(1, &[], &[300]).unwrap(), [weights]);

    let form = pappus_protocol::to_worker::WeightsForm::Device(bytes);
    let with = |json: &str| {
        let mut worker = T::worker();
        worker.install_with(1, json, &[T::probes()], vec![300], form, memory.as_fd());
        worker
    };
    let mut second = with(&read);
    assert_eq!(second.call(1, &[], &[300]).unwrap(), [weights]);
    let mut writer = with(&write);
    let fault = writer.call_alone(1, &[], &[300]).unwrap_err();
    assert_eq!((fault.code, fault.kernel), (FaultCode::KernelTrap, Some(0)), "{fault}");
    writer.breaks();
    for worker in [&mut first, &mut second] {
        assert_eq!(worker.call(1, &[], &[300]).unwrap(), [weights], "nothing changed");
    }
    // The memory outlives the process that made it.
    first.kill();
    assert_eq!(with(&read).call(1, &[], &[300]).unwrap(), [weights]);
    second.end().unwrap();
}

/// The state of a session, twice over.
const STATE: u64 = 40;
/// More than a kernel of ours copies.
const STATE_BYTES: u64 = (1 << 20) + 4096;

/// A worker whose functions 1 and 2 copy an input of 24 and of [`STATE_BYTES`] bytes.
fn keeping_state<T: GpuUnderTest>() -> Worker {
    let mut worker = T::worker();
    for (function, bytes) in [(1, 24), (2, STATE_BYTES)] {
        let json = Blueprint {
            inputs: &["in"],
            weights: &[],
            buffers: &[("out", bytes)],
            outputs: &["out"],
            steps: &[launch("copy", &[ptr("in"), ptr("out"), i64(bytes)].join(","))],
        };
        worker.install(function, &json.json(), T::probes(), &[]);
    }
    worker
}

/// Copies bytes from one place to another.
fn copies(worker: &mut Worker, from: (u64, u64), to: (u64, u64), bytes: u64) {
    let mut call = worker.arena_call(if bytes == 24 { 1 } else { 2 }, &[], &[]);
    call.items = vec![item(0, Item::ARENA, from.0, from.1, bytes)];
    call.outputs = vec![target(to.0, to.1, bytes)];
    // Step by step, timed, as a graph.
    for _ in 0..4 {
        worker.invoke(&call).unwrap();
    }
}

/// Has a worker make memory for a state; the memory's descriptor.
fn made(worker: &mut Worker, arena: &ValidatedMemfd) -> OwnedFd {
    control::send(worker.control.as_fd(), STATE, &[arena.as_fd()]).unwrap();
    worker.send(&ToWorker::OpenState { arena: ArenaId::new(STATE), form: StateForm::Make });
    let told = worker.answer(|message| match message {
        FromWorker::State { arena, bytes } => (arena.get(), bytes),
        other => panic!("{other:?}"),
    });
    assert_eq!(told, Some((STATE, 2 * STATE_BYTES)));
    control::recv(&worker.control, STATE, 1).unwrap().remove(0)
}

/// Has a worker map the memory of a state.
fn maps(worker: &mut Worker, arena: &ValidatedMemfd, memory: &OwnedFd) {
    control::send(worker.control.as_fd(), STATE, &[arena.as_fd(), memory.as_fd()]).unwrap();
    worker.send(&ToWorker::OpenState { arena: ArenaId::new(STATE), form: StateForm::Device });
}

pub fn a_state_that_is_closed_behind_a_call_may_be_opened_before_that_is_over<T: GpuUnderTest>() {
    let arena = memfd::arena("state", 2 * STATE_BYTES).unwrap();
    let mut worker = keeping_state::<T>();
    let memory = made(&mut worker, &arena);
    let mut call = worker.arena_call(1, &[b"four and twenty letters!"], &[24]);
    call.outputs = vec![target(STATE, STATE_BYTES, 24)];
    worker.configure(|settings| settings.turns = true);
    worker.until_leased();
    // Its turn does not come before both.
    let waits = worker.begin(&call);
    worker.send(&ToWorker::CloseArena { arena: ArenaId::new(STATE) });
    maps(&mut worker, &arena, &memory);
    let turn = TurnId::new(1);
    worker.grant(turn, 5000);
    assert_eq!(said(&mut worker), Said::Done(waits));
    let mut call = worker.arena_call(1, &[], &[24]);
    call.items = vec![item(0, Item::ARENA, STATE, STATE_BYTES, 24)];
    worker.invoke(&call).unwrap();
    assert_eq!(worker.outputs(&call), [b"four and twenty letters!"]);
    worker.send(&ToWorker::CloseArena { arena: ArenaId::new(STATE) });
    assert_eq!(worker.invoke(&call).unwrap_err().code, FaultCode::BadInvoke);
    worker.end().unwrap();
}

/// Two buffers of a state are copied at once where they lie alike in the lane; each is what it was.
pub fn a_state_of_several_buffers_comes_and_goes_with_each_of_them<T: GpuUnderTest>() {
    const FIRST: u64 = 24;
    const SECOND: u64 = 300;
    /// Where the second one lies, as a session places it.
    const AT: u64 = 256;
    let mut worker = T::worker();
    // What was, and what comes in its place.
    let steps =
        [("k", "was_k", FIRST), ("v", "was_v", SECOND), ("new_k", "k", FIRST), ("new_v", "v", SECOND)];
    let json = Blueprint {
        inputs: &["k", "v", "new_k", "new_v"],
        weights: &[],
        buffers: &[("was_k", FIRST), ("was_v", SECOND)],
        outputs: &["was_k", "was_v", "k", "v"],
        steps: &steps.map(|(from, to, bytes)| launch("copy", &[ptr(from), ptr(to), i64(bytes)].join(","))),
    };
    worker.install(3, &json.json(), T::probes(), &[]);
    let arena = memfd::arena("state", 2 * STATE_BYTES).unwrap();
    let _memory = made(&mut worker, &arena);
    let mut was = [vec![0; FIRST as usize], vec![0; SECOND as usize]];
    // Step by step, timed, as a graph, which comes again.
    for round in 1..=5_u8 {
        let new = [vec![round; FIRST as usize], vec![100 + round; SECOND as usize]];
        let mut call = worker.arena_call(3, &[&new[0], &new[1]], &[FIRST, SECOND]);
        call.items.iter_mut().zip(2_u32..).for_each(|(given, input)| given.input = input.into());
        let kept = [item(0, Item::ARENA, STATE, 0, FIRST), item(1, Item::ARENA, STATE, AT, SECOND)];
        call.items.splice(0..0, kept);
        call.outputs.extend([target(STATE, 0, FIRST), target(STATE, AT, SECOND)]);
        worker.invoke(&call).unwrap();
        let seen = [
            worker.read_arena(call.outputs[0].offset.into(), FIRST),
            worker.read_arena(call.outputs[1].offset.into(), SECOND),
        ];
        assert_eq!(seen, was, "round {round}");
        was = new;
    }
    worker.end().unwrap();
}

pub fn the_state_of_a_session_outlives_the_worker_that_made_it<T: GpuUnderTest>() {
    let arena = memfd::arena("state", 2 * STATE_BYTES).unwrap();
    let mut first = keeping_state::<T>();
    let memory = made(&mut first, &arena);
    let other = STATE_BYTES;
    copies(&mut first, (STATE, other + 100), (ARENA, OUTPUTS_AT), 24);
    assert_eq!(first.read_arena(OUTPUTS_AT, 24), [0; 24], "zero at first");
    first.arena.write(0, b"four and twenty letters!").unwrap();
    copies(&mut first, (ARENA, 0), (STATE, 8), 24);
    copies(&mut first, (STATE, 0), (STATE, other), STATE_BYTES);
    // The memory outlives the process that made it.
    first.kill();
    let mut second = keeping_state::<T>();
    maps(&mut second, &arena, &memory);
    copies(&mut second, (STATE, other + 8), (ARENA, OUTPUTS_AT), 24);
    assert_eq!(second.read_arena(OUTPUTS_AT, 24), b"four and twenty letters!");
    let unused = Mapping::read_only(&arena).unwrap();
    let mut bytes = [1; 24];
    unused.read(other + 8, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 24], "nothing of it came to the host");
    second.send(&ToWorker::CloseArena { arena: ArenaId::new(STATE) });
    let mut call = second.arena_call(1, &[], &[]);
    (call.items, call.outputs) = (vec![item(0, Item::ARENA, STATE, 0, 24)], vec![target(ARENA, 0, 24)]);
    assert_eq!(second.invoke(&call).unwrap_err().code, FaultCode::BadInvoke);
    // What is no memory of the device cannot be mapped: that is nobody's mistake.
    let none = memfd::sealed("none", b"none").unwrap();
    maps(&mut second, &arena, &none.as_fd().try_clone_to_owned().unwrap());
    assert_eq!(second.invoke(&call).unwrap_err().code, FaultCode::Exhausted);
    second.end().unwrap();
}
