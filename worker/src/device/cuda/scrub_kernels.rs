//! The PTX of the kernels that clear the memory inside a multiprocessor: shared memory (that of clusters is the same),
//! registers, and the stacks that the driver gives to threads. `gpu::scrub` runs them.

use pappus_protocol::{Fault, FaultCode};

use super::driver::module::{Kernel, Module, Source, link};
use super::driver::{CudaError, DeviceInfo};
use crate::device::gpu::driver::{COUNTERS_BYTES as BYTES, DriverError, ScrubKernel, ScrubRun};

const THREADS: u32 = 1024;
/// Registers of a thread where as many threads fill a multiprocessor: all registers are to be overwritten.
const REGISTERS: u32 = 64;
/// With every block the multiprocessor reserves a kilobyte of shared memory, which that block cannot clear: the
/// kilobyte in front of the block that clears all the rest stays. Small blocks get another place whenever a block
/// ends, so they come to lie over that kilobyte, as blocks of other kernels do; on an H200 nothing else was left. Two
/// sizes of small blocks, and how many run on each multiprocessor.
const SMALL_BLOCKS: [u32; 2] = [48 << 10, 8 << 10];
const SMALL_BLOCKS_EACH: u32 = 32;

/// Kernels that clear shared memory and registers.
pub(super) fn chip(info: &DeviceInfo) -> Result<Vec<ScrubKernel<Module, Kernel>>, Fault> {
    let (module, kernel) = fullest(|values| load(chip_ptx(values), "chip"))?;
    let (sweep_module, sweep) = load(sweep_ptx(), "sweep")?;
    let shared_bytes = info.shared_bytes.saturating_sub(kernel.shared_bytes());
    kernel.allow_shared(shared_bytes).map_err(failed)?;
    sweep.allow_shared(shared_bytes).map_err(failed)?;
    let small = |shared_bytes| ScrubRun { shared_bytes, blocks_each: SMALL_BLOCKS_EACH, least: 1 };
    let whole = ScrubRun { shared_bytes, blocks_each: 1, least: 1 };
    Ok(vec![
        ScrubKernel { module, kernel, threads: THREADS, runs: vec![whole] },
        ScrubKernel {
            module: sweep_module,
            kernel: sweep,
            threads: THREADS,
            runs: SMALL_BLOCKS.map(small).into(),
        },
    ])
}

/// A kernel that clears `stack_bytes` of each thread's stack, as many threads as can be resident.
pub(super) fn stack(info: &DeviceInfo, stack_bytes: u32) -> Result<ScrubKernel<Module, Kernel>, Fault> {
    let (module, kernel) = load(stack_ptx(stack_bytes), "stack")?;
    // A multiprocessor keeps a kilobyte of shared memory for itself with every block.
    let blocks = (info.threads / THREADS).max(1);
    let most = info.shared_bytes.saturating_sub(kernel.shared_bytes());
    let shared_bytes = ((most + 1024) / blocks).saturating_sub(1024) & !1023;
    kernel.allow_shared(shared_bytes).map_err(|e| e.fault("scrubbing"))?;
    let run = ScrubRun { shared_bytes, blocks_each: blocks, least: blocks };
    Ok(ScrubKernel { module, kernel, threads: THREADS, runs: vec![run] })
}

fn internal(why: &str) -> Fault {
    Fault::new(FaultCode::Internal, format!("the scrubbing kernels: {why}"))
}

fn failed(error: CudaError) -> Fault {
    internal(&error.to_string())
}

fn load(text: String, name: &str) -> Result<(Module, Kernel), Fault> {
    let code = link(Source::Ptx, (text + "\0").as_bytes()).map_err(|why| internal(&why.to_string()))?;
    let module = Module::load(&code).map_err(failed)?;
    let kernel = module.find(name).ok_or_else(|| internal(&format!("no kernel {name}")))?;
    Ok((module, kernel))
}

/// The head of all kernels, and how a block waits for the others (for a while: a grid that is not
/// resident all at once must not hang) and says where it is.
const HEAD: &str = ".version 7.0\n.target sm_70\n.address_size 64\n";
const PARAMS: &str = "(.param .u64 counters, .param .u32 blocks, .param .u32 shared_bytes)";
const MEET: &str = "
    bar.sync 0;
    mov.u32 %tid0, %tid.x;
    setp.ne.u32 %other, %tid0, 0;
    @%other bra meet_end;
    atom.global.add.u32 %seen, [%counters], 1;
    mov.u32 %tries, 0;
meet:
    ld.volatile.global.u32 %seen, [%counters];
    setp.ge.u32 %all, %seen, %blocks;
    @%all bra meet_done;
    add.u32 %tries, %tries, 1;
    setp.lt.u32 %again, %tries, 1000000;
    @%again bra meet;
meet_done:
    mov.u32 %sm, %smid;
    mad.wide.u32 %where, %sm, 4, %counters;
    atom.global.add.u32 %seen, [%where+4], 1;
meet_end:
    bar.sync 0;
";
/// Says where a block is, without waiting.
const MARK: &str = "
    mov.u32 %tid0, %tid.x;
    setp.ne.u32 %other, %tid0, 0;
    @%other bra mark_end;
    mov.u32 %sm, %smid;
    mad.wide.u32 %where, %sm, 4, %counters;
    atom.global.add.u32 %seen, [%where+4], 1;
