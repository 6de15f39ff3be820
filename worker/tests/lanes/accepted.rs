//! Calls that a worker has keep what they use: functions, weights and arenas go behind them, whether they run or wait.

use std::os::fd::AsFd;

use pappus_shmem::memfd;

use super::*;

/// Long enough for what is about to happen, so that a call that nothing starts fails instead of waiting for ever.
const SOON_NS: u64 = 10_000_000_000;

fn soon() -> u64 {
    pappus_protocol::now_ns() + SOON_NS
}

/// Where a message is among those that came.
fn nth(worker: &Worker, words: &str) -> usize {
    let heard = worker.heard();
    heard.iter().position(|heard| *heard == words).unwrap_or_else(|| panic!("no {words:?} in {heard:?}"))
}

fn events(script: &Arc<Mutex<Script>>) -> Vec<String> {
    script.lock().unwrap().events.clone()
}

/// Has weights of four bytes loaded for a function.
fn reload(worker: &mut Worker, function: u64, instead_of: Option<u64>) {
    let weights = memfd::sealed("weights", &[7; 256]).unwrap();
    worker.load(function, Load { weights: WeightsForm::Host, instead_of }, weights.as_fd());
}

fn uninstall(worker: &mut Worker, function: u64) {
    worker.send(&ToWorker::Uninstall { function: FunctionId::new(function) });
}

/// A worker that needs turns and has none.
fn without_turn(loads: &[u32]) -> (Worker, Arc<Mutex<Script>>) {
    let (mut worker, script) = worker_that_loads([&[], &[]], loads);
    worker.configure(|settings| settings.turns = true);
    (worker, script)
}

#[test]
fn a_function_is_forgotten_behind_calls_that_wait_for_their_turn() {
    let (mut worker, _) = without_turn(&[0]);
    call(&mut worker, 1, 1, 0, soon());
    uninstall(&mut worker, 1);
    worker.until_asleep();
    worker.grant(TURN, 1_000_000);
    assert_eq!(ended(&mut worker), (1, None));
    worker.until("Uninstalled 1");
    assert!(nth(&worker, "Done 1") < nth(&worker, "Uninstalled 1"));
    call(&mut worker, 2, 1, 0, soon());
    assert_eq!(ended(&mut worker), (2, Some(FaultCode::BadInvoke)));
    worker.end().unwrap();
}

#[test]
fn a_function_is_forgotten_behind_calls_that_wait_for_its_weights() {
    let (mut worker, script) = worker([&[], &[]]);
    (script.lock().unwrap().holds_loads, script.lock().unwrap().loads) = (true, [0].into());
    worker.install(2, &weighted(), b"code", &[b"good"]);
    call(&mut worker, 1, 2, 0, soon());
    uninstall(&mut worker, 2);
    // What the worker does next shows that it heard that.
    call(&mut worker, 2, 1, 1, soon());
    assert_eq!(ended(&mut worker), (2, None));
    script.lock().unwrap().holds_loads = false;
    assert_eq!(ended(&mut worker), (1, None));
    worker.until("Uninstalled 2");
    assert!(nth(&worker, "Done 1") < nth(&worker, "Uninstalled 2"));
    worker.end().unwrap();
}

#[test]
fn a_function_that_is_installed_again_is_another_one() {
    let (mut worker, _) = without_turn(&[0, 0]);
    worker.until("Loaded 2");
    call(&mut worker, 1, 2, 0, soon());
    uninstall(&mut worker, 2);
    worker.install(2, &weighted(), b"code", &[b"good"]);
    call(&mut worker, 2, 2, 1, soon());
    worker.until_asleep();
    worker.grant(TURN, 1_000_000);
    assert_eq!([ended(&mut worker), ended(&mut worker)], [(1, None), (2, None)]);
    // What is said of its weights is not about those of before.
    let heard = worker.heard();
    assert_eq!(heard[heard.len() - 4..], ["Done 1", "Uninstalled 2", "Loaded 2", "Done 2"]);
    worker.end().unwrap();
}

#[test]
fn what_does_not_load_is_said_behind_what_was_there_before() {
    let (mut worker, _) = without_turn(&[0]);
    call(&mut worker, 1, 1, 0, soon());
    uninstall(&mut worker, 1);
    worker.install(1, "no configuration", b"code", &[]);
    call(&mut worker, 2, 1, 1, soon());
    assert_eq!(ended(&mut worker), (2, Some(FaultCode::Load)));
    worker.grant(TURN, 1_000_000);
    assert_eq!(ended(&mut worker), (1, None));
    worker.until("NotInstalled 1");
    let heard = worker.heard();
    assert_eq!(heard[heard.len() - 4..], ["Failed 2", "Done 1", "Uninstalled 1", "NotInstalled 1"]);
    worker.end().unwrap();
}

