//! The loop with several calls in flight, on a device that finishes them when it is told to.

#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;

#[path = "lanes/accepted.rs"]
mod accepted;
#[path = "lanes/scripted.rs"]
mod scripted;

use std::sync::{Arc, Mutex};

use harness::calls::Call;
use harness::{ARENA, Worker};
use pappus_protocol::to_worker::{Invoke, Load, WeightsForm};
use pappus_protocol::turn_page::Yield;
use pappus_protocol::{ArenaId, FaultCode, FromWorker, FunctionId, LaneId, ToWorker, TurnId};
use scripted::{Script, Scripted};

const CONFIG: &str = include_str!("../../kernels/configs/hello.json");
const TURN: TurnId = TurnId::new(7);

fn worker(polls: [&[u32]; 2]) -> (Worker, Arc<Mutex<Script>>) {
    let polls = polls.map(|lane| lane.iter().copied().collect());
    let script = Arc::new(Mutex::new(Script { polls, ..Script::default() }));
    let device = Scripted(script.clone());
    let mut worker = Worker::start(|| device);
    worker.install(1, CONFIG, b"code", &[]);
    (worker, script)
}

/// Sends everything before anything is read.
fn invoke(worker: &mut Worker, lanes: &[u32]) {
    invoke_with(worker, lanes, 0);
}

/// The same, with so much memory for each lane.
fn invoke_with(worker: &mut Worker, lanes: &[u32], memory_bytes: u64) {
    for (call, &lane) in (1..).zip(lanes) {
        let invoke = Invoke {
            function: FunctionId::new(1),
            deadline_ns: u64::MAX,
            memory_bytes,
            lane: LaneId::new(lane),
            descriptors: 0,
            flags: 0,
            calls: 1,
            items: &[],
            outputs: &[],
            scalars: &[],
        };
        worker.to.push_to_worker(&ToWorker::Invoke { call, invoke });
    }
}

