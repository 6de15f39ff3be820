//! Workers that die, hang or are refused what they need: the call that caused it fails, the next one runs
//! (ATTACKS 2, 3, 7, 25, 27).

use std::time::{Duration, Instant};

use pappus_client::{Client, Code, Invocation};
use rustix::process::Signal;
use serde_json::json;

use crate::fixture::{LATE, Supervisor, is_alive, signal, until};
use crate::kit::{self, Function, absolute, constant, launch, ptr, refused};

fn supervisor(device: &str) -> (Supervisor, Client) {
    kit::copy_and_spin_with(&["--device", device])
}

const ONE: &str = "cpu:workers=1,memory=16MiB";

#[test]
fn a_call_whose_workers_are_killed_fails_and_no_other() {
    let (supervisor, mut client) = supervisor("cpu:workers=2,memory=16MiB");
    supervisor.worker_pids();
    let spin = client.send_invocation(&Invocation::new("spin")).unwrap();
    let first = supervisor.kill_busy(None);
    // The call runs again. The other worker serves meanwhile.
    kit::works(&mut client);
    let second = supervisor.kill_busy(Some(first));
    supervisor.kill_busy(Some(second));
    let error = kit::fails(&mut client, spin, Code::WorkerLost);
    assert!(error.retryable && error.message.contains("signal 9"), "{error}");
    kit::works(&mut client);
    let device = supervisor.device();
    // What was killed from outside is not the tenant's doing.
    assert_eq!((device.failed, device.budgets.len(), device.quarantined.len()), (1, 0, 0));
}

#[test]
fn an_idle_worker_that_is_killed_is_replaced() {
    let (supervisor, mut client) = supervisor(ONE);
    let mut pid = supervisor.worker_pids()[0];
    // More often than its caller's fault budget allows: it is not charged.
    for _ in 0..7 {
        kit::works(&mut client);
        signal(pid, Signal::KILL);
        // A call that is handed to the one that is gone runs in the next one.
        kit::works(&mut client);
        let next = supervisor.worker_pids()[0];
        assert_ne!(next, pid);
        pid = next;
    }
    assert_eq!(supervisor.device().failed, 0);
}

#[test]
fn a_stopped_worker_is_ended_like_one_that_hangs() {
    let (supervisor, mut client) = supervisor(ONE);
    kit::works(&mut client);
    let pid = supervisor.worker_pids()[0];
    signal(pid, Signal::STOP);
    let call = Invocation::new("copy").input("in", vec![1]).deadline(Duration::from_millis(50));
    refused(client.invoke(&call), Code::DeadlineExceeded, "");
    kit::works(&mut client);
    assert!(!is_alive(pid));
}

#[test]
fn an_endless_kernel_ends_at_its_deadline() {
    let (supervisor, mut client) = supervisor(ONE);
    kit::works(&mut client);
    let deadline = Duration::from_millis(100);
    let start = Instant::now();
    let call = Invocation::new("spin").deadline(deadline);
    refused(client.invoke(&call), Code::DeadlineExceeded, "");
    let took = start.elapsed();
    assert!(took >= deadline, "{took:?}");
    // The promise is one of time. Without the deadline it would not end at all.
    assert!(took < deadline + LATE, "{took:?}");
    kit::works(&mut client);
    assert_eq!(supervisor.device().failed, 1);
}

#[test]
fn a_deadline_counts_from_arrival_and_ends_waiting_too() {
    let (supervisor, mut client) = supervisor(ONE);
    let spin = client.send_invocation(&Invocation::new("spin")).unwrap();
    supervisor.until_running();
    let waiting = Invocation::new("copy").input("in", vec![1]).deadline(Duration::from_millis(20));
    let error = refused(client.invoke(&waiting), Code::DeadlineExceeded, "while it waited for a worker");
    assert!(error.retryable, "{error}");
    client.cancel(spin).unwrap();
    kit::fails(&mut client, spin, Code::Cancelled);
}

#[test]
fn deadlines_have_a_default_and_a_maximum() {
    let supervisor = Supervisor::with(&["--default-deadline", "30ms", "--max-deadline", "60ms"]);
    let mut client = supervisor.client();
    kit::add_spin(&mut client);
    refused(client.invoke(&Invocation::new("spin")), Code::DeadlineExceeded, "");
    let forever = Invocation::new("spin").deadline(Duration::MAX);
    refused(client.invoke(&forever), Code::DeadlineExceeded, "");
}

#[test]
fn a_trap_names_its_kernel_and_keeps_the_worker() {
    let (supervisor, mut client) = supervisor(ONE);
    let pids = supervisor.worker_pids();
    let function = Function {
        buffers: &[("out", absolute(8))],
        steps: &[launch("store", &[ptr("out"), constant(1)]), launch("trap", &[])],
        ..Function::default()
    };
    function.add(&mut client, "traps");
    let error = refused(client.invoke(&Invocation::new("traps")), Code::KernelFault, "unreachable");
    assert_eq!(error.place, "kernel trap");
    // Errors say nothing about the host.
    assert!(!error.to_string().contains("0x"), "{error}");
    kit::works(&mut client);
    assert_eq!(supervisor.worker_pids(), pids);
}

