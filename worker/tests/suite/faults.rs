//! Every failure has its code, its words and, where one is guilty, its kernel; the next call runs.

use pappus_protocol::{Fault, FaultCode, FunctionId, ToWorker};

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

/// Function 1 fails as a suspect; function 2 runs right after it, in a fresh worker if need be.
fn fails<T: UnderTest>(json: &str, outputs: &[u64]) -> Fault {
    let mut worker = beside_a_good_one::<T>(json);
    let fault = worker.call_alone(1, &[], outputs).unwrap_err();
    let mut worker = after::<T>(worker, &fault, || beside_a_good_one::<T>(json));
    assert_eq!(worker.call(2, &[], &[8]).unwrap(), [[7; 8]]);
    worker.end().unwrap();
    fault
}

/// The worker that serves the next call: the same, or a fresh one where the fault ended it.
pub fn after<T: UnderTest>(worker: Worker, fault: &Fault, fresh: impl FnOnce() -> Worker) -> Worker {
    if !T::FAULTS_END_THE_WORKER || fault.code != FaultCode::KernelTrap {
        return worker;
    }
    let last = worker.breaks();
    assert!([FaultCode::KernelTrap, FaultCode::Device].contains(&last.code), "{last}");
    fresh()
}

fn trapped(fault: &Fault, kernel: &str, words: &str) {
    assert_eq!(fault.code, FaultCode::KernelTrap, "{fault}");
    assert!(fault.kernel.is_some(), "{fault}");
    assert!(fault.message.contains(&format!("`{kernel}`")) && fault.message.contains(words), "{fault}");
}

pub fn a_trap_names_kernel_and_cause<T: UnderTest>() {
    for (kernel, params, words) in T::traps() {
        let steps = [launch("work", ""), launch(kernel, &params)];
        trapped(&fails::<T>(&filling(8, &steps), &[8]), kernel, words);
    }
}

pub fn stray_accesses_trap<T: UnderTest>() {
    for (kernel, step) in T::strays() {
        trapped(&fails::<T>(&filling(8, &[step]), &[8]), kernel, T::STRAY);
    }
}

pub fn weights_are_read_only<T: UnderTest>() {
    let weights = [9; 300];
    let read = Blueprint {
        inputs: &[],
        weights: &["w"],
        buffers: &[("out", 300)],
        outputs: &["out"],
        steps: &[launch("copy", &[ptr("w"), ptr("out"), i64(300)].join(","))],
    };
    let reading = || {
        let mut worker = T::worker();
        worker.install(3, &read.json(), T::probes(), &[&weights]);
        worker
    };
    let mut worker = reading();
    for (function, kernel) in [(1, "fill"), (2, "module_global")] {
        let params = match kernel {
            "fill" => [ptr("w"), i64(1), i64(1)].join(","),
            _ => ptr("w"),
        };
        let json = Blueprint { buffers: &[("out", 8)], steps: &[launch(kernel, &params)], ..read };
        worker.install(function, &json.json(), T::probes(), &[&weights]);
        let fault = worker.call_alone(function, &[], &[8]).unwrap_err();
        trapped(&fault, kernel, T::STRAY);
        worker = after::<T>(worker, &fault, reading);
    }
    assert_eq!(worker.call(3, &[], &[300]).unwrap(), [weights]);
    worker.end().unwrap();
}

