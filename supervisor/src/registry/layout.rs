//! What the compiler found in a module against what a blueprint does with it: kernels, parameters, block
//! sizes, stacks. Pure.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use bytesize::ByteSize;
use pappus_blueprint::kernel_info::{ArgumentError, KernelInfo};
use pappus_blueprint::{Blueprint, Launch, hints};

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
        param.check(passed, end).map_err(|why| {
            let (name, place) = (param.name.clone(), place(&format!("[1][{at}]")));
            LayoutError::Argument { kernel: named(), nth: at + 1, name, why, place }
        })?;
        end = param.end();
    }
    Ok(())
}

fn size(bytes: u64) -> impl std::fmt::Display {
    ByteSize::b(bytes).display().iec()
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
