//! A fault, a hang or a flood on a GPU costs the call that caused it; all other calls are answered rightly
//! (ATTACKS 1 to 5, 7, 28).

use std::time::{Duration, Instant};

use pappus_client::{Client, Code, Invocation};
use serde_json::Value;

use crate::fixture::Supervisor;
use crate::functions::{Function, add_copy, copied, copy_of, long, on_gpu, once};
use crate::gpu::Gpu;
use crate::kit::as_stranger;
use crate::kit::{self, absolute, ptr};

const LANES: u8 = 8;
const SETTINGS: &str = "workers=2,lanes=8,memory=16GiB";
/// A kernel that does not end costs its process; the driver takes 60 to 300 ms to end one.
const LATE: Duration = Duration::from_millis(500);

/// Nothing → nothing, with a buffer of 8 zero bytes.
fn add_guilty(client: &mut Client, name: &str, kernel: &str, args: &[Value]) {
    let steps = [once("work", &[]), once(kernel, args)];
    Function { buffers: &[("flag", absolute(8))], steps: &steps, ..Function::default() }.add(client, name);
}

/// The calls in the way of the fault: of the same user, and of another one.
struct Neighbours {
    own: Client,
    stranger: Option<Client>,
    sent: Vec<(u64, u8)>,
    theirs: Vec<(u64, u8)>,
}

impl Neighbours {
    fn of(supervisor: &Supervisor) -> Self {
        let mut own = supervisor.client();
        add_copy(&mut own, "good", 2_000_000);
        let mut stranger = as_stranger(|| supervisor.client());
        if let Some(stranger) = &mut stranger {
            add_copy(stranger, "good", 2_000_000);
        }
        Self { own, stranger, sent: vec![], theirs: vec![] }
    }

    /// As many calls as leave one lane, and as many of the other user.
    fn send(&mut self) {
        for byte in 1..LANES {
            let call = copy_of("good", byte);
            self.sent.push((self.own.send_invocation(&call).unwrap(), byte));
            if let Some(stranger) = &mut self.stranger {
                self.theirs.push((stranger.send_invocation(&call).unwrap(), byte));
            }
        }
    }

    /// Every call was answered rightly.
    fn are_right(&mut self) {
        for (id, byte) in self.sent.drain(..) {
            copied(&mut self.own, id, byte);
        }
        for (id, byte) in self.theirs.drain(..) {
            copied(self.stranger.as_mut().unwrap(), id, byte);
        }
    }
}

pub(crate) fn the_guilty_kernel_is_named_and_neighbours_get_their_results(gpu: &Gpu) {
    let supervisor = on_gpu(gpu, SETTINGS);
    let mut neighbours = Neighbours::of(&supervisor);
    let mut client = supervisor.client();
    let cases: [(&str, &[Value]); 5] = [
        ("illegal", &[long(64)]),
        ("trap", &[]),
        ("misaligned", &[ptr("flag")]),
        ("assertion", &[long(0)]),
        ("wild_jump", &[long(16)]),
    ];
    // The others cannot be on AMD's: `worker/tests/probes/probes_hip.cu` says why.
    let cases = &cases[..if gpu.is_nvidia() { cases.len() } else { 2 }];
    for &(kernel, args) in cases {
        let name = format!("does-{kernel}");
        add_guilty(&mut client, &name, kernel, args);
        neighbours.send();
        let guilty = client.send_invocation(&Invocation::new(&name)).unwrap();
        neighbours.send();
        let error = kit::fails(&mut client, guilty, Code::KernelFault);
        assert!(error.message.contains(kernel), "{error}");
        neighbours.are_right();
    }
}