#[test]
fn stray_accesses_are_faults() {
    let (_supervisor, mut client) = supervisor(ONE);
    for (name, to, bytes) in [
        ("beyond", ptr("out"), 1 << 31),
        ("nowhere", json!({"U64": 0xf000_0000u64}), 8),
        ("last", json!({"U64": 0xffff_fff0u64}), 64),
    ] {
        let function = Function {
            buffers: &[("out", absolute(8))],
            steps: &[launch("fill", &[to, constant(1), constant(bytes)])],
            ..Function::default()
        };
        function.add(&mut client, name);
        let error = refused(client.invoke(&Invocation::new(name)), Code::KernelFault, "");
        assert_eq!(error.place, "kernel fill");
        kit::works(&mut client);
    }
}

#[test]
fn what_exceeds_the_device_is_refused_with_the_numbers() {
    let (_supervisor, mut client) = supervisor("cpu:workers=2,memory=16MiB");
    for (name, bytes) in [("fits", 16u64 << 20), ("large", (16 << 20) + 1), ("huge", 1 << 40)] {
        let function = Function { buffers: &[("out", absolute(bytes))], ..Function::default() };
        function.add(&mut client, name);
    }
    client.invoke(&Invocation::new("fits")).unwrap();
    for name in ["large", "huge"] {
        let error = refused(client.invoke(&Invocation::new(name)), Code::OutOfMemory, "16777216");
        assert!(!error.retryable, "{error}");
    }
    refused(client.invoke(&Invocation::new("large")), Code::OutOfMemory, "16777472");
}

#[test]
fn a_function_that_kills_its_worker_every_time_leaves_room_for_others() {
    let (supervisor, mut client) = supervisor(ONE);
    kit::works(&mut client);
    // It is refused after three times, and others go on.
    let spin = Invocation::new("spin").deadline(Duration::from_millis(300));
    for _ in 0..2 {
        refused(client.invoke(&spin), Code::DeadlineExceeded, "while it ran");
        kit::works(&mut client);
    }
    let third = client.send_invocation(&spin).unwrap();
    let fourth = client.send_invocation(&Invocation::new("spin")).unwrap();
    kit::fails(&mut client, third, Code::DeadlineExceeded);
    kit::fails(&mut client, fourth, Code::Quarantined);
    kit::works(&mut client);
    assert_eq!(supervisor.worker_pids().len(), 1);
}

#[test]
fn a_waiting_call_that_is_cancelled_never_runs() {
    let (supervisor, mut client) = supervisor(ONE);
    kit::works(&mut client);
    let spin = client.send_invocation(&Invocation::new("spin").deadline(Duration::from_millis(300))).unwrap();
    supervisor.until_running();
    let copy = Invocation::new("copy").input("in", vec![1]);
    let waiting = client.send_invocation(&copy).unwrap();
    until("it waits", || supervisor.device().queued == 1);
    client.cancel(waiting).unwrap();
    kit::fails(&mut client, waiting, Code::Cancelled);
    assert_eq!(supervisor.device().queued, 0);
    // A running call is only left alone: its caller is answered at once, its deadline still ends it.
    client.cancel(spin).unwrap();
    kit::fails(&mut client, spin, Code::Cancelled);
    assert_eq!(supervisor.device().running, 1);
    kit::works(&mut client);
    // Only `copy` before and after ended well: the cancelled one never ran.
    assert_eq!(supervisor.device().completed, 2);
    // To cancel what is answered changes nothing.
    client.cancel(spin).unwrap();
}

#[test]
fn module_globals_are_as_fresh_for_every_call() {
    let (_supervisor, mut client) = supervisor(ONE);
    let step = launch("global", &[ptr("out")]);
    for (name, steps) in [("once", &[step.clone()][..]), ("twice", &[step.clone(), step][..])] {
        let function =
            Function { buffers: &[("out", absolute(8))], outputs: &["out"], steps, ..Function::default() };
        function.add(&mut client, name);
    }
    let mut seen = |name| {
        let answer = client.invoke(&Invocation::new(name).output("out")).unwrap();
        answer.outputs[0].inline.to_vec()
    };
    assert_eq!(seen("once"), b"pristine");
    assert_eq!(seen("once"), b"pristine");
    // The control: within one call the second launch sees what the first left.
    assert_eq!(seen("twice"), [0xff; 8]);
    assert_eq!(seen("once"), b"pristine");
}

#[test]
fn a_worker_has_nothing_that_it_does_not_need() {
    let (supervisor, mut client) = supervisor(ONE);
    kit::works(&mut client);
    let pid = supervisor.worker_pids()[0];
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
    let names: Vec<_> = read("environ")
        .split('\0')
        .map(|variable| variable.split('=').next().unwrap().to_owned())
        .filter(|name| !["", "PAPPUS_LOG"].contains(&name.as_str()))
        .collect();
    assert!(names.is_empty(), "{names:?}");
    assert!(read("status").contains("NoNewPrivs:\t1\n"));
    let core = read("limits").lines().find(|line| line.starts_with("Max core file size")).map(str::to_owned);
    assert_eq!(core.unwrap().split_whitespace().nth(4), Some("0"));
    // Nothing of the supervisor's: no socket of a client, no state directory.
    for fd in std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        let target = std::fs::read_link(fd.unwrap().path()).unwrap();
        let target = target.to_str().unwrap();
        assert!(!target.contains("/state/") || target.contains("/code/"), "{target}");
    }
}
