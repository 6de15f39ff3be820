//! The kernels that `gpu` launches on its own account: their code objects, built from `kernels/*.c` by `scripts/kernels`,
//! and the shapes in which they clear a compute unit.

use pappus_blueprint::hsaco::Target;
use pappus_protocol::{Fault, FaultCode};

use super::driver::module::{Kernel, Module};
use crate::device::gpu::driver::{ScrubKernel, ScrubRun};

/// The code objects for one processor.
#[derive(Debug)]
struct Built {
    processor: &'static str,
    copy: &'static [u8],
    scrub: &'static [u8],
}

macro_rules! built {
    ($($processor:literal),*) => {
        [$(Built {
            processor: $processor,
            copy: include_bytes!(concat!("kernels/built/copy.", $processor, ".hsaco")),
            scrub: include_bytes!(concat!("kernels/built/scrub.", $processor, ".hsaco")),
        }),*]
    };
}

const BUILT: [Built; 2] = built!["gfx90a", "gfx942"];

/// Threads of a block of the scrubbing kernels.
const THREADS: u32 = 1024;
/// LDS with which one block, and two, are on a compute unit.
const ONE_BLOCK: u32 = 64 << 10;
const TWO_BLOCKS: u32 = 32 << 10;
/// The most stack of a thread that is cleared.
const MOST_STACK: u32 = 64 << 10;

fn built_for(target: &Target) -> Option<&'static Built> {
    BUILT.iter().find(|built| built.processor == target.processor())
}

/// True if there is a copying kernel; without, small calls are copied like large ones.
pub(super) fn can_copy(target: &Target) -> bool {
    built_for(target).is_some()
}

fn internal(why: impl std::fmt::Display) -> Fault {
    Fault::new(FaultCode::Internal, format!("the device's own kernels: {why}"))
}

fn load(image: &[u8], name: &str) -> Result<(Module, Kernel), Fault> {
    let module = Module::load(image).map_err(internal)?;
    let found = module.find(name).map_err(internal)?.map(|(kernel, _)| kernel);
    let kernel = found.ok_or_else(|| internal(format!("no kernel {name}")))?;
    Ok((module, kernel))
}

/// The kernel that copies and clears small ranges.
pub(super) fn copy(target: &Target) -> Result<(Module, Kernel), Fault> {
    let built = built_for(target).ok_or_else(|| internal(format!("none for {}", target.processor())))?;
    load(built.copy, "copy")
}

/// The scrubbing kernels for a device, where there are some and it is as they expect.
fn scrubs(target: &Target, shared_bytes: u32) -> Result<&'static Built, Fault> {
    let known: Vec<_> = BUILT.iter().map(|built| built.processor).collect();
    match built_for(target) {
        Some(built) if shared_bytes == ONE_BLOCK => Ok(built),
        _ => Err(Fault::new(
            FaultCode::Device,
            format!(
                "what is left in the compute units of a {} with {} KiB of LDS cannot be cleared, only in those of {}: \
                 use scrub=switch and tenant-switch=replace",
                target.processor(),
                shared_bytes >> 10,
                known.join(" and ")
            ),
        )),
    }
}

/// True if there are scrubbing kernels for a device.
pub(super) fn can_scrub(target: &Target, shared_bytes: u32) -> bool {
    scrubs(target, shared_bytes).is_ok()
}

/// Kernels that clear LDS and registers.
pub(super) fn chip(target: &Target, shared_bytes: u32) -> Result<Vec<ScrubKernel<Module, Kernel>>, Fault> {
    let built = scrubs(target, shared_bytes)?;
    let with = |name, shared_bytes, blocks| {
        let (module, kernel) = load(built.scrub, name)?;
        let run = ScrubRun { shared_bytes, blocks_each: blocks, least: blocks };
        Ok(ScrubKernel { module, kernel, threads: THREADS, runs: vec![run] })
    };
    Ok(vec![with("chip", ONE_BLOCK, 1)?, with("scalars", TWO_BLOCKS, 2)?])
}

