//! A function is replaced in place: calls see the old one or the new one, grants stay, and it survives a restart.

use std::time::Duration;

use pappus_client::{Client, Code, Invocation, Result};

use crate::fixture::{Supervisor, until};
use crate::house::{enter, house};
use crate::kit::{self, Function, absolute, constant, fails, launch, ptr, refused};

/// Nothing → `out`: eight bytes of this value.
fn says(value: i64) -> [serde_json::Value; 1] {
    [launch("fill", &[ptr("out"), constant(value), constant(8)])]
}

fn add(client: &mut Client, value: i64, replace: bool) -> Result<()> {
    let (steps, buffers) = (says(value), [("out", absolute(8))]);
    let function = Function { buffers: &buffers, outputs: &["out"], steps: &steps, ..Function::default() };
    match replace {
        true => function.replace(client, "says").map(drop),
        false => function.try_add(client, "says").map(drop),
    }
}

fn call(name: &str) -> Invocation {
    Invocation::new(name).output("out")
}

fn said(client: &mut Client, name: &str) -> u8 {
    client.invoke(&call(name)).unwrap().outputs[0].inline[0]
}

#[test]
fn a_name_in_use_is_replaced_only_where_that_is_asked_for() {
    let mut supervisor = Supervisor::start();
    let mut client = supervisor.client();
    add(&mut client, 1, true).unwrap();
    assert_eq!(said(&mut client, "says"), 1);
    refused(add(&mut client, 2, false), Code::AlreadyExists, "another function `says`");
    assert_eq!(said(&mut client, "says"), 1);
    add(&mut client, 2, true).unwrap();
    assert_eq!(said(&mut client, "says"), 2);
    assert_eq!(client.list_functions().unwrap().len(), 1);
    supervisor.kill9();
    supervisor.restart();
    assert_eq!(said(&mut supervisor.client(), "says"), 2);
}

#[test]
fn accepted_calls_finish_with_the_old_function() {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    kit::add_spin(&mut client);
    add(&mut client, 1, false).unwrap();
    assert_eq!(said(&mut client, "says"), 1);
    // The only worker is busy, so the next call waits.
    let spin = client.send_invocation(&Invocation::new("spin").deadline(Duration::from_millis(300))).unwrap();
    supervisor.until_running();
    let waiting = client.send_invocation(&call("says")).unwrap();
    until("it waits", || supervisor.device().queued == 1);
    add(&mut client, 2, true).unwrap();
    fails(&mut client, spin, Code::DeadlineExceeded);
    assert_eq!(client.wait_invoked(waiting).unwrap().outputs[0].inline[0], 1);
    assert_eq!(said(&mut client, "says"), 2);
}

#[test]
fn grants_of_the_old_function_hold_for_the_new_one() {
    let supervisor = house(&[("alice", ""), ("bob", "")]);
    let [mut alice, mut bob] = ["alice", "bob"].map(|name| enter(&supervisor, name));
    add(&mut alice, 1, false).unwrap();
    alice.grant("says", "bob").unwrap();
    assert_eq!(said(&mut bob, "alice/says"), 1);
    add(&mut alice, 2, true).unwrap();
    assert_eq!(said(&mut bob, "alice/says"), 2);
    assert_eq!(alice.list_grants("says").unwrap(), ["bob"]);
}

#[test]
fn a_quota_counts_what_is_there_afterwards() {
    let supervisor = house(&[("alice", "functions = 1")]);
    let mut alice = enter(&supervisor, "alice");
    add(&mut alice, 1, false).unwrap();
    add(&mut alice, 2, true).unwrap();
    assert_eq!(said(&mut alice, "says"), 2);
}

