//! Kernels of a code object: what its note says of each must be what the kernel's descriptor says, which is what runs.
//! What no kernel may need is refused here: a heap, a way to call the host, a stack without an end.

use std::collections::HashSet;

use super::elf::{DESCRIPTOR, Elf, u32_at, u64_at};
use super::metadata::{ToldArgument, ToldKernel};
use super::{CodeError, MAX_ARGUMENTS, MAX_KERNELS, MAX_NAME_BYTES, Target};
use crate::kernel_info::{KernelInfo, ParamClass, ParamInfo};

/// Bytes of a kernel descriptor.
const DESCRIPTOR_BYTES: usize = 64;
/// Code begins at multiples of this.
const CODE_ALIGN: u64 = 256;
/// Bytes of all arguments of a kernel.
const MAX_KERNARG_BYTES: u64 = 64 << 10;
/// Threads of a block.
const MAX_THREADS: u64 = 1024;

/// A kernel of a code object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Its symbol, by which it is launched.
    pub name: String,
    /// What a launch passes, in order.
    pub arguments: Vec<Argument>,
    /// Bytes of a launch's arguments and of what the driver adds behind them.
    pub kernarg_bytes: u32,
    /// True if the driver adds something, such as the number of blocks.
    pub has_hidden_arguments: bool,
    /// Shared memory (LDS) that it declares itself.
    pub lds_bytes: u32,
    /// Stack of each thread.
    pub private_bytes: u32,
    /// The most threads in a block of a launch.
    pub max_threads: u32,
    /// The block that every launch must have, if the kernel requires one.
    pub required_block: Option<[u32; 3]>,
    /// Threads of a wave: 32 or 64.
    pub wave: u8,
    /// Vector registers of a thread, scalar registers of a wave, and accumulation registers, where the note tells.
    pub vector_registers: Option<u32>,
    /// See `vector_registers`.
    pub scalar_registers: Option<u32>,
    /// See `vector_registers`.
    pub accumulation_registers: Option<u32>,
}

/// An argument that a launch passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Argument {
    /// Its first byte among the arguments.
    pub offset: u32,
    /// Its bytes.
    pub bytes: u32,
    /// True if the argument is an address; the note does not tell numbers from structs.
    pub is_pointer: bool,
}

impl From<&Kernel> for KernelInfo {
    fn from(kernel: &Kernel) -> Self {
        let param = |argument: &Argument| ParamInfo {
            name: Box::default(),
            offset: argument.offset,
            bytes: argument.bytes,
            class: if argument.is_pointer { ParamClass::Pointer } else { ParamClass::Value },
        };
        Self {
            name: kernel.name.clone(),
            params: Some(kernel.arguments.iter().map(param).collect()),
            local_bytes: kernel.private_bytes,
            shared_bytes: kernel.lds_bytes,
            max_threads: kernel.max_threads,
            ..Self::default()
        }
    }
}

/// Arguments that the driver fills in by itself, from the launch alone, with their sizes.
const FILLED_IN: [(&str, u64); 17] = [
    ("hidden_none", 8),
    ("hidden_block_count_x", 4),
    ("hidden_block_count_y", 4),
    ("hidden_block_count_z", 4),
    ("hidden_group_size_x", 2),
    ("hidden_group_size_y", 2),
    ("hidden_group_size_z", 2),
    ("hidden_remainder_x", 2),
    ("hidden_remainder_y", 2),
    ("hidden_remainder_z", 2),
    ("hidden_global_offset_x", 8),
    ("hidden_global_offset_y", 8),
    ("hidden_global_offset_z", 8),
    ("hidden_grid_dims", 2),
    ("hidden_dynamic_lds_size", 4),
    ("hidden_private_base", 4),
    ("hidden_shared_base", 4),
];

/// Arguments of features that no kernel may use, and what to say about each.
const REFUSED: [(&str, &str); 7] = [
    (
        "hidden_heap_v1",
        "allocates memory: kernels have no heap, because what is left in one outlives a call; name a buffer in the \
         blueprint instead",
    ),
    (
        "hidden_hostcall_buffer",
        "calls the host (printf, assert or malloc): there is nobody who would answer. Return a buffer in its place",
    ),
    ("hidden_printf_buffer", "prints: there is nobody who would read it. Return a buffer in its place"),
    ("hidden_default_queue", "starts kernels: a function launches what its blueprint names"),
    ("hidden_completion_action", "starts kernels: a function launches what its blueprint names"),
    (
        "hidden_multigrid_sync_arg",
        "waits for all blocks of a grid (cooperative groups): split it into two kernels",
    ),
    (
        "hidden_queue_ptr",
        "needs the address of the queue that it was launched on: build it for version 5 or newer",
    ),
];

