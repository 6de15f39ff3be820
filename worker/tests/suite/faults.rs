//! Every failure has its code, its words and, where one is guilty, its kernel; the next call runs.

use pappus_protocol::{Fault, FaultCode};

use super::UnderTest;
use super::blueprints::{Blueprint, filling, i64, launch, launch_on, ptr};
use crate::harness::{OUTPUTS_AT, UNTOUCHED, Worker};

/// The functions 1 (as given) and 2 (fills 8 bytes) on a fresh worker.
fn beside_a_good_one<T: UnderTest>(json: &str) -> Worker {
    let mut worker = T::worker();
    worker.install(1, json, T::probes(), &[]);
    let fill = launch("fill", &[ptr("out"), i64(7), i64(8)].join(","));
    worker.install(2, &filling(8, &[fill]), T::probes(), &[]);
    worker
}

/// Function 1 fails, function 2 runs right after it.
fn fails<T: UnderTest>(json: &str, outputs: &[u64]) -> Fault {
    let mut worker = beside_a_good_one::<T>(json);
    let fault = worker.call(1, &[], outputs).unwrap_err();
    assert_eq!(worker.call(2, &[], &[8]).unwrap(), [[7; 8]]);
    worker.end().unwrap();
    fault
}

fn trapped(fault: &Fault, kernel: &str, words: &str) {
    assert_eq!(fault.code, FaultCode::KernelTrap, "{fault}");
    assert!(fault.kernel.is_some(), "{fault}");
    assert!(fault.message.contains(&format!("`{kernel}`")) && fault.message.contains(words), "{fault}");
}

pub fn a_trap_names_kernel_and_cause<T: UnderTest>() {
    for (kernel, params, words) in
        [("trap", "", "unreachable"), ("divide", &*i64(0), "divide by zero"), ("recurse", "", "stack")]
    {
        let steps = [launch("work", ""), launch(kernel, params)];
        trapped(&fails::<T>(&filling(8, &steps), &[8]), kernel, words);
    }
}

pub fn stray_accesses_trap<T: UnderTest>() {
    let fill = |bytes| launch("fill", &[ptr("out"), i64(1), i64(bytes)].join(","));
    // Right behind the plan's pages and further.
    for bytes in [4097, 1 << 20, 1 << 31] {
        trapped(&fails::<T>(&filling(8, &[fill(bytes)]), &[8]), "fill", "out of bounds");
    }
    let copy = launch("copy", &[ptr("out"), i64(0xf000_0000), i64(64)].join(","));
    trapped(&fails::<T>(&filling(8, &[copy]), &[8]), "copy", "out of bounds");
    let copy = launch("copy", &[i64(0xffff_fff0), ptr("out"), i64(64)].join(","));
    trapped(&fails::<T>(&filling(8, &[copy]), &[8]), "copy", "out of bounds");
}

pub fn weights_are_read_only<T: UnderTest>() {
    let weights = [9; 300];
    let mut worker = T::worker();
    for (function, kernel) in [(1, "fill"), (2, "module_global")] {
        let params = match kernel {
            "fill" => [ptr("w"), i64(1), i64(1)].join(","),
            _ => ptr("w"),
        };
        let json = Blueprint {
            inputs: &[],
            weights: &["w"],
            buffers: &[("out", 8)],
            outputs: &["out"],
            steps: &[launch(kernel, &params)],
        };
        worker.install(function, &json.json(), T::probes(), &[&weights]);
        trapped(&worker.call(function, &[], &[8]).unwrap_err(), kernel, "out of bounds");
    }
    let read = Blueprint {
        inputs: &[],
        weights: &["w"],
        buffers: &[("out", 300)],
        outputs: &["out"],
        steps: &[launch("copy", &[ptr("w"), ptr("out"), i64(300)].join(","))],
    };
    worker.install(3, &read.json(), T::probes(), &[&weights]);
    assert_eq!(worker.call(3, &[], &[300]).unwrap(), [weights]);
    worker.end().unwrap();
}

pub fn the_deadline_ends_a_call_between_blocks<T: UnderTest>() {
    // Years of blocks.
    let json = filling(8, &[launch_on("work", "", [i32::MAX as u64, 65_535, 65_535], 0)]);
    let mut worker = beside_a_good_one::<T>(&json);
    let mut call = worker.arena_call(1, &[], &[8]);
    call.deadline_ns = pappus_protocol::now_ns() + 5_000_000;
    let fault = worker.invoke(&call).unwrap_err();
    assert_eq!(fault.code, FaultCode::Deadline);
    assert!(fault.message.contains("`work`"), "{fault}");
    let late_ns = pappus_protocol::now_ns().saturating_sub(call.deadline_ns);
    assert!(late_ns < 1_000_000_000, "{late_ns} ns late");
    // One that has passed before the call runs.
    call.deadline_ns = 1;
    assert_eq!(worker.invoke(&call).unwrap_err().code, FaultCode::Deadline);
    assert_eq!(worker.call(2, &[], &[8]).unwrap(), [[7; 8]]);
    worker.end().unwrap();
}