#[test]
fn the_audit_log_says_who_changed_what() {
    let supervisor = house(&[("alice", ""), ("bob", "functions = 0")]);
    let mut alice = enter(&supervisor, "alice");
    refused(add(&mut enter(&supervisor, "bob"), 1, false), Code::ResourceExhausted, "functions");
    add(&mut alice, 1, false).unwrap();
    add(&mut alice, 2, true).unwrap();
    alice.grant("says", "bob").unwrap();
    alice.revoke("says", "bob").unwrap();
    alice.remove_function("says").unwrap();
    refused(alice.remove_function("says"), Code::NotFound, "");
    let mut admin = supervisor.admin();
    add(&mut admin, 1, false).unwrap();
    admin.settings([("poll-us".to_owned(), "7".to_owned())].into()).unwrap();
    refused(alice.settings([("poll-us".to_owned(), "7".to_owned())].into()), Code::PermissionDenied, "");
    let log = supervisor.log();
    let uid = crate::house::own_uid();
    for (who, action, name, result) in [
        ("by=\"operator\"", "add function", "says", "done"),
        ("by=\"operator\"", "set", "poll-us=7", "done"),
        ("tenant=\"alice\"", "set", "poll-us=7", "refused: PermissionDenied"),
    ] {
        let line = format!("audit: {who} uid={uid} action=\"{action}\" name=\"{name}\" result=\"{result}\"");
        assert!(log.contains(&line), "{line}\nin\n{log}");
    }
    for (tenant, action, name, result) in [
        ("bob", "add function", "says", "refused: ResourceExhausted, quota functions"),
        ("alice", "add function", "says", "done"),
        ("alice", "replace function", "says", "done"),
        ("alice", "grant", "says bob", "done"),
        ("alice", "revoke", "says bob", "done"),
        ("alice", "remove function", "says", "done"),
        ("alice", "remove function", "says", "refused: NotFound"),
    ] {
        let line = format!(
            "audit: tenant=\"{tenant}\" uid={uid} action=\"{action}\" name=\"{name}\" result=\"{result}\""
        );
        assert!(log.contains(&line), "{line}\nin\n{log}");
    }
}

#[test]
fn a_name_as_long_as_a_request_is_cut_in_the_audit_log() {
    let supervisor = house(&[("alice", "")]);
    let mut alice = enter(&supervisor, "alice");
    let long = "\u{1b}".repeat(3 << 20);
    for _ in 0..3 {
        alice.remove_function(&long).unwrap_err();
        alice.grant("says", &long).unwrap_err();
    }
    let log = supervisor.log();
    assert_eq!(log.matches("action=\"remove function\"").count(), 3);
    assert!(log.len() < 64 << 10, "{} bytes", log.len());
}

/// Adds, or replaces, a function that copies its input of this type.
fn copies(client: &mut Client, dtype: &str) -> pappus_client::v1::FunctionInfo {
    let types = ["in", "out"].map(|name| (name, serde_json::json!({"dtype": dtype})));
    let steps = [serde_json::json!({"Copy": {"from": "in", "to": "out"}})];
    let function = Function {
        inputs: &["in"],
        buffers: &[("out", serde_json::json!({"Sizeof": "in"}))],
        outputs: &["out"],
        types: &types,
        steps: &steps,
        ..Function::default()
    };
    function.replace(client, "copies").unwrap()
}

fn copy_for(version: u64, name: &str) -> Invocation {
    Invocation::new(name).input("in", vec![1; 8]).output("out").made_for(version)
}

#[test]
fn a_call_that_was_made_for_another_function_is_refused() {
    let supervisor = house(&[("alice", ""), ("bob", "")]);
    let [mut alice, mut bob] = ["alice", "bob"].map(|name| enter(&supervisor, name));
    let first = copies(&mut alice, "f32").version;
    alice.grant("copies", "bob").unwrap();
    let granted = |client: &mut Client| client.list_functions().unwrap()[0].version;
    let told = granted(&mut bob);
    assert!(first != 0 && told != 0);
    assert_eq!(alice.show_function("copies").unwrap().version, first);
    alice.invoke(&copy_for(first, "copies")).unwrap();
    bob.invoke(&copy_for(told, "alice/copies")).unwrap();
    // The same again is the same.
    assert_eq!(copies(&mut alice, "f32").version, first);
    let second = copies(&mut alice, "i32").version;
    assert_ne!(second, first);
    for (client, version, name) in [(&mut alice, first, "copies"), (&mut bob, told, "alice/copies")] {
        let why = refused(client.invoke(&copy_for(version, name)), Code::InvalidArgument, "was replaced");
        assert_eq!((why.place.as_str(), why.retryable), ("function_version", false));
        // Who says nothing takes what there is.
        client.invoke(&copy_for(0, name)).unwrap();
    }
    alice.invoke(&copy_for(second, "copies")).unwrap();
    let told_now = granted(&mut bob);
    bob.invoke(&copy_for(told_now, "alice/copies")).unwrap();
    assert_ne!(told_now, told);
}
