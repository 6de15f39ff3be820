//! What makes code interruptible: a write to a page of its own in each loop and where a function begins, which traps once the
//! [alarm](super::alarm) took the page away. A write costs less than a counter that is compared. Between two writes lies at most
//! what a function has without loops and calls, which `check` limits: milliseconds.
//!
//! The compiler keeps the writes in loops: each is the first instruction behind a place where ways through the function meet, so the
//! compiler never knows what stands in the page, and a write that can trap is kept for the trap.

use wasm_encoder::{InstructionSink, MemArg};

use super::layout::POLL_AT;

/// Adds the write, if the code is `interruptible`.
pub(super) fn poll(code: &mut InstructionSink<'_>, interruptible: bool) {
    if interruptible {
        let at = MemArg { offset: POLL_AT.into(), align: 2, memory_index: 0 };
        code.i32_const(0).i32_const(0).i32_store(at);
    }
}
