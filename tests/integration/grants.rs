//! Functions that one tenant lets another call: nothing of them is read, and nothing is left once they are revoked
//! (ATTACKS 15, 24).

use pappus_client::{Client, Code, Invocation, Result};
use serde_json::{Value, json};

use crate::fixture::{Supervisor, until};
use crate::house::{enter, house, token};
use crate::kit::{self, Function, refused};

const TENANTS: [(&str, &str); 3] = [("alice", ""), ("bob", ""), ("carol", "")];

/// Calls Alice's `copy`.
fn copied(client: &mut Client) -> Result<Vec<u8>> {
    let call = Invocation::new("alice/copy").input("in", &b"works"[..]).output("out");
    Ok(client.invoke(&call)?.outputs[0].inline.to_vec())
}

fn works(client: &mut Client) {
    assert_eq!(copied(client).unwrap(), b"works");
}

/// Refused in the same words as a name that no tenant has registered.
fn unknown<T: std::fmt::Debug>(answer: Result<T>, name: &str) {
    let error = refused(answer, Code::NotFound, "");
    let words = format!("there is no function `{name}`: `pappus function list` shows what there is");
    assert_eq!(error.message, words);
}

fn names(client: &mut Client) -> Vec<String> {
    client.list_functions().unwrap().into_iter().map(|function| function.name).collect()
}

#[test]
fn a_grant_allows_calls_and_no_reading() {
    let supervisor = house(&TENANTS);
    let [mut alice, mut bob, mut carol] = TENANTS.map(|(name, _)| enter(&supervisor, name));
    kit::add_copy(&mut alice);
    unknown(copied(&mut bob), "alice/copy");
    alice.grant("copy", "bob").unwrap();
    alice.grant("copy", "bob").unwrap();
    works(&mut bob);
    assert_eq!(alice.list_grants("copy").unwrap(), ["bob"]);
    // The owner may name it in full, too.
    works(&mut alice);

    let listed = bob.list_functions().unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((&*listed[0].name, &listed[0].inputs[..]), ("alice/copy", &["in".to_owned()][..]));
    assert_eq!((&*listed[0].outputs[0].name, &*listed[0].outputs[0].dtype), ("out", ""));
    let function = &listed[0];
    assert!(function.granted && function.config.is_empty() && function.config_sha256.is_empty());
    assert!(function.modules.is_empty() && function.weights.is_empty() && function.found.is_empty());
    assert_eq!(bob.list_modules().unwrap(), []);
    // Not read, not changed, not passed on.
    let denied = "you may call it, not read or change it";
    assert_eq!(bob.show_function("alice/copy").unwrap(), listed[0]);
    refused(bob.remove_function("alice/copy"), Code::PermissionDenied, denied);
    refused(bob.list_grants("alice/copy"), Code::PermissionDenied, denied);
    refused(bob.grant("alice/copy", "carol"), Code::PermissionDenied, denied);
    refused(bob.revoke("alice/copy", "bob"), Code::PermissionDenied, denied);
    unknown(bob.show_function("copy"), "copy");
    // To all others it does not exist.
    assert_eq!(names(&mut carol), [""; 0]);
    unknown(copied(&mut carol), "alice/copy");
    unknown(carol.show_function("alice/copy"), "alice/copy");
    unknown(carol.show_function("alice/nothing"), "alice/nothing");
    unknown(carol.show_function("nobody/copy"), "nobody/copy");

    alice.revoke("copy", "bob").unwrap();
    unknown(copied(&mut bob), "alice/copy");
    unknown(bob.show_function("alice/copy"), "alice/copy");
    assert_eq!(names(&mut bob), [""; 0]);
    works(&mut alice);
    assert_eq!(alice.list_grants("copy").unwrap(), [""; 0]);
}

#[test]
fn a_grant_is_checked() {
    let supervisor = house(&TENANTS);
    let mut alice = enter(&supervisor, "alice");
    kit::add_copy(&mut alice);
    for wrong in ["", "a/b", "-/-", "007", "4294967295", "a b"] {
        refused(alice.grant("copy", wrong), Code::InvalidArgument, "is no tenant");
    }
    refused(alice.grant("copy", "alice"), Code::InvalidArgument, "it is yours");
    unknown(alice.grant("nothing", "bob"), "nothing");
    unknown(alice.list_grants("nothing"), "nothing");
    refused(alice.revoke("copy", "bob"), Code::NotFound, "copy is not granted to bob");
    // A grant does not tell whether the tenant exists.
    alice.grant("copy", "whoever").unwrap();
    alice.grant("copy", "1000").unwrap();
    assert_eq!(alice.list_grants("copy").unwrap(), ["1000", "whoever"]);
}