#[test]
fn an_arena_is_closed_behind_calls_that_wait_for_their_turn() {
    let (mut worker, script) = without_turn(&[0]);
    worker.install(3, &writing(), b"code", &[]);
    let use_arena = |worker: &mut Worker, lane| worker.begin(&Call { deadline_ns: soon(), ..writes(lane) });
    let close = ToWorker::CloseArena { arena: ArenaId::new(ARENA) };
    let first = use_arena(&mut worker, 0);
    worker.send(&close);
    // It comes again with another call, and goes again.
    let memory = memfd::arena("arena", harness::ARENA_BYTES).unwrap();
    worker.open_arena(ARENA, &memory);
    let second = use_arena(&mut worker, 1);
    worker.send(&close);
    worker.until_asleep();
    worker.grant(TURN, 1_000_000);
    let mut both = [ended(&mut worker), ended(&mut worker)];
    both.sort_unstable_by_key(|(call, _)| *call);
    assert_eq!(both, [(first, None), (second, None)]);
    let third = use_arena(&mut worker, 0);
    assert_eq!(ended(&mut worker), (third, Some(FaultCode::BadInvoke)), "it is closed");
    worker.end().unwrap();
    assert_eq!(events(&script).iter().filter(|event| *event == "unmap").count(), 1);
}

#[test]
fn what_no_call_uses_goes_while_others_run() {
    let (mut worker, script) = worker_that_loads([&[u32::MAX], &[]], &[0]);
    call(&mut worker, 1, 1, 0, soon());
    uninstall(&mut worker, 2);
    worker.send(&ToWorker::CloseArena { arena: ArenaId::new(ARENA) });
    worker.until("Uninstalled 2");
    call(&mut worker, 2, 1, 1, soon());
    assert_eq!(ended(&mut worker), (2, None));
    worker.end().unwrap();
    assert!(events(&script).contains(&"unmap".to_owned()));
}

#[test]
fn weights_are_loaded_again_behind_those_that_a_call_still_uses() {
    let (mut worker, script) = worker_that_loads([&[], &[]], &[0, 0]);
    worker.until("Loaded 2");
    script.lock().unwrap().goes_on = true;
    call(&mut worker, 1, 2, 0, soon());
    worker.unload(2);
    reload(&mut worker, 2, None);
    call(&mut worker, 2, 2, 1, soon());
    script.lock().unwrap().goes_on = false;
    assert_eq!([ended(&mut worker), ended(&mut worker)], [(1, None), (2, None)]);
    assert_eq!(worker.heard()[1..], ["Done 1", "Unloaded 2", "Loaded 2", "Done 2"]);
    worker.end().unwrap();
}

#[test]
fn weights_that_leave_twice_leave_behind_the_calls_of_each_time() {
    let (mut worker, _) = without_turn(&[0, 0, 0]);
    worker.until("Loaded 2");
    call(&mut worker, 1, 2, 0, soon());
    worker.unload(2);
    reload(&mut worker, 2, None);
    call(&mut worker, 2, 2, 1, soon());
    worker.unload(2);
    uninstall(&mut worker, 2);
    worker.until_asleep();
    worker.grant(TURN, 1_000_000);
    assert_eq!([ended(&mut worker), ended(&mut worker)], [(1, None), (2, None)]);
    worker.until("Uninstalled 2");
    let words = ["Done 1", "Unloaded 2", "Loaded 2", "Done 2", "Unloaded 2", "Uninstalled 2"];
    assert_eq!(worker.heard()[1..], words);
    worker.end().unwrap();
}

#[test]
fn memory_is_kept_for_what_replaces_weights_that_a_call_still_uses() {
    let (mut worker, script) = worker_that_loads([&[], &[]], &[0, 0]);
    worker.until("Loaded 2");
    worker.install_without_weights(3, &weighted(), b"code", vec![4]);
    script.lock().unwrap().goes_on = true;
    call(&mut worker, 1, 2, 0, soon());
    reload(&mut worker, 3, Some(2));
    call(&mut worker, 2, 3, 1, soon());
    script.lock().unwrap().goes_on = false;
    assert_eq!([ended(&mut worker), ended(&mut worker)], [(1, None), (2, None)]);
    worker.end().unwrap();
    assert_eq!(events(&script)[..6], ["load", "start 0", "clear 0", "keep", "load", "start 1"]);
}

#[test]
fn a_worker_that_is_handed_on_says_first_what_left() {
    let (mut worker, _) = worker_that_loads([&[500], &[]], &[0]);
    call(&mut worker, 1, 2, 0, soon());
    worker.to.push_to_worker(&ToWorker::Unload { function: FunctionId::new(2) });
    worker.to.push_to_worker(&ToWorker::Uninstall { function: FunctionId::new(2) });
    worker.to.push_to_worker(&ToWorker::Scrub { handover: 9 });
    worker.to.flush_blocking().unwrap();
    assert_eq!(ended(&mut worker), (1, None));
    let said = worker.answer(|message| matches!(message, FromWorker::Scrubbed { handover: 9 }));
    assert_eq!(said, Some(true));
    let heard = worker.heard();
    assert_eq!(heard[heard.len() - 4..], ["Done 1", "Unloaded 2", "Uninstalled 2", "Scrubbed 9"]);
    worker.end().unwrap();
}
