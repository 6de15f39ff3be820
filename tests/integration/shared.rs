//! Workers that all domains share (`isolation=auto`): strangers' calls run in one process, long ones move out of it, and nobody
//! notices what another one does there.

use std::time::Duration;

use pappus_client::{Client, Code, Invocation};
use rustix::process::Signal;
use serde_json::json;

use crate::fixture::{Supervisor, signal, until};
use crate::house::{config, enter};
use crate::kit::{self, Function, absolute, launch};

const DEVICE: &str = "cpu:workers=4,memory=64MiB,isolation=auto,shared-limit=300ms";

/// A supervisor whose tenants share workers, each followed by its settings.
fn shared(tenants: &[(&str, &str)]) -> Supervisor {
    Supervisor::configured(&config(tenants), &["--device", DEVICE])
}

/// How many calls ended well in workers that are shared, and in others.
fn completed(supervisor: &Supervisor) -> (u64, u64) {
    let workers = supervisor.device().workers;
    let of =
        |shared| workers.iter().filter(|worker| worker.shared == shared).map(|worker| worker.completed).sum();
    (of(true), of(false))
}

/// Processes of shared workers.
fn pids(supervisor: &Supervisor) -> Vec<u32> {
    supervisor.device().workers.iter().filter(|worker| worker.shared).map(|worker| worker.pid).collect()
}

/// The same, once all are there: one for each processor, as far as one worker is left for others.
fn all_pids(supervisor: &Supervisor) -> Vec<u32> {
    let processors = std::thread::available_parallelism().unwrap().get();
    until("all shared workers are there", || pids(supervisor).len() == processors.min(3));
    pids(supervisor)
}

fn copying(supervisor: &Supervisor, tenant: &str) -> Client {
    let mut client = enter(supervisor, tenant);
    kit::add_copy(&mut client);
    client
}

#[test]
fn strangers_run_in_one_process_and_find_nothing_of_each_other() {
    let supervisor = shared(&[("alice", ""), ("bob", "")]);
    let (mut alice, mut bob) = (copying(&supervisor, "alice"), copying(&supervisor, "bob"));
    let empty = Function {
        buffers: &[("out", absolute(4096))],
        outputs: &["out"],
        steps: &[launch("work", &[])],
        ..Function::default()
    };
    empty.add(&mut bob, "empty");
    let before = all_pids(&supervisor);
    for _ in 0..20 {
        let secret = vec![0xa5; 4096];
        assert_eq!(kit::copied(&mut alice, &secret).unwrap(), secret);
        let answer = bob.invoke(&Invocation::new("empty").output("out")).unwrap();
        assert_eq!(&answer.outputs[0].inline[..], [0; 4096]);
        kit::works(&mut bob);
    }
    assert_eq!((completed(&supervisor), pids(&supervisor)), ((60, 0), before));
}

#[test]
fn who_wants_a_process_of_its_own_has_one() {
    let supervisor = shared(&[("alice", ""), ("bob", "isolation = \"process\"")]);
    let (mut alice, mut bob) = (copying(&supervisor, "alice"), copying(&supervisor, "bob"));
    (0..3).for_each(|_| kit::works(&mut bob));
    assert_eq!(completed(&supervisor), (0, 3));
    kit::works(&mut alice);
    assert_eq!(completed(&supervisor), (1, 3));
    let owned = |worker: &pappus_client::v1::WorkerStatus| worker.caller == "bob" && !worker.shared;
    assert!(supervisor.device().workers.iter().any(owned));
}

#[test]
fn a_function_may_want_a_process_of_its_own() {
    let supervisor = shared(&[("alice", ""), ("bob", "")]);
    let (mut alice, mut bob) = (copying(&supervisor, "alice"), copying(&supervisor, "bob"));
    let work = Function { steps: &[launch("work", &[])], ..Function::default() };
    for (name, isolation) in [("apart", "process"), ("beside", "auto")] {
        let config = work.json().replacen('{', &format!("{{\"isolation\": \"{isolation}\", "), 1);
        let variant = kit::wasm(&mut alice, kit::probes());
        let function = kit::parts(&mut alice, name, &config, kit::module_of("probes", vec![variant]));
        alice.add_function(function.unwrap()).unwrap();
    }
    for nth in 1..=3 {
        alice.invoke(&Invocation::new("apart")).unwrap();
        kit::works(&mut bob);
        assert_eq!(completed(&supervisor), (nth, nth));
    }
    alice.invoke(&Invocation::new("beside")).unwrap();
    kit::works(&mut alice);
    assert_eq!(completed(&supervisor), (5, 3));
}

