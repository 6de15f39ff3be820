//! What a kernel, or the end of a worker at a bad moment, could do to the next holder of the memory (ATTACKS 4, 6, 7,
//! 14, 25).

use std::time::Duration;

use pappus_client::{Client, Code, Invocation, Result};
use rustix::process::Signal;
use serde_json::Value;

use crate::fixture::{Supervisor, signal, until};
use crate::functions::{Function, launch, long, on_gpu, once};
use crate::gpu::Gpu;
use crate::kit::{absolute, as_stranger, fails, ptr};

const PATTERN: u64 = 0x5e5e_5e5e_5e5e_5e5e;
/// One worker at a time: the next one gets the memory of the one before.
const ONE: &str = "workers=1,lanes=4,memory=12GiB";

/// `look`: returns a buffer that no step of the call writes.
fn add_look(client: &mut Client, bytes: u64) {
    let function = Function {
        buffers: &[("seen", absolute(bytes)), ("sum", absolute(8))],
        outputs: &["sum", "seen"],
        steps: &[once("code_works", &[ptr("sum")])],
        ..Function::default()
    };
    function.add(client, "look");
}

/// Nothing is left in memory, and code is what it was.
fn sees_nothing(client: &mut Client) {
    let mut arena = client.open_arena(4 << 20).unwrap();
    let seen = arena.alloc(4 << 20).unwrap();
    let call = Invocation::new("look").output("sum").output_to("seen", seen);
    let sum = client.invoke(&call).unwrap().outputs[0].inline.to_vec();
    assert_eq!(sum, 42u64.to_le_bytes(), "code that another kernel calls");
    assert!(arena.load(seen).unwrap().iter().all(|byte| *byte == 0), "memory of another call");
    client.close_arena(arena).unwrap();
}

fn both(gpu: &Gpu, settings: &str) -> (Supervisor, Client, Option<Client>) {
    let supervisor = on_gpu(gpu, settings);
    let mut own = supervisor.client();
    let mut stranger = as_stranger(|| supervisor.client());
    for client in [Some(&mut own), stranger.as_mut()].into_iter().flatten() {
        add_look(client, 4 << 20);
    }
    (supervisor, own, stranger)
}

pub(crate) fn a_kernel_that_writes_past_its_deadline_reaches_no_other_call(gpu: &Gpu) {
    let (_supervisor, mut own, mut stranger) = both(gpu, ONE);
    let words = (4 << 20) / 8;
    let function = Function {
        buffers: &[("words", absolute(4 << 20))],
        steps: &[once("endless_writes", &[ptr("words"), long(words), long(PATTERN)])],
        ..Function::default()
    };
    function.add(&mut own, "writes");
    for round in 0..3 {
        let call = Invocation::new("writes").deadline(Duration::from_millis(200));
        let writes = own.send_invocation(&call).unwrap();
        // It waits for the place, and gets the memory.
        let looks = stranger.as_mut().map(|stranger| stranger.send_invocation(&Invocation::new("look")));
        fails(&mut own, writes, Code::DeadlineExceeded);
        println!("round {round}: the writer's deadline passed");
        if let (Some(stranger), Some(looks)) = (&mut stranger, looks) {
            stranger.wait_invoked(looks.unwrap()).unwrap();
            sees_nothing(stranger);
        }
        sees_nothing(&mut own);
    }
}

/// Registers `name`: one launch of `kernel`, which gives `bytes`.
fn add_giving(client: &mut Client, name: &str, bytes: u64, steps: &[Value]) {
    let function = Function {
        buffers: &[("given", absolute(bytes)), ("place", absolute(8))],
        outputs: &["given"],
        steps,
        ..Function::default()
    };
    function.add(client, name);
}

fn given(client: &mut Client, name: &str) -> Result<Vec<u8>> {
    Ok(client.invoke(&Invocation::new(name).output("given"))?.outputs[0].inline.to_vec())
}

/// Where a function's code is, and what it computes.
fn code(client: &mut Client) -> Result<(u64, u64)> {
    let words = given(client, "code")?;
    let word = |at: usize| u64::from_le_bytes(words[at..at + 8].try_into().unwrap());
    Ok((word(0), word(8)))
}

