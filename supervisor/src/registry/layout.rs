//! What the compiler found in a module against what a blueprint does with it: kernels, parameters, block
//! sizes, stacks. Pure.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use bytesize::ByteSize;
use pappus_blueprint::{Blueprint, Launch, ParamKind, PassedParam, hints};
use pappus_protocol::from_worker::{KernelInfo, ParamClass, ParamInfo};

use crate::refusal::{Reason, Refusable};
use crate::store::records::CodeInfo;

/// Where code runs, as far as it matters here.
#[derive(Debug, Clone, Copy)]
pub struct DeviceLimits<'a> {
    /// Names of the devices, for messages.
    pub devices: &'a str,
    /// Device memory that the driver may take for the stacks of one worker.
    pub stack_bytes: Option<u64>,
}

/// Where a blueprint and its machine code disagree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A module lacks a kernel.
    #[error(
        "module {module} has no kernel `{symbol}`{}; it has {}",
        hints::nearest(symbol, there.iter().map(String::as_str)),
        hints::listed(there.iter().map(String::as_str))
    )]
    NoKernel {
        /// The module.
        module: String,
        /// Which of the blueprint's kernels.
        at: usize,
        /// The kernel.
        symbol: String,
        /// Kernels that it has.
        there: Vec<String>,
    },
    /// A kernel's stacks take more memory than the operator allows.
    #[error(
        "kernel `{kernel}` needs {local_bytes} bytes of stack per thread, {} for all threads of the device, but \
         {devices} allows stack={}: make the kernel's arrays smaller, or ask the operator for a larger stack",
        size(*stack_bytes),
        size(*limit)
    )]
    Stack {
        /// The kernel.
        kernel: String,
        /// Bytes for one thread.
        local_bytes: u32,
        /// Bytes for all threads.
        stack_bytes: u64,
        /// The most that is allowed.
        limit: u64,
        /// Where.
        devices: String,
    },
    /// Blocks with more threads than the kernel can have.
    #[error("kernel `{kernel}`: blocks of {threads} threads, it can be launched with {most}")]
    Block {
        /// The kernel.
        kernel: String,
        /// Threads of a block.
        threads: u64,
        /// The most that are possible.
        most: u32,
        /// Where in the blueprint.
        place: String,
    },
    /// As many arguments as the kernel does not take.
    #[error("kernel `{kernel}` takes {takes} arguments, the blueprint passes {passed}")]
    Arguments {
        /// The kernel.
        kernel: String,
        /// How many it takes.
        takes: usize,
        /// How many are passed.
        passed: usize,
        /// Where in the blueprint.
        place: String,
    },
    /// An argument that is not the kernel's parameter.
    #[error("kernel `{kernel}`, {}: {why}", hints::argument(*nth, name))]
    Argument {
        /// The kernel.
        kernel: String,
        /// Which argument, from 1.
        nth: usize,
        /// The kernel's name for it, if that is known.
        name: Box<str>,
        /// What is wrong with it.
        why: ArgumentError,
        /// Where in the blueprint.
        place: String,
    },
}

/// What is wrong with an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentError {
    /// Another size or type.
    #[error(
        "the kernel takes {}{}, the blueprint passes {}",
        hints::bytes(*bytes),
        taken(*class),
        passed.described()
    )]
    Type {
        /// Bytes that the kernel takes.
        bytes: u32,
        /// Of which class.
        class: ParamClass,
        /// What the blueprint passes.
        passed: PassedParam,
    },
    /// Another offset among the parameters.
    #[error(
        "the kernel has it at byte {} of its parameters, the blueprint's alignment of {} puts it at byte {expected}: \
         give the struct the kernel's \"align\"",
        offset,
        passed.align
    )]
    Offset {
        /// Where the kernel has it.
        offset: u32,
        /// What the blueprint passes.
        passed: PassedParam,
        /// Where that would be.
        expected: u64,
    },
}

impl Refusable for LayoutError {
    fn reason(&self) -> Reason {
        match self {
            Self::Stack { .. } => Reason::OutOfMemory,
            Self::NoKernel { .. } | Self::Block { .. } | Self::Arguments { .. } | Self::Argument { .. } => {
                Reason::InvalidArgument
            }
        }
    }

    fn place(&self) -> Cow<'_, str> {
        match self {
            Self::NoKernel { at, .. } => format!("kernels[{at}]").into(),
            Self::Stack { kernel, .. } => format!("kernel {kernel}").into(),
            Self::Block { place, .. } | Self::Arguments { place, .. } | Self::Argument { place, .. } => {
                place.into()
            }
        }
    }
}

