//! Penalties for callers whose calls keep failing: the function is refused to them, and their calls wait for their
//! fault budget. Other callers are served as before (ATTACKS 3, 26).

use std::collections::HashMap;
use std::time::Duration;

use pappus_client::{Client, Code, Error, Invocation, v1};
use serde_json::json;

use crate::fixture::{Supervisor, until};
use crate::house;
use crate::kit::{self, Function, as_stranger, launch, ptr, refused};

/// `in` → `out`: fills `out`, 8 bytes, with so many as the first word of `in` says; more than there are is a fault.
fn add_fills(client: &mut Client, name: &str) {
    let bytes = json!({"I64": {"FromInput": {"bufname": "in", "idx": 0}}});
    let function = Function {
        inputs: &["in"],
        buffers: &[("out", kit::absolute(8))],
        outputs: &["out"],
        steps: &[launch("fill", &[ptr("out"), kit::constant(1), bytes])],
        ..Function::default()
    };
    function.add(client, name);
}

fn fill(client: &mut Client, name: &str, bytes: u64) -> Result<v1::Invoked, Error> {
    client.invoke(&Invocation::new(name).input("in", bytes.to_le_bytes().to_vec()))
}

const GOOD: u64 = 8;
const BAD: u64 = 1 << 31;

fn fail(client: &mut Client, name: &str, times: u32) {
    for _ in 0..times {
        refused(fill(client, name, BAD), Code::KernelFault, "");
    }
}

/// Fails so often and is refused then; all at once, so that no time passes in between. Calls keep their order
/// once the function is loaded.
fn quarantined(client: &mut Client, name: &str, times: u32) -> v1::Error {
    let call = |bytes: u64| Invocation::new(name).input("in", bytes.to_le_bytes().to_vec());
    fill(client, name, GOOD).unwrap();
    let bad: Vec<u64> = (0..times).map(|_| client.send_invocation(&call(BAD)).unwrap()).collect();
    let good = client.send_invocation(&call(GOOD)).unwrap();
    for id in bad {
        kit::fails(client, id, Code::KernelFault);
    }
    let error = kit::fails(client, good, Code::Quarantined);
    assert!(error.retryable && error.retry_after_ms > 0 && error.message.contains(name), "{error}");
    error
}

#[test]
fn a_function_that_keeps_failing_is_refused_and_probed() {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    add_fills(&mut client, "fills");
    add_fills(&mut client, "other");
    // A good end in between and the count begins anew.
    fail(&mut client, "fills", 2);
    fill(&mut client, "fills", GOOD).unwrap();
    let error = quarantined(&mut client, "fills", 3);
    assert!(error.message.contains("3 times in a row"), "{error}");
    // As the caller was told before, and what to do.
    assert!(error.message.contains("last so: \"kernel ") && error.message.contains("--replace"), "{error}");
    assert!(error.retry_after_ms <= 1000, "{error}");
    fill(&mut client, "other", GOOD).unwrap();
    // The control: the wait is shown, and ends by itself.
    let shown = client.show_function("fills").unwrap().quarantine;
    assert_eq!((shown.len(), shown[0].failures, &*shown[0].device), (1, 3, "cpu"));
    assert!(client.show_function("other").unwrap().quarantine.is_empty());
    assert!(supervisor.ok(&["function", "list"]).contains("in quarantine"));
    assert!(supervisor.ok(&["function", "show", "fills"]).contains("failed 3 times in a row"));
    assert!(supervisor.ok(&["status"]).contains("QUARANTINED"));
    let status: serde_json::Value = serde_json::from_str(&supervisor.ok(&["status", "--json"])).unwrap();
    assert_eq!(status["devices"][0]["quarantined"][0]["function"], "fills");
    let mut probed = None;
    until("it is probed", || {
        probed = fill(&mut client, "fills", BAD).err();
        !matches!(&probed, Some(Error::Refused(error)) if error.code() == Code::Quarantined)
    });
    assert!(matches!(probed, Some(Error::Refused(error)) if error.code() == Code::KernelFault));
    // Longer each time.
    let error = refused(fill(&mut client, "fills", GOOD), Code::Quarantined, "4 times in a row");
    assert!(error.retry_after_ms <= 2000, "{error}");
    until("a good probe ends it", || fill(&mut client, "fills", GOOD).is_ok());
    fill(&mut client, "fills", GOOD).unwrap();
    assert!(supervisor.device().quarantined.is_empty());
}