/// Judges what a note tells of kernels.
pub(super) fn check(
    told: Vec<ToldKernel<'_>>,
    elf: &Elf<'_>,
    target: Target,
) -> Result<Vec<Kernel>, CodeError> {
    if told.is_empty() {
        return Err("the module has no kernel".into());
    }
    let mut names = HashSet::new();
    let mut kernels = Vec::with_capacity(told.len());
    let (mut arguments, mut name_bytes) = (0, 0);
    for told in told {
        let name = told.name.filter(|name| !name.is_empty()).ok_or("malformed: a kernel without a name")?;
        if !names.insert(name) {
            return Err(CodeError(format!("malformed: two kernels are called {name:?}")));
        }
        let kernel = judge(name, &told, elf, target).map_err(|why| match why {
            Why::Malformed(what) => CodeError(format!("malformed: kernel `{name}`: {what}")),
            Why::Needs(what) => CodeError(format!("kernel `{name}` {what}")),
        })?;
        arguments += kernel.arguments.len();
        name_bytes += name.len();
        kernels.push(kernel);
    }
    match arguments <= MAX_ARGUMENTS && name_bytes <= MAX_NAME_BYTES {
        true => Ok(kernels),
        false => Err(CodeError(format!(
            "{} kernels with {arguments} parameters and {name_bytes} bytes of names, allowed are {MAX_KERNELS}, \
             {MAX_ARGUMENTS} and {MAX_NAME_BYTES}: split the module",
            kernels.len()
        ))),
    }
}

