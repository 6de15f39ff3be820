//! `pappus completions`: a completion script, made from the definition of the command line.

use std::io::Write;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::arguments::Arguments;
use crate::failure::Result;

/// Prints the script.
pub(crate) fn run(shell: Shell, out: &mut dyn Write) -> Result<()> {
    // The generator panics where it cannot write; a pipe may close at any time.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "pappus", &mut script);
    Ok(out.write_all(&script)?)
}