/// What waits was accepted, and is answered; what comes later is not accepted.
#[test]
fn calls_that_were_accepted_outlive_the_grant() {
    let supervisor = house(&TENANTS);
    let [mut alice, mut bob, _] = TENANTS.map(|(name, _)| enter(&supervisor, name));
    kit::add_copy(&mut alice);
    kit::add_spin(&mut bob);
    alice.grant("copy", "bob").unwrap();
    works(&mut bob);
    let spin = bob.send_invocation(&Invocation::new("spin")).unwrap();
    supervisor.until_running();
    let call = Invocation::new("alice/copy").input("in", &b"works"[..]).output("out");
    let waiting = bob.send_invocation(&call).unwrap();
    until("it waits", || supervisor.device().queued == 1);
    alice.revoke("copy", "bob").unwrap();
    unknown(copied(&mut bob), "alice/copy");
    // The running call goes; then there is a worker for the call that waits.
    bob.cancel(spin).unwrap();
    kit::fails(&mut bob, spin, Code::Cancelled);
    supervisor.end_detached();
    assert_eq!(&bob.wait_invoked(waiting).unwrap().outputs[0].inline[..], b"works");
}

#[test]
fn grants_survive_a_crash_and_end_with_the_function() {
    let mut supervisor = house(&TENANTS);
    let record = |supervisor: &Supervisor| supervisor.path("state/tenants/alice/grants/copy.json");
    {
        let mut alice = enter(&supervisor, "alice");
        kit::add_copy(&mut alice);
        alice.grant("copy", "bob").unwrap();
        alice.grant("copy", "carol").unwrap();
        alice.revoke("copy", "carol").unwrap();
    }
    supervisor.kill9();
    supervisor.restart();
    works(&mut enter(&supervisor, "bob"));
    unknown(copied(&mut enter(&supervisor, "carol")), "alice/copy");
    assert!(record(&supervisor).exists());

    let mut alice = enter(&supervisor, "alice");
    alice.remove_function("copy").unwrap();
    assert!(!record(&supervisor).exists());
    unknown(copied(&mut enter(&supervisor, "bob")), "alice/copy");
    kit::add_copy(&mut alice);
    unknown(copied(&mut enter(&supervisor, "bob")), "alice/copy");
    assert_eq!(alice.list_grants("copy").unwrap(), [""; 0]);
    works(&mut alice);
    // A crash between two files may leave grants of a function that is gone: the next start removes them.
    alice.remove_function("copy").unwrap();
    drop(alice);
    supervisor.kill9();
    std::fs::write(record(&supervisor), r#"{"name":"copy","callers":["bob"]}"#).unwrap();
    supervisor.restart();
    assert!(!record(&supervisor).exists());
    kit::add_copy(&mut enter(&supervisor, "alice"));
    unknown(copied(&mut enter(&supervisor, "bob")), "alice/copy");
}

#[test]
fn errors_tell_the_caller_nothing_of_the_blueprint() {
    let supervisor = house(&TENANTS);
    let [mut alice, mut bob, _] = TENANTS.map(|(name, _)| enter(&supervisor, name));
    kit::add_kernel(&mut alice, "trap", "trap", &[]);
    let word = json!({"FromInput": {"bufname": "in", "idx": 3}});
    let sized = Function { inputs: &["in"], buffers: &[("secret", word)], ..Function::default() };
    sized.add(&mut alice, "sized");
    for function in ["trap", "sized"] {
        alice.grant(function, "bob").unwrap();
    }
    let secrets = |error: &pappus_client::v1::Error| {
        let words = format!("{error:?}");
        ["kernel trap", "secret", "blueprint.", "probes"].iter().any(|secret| words.contains(secret))
    };
    let own = refused(alice.invoke(&Invocation::new("trap")), Code::KernelFault, "trap");
    let granted = refused(bob.invoke(&Invocation::new("alice/trap")), Code::KernelFault, "");
    assert!(secrets(&own) && !secrets(&granted) && granted.place.is_empty(), "{granted}");
    // Too short for the word, and a word that no memory has room for.
    let huge: Vec<u8> = std::iter::repeat_n(u64::MAX.to_le_bytes(), 4).flatten().collect();
    for input in [vec![1; 8], huge] {
        let call = |name: &str| Invocation::new(name).input("in", input.clone());
        let own = refused(alice.invoke(&call("sized")), Code::InvalidArgument, "");
        let granted =
            refused(bob.invoke(&call("alice/sized")), Code::InvalidArgument, "its owner can see why");
        assert!(secrets(&own) && !secrets(&granted), "{own} {granted}");
    }
}

/// The pair of owner and caller has a worker of its own.
#[test]
fn a_worker_serves_one_pair() {
    let supervisor = house(&TENANTS);
    let [mut alice, mut bob, _] = TENANTS.map(|(name, _)| enter(&supervisor, name));
    kit::add_copy(&mut alice);
    kit::add_copy(&mut bob);
    alice.grant("copy", "bob").unwrap();
    works(&mut alice);
    let first = supervisor.worker_pids();
    works(&mut alice);
    assert_eq!(supervisor.worker_pids(), first, "the control: one pair keeps its worker");
    works(&mut bob);
    let second = supervisor.worker_pids();
    kit::works(&mut bob);
    let third = supervisor.worker_pids();
    assert!(first != second && second != third && first != third, "{first:?} {second:?} {third:?}");
}

#[test]
fn the_command_grants_and_revokes() {
    let supervisor = Supervisor::start();
    kit::add_copy(&mut supervisor.client());
    assert_eq!(
        supervisor.ok(&["function", "grant", "copy", "54325"]),
        "granted function copy to 54325 (whether there is such a tenant is not checked)\n"
    );
    assert_eq!(supervisor.ok(&["function", "grants", "copy"]), "54325\n");
    let shown: Value =
        serde_json::from_str(&supervisor.ok(&["function", "grants", "copy", "--json"])).unwrap();
    assert_eq!(shown, json!({"function": "copy", "tenants": ["54325"]}));
    assert_eq!(supervisor.ok(&["function", "revoke", "copy", "54325"]), "revoked function copy from 54325\n");
    assert_eq!(supervisor.pappus(&["function", "revoke", "copy", "54325"]).code, 3);
}

/// Nobody is asked before something is granted.
#[test]
fn what_a_declined_owner_grants_is_not_listed() {
    let mut supervisor = house(&TENANTS);
    let [mut alice, mut bob, mut carol] = TENANTS.map(|(name, _)| enter(&supervisor, name));
    [&mut alice, &mut bob, &mut carol].into_iter().for_each(kit::add_copy);
    alice.grant("copy", "bob").unwrap();
    carol.grant("copy", "bob").unwrap();
    let granted = |bob: &mut Client| -> Vec<String> {
        bob.list_granted_functions().unwrap().into_iter().map(|function| function.name).collect()
    };
    assert_eq!(names(&mut bob), ["copy", "alice/copy", "carol/copy"]);
    assert_eq!(granted(&mut bob), ["alice/copy", "carol/copy"]);
    bob.decline("carol", false).unwrap();
    bob.decline("carol", false).unwrap();
    // Also what comes later, and after a restart; carol is told nothing.
    carol.revoke("copy", "bob").unwrap();
    carol.grant("copy", "bob").unwrap();
    assert_eq!(names(&mut bob), ["copy", "alice/copy"]);
    drop((alice, bob, carol));
    supervisor.kill9();
    supervisor.restart();
    let mut bob = enter(&supervisor, "bob");
    assert_eq!(
        (granted(&mut bob), bob.quota().unwrap().declined),
        (vec!["alice/copy".into()], vec!["carol".into()])
    );
    let call = Invocation::new("carol/copy").input("in", &b"named"[..]).output("out");
    assert_eq!(&bob.invoke(&call).unwrap().outputs[0].inline[..], b"named");
    assert!(bob.show_function("carol/copy").unwrap().granted);
    bob.decline("carol", true).unwrap();
    assert_eq!(granted(&mut bob), ["alice/copy", "carol/copy"]);
    refused(bob.decline("carol", true), Code::NotFound, "you did not decline \"carol\"");
    refused(bob.decline("a/b", false), Code::InvalidArgument, "is no tenant");
    refused(bob.decline("bob", false), Code::InvalidArgument, "these functions are yours");
}

#[test]
fn the_command_declines() {
    let supervisor = Supervisor::start();
    kit::add_copy(&mut supervisor.client());
    let decline = ["function", "decline", "acme"];
    assert_eq!(
        supervisor.ok(&decline),
        "`function list` lists no longer what acme grants to you (whether there is such a tenant is not checked)\n"
    );
    assert!(supervisor.ok(&["quota"]).ends_with("\ndeclined: acme\n"));
    assert_eq!(
        supervisor.ok(&["function", "decline", "acme", "--undo"]),
        "`function list` lists again what acme grants to you\n"
    );
    assert!(!supervisor.ok(&["quota"]).contains("declined"));
    assert_eq!(supervisor.ok(&["function", "list", "--granted"]).lines().count(), 1);
}

#[test]
fn the_command_calls_what_was_granted() {
    let supervisor = house(&TENANTS);
    let mut alice = enter(&supervisor, "alice");
    kit::add_copy(&mut alice);
    let file = |name: &str| supervisor.path(name);
    std::fs::write(file("bob"), token("bob")).unwrap();
    std::fs::set_permissions(file("bob"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::write(file("in.bin"), b"works").unwrap();
    let call = |output: &str| {
        supervisor.pappus(&[
            "invoke",
            "alice/copy",
            "--token-file",
            "bob",
            "--input",
            "in=in.bin",
            "--output",
            output,
            "--json",
        ])
    };
    let before = call("out=out.bin");
    assert_eq!(before.code, 3, "the control: not granted");
    alice.grant("copy", "bob").unwrap();
    let ran = call("out=out.bin");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let answer: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(answer["outputs"][0]["bytes"], 5);
    assert_eq!(std::fs::read(file("out.bin")).unwrap(), b"works");
    assert!(call("nothing=out.bin").stderr.contains("has no output \"nothing\"; it has \"out\""));
    assert!(call("out=out.npy").stderr.contains("only the owner of alice/copy knows what \"out\" holds"));
}