/// What is wrong with a kernel.
enum Why {
    /// Its note, or its descriptor.
    Malformed(&'static str),
    /// The kernel needs something that Pappus lacks: a predicate that says what.
    Needs(String),
}

fn needs(what: impl Into<String>) -> Why {
    Why::Needs(what.into())
}

fn judge(name: &str, told: &ToldKernel<'_>, elf: &Elf<'_>, target: Target) -> Result<Kernel, Why> {
    if told.kind.is_some_and(|kind| kind != "normal") {
        return Err(needs("is a constructor or destructor: nothing runs but kernels that are launched"));
    }
    if told.has_dynamic_stack {
        return Err(needs(
            "has a stack of unknown size, because it recurses or calls through a pointer: turn the recursion into a \
             loop, and let every call name its function",
        ));
    }
    if told.enqueues {
        return Err(needs("starts kernels: a function launches what its blueprint names"));
    }
    let kernarg_bytes =
        told.kernarg_bytes.ok_or(Why::Malformed("its note does not tell the bytes of its arguments"))?;
    if kernarg_bytes > MAX_KERNARG_BYTES {
        return Err(needs(format!(
            "takes {kernarg_bytes} bytes of arguments, allowed are {MAX_KERNARG_BYTES}"
        )));
    }
    let arguments = arguments(&told.arguments, kernarg_bytes)?;
    let small = |number: Option<u64>, what| {
        u32::try_from(number.unwrap_or(u64::MAX)).map_err(|_| Why::Malformed(what))
    };
    let lds_bytes = small(told.lds_bytes, "its note does not tell its shared memory")?;
    let private_bytes = small(told.private_bytes, "its note does not tell its stack")?;
    if lds_bytes > target.lds_bytes() {
        let most = target.lds_bytes();
        return Err(needs(format!(
            "declares {lds_bytes} bytes of shared memory, a block can have {most} on {target}"
        )));
    }
    let wave = match told.wave {
        Some(32) => 32,
        Some(64) => 64,
        _ => return Err(Why::Malformed("its waves have neither 32 nor 64 threads")),
    };
    let mut max_threads = told.max_threads.unwrap_or(MAX_THREADS);
    let mut required_block = None;
    if let Some(block) = told.required_block {
        let threads = block.iter().try_fold(1u64, |product, side| product.checked_mul(*side));
        max_threads = max_threads.min(threads.unwrap_or(0));
        required_block = Some(block.map(|side| u32::try_from(side).unwrap_or(0)));
    }
    if !(1..=MAX_THREADS).contains(&max_threads) {
        return Err(Why::Malformed(
            "it can be launched with no block, or with one of more than 1024 threads",
        ));
    }
    let kernel = Kernel {
        name: name.to_owned(),
        has_hidden_arguments: arguments.len() < told.arguments.len(),
        arguments,
        kernarg_bytes: kernarg_bytes as u32,
        lds_bytes,
        private_bytes,
        max_threads: max_threads as u32,
        required_block,
        wave,
        vector_registers: registers(told.vector_registers)?,
        scalar_registers: registers(told.scalar_registers)?,
        accumulation_registers: registers(told.accumulation_registers)?,
    };
    check_descriptor(&kernel, told, elf)?;
    Ok(kernel)
}

fn registers(told: Option<u64>) -> Result<Option<u32>, Why> {
    match told {
        Some(count @ 0..=4096) => Ok(Some(count as u32)),
        Some(_) => Err(Why::Malformed("it has more registers than there are")),
        None => Ok(None),
    }
}

/// The arguments that a launch passes; those that the driver fills in come behind them.
fn arguments(told: &[ToldArgument<'_>], kernarg_bytes: u64) -> Result<Vec<Argument>, Why> {
    let mut visible = Vec::new();
    let mut hidden: Vec<&str> = Vec::new();
    let mut end = 0;
    for argument in told {
        let after = argument.offset.checked_add(argument.bytes).filter(|after| *after <= kernarg_bytes);
        let after = after.ok_or(Why::Malformed("an argument ends behind all arguments"))?;
        if argument.offset < end || argument.bytes == 0 {
            return Err(Why::Malformed("its arguments overlap, are empty or out of order"));
        }
        end = after;
        let is_pointer = match argument.kind {
            "by_value" => false,
            "global_buffer" if argument.bytes == 8 => true,
            "global_buffer" => return Err(Why::Malformed("an address of other than 8 bytes")),
            kind if kind.starts_with("hidden_") => {
                if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| *refused == kind) {
                    return Err(needs(*why));
                }
                match FILLED_IN.iter().find(|(known, _)| *known == kind) {
                    Some((_, bytes)) if *bytes == argument.bytes => {}
                    Some(_) => return Err(Why::Malformed("an argument of the driver's has another size")),
                    None => return Err(needs(format!("takes an argument that is not known here: {kind:?}"))),
                }
                if kind != "hidden_none" && hidden.contains(&kind) {
                    return Err(Why::Malformed("the driver is to fill in an argument twice"));
                }
                hidden.push(kind);
                continue;
            }
            "dynamic_shared_pointer" => {
                return Err(needs(
                    "takes the address of shared memory: declare it `extern __shared__`, and its bytes in the blueprint",
                ));
            }
            kind => {
                return Err(needs(format!(
                    "takes a {kind:?}: a launch passes addresses, numbers and structs"
                )));
            }
        };
        if !hidden.is_empty() {
            return Err(Why::Malformed("an argument lies behind those that the driver fills in"));
        }
        visible.push(Argument { offset: argument.offset as u32, bytes: argument.bytes as u32, is_pointer });
    }
    Ok(visible)
}

/// The descriptor is what the hardware is set up from.
fn check_descriptor(kernel: &Kernel, told: &ToldKernel<'_>, elf: &Elf<'_>) -> Result<(), Why> {
    const WAVE32: u16 = 1 << 10;
    const DYNAMIC_STACK: u16 = 1 << 11;
    let symbol = told.symbol.filter(|symbol| symbol.strip_suffix(DESCRIPTOR) == Some(&kernel.name));
    let symbol = symbol.ok_or(Why::Malformed("its descriptor is not called like it"))?;
    let found = elf.object(symbol).filter(|(_, bytes)| bytes.len() == DESCRIPTOR_BYTES);
    let (address, descriptor) = found.ok_or(Why::Malformed("it has no descriptor"))?;
    let word = |at| u32_at(descriptor, at).unwrap_or_default();
    let properties = word(56) as u16;
    let same = word(0) == kernel.lds_bytes
        && word(4) == kernel.private_bytes
        && word(8) == kernel.kernarg_bytes
        && (properties & WAVE32 != 0) == (kernel.wave == 32)
        && properties & DYNAMIC_STACK == 0;
    if !same || address % DESCRIPTOR_BYTES as u64 != 0 {
        return Err(Why::Malformed("its note and its descriptor say different things"));
    }
    let code = address.wrapping_add(u64_at(descriptor, 16).unwrap_or_default());
    match code % CODE_ALIGN == 0 && elf.is_code(code) {
        true => Ok(()),
        false => Err(Why::Malformed("its descriptor names no code")),
    }
}
