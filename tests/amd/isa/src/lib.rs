//! Runs GFX9 code objects (gfx90a, gfx942) on the processor, so that tests of the HIP device need no GPU. Nothing that is
//! delivered depends on it.
//!
//! In reading order:
//! - [`ops`]: the instructions that are known, by number; [`decode`]: from words to instructions.
//! - [`program`]: a code object's instructions; [`object`]: the code object: kernels, their descriptors, segments.
//! - [`memory`]: what kernels reach, and faults.
//! - [`wave`]: registers of a wave; [`float`]: arithmetic as the documents have it; [`exec`]: what each instruction does.
//! - [`chip`]: compute units, on which workgroups of a launch are placed and run.
//!
//! What is modelled: 64 lanes under EXEC, scalar, vector and accumulation registers of a finite register file, LDS and
//! scratch, which all keep what was in them from kernel to kernel; barriers; faults. What is not: time, caches, the order
//! of memory accesses (a wave's are in order), float modes but those that compilers set for compute, 16-bit floats,
//! matrix instructions, SDWA and DPP. Each is a named error.
#![forbid(unsafe_code)]

pub mod chip;
pub mod decode;
pub mod exec;
pub mod float;
pub mod memory;
pub mod object;
pub mod ops;
pub mod program;
pub mod wave;
