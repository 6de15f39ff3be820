//! Sessions: state stays from call to call, in order, and changes with the calls that are answered with their outputs alone.

use pappus_client::{Client, Code, Invocation, Result, v1};
use serde_json::json;

use crate::fixture::{Supervisor, until};
use crate::house::{enter, house};
use crate::kit::{self, Function, absolute, constant, fails, launch, refused};

fn open(client: &mut Client) -> u64 {
    client.open_session("last").unwrap().session
}

fn call(function: &str, session: u64, brings: u64) -> Invocation {
    Invocation::new(function).session(session).input("in", brings.to_le_bytes().to_vec()).output("out")
}

fn word(answer: &v1::Invoked) -> u64 {
    u64::from_le_bytes(answer.outputs[0].inline[..].try_into().unwrap())
}

/// What the call before brought.
fn said(client: &mut Client, session: u64, brings: u64) -> Result<u64> {
    client.invoke(&call("last", session, brings)).map(|answer| word(&answer))
}

fn start() -> (Supervisor, Client) {
    start_with(&[])
}

fn start_with(flags: &[&str]) -> (Supervisor, Client) {
    let supervisor = Supervisor::with(flags);
    let mut client = supervisor.client();
    kit::add_last(&mut client, "last", &[]);
    (supervisor, client)
}

#[test]
fn each_session_has_its_state_which_begins_with_zeroes() {
    let (supervisor, mut client) = start();
    let opened = client.open_session("last").unwrap();
    let (one, other) = (opened.session, open(&mut client));
    assert_eq!((opened.state_bytes, client.show_function("last").unwrap().state_bytes), (8, 8));
    assert_eq!(said(&mut client, one, 10).unwrap(), 0);
    assert_eq!(said(&mut client, other, 20).unwrap(), 0);
    assert_eq!(said(&mut client, one, 11).unwrap(), 10);
    assert_eq!(said(&mut client, one, 12).unwrap(), 11);
    assert_eq!(said(&mut client, other, 21).unwrap(), 20);
    let sessions = supervisor.status().sessions;
    let shown: Vec<_> =
        sessions.iter().map(|one| (&*one.function, one.calls, one.open_calls, one.bytes)).collect();
    let function = format!("{}/last", rustix::process::getuid().as_raw());
    assert_eq!(shown.len(), 2);
    assert!(
        shown.contains(&(&function, 3, 0, 8192)) && shown.contains(&(&function, 2, 0, 8192)),
        "{shown:?}"
    );
    // Nothing of one that was closed is found by the next.
    client.close_session(one).unwrap();
    refused(said(&mut client, one, 0), Code::SessionLost, "no session");
    let next = open(&mut client);
    assert_eq!(said(&mut client, next, 1).unwrap(), 0);
}

#[test]
fn calls_of_a_session_run_in_the_order_in_which_they_came() {
    let (_supervisor, mut client) = start();
    let (one, other) = (open(&mut client), open(&mut client));
    let mut sent = Vec::new();
    for nth in 1..=40 {
        // The deadlines would have them run the other way round.
        let deadline = std::time::Duration::from_secs(300 - nth);
        for session in [one, other] {
            let call = call("last", session, nth).deadline(deadline);
            sent.push((nth, client.send_invocation(&call).unwrap()));
        }
    }
    for (nth, id) in sent {
        assert_eq!(word(&client.wait_invoked(id).unwrap()), nth - 1);
    }
}

#[test]
fn only_a_call_that_is_answered_with_its_outputs_changes_the_state() {
    let (_supervisor, mut client) = start();
    kit::add_last(&mut client, "traps", &[launch("trap", &[])]);
    kit::add_last(&mut client, "spins", &[launch("spin", &[])]);
    let session = open(&mut client);
    assert_eq!(said(&mut client, session, 1).unwrap(), 0);
    // Each of them has written the state before it fails.
    refused(client.invoke(&call("traps", session, 2)), Code::KernelFault, "");
    assert_eq!(said(&mut client, session, 3).unwrap(), 1);
    let short = call("spins", session, 4).deadline(std::time::Duration::from_millis(300));
    refused(client.invoke(&short), Code::DeadlineExceeded, "");
    assert_eq!(said(&mut client, session, 5).unwrap(), 3);
    let id = client.send_invocation(&call("spins", session, 6)).unwrap();
    let waits = client.send_invocation(&call("last", session, 7)).unwrap();
    client.cancel(id).unwrap();
    fails(&mut client, id, Code::Cancelled);
    // The call behind it ran once the worker had let go of the cancelled one.
    assert_eq!(word(&client.wait_invoked(waits).unwrap()), 5);
    assert_eq!(said(&mut client, session, 8).unwrap(), 7);
}

#[test]
fn a_session_outlives_the_processes_of_its_calls() {
    let (supervisor, mut client) = start();
    kit::add_last(&mut client, "works", &[launch("work", &[constant(100_000_000)])]);
    let session = open(&mut client);
    assert_eq!(said(&mut client, session, 1).unwrap(), 0);
    let id = client.send_invocation(&call("works", session, 2)).unwrap();
    supervisor.until_running();
    supervisor.kill_busy(None);
    // It ran again, from the state that it had found before.
    assert_eq!(word(&client.wait_invoked(id).unwrap()), 1);
    assert_eq!(said(&mut client, session, 3).unwrap(), 2);
}

