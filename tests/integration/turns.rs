//! Workers of a device that take turns, and what becomes of a turn whose worker is gone.

use std::time::{Duration, Instant};

use pappus_client::{Client, Invocation};
use rustix::process::Signal;

use crate::fixture::{Supervisor, signal, ticks, until};
use crate::kit;
use crate::kit::as_stranger;

const DEVICE: &str = "cpu:workers=2,memory=16MiB,turns=on,quantum=1ms";

fn both() -> (Supervisor, Client, Option<Client>) {
    let supervisor = Supervisor::with(&["--device", DEVICE]);
    let mut own = supervisor.client();
    let mut stranger = as_stranger(|| supervisor.client());
    for client in [Some(&mut own), stranger.as_mut()].into_iter().flatten() {
        kit::add_copy(client);
        kit::add_spin(client);
    }
    (supervisor, own, stranger)
}

/// Sends `count` calls at once; their answers come later.
fn send(client: &mut Client, count: usize) -> Vec<u64> {
    let copy = Invocation::new("copy").input("in", b"turn".to_vec()).output("out");
    (0..count).map(|_| client.send_invocation(&copy).unwrap()).collect()
}

fn answered(client: &mut Client, ids: Vec<u64>) {
    for id in ids {
        assert_eq!(&client.wait_invoked(id).unwrap().outputs[0].inline[..], b"turn");
    }
}

#[test]
fn every_tenant_gets_the_device_in_turn() {
    let (supervisor, mut own, stranger) = both();
    let Some(mut stranger) = stranger else {
        let ids = send(&mut own, 200);
        return answered(&mut own, ids);
    };
    for _ in 0..5 {
        let (mine, theirs) = (send(&mut own, 100), send(&mut stranger, 100));
        answered(&mut stranger, theirs);
        answered(&mut own, mine);
    }
    let device = supervisor.device();
    assert_eq!((device.completed, device.failed), (1000, 0));
    // No worker yielded a turn that it did not have.
    assert!(!supervisor.log().contains("it yielded a turn that it does not have"));
    assert!(killed_holders(&supervisor) < 5);
}

/// How many workers were killed because they kept a turn without calls for 100 ms. One that is told to yield may need as
/// long on a machine with other work, but not at every change.
fn killed_holders(supervisor: &Supervisor) -> usize {
    supervisor.log().matches("a worker without calls keeps its turn").count()
}

#[test]
fn an_idle_holder_yields_at_once() {
    let (supervisor, mut own, stranger) = both();
    let Some(mut stranger) = stranger else {
        return kit::works(&mut own);
    };
    for _ in 0..20 {
        kit::works(&mut own);
        kit::works(&mut stranger);
    }
    assert!(killed_holders(&supervisor) < 20);
}

/// Nobody polls where nothing is contended, whatever was contended before.
#[test]
fn idle_workers_and_their_threads_sleep() {
    let (supervisor, mut own, stranger) = both();
    let Some(mut stranger) = stranger else {
        return kit::works(&mut own);
    };
    for _ in 0..5 {
        let (mine, theirs) = (send(&mut own, 100), send(&mut stranger, 100));
        answered(&mut stranger, theirs);
        answered(&mut own, mine);
    }
    let processes: Vec<u32> = [supervisor.worker_pids(), vec![supervisor.pid()]].concat();
    let used = || processes.iter().map(|pid| ticks(*pid)).sum::<u64>();
    // One that polls takes all of a processor: a tenth of a second in each.
    let passes = |time: Duration| {
        let (before, start) = (used(), Instant::now());
        until("time passes", || start.elapsed() > time);
        used() - before
    };
    until("all sleep", || passes(Duration::from_millis(100)) == 0);
}

/// The process that waits for the turn is gone, together with its page: its calls run in another process.
#[test]
fn a_worker_that_ends_while_it_waits_is_replaced() {
    let (supervisor, mut own, stranger) = both();
    let Some(mut stranger) = stranger else {
        return kit::works(&mut own);
    };
    kit::works(&mut stranger);
    let theirs = supervisor.worker_pids();
    kit::works(&mut own);
    let before = supervisor.worker_pids();
    let waits: Vec<u32> = before.iter().copied().filter(|pid| theirs.contains(pid)).collect();
    for round in 0..3 {
        let spin = Invocation::new("spin").deadline(Duration::from_millis(300));
        let spin = own.send_invocation(&spin).unwrap();
        supervisor.until_running();
        let ids = send(&mut stranger, 5);
        if round == 0 && waits.len() == 1 {
            signal(waits[0], Signal::KILL);
        }
        answered(&mut stranger, ids);
        kit::fails(&mut own, spin, pappus_client::Code::DeadlineExceeded);
    }
    kit::works(&mut own);
    kit::works(&mut stranger);
}

#[test]
fn a_worker_that_ends_leaves_its_turn() {
    let (supervisor, mut own, stranger) = both();
    let Some(mut stranger) = stranger else {
        return kit::works(&mut own);
    };
    kit::works(&mut own);
    kit::works(&mut stranger);
    let spin = Invocation::new("spin").deadline(Duration::from_millis(300));
    let spin = own.send_invocation(&spin).unwrap();
    supervisor.until_running();
    let ids = send(&mut stranger, 10);
    answered(&mut stranger, ids);
    kit::fails(&mut own, spin, pappus_client::Code::DeadlineExceeded);
    kit::works(&mut own);
}
