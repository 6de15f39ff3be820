//! Memory that NVIDIA's driver keeps for kernels: parameters, a heap, what is printed.

use pappus_protocol::FaultCode;

use crate::harness::Worker;
use crate::harness::program::{self, Options};
use crate::suite::UnderTest;
use crate::suite::blueprints::{i64, launch, launch_wide, ptr, u32};
use crate::suite::cuda::{OnCuda, compile};
use crate::suite::leaks_between_calls::{dirty, seen};

/// Looks behind its own two parameters, where the launch before had its fourth. The driver keeps other things there
/// as well, so only that value counts.
#[test]
#[ignore = "needs an NVIDIA GPU: scripts/gpu-check leaks"]
fn parameters_of_other_launches() {
    let probe = dirty(&[launch("arguments", &[ptr("out"), i64(16)].join(","))]);
    let secret = 2.5f64;
    let four = [ptr("out"), u32(7), r#"{"F32": 1.5}"#.to_owned(), format!(r#"{{"F64": {secret}}}"#)];
    let left = dirty(&[launch("parameters", &four.join(","))]);
    let found = |worker| seen::<OnCuda>(worker, Some(&left), &probe, 8) == secret.to_bits().to_le_bytes();
    let control = found(OnCuda::uncleared_worker());
    println!("parameters: {}", if control { "control finds" } else { "not observed" });
    assert!(!found(OnCuda::worker()), "a parameter of another call");
}

#[test]
#[ignore = "needs an NVIDIA GPU: scripts/gpu-check leaks"]
fn a_module_with_a_heap_is_refused() {
    // The driver takes a limit of zero and keeps a heap, and what is left in one outlives a call.
    let heap = b".version 7.0\n.target sm_70\n.address_size 64\n\
        .extern .func (.param .b64 address) malloc (.param .b64 bytes);\n\
        .visible .entry take(.param .u64 seen) {\n\
        .reg .b64 %a, %s;\n ld.param.u64 %s, [seen];\n cvta.to.global.u64 %s, %s;\n\
        { .param .b64 bytes; .param .b64 address; st.param.b64 [bytes], 64;\n\
        call.uni (address), malloc, (bytes); ld.param.b64 %a, [address]; }\n\
        st.global.u64 [%s], %a;\n ret;\n}\n";
    let refused = program::compile(&Options::CUDA, heap).unwrap_err();
    assert_eq!(refused.code, FaultCode::BadModule, "{refused}");
    assert!(refused.message.contains("`malloc`"), "{refused}");
}

#[test]
#[ignore = "needs an NVIDIA GPU: scripts/gpu-check leaks"]
fn what_kernels_print_goes_nowhere() {
    let mut worker = OnCuda::worker();
    let flood = launch_wide("printf_flood", &i64(100), [64, 1, 1], 64, 0);
    worker.install(1, &dirty(&[flood]), OnCuda::probes(), &[]);
    worker.install(2, &dirty(&[launch("trap", "")]), OnCuda::probes(), &[]);
    for _ in 0..3 {
        worker.call(1, &[], &[8]).unwrap();
    }
    let said = worker.end_and_said();
    assert!(!said.contains("a line that a kernel prints"), "{} bytes", said.len());
}

/// Kernels reach the page in which a failed `REQUIRE` leaves its text, whether they fail or not.
#[test]
#[ignore = "needs an NVIDIA GPU: scripts/gpu-check leaks"]
fn the_page_of_a_failed_require() {
    const SECRET: u64 = 0x5ec2_e7aa_aaaa_aaaa;
    let page = compile(
        b".version 7.0\n.target sm_70\n.address_size 64\n\
        .visible .entry leave(.param .u64 value) {\n.reg .b64 %v, %a;\n ld.param.u64 %v, [value];\n\
        mov.u64 %a, 0x300000000008;\n st.volatile.global.u64 [%a], %v;\n ret;\n}\n\
        .visible .entry look(.param .u64 seen) {\n.reg .b64 %v, %a, %s;\n ld.param.u64 %s, [seen];\n\
        cvta.to.global.u64 %s, %s;\n mov.u64 %a, 0x300000000008;\n ld.volatile.global.u64 %v, [%a];\n\
        st.global.u64 [%s], %v;\n ret;\n}\n",
    );
    let found = |mut worker: Worker| {
        worker.install(1, &dirty(&[launch("leave", &i64(SECRET))]), &page, &[]);
        worker.install(2, &dirty(&[launch("look", &ptr("out"))]), &page, &[]);
        worker.call(1, &[], &[8]).unwrap();
        let seen = worker.call(2, &[], &[8]).unwrap().remove(0);
        worker.end().unwrap();
        seen
    };
    assert_eq!(found(OnCuda::uncleared_worker()), SECRET.to_le_bytes(), "the control finds nothing");
    assert_eq!(found(OnCuda::worker()), [0; 8]);
}
