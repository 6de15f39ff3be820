//! Which kernels a module file holds, and what they take and need as far as the file tells, without a device.

use std::path::Path;

use pappus_blueprint::Blueprint;
use pappus_blueprint::code::{CodeFormat, Kernel, Part};
use pappus_blueprint::fit::{by_name, misfits};

use crate::error::{Error, Result};
use crate::variants::VariantFile;

/// No module may be larger: the supervisor's limit.
pub(crate) const MAX_FILE_BYTES: u64 = 16 << 20;

/// Opens a module file.
pub fn of_file(file: &VariantFile) -> Result<Vec<Part>> {
    let content = file.source.read(MAX_FILE_BYTES, "a module")?;
    of_bytes(file.path(), file.format, &content)
}

fn of_bytes(path: &Path, format: &dyn CodeFormat, content: &[u8]) -> Result<Vec<Part>> {
    format.read(content).map_err(|why| Error::content(path, why.to_string()))
}

/// Compares what a blueprint launches with the kernels of one of its modules' files: all that does not fit, with its places in
/// the configuration.
pub fn check(
    blueprint: &Blueprint,
    module: usize,
    path: &Path,
    kernels: &[Kernel],
) -> Vec<pappus_blueprint::Error> {
    let mut told = vec![None; blueprint.modules().len()];
    told[module] = Some(by_name(kernels.iter().map(|kernel| &kernel.info)));
    let in_file = |misfit: pappus_blueprint::Error| pappus_blueprint::Error {
        message: format!("{}: {}", path.display(), misfit.message),
        ..misfit
    };
    misfits(blueprint, &told).map(in_file).collect()
}

#[cfg(test)]
#[path = "kernels_tests.rs"]
mod tests;
