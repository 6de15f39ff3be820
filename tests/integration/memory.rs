//! Shared memory that changes under a call: harm stays with the client that changed it (ATTACKS 13, 22). Output regions are
//! undefined until success, zeroed on failure, and nothing beside them is written.

use std::os::fd::{AsFd, OwnedFd};

use pappus_client::v1::{self, request, response};
use pappus_client::{Client, Code, Invocation, memfd};
use rustix::fs::{MemfdFlags, SealFlags};
use serde_json::json;

use crate::fixture::{Supervisor, until};
use crate::kit::{self, Function, absolute, constant, launch, ptr, refused};

const BYTES: u64 = 64 << 10;

/// An arena whose descriptor stays in the hands of its client.
struct Own {
    fd: OwnedFd,
    id: u64,
}

impl Own {
    /// Filled with `byte`.
    fn open(client: &mut Client, byte: u8) -> Self {
        let fd = rustix::fs::memfd_create("t", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, BYTES).unwrap();
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        let open = request::Body::OpenArena(v1::OpenArena {});
        let sent = client.send(open, &[fd.as_fd()]).unwrap();
        let response::Body::Arena(opened) = client.wait(sent).unwrap() else { panic!("no arena") };
        let own = Self { fd, id: opened.arena };
        own.write(0, &[byte; BYTES as usize]);
        own
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        memfd::write_all_at(self.fd.as_fd(), at, bytes).unwrap();
    }

    fn read(&self) -> Vec<u8> {
        let mut out = vec![0; BYTES as usize];
        memfd::read_exact_at(self.fd.as_fd(), 0, &mut out).unwrap();
        out
    }

    fn region(&self, offset: u64, bytes: u64) -> v1::Region {
        v1::Region { arena: self.id, offset, bytes }
    }
}

fn copy(input: v1::Region, output: v1::Region) -> Invocation {
    Invocation::new("copy").input("in", input).output_to("out", output)
}

#[test]
fn a_sealed_arena_keeps_its_size() {
    let (_supervisor, mut client) = kit::copy_and_spin();
    let own = Own::open(&mut client, 1);
    assert!(rustix::fs::ftruncate(&own.fd, 0).is_err());
    assert!(rustix::fs::ftruncate(&own.fd, 2 * BYTES).is_err());
    client.invoke(&copy(own.region(0, 4096), own.region(4096, 4096))).unwrap();
}

#[test]
fn holes_read_as_zeros_and_fail_no_other_call() {
    let (_supervisor, mut client) = kit::copy_and_spin();
    let own = Own::open(&mut client, 1);
    let call = copy(own.region(0, 8192), own.region(8192, 8192));
    client.invoke(&call).unwrap();
    assert_eq!(own.read()[8192..16384], [1; 8192], "the control");
    memfd::punch_hole(&own.fd, 0, BYTES).unwrap();
    client.invoke(&call).unwrap();
    assert_eq!(own.read()[..16384], [0; 16384]);
    kit::works(&mut client);
}

#[test]
fn holes_punched_during_calls_fail_no_other_call() {
    let (supervisor, mut client) = kit::copy_and_spin();
    let own = Own::open(&mut client, 1);
    let pids = supervisor.worker_pids();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                memfd::punch_hole(&own.fd, 0, BYTES).unwrap();
                own.write(0, &[1; 4096]);
            }
        });
        let half = BYTES / 2;
        for _ in 0..200 {
            client.invoke(&copy(own.region(0, half), own.region(half, half))).unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(supervisor.worker_pids(), pids, "no worker died of it");
}

/// Sizes are read once: what is written later changes values, never sizes.
#[test]
fn words_rewritten_after_the_check_change_no_size() {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    kit::add_spin(&mut client);
    let size = json!({"FromInput": {"bufname": "cfg", "idx": 0}});
    let fill = launch("fill", &[ptr("out"), constant(7), json!({"U64": size})]);
    let function = Function {
        inputs: &["cfg"],
        buffers: &[("out", size)],
        outputs: &["out"],
        steps: &[fill],
        ..Function::default()
    };
    function.add(&mut client, "sized");
    let own = Own::open(&mut client, 1);
    own.write(0, &64u64.to_le_bytes());
    let call = Invocation::new("sized").input("cfg", own.region(0, 8)).output_to("out", own.region(4096, 64));
    client.invoke(&call).unwrap();
    // While another call holds the worker, this one is accepted, and its word becomes huge.
    let spin = client.send_invocation(&Invocation::new("spin")).unwrap();
    supervisor.until_running();
    let sized = client.send_invocation(&call).unwrap();
    until("it is accepted", || supervisor.device().queued == 1);
    own.write(0, &u64::MAX.to_le_bytes());
    own.write(4096, &[1; 4096]);
    supervisor.kill_call();
    kit::fails(&mut client, spin, Code::WorkerLost);
    assert_eq!(client.wait_invoked(sized).unwrap().outputs[0].bytes, 64);
    assert_eq!(own.read()[4096..4160], [7; 64]);
    assert_eq!(own.read()[4160..8192], [1; 4032]);
    // The control: a check after the change refuses it.
    refused(client.invoke(&call), Code::InvalidArgument, "");
}