/// A kernel that clears `stack_bytes`, a power of two, of each thread's stack, as many threads as can be resident.
pub(super) fn stack(
    target: &Target,
    stack_bytes: u32,
    shared_bytes: u32,
) -> Result<ScrubKernel<Module, Kernel>, Fault> {
    let built = scrubs(target, shared_bytes)?;
    if stack_bytes > MOST_STACK {
        return Err(Fault::new(
            FaultCode::Load,
            format!(
                "its threads need more than {MOST_STACK} bytes of stack, more than can be cleared behind them"
            ),
        ));
    }
    let (module, kernel) = load(built.scrub, &format!("stack_{stack_bytes}"))?;
    let run = ScrubRun { shared_bytes: TWO_BLOCKS, blocks_each: 2, least: 2 };
    Ok(ScrubKernel { module, kernel, threads: THREADS, runs: vec![run] })
}

#[cfg(test)]
mod tests {
    use pappus_blueprint::hsaco;

    use super::*;
    use crate::device::gpu::copy_kernels::{PARAM_BYTES, THREADS as COPY_THREADS};
    use crate::device::hip::driver::module::judge;

    fn kernels(image: &'static [u8], processor: &str) -> Vec<hsaco::Kernel> {
        let object = judge(image).unwrap();
        assert_eq!(object.target.processor(), processor);
        object.kernels
    }

    #[test]
    fn the_copying_kernel_takes_what_it_is_launched_with() {
        for built in &BUILT {
            let kernels = kernels(built.copy, built.processor);
            let [copy] = &kernels[..] else { panic!("one kernel") };
            assert_eq!((copy.name.as_str(), copy.max_threads, copy.private_bytes), ("copy", COPY_THREADS, 0));
            assert_eq!(copy.arguments.len(), 1);
            assert_eq!((copy.arguments[0].offset, copy.arguments[0].bytes as usize), (0, PARAM_BYTES));
        }
    }

    /// All registers of a SIMD are those of its waves only if the kernels have as many as their comments say.
    #[test]
    fn scrubbing_kernels_have_all_registers_and_stacks_that_they_are_to_clear() {
        for built in &BUILT {
            let kernels = kernels(built.scrub, built.processor);
            let kernel = |name: &str| kernels.iter().find(|kernel| kernel.name == name).unwrap();
            assert_eq!(kernel("chip").vector_registers, Some(128), "512 on each SIMD for four waves");
            assert!(kernel("chip").scalar_registers >= Some(96));
            let scalars = kernel("scalars");
            assert!(
                scalars.scalar_registers > Some(80) && scalars.scalar_registers <= Some(96),
                "8 waves on a SIMD"
            );
            assert!(scalars.vector_registers <= Some(64));
            for bytes in (10..=16).map(|log| 1 << log) {
                let stack = kernel(&format!("stack_{bytes}"));
                assert_eq!(stack.private_bytes, bytes + 16, "ROOM in scrub.c");
                assert!(stack.vector_registers <= Some(64));
            }
            for kernel in &kernels {
                let places: Vec<_> = kernel.arguments.iter().map(|a| (a.offset, a.bytes)).collect();
                assert_eq!(places, [(0, 8), (8, 4), (12, 4)], "{}", kernel.name);
                assert_eq!((kernel.max_threads, kernel.wave, kernel.lds_bytes), (THREADS, 64, 0));
            }
        }
    }

    #[test]
    fn other_processors_are_told_that_they_cannot_be_cleared() {
        for (arch, lds, words) in [
            ("gfx1100", 64 << 10, "a gfx1100 with 64 KiB"),
            ("gfx942:sramecc+:xnack-", 160 << 10, "a gfx942 with 160 KiB"),
        ] {
            let why = scrubs(&Target::of_text(arch).unwrap(), lds).unwrap_err();
            assert!(why.message.contains(words), "{why}");
        }
        assert!(scrubs(&Target::of_text("gfx90a:sramecc+:xnack-").unwrap(), ONE_BLOCK).is_ok());
        assert!(!can_copy(&Target::of_text("gfx1100").unwrap()));
    }
}
