//! Clearing what survives kernels outside of global memory: shared memory (that of clusters is the
//! same), registers, and the stacks that the driver gives to threads.
//!
//! Kernels of one block (or two) on every multiprocessor: blocks wait for each other, so that none can take
//! another's place, and say where they ran. Only a run that reached every multiprocessor counts.

use pappus_protocol::{Fault, FaultCode};

use super::driver::memory::{DeviceBuffer, HostBuffer};
use super::driver::module::{Kernel, Module, Source, link};
use super::driver::stream::Shape;
use super::driver::{Context, CudaError, Stream};

/// Counters: arrivals of blocks first, then one for each multiprocessor by its number.
const COUNTERS: usize = 1024;
const BYTES: u64 = 4 * COUNTERS as u64;
/// Runs before it is given up that every multiprocessor is reached.
const ATTEMPTS: usize = 8;
const THREADS: u32 = 1024;
/// Registers of a thread when so many fill a multiprocessor: all of them are to be overwritten.
const REGISTERS: u32 = 64;
/// The multiprocessor keeps a kilobyte of shared memory for itself with every block, which no kernel can
/// clear: the one in front of the block that clears all the rest. Small blocks move on with every block that
/// ends, so they come to lie over that place, as those of other kernels do: measured on an H200, where it was
/// all that was left. Two sizes of them, and how many there are on each multiprocessor.
const SMALL_BLOCKS: [u32; 2] = [48 << 10, 8 << 10];
const SMALL_BLOCKS_EACH: u32 = 32;
/// Stack of each thread that is cleared at least, in bytes.
const LEAST_STACK: u32 = 1 << 10;

/// The scrubbing kernels of one context.
#[derive(Debug)]
pub(super) struct Scrubber {
    chip: Kernel,
    sweep: Kernel,
    stack: Kernel,
    /// Bytes of stack that `stack` clears of each thread.
    stack_bytes: u32,
    /// Shared memory that the chip kernel asks for.
    shared_bytes: u32,
    counters: DeviceBuffer,
    host: HostBuffer,
    // What keeps the kernels loaded.
    _stack_module: Module,
    _modules: [Module; 2],
}

impl Scrubber {
    /// Kernels that clear at least `stack_bytes` of each thread's stack.
    pub(super) fn load(context: &Context, stack_bytes: u32) -> Result<Self, Fault> {
        let (chip_module, chip) = fullest(|values| load(chip_ptx(values), "chip"))?;
        let (sweep_module, sweep) = load(sweep_ptx(), "sweep")?;
        let stack_bytes = rounded(stack_bytes);
        let (_stack_module, stack) = load(stack_ptx(stack_bytes), "stack")?;
        let shared_bytes = context.info.shared_bytes.saturating_sub(chip.shared_bytes());
        chip.allow_shared(shared_bytes).map_err(failed)?;
        sweep.allow_shared(shared_bytes).map_err(failed)?;
        let host = HostBuffer::allocate(BYTES as usize).map_err(failed)?;
        let counters = DeviceBuffer::allocate(BYTES).map_err(failed)?;
        Ok(Self {
            chip,
            sweep,
            stack,
            stack_bytes,
            shared_bytes,
            counters,
            host,
            _stack_module,
            _modules: [chip_module, sweep_module],
        })
    }

    /// Makes it clear at least `stack_bytes` of each thread's stack.
    pub(super) fn fit(&mut self, stack_bytes: u32) -> Result<(), Fault> {
        let stack_bytes = rounded(stack_bytes);
        if stack_bytes > self.stack_bytes {
            (self._stack_module, self.stack) = load(stack_ptx(stack_bytes), "stack")?;
            self.stack_bytes = stack_bytes;
        }
        Ok(())
    }