#[test]
fn nothing_beside_an_output_is_written() {
    let (_supervisor, mut client) = kit::copy_and_spin();
    let own = Own::open(&mut client, 0xee);
    own.write(0, b"abcde");
    // More room than the output has, at odd places.
    client.invoke(&copy(own.region(0, 5), own.region(1001, 999))).unwrap();
    let after = own.read();
    assert_eq!(after[1001..1006], *b"abcde");
    let rest = [&after[5..1001], &after[1006..]].concat();
    assert!(rest.iter().all(|byte| *byte == 0xee));
}

#[test]
fn a_failed_call_leaves_zeros_in_its_outputs_and_nothing_beside_them() {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    for (name, last) in [("traps", "trap"), ("hangs", "spin")] {
        let function = Function {
            buffers: &[("out", absolute(100))],
            outputs: &["out"],
            steps: &[launch("fill", &[ptr("out"), constant(7), constant(100)]), launch(last, &[])],
            ..Function::default()
        };
        function.add(&mut client, name);
    }
    let own = Own::open(&mut client, 0xee);
    let call = |name| Invocation::new(name).output_to("out", own.region(50, 200));
    refused(client.invoke(&call("traps")), Code::KernelFault, "");
    let after = own.read();
    assert_eq!(after[50..150], [0; 100]);
    assert!([&after[..50], &after[150..]].concat().iter().all(|byte| *byte == 0xee));
    // A worker that had to be killed cannot clear its outputs: it has not written them either.
    own.write(0, &[0xee; 4096]);
    let hangs = call("hangs").deadline(std::time::Duration::from_millis(20));
    refused(client.invoke(&hangs), Code::DeadlineExceeded, "");
    let after = own.read();
    assert!(after[50..150].iter().all(|byte| [0, 0xee].contains(byte)), "{after:?}");
    assert!([&after[..50], &after[150..]].concat().iter().all(|byte| *byte == 0xee));
}

#[test]
fn regions_of_one_call_may_not_overlap_outputs() {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    let function = Function {
        inputs: &["in"],
        buffers: &[("a", absolute(64)), ("b", absolute(64))],
        outputs: &["a", "b"],
        steps: &[launch("copy", &[ptr("in"), ptr("a"), constant(64)])],
        ..Function::default()
    };
    function.add(&mut client, "two");
    let own = Own::open(&mut client, 1);
    let mut check = |input: u64, a: u64, b: u64, words: Option<&str>| {
        let call = Invocation::new("two")
            .input("in", own.region(input, 64))
            .output_to("a", own.region(a, 64))
            .output_to("b", own.region(b, 64));
        match words {
            None => drop(client.invoke(&call).unwrap()),
            Some(words) => drop(refused(client.invoke(&call), Code::InvalidArgument, words)),
        }
    };
    check(0, 64, 128, None);
    check(128, 64, 0, None);
    check(0, 64, 64, Some("two output regions overlap"));
    check(0, 64, 127, Some("two output regions overlap"));
    for place in [0, 1, 63] {
        check(place, 0, 64, Some("overlaps an input"));
        check(64 + place, 200, 64, Some("overlaps an input"));
    }
}

/// True if a worker maps a client's arena.
fn is_mapped(supervisor: &Supervisor) -> bool {
    let maps =
        supervisor.worker_pids().into_iter().map(|pid| std::fs::read_to_string(format!("/proc/{pid}/maps")));
    maps.flatten().any(|maps| maps.contains("/memfd:t "))
}

#[test]
fn an_arena_closed_while_its_call_waits_does_not_stay_mapped() {
    let (supervisor, mut client) = kit::copy_and_spin();
    let own = Own::open(&mut client, 1);
    let spin = Invocation::new("spin").deadline(std::time::Duration::from_millis(200));
    let spin = client.send_invocation(&spin).unwrap();
    supervisor.until_running();
    let waiting = client.send_invocation(&copy(own.region(0, 4096), own.region(4096, 4096))).unwrap();
    let close = client.send(request::Body::CloseArena(v1::CloseArena { arena: own.id }), &[]).unwrap();
    client.wait(close).unwrap();
    refused(client.wait_invoked(spin), Code::DeadlineExceeded, "deadline");
    client.wait_invoked(waiting).unwrap();
    // Behind this call the worker has handled what came with the one before.
    kit::works(&mut client);
    assert!(!is_mapped(&supervisor));
    // The control: an open arena is seen.
    let own = Own::open(&mut client, 1);
    client.invoke(&copy(own.region(0, 4096), own.region(4096, 4096))).unwrap();
    assert!(is_mapped(&supervisor));
}
