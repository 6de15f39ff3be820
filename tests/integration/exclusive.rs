//! Calls that need more than one worker's memory: they get the whole device, and the others get it back.

use std::time::Duration;

use pappus_client::{Client, Code, Invocation};
use rustix::process::Signal;

use crate::fixture::{Supervisor, signal, until};
use crate::kit::as_stranger;
use crate::kit::{self, Function, absolute, constant, launch, ptr};

/// More than the 8 MiB that each of the two workers has.
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
    let pids = supervisor.worker_pids();
    let copy = Invocation::new("copy").input("in", b"abc".to_vec()).output("out");
    for _ in 0..5 {
        let calls = [copy.clone(), copy.clone(), large(), copy.clone(), large(), large(), copy.clone()];
        let ids = calls.map(|call| client.send_invocation(&call).unwrap());
        for (nth, id) in ids.into_iter().enumerate() {
            match nth {
                2 | 4 | 5 => filled(&mut client, id),
                _ => assert_eq!(&client.wait_invoked(id).unwrap().outputs[0].inline[..], b"abc"),
            }
        }
    }
    assert_eq!((supervisor.worker_pids(), supervisor.device().failed), (pids, 0));
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
    let (supervisor, mut client) = supervisor(DEVICE);
    kit::works(&mut client);
    let pids = supervisor.worker_pids();
    // The first worker has the domain and gets everything: the other one is to give.
    signal(pids[1], Signal::STOP);
    let id = client.send_invocation(&large()).unwrap();
    filled(&mut client, id);
    let after = supervisor.worker_pids();
    assert!(after[0] == pids[0] && after[1] != pids[1], "{pids:?} → {after:?}");
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