#[test]
fn a_call_that_takes_long_moves_to_a_process_of_its_own_and_ends_there() {
    let supervisor = shared(&[("alice", ""), ("bob", "")]);
    let (mut alice, mut bob) = (copying(&supervisor, "alice"), copying(&supervisor, "bob"));
    // Minutes of fills, each of them short.
    let fill = json!({"Repeat": [absolute(500_000), [{"Fill": {"buffer": "big", "byte": 1}}]]});
    let long = Function {
        buffers: &[("big", absolute(4 << 20))],
        outputs: &["big"],
        steps: &[fill],
        ..Function::default()
    };
    long.add(&mut alice, "long");
    let before = all_pids(&supervisor);
    let deadline = Duration::from_secs(3);
    let spins: Vec<u64> =
        (0..2).map(|_| alice.send_invocation(&Invocation::new("long").deadline(deadline)).unwrap()).collect();
    let moved = |supervisor: &Supervisor| {
        supervisor.device().workers.iter().any(|worker| worker.caller == "alice" && worker.busy_lanes == 1)
    };
    until("a long call runs in a worker of its own", || moved(&supervisor));
    for _ in 0..20 {
        kit::works(&mut bob);
    }
    assert_eq!(completed(&supervisor), (20, 0));
    let kept = supervisor.device().kept_apart;
    assert!(kept.len() == 1 && kept[0].function == "long" && kept[0].caller == "alice", "{kept:?}");
    assert!(kept[0].why.contains("shared-limit") && kept[0].for_ms > 0, "{kept:?}");
    for spin in spins {
        kit::fails(&mut alice, spin, Code::DeadlineExceeded);
    }
    kit::works(&mut alice);
    assert_eq!(pids(&supervisor), before, "nobody's process was ended");
}

#[test]
fn who_is_in_shared_workers_only_has_no_process_and_is_told_why_a_call_cannot_run() {
    let tenants = [("alice", "isolation = 'shared'"), ("bob", "isolation = 'process'")];
    let supervisor = shared(&tenants);
    let mut alice = copying(&supervisor, "alice");
    kit::works(&mut alice);
    let mut bob = copying(&supervisor, "bob");
    bob.grant("copy", "alice").unwrap();
    let call = Invocation::new("bob/copy").input("in", vec![1; 8]).output("out");
    kit::refused(alice.invoke(&call), Code::Unsupported, "isolation is \"process\"");
    kit::add_spin(&mut alice);
    let deadline = Duration::from_secs(20);
    kit::refused(alice.invoke(&Invocation::new("spin").deadline(deadline)), Code::Overrun, "shared-limit");
    kit::refused(
        alice.invoke(&Invocation::new("spin")),
        Code::ResourceExhausted,
        "took longer than shared-limit",
    );
    kit::works(&mut alice);
    let workers = supervisor.device().workers;
    assert!(workers.iter().all(|worker| worker.shared || worker.caller != "alice"), "{workers:?}");
    let apart = Supervisor::configured(&config(&tenants), &["--device", "cpu:workers=2"]);
    let mut alice = copying(&apart, "alice");
    let call = Invocation::new("copy").input("in", vec![1; 8]).output("out");
    kit::refused(alice.invoke(&call), Code::Unsupported, "the operator sets isolation=auto");
}

#[test]
fn a_kernel_that_fails_costs_its_own_call_only() {
    let supervisor = shared(&[("alice", ""), ("bob", "")]);
    let (mut alice, mut bob) = (copying(&supervisor, "alice"), copying(&supervisor, "bob"));
    kit::add_kernel(&mut alice, "trap", "trap", &[]);
    let before = all_pids(&supervisor);
    for _ in 0..3 {
        kit::refused(alice.invoke(&Invocation::new("trap")), Code::KernelFault, "");
        kit::works(&mut bob);
        kit::works(&mut alice);
    }
    assert_eq!((completed(&supervisor), pids(&supervisor)), ((6, 0), before));
}