pub fn what_exceeds_the_lease_is_refused<T: UnderTest>() {
    let fault = fails::<T>(&filling(2 << 20, &[launch("work", "")]), &[8]);
    assert_eq!((fault.code, fault.kernel), (FaultCode::OutOfMemory, None));
    assert!(fault.message.contains("2097152") && fault.message.contains("1048576"), "{fault}");
}

pub fn failed_outputs_are_zeroed<T: UnderTest>() {
    let fill = launch("fill", &[ptr("out"), i64(0xaa), i64(8)].join(","));
    let mut worker = beside_a_good_one::<T>(&filling(8, &[fill, launch("trap", "")]));
    let around = |worker: &Worker| worker.read_arena(OUTPUTS_AT, 17);
    worker.call(1, &[], &[16]).unwrap_err();
    assert_eq!(around(&worker), [&[0; 16][..], &[UNTOUCHED]].concat(), "all of the region");
    worker.arena.fill(OUTPUTS_AT, 16, UNTOUCHED).unwrap();
    let mut refused = worker.arena_call(9, &[], &[16]);
    worker.invoke(&refused).unwrap_err();
    assert_eq!(around(&worker), [&[0; 16][..], &[UNTOUCHED]].concat(), "refused before it ran");
    worker.arena.fill(OUTPUTS_AT, 16, UNTOUCHED).unwrap();
    refused.deadline_ns = 1;
    refused.function = 1;
    worker.invoke(&refused).unwrap_err();
    assert_eq!(around(&worker), [&[0; 16][..], &[UNTOUCHED]].concat(), "too late");
    worker.end().unwrap();
}

pub fn a_function_that_does_not_load_says_why<T: UnderTest>() {
    let good = filling(8, &[launch("work", "")]);
    for (json, code, words) in [
        ("{", T::probes(), "JSON"),
        (&*good.replace("recurse", "absent"), T::probes(), "absent"),
        (&good, b"\x7fELF garbage that is no machine code", "machine code"),
    ] {
        let mut worker = beside_a_good_one::<T>(&good);
        worker.install(1, json, code, &[]);
        for _ in 0..2 {
            let fault = worker.call(1, &[], &[8]).unwrap_err();
            assert_eq!(fault.code, FaultCode::Load, "{fault}");
            assert!(fault.message.contains(words) || words == "JSON", "{fault}");
        }
        assert_eq!(worker.call(2, &[], &[8]).unwrap(), [[7; 8]]);
        worker.end().unwrap();
    }
}

pub fn unknown_functions_and_wrong_counts_are_refused<T: UnderTest>() {
    let mut worker = beside_a_good_one::<T>(&filling(8, &[launch("work", "")]));
    let one: &[&[u8]] = &[b"x"];
    for (function, inputs, outputs) in
        [(9, &[][..], &[8][..]), (1, one, &[8]), (1, &[], &[]), (1, &[], &[8, 8]), (1, &[], &[7])]
    {
        let fault = worker.call(function, inputs, outputs).unwrap_err();
        assert_eq!(fault.code, FaultCode::BadInvoke, "{fault}");
    }
    let mut words = worker.arena_call(1, &[], &[8]);
    words.words = vec![1];
    assert_eq!(worker.invoke(&words).unwrap_err().code, FaultCode::BadInvoke);
    worker.send(&pappus_protocol::ToWorker::Uninstall { function: 1 });
    assert_eq!(worker.call(1, &[], &[8]).unwrap_err().code, FaultCode::BadInvoke);
    assert_eq!(worker.call(2, &[], &[8]).unwrap(), [[7; 8]]);
    worker.end().unwrap();
}

pub fn a_lease_can_change<T: UnderTest>() {
    let mut worker = beside_a_good_one::<T>(&filling(2 << 20, &[launch("work", "")]));
    assert_eq!(worker.call(1, &[], &[0]).unwrap_err().code, FaultCode::OutOfMemory);
    worker.lease(4 << 20);
    let fault = worker.call(1, &[], &[0]).unwrap_err();
    assert_eq!(fault.code, FaultCode::BadInvoke, "only the output's room is missing: {fault}");
    assert_eq!(worker.call(2, &[], &[8]).unwrap(), [[7; 8]]);
    worker.lease(4096);
    assert_eq!(worker.call(1, &[], &[0]).unwrap_err().code, FaultCode::OutOfMemory);
    assert_eq!(worker.call(2, &[], &[8]).unwrap(), [[7; 8]]);
    worker.end().unwrap();
}
