//! A supervisor of the command's own, for `pappus demo` and `pappus run`: a child process with everything it owns in a temporary
//! folder, killed and reaped when the command ends, also with an error.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use pappus_client::{Client, Error};
use rustix::process::{Pid, Signal, kill_process};

use crate::failure::{Failure, Result};
use crate::scratch::Scratch;

const PROGRAM: &str = "pappus-supervisor";
/// How long it may take to answer: a GPU's driver can take seconds to start.
const START: Duration = Duration::from_secs(60);
/// How long it may take to end once it was asked to.
const STOP: Duration = Duration::from_secs(10);
/// How often the process is polled meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Lines of its log that an error shows.
const LOG_LINES: usize = 20;

/// A running supervisor. Its folder holds the socket, the state and the log.
pub(super) struct Supervisor {
    child: Child,
    folder: Scratch,
}

impl Supervisor {
    /// Starts it, in a folder whose name begins like this.
    pub(super) fn start(device: &str, prefix: &str) -> Result<Self> {
        let folder = Scratch::new(prefix);
        let folder = folder.map_err(Error::file(&std::env::temp_dir()))?;
        let log = folder.path().join("log");
        let log = File::create(&log).map_err(Error::file(&log))?;
        let program = program();
        let mut command = Command::new(&program);
        command
            .arg("--socket")
            .arg(folder.path().join("pappus.sock"))
            .arg("--state-dir")
            .arg(folder.path().join("state"))
            .args(["--device", device])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let child = folder.spawn(&mut command).map_err(|error| {
            Failure::Refused(format!(
                "cannot start {}: {error}; build it with `cargo build --release`, which puts it beside this program, or put its \
                 folder into PATH",
                program.display()
            ))
        })?;
        Ok(Self { child, folder })
    }

    /// Connects once it listens; an error with its log if it ends first. Nothing has run until then.
    pub(super) fn connect(&mut self) -> Result<Client> {
        self.wait_until_it_answers().map_err(|failure| match failure {
            Failure::Failed(why) => Failure::Refused(why),
            failure => failure,
        })
    }

    fn wait_until_it_answers(&mut self) -> Result<Client> {
        let end = Instant::now() + START;
        loop {
            match Client::connect_within(self.folder.path().join("pappus.sock"), LOOK_EVERY) {
                Err(Error::Unreachable { .. } | Error::Silent { .. }) if Instant::now() < end => {}
                Err(error) => return Err(self.explain(error.into())),
                Ok(mut client) => {
                    client.set_patience(START);
                    return match client.status() {
                        Ok(_) => Ok(client),
                        Err(error) => Err(self.explain(error.into())),
                    };
                }
            }
            if let Some(status) = self.ended(Duration::ZERO) {
                return Err(self.died(status));
            }
        }
    }

    /// Where everything is that goes with it.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The same failure, or the death of the supervisor, if that is why.
    pub(super) fn explain(&mut self, failure: Failure) -> Failure {
        match failure {
            Failure::Library(Error::Lost | Error::Unreachable { .. }) => match self.ended(STOP) {
                Some(status) => self.died(status),
                None => failure,
            },
            failure => failure,
        }
    }

    /// Asks it to end as an orchestrator would, and waits until it has.
    pub(super) fn stop(mut self) -> Result<()> {
        // Ended and reaped children are not signalled: `ended` has just seen this one alive.
        if self.ended(Duration::ZERO).is_none() {
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        }
        match self.ended(STOP) {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(self.died(status)),
            None => {
                Err(Failure::Failed(format!("{PROGRAM} did not end within {} s of SIGTERM", STOP.as_secs())))
            }
        }
    }

    /// The supervisor's exit status, if it ends in time.
    fn ended(&mut self, patience: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + patience;
        loop {
            match self.folder.try_wait(&mut self.child) {
                Ok(Some(status)) => return Some(status),
                _ if Instant::now() >= end => return None,
                _ => std::thread::sleep(LOOK_EVERY),
            }
        }
    }

    fn died(&self, status: ExitStatus) -> Failure {
        let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n  ");
        Failure::Failed(format!("{PROGRAM} ended ({status}); its log ends with:\n  {last}"))
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // Both fail only where it has ended and been reaped already.
        let _ = self.child.kill();
        let _ = self.folder.wait(&mut self.child);
    }
}

/// The program beside this one, as cargo and packages install them; otherwise the one that PATH leads to.
fn program() -> PathBuf {
    let beside = std::env::current_exe().map(|exe| exe.with_file_name(PROGRAM));
    beside.ok().filter(|path| path.exists()).unwrap_or_else(|| PROGRAM.into())
}
