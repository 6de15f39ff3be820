//! Bytes in, bytes out, and nothing beside them.

use std::os::fd::AsFd;

use pappus_protocol::to_worker::{DISCARD, Item, STAGING_ARENA};
use pappus_protocol::{ArenaId, FaultCode, ToWorker};
use pappus_shmem::{Mapping, memfd};

use super::UnderTest;
use super::blueprints::{Blueprint, filling, i64, launch, launch_on, offset, ptr};
use crate::harness::{ARENA, ARENA_BYTES, OUTPUTS_AT, UNTOUCHED, Worker, item, staged, target};

/// A worker whose function 1 copies an input of 24 bytes to its output.
fn copying<T: UnderTest>() -> Worker {
    let json = Blueprint {
        inputs: &["in"],
        weights: &[],
        buffers: &[("out", 24)],
        outputs: &["out"],
        steps: &[launch("copy", &[ptr("in"), ptr("out"), i64(24)].join(","))],
    };
    let mut worker = T::worker();
    worker.install(1, &json.json(), T::probes(), &[]);
    worker
}

const TEXT: &[u8; 24] = b"four and twenty letters!";

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub fn library_kernels_compute<T: UnderTest>() {
    let mut worker = T::worker();
    let config = include_str!("../../../kernels/configs/vec_add.json");
    worker.install(1, config, &T::library("linalg"), &[]);
    let config = include_str!("../../../kernels/configs/vec_add_constant.json");
    worker.install(2, config, &T::library("linalg"), &[&floats(&[1.0; 1000])]);
    let numbers: Vec<f32> = (0..1000u16).map(f32::from).collect();
    let next: Vec<f32> = (1..1001u16).map(f32::from).collect();
    let sum = worker.call(1, &[&floats(&numbers), &floats(&[1.0; 1000])], &[4000]).unwrap();
    assert_eq!(sum, [floats(&next)]);
    assert_eq!(worker.call(2, &[&floats(&numbers)], &[4000]).unwrap(), [floats(&next)]);
    worker.end().unwrap();
}

pub fn inputs_of_many_items_arrive_in_one_piece<T: UnderTest>() {
    let mut worker = copying::<T>();
    let mut call = worker.arena_call(1, &[TEXT], &[24]);
    call.items = vec![
        item(0, Item::ARENA, ARENA, 0, 10),
        item(0, Item::ARENA, ARENA, 10, 0),
        item(0, Item::ARENA, ARENA, 10, 14),
    ];
    worker.invoke(&call).unwrap();
    assert_eq!(worker.read_arena(OUTPUTS_AT, 24), TEXT);
    worker.end().unwrap();
}

