//! `pappus package`: what is done to packages where they are used. The work is Python's, in the package `pappus`: here a Python
//! that has it is found, and becomes this process.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::arguments::{PackageCommand, PackageTuneArguments};
use crate::failure::{Failure, Result};

/// The variable that names a Python, and the one that is taken without it.
const VARIABLE: &str = "PAPPUS_PYTHON";
const PYTHON: &str = "python3";

/// Runs the command; returns only if it cannot be.
pub(crate) fn run(command: PackageCommand, socket: Option<&Path>, token_file: Option<&Path>) -> Result<()> {
    let PackageCommand::Tune(arguments) = command;
    let python = find()?;
    let mut tune = Command::new(&python);
    tune.args(["-m", "pappus.package", "tune"]).args(options(&arguments));
    // It calls this program, whatever is on PATH.
    let this = std::env::current_exe()
        .map_err(|error| Failure::Refused(format!("this program's own file cannot be found: {error}")))?;
    tune.arg("--pappus").arg(this);
    if let Some(socket) = socket {
        tune.arg("--socket").arg(socket);
    }
    if let Some(file) = token_file {
        tune.env("PAPPUS_TOKEN_FILE", file);
    }
    // Behind `--`, names may begin with a dash.
    let error = tune.arg("--").arg(&arguments.package).exec();
    Err(Failure::Refused(format!("{} cannot be run: {error}", python.display())))
}

fn options(arguments: &PackageTuneArguments) -> Vec<OsString> {
    let mut given: Vec<OsString> = vec![
        format!("--device={}", arguments.device).into(),
        format!("--repeat={}", arguments.repeat).into(),
    ];
    if arguments.json.json {
        given.push("--json".into());
    }
    given
}

/// A Python that has `pappus.package`; an error says what to install.
fn find() -> Result<OsString> {
    let named = std::env::var_os(VARIABLE).filter(|python| !python.is_empty());
    let is_named = named.is_some();
    let python = named.unwrap_or_else(|| PYTHON.into());
    let shown = python.display();
    let missing = |why: String| {
        let instead =
            if is_named { "" } else { &format!(", or name a Python that has it with {VARIABLE}=PYTHON") };
        Failure::Refused(format!(
            "packages are tuned by Python's package pappus, and {why}: install it with `{shown} -m pip install ./python`, in \
             Pappus' sources{instead}"
        ))
    };
    let probe =
        Command::new(&python).args(["-c", "import pappus.package.tune"]).stdin(Stdio::null()).output();
    let output = probe.map_err(|error| missing(format!("{shown} cannot be run ({error})")))?;
    if output.status.success() {
        return Ok(python);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.trim_end().lines().last().unwrap_or("it ended with an error").trim();
    Err(missing(format!("{shown} does not have it ({last})")))
}