#[test]
fn calls_outlive_the_process_that_all_share() {
    let supervisor = shared(&[("alice", ""), ("bob", "")]);
    let (mut alice, mut bob) = (copying(&supervisor, "alice"), copying(&supervisor, "bob"));
    for round in 0..5u8 {
        let call = Invocation::new("copy").input("in", vec![round; 1000]).output("out");
        let mut sent = Vec::new();
        for nth in 0..40 {
            let client = if nth % 2 == 0 { &mut alice } else { &mut bob };
            sent.push((nth % 2 == 0, client.send_invocation(&call).unwrap()));
        }
        for pid in pids(&supervisor).into_iter().filter(|pid| *pid != 0) {
            signal(pid, Signal::KILL);
        }
        for (is_alice, id) in sent {
            let client = if is_alice { &mut alice } else { &mut bob };
            assert_eq!(&client.wait_invoked(id).unwrap().outputs[0].inline[..], [round; 1000]);
        }
    }
}

#[test]
fn many_tenants_need_no_process_each() {
    let names: Vec<String> = (0..40).map(|nth| format!("t{nth}")).collect();
    let tenants: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
    let supervisor = shared(&tenants);
    let mut clients: Vec<Client> = names.iter().map(|name| copying(&supervisor, name)).collect();
    for _ in 0..3 {
        clients.iter_mut().for_each(kit::works);
    }
    assert_eq!(completed(&supervisor), (120, 0));
    assert_eq!(supervisor.device().workers.iter().map(|worker| worker.restarts).sum::<u64>(), 0);
}

#[test]
fn a_memory_quota_holds_in_shared_workers() {
    let supervisor = shared(&[("alice", "device-memory = \"128KiB\""), ("bob", "")]);
    let (mut alice, mut bob) = (copying(&supervisor, "alice"), copying(&supervisor, "bob"));
    let big = vec![1; 200_000];
    kit::refused(kit::copied(&mut alice, &big), Code::ResourceExhausted, "device-memory");
    assert_eq!(kit::copied(&mut bob, &big).unwrap(), big);
    kit::works(&mut alice);
    assert_eq!(completed(&supervisor), (2, 0));
}

#[test]
fn workers_that_tenants_share_are_not_taken_away() {
    let supervisor = shared(&[("alice", "")]);
    let there = all_pids(&supervisor).len();
    let admin = supervisor.admin_socket();
    let set = |workers: usize| {
        supervisor.pappus(&[
            "--socket",
            admin.to_str().unwrap(),
            "device",
            "set",
            "cpu",
            &format!("workers={workers}"),
        ])
    };
    let refused = set(there);
    assert!(refused.code != 0 && refused.stderr.contains("tenants share"), "{}", refused.stderr);
    assert_eq!(set(there + 1).code, 0);
    kit::works(&mut copying(&supervisor, "alice"));
    assert_eq!(completed(&supervisor), (1, 0));
}

#[test]
fn what_cannot_be_shared_is_said_where_it_is_set() {
    let supervisor = Supervisor::start();
    for (device, words) in [
        ("cpu:workers=1,isolation=auto", "workers is 1, but tenants share 1 with isolation=auto"),
        ("cpu:isolation=some", "isolation must be process or auto"),
        ("cpu:shared-limit=1h", "shared-limit must be 100us to 10s"),
    ] {
        let ran = crate::fixture::run(&mut crate::fixture::command(
            &crate::programs::program("pappus-supervisor"),
            &supervisor.path("."),
            "other.sock",
            &["--device".to_owned(), device.to_owned()],
        ));
        assert!(ran.stderr.contains(words), "{device}: {}", ran.stderr);
    }
}

/// A call of a function that was never called before: one block, which never ends.
fn endless(client: &mut Client, name: &str, deadline: Duration) -> Invocation {
    kit::add_kernel(client, name, "spin", &[]);
    Invocation::new(name).deadline(deadline)
}

