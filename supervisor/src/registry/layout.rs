//! What the compiler found in a module against what a blueprint does with it, and against what a device allows. Pure.

use std::borrow::Cow;
use std::sync::Arc;

use bytesize::ByteSize;
use pappus_blueprint::fit::{by_name, misfits};
use pappus_blueprint::kernel_info::CodeInfo;
use pappus_blueprint::{Blueprint, Kernel};

use crate::refusal::{Reason, Refusable};

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
    /// It does something else than its modules.
    #[error("{}", .0.message)]
    Misfit(pappus_blueprint::Error),
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
}

impl Refusable for LayoutError {
    fn reason(&self) -> Reason {
        match self {
            Self::Stack { .. } => Reason::OutOfMemory,
            Self::Misfit(_) => Reason::InvalidArgument,
        }
    }

    fn place(&self) -> Cow<'_, str> {
        match self {
            Self::Stack { kernel, .. } => format!("kernel {kernel}").into(),
            Self::Misfit(misfit) => misfit.path.as_str().into(),
        }
    }
}

/// Checks a blueprint against the machine code of its modules, in its order, as far as it is known.
pub fn check(
    blueprint: &Blueprint,
    codes: &[Option<Arc<CodeInfo>>],
    place: DeviceLimits<'_>,
) -> Result<(), LayoutError> {
    let told: Vec<_> = codes.iter().map(|code| code.as_ref().map(|code| by_name(&code.kernels))).collect();
    if let Some(misfit) = misfits(blueprint, &told).next() {
        return Err(LayoutError::Misfit(misfit));
    }
    let Some(limit) = place.stack_bytes else { return Ok(()) };
    let info_of = |kernel: &Kernel| told[kernel.module].as_ref()?.get(kernel.symbol.as_str()).copied();
    let found = blueprint.kernels().iter().filter_map(|kernel| Some((kernel, info_of(kernel)?)));
    match found.into_iter().find(|(_, info)| info.stack_bytes > limit) {
        None => Ok(()),
        Some((kernel, info)) => Err(LayoutError::Stack {
            kernel: kernel.name.clone(),
            local_bytes: info.local_bytes,
            stack_bytes: info.stack_bytes,
            limit,
            devices: place.devices.to_owned(),
        }),
    }
}

fn size(bytes: u64) -> impl std::fmt::Display {
    ByteSize::b(bytes).display().iec()
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