/// A worker whose function 1 copies rows of eight bytes, which calls may bring together; function 2 is the same of one call.
fn copying_rows<T: UnderTest>() -> Worker {
    let (n, bytes) = (r#"{"Free": "n"}"#, r#"{"Product": [{"Free": "n"}, 8]}"#);
    let step = launch("copy", &[ptr("in"), ptr("out"), format!(r#"{{"I64": {bytes}}}"#)].join(","));
    let rows = format!(r#"{{"dtype": "u8", "shape": [{n}, 8]}}"#);
    let json = |batch: &str| {
        format!(
            r#"{{"module_path": "probes", "kernels": ["copy"], "blueprint": {{"inputs": ["in"], "buffers": {{"out": {bytes}}},
                "outputs": ["out"], "types": {{"in": {rows}, "out": {rows}}}, {batch} "control_flow": [{step}]}}}}"#
        )
    };
    let mut worker = T::worker();
    worker.install(1, &json(r#""batch": {"dimension": "n", "most": 9},"#), T::probes(), &[]);
    worker.install(2, &json(""), T::probes(), &[]);
    worker
}

pub fn calls_that_run_together_get_their_own_parts<T: UnderTest>() {
    let mut worker = copying_rows::<T>();
    let rows: Vec<u8> = (0..32).collect();
    // One row, two that nobody wants, one.
    let apart = |worker: &Worker, function, bytes: [u64; 3]| {
        let mut call = worker.arena_call(function, &[&rows], &[]);
        (call.calls, call.scalars) = (3, vec![4]);
        let [first, second, third] = bytes;
        call.outputs = vec![
            target(ARENA, OUTPUTS_AT + 100, first),
            target(DISCARD.get(), 0, second),
            target(ARENA, OUTPUTS_AT, third),
        ];
        call
    };
    let call = apart(&worker, 1, [8, 16, 8]);
    worker.invoke(&call).unwrap();
    assert_eq!(worker.read_arena(OUTPUTS_AT, 9), [&rows[24..], &[UNTOUCHED]].concat());
    assert_eq!(worker.read_arena(OUTPUTS_AT + 99, 10), [&[UNTOUCHED], &rows[..8], &[UNTOUCHED]].concat());
    // Parts that are less or more than all, and calls of a function that has no batch: nobody gets anything.
    for (function, bytes) in [(1, [8, 8, 8]), (1, [8, 16, 16]), (1, [8, u64::MAX, 8]), (2, [8, 16, 8])] {
        let call = apart(&worker, function, bytes);
        let fault = worker.invoke(&call).unwrap_err();
        assert_eq!(fault.code, FaultCode::BadInvoke, "{fault}");
        assert_eq!(worker.read_arena(OUTPUTS_AT, 8), [0; 8]);
    }
    worker.end().unwrap();
}

/// A kernel reads on behind `a`, where `n` has its place in the pool.
pub fn an_input_that_no_step_names_is_not_brought<T: UnderTest>() {
    const BEHIND: usize = 256;
    let found = |further: Option<String>| {
        let read = launch("copy", &[ptr("a"), ptr("out"), i64(BEHIND as u64 + 8)].join(","));
        let steps: Vec<_> = [read].into_iter().chain(further).collect();
        let (buffers, outputs) = ([("out", BEHIND as u64 + 8)], ["out"]);
        let json = Blueprint {
            inputs: &["a", "n"],
            weights: &[],
            buffers: &buffers,
            outputs: &outputs,
            steps: &steps,
        };
        let mut worker = T::worker();
        worker.install(1, &json.json(), T::probes(), &[]);
        let out = worker.call(1, &[TEXT, &[0xaa; 8]], &[BEHIND as u64 + 8]).unwrap().remove(0);
        worker.end().unwrap();
        assert_eq!(out[..24], TEXT[..]);
        out[BEHIND..].to_vec()
    };
    assert_eq!(
        found(Some(launch("copy", &[ptr("n"), ptr("n"), i64(8)].join(",")))),
        [0xaa; 8],
        "the control"
    );
    assert_eq!(found(None), [0; 8]);
}

pub fn an_output_that_nobody_wants_is_copied_nowhere<T: UnderTest>() {
    let mut worker = copying::<T>();
    let mut call = worker.arena_call(1, &[TEXT], &[24]);
    call.outputs = vec![target(DISCARD.get(), 0, 24)];
    worker.invoke(&call).unwrap();
    assert_eq!(worker.read_arena(OUTPUTS_AT, 24), [UNTOUCHED; 24]);
    worker.end().unwrap();
}

pub fn descriptors_are_read_at_their_offset<T: UnderTest>() {
    let mut worker = copying::<T>();
    let whole = memfd::sealed("in", &[&[1; 7][..], &TEXT[..20]].concat()).unwrap();
    let rest = memfd::sealed("in", &TEXT[20..]).unwrap();
    let mut call = worker.arena_call(1, &[], &[24]);
    call.items = vec![item(0, Item::DESCRIPTOR, 0, 7, 20), item(0, Item::DESCRIPTOR, 1, 0, 4)];
    call.descriptors = vec![whole.as_fd(), rest.as_fd()];
    worker.invoke(&call).unwrap();
    assert_eq!(worker.read_arena(OUTPUTS_AT, 24), TEXT);
    worker.end().unwrap();
}

pub fn a_short_descriptor_is_refused<T: UnderTest>() {
    let mut worker = copying::<T>();
    let short = memfd::sealed("in", &TEXT[..23]).unwrap();
    let (read, _write) = pappus_protocol::pipe::pipe().unwrap();
    for fd in [short.as_fd(), read.as_fd()] {
        let mut call = worker.arena_call(1, &[], &[24]);
        call.items = vec![item(0, Item::DESCRIPTOR, 0, 0, 24)];
        call.descriptors = vec![fd];
        let fault = worker.invoke(&call).unwrap_err();
        assert_eq!(fault.code, FaultCode::BadInvoke, "{fault}");
    }
    worker.call(1, &[TEXT], &[24]).unwrap();
    worker.end().unwrap();
}

pub fn staging_is_cleared_and_the_rest_of_the_arena_untouched<T: UnderTest>() {
    let mut worker = copying::<T>();
    for function in [1, 9] {
        worker.staging.write(100, TEXT).unwrap();
        worker.staging.write(124, b"next").unwrap();
        let mut call = worker.arena_call(function, &[], &[100]);
        call.items = vec![staged(0, 100, 24)];
        assert_eq!(worker.invoke(&call).is_ok(), function == 1);
        let mut seen = [1; 28];
        worker.staging.read(100, &mut seen).unwrap();
        assert_eq!(seen, *b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0next");
        if function == 1 {
            let written = worker.read_arena(OUTPUTS_AT - 1, 26);
            assert_eq!(written, [&[UNTOUCHED][..], TEXT, &[UNTOUCHED]].concat(), "tails stay");
        }
    }
    // An output may go to staging as well.
    let mut call = worker.arena_call(1, &[TEXT], &[]);
    call.outputs = vec![target(STAGING_ARENA.get(), 512, 24)];
    worker.invoke(&call).unwrap();
    let mut seen = [0; 24];
    worker.staging.read(512, &mut seen).unwrap();
    assert_eq!(&seen, TEXT);
    worker.end().unwrap();
}

pub fn regions_that_do_not_exist_are_refused<T: UnderTest>() {
    let mut worker = copying::<T>();
    let end = ARENA_BYTES;
    let items = [
        item(0, Item::ARENA, 7, 0, 24),
        item(0, Item::ARENA, ARENA, end - 23, 24),
        item(0, Item::ARENA, ARENA, u64::MAX, 24),
        item(0, Item::ARENA, ARENA, 0, u64::MAX),
        item(1, Item::ARENA, ARENA, 0, 24),
        item(u32::MAX, Item::ARENA, ARENA, 0, 24),
        item(0, Item::DESCRIPTOR, 0, 0, 24),
        item(0, 2, 0, 0, 24),
    ];
    for wrong in items {
        let mut call = worker.arena_call(1, &[], &[24]);
        call.items = vec![wrong];
        assert_eq!(worker.invoke(&call).unwrap_err().code, FaultCode::BadInvoke);
    }
    for wrong in [target(7, 0, 24), target(ARENA, end - 23, 24), target(ARENA, u64::MAX, u64::MAX)] {
        let mut call = worker.arena_call(1, &[TEXT], &[]);
        call.outputs = vec![wrong];
        assert_eq!(worker.invoke(&call).unwrap_err().code, FaultCode::BadInvoke);
    }
    worker.call(1, &[TEXT], &[24]).unwrap();
    worker.end().unwrap();
}

pub fn weights_are_read<T: UnderTest>() {
    let json = Blueprint {
        inputs: &[],
        weights: &["a", "b"],
        buffers: &[("x", 16), ("y", 24)],
        outputs: &["x", "y"],
        steps: &[
            launch("copy", &[ptr("a"), ptr("x"), i64(3)].join(",")),
            r#"{"Copy": {"from": "b", "to": "y"}}"#.to_owned(),
        ],
    };
    let mut worker = T::worker();
    worker.install(1, &json.json(), T::probes(), &[b"abc", TEXT]);
    let seen = worker.call(1, &[], &[16, 24]).unwrap();
    assert_eq!(seen, [b"abc\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec(), TEXT.to_vec()]);
    worker.end().unwrap();
}

pub fn arenas_come_and_go<T: UnderTest>() {
    let mut worker = copying::<T>();
    let arena = memfd::arena("second", 4096).unwrap();
    let view = Mapping::writable(&arena).unwrap();
    let mut call = worker.arena_call(1, &[TEXT], &[]);
    call.outputs = vec![target(5, 4072, 24)];
    for _ in 0..3 {
        worker.open_arena(5, &arena);
        worker.invoke(&call).unwrap();
        let mut seen = [0; 24];
        view.read(4072, &mut seen).unwrap();
        assert_eq!(&seen, TEXT);
        worker.send(&ToWorker::CloseArena { arena: ArenaId::new(5) });
        assert_eq!(worker.invoke(&call).unwrap_err().code, FaultCode::BadInvoke);
    }
    // An arena that cannot be mapped is not open, and other calls run.
    worker.open_arena(6, &memfd::sealed("no arena", b"x").unwrap());
    call.outputs = vec![target(6, 0, 1)];
    assert_eq!(worker.invoke(&call).unwrap_err().code, FaultCode::BadInvoke);
    worker.call(1, &[TEXT], &[24]).unwrap();
    worker.end().unwrap();
}

pub fn bulk_copies_and_fills_are_exact<T: UnderTest>() {
    let numbers: Vec<u8> = (0..200).collect();
    for (from, to, bytes) in
        [(0u64, 3, 40), (3, 0, 40), (0, 1, 100), (7, 90, 33), (5, 5, 31), (0, 16, 0), (9, 10, 1)]
    {
        let json = Blueprint {
            inputs: &["in"],
            weights: &[],
            buffers: &[],
            outputs: &["in"],
            steps: &[
                launch("copy", &[offset("in", from), offset("in", to), i64(bytes)].join(",")),
                launch("fill", &[offset("in", 150), i64(0x1ee), i64(bytes.min(50))].join(",")),
            ],
        };
        let mut worker = T::worker();
        worker.install(1, &json.json(), T::probes(), &[]);
        let mut expected = numbers.clone();
        expected.copy_within(from as usize..(from + bytes) as usize, to as usize);
        expected[150..150 + bytes.min(50) as usize].fill(0xee);
        assert_eq!(worker.call(1, &[&numbers], &[200]).unwrap(), [expected], "{from} {to} {bytes}");
        worker.end().unwrap();
    }
}

pub fn every_block_runs_once<T: UnderTest>() {
    for &grid in T::GRIDS {
        let mut worker = T::worker();
        let json = filling(8, &[launch_on("count_blocks", &ptr("out"), grid, 0)]);
        worker.install(1, &json, T::probes(), &[]);
        let blocks: u64 = grid.iter().product();
        assert_eq!(worker.call(1, &[], &[8]).unwrap(), [blocks.to_le_bytes()]);
        worker.end().unwrap();
    }
}

pub fn repeats_and_copies_follow_the_plan<T: UnderTest>() {
    let count = launch("count_blocks", &ptr("n"));
    let inner = format!(r#"{{"Repeat": [{{"Absolute": 3}}, [{count}]]}}"#);
    let outer = format!(r#"{{"Repeat": [{{"Absolute": 4}}, [{inner}, {count}]]}}"#);
    let json = Blueprint {
        inputs: &[],
        weights: &[],
        buffers: &[("n", 8), ("out", 16)],
        outputs: &["out"],
        steps: &[
            outer,
            r#"{"Fill": {"buffer": "out", "byte": 3}}"#.to_owned(),
            r#"{"Copy": {"from": "n", "to": "out", "bytes": {"Absolute": 8}}}"#.to_owned(),
        ],
    };
    let mut worker = T::worker();
    worker.install(1, &json.json(), T::probes(), &[]);
    let expected = [16u64.to_le_bytes(), [3; 8]].concat();
    assert_eq!(worker.call(1, &[], &[16]).unwrap(), [expected]);
    worker.end().unwrap();
}

pub fn modules_share_the_pool_and_nothing_else<T: UnderTest>() {
    let json = Blueprint {
        inputs: &[],
        weights: &[],
        buffers: &[("a", 8), ("b", 8), ("out", 8)],
        outputs: &["a", "b", "out"],
        steps: &[
            launch("fill", &[ptr("out"), i64(7), i64(8)].join(",")),
            launch("module_global", &ptr("a")),
            launch("second", &ptr("b")),
        ],
    };
    let json = json.json();
    let kernels = &json[json.find("\"kernels\"").unwrap()..json.find("\"blueprint\"").unwrap()];
    let json = json.replace(
        kernels,
        r#""kernels": [{"module_name": "x", "kernel_name": "fill"},
        {"module_name": "x", "kernel_name": "module_global"},
        {"module_name": "y", "kernel_name": "module_global", "alias": "second"}], "#,
    );
    let json = json.replace(
        r#""module_path": "probes""#,
        r#""modules": [{"module_name": "x", "path": "x"}, {"module_name": "y", "path": "y"}]"#,
    );
    let mut worker = T::worker();
    worker.install_modules(1, &json, &[T::probes(), T::probes()], &[]);
    for _ in 0..2 {
        let seen = worker.call(1, &[], &[8, 8, 8]).unwrap();
        assert_eq!(seen[0], seen[1], "each module has its own globals");
        assert_eq!(seen[2], [7; 8]);
    }
    // One file for two modules is refused, not guessed.
    worker.install(2, &json, T::probes(), &[]);
    assert_eq!(worker.call(2, &[], &[8, 8, 8]).unwrap_err().code, FaultCode::Load);
    worker.end().unwrap();
}

pub fn buffers_that_share_memory_start_as_zeroes<T: UnderTest>() {
    const BYTES: u64 = 3 << 20;
    const NAMES: [&str; 4] = ["a", "b", "c", "d"];
    // Adds one to the first and to the last word of each buffer, keeps both, and leaves the buffer full of ones.
    let mut steps = Vec::new();
    for (at, name) in (0..).zip(NAMES) {
        for (nth, word) in (0..).zip([0, BYTES - 8]) {
            let (word, kept) = (offset(name, word), offset("out", 16 * at + 8 * nth));
            steps.push(launch("count_blocks", &word));
            steps.push(launch("copy", &[word, kept, i64(8)].join(",")));
        }
        steps.push(format!(r#"{{"Fill": {{"buffer": "{name}", "byte": 255}}}}"#));
    }
    let buffers = NAMES.map(|name| (name, BYTES));
    let buffers = [&buffers[..], &[("out", 64)]].concat();
    let json = |steps: &[String]| {
        Blueprint { inputs: &[], weights: &[], buffers: &buffers, outputs: &["out"], steps }.json()
    };
    let mut worker = T::worker();
    // Room for one of them: they are in the same memory, one after the other.
    worker.lane_bytes = 2 * BYTES - (2 << 20);
    worker.install(1, &json(&steps), T::probes(), &[]);
    for _ in 0..2 {
        assert_eq!(worker.call(1, &[], &[64]).unwrap(), [1u64.to_le_bytes().repeat(8)]);
    }
    // The control: at the end all of them are used again, and there is no room.
    steps.extend(NAMES.map(|name| launch("copy", &[ptr(name), ptr("out"), i64(8)].join(","))));
    worker.install(2, &json(&steps), T::probes(), &[]);
    assert_eq!(worker.call(2, &[], &[64]).unwrap_err().code, FaultCode::OutOfMemory);
    worker.end().unwrap();
}