    /// Clears everything; nothing else runs in this context.
    pub(super) fn run(&mut self, context: &Context, stream: &Stream) -> Result<(), Fault> {
        self.reach_all(context, stream, self.chip, self.shared_bytes, 1, 1)?;
        for bytes in SMALL_BLOCKS {
            self.reach_all(context, stream, self.sweep, bytes, SMALL_BLOCKS_EACH, 1)?;
        }
        // A multiprocessor keeps a kilobyte of shared memory for itself with every block.
        let blocks = (context.info.threads / THREADS).max(1);
        let shared_bytes = ((self.shared_bytes + 1024) / blocks).saturating_sub(1024) & !1023;
        self.stack.allow_shared(shared_bytes).map_err(|e| e.fault("scrubbing"))?;
        self.reach_all(context, stream, self.stack, shared_bytes, blocks, blocks)
    }

    fn reach_all(
        &mut self,
        context: &Context,
        stream: &Stream,
        kernel: Kernel,
        shared_bytes: u32,
        blocks_each: u32,
        least: u32,
    ) -> Result<(), Fault> {
        for _ in 0..ATTEMPTS {
            let reached = self.run_once(context, stream, kernel, shared_bytes, blocks_each, least);
            let reached = reached.map_err(|e| e.fault("scrubbing"))?;
            if reached == context.info.multiprocessors {
                return Ok(());
            }
        }
        Err(Fault::new(
            FaultCode::Device,
            format!(
                "scrubbing does not reach all {} multiprocessors of {}: does another process use it at the same time (MPS)?",
                context.info.multiprocessors, context.info.name
            ),
        ))
    }

    /// Runs a kernel once, with so many blocks for each multiprocessor; returns how many had at least `least`.
    fn run_once(
        &mut self,
        context: &Context,
        stream: &Stream,
        kernel: Kernel,
        shared_bytes: u32,
        blocks_each: u32,
        least: u32,
    ) -> Result<u32, CudaError> {
        let blocks = context.info.multiprocessors * blocks_each;
        let shape = Shape { grid: [blocks, 1, 1], block: [THREADS, 1, 1], shared_bytes };
        let mut params = self.counters.address.to_le_bytes().to_vec();
        params.extend(blocks.to_le_bytes());
        params.extend(shared_bytes.to_le_bytes());
        stream.fill(self.counters.address, 0, BYTES)?;
        stream.launch(kernel, &shape, &params)?;
        // SAFETY: the buffer is this long and is read after `synchronize` only.
        unsafe { stream.copy_out(self.host.as_ptr(), self.counters.address, BYTES) }?;
        context.synchronize()?;
        let counters = self.host.as_mut().chunks_exact(4).skip(1);
        let full =
            counters.filter(|word| word.first_chunk().is_some_and(|&w| u32::from_le_bytes(w) >= least));
        Ok(full.count() as u32)
    }
}

fn rounded(stack_bytes: u32) -> u32 {
    stack_bytes.max(LEAST_STACK).next_power_of_two()
}

fn internal(why: &str) -> Fault {
    Fault::new(FaultCode::Internal, format!("the scrubbing kernels: {why}"))
}

fn failed(error: CudaError) -> Fault {
    internal(&error.to_string())
}

fn load(text: String, name: &str) -> Result<(Module, Kernel), Fault> {
    let code = link(Source::Ptx, (text + "\0").as_bytes()).map_err(|why| internal(&why))?;
    let module = Module::load(&code).map_err(failed)?;
    let kernel = module.kernel(name).ok_or_else(|| internal(&format!("no kernel {name}")))?;
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

/// The kernel that uses as many registers as there are, and no stack instead: how many of the compiler's own
/// it needs besides the values is found by trying.
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
    // All of them are needed until it is known, behind the barrier, that none is stored.
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
    use super::*;

    #[test]
    fn the_texts_pass_our_own_judgement() {
        for text in [chip_ptx(50), sweep_ptx(), stack_ptx(4096)] {
            assert_eq!(super::super::check::format(text.as_bytes()), Ok(super::super::check::Format::Ptx));
            assert_eq!(super::super::check::ptx_params(&text).values().next().map(Vec::len), Some(3));
            assert_eq!(text.matches('{').count(), text.matches('}').count());
        }
    }
}