/// `hello` with weights of four bytes.
fn weighted() -> String {
    CONFIG.replace(r#""inputs": [],"#, r#""inputs": [], "weights": ["w"],"#)
}

/// `hello` with an output of eight bytes.
fn writing() -> String {
    let config = CONFIG.replace(r#""buffers": {}"#, r#""buffers": {"out": {"Absolute": 8}}"#);
    config.replace(r#""outputs": []"#, r#""outputs": ["out"]"#)
}

/// A call of function 3, which is that one, with a region in the arena.
fn writes(lane: u32) -> Call<'static> {
    Call { memory_bytes: Some(4096), ..Call::on(3, 0, &[], 0, &[8]).lane(lane) }
}

/// A worker with function 1 and function 2, whose weights arrive after so many polls.
fn worker_that_loads(polls: [&[u32]; 2], loads: &[u32]) -> (Worker, Arc<Mutex<Script>>) {
    let (mut worker, script) = worker(polls);
    script.lock().unwrap().loads.extend(loads);
    worker.install(2, &weighted(), b"code", &[b"good"]);
    (worker, script)
}

/// A call of a function.
fn call(worker: &mut Worker, call: u64, function: u64, lane: u32, deadline_ns: u64) {
    push_call(worker, call, function, lane, deadline_ns);
    worker.to.flush_blocking().unwrap();
}

/// A call that is sent with the next one.
fn push_call(worker: &mut Worker, call: u64, function: u64, lane: u32, deadline_ns: u64) {
    let invoke = Invoke {
        function: FunctionId::new(function),
        deadline_ns,
        memory_bytes: 0,
        lane: LaneId::new(lane),
        descriptors: 0,
        flags: 0,
        calls: 1,
        items: &[],
        outputs: &[],
        scalars: &[],
    };
    worker.to.push_to_worker(&ToWorker::Invoke { call, invoke });
}

/// The next answer to a call: which one, and the code of its fault.
fn ended(worker: &mut Worker) -> (u64, Option<FaultCode>) {
    let (call, result) = worker.finished().unwrap();
    (call, result.err().map(|fault| fault.code))
}

#[test]
fn a_call_waits_for_its_weights_and_others_do_not() {
    let (mut worker, script) = worker([&[], &[]]);
    script.lock().unwrap().holds_loads = true;
    script.lock().unwrap().loads.push_back(0);
    worker.install(2, &weighted(), b"code", &[b"good"]);
    push_call(&mut worker, 1, 2, 0, u64::MAX);
    call(&mut worker, 2, 1, 1, u64::MAX);
    assert_eq!(ended(&mut worker), (2, None));
    script.lock().unwrap().holds_loads = false;
    assert_eq!(ended(&mut worker), (1, None));
    // Now they are there.
    call(&mut worker, 3, 2, 1, u64::MAX);
    assert_eq!(ended(&mut worker), (3, None));
    worker.end().unwrap();
    let events = script.lock().unwrap().events.clone();
    assert_eq!(events[..4], ["load", "start 1", "clear 1", "start 0"], "{events:?}");
}

#[test]
fn a_deadline_passes_while_weights_are_on_their_way() {
    let (mut worker, script) = worker_that_loads([&[], &[]], &[u32::MAX]);
    call(&mut worker, 1, 2, 0, pappus_protocol::now_ns() + 1_000_000);
    assert_eq!(ended(&mut worker), (1, Some(FaultCode::Deadline)));
    worker.end().unwrap();
    assert!(!script.lock().unwrap().events.contains(&"start 0".to_owned()));
}

#[test]
fn weights_that_do_not_load_fail_the_calls_that_need_them() {
    let (mut worker, _) = worker_that_loads([&[], &[]], &[]);
    call(&mut worker, 1, 2, 0, u64::MAX);
    call(&mut worker, 2, 2, 1, u64::MAX);
    assert_eq!(ended(&mut worker), (1, Some(FaultCode::Load)));
    assert_eq!(ended(&mut worker), (2, Some(FaultCode::Load)));
    call(&mut worker, 3, 1, 0, u64::MAX);
    assert_eq!(ended(&mut worker), (3, None));
    worker.end().unwrap();
}

#[test]
fn weights_leave_behind_the_calls_that_use_them() {
    let (mut worker, script) = worker_that_loads([&[500], &[]], &[0]);
    call(&mut worker, 1, 2, 0, u64::MAX);
    worker.unload(2);
    assert_eq!(ended(&mut worker), (1, None));
    // Behind their going, a call of them is a mistake.
    worker.until_unloaded();
    call(&mut worker, 2, 2, 0, u64::MAX);
    assert_eq!(ended(&mut worker), (2, Some(FaultCode::BadInvoke)));
    worker.end().unwrap();
    assert!(!script.lock().unwrap().events.contains(&"keep".to_owned()));
}

#[test]
fn weights_take_the_memory_of_those_that_they_replace() {
    let (mut worker, script) = worker_that_loads([&[], &[]], &[0, 3]);
    let good = pappus_shmem::memfd::sealed("weights", &[7; 256]).unwrap();
    let load = Load { weights: WeightsForm::Host, instead_of: Some(2) };
    worker.install_without_weights(3, &weighted(), b"code", vec![4]);
    worker.load(3, load, std::os::fd::AsFd::as_fd(&good));
    call(&mut worker, 1, 3, 0, u64::MAX);
    call(&mut worker, 2, 2, 1, u64::MAX);
    let mut both = [ended(&mut worker), ended(&mut worker)];
    both.sort_unstable_by_key(|(call, _)| *call);
    assert_eq!(both, [(1, None), (2, Some(FaultCode::BadInvoke))]);
    worker.end().unwrap();
    let events = script.lock().unwrap().events.clone();
    let loads: Vec<_> = events.iter().filter(|event| *event == "load" || *event == "keep").collect();
    assert_eq!(loads, ["load", "keep", "load"]);
}

#[test]
fn a_turn_does_not_wait_for_weights() {
    let (mut worker, _) = worker_that_loads([&[], &[]], &[50_000]);
    worker.configure(|settings| settings.turns = true);
    worker.grant(TURN, 1_000_000);
    call(&mut worker, 1, 2, 0, u64::MAX);
    worker.revoke(TURN);
    assert!(matches!(worker.yields(), Yield::Over { turn: TURN, answered: 0, .. }), "before the call");
    worker.grant(TurnId::new(8), 1_000_000);
    assert_eq!(ended(&mut worker), (1, None));
    worker.end().unwrap();
}

fn done(worker: &mut Worker) -> u64 {
    let call = worker.answer(|message| match message {
        FromWorker::Done { call, .. } => call,
        other => panic!("{other:?}"),
    });
    call.unwrap()
}

#[test]
fn a_worker_serves_another_domain_only_after_it_is_scrubbed() {
    let (mut worker, script) = worker([&[3], &[5]]);
    invoke(&mut worker, &[0, 1]);
    // What was sent before it is over first.
    worker.to.push_to_worker(&ToWorker::Scrub { handover: 9 });
    worker.to.flush_blocking().unwrap();
    assert_eq!([done(&mut worker), done(&mut worker)], [1, 2]);
    let said = worker.answer(|message| matches!(message, FromWorker::Scrubbed { handover: 9 }));
    assert_eq!(said, Some(true));
    let events = script.lock().unwrap().events.clone();
    let after = events.iter().position(|event| event == "unload").unwrap();
    assert!(events[..after].iter().any(|event| event == "clear 1"), "{events:?}");
    assert_eq!(events[after..], ["unload", "forget", "scrub", "unmap"]);
    worker.end().unwrap();
}

#[test]
fn a_turn_is_given_back_before_a_worker_is_handed_on() {
    let (mut worker, script) = worker([&[3], &[]]);
    worker.configure(|settings| settings.turns = true);
    worker.grant(TURN, 1_000_000);
    invoke(&mut worker, &[0]);
    worker.to.push_to_worker(&ToWorker::Scrub { handover: 9 });
    worker.to.flush_blocking().unwrap();
    assert_eq!(done(&mut worker), 1);
    let scrubbed = worker.answer(|message| matches!(message, FromWorker::Scrubbed { handover: 9 }));
    assert_eq!(scrubbed, Some(true));
    assert!(matches!(worker.yields(), Yield::Over { turn: TURN, answered: 1, .. }));
    worker.end().unwrap();
    // Others have the device while the host does its part.
    let events = script.lock().unwrap().events.clone();
    let after = events.iter().position(|event| event == "unload").unwrap();
    assert_eq!(events[after..], ["unload", "forget", "scrub", "settle", "unmap"]);
}

/// What another worker's kernels left on the chip is gone before this one's first; within a turn nobody else ran.
#[test]
fn a_turn_begins_with_a_scrub_where_others_may_have_left_something() {
    for finds_others in [true, false] {
        let (mut worker, script) = worker([&[0; 4], &[0; 4]]);
        script.lock().unwrap().finds_others = finds_others;
        worker.configure(|settings| settings.turns = true);
        for turn in [TURN, TurnId::new(8)] {
            worker.grant(turn, 1_000_000);
            for lanes in [&[0, 1][..], &[0]] {
                invoke(&mut worker, lanes);
                worker.to.flush_blocking().unwrap();
                for _ in lanes {
                    done(&mut worker);
                }
            }
            worker.revoke(turn);
            assert!(matches!(worker.yields(), Yield::Over { turn: over, .. } if over == turn));
        }
        worker.end().unwrap();
        let events = script.lock().unwrap().events.clone();
        let began: Vec<_> =
            events.iter().filter(|event| *event == "scrub" || event.starts_with("start")).collect();
        let turn = ["scrub", "start 0", "start 1", "start 0"];
        let turn = if finds_others { &turn[..] } else { &turn[1..] };
        assert_eq!(began, [turn, turn].concat());
    }
}

#[test]
fn a_worker_that_polls_is_not_woken_for_its_turn() {
    let (mut worker, _) = worker([&[0], &[]]);
    worker.configure(|settings| (settings.turns, settings.poll_us) = (true, u32::MAX));
    worker.until_leased();
    invoke(&mut worker, &[0]);
    worker.to.flush_blocking().unwrap();
    assert!(!worker.grant(TURN, 1_000_000), "it looks at the page");
    assert_eq!(done(&mut worker), 1);
    assert!(!worker.revoke(TURN));
    assert!(matches!(worker.yields(), Yield::Over { turn: TURN, answered: 1, .. }));
    worker.end().unwrap();
}

#[test]
fn a_worker_that_sleeps_is_woken_for_its_turn() {
    let (mut worker, _) = worker([&[0], &[]]);
    worker.configure(|settings| (settings.turns, settings.poll_us) = (true, 0));
    worker.until_leased();
    for turn in 1..20 {
        invoke(&mut worker, &[0]);
        worker.until_asleep();
        assert!(worker.grant(TurnId::new(turn), 1_000_000));
        assert_eq!(done(&mut worker), 1);
        worker.until_asleep();
        assert!(worker.revoke(TurnId::new(turn)));
        assert!(matches!(worker.yields(), Yield::Over { answered, .. } if answered == turn));
    }
    worker.end().unwrap();
}

/// Others wait: the device is theirs before the last answer is written.
#[test]
fn a_turn_is_given_back_with_its_last_call() {
    let (mut worker, script) = worker([&[0], &[]]);
    worker.configure(|settings| settings.turns = true);
    for id in 1..20 {
        let turn = TurnId::new(id);
        script.lock().unwrap().goes_on = true;
        invoke(&mut worker, &[0]);
        worker.grant(turn, 0);
        worker.revoke(turn);
        assert_eq!(worker.yields(), Yield::Ending(turn));
        script.lock().unwrap().goes_on = false;
        assert_eq!(done(&mut worker), 1);
        assert!(worker.has_yielded(), "the answer came first");
        assert!(matches!(worker.yields(), Yield::Over { answered, .. } if answered == id));
    }
    worker.end().unwrap();
    let events = script.lock().unwrap().events.clone();
    assert_eq!(events.iter().filter(|event| *event == "clear 0").count(), 19);
}

#[test]
fn a_scrubbed_worker_counts_its_answers_anew() {
    let (mut worker, _) = worker([&[0], &[]]);
    worker.configure(|settings| settings.turns = true);
    invoke(&mut worker, &[0]);
    worker.grant(TURN, 1_000_000);
    assert_eq!(done(&mut worker), 1);
    worker.scrub();
    assert!(matches!(worker.yields(), Yield::Over { turn: TURN, answered: 1, .. }));
    worker.grant(TurnId::new(8), 1_000_000);
    worker.revoke(TurnId::new(8));
    assert!(matches!(worker.yields(), Yield::Over { used_ns: 0, answered: 0, .. }));
    worker.end().unwrap();
}

#[test]
fn lanes_run_side_by_side_and_are_answered_as_they_end() {
    let (mut worker, script) = worker([&[500], &[3]]);
    invoke(&mut worker, &[0, 1]);
    worker.to.flush_blocking().unwrap();
    assert_eq!([done(&mut worker), done(&mut worker)], [2, 1]);
    worker.end().unwrap();
    assert_eq!(script.lock().unwrap().events, ["start 0", "start 1", "clear 1", "clear 0", "unload"]);
}

#[test]
fn a_busy_lane_is_finished_and_cleared_before_its_next_call() {
    let (mut worker, script) = worker([&[20, 0], &[]]);
    invoke(&mut worker, &[0, 0]);
    worker.to.flush_blocking().unwrap();
    assert_eq!([done(&mut worker), done(&mut worker)], [1, 2]);
    worker.end().unwrap();
    assert_eq!(script.lock().unwrap().events, ["start 0", "clear 0", "start 0", "clear 0", "unload"]);
}

#[test]
fn nothing_a_running_lane_uses_is_taken_away() {
    for (message, event) in [
        (Some(ToWorker::Uninstall { function: FunctionId::new(3) }), "unload"),
        (Some(ToWorker::CloseArena { arena: ArenaId::new(ARENA) }), "unmap"),
        (None, ""),
    ] {
        let (mut worker, script) = worker([&[500], &[500]]);
        worker.install(3, &writing(), b"code", &[]);
        script.lock().unwrap().lent = [4096; 2];
        worker.grant(TURN, 10_000_000);
        for lane in 0..2 {
            worker.begin(&writes(lane));
        }
        match &message {
            Some(message) => worker.send(message),
            None => drop(worker.revoke(TURN)),
        }
        let mut calls = [done(&mut worker), done(&mut worker)];
        calls.sort_unstable();
        assert_eq!(calls, [1, 2]);
        if event.is_empty() {
            assert!(matches!(worker.yields(), Yield::Over { turn: TURN, used_ns: 1.., answered: 2 }));
        }
        worker.end().unwrap();
        let events = &script.lock().unwrap().events;
        let cleared = events.iter().rposition(|event| event.starts_with("clear")).unwrap();
        let taken = events.iter().position(|other| other == event);
        assert!(taken.is_none_or(|taken| taken > cleared), "{events:?}");
    }
}

#[test]
fn a_lane_gets_more_memory_while_no_other_runs() {
    let (mut worker, script) = worker([&[500], &[3]]);
    invoke_with(&mut worker, &[0, 1], 4096);
    worker.to.flush_blocking().unwrap();
    assert_eq!([done(&mut worker), done(&mut worker)], [1, 2]);
    invoke_with(&mut worker, &[1], 4096);
    worker.to.flush_blocking().unwrap();
    assert_eq!(done(&mut worker), 1);
    worker.end().unwrap();
    let events = script.lock().unwrap().events.clone();
    let expected = [
        "grow 0 to 4096",
        "start 0",
        "clear 0",
        "grow 1 to 4096",
        "start 1",
        "clear 1",
        "start 1",
        "clear 1",
        "unload",
    ];
    assert_eq!(events, expected);
}

#[test]
fn a_lane_that_strangers_share_gets_more_memory_while_others_run() {
    let (mut worker, script) = worker([&[500], &[3]]);
    script.lock().unwrap().are_shared = true;
    invoke_with(&mut worker, &[0, 1], 4096);
    worker.to.flush_blocking().unwrap();
    assert_eq!([done(&mut worker), done(&mut worker)], [2, 1]);
    worker.end().unwrap();
    assert_eq!(
        script.lock().unwrap().events[..4],
        ["grow 0 to 4096", "start 0", "grow 1 to 4096", "start 1"]
    );
}

#[test]
fn what_waits_for_all_kernels_waits_until_no_stranger_has_one() {
    for (are_shared, beside) in [(false, &["load", "unload", "unmap"][..]), (true, &[])] {
        let (mut worker, script) = worker([&[5000, 5000, 5000], &[]]);
        worker.install(3, CONFIG, b"code", &[]);
        script.lock().unwrap().are_shared = are_shared;
        invoke(&mut worker, &[0]);
        worker.install(4, CONFIG, b"code", &[]);
        invoke(&mut worker, &[0]);
        worker.send(&ToWorker::Uninstall { function: FunctionId::new(3) });
        invoke(&mut worker, &[0]);
        worker.send(&ToWorker::CloseArena { arena: ArenaId::new(ARENA) });
        for _ in 0..3 {
            done(&mut worker);
        }
        worker.end().unwrap();
        assert_eq!(script.lock().unwrap().beside, beside, "shared: {are_shared}");
    }
}

#[test]
fn a_lane_gives_its_memory_back_while_another_runs() {
    let (mut worker, script) = worker([&[0, 500, 500], &[0]]);
    invoke_with(&mut worker, &[0, 1], 4096);
    worker.to.flush_blocking().unwrap();
    assert_eq!([done(&mut worker), done(&mut worker)], [1, 2]);
    invoke_with(&mut worker, &[0], 4096);
    worker.to.push_to_worker(&ToWorker::GiveBack { lanes: 0b10 });
    worker.to.flush_blocking().unwrap();
    // Before the call is answered.
    assert_eq!(worker.until_leased(), 4096);
    assert_eq!(done(&mut worker), 1);
    // A lane with a call has nothing to give.
    invoke_with(&mut worker, &[0], 4096);
    worker.to.push_to_worker(&ToWorker::GiveBack { lanes: 0b01 });
    worker.to.flush_blocking().unwrap();
    assert!(worker.end().is_err());
    assert!(!script.lock().unwrap().events.contains(&"take 0".to_owned()));
}

#[test]
fn calls_in_flight_die_with_the_pipe() {
    let (mut worker, script) = worker([&[u32::MAX], &[]]);
    invoke(&mut worker, &[0]);
    worker.to.flush_blocking().unwrap();
    worker.end().unwrap();
    assert_eq!(script.lock().unwrap().events, ["start 0", "unload"]);
}
