//! The `pappus` command: parses its arguments, runs one command, and maps its failure to an exit code.
//!
//! In reading order:
//! - [`arguments`]: everything that can be written on the command line.
//! - [`command`]: one file per command.
//! - [`capacity`]: what tenants take of a GPU's memory.
//! - [`failure`]: what can go wrong, and the exit code it means.
//! - [`input`]: input files, and what a blueprint wants to know about them.
//! - [`picture`]: what files hold, by their names; PNG pictures as arrays.
//! - [`target`]: what kernels are compiled for.
//! - [`scratch`]: a folder for other programs, which a signal does not leave behind.
//! - [`stages`], [`table`], [`units`], [`json`], [`progress`]: how results are shown.

#![forbid(unsafe_code)]

mod arguments;
mod capacity;
mod command;
mod failure;
mod input;
mod json;
mod picture;
mod progress;
mod scratch;
mod stages;
mod table;
mod target;
mod units;

use std::io::Write;
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use clap::Parser;

use crate::arguments::Arguments;

fn main() -> ExitCode {
    command::completions::answer();
    let arguments = Arguments::parse();
    match command::run(arguments, &mut anstream::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if failure.is_closed_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            let red = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
            // A closed stderr hears nothing; the exit code still tells.
            let _ = writeln!(anstream::stderr(), "{red}error:{red:#} {failure}");
            failure.exit_code()
        }
    }
}
