//! Several devices: `cpu` and `cpu:1` take the places of two GPUs.

use std::path::Path;

use pappus_client::{Client, Invocation, v1};

use crate::fixture::{Supervisor, beside, signal, until};
use crate::house::{config, enter};
use crate::kit;

const NAMES: [&str; 2] = ["cpu", "cpu:1"];

/// Two devices, each with so many workers and no standby: as many domains as there are get their own in it.
fn devices(workers: usize) -> Vec<String> {
    let settings = format!("workers={workers},standbys=0,memory=16MiB,tenant-switch=scrub");
    NAMES.iter().flat_map(|name| ["--device".to_owned(), format!("{name}:{settings}")]).collect()
}

fn statuses(supervisor: &Supervisor) -> Vec<v1::DeviceStatus> {
    supervisor.status().devices
}

/// Where a client's next call runs.
fn device_of_next(supervisor: &Supervisor, client: &mut Client) -> usize {
    let completed = || statuses(supervisor).iter().map(|device| device.completed).collect::<Vec<_>>();
    let before = completed();
    kit::works(client);
    let after = completed();
    let ran = (0..NAMES.len()).filter(|at| after[*at] > before[*at]).collect::<Vec<_>>();
    assert_eq!(ran.len(), 1, "{before:?} {after:?}");
    ran[0]
}

#[test]
fn each_domain_lives_on_one_device_and_the_next_one_on_the_other() {
    let flags = devices(1);
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let supervisor = Supervisor::configured(&config(&[("alice", ""), ("bob", "")]), &flags);
    let names: Vec<_> = statuses(&supervisor).into_iter().map(|device| device.name).collect();
    assert_eq!(names, NAMES);
    let [mut alice, mut bob] = ["alice", "bob"].map(|tenant| enter(&supervisor, tenant));
    kit::add_copy(&mut alice);
    kit::add_copy(&mut bob);
    kit::add_spin(&mut alice);
    let hers = device_of_next(&supervisor, &mut alice);
    assert_eq!(device_of_next(&supervisor, &mut alice), hers);
    let endless = alice.send_invocation(&Invocation::new("spin")).unwrap();
    until("it runs", || statuses(&supervisor)[hers].running == 1);
    // His calls run beside hers, which would keep her only worker busy for ever.
    assert_ne!(device_of_next(&supervisor, &mut bob), hers);
    assert_ne!(device_of_next(&supervisor, &mut bob), hers);
    alice.cancel(endless).unwrap();
    assert!(alice.wait_invoked(endless).is_err());
}

#[test]
fn calls_of_a_lost_device_run_on_the_other_until_it_is_back() {
    let absent = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/liars/absent");
    let (program, dir) = beside(&absent);
    let away = dir.path().join("absent");
    std::fs::write(dir.path().join("pappus.toml"), config(&[("alice", ""), ("bob", "")])).unwrap();
    let flags = ["--config".to_owned(), "pappus.toml".to_owned()].into_iter().chain(devices(1)).collect();
    let supervisor = Supervisor::new(program, flags, dir);
    let [mut alice, mut bob] = ["alice", "bob"].map(|tenant| enter(&supervisor, tenant));
    kit::add_copy(&mut alice);
    kit::add_copy(&mut bob);
    let hers = device_of_next(&supervisor, &mut alice);
    // Both devices have a process.
    let his = device_of_next(&supervisor, &mut bob);
    assert_ne!(hers, his, "where nobody lives yet");

    std::fs::write(&away, "").unwrap();
    signal(statuses(&supervisor)[hers].workers[0].pid, rustix::process::Signal::KILL);
    // Sent while nobody knows yet that no process will come.
    let copy = Invocation::new("copy").input("in", &b"early"[..]).output("out");
    let early: Vec<_> = (0..8).map(|_| alice.send_invocation(&copy).unwrap()).collect();
    until("the device is lost", || statuses(&supervisor)[hers].lost);
    for id in early {
        assert_eq!(&alice.wait_invoked(id).unwrap().outputs[0].inline[..], b"early");
    }
    assert_eq!(device_of_next(&supervisor, &mut alice), his, "hers is lost");
    assert!(!statuses(&supervisor)[his].lost);

    std::fs::remove_file(&away).unwrap();
    until("it is back", || !statuses(&supervisor)[hers].lost);
    let mut admin = supervisor.admin();
    let sound = |status: v1::Status| status.devices.iter().all(|device| device.queued + device.running == 0);
    until("nothing waits", || sound(admin.status().unwrap()));
    kit::works(&mut alice);
}
