//! Domains keep their processes as long as there is room, and memory goes where calls are.

use std::collections::HashSet;
use std::time::Duration;

use pappus_client::{Client, Invocation, v1};

use crate::fixture::{Supervisor, until};
use crate::house::{config, enter};
use crate::kit::{self, Function, absolute, constant, launch, ptr};

/// A supervisor with so many tenants, and a connection of each.
fn tenants(count: usize, flags: &[&str]) -> (Supervisor, Vec<Client>) {
    let names: Vec<String> = (0..count).map(|nth| format!("tenant{nth}")).collect();
    let rules: Vec<_> = names.iter().map(|name| (name.as_str(), "")).collect();
    let supervisor = Supervisor::configured(&config(&rules), flags);
    let mut clients: Vec<_> = names.iter().map(|name| enter(&supervisor, name)).collect();
    clients.iter_mut().for_each(kit::add_copy);
    (supervisor, clients)
}

/// Whom workers serve, with their process ids.
fn residents(supervisor: &Supervisor) -> HashSet<(String, u32)> {
    let workers = supervisor.device().workers.into_iter().filter(|worker| !worker.caller.is_empty());
    workers.map(|worker| (worker.caller, worker.pid)).collect()
}

fn lent(worker: &v1::WorkerStatus) -> u64 {
    worker.lent_bytes
}

#[test]
fn all_tenants_are_resident_with_default_settings() {
    let (supervisor, mut clients) = tenants(24, &["--device", "cpu"]);
    clients.iter_mut().for_each(kit::works);
    let first = residents(&supervisor);
    assert_eq!(first.len(), 24);
    (0..3).for_each(|_| clients.iter_mut().for_each(kit::works));
    // No call waited for a process to start.
    assert_eq!(residents(&supervisor), first, "no process was replaced");
    let device = supervisor.device();
    assert_eq!((device.workers_at_most, device.failed), (32, 0));
    assert!(device.workers.iter().all(|worker| worker.last_gone.is_empty() && worker.restarts == 0));
}

#[test]
fn beyond_the_ceiling_one_after_the_other_gives_way() {
    for switch in ["replace", "scrub"] {
        let device = format!("cpu:workers=8,memory=64MiB,min-residency=0s,tenant-switch={switch}");
        let (supervisor, mut clients) = tenants(9, &["--device", &device]);
        // Where processes are scrubbed, none is waited for while another one is idle.
        until("each has a process", || {
            clients[..8].iter_mut().for_each(kit::works);
            residents(&supervisor).len() == 8
        });
        let before = residents(&supervisor);
        kit::works(&mut clients[8]);
        let after = residents(&supervisor);
        let stayed = before.intersection(&after).count();
        assert_eq!((after.len(), stayed), (8, 7), "the one without calls for longest went");
        assert!(!after.iter().any(|(tenant, _)| tenant == "tenant0"));
        let device = supervisor.device();
        let slot = device.workers.iter().find(|worker| worker.caller == "tenant8").unwrap();
        assert_eq!(slot.last_gone, "slot wanted");
        for _ in 0..3 {
            clients.iter_mut().for_each(kit::works);
        }
        assert_eq!(supervisor.device().failed, 0);
    }
}

#[test]
fn a_process_is_made_when_it_is_needed() {
    let (supervisor, mut clients) = tenants(3, &["--device", "cpu"]);
    until("the first worker and a standby are there", || {
        let device = supervisor.device();
        device.standbys_ready == 1 && device.workers.len() == 1 && device.workers[0].state == "idle"
    });
    assert_eq!(supervisor.children().len(), 2);
    clients.iter_mut().for_each(kit::works);
    assert_eq!(residents(&supervisor).len(), 3);
}

#[test]
fn a_large_call_runs_beside_small_ones_and_takes_what_is_idle() {
    let (supervisor, mut clients) = tenants(4, &["--device", "cpu:workers=4,memory=16MiB"]);
    let fills = [launch("fill", &[ptr("b"), constant(7), constant(5 << 20)])];
    let medium = Function { buffers: &[("b", absolute(5 << 20))], steps: &fills, ..Function::default() };
    for client in &mut clients {
        medium.add(client, "medium");
        kit::add_spin(client);
    }
    let spin =
        clients[0].send_invocation(&Invocation::new("spin").deadline(Duration::from_secs(50))).unwrap();
    supervisor.until_running();
    // Three do not fit beside each other in 16 MiB: what is idle is lent to who calls.
    for round in 0..12 {
        clients[1 + round % 3].invoke(&Invocation::new("medium")).unwrap();
        let device = supervisor.device();
        let sum: u64 = device.workers.iter().map(lent).sum();
        assert!(sum <= 16 << 20, "{sum} bytes of 16 MiB are lent");
        assert_eq!(device.running, 1, "the other call goes on");
    }
    assert_eq!(supervisor.device().failed, 0);
    clients[0].cancel(spin).unwrap();
    supervisor.end_detached();
}

#[test]
fn memory_that_goes_from_tenant_to_tenant_shows_nothing_of_the_one_before() {
    let (supervisor, mut clients) = tenants(4, &["--device", "cpu:workers=4,memory=16MiB"]);
    // Each fills five of sixteen megabytes with what is its own, and the next one looks.
    let bytes = 5 << 20;
    let (buffers, outputs) = ([("b", absolute(bytes)), ("out", absolute(4096))], ["out"]);
    let fills = launch("fill", &[ptr("b"), constant(0x5e), constant(bytes as i64)]);
    let reads = launch("copy", &[ptr("b"), ptr("out"), constant(4096)]);
    let functions =
        [("dirty", vec![fills.clone()]), ("look", vec![reads.clone()]), ("both", vec![fills, reads])];
    for client in &mut clients {
        for (name, steps) in &functions {
            let function = Function { buffers: &buffers, outputs: &outputs, steps, ..Function::default() };
            function.add(client, name);
        }
    }
    let seen = |client: &mut Client, name: &str| {
        client.invoke(&Invocation::new(name).output("out")).unwrap().outputs[0].inline.to_vec()
    };
    for round in 0..8 {
        let [first, second] = [round % 4, (round + 1) % 4];
        // The control: the look finds what was written, where that is in the same call.
        assert_eq!(seen(&mut clients[first], "both"), [0x5e; 4096]);
        seen(&mut clients[first], "dirty");
        assert_eq!(seen(&mut clients[second], "look"), [0; 4096]);
    }
    let lent: u64 = supervisor.device().workers.iter().map(lent).sum();
    assert!(lent <= 16 << 20 && supervisor.device().workers.len() == 4);
}