pub(crate) fn what_never_ends_is_ended_by_its_deadline(gpu: &Gpu) {
    let supervisor = on_gpu(gpu, SETTINGS);
    let mut neighbours = Neighbours::of(&supervisor);
    let mut client = supervisor.client();
    add_guilty(&mut client, "endless", "endless", &[ptr("flag")]);
    let mut names = vec!["endless"];
    if gpu.is_nvidia() {
        add_guilty(&mut client, "barrier", "barrier_never", &[]);
        names.push("barrier");
    }
    // Everything is loaded, and standbys are ready.
    neighbours.send();
    neighbours.are_right();
    supervisor.worker_pids();
    for name in names {
        let deadline = Duration::from_millis(500);
        let start = Instant::now();
        let call = Invocation::new(name).deadline(deadline);
        let guilty = client.send_invocation(&call).unwrap();
        neighbours.send();
        kit::fails(&mut client, guilty, Code::DeadlineExceeded);
        let took = start.elapsed();
        assert!(took >= deadline && took <= deadline + gpu.or(LATE, 20 * LATE), "{name}: {took:?}");
        neighbours.are_right();
    }
}

pub(crate) fn a_killed_worker_loses_no_call(gpu: &Gpu) {
    let supervisor = on_gpu(gpu, SETTINGS);
    let mut neighbours = Neighbours::of(&supervisor);
    neighbours.send();
    neighbours.are_right();
    for _ in 0..3 {
        neighbours.send();
        let busy = supervisor.device().workers.into_iter().find(|worker| worker.state == "busy");
        if let Some(worker) = busy {
            crate::fixture::signal(worker.pid, rustix::process::Signal::KILL);
        }
        neighbours.are_right();
    }
}

pub(crate) fn floods_of_printing_give_nothing(gpu: &Gpu) {
    let supervisor = on_gpu(gpu, SETTINGS);
    let mut client = supervisor.client();
    add_guilty(&mut client, "flood", "printf_flood", &[long(10_000)]);
    client.invoke(&Invocation::new("flood")).unwrap();
    assert!(!supervisor.log().contains("a line that a kernel prints"));
}

pub(crate) fn an_arena_closed_under_a_call_changes_no_other_call(gpu: &Gpu) {
    let supervisor = on_gpu(gpu, SETTINGS);
    let mut neighbours = Neighbours::of(&supervisor);
    let mut client = supervisor.client();
    add_copy(&mut client, "slow", gpu.or(50_000_000, 2_000_000));
    for round in 0..20 {
        let mut arena = client.open_arena(1 << 20).unwrap();
        let (input, output) = (arena.store(&[round; 64]).unwrap(), arena.alloc(64).unwrap());
        let call = |name| Invocation::new(name).input("in", input).output_to("out", output);
        client.invoke(&call("good")).unwrap();
        assert_eq!(arena.load(output).unwrap(), [round; 64]);
        let sent = client.send_invocation(&call("slow")).unwrap();
        neighbours.send();
        client.close_arena(arena).unwrap();
        // An accepted call keeps its memory, whether it runs or waits; it touches nothing else.
        client.wait_invoked(sent).unwrap();
        neighbours.are_right();
    }
}

pub(crate) fn a_function_beyond_half_the_memory_has_the_device_to_itself(gpu: &Gpu) {
    // A device that looks like one clears so much slowly, while a neighbour waits.
    let settings = "workers=2,lanes=8,memory=24GiB,stack=2GiB";
    let supervisor = gpu.supervisor(gpu.name(), settings, &["--overrun-limit", "60s"]);
    let mut neighbours = Neighbours::of(&supervisor);
    let mut client = supervisor.client();
    neighbours.send();
    neighbours.are_right();
    let bytes = supervisor.device().largest_call_bytes / 4 * 3;
    let last = serde_json::json!({"Ptr": {"buffer": "big", "offset": absolute(bytes - 8)}});
    let function = Function {
        buffers: &[("big", absolute(bytes)), ("out", absolute(8))],
        outputs: &["out"],
        steps: &[once("fill", &[last.clone(), long(7), long(8)]), once("copy", &[last, ptr("out"), long(8)])],
        ..Function::default()
    };
    function.add(&mut client, "big");
    for _ in 0..3 {
        neighbours.send();
        let big = client.send_invocation(&Invocation::new("big").output("out")).unwrap();
        neighbours.send();
        assert_eq!(&client.wait_invoked(big).unwrap().outputs[0].inline[..], [7; 8]);
        neighbours.are_right();
    }
}