#[test]
fn a_block_that_never_ends_costs_nobody_else_a_process_again_and_again() {
    let supervisor = shared(&[("alice", ""), ("bob", "")]);
    let (mut alice, mut bob) = (copying(&supervisor, "alice"), copying(&supervisor, "bob"));
    let before = all_pids(&supervisor);
    for round in 0..4 {
        // Two last longer than a call may in a shared worker and end elsewhere; the others' deadlines come before.
        let long = endless(&mut alice, &format!("long{round}"), Duration::from_millis(300));
        let short = endless(&mut alice, &format!("short{round}"), Duration::from_millis(20));
        let sent = [&long, &short, &long, &short].map(|call| alice.send_invocation(call).unwrap());
        for _ in 0..20 {
            kit::works(&mut bob);
        }
        for id in sent {
            kit::fails(&mut alice, id, Code::DeadlineExceeded);
        }
    }
    assert_eq!((completed(&supervisor), pids(&supervisor)), ((80, 0), before));
    let lost = |worker: &pappus_client::v1::WorkerStatus| worker.shared && worker.restarts > 0;
    assert!(!supervisor.device().workers.iter().any(lost), "nobody's call ran again");
}

#[test]
fn a_call_that_never_ends_and_is_given_up_costs_no_process_either() {
    let supervisor = shared(&[("alice", ""), ("bob", "")]);
    let (mut alice, mut bob) = (copying(&supervisor, "alice"), copying(&supervisor, "bob"));
    let before = all_pids(&supervisor);
    for round in 0..8 {
        let call = endless(&mut alice, &format!("endless{round}"), Duration::from_secs(60));
        let id = alice.send_invocation(&call).unwrap();
        until("it runs", || supervisor.device().workers.iter().any(|worker| worker.busy_lanes == 1));
        alice.cancel(id).unwrap();
        kit::fails(&mut alice, id, Code::Cancelled);
        kit::works(&mut bob);
    }
    until("all are over", || supervisor.device().workers.iter().all(|worker| worker.busy_lanes == 0));
    assert_eq!(pids(&supervisor), before);
}

/// The control: where nothing is shared, kernels run to their end, and what never ends takes its worker along.
#[test]
fn without_sharing_a_block_that_never_ends_costs_its_worker() {
    let supervisor = Supervisor::configured(
        &config(&[("alice", "")]),
        &["--device", "cpu:workers=1,memory=16MiB,isolation=process"],
    );
    let mut alice = copying(&supervisor, "alice");
    kit::works(&mut alice);
    let before = supervisor.worker_pids();
    let call = endless(&mut alice, "endless", Duration::from_millis(300));
    kit::refused(alice.invoke(&call), Code::DeadlineExceeded, "");
    kit::works(&mut alice);
    assert_ne!(supervisor.worker_pids(), before);
}

#[test]
fn a_checked_call_that_never_ends_is_over_at_its_deadline() {
    let supervisor = shared(&[("alice", ""), ("bob", "")]);
    let (mut alice, mut bob) = (copying(&supervisor, "alice"), copying(&supervisor, "bob"));
    let before = all_pids(&supervisor);
    let call = endless(&mut alice, "endless", Duration::from_millis(200));
    let id = alice.send_invocation(&call.checked()).unwrap();
    (0..20).for_each(|_| kit::works(&mut bob));
    kit::fails(&mut alice, id, Code::DeadlineExceeded);
    assert_eq!((completed(&supervisor), pids(&supervisor)), ((20, 0), before));
}

#[test]
fn stored_code_that_cannot_be_interrupted_is_made_again_for_shared_workers_and_the_other_way_round() {
    let tenants = config(&[("alice", "")]);
    let written = |device: &str| format!("device = [\"{device}\"]\n{tenants}");
    let mut supervisor = Supervisor::from_file(&written("cpu:workers=2,memory=16MiB"));
    let mut alice = copying(&supervisor, "alice");
    kit::add_spin(&mut alice);
    kit::works(&mut alice);
    for (device, is_shared) in [(DEVICE, true), ("cpu:workers=2,memory=16MiB", false), (DEVICE, true)] {
        supervisor.kill9();
        supervisor.write("pappus.toml", written(device));
        supervisor.restart();
        let mut alice = enter(&supervisor, "alice");
        kit::works(&mut alice);
        let spin = Invocation::new("spin").deadline(Duration::from_millis(300));
        kit::refused(alice.invoke(&spin), Code::DeadlineExceeded, "");
        kit::works(&mut alice);
        let restarts = || supervisor.device().workers.iter().map(|worker| worker.restarts).sum::<u64>();
        match is_shared {
            true => assert_eq!(restarts(), 0),
            false => until("the worker is replaced", || restarts() == 1),
        }
    }
}