#[test]
fn a_call_that_waits_behind_others_can_be_cancelled_and_has_its_deadline() {
    let (supervisor, mut client) = start();
    kit::add_last(&mut client, "spins", &[launch("spin", &[])]);
    let session = open(&mut client);
    let first = client.send_invocation(&call("spins", session, 1)).unwrap();
    supervisor.until_running();
    let short = call("last", session, 2).deadline(std::time::Duration::from_millis(20));
    let late = client.send_invocation(&short).unwrap();
    let error = fails(&mut client, late, Code::DeadlineExceeded);
    assert!(error.message.contains("came before it") && error.retryable, "{error}");
    let cancelled = client.send_invocation(&call("last", session, 3)).unwrap();
    client.cancel(cancelled).unwrap();
    fails(&mut client, cancelled, Code::Cancelled);
    client.cancel(first).unwrap();
    fails(&mut client, first, Code::Cancelled);
    assert_eq!(said(&mut client, session, 4).unwrap(), 0);
    assert_eq!(said(&mut client, session, 5).unwrap(), 4);
}

#[test]
fn what_does_not_go_together_is_refused() {
    let (supervisor, mut client) = start();
    kit::add_copy(&mut client);
    let session = open(&mut client);
    let error = refused(client.invoke(&call("last", 0, 1)), Code::InvalidArgument, "open a session");
    assert_eq!(error.place, "session");
    refused(client.open_session("copy"), Code::InvalidArgument, "no state");
    refused(client.open_session("absent"), Code::NotFound, "absent");
    let copy = Invocation::new("copy").session(session).input("in", vec![1]);
    refused(client.invoke(&copy), Code::InvalidArgument, "without a session");
    let larger = Function { state: &[("last", absolute(16))], ..Function::default() };
    larger.add(&mut client, "larger");
    let larger = Invocation::new("larger").session(session);
    refused(client.invoke(&larger), Code::InvalidArgument, "other state");
    // The state is no input and no output.
    let bring = call("last", session, 1).input("last", vec![0; 8]);
    refused(client.invoke(&bring), Code::InvalidArgument, "`last` is no input");
    refused(
        client.invoke(&call("last", session, 1).output("last")),
        Code::InvalidArgument,
        "`last` is no output",
    );
    // It belongs to its connection, and is gone with it.
    let mut other = supervisor.client();
    refused(said(&mut other, session, 1), Code::SessionLost, "this connection has no session");
    refused(other.close_session(session), Code::SessionLost, "this connection has no session");
    drop(client);
    until("it is over", || supervisor.status().sessions.is_empty());
}

#[test]
fn a_session_goes_on_with_the_function_that_takes_the_place_of_its_own() {
    let (_supervisor, mut client) = start();
    let session = open(&mut client);
    assert_eq!(said(&mut client, session, 1).unwrap(), 0);
    let same = Function {
        inputs: &["in"],
        state: &[("last", absolute(8))],
        outputs: &["in"],
        steps: &[json!({"Copy": {"from": "last", "to": "in"}})],
        ..Function::default()
    };
    same.replace(&mut client, "last").unwrap();
    let seen = Invocation::new("last").session(session).input("in", vec![9; 8]).output("in");
    assert_eq!(word(&client.invoke(&seen).unwrap()), 1);
    let other = Function { state: &[("last", absolute(24))], ..same };
    other.replace(&mut client, "last").unwrap();
    refused(client.invoke(&seen), Code::InvalidArgument, "other state");
}

#[test]
fn the_state_is_in_its_tenants_quota() {
    let supervisor = house(&[("alice", "session-bytes = 8192")]);
    let mut alice = enter(&supervisor, "alice");
    kit::add_last(&mut alice, "last", &[]);
    let session = open(&mut alice);
    refused(alice.open_session("last"), Code::ResourceExhausted, "close sessions");
    alice.close_session(session).unwrap();
    open(&mut alice);
}

#[test]
fn a_session_without_calls_ends() {
    let (supervisor, mut client) = start_with(&["--session-idle", "20ms"]);
    let session = open(&mut client);
    until("it is over", || supervisor.status().sessions.is_empty());
    refused(said(&mut client, session, 1), Code::SessionLost, "session-idle");
    assert_eq!(supervisor.status().sessions.len(), 0);
}

#[test]
fn a_drain_waits_for_sessions_whose_calls_go_on() {
    let (mut supervisor, mut client) = start();
    let (one, other) = (open(&mut client), open(&mut client));
    assert_eq!(said(&mut client, one, 1).unwrap(), 0);
    supervisor.terminate();
    let mut admin = supervisor.admin();
    until("it drains", || admin.status().unwrap().draining);
    assert_eq!(said(&mut client, one, 2).unwrap(), 1);
    refused(client.open_session("last"), Code::Unavailable, "draining");
    client.close_session(one).unwrap();
    assert_eq!(said(&mut client, other, 3).unwrap(), 0);
    // The last one: its answer comes before the end.
    client.close_session(other).unwrap();
    assert_eq!(supervisor.ended().code(), Some(0));
}

#[test]
fn a_drain_ends_sessions_after_a_while() {
    let (mut supervisor, mut client) = start_with(&["--session-grace", "1ms"]);
    open(&mut client);
    supervisor.terminate();
    assert_eq!(supervisor.ended().code(), Some(0));
    assert!(supervisor.log().contains("1 sessions are open after session-grace"), "{}", supervisor.log());
}