#[test]
fn registering_a_function_again_ends_its_quarantine_and_a_setting_switches_it_off() {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    add_fills(&mut client, "fills");
    quarantined(&mut client, "fills", 3);
    client.remove_function("fills").unwrap();
    add_fills(&mut client, "fills");
    quarantined(&mut client, "fills", 3);
    let off = HashMap::from([("quarantine-after".to_owned(), "0".to_owned())]);
    supervisor.admin().settings(off).unwrap();
    fail(&mut client, "fills", 5);
}

#[test]
fn tenants_are_shown_by_their_names() {
    let supervisor = house::house(&[("alice", "")]);
    let mut alice = house::enter(&supervisor, "alice");
    add_fills(&mut alice, "fills");
    quarantined(&mut alice, "fills", 3);
    let shown = alice.show_function("fills").unwrap().quarantine;
    assert_eq!(shown[0].caller, "alice");
    let one = supervisor.device().quarantined.remove(0);
    assert_eq!((&*one.owner, &*one.caller), ("alice", "alice"));
    let status = supervisor.ok(&["status"]);
    assert!(status.lines().any(|line| line.contains("fills") && line.contains("alice")), "{status}");
}

#[test]
fn quarantine_does_not_affect_other_callers() {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    let stranger = as_stranger(|| supervisor.client());
    add_fills(&mut client, "fills");
    quarantined(&mut client, "fills", 3);
    let Some(mut stranger) = stranger else { return };
    // The same name, the same bytes, another owner.
    add_fills(&mut stranger, "fills");
    fill(&mut stranger, "fills", GOOD).unwrap();
    let devices = stranger.status().unwrap().devices;
    assert!(devices.iter().all(|device| device.quarantined.is_empty() && device.budgets.is_empty()));
    // The control: there is something to see.
    assert_eq!(supervisor.device().quarantined.len(), 1);
}

#[test]
fn only_the_caller_that_spent_its_fault_budget_waits() {
    let supervisor = Supervisor::with(&["--fault-budget", "2", "--quarantine-after", "0"]);
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    kit::add_spin(&mut client);
    let stranger = as_stranger(|| supervisor.client());
    let mut spin = || {
        let spin = Invocation::new("spin").deadline(Duration::from_millis(20));
        refused(client.invoke(&spin), Code::DeadlineExceeded, "").message
    };
    // The control: these cost a worker each, and say nothing of a budget.
    until("two are spent", || {
        supervisor.worker_pids();
        assert!(!spin().contains("budget"));
        supervisor.device().budgets.first().is_some_and(|budget| budget.left == 0)
    });
    let message = spin();
    assert!(message.contains("fault budget was spent: 2 worker processes a minute"), "{message}");
    let copy = Invocation::new("copy").input("in", b"abc".to_vec()).deadline(Duration::from_millis(50));
    let error = refused(client.invoke(&copy), Code::DeadlineExceeded, "fault budget");
    assert!(error.retryable && error.retry_after_ms > 1000, "{error}");
    if let Some(mut stranger) = stranger {
        kit::add_copy(&mut stranger);
        kit::works(&mut stranger);
        // A budget is shown to the caller that it belongs to, and to the operator.
        assert!(stranger.status().unwrap().devices[0].budgets.is_empty());
    }
    let budget = supervisor.device().budgets.remove(0);
    assert_eq!(
        (&*budget.caller, budget.left, budget.per_minute),
        (&*rustix::process::geteuid().as_raw().to_string(), 0, 2)
    );
    assert!(budget.waits_ms > 1000);
    assert!(supervisor.ok(&["status"]).contains("0 of 2 a minute"));
    // A call that waits starts as soon as it may.
    let copy = Invocation::new("copy").input("in", b"abc".to_vec()).output("out");
    let waiting = client.send_invocation(&copy).unwrap();
    until("it waits", || supervisor.device().queued == 1);
    let off = HashMap::from([("fault-budget".to_owned(), "0".to_owned())]);
    supervisor.admin().settings(off).unwrap();
    assert_eq!(&client.wait_invoked(waiting).unwrap().outputs[0].inline[..], b"abc");
}