mark_end:
";
const MEET_REGISTERS: &str = "
    .reg .u64 %counters, %where;
    .reg .u32 %blocks, %tid0, %seen, %tries, %sm;
    .reg .pred %other, %all, %again;
    ld.param.u64 %counters, [counters];
    cvta.to.global.u64 %counters, %counters;
    ld.param.u32 %blocks, [blocks];
";

/// The kernel that uses all registers and no stack: how many registers the compiler needs besides the values is found
/// by trying.
fn fullest(load: impl Fn(u32) -> Result<(Module, Kernel), Fault>) -> Result<(Module, Kernel), Fault> {
    for values in (REGISTERS / 2..REGISTERS).rev() {
        let (module, kernel) = load(values)?;
        if kernel.local_bytes() == 0 && kernel.registers() <= REGISTERS {
            return Ok((module, kernel));
        }
    }
    Err(internal("the compiler finds no room for registers"))
}

/// Zeroes the dynamic shared memory of a block.
const CLEAR_SHARED: &str = "
    .reg .u32 %at, %end, %zero, %sum;
    .reg .pred %more;
    mov.u32 %at, %tid.x;
    shl.b32 %at, %at, 4;
    ld.param.u32 %end, [shared_bytes];
    mov.u32 %sum, space;
    mov.u32 %zero, 0;
clear:
    setp.ge.u32 %more, %at, %end;
    @%more bra cleared;
    add.u32 %tries, %sum, %at;
    st.volatile.shared.v4.u32 [%tries], {%zero, %zero, %zero, %zero};
    add.u32 %at, %at, 16384;
    bra clear;
cleared:
";
const SPACE: &str = ".extern .shared .align 16 .b8 space[];\n";

/// Zeroes the shared memory that a block has, and all registers of its threads: `values` of them at once.
fn chip_ptx(values: u32) -> String {
    let mut text = format!(
        "{HEAD}.extern .shared .align 16 .b8 space[];\n.visible .entry chip{PARAMS}\n.maxntid {THREADS}, 1, 1\n{{"
    );
    text += MEET_REGISTERS;
    text += CLEAR_SHARED;
    text += MEET;
    // The counters behind the multiprocessors' are always zero; the compiler does not know.
    text += &format!("    .reg .u32 %v<{values}>;\n");
    for register in 0..values {
        text += &format!("    ld.volatile.global.u32 %v{register}, [%counters+{}];\n", BYTES - 4);
    }
    // The compiler must keep all values until it is known, behind the barrier, that none is stored.
    text += &format!(
        "    bar.sync 0;\n    ld.volatile.global.u32 %sum, [%counters+{}];\n    setp.eq.u32 %more, %sum, 0;\n    @%more bra end;\n",
        BYTES - 4
    );
    for register in 0..values {
        text += &format!("    st.volatile.global.u32 [%counters+{}], %v{register};\n", 4 * register);
    }
    text + "end:\n    ret;\n}\n"
}

/// Zeroes the shared memory that a block has, wherever it comes to lie.
fn sweep_ptx() -> String {
    format!(
        "{HEAD}{SPACE}.visible .entry sweep{PARAMS}\n.maxntid {THREADS}, 1, 1\n{{{MEET_REGISTERS}{CLEAR_SHARED}{MARK}    ret;\n}}\n"
    )
}

/// Zeroes the stacks of as many threads as can be resident, and shared memory as two blocks have it.
fn stack_ptx(bytes: u32) -> String {
    let last = BYTES - 4;
    let mut text =
        format!("{HEAD}{SPACE}.visible .entry stack{PARAMS}\n.maxntid {THREADS}, 1, 1\n.minnctapersm 2\n{{");
    text += &format!("    .local .align 16 .b8 frame[{bytes}];\n");
    text += MEET_REGISTERS;
    text += CLEAR_SHARED;
    text += &format!(
        "
    .reg .u64 %base, %local;
    mov.u64 %base, frame;
    mov.u32 %at, 0;
frame_clear:
    cvt.u64.u32 %local, %at;
    add.u64 %local, %base, %local;
    st.local.v4.u32 [%local], {{%zero, %zero, %zero, %zero}};
    add.u32 %at, %at, 16;
    setp.lt.u32 %more, %at, {bytes};
    @%more bra frame_clear;
    // Read back at a place that the compiler cannot know, so that no store is in vain.
    ld.volatile.global.u32 %at, [%counters+{last}];
    cvt.u64.u32 %local, %at;
    add.u64 %local, %base, %local;
    ld.local.u32 %at, [%local];
    setp.eq.u32 %more, %at, 0;
    @%more bra read;
    st.volatile.global.u32 [%counters+{last}], %at;
read:
"
    );
    text += MEET;
    text + "    ret;\n}\n"
}

#[cfg(test)]
mod tests {
    use pappus_blueprint::ptx;

    use super::*;
    use crate::device::cuda::check;

    #[test]
    fn the_kernels_texts_pass_the_check_for_modules() {
        for text in [chip_ptx(50), sweep_ptx(), stack_ptx(4096)] {
            assert_eq!(check::format(text.as_bytes()), Ok(check::Format::Ptx));
            assert_eq!(ptx::entries(&text).unwrap()[0].params.as_ref().map(Vec::len), Some(3));
            assert_eq!(text.matches('{').count(), text.matches('}').count());
        }
    }
}
