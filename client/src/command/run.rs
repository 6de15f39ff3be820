//! `pappus run`: calls a function without a supervisor that stays. What is registered is read before the supervisor starts.

use std::io::Write;
use std::path::{Path, PathBuf};

use pappus_client::Client;
use pappus_client::functions::Package;
use pappus_proto::limits::is_valid_name;

use super::invoke;
use super::own_supervisor::Supervisor;
use super::registrable::Registrable;
use crate::arguments::{InvokeArguments, RunArguments};
use crate::failure::{Failure, Result};
use crate::progress::Progress;

/// What a function is called whose file's name is no name of one.
const UNNAMED: &str = "function";

/// Starts a supervisor, adds the function, calls it as `pappus invoke` does, and ends the supervisor.
pub(crate) fn run(arguments: RunArguments, out: &mut dyn Write) -> Result<()> {
    let RunArguments { call, weights, device } = arguments;
    call.check().map_err(|why| Failure::Usage(why.to_string()))?;
    let weights: Vec<_> = weights.into_iter().map(|weight| (weight.name, weight.value)).collect();
    let config = PathBuf::from(&call.name);
    let call = InvokeArguments { name: name_of(&config), ..call };
    let all = read(&config, &call.name, &weights)?;

    let mut progress = Progress::spinner("starting a supervisor");
    let mut supervisor = Supervisor::start(&device, "pappus-run-")?;
    let mut client = supervisor.connect()?;
    let added = all.iter().try_for_each(|(name, registrable)| -> Result<()> {
        registrable.add(&mut client, name, false, &mut progress)?;
        Ok(())
    });
    drop(progress);
    let called = added.and_then(|()| invoke::run(|| Ok::<Client, Failure>(client), &call, out));
    // The supervisor's log says why it ended; the broken connection does not.
    called.map_err(|failure| supervisor.explain(failure))?;
    supervisor.stop()
}

/// The configuration, behind the functions that it runs if it is a composition.
fn read(config: &Path, name: &str, weights: &[(String, PathBuf)]) -> Result<Vec<(String, Registrable)>> {
    let registrable = Registrable::read(config, weights)?;
    let mut all = Vec::new();
    if let Registrable::Composition(composition) = &registrable {
        // What is wrong with the composition is told with its place.
        composition.link(None)?;
        for function in composition.functions() {
            let path = composition.beside(&function);
            let path = path.ok_or_else(|| {
                Failure::Refused(format!("{}: no function {function:?} is beside it", config.display()))
            })?;
            all.push((function, Registrable::Function(Box::new(Package::read(&path, &[])?))));
        }
    }
    all.push((name.to_owned(), registrable));
    Ok(all)
}

/// What the function of a file is called: the file without its extension.
fn name_of(config: &Path) -> String {
    let stem = config.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    if is_valid_name(stem) { stem.to_owned() } else { UNNAMED.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_called_as_its_file() {
        let names = ["a/mnist.v2.json", "mnist.pappus", "mnist", ".", "a/..", "a b.json"]
            .map(|path| name_of(Path::new(path)));
        assert_eq!(names, ["mnist.v2", "mnist", "mnist", "function", "function", "function"]);
    }
}
