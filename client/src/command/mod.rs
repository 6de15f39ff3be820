//! Which file does what the command line says. A command gets its arguments, a connection where it needs one, and
//! where to print; it returns what went wrong.

mod check;
mod completions;
mod demo;
mod drain;
mod function;
mod invoke;
mod module;
mod settings;
mod status;

use std::io::Write;
use std::path::PathBuf;

use pappus_client::Client;

use crate::arguments::{Arguments, Command};
use crate::failure::{Failure, Result};

/// Runs one command.
pub(crate) fn run(arguments: Arguments, out: &mut dyn Write) -> Result<()> {
    let connect = || connect(arguments.socket);
    match arguments.command {
        Command::Module(command) => module::run(&mut connect()?, command, out),
        Command::Function(command) => function::run(connect, command, out),
        Command::Invoke(arguments) => invoke::run(&mut connect()?, &arguments, out),
        Command::Status(json) => status::run(&mut connect()?, json, out),
        Command::Drain => drain::run(&mut connect()?, out),
        Command::Settings { change, json } => settings::run(&mut connect()?, change, json, out),
        Command::Demo { device, out: folder } => demo::run(&device, &folder, out),
        Command::Completions { shell } => completions::run(shell, out),
    }
}

fn connect(socket: Option<PathBuf>) -> Result<Client> {
    let Some(socket) = socket else {
        let message = "no socket: name the supervisor's with --socket SOCKET or PAPPUS_SOCKET=SOCKET";
        return Err(Failure::Usage(message.into()));
    };
    Ok(Client::connect(socket)?)
}
