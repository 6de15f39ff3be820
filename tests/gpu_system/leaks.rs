//! Two users of one GPU: neither finds a word of the other's, wherever kernels leave things (ATTACKS 8 to 14). The
//! controls are the same calls by one user, whose calls share a worker.

use pappus_client::{Client, Code, Invocation};
use serde_json::Value;

use crate::functions::{Function, launch, long, on_gpu, once, word};
use crate::gpu::Gpu;
use crate::kit::as_stranger;
use crate::kit::{self, absolute, ptr};

const PATTERN: u32 = 0x5e5e_5e5e;
const POOL_BYTES: u64 = 256 << 10;
/// Every GPU gives a block that much shared memory.
const SHARED_BYTES: u64 = 48 << 10;
/// Far more than are resident at once, so that every processor is reached.
const BLOCKS: u64 = 4096;

struct Place {
    name: &'static str,
    fill: Value,
    scan: Value,
    /// Without a scrub between them, one call of a worker finds it after another.
    surely: bool,
}

fn places(gpu: &Gpu) -> [Place; 3] {
    let (blocks, fewer) = (gpu.or(BLOCKS, 64), gpu.or(1024, 32));
    let (pattern, words) = (word(PATTERN), word((SHARED_BYTES / 4) as u32));
    [
        Place {
            name: "shared",
            fill: launch(
                "shared_fill",
                &[pattern.clone(), words.clone(), ptr("marks")],
                blocks,
                1024,
                SHARED_BYTES,
            ),
            scan: launch(
                "shared_scan",
                &[pattern.clone(), words, ptr("hits"), ptr("marks")],
                blocks,
                1024,
                SHARED_BYTES,
            ),
            surely: true,
        },
        Place {
            name: "local",
            fill: launch("local_fill", &[pattern.clone(), word(7)], fewer, 1024, 0),
            scan: launch("local_scan", &[pattern, word(7), ptr("hits")], fewer, 1024, 0),
            surely: true,
        },
        Place {
            name: "pool",
            fill: once("fill", &[ptr("pool"), long(0x5e), long(POOL_BYTES)]),
            scan: once("copy", &[ptr("pool"), ptr("hits"), long(8)]),
            surely: false,
        },
    ]
}

/// Registers what leaves and what finds, for every place.
fn add(gpu: &Gpu, client: &mut Client) {
    for place in places(gpu) {
        for (kind, step) in [("fill", place.fill), ("scan", place.scan)] {
            let function = Function {
                buffers: &[("hits", absolute(8)), ("marks", absolute(4096)), ("pool", absolute(POOL_BYTES))],
                outputs: &["hits", "pool"],
                steps: &[step],
                ..Function::default()
            };
            function.add(client, &format!("{kind}-{}", place.name));
        }
    }
}

fn leave(client: &mut Client, place: &Place) {
    let call = Invocation::new(&format!("fill-{}", place.name)).output("hits").output("pool");
    client.invoke(&call).unwrap();
}

/// Words found on the chip, and whether the pool was clean.
fn find(client: &mut Client, place: &Place) -> (u64, bool) {
    let call = Invocation::new(&format!("scan-{}", place.name)).output("hits").output("pool");
    let outputs = client.invoke(&call).unwrap().outputs;
    let hits = u64::from_le_bytes(outputs[0].inline[..].try_into().unwrap());
    (hits, outputs[1].inline.iter().all(|byte| *byte == 0))
}

/// How many workers the users have.
#[derive(PartialEq, Eq)]
enum Workers {
    /// One, which is replaced when the user changes.
    InTurns,
    /// One each.
    Own,
}

/// The user's own things are found where calls share a worker; a stranger finds nothing, and neither do they
/// after the stranger.
fn check(gpu: &Gpu, settings: &str, workers: Workers, between: impl Fn(&mut Client)) {
    let supervisor = on_gpu(gpu, settings);
    let mut own = supervisor.client();
    add(gpu, &mut own);
    let mut stranger = as_stranger(|| supervisor.client());
    if let Some(stranger) = &mut stranger {
        add(gpu, stranger);
    }
    for place in places(gpu) {
        leave(&mut own, &place);
        let (hits, clean) = find(&mut own, &place);
        println!("{}: {hits} words in one worker", place.name);
        assert!(clean && (hits > 0 || !place.surely), "{}: the control finds nothing", place.name);
        let Some(stranger) = &mut stranger else { continue };
        leave(&mut own, &place);
        between(&mut own);
        assert_eq!(find(stranger, &place), (0, true), "{}: of another user", place.name);
        if workers == Workers::InTurns {
            // In a worker that stays, the user would find what is their own.
            leave(stranger, &place);
            assert_eq!(find(&mut own, &place), (0, true), "{}: of another user", place.name);
        }
    }
}

pub(crate) fn users_who_take_turns_in_one_worker_slot_find_nothing(gpu: &Gpu) {
    check(gpu, "workers=1,lanes=4,memory=12GiB,min-residency=0s", Workers::InTurns, |_| ());
}

/// The process stays, and is scrubbed when the user changes.
pub(crate) fn users_of_one_scrubbed_process_find_nothing(gpu: &Gpu) {
    let settings = "workers=1,lanes=4,memory=12GiB,tenant-switch=scrub,min-residency=0s";
    check(gpu, settings, Workers::InTurns, |_| ());
    // It is the same process all the time.
    let supervisor = on_gpu(gpu, settings);
    let mut own = supervisor.client();
    add(gpu, &mut own);
    let pids = supervisor.worker_pids();
    let Some(mut stranger) = as_stranger(|| supervisor.client()) else { return };
    add(gpu, &mut stranger);
    for place in places(gpu) {
        leave(&mut own, &place);
        assert_eq!(find(&mut stranger, &place), (0, true), "{}", place.name);
    }
    assert_eq!(supervisor.worker_pids(), pids);
}

pub(crate) fn users_with_workers_of_their_own_find_nothing(gpu: &Gpu) {
    check(gpu, "workers=2,lanes=4,memory=16GiB", Workers::Own, |_| ());
}

pub(crate) fn users_find_nothing_after_a_fault_and_after_a_deadline(gpu: &Gpu) {
    check(gpu, "workers=1,lanes=4,memory=12GiB", Workers::InTurns, |client| {
        add_once(client, "trap", &[]);
        let call = Invocation::new("trap");
        kit::refused(client.invoke(&call), Code::KernelFault, "");
    });
    check(gpu, "workers=1,lanes=4,memory=12GiB", Workers::InTurns, |client| {
        add_once(client, "endless", &[ptr("flag")]);
        let call = Invocation::new("endless").deadline(std::time::Duration::from_millis(200));
        kit::refused(client.invoke(&call), Code::DeadlineExceeded, "");
    });
}

/// Registers a function that launches one kernel, if absent.
fn add_once(client: &mut Client, kernel: &str, args: &[Value]) {
    if client.show_function(kernel).is_err() {
        let steps = [once(kernel, args)];
        Function { buffers: &[("flag", absolute(8))], steps: &steps, ..Function::default() }
            .add(client, kernel);
    }
}

pub(crate) fn calls_of_one_user_find_nothing_where_calls_are_scrubbed(gpu: &Gpu) {
    let supervisor = on_gpu(gpu, "workers=1,lanes=4,memory=12GiB,scrub=call");
    let mut client = supervisor.client();
    add(gpu, &mut client);
    for place in places(gpu) {
        for round in 0..3 {
            leave(&mut client, &place);
            assert_eq!(find(&mut client, &place), (0, true), "{}, round {round}", place.name);
        }
    }
}
