//! A worker changes hands: kept for a while, replaced, or scrubbed; never shared.

use std::time::Duration;

use pappus_client::{Client, Code, Invocation};
use rustix::process::Signal;

use crate::fixture::{Supervisor, is_alive, signal, until};
use crate::kit::{self, Function, absolute, as_stranger};

/// Two users of one worker, with `copy` each; none if this user cannot become another one.
fn two(device: &str) -> Option<(Supervisor, Client, Client)> {
    let supervisor = Supervisor::with(&["--device", device]);
    let mut own = supervisor.client();
    let mut stranger = as_stranger(|| supervisor.client())?;
    kit::add_copy(&mut own);
    kit::add_copy(&mut stranger);
    Some((supervisor, own, stranger))
}

#[test]
fn a_scrubbed_process_serves_the_next_tenant() {
    let device = "cpu:workers=1,memory=16MiB,tenant-switch=scrub,min-residency=0s";
    let Some((supervisor, mut own, mut stranger)) = two(device) else { return };
    let pids = supervisor.worker_pids();
    let empty = Function {
        buffers: &[("out", absolute(64))],
        outputs: &["out"],
        steps: &[kit::launch("work", &[])],
        ..Function::default()
    };
    empty.add(&mut stranger, "empty");
    for _ in 0..20 {
        kit::works(&mut own);
        // Nothing of the other's: neither bytes nor functions nor numbers.
        let answer = stranger.invoke(&Invocation::new("empty").output("out")).unwrap();
        assert_eq!(&answer.outputs[0].inline[..], [0; 64]);
        kit::works(&mut stranger);
    }
    assert_eq!(supervisor.worker_pids(), pids);
    assert_eq!(supervisor.device().workers[0].restarts, 0);
    assert!(supervisor.device().workers[0].scrubs >= 20);
    assert_eq!(supervisor.device().failed, 0);
}

#[test]
fn calls_of_two_tenants_at_once_are_all_answered_by_one_scrubbed_process() {
    let device = "cpu:workers=1,memory=16MiB,tenant-switch=scrub,min-residency=0s";
    let Some((supervisor, mut own, mut stranger)) = two(device) else { return };
    let pids = supervisor.worker_pids();
    for round in 0..10u8 {
        let call = |byte: u8| Invocation::new("copy").input("in", vec![byte; 99]).output("out");
        let send = |client: &mut Client, first: u8| -> Vec<_> {
            let bytes = first..first + 5;
            bytes.map(|byte| (client.send_invocation(&call(byte)).unwrap(), byte)).collect()
        };
        let (mine, theirs) = (send(&mut own, round), send(&mut stranger, 100 + round));
        for (client, calls) in [(&mut own, mine), (&mut stranger, theirs)] {
            for (id, byte) in calls {
                assert_eq!(&client.wait_invoked(id).unwrap().outputs[0].inline[..], [byte; 99]);
            }
        }
    }
    assert_eq!(supervisor.worker_pids(), pids);
}

#[test]
fn a_process_with_a_fault_is_replaced_where_others_are_scrubbed() {
    let device = "cpu:workers=1,memory=16MiB,tenant-switch=scrub,min-residency=0s";
    let Some((supervisor, mut own, mut stranger)) = two(device) else { return };
    kit::works(&mut own);
    kit::works(&mut stranger);
    kit::works(&mut own);
    let before = supervisor.worker_pids();
    kit::add_kernel(&mut own, "trap", "trap", &[]);
    kit::refused(own.invoke(&Invocation::new("trap")), Code::KernelFault, "");
    kit::works(&mut own);
    assert_eq!(supervisor.worker_pids(), before, "its own tenant keeps it");
    kit::works(&mut stranger);
    assert_ne!(supervisor.worker_pids(), before);
}

#[test]
fn a_worker_that_does_not_forget_is_killed() {
    let device = "cpu:workers=1,memory=16MiB,tenant-switch=scrub,min-residency=0s";
    let Some((supervisor, mut own, mut stranger)) = two(device) else { return };
    kit::works(&mut own);
    let before = supervisor.worker_pids();
    signal(before[0], Signal::STOP);
    kit::works(&mut stranger);
    assert_ne!(supervisor.worker_pids(), before);
    until("it is gone", || !is_alive(before[0]));
    assert!(supervisor.log().contains("does not forget a tenant"));
}

#[test]
fn a_tenant_keeps_its_worker_for_the_residency() {
    let Some((supervisor, mut own, mut stranger)) = two("cpu:workers=1,memory=16MiB,min-residency=10m")
    else {
        return;
    };
    kit::works(&mut own);
    let before = supervisor.worker_pids();
    let late = Invocation::new("copy").input("in", b"late".to_vec()).output("out");
    let late = stranger.send_invocation(&late.deadline(Duration::from_millis(50))).unwrap();
    kit::works(&mut own);
    kit::fails(&mut stranger, late, Code::DeadlineExceeded);
    assert_eq!(supervisor.worker_pids(), before);
    // The control: without a residency the same call is answered.
    let Some((_supervisor, mut own, mut stranger)) = two("cpu:workers=1,memory=16MiB,min-residency=0s")
    else {
        return;
    };
    kit::works(&mut own);
    kit::works(&mut stranger);
}

#[test]
fn without_a_standby_the_next_tenant_waits_and_never_shares() {
    let Some((supervisor, mut own, mut stranger)) =
        two("cpu:workers=1,memory=16MiB,standbys=1,min-residency=0s")
    else {
        return;
    };
    // Faster than standbys get ready.
    let mut seen = Vec::new();
    for _ in 0..6 {
        for client in [&mut own, &mut stranger] {
            kit::works(client);
            seen.push(supervisor.worker_pids()[0]);
        }
    }
    let mut processes = seen.clone();
    processes.sort_unstable();
    processes.dedup();
    assert_eq!(processes.len(), seen.len(), "a process of two tenants: {seen:?}");
    assert_eq!(supervisor.device().failed, 0);
}
