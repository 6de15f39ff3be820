//! `pappus-worker ROLE --device KIND …`: started by the supervisor, with its channels at fixed descriptors.

use std::io::Write;
use std::process::ExitCode;

use pappus_protocol::launch::Arguments;
use pappus_worker::{backends, launch};

fn main() -> ExitCode {
    pappus_worker::end_on_panic();
    launch::take_signals();
    // It may have been started by a number of its file, which would be shown as its name.
    let _ = rustix::thread::set_name(c"pappus-worker");
    let arguments = std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned());
    let arguments: Vec<_> = arguments.collect();
    if let Some(answer) = asked(&arguments) {
        // A reader that has gone asks no more.
        let _ = writeln!(std::io::stdout(), "{answer}");
        return ExitCode::SUCCESS;
    }
    let arguments = match Arguments::parse(&arguments) {
        Ok(arguments) => arguments,
        Err(bad) => {
            pappus_worker::log(format_args!("{bad}"));
            return ExitCode::from(2);
        }
    };
    match (backends::of(arguments.kind).run)(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            pappus_worker::log(format_args!("{error}"));
            ExitCode::FAILURE
        }
    }
}

/// The answer to somebody who is no supervisor.
fn asked(arguments: &[String]) -> Option<String> {
    match arguments {
        [only] if only == "--version" || only == "-V" => {
            Some(format!("pappus-worker {}", pappus_version::VERSION))
        }
        [only] if only == "--help" || only == "-h" => Some(format!(
            "The sandboxed process that runs calls on one device, compiles one module, looks for devices, or says what they measure.\n\
             pappus-supervisor starts it and must lie in the same folder; it is of no use by itself.\n\n{}",
            Arguments::USAGE
        )),
        _ => None,
    }
}
