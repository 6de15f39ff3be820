//! The fuzzer of one target, which the environment names: libFuzzer's own flags fill the command line.
#![no_main]

use std::sync::LazyLock;

use pappus_fuzz::{TARGETS, Target, target};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("PAPPUS_FUZZ_TARGET").unwrap_or_default();
    target(&name).unwrap_or_else(|| {
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("PAPPUS_FUZZ_TARGET={name:?} is no target; there are {}", names.join(", "));
        std::process::exit(2)
    })
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (TARGET.read)(bytes));
