//! Processes that are ready to take a worker's place.

use std::time::Duration;

use pappus_client::{Client, Code, Invocation};
use rustix::process::Signal;

use crate::fixture::{Supervisor, is_alive, signal, until};
use crate::kit;
use crate::kit::as_stranger;

fn supervisor(device: &str) -> (Supervisor, Client) {
    kit::copy_and_spin_with(&["--device", device])
}

/// Waits until all standbys are ready and no other process is left; workers and standbys.
fn settled(supervisor: &Supervisor) -> (Vec<u32>, Vec<u32>) {
    let workers = supervisor.worker_pids();
    until("standbys are ready and no process is about to end", || {
        let device = supervisor.device();
        let count = workers.len() + device.standbys as usize;
        device.standbys_ready == device.standbys && supervisor.children().len() == count
    });
    let children = supervisor.children();
    let standbys = children.into_iter().filter(|pid| !workers.contains(pid)).collect();
    (workers, standbys)
}

#[test]
fn a_standby_takes_the_place_of_a_worker_that_ends_and_is_replaced_itself() {
    let (supervisor, mut client) = supervisor("cpu:workers=1,memory=16MiB,standbys=1");
    // No more often than the fault budget of the one caller allows.
    for _ in 0..4 {
        kit::works(&mut client);
        let (workers, standbys) = settled(&supervisor);
        signal(workers[0], Signal::KILL);
        kit::works(&mut client);
        assert_eq!(supervisor.worker_pids(), standbys);
    }
    assert_eq!(supervisor.device().failed, 0);
}

#[test]
fn a_call_runs_again_in_a_standby() {
    let (supervisor, mut client) = supervisor("cpu:workers=1,memory=16MiB,standbys=1");
    for _ in 0..2 {
        let (_, standbys) = settled(&supervisor);
        let spin = client.send_invocation(&Invocation::new("spin")).unwrap();
        let first = supervisor.kill_busy(None);
        assert_eq!(supervisor.kill_busy(Some(first)), standbys[0]);
        supervisor.kill_busy(Some(standbys[0]));
        let error = kit::fails(&mut client, spin, Code::WorkerLost);
        assert!(error.message.contains("signal 9"), "{error}");
        kit::works(&mut client);
    }
}

#[test]
fn a_standby_that_ends_is_replaced() {
    let (supervisor, mut client) = supervisor("cpu:workers=2,memory=16MiB,standbys=2");
    let (workers, standbys) = settled(&supervisor);
    signal(standbys[0], Signal::KILL);
    until("it is gone", || !supervisor.children().contains(&standbys[0]));
    let (same, others) = settled(&supervisor);
    assert_eq!(same, workers);
    assert!(others.contains(&standbys[1]) && !others.contains(&standbys[0]), "{standbys:?} → {others:?}");
    kit::works(&mut client);
}

#[test]
fn a_worker_is_handed_on_by_taking_a_standby() {
    let (supervisor, mut own) = supervisor("cpu:workers=1,memory=16MiB,standbys=1");
    let Some(mut stranger) = as_stranger(|| supervisor.client()) else {
        return kit::works(&mut own);
    };
    kit::add_copy(&mut stranger);
    kit::works(&mut own);
    for _ in 0..3 {
        for client in [&mut stranger, &mut own] {
            let (workers, standbys) = settled(&supervisor);
            kit::works(client);
            assert_eq!(supervisor.worker_pids(), standbys);
            until("the one before is gone", || !is_alive(workers[0]));
        }
    }
}

#[test]
fn a_worker_that_hangs_is_no_obstacle_for_the_next_one() {
    let (supervisor, mut client) = supervisor("cpu:workers=1,memory=16MiB,standbys=1");
    for _ in 0..3 {
        settled(&supervisor);
        let spin = Invocation::new("spin").deadline(Duration::from_millis(50));
        let spin = client.send_invocation(&spin).unwrap();
        kit::works(&mut client);
        kit::fails(&mut client, spin, Code::DeadlineExceeded);
    }
}

#[test]
fn memory_is_accounted_until_a_process_is_reaped() {
    let (supervisor, mut client) = supervisor("cpu:workers=2,memory=16MiB,standbys=1");
    kit::works(&mut client);
    for _ in 0..3 {
        let (workers, _) = settled(&supervisor);
        let memory = supervisor.device().memory.unwrap();
        // What one call needed, in pages.
        assert_eq!((memory.total_bytes, memory.lease_bytes), (16 << 20, 64 << 10));
        assert_eq!(memory.free_bytes, memory.total_bytes - memory.lease_bytes);
        assert_eq!((memory.context_bytes, memory.stack_bytes, memory.weight_bytes), (0, 0, 0));
        signal(workers[0], Signal::KILL);
        kit::works(&mut client);
        until("its place is taken", || !supervisor.worker_pids().contains(&workers[0]));
    }
}

#[test]
fn draining_ends_workers_and_standbys() {
    let (mut supervisor, mut client) = supervisor("cpu:workers=2,memory=16MiB,standbys=2");
    kit::works(&mut client);
    let (workers, standbys) = settled(&supervisor);
    supervisor.terminate();
    assert_eq!(supervisor.ended().code(), Some(0));
    assert!(!workers.iter().chain(&standbys).any(|pid| is_alive(*pid)));
    supervisor.restart();
    let (workers, standbys) = settled(&supervisor);
    supervisor.kill9();
    until("all are gone", || !workers.iter().chain(&standbys).any(|pid| is_alive(*pid)));
}
