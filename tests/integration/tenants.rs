//! Users of one supervisor: no user sees, calls, removes or learns anything of another's (ATTACKS 15, 24).
//!
//! The kernel tells the supervisor who connects. A thread may become another user for good, if this process is
//! root; connections made by it belong to that user, also when another thread uses them. Where it is not root, becoming another
//! user fails, and that is what is checked instead.

use pappus_client::{Client, Code, Error, Invocation, Result};
use rustix::process::Signal;

use crate::fixture::{Supervisor, signal};
use crate::kit::{self, Function, absolute, as_stranger, launch, ptr, refused};

/// A supervisor, its own user's client, and a stranger's.
fn both() -> (Supervisor, Client, Option<Client>) {
    let supervisor = Supervisor::start();
    let mut own = supervisor.client();
    kit::add_copy(&mut own);
    kit::works(&mut own);
    let stranger = as_stranger(|| supervisor.client());
    assert_eq!(stranger.is_some(), rustix::process::geteuid().is_root());
    (supervisor, own, stranger)
}

#[test]
fn functions_and_modules_of_others_do_not_exist() {
    let (_supervisor, mut own, stranger) = both();
    let variant = kit::wasm(&mut own, kit::probes());
    own.add_module("probes", vec![variant]).unwrap();
    let Some(mut stranger) = stranger else {
        return kit::works(&mut own);
    };
    assert_eq!(stranger.list_functions().unwrap(), []);
    assert_eq!(stranger.list_modules().unwrap(), []);
    fn unknown<T: std::fmt::Debug>(answer: Result<T>) {
        let error = refused(answer, Code::NotFound, "");
        // Refused in the same words as a name that no tenant has registered.
        assert!(error.message.starts_with("there is no"), "{error}");
    }
    unknown(stranger.show_function("copy"));
    unknown(stranger.show_module("probes"));
    unknown(stranger.remove_function("copy"));
    unknown(stranger.remove_module("probes"));
    unknown(stranger.invoke(&Invocation::new("copy").input("in", vec![1])));
    // The control.
    kit::works(&mut own);
    own.show_module("probes").unwrap();
}

#[test]
fn knowing_a_hash_does_not_give_access_to_another_tenants_bytes() {
    let (_supervisor, mut own, stranger) = both();
    let variant = kit::wasm(&mut own, kit::probes());
    let Some(mut stranger) = stranger else {
        own.add_module("probes", vec![variant]).unwrap();
        return;
    };
    refused(stranger.add_module("mine", vec![variant.clone()]), Code::NotFound, "no bytes with hash");
    // The control: who has the bytes may use them, under any name.
    own.add_module("mine", vec![variant]).unwrap();
    let variant = kit::wasm(&mut stranger, kit::probes());
    stranger.add_module("mine", vec![variant]).unwrap();
}

#[test]
fn names_are_each_tenants_own() {
    let (_supervisor, mut own, stranger) = both();
    let Some(mut stranger) = stranger else {
        return kit::works(&mut own);
    };
    let function = Function {
        buffers: &[("out", absolute(8))],
        outputs: &["out"],
        steps: &[launch("store", &[ptr("out"), kit::constant(7)])],
        ..Function::default()
    };
    function.add(&mut stranger, "copy");
    let answer = stranger.invoke(&Invocation::new("copy").output("out")).unwrap();
    assert_eq!(&answer.outputs[0].inline[..], 7u64.to_le_bytes());
    kit::works(&mut own);
    stranger.remove_function("copy").unwrap();
    kit::works(&mut own);
}

#[test]
fn a_worker_never_serves_two_tenants() {
    let (supervisor, mut own, stranger) = both();
    let Some(mut stranger) = stranger else {
        return kit::works(&mut own);
    };
    let pid = supervisor.worker_pids()[0];
    kit::works(&mut own);
    assert_eq!(supervisor.worker_pids(), [pid], "the control: one tenant keeps its worker");
    kit::add_copy(&mut stranger);
    kit::works(&mut stranger);
    let theirs = supervisor.worker_pids()[0];
    assert_ne!(theirs, pid);
    kit::works(&mut own);
    assert!(![pid, theirs].contains(&supervisor.worker_pids()[0]));
}

#[test]
fn status_tells_strangers_nothing_of_others() {
    let (supervisor, mut own, stranger) = both();
    let operator = own.status().unwrap();
    assert!(operator.devices[0].completed > 0 && operator.functions == 1 && operator.connections > 0);
    let Some(mut stranger) = stranger else { return };
    let status = stranger.status().unwrap();
    let device = &status.devices[0];
    assert_eq!((status.functions, status.modules, status.connections), (0, 0, 0));
    assert_eq!((device.completed, device.failed, device.queued, device.running), (0, 0, 0, 0));
    assert_eq!(device.workers, []);
    // Nor do they get near the admin socket.
    let admin = as_stranger(|| Client::connect(supervisor.admin_socket()).map(drop));
    assert!(matches!(admin, Some(Err(Error::Unreachable { .. }))), "{admin:?}");
}

/// An idle worker that does not leave when it is told to must not keep its place from others.
#[test]
fn a_worker_that_lingers_is_ended_when_another_tenant_needs_its_place() {
    let (supervisor, mut own, stranger) = both();
    let before = supervisor.worker_pids();
    before.iter().for_each(|pid| signal(*pid, Signal::STOP));
    let Some(mut stranger) = stranger else {
        // No other user needs the worker: its own user gets it back.
        before.iter().for_each(|pid| signal(*pid, Signal::CONT));
        return kit::works(&mut own);
    };
    kit::add_copy(&mut stranger);
    kit::works(&mut stranger);
    assert!(supervisor.worker_pids().iter().any(|pid| !before.contains(pid)));
    // The control: a stopped worker stays where it is by itself.
    assert!(before.len() == 1 || supervisor.worker_pids().iter().any(|pid| before.contains(pid)));
}
