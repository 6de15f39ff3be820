//! Calls whose worker ends under them: they run again, alone, and their caller sees nothing but the time it took.

use std::time::Duration;

use pappus_client::{Client, Code, Invocation};
use rustix::process::Signal;
use serde_json::json;

use crate::fixture::{Supervisor, signal, until};
use crate::kit::{self, Function, constant, launch, ptr, refused};

/// Registers `in` → `out` = `in`, which takes about a second.
fn add_slow_copy(client: &mut Client) {
    let copied = launch("copy", &[ptr("in"), ptr("out"), json!({"I64": {"Sizeof": "in"}})]);
    let function = Function {
        inputs: &["in"],
        buffers: &[("out", json!({"Sizeof": "in"}))],
        outputs: &["out"],
        steps: &[launch("work", &[constant(100_000_000)]), copied],
        ..Function::default()
    };
    function.add(client, "slow");
}

fn supervisor(device: &str) -> (Supervisor, Client) {
    let (supervisor, mut client) = kit::copy_and_spin_with(&["--device", device]);
    add_slow_copy(&mut client);
    (supervisor, client)
}

const ONE: &str = "cpu:workers=1,memory=16MiB";

#[test]
fn a_call_outlives_its_worker_however_its_bytes_came() {
    let (supervisor, mut client) = supervisor(ONE);
    let mut arena = client.open_arena(4096).unwrap();
    let (input, output) = (arena.store(b"region").unwrap(), arena.alloc(6).unwrap());
    let inline = Invocation::new("slow").input("in", b"inline".to_vec()).output("out");
    let region = Invocation::new("slow").input("in", input).output_to("out", output);
    for call in [inline, region] {
        let id = client.send_invocation(&call).unwrap();
        supervisor.kill_busy(None);
        let answer = client.wait_invoked(id).unwrap();
        assert!([&b"inline"[..], b""].contains(&&answer.outputs[0].inline[..]), "{answer:?}");
    }
    assert_eq!(arena.load(output).unwrap(), b"region");
    let device = supervisor.device();
    assert_eq!((device.completed, device.failed, device.workers[0].restarts), (2, 0, 2));
}

#[test]
fn calls_that_wait_keep_their_order_behind_the_one_that_runs_again() {
    let (supervisor, mut client) = supervisor(ONE);
    let slow = Invocation::new("slow").input("in", b"slow".to_vec()).output("out");
    let slow = client.send_invocation(&slow).unwrap();
    supervisor.until_running();
    let copy = Invocation::new("copy").input("in", b"copy".to_vec()).output("out");
    let waiting = [(); 5].map(|()| client.send_invocation(&copy).unwrap());
    until("they wait", || supervisor.device().queued == 5);
    supervisor.kill_busy(None);
    for id in waiting {
        assert_eq!(&client.wait_invoked(id).unwrap().outputs[0].inline[..], b"copy");
    }
    // It was answered before them: nothing is left to run.
    assert_eq!(supervisor.device().running, 0);
    assert_eq!(&client.wait_invoked(slow).unwrap().outputs[0].inline[..], b"slow");
}

#[test]
fn outputs_of_a_call_that_is_given_up_are_zero() {
    let (supervisor, mut client) = supervisor(ONE);
    let function = Function {
        buffers: &[("out", kit::absolute(64))],
        outputs: &["out"],
        steps: &[launch("spin", &[])],
        ..Function::default()
    };
    function.add(&mut client, "stuck");
    let mut arena = client.open_arena(4096).unwrap();
    let output = arena.store(&[0xee; 64]).unwrap();
    let stuck = client.send_invocation(&Invocation::new("stuck").output_to("out", output)).unwrap();
    supervisor.kill_call();
    kit::fails(&mut client, stuck, Code::WorkerLost);
    assert_eq!(arena.load(output).unwrap(), [0; 64]);
}

#[test]
fn a_deadline_counts_from_arrival_however_often_a_call_runs() {
    let (supervisor, mut client) = supervisor(ONE);
    kit::works(&mut client);
    let spin = Invocation::new("spin").deadline(Duration::from_millis(500));
    let spin = client.send_invocation(&spin).unwrap();
    supervisor.kill_busy(None);
    kit::fails(&mut client, spin, Code::DeadlineExceeded);
    kit::works(&mut client);
}

#[test]
fn a_cancelled_call_is_not_retried_when_its_worker_is_killed() {
    let (supervisor, mut client) = supervisor(ONE);
    let spin = client.send_invocation(&Invocation::new("spin")).unwrap();
    supervisor.until_running();
    client.cancel(spin).unwrap();
    kit::fails(&mut client, spin, Code::Cancelled);
    supervisor.kill_busy(None);
    // The guilty call does not run again, so another one does.
    kit::works(&mut client);
    assert_eq!(supervisor.device().running, 0);
}

#[test]
fn a_worker_that_is_stopped_and_killed_loses_nothing() {
    let (supervisor, mut client) = supervisor(ONE);
    kit::works(&mut client);
    let pid = supervisor.worker_pids()[0];
    signal(pid, Signal::STOP);
    let copy = Invocation::new("copy").input("in", b"abc".to_vec()).output("out");
    let ids = [(); 3].map(|()| client.send_invocation(&copy).unwrap());
    until("one is handed over", || supervisor.device().running == 1);
    signal(pid, Signal::KILL);
    for id in ids {
        assert_eq!(&client.wait_invoked(id).unwrap().outputs[0].inline[..], b"abc");
    }
    refused(client.invoke(&Invocation::new("nobody")), Code::NotFound, "");
}
