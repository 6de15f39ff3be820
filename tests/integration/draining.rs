//! Draining: accepted calls are finished and answered, new ones are refused (ATTACKS 29).

use pappus_client::{Client, Code, Error, Invocation};
use rustix::process::Signal;

use crate::fixture::{Supervisor, is_alive, signal, until};
use crate::kit::{self, constant, refused};

/// Takes long enough to be seen running, and ends by itself.
const ROUNDS: i64 = 300_000_000;

/// A supervisor on which `work` runs for its client.
fn at_work() -> (Supervisor, Client, u64) {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    kit::works(&mut client);
    kit::add_kernel(&mut client, "work", "work", &[constant(ROUNDS)]);
    let id = client.send_invocation(&Invocation::new("work")).unwrap();
    supervisor.until_running();
    (supervisor, client, id)
}

#[test]
fn sigterm_finishes_what_was_accepted_and_refuses_the_rest() {
    let (mut supervisor, mut client, work) = at_work();
    let copy = Invocation::new("copy").input("in", vec![1]);
    let waiting = client.send_invocation(&copy).unwrap();
    until("it waits", || supervisor.device().queued == 1);
    supervisor.terminate();
    let mut admin = supervisor.admin();
    until("it drains", || admin.status().unwrap().draining);
    let error = refused(client.invoke(&copy), Code::Unavailable, "draining");
    assert!(error.retryable, "{error}");
    client.wait_invoked(work).unwrap();
    client.wait_invoked(waiting).unwrap();
    assert_eq!(supervisor.ended().code(), Some(0));
}

#[test]
fn answers_that_are_read_late_are_waited_for() {
    const CALLS: usize = 64;
    let mut supervisor = Supervisor::start();
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    kit::works(&mut client);
    // More than a socket keeps.
    let copy = Invocation::new("copy").input("in", vec![7; 64 << 10]).output("out");
    let ids: Vec<_> = (0..CALLS).map(|_| client.send_invocation(&copy).unwrap()).collect();
    until("all ran", || supervisor.device().completed as usize > CALLS);
    let mut admin = supervisor.admin();
    supervisor.terminate();
    until("it drains", || admin.status().unwrap().draining);
    (0..20).for_each(|_| assert!(admin.status().unwrap().draining, "it is there still"));
    for id in ids {
        assert_eq!(client.wait_invoked(id).unwrap().outputs[0].inline.len(), 64 << 10);
    }
    assert_eq!(supervisor.ended().code(), Some(0));
}

#[test]
fn sigint_drains_too_and_an_idle_supervisor_ends_at_once() {
    let mut supervisor = Supervisor::start();
    let workers = supervisor.worker_pids();
    signal(supervisor.pid(), Signal::INT);
    assert_eq!(supervisor.ended().code(), Some(0));
    assert!(!workers.into_iter().any(is_alive));
}

#[test]
fn a_second_signal_ends_at_once() {
    let mut supervisor = Supervisor::start();
    let mut client = supervisor.client();
    kit::add_spin(&mut client);
    let spin = client.send_invocation(&Invocation::new("spin")).unwrap();
    supervisor.until_running();
    supervisor.terminate();
    let mut admin = supervisor.admin();
    until("it drains", || admin.status().unwrap().draining);
    supervisor.terminate();
    supervisor.ended();
    assert!(client.wait_invoked(spin).is_err());
}

#[test]
fn the_drain_command_works_on_the_admin_socket_only() {
    let (mut supervisor, mut client, work) = at_work();
    let ran = supervisor.pappus(&["drain"]);
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    assert!(ran.stderr.contains("admin socket"), "{}", ran.stderr);
    assert!(!supervisor.status().draining);
    let admin = supervisor.admin_socket();
    let drained = supervisor.ok(&["--socket", admin.to_str().unwrap(), "drain"]);
    assert_eq!(drained, "drained\n");
    client.wait_invoked(work).unwrap();
    assert_eq!(supervisor.ended().code(), Some(0));
}

/// A call whose function must be read from disk first is accepted as well.
#[test]
fn a_call_whose_function_is_being_loaded_is_answered_before_the_end() {
    let mut supervisor = Supervisor::start();
    kit::add_copy(&mut supervisor.client());
    supervisor.update();
    let mut client = supervisor.client();
    let call = client.send_invocation(&Invocation::new("copy").input("in", vec![1])).unwrap();
    // On one connection requests are taken in order: behind this answer the call has been accepted.
    let status = client.send(crate::raw::status(), &[]).unwrap();
    client.wait(status).unwrap();
    match supervisor.admin().drain() {
        Ok(()) | Err(Error::Lost) => {}
        Err(error) => panic!("{error}"),
    }
    client.wait_invoked(call).unwrap();
    assert_eq!(supervisor.ended().code(), Some(0));
}
