//! The commands, a file each. A command gets its arguments, a connection where it needs one, and a stream to print to;
//! it returns its error.

mod apply;
mod bench;
mod check;
pub(crate) mod completions;
mod demo;
mod device;
mod drain;
mod function;
mod invoke;
mod kernel;
mod man;
mod module;
mod module_file;
mod own_supervisor;
mod package;
mod plan;
mod quota;
mod registrable;
mod reload;
mod run;
mod settings;
mod sharing;
mod status;
mod tenants;
mod token;
mod top;
mod verdict;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pappus_client::{Client, Code, Error};

use crate::arguments::{Arguments, Command};
use crate::failure::{Failure, Result};

/// Where the supervisor of a system package listens.
const SYSTEM_SOCKET: &str = "/run/pappus/pappus.sock";

/// Runs one command.
pub(crate) fn run(arguments: Arguments, out: &mut dyn Write) -> Result<()> {
    let (socket, token_file) = told(arguments.socket, arguments.token_file);
    let patience = arguments.patience.unwrap_or_else(|| arguments.command.patience());
    let waits = Waits { patience, for_one_to_come: arguments.patience.is_some() };
    let connect = || connect(socket.as_deref(), token_file.as_deref(), waits);
    let admin = |result, command| hint_at_admin(result, socket.as_deref(), command);
    match arguments.command {
        Command::Module(command) => module::run(connect, command, out),
        Command::Function(command) => function::run(connect, command, out),
        Command::Apply(arguments) => apply::run(connect, &arguments, out),
        Command::Run(arguments) => run::run(arguments, out),
        Command::Invoke(arguments) => invoke::run(connect, &arguments, out),
        Command::Bench(arguments) => {
            bench::run(socket.as_deref(), token_file.as_deref(), connect, &arguments, out)
        }
        Command::Status(arguments) => status::run(&mut connect()?, &arguments, out),
        Command::Top(arguments) => top::run(connect, &arguments, out),
        Command::Quota(json) => quota::run(&mut connect()?, json, out),
        Command::Tenants(json) => admin(tenants::run(&mut connect()?, json, out), "tenants"),
        Command::Kernel(command) => kernel::run(command, out),
        Command::Package(command) => package::run(command, socket.as_deref(), token_file.as_deref()),
        Command::Plan(arguments) => plan::run(&arguments, out),
        Command::Token { output, force } => token::run(output.as_deref(), force, out),
        Command::Device(command) => admin(device::run(&mut connect()?, command, out), "device …"),
        Command::Reload(json) => admin(reload::run(&mut connect()?, json, out), "reload"),
        Command::Drain => admin(drain::run(&mut connect()?, out), "drain"),
        Command::Settings { change, json } => {
            admin(settings::run(&mut connect()?, change, json, out), "settings …")
        }
        Command::Demo { device, out: folder } => demo::run(&device, &folder, out),
        Command::Completions { shell } => completions::run(shell, out),
        Command::Version => Ok(writeln!(out, "pappus {}", pappus_version::VERSION)?),
        Command::Man { folder } => man::run(&folder),
    }
}

/// How long a supervisor is waited for.
#[derive(Clone, Copy)]
struct Waits {
    /// For each of its answers.
    patience: Duration,
    /// True if that holds for one that does not listen yet, too.
    for_one_to_come: bool,
}

/// The socket and the token file: those of the command line, or else what the environment names.
fn told(socket: Option<PathBuf>, token_file: Option<PathBuf>) -> (Option<PathBuf>, Option<PathBuf>) {
    let system = || Some(PathBuf::from(SYSTEM_SOCKET)).filter(|path| path.exists());
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let socket = socket.or_else(|| set("PAPPUS_SOCKET")).or_else(system);
    (socket, token_file.or_else(|| set("PAPPUS_TOKEN_FILE")))
}

/// Connects to the supervisor that the environment names, for a shell that completes a word and whose user waits.
fn connect_as_told() -> Result<Client> {
    let (socket, token_file) = told(None, None);
    let waits = Waits { patience: Duration::from_millis(500), for_one_to_come: false };
    connect(socket.as_deref(), token_file.as_deref(), waits)
}

fn connect(socket: Option<&Path>, token_file: Option<&Path>, waits: Waits) -> Result<Client> {
    let Some(socket) = socket else {
        let message = format!(
            "no socket: name the supervisor's with --socket SOCKET or PAPPUS_SOCKET=SOCKET; there is none at \
             {SYSTEM_SOCKET}"
        );
        return Err(Failure::Usage(message));
    };
    let mut client = match waits.for_one_to_come {
        true => Client::connect_within(socket, waits.patience)?,
        false => Client::connect_once(socket, waits.patience)?,
    };
    if let Some(path) = token_file {
        let token = std::fs::read_to_string(path)
            .map_err(|error| Failure::Refused(format!("token file {}: {error}", path.display())))?;
        client.act_for(token.trim().as_bytes())?;
    }
    Ok(client)
}

/// An error that says to use the admin socket is followed by the command to type.
fn hint_at_admin(result: Result<()>, socket: Option<&Path>, command: &str) -> Result<()> {
    match (result, socket) {
        (Err(Failure::Library(Error::Refused(error))), Some(socket))
            if error.code() == Code::PermissionDenied
                && socket.extension().is_none_or(|extension| extension != "admin") =>
        {
            let socket = socket.display();
            Err(Failure::Refused(format!("{error}: try pappus --socket {socket}.admin {command}")))
        }
        (result, _) => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pappus_client::v1;

    #[test]
    fn a_command_that_needs_the_admin_socket_names_it() {
        let refused = |code| Err(Error::Refused(v1::Error::new(code, "no")).into());
        let hint = |code, socket: &str| {
            hint_at_admin(refused(code), Some(Path::new(socket)), "drain").unwrap_err().to_string()
        };
        let why = hint(Code::PermissionDenied, "/run/p.sock");
        assert!(why.ends_with(": try pappus --socket /run/p.sock.admin drain"), "{why}");
        assert!(!hint(Code::PermissionDenied, "/run/p.sock.admin").contains("try"));
        assert!(!hint(Code::Internal, "/run/p.sock").contains("try"));
        assert!(hint_at_admin(Ok(()), None, "drain").is_ok());
    }
}
