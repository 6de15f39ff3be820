//! Which kernels a module file holds, and what they take and need as far as the file tells, without a device.

use std::path::Path;

use pappus_blueprint::code::{CodeFormat, Kernel, Part};
use pappus_blueprint::{Blueprint, PassedParam, hints};

use crate::error::{Error, Result};
use crate::variants::VariantFile;

/// No module may be larger: the supervisor's limit.
const MAX_FILE_BYTES: u64 = 16 << 20;

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
    let mut misfits = Vec::new();
    let mut misfit = |place: String, message: String| {
        misfits.push(pappus_blueprint::Error::new(place, format_args!("{}: {message}", path.display())));
    };
    let named = |symbol: &str| kernels.iter().map(|kernel| &kernel.info).find(|kernel| kernel.name == symbol);
    let of_module = blueprint.kernels().iter().enumerate().filter(|(_, kernel)| kernel.module == module);
    for (at, kernel) in of_module.filter(|(_, kernel)| named(&kernel.symbol).is_none()) {
        let there = kernels.iter().map(|kernel| kernel.info.name.as_str());
        let near = hints::nearest(&kernel.symbol, there.clone());
        let (module, symbol) = (&blueprint.modules()[module].name, &kernel.symbol);
        let there = hints::listed(there);
        misfit(
            format!("kernels[{at}]"),
            format!("module {module} has no kernel {symbol:?}{near}; it has {there}"),
        );
    }
    for launch in blueprint.launches() {
        let kernel = &blueprint.kernels()[launch.kernel];
        let declared = named(&kernel.symbol).filter(|_| kernel.module == module);
        let Some(params) = declared.and_then(|declared| declared.params.as_ref()) else { continue };
        let (name, place) = (&kernel.name, launch.place());
        let passed: Vec<PassedParam> = launch.params().collect();
        if passed.len() != params.len() {
            let (takes, passed) = (params.len(), passed.len());
            let message = format!("kernel {name:?} takes {takes} arguments, the blueprint passes {passed}");
            misfit(format!("{place}[1]"), message);
            continue;
        }
        let mut end = 0;
        for (at, (param, passed)) in params.iter().zip(passed).enumerate() {
            let checked = param.check(passed, end);
            end = param.end();
            let Err(why) = checked else { continue };
            let argument = hints::argument(at + 1, &param.name);
            misfit(format!("{place}[1][{at}]"), format!("kernel {name:?}, {argument}: {why}"));
        }
    }
    misfits
}

#[cfg(test)]
#[path = "kernels_tests.rs"]
mod tests;
