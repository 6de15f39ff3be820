//! Calls that need more than half of a device's memory have the device alone, and other workers give back memory.

use std::time::Duration;

use pappus_client::{Client, Code, Invocation, v1};
use rustix::process::Signal;

use crate::fixture::{Supervisor, signal, until};
use crate::house::{config, enter};
use crate::kit::as_stranger;
use crate::kit::{self, Function, absolute, constant, launch, ptr};

/// More than half of the memory.
const LARGE: u64 = 12 << 20;
const DEVICE: &str = "cpu:workers=2,memory=16MiB";

/// Registers `large`, which fills and touches all of that, and `large-spin`, which never ends.
fn add_large(client: &mut Client) {
    let fill = launch("fill", &[ptr("all"), constant(7), constant(LARGE as i64)]);
    let pick = launch("copy", &[ptr("all"), ptr("out"), constant(8)]);
    let buffers = [("all", absolute(LARGE)), ("out", absolute(8))];
    let outputs = ["out"];
    for (name, steps) in [("large", vec![fill, pick]), ("large-spin", vec![launch("spin", &[])])] {
        let function =
            Function { buffers: &buffers, outputs: &outputs, steps: &steps, ..Function::default() };
        function.add(client, name);
    }
}

fn supervisor(device: &str) -> (Supervisor, Client) {
    let (supervisor, mut client) = kit::copy_and_spin_with(&["--device", device]);
    add_large(&mut client);
    (supervisor, client)
}

fn large() -> Invocation {
    Invocation::new("large").output("out")
}

fn filled(client: &mut Client, id: u64) {
    assert_eq!(&client.wait_invoked(id).unwrap().outputs[0].inline[..], [7; 8]);
}

#[test]
fn it_runs_between_the_calls_before_and_behind_it() {
    let (supervisor, mut client) = supervisor(DEVICE);
    let copy = Invocation::new("copy").input("in", b"abc".to_vec()).output("out");
    let mut pids = Vec::new();
    for round in 0..5 {
        let calls = [copy.clone(), copy.clone(), large(), copy.clone(), large(), large(), copy.clone()];
        let ids = calls.map(|call| client.send_invocation(&call).unwrap());
        for (nth, id) in ids.into_iter().enumerate() {
            match nth {
                2 | 4 | 5 => filled(&mut client, id),
                _ => assert_eq!(&client.wait_invoked(id).unwrap().outputs[0].inline[..], b"abc"),
            }
        }
        if round == 0 {
            pids = supervisor.worker_pids();
        }
    }
    assert_eq!(supervisor.worker_pids()[..pids.len()], pids, "memory moves, processes stay");
    assert_eq!(supervisor.device().failed, 0);
}

#[test]
fn others_wait_until_it_is_over() {
    let (supervisor, mut client) = supervisor(DEVICE);
    kit::works(&mut client);
    let spin = Invocation::new("large-spin").deadline(Duration::from_millis(300));
    let spin = client.send_invocation(&spin).unwrap();
    supervisor.until_running();
    let copy = Invocation::new("copy").input("in", b"abc".to_vec()).output("out");
    let waiting = client.send_invocation(&copy).unwrap();
    until("it waits", || supervisor.device().queued == 1);
    // There is another worker, but its memory is lent.
    assert_eq!(supervisor.device().running, 1);
    kit::fails(&mut client, spin, Code::DeadlineExceeded);
    assert_eq!(&client.wait_invoked(waiting).unwrap().outputs[0].inline[..], b"abc");
    let id = client.send_invocation(&large()).unwrap();
    filled(&mut client, id);
}

#[test]
fn its_worker_is_killed_and_it_runs_again() {
    for device in [DEVICE, "cpu:workers=2,memory=16MiB,standbys=2"] {
        let (supervisor, mut client) = supervisor(device);
        let spin = client.send_invocation(&Invocation::new("large-spin")).unwrap();
        supervisor.kill_call();
        kit::fails(&mut client, spin, Code::WorkerLost);
        let id = client.send_invocation(&large()).unwrap();
        filled(&mut client, id);
        kit::works(&mut client);
    }
}

#[test]
fn one_that_is_cancelled_or_late_gives_everything_back() {
    let (supervisor, mut client) = supervisor(DEVICE);
    let spin = Invocation::new("spin").deadline(Duration::from_millis(200));
    let spin = client.send_invocation(&spin).unwrap();
    supervisor.until_running();
    let cancelled = client.send_invocation(&large()).unwrap();
    let late = client.send_invocation(&large().deadline(Duration::from_millis(20))).unwrap();
    kit::fails(&mut client, late, Code::DeadlineExceeded);
    client.cancel(cancelled).unwrap();
    kit::fails(&mut client, cancelled, Code::Cancelled);
    // The other worker is there for others at once.
    kit::works(&mut client);
    kit::fails(&mut client, spin, Code::DeadlineExceeded);
    let id = client.send_invocation(&large()).unwrap();
    filled(&mut client, id);
}

#[test]
fn a_worker_that_does_not_give_its_memory_is_replaced() {
    let tenants = [("alice", ""), ("bob", "")];
    let supervisor = Supervisor::configured(&config(&tenants), &["--device", DEVICE]);
    let [mut alice, mut bob] = tenants.map(|(name, _)| enter(&supervisor, name));
    let medium = Function { buffers: &[("b", absolute(6 << 20))], ..Function::default() };
    medium.add(&mut bob, "medium");
    add_large(&mut alice);
    let call = Invocation::new("medium");
    bob.invoke(&call).unwrap();
    let before = supervisor.worker_pids();
    // The control: a worker gives back lent memory.
    let id = alice.send_invocation(&large()).unwrap();
    filled(&mut alice, id);
    assert!(before.iter().all(|pid| supervisor.worker_pids().contains(pid)));
    bob.invoke(&call).unwrap();
    let serves = |worker: &v1::WorkerStatus| worker.caller == "bob";
    let bobs = supervisor.device().workers.into_iter().find(serves).unwrap();
    assert_eq!(bobs.lent_bytes, 6 << 20);
    signal(bobs.pid, Signal::STOP);
    let id = alice.send_invocation(&large()).unwrap();
    filled(&mut alice, id);
    assert!(!supervisor.worker_pids().contains(&bobs.pid));
    let gone = supervisor.device().workers.into_iter().find(|worker| worker.last_gone == "killed");
    assert!(gone.is_some(), "{:?}", supervisor.device().workers);
    bob.invoke(&call).unwrap();
}

#[test]
fn tenants_take_turns_with_the_whole_device() {
    for device in [DEVICE, "cpu:workers=2,memory=16MiB,turns=on", "cpu:workers=1,memory=16MiB"] {
        let (supervisor, mut own) = supervisor(device);
        let Some(mut stranger) = as_stranger(|| supervisor.client()) else {
            return kit::works(&mut own);
        };
        add_large(&mut stranger);
        for _ in 0..3 {
            let mine = own.send_invocation(&large()).unwrap();
            let theirs = stranger.send_invocation(&large()).unwrap();
            filled(&mut own, mine);
            filled(&mut stranger, theirs);
        }
    }
}
