//! `pappus completions`: what a shell needs to complete command lines. The shell asks this program for what fits, which asks the
//! supervisor where a function, a module or a device is named.

use std::ffi::OsStr;
use std::io::Write;
use std::sync::mpsc;
use std::time::Duration;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};
use pappus_client::Client;

use crate::arguments::Arguments;
use crate::failure::{Failure, Result};

/// The variable by which a shell's script asks.
const VARIABLE: &str = "COMPLETE";
const PROGRAM: &str = "pappus";
/// How long a supervisor may take to tell names, while somebody waits at a prompt.
const PATIENCE: Duration = Duration::from_millis(500);

/// Names that a supervisor tells.
type Ask = fn(&mut Client) -> pappus_client::Result<Vec<String>>;

const FUNCTIONS: Ask =
    |client| Ok(client.list_functions()?.into_iter().map(|function| function.name).collect());
const MODULES: Ask = |client| Ok(client.list_modules()?.into_iter().map(|module| module.name).collect());
const DEVICES: Ask = |client| Ok(client.status()?.devices.into_iter().map(|device| device.name).collect());

/// Where such a name stands: command, its subcommand if it has one, and argument.
const NAMED: [(&str, &str, &str, Ask); 10] = [
    ("invoke", "", "name", FUNCTIONS),
    ("function", "show", "name", FUNCTIONS),
    ("function", "remove", "name", FUNCTIONS),
    ("function", "grant", "name", FUNCTIONS),
    ("function", "revoke", "name", FUNCTIONS),
    ("function", "grants", "name", FUNCTIONS),
    ("module", "show", "name", MODULES),
    ("module", "remove", "name", MODULES),
    ("device", "show", "name", DEVICES),
    ("device", "set", "device", DEVICES),
];

/// Prints the script.
pub(crate) fn run(shell: Shell, out: &mut dyn Write) -> Result<()> {
    let shells = Shells::builtins();
    let shell = shell.to_string();
    let found = shells.completer(&shell);
    let found = found.ok_or_else(|| Failure::Usage(format!("{shell} is no shell that is known here")))?;
    Ok(found.write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, out)?)
}

/// Answers a shell that asks, in which case the command ends here.
pub(crate) fn answer() {
    CompleteEnv::with_factory(with_names).var(VARIABLE).complete();
}

/// The command line, with names that the supervisor tells.
fn with_names() -> clap::Command {
    NAMED.into_iter().fold(Arguments::command(), |all, (command, subcommand, argument, ask)| {
        // In the order in which they stand.
        let completed = |command: clap::Command| {
            command.mut_args(|one| match one.get_id() == argument {
                true => one.add(ArgValueCompleter::new(move |typed: &OsStr| offered(typed, ask))),
                false => one,
            })
        };
        all.mut_subcommand(command, |command| match subcommand {
            "" => completed(command),
            subcommand => command.mut_subcommand(subcommand, completed),
        })
    })
}

/// Names that begin with what is typed; none where the supervisor that the environment names does not tell them in time.
fn offered(typed: &OsStr, ask: Ask) -> Vec<CompletionCandidate> {
    let (tell, told) = mpsc::channel();
    // Ends with the program, whatever it waits for.
    std::thread::spawn(move || {
        tell.send(super::connect_as_told().ok().and_then(|mut client| ask(&mut client).ok()))
    });
    let names = told.recv_timeout(PATIENCE).ok().flatten().unwrap_or_default();
    let fits = |name: &String| typed.to_str().is_some_and(|typed| name.starts_with(typed));
    names.into_iter().filter(fits).map(CompletionCandidate::new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_of_a_name_is_one_of_the_command_line() {
        with_names().debug_assert();
        for (command, subcommand, argument, _) in NAMED {
            let all = Arguments::command();
            let found = all.find_subcommand(command).unwrap();
            let found =
                if subcommand.is_empty() { found } else { found.find_subcommand(subcommand).unwrap() };
            assert!(found.get_arguments().any(|one| one.get_id() == argument), "{command} {subcommand}");
        }
    }
}
