//! The settings of wasmtime. Machine code is only accepted by an engine that agrees with its compiler
//! in every one of them, so both roles build theirs here.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use pappus_protocol::from_worker::Hello;
use pappus_protocol::{Fault, FaultCode};
use wasmtime::{Config, Engine};

use super::layout::{GUARD_BYTES, MEMORY_BYTES};
use super::memory::Handover;

/// Raised whenever the ABI, the rewriting of modules or what is told of them changes: machine code made before is stale.
const ABI_VERSION: u32 = 3;

/// Native stack of a kernel; deeper recursion traps.
const STACK_BYTES: usize = 512 << 10;

/// The engine of the compiling role.
pub(super) fn compiling() -> Result<Engine, Fault> {
    Engine::new(&settings()).map_err(internal)
}

/// The engine of the serving role, which maps machine code and cannot make any.
pub(super) fn serving(memories: Arc<Handover>) -> Result<Engine, Fault> {
    let mut config = settings();
    // Cranelift is linked (one binary has both roles), but this engine has no compiler to hand a module to.
    config.enable_compiler(false);
    config.with_host_memory(memories);
    Engine::new(&config).map_err(internal)
}

/// The greeting of both roles, where code is `interruptible` or not.
pub(super) fn hello(compiling: &Engine, interruptible: bool) -> Hello {
    // Hashed with fixed keys: the same build on the same processor says the same.
    let mut hasher = DefaultHasher::new();
    compiling.precompile_compatibility_hash().hash(&mut hasher);
    (ABI_VERSION, interruptible).hash(&mut hasher);
    Hello::new("cpu", format!("wasmtime-48-{:016x}", hasher.finish()))
}

/// What machine code depends on besides the module; benchmarks that run the bare kernel use them, too.
pub fn settings() -> Config {
    let mut config = Config::new();
    // All of 4 GiB is reserved: addresses need no checks, what is not mapped faults and so traps.
    config
        .memory_reservation(MEMORY_BYTES)
        .memory_guard_size(GUARD_BYTES)
        .memory_may_move(false)
        .signals_based_traps(true);
    // Images of data segments would be mapped over our memory; we restore data by ourselves.
    config.memory_init_cow(false);
    config.max_wasm_stack(STACK_BYTES);
    // A fault names its kernel: backtraces are not read.
    config.wasm_backtrace_max_frames(None).native_unwind_info(false).generate_address_map(false);
    // Exactly what `check` lets pass. (`simd` is wasmtime's default, as are the features of the MVP.)
    config
        .wasm_bulk_memory(true)
        .wasm_multi_value(true)
        .wasm_simd(true)
        .wasm_relaxed_simd(false)
        .wasm_tail_call(false)
        .wasm_memory64(false)
        .wasm_multi_memory(false)
        .wasm_extended_const(false)
        .wasm_wide_arithmetic(false);
    config
}

fn internal(error: wasmtime::Error) -> Fault {
    Fault::new(FaultCode::Internal, format!("wasmtime: {error:#}"))
}