/// Memory that holds code can be written by kernels of the same process. What is changed there is the owner's own, and
/// ends with the process.
pub(crate) fn rewritten_code_stays_private_to_its_worker(gpu: &Gpu) {
    let (supervisor, mut own, mut stranger) = both(gpu, "workers=2,lanes=4,memory=16GiB");
    let second = serde_json::json!({"Ptr": {"buffer": "given", "offset": absolute(8)}});
    let steps = [once("code_address", &[ptr("given")]), once("code_works", &[second])];
    for client in [Some(&mut own), stranger.as_mut()].into_iter().flatten() {
        add_giving(client, "code", 16, &steps);
        assert_eq!(code(client).unwrap().1, 42);
    }
    let (address, _) = code(&mut own).unwrap();
    let read = [once("read_at", &[long(address), ptr("given"), long(64)])];
    add_giving(&mut own, "reads", 64, &read);
    let before = given(&mut own, "reads");
    let overwrite = [once("write_at", &[long(address), long(0), long(64)])];
    add_giving(&mut own, "overwrites", 8, &overwrite);
    let outcome = given(&mut own, "overwrites");
    println!(
        "code at {address:#x}: overwriting it: {:?}",
        outcome.map(|_| "done").map_err(|e| e.to_string())
    );
    if let (Ok(before), Ok(after)) = (&before, given(&mut own, "reads")) {
        println!("read back, it is {}", if *before == after { "the same" } else { "changed" });
    }
    println!("what it computes now: {:?}", code(&mut own).map_err(|e| e.to_string()));
    if let Some(stranger) = &mut stranger {
        assert_eq!(code(stranger).unwrap().1, 42, "another user's code");
        sees_nothing(stranger);
    }
    // The next process has the code that was registered.
    for pid in supervisor.worker_pids() {
        signal(pid, Signal::KILL);
    }
    assert_eq!(code(&mut own).unwrap().1, 42, "code of the process before");
    sees_nothing(&mut own);
}

pub(crate) fn a_grid_that_is_never_resident_together_is_ended_by_its_deadline(gpu: &Gpu) {
    let (_supervisor, mut own, mut stranger) = both(gpu, ONE);
    for (name, blocks) in [("few", 8), ("many", 1 << 20)] {
        let function = Function {
            buffers: &[("arrived", absolute(8))],
            steps: &[launch("grid_barrier", &[ptr("arrived"), long(blocks)], blocks, 1, 0)],
            ..Function::default()
        };
        function.add(&mut own, name);
    }
    own.invoke(&Invocation::new("few")).unwrap();
    let many = Invocation::new("many").deadline(Duration::from_millis(300));
    let many = own.send_invocation(&many).unwrap();
    fails(&mut own, many, Code::DeadlineExceeded);
    stranger.iter_mut().for_each(sees_nothing);
    sees_nothing(&mut own);
    own.invoke(&Invocation::new("few")).unwrap();
}

/// The answer is sent before clearing is over: several gigabytes take a millisecond and more, and the worker is
/// killed in it. The next holder of the memory finds zeros.
pub(crate) fn a_worker_killed_in_the_middle_of_clearing_leaves_nothing(gpu: &Gpu) {
    let (supervisor, mut own, mut stranger) = both(gpu, ONE);
    let bytes = supervisor.device().largest_call_bytes / 8;
    let fill = serde_json::json!({"Fill": {"buffer": "all", "byte": 0x5e}});
    let function = Function { buffers: &[("all", absolute(bytes))], steps: &[fill], ..Function::default() };
    function.add(&mut own, "dirties");
    for _ in 0..5 {
        own.invoke(&Invocation::new("dirties")).unwrap();
        let pid = supervisor.device().workers[0].pid;
        signal(pid, Signal::KILL);
        stranger.iter_mut().for_each(sees_nothing);
        sees_nothing(&mut own);
    }
}

pub(crate) fn a_stopped_worker_is_replaced_at_the_deadline_of_its_call(gpu: &Gpu) {
    let (supervisor, mut own, mut stranger) = both(gpu, ONE);
    sees_nothing(&mut own);
    let pid = supervisor.worker_pids()[0];
    signal(pid, Signal::STOP);
    let call = Invocation::new("look").deadline(Duration::from_millis(200));
    let looks = own.send_invocation(&call).unwrap();
    fails(&mut own, looks, Code::DeadlineExceeded);
    stranger.iter_mut().for_each(sees_nothing);
    sees_nothing(&mut own);
    until("it is gone", || !crate::fixture::is_alive(pid));
}