/// Checks a blueprint against the machine code of its modules, in its order, as far as it is known.
pub fn check(
    blueprint: &Blueprint,
    codes: &[Option<Arc<CodeInfo>>],
    place: DeviceLimits<'_>,
) -> Result<(), LayoutError> {
    let known: Vec<_> = codes.iter().map(|code| code.as_deref().map(by_name)).collect();
    let unknown = KernelInfo::default();
    let mut kernels = Vec::with_capacity(blueprint.kernels().len());
    for (at, kernel) in blueprint.kernels().iter().enumerate() {
        let Some(code) = &known[kernel.module] else {
            kernels.push(&unknown);
            continue;
        };
        let Some(info) = code.get(kernel.symbol.as_str()) else {
            let there = codes[kernel.module].iter().flat_map(|code| &code.kernels);
            return Err(LayoutError::NoKernel {
                module: blueprint.modules()[kernel.module].name.clone(),
                at,
                symbol: kernel.symbol.clone(),
                there: there.map(|kernel| kernel.name.clone()).collect(),
            });
        };
        check_stack(&kernel.name, info, place)?;
        kernels.push(*info);
    }
    blueprint.launches().try_for_each(|launch| {
        let name = &blueprint.kernels()[launch.kernel].name;
        check_launch(name, kernels[launch.kernel], &launch)
    })
}

fn by_name(code: &CodeInfo) -> HashMap<&str, &KernelInfo> {
    code.kernels.iter().map(|kernel| (kernel.name.as_str(), kernel)).collect()
}

fn check_stack(name: &str, kernel: &KernelInfo, place: DeviceLimits<'_>) -> Result<(), LayoutError> {
    match place.stack_bytes {
        Some(limit) if kernel.stack_bytes > limit => Err(LayoutError::Stack {
            kernel: name.to_owned(),
            local_bytes: kernel.local_bytes,
            stack_bytes: kernel.stack_bytes,
            limit,
            devices: place.devices.to_owned(),
        }),
        _ => Ok(()),
    }
}

fn check_launch(name: &str, kernel: &KernelInfo, launch: &Launch<'_>) -> Result<(), LayoutError> {
    let named = || name.to_owned();
    let place = |within: &str| format!("{}{within}", launch.place());
    if let Some(threads) = launch.block_threads
        && kernel.max_threads != 0
        && threads > u64::from(kernel.max_threads)
    {
        let most = kernel.max_threads;
        return Err(LayoutError::Block { kernel: named(), threads, most, place: place("[2]") });
    }
    let Some(params) = &kernel.params else { return Ok(()) };
    let passed = launch.params().count();
    if passed != params.len() {
        let takes = params.len();
        return Err(LayoutError::Arguments { kernel: named(), takes, passed, place: place("[1]") });
    }
    let mut end = 0;
    for (at, (param, passed)) in params.iter().zip(launch.params()).enumerate() {
        check_param(param, passed, end).map_err(|why| {
            let (name, place) = (param.name.clone(), place(&format!("[1][{at}]")));
            LayoutError::Argument { kernel: named(), nth: at + 1, name, why, place }
        })?;
        end = u64::from(param.offset) + u64::from(param.bytes);
    }
    Ok(())
}

/// `end` is where the parameter before ends.
fn check_param(param: &ParamInfo, passed: PassedParam, end: u64) -> Result<(), ArgumentError> {
    let pointer = passed.kind == ParamKind::Pointer;
    let nothing = passed.is_zero && passed.kind.is_whole();
    let wrong_type = match param.class {
        ParamClass::Integer => passed.kind.is_float(),
        ParamClass::Whole => passed.kind.is_float() || pointer,
        ParamClass::Float => passed.kind.is_whole(),
        ParamClass::Pointer => !pointer && !nothing,
        ParamClass::Value => pointer,
        ParamClass::Unknown | ParamClass::Bytes => false,
    };
    if param.bytes != passed.bytes || wrong_type {
        return Err(ArgumentError::Type { bytes: param.bytes, class: param.class, passed });
    }
    passed.lies_at(param.offset.into(), end).map_err(|expected| ArgumentError::Offset {
        offset: param.offset,
        passed,
        expected,
    })
}

fn size(bytes: u64) -> impl std::fmt::Display {
    ByteSize::b(bytes).display().iec()
}

/// ` (float)`.
fn taken(class: ParamClass) -> &'static str {
    match class {
        ParamClass::Unknown => "",
        ParamClass::Integer => " (integer or address)",
        ParamClass::Whole => " (integer)",
        ParamClass::Float => " (float)",
        ParamClass::Bytes => " (struct)",
        ParamClass::Pointer => " (pointer)",
        ParamClass::Value => " by value",
    }
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