pub fn a_deadline_is_kept<T: UnderTest>() {
    // Years of blocks.
    let json = filling(8, &[launch_on("work", "", [i32::MAX as u64, 65_535, 65_535], 0)]);
    let mut worker = beside_a_good_one::<T>(&json);
    let mut call = worker.arena_call(1, &[], &[8]);
    // One that has passed before the call runs.
    call.deadline_ns = 1;
    assert_eq!(worker.invoke(&call).unwrap_err().code, FaultCode::Deadline);
    assert_eq!(worker.call(2, &[], &[8]).unwrap(), [[7; 8]]);
    // Long enough that the call starts on a busy machine.
    call.deadline_ns = pappus_protocol::now_ns() + 200_000_000;
    if !T::ENDS_RUNNING_KERNELS {
        // The supervisor ends such a worker, and a fresh one serves.
        worker.begin(&call);
        worker.kill();
        let mut worker = beside_a_good_one::<T>(&json);
        assert_eq!(worker.call(2, &[], &[8]).unwrap(), [[7; 8]]);
        return worker.end().unwrap();
    }
    let fault = worker.invoke(&call).unwrap_err();
    assert_eq!(fault.code, FaultCode::Deadline);
    assert!(fault.kernel.is_some(), "{fault}");
    let late_ns = pappus_protocol::now_ns().saturating_sub(call.deadline_ns);
    assert!(late_ns < 1_000_000_000, "{late_ns} ns late");
    assert_eq!(worker.call(2, &[], &[8]).unwrap(), [[7; 8]]);
    worker.end().unwrap();
}

pub fn what_exceeds_the_loan_is_refused<T: UnderTest>() {
    let needed = 2 * T::LANE_BYTES;
    let fault = fails::<T>(&filling(needed, &[launch("work", "")]), &[8]);
    assert_eq!((fault.code, fault.kernel), (FaultCode::OutOfMemory, None));
    let says = |bytes: u64| fault.message.contains(&bytes.to_string());
    assert!(says(needed) && says(T::LANE_BYTES), "{fault}");
}

pub fn failed_outputs_are_zeroed<T: UnderTest>() {
    let fill = launch("fill", &[ptr("out"), i64(0xaa), i64(8)].join(","));
    let fresh = || beside_a_good_one::<T>(&filling(8, &[fill.clone(), launch("trap", "")]));
    let mut worker = fresh();
    let around = |worker: &Worker| worker.read_arena(OUTPUTS_AT, 17);
    let fault = worker.call_alone(1, &[], &[16]).unwrap_err();
    assert_eq!(around(&worker), [&[0; 16][..], &[UNTOUCHED]].concat(), "all of the region");
    let mut worker = after::<T>(worker, &fault, fresh);
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
        (&*good.replace("\"work\"", "\"absent\""), T::probes(), "absent"),
        (&good, b"\x7fELF garbage that is no machine code", T::NO_CODE),
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
    let mut call = worker.arena_call(1, &[], &[8]);
    call.scalars = vec![1];
    assert_eq!(worker.invoke(&call).unwrap_err().code, FaultCode::BadInvoke);
    worker.send(&ToWorker::Uninstall { function: FunctionId::new(1) });
    assert_eq!(worker.call(1, &[], &[8]).unwrap_err().code, FaultCode::BadInvoke);
    assert_eq!(worker.call(2, &[], &[8]).unwrap(), [[7; 8]]);
    worker.end().unwrap();
}

pub fn a_lane_can_be_lent_more_and_less<T: UnderTest>() {
    let lent = T::LANE_BYTES;
    let mut worker = beside_a_good_one::<T>(&filling(2 * lent, &[launch("work", "")]));
    assert_eq!(worker.call(1, &[], &[0]).unwrap_err().code, FaultCode::OutOfMemory);
    worker.lane_bytes = 4 * lent;
    let fault = worker.call(1, &[], &[0]).unwrap_err();
    assert_eq!(fault.code, FaultCode::BadInvoke, "only the output's room is missing: {fault}");
    assert_eq!(worker.call(2, &[], &[8]).unwrap(), [[7; 8]]);
    worker.give_back(1);
    worker.lane_bytes = T::SMALL_LANE_BYTES;
    assert_eq!(worker.call(1, &[], &[0]).unwrap_err().code, FaultCode::OutOfMemory);
    assert_eq!(worker.call(2, &[], &[8]).unwrap(), [[7; 8]]);
    worker.end().unwrap();
}
