//! `pappus kernel`: for authors of kernels, without a supervisor and outside of Pappus' own sources.
//!
//! - [`new`]: a function to begin with.
//! - [`build`]: a source of kernels becomes module files.
//! - [`toolchain`]: the compiler and linkers, found and run.
//! - [`signature`]: what kernels take, from the object that the compiler makes for the CPU device.

mod build;
mod new;
mod signature;
mod toolchain;

use std::io::Write;

use crate::arguments::KernelCommand;
use crate::failure::Result;

/// Makes or builds.
pub(crate) fn run(command: KernelCommand, out: &mut dyn Write) -> Result<()> {
    match command {
        KernelCommand::New(arguments) => new::run(&arguments, out),
        KernelCommand::Build(arguments) => build::run(&arguments, out),
    }
}
