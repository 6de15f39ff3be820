//! A randomised abuser: processes that send a supervisor whatever its sockets take, composed from a grammar by a seed,
//! beside three honest tenants and an operator who are measured. The run is bad where the honest tenants' answers, the
//! operator's, or what the supervisor holds leave the bounds of [`judge`].
//!
//! ```text
//!            this process                                  processes of its own
//!   honest ──answers, latencies──┐
//! operator ──status, quotas──────┼──► judge ──► report      actor ◄── grammar (seed)
//!    /proc ──memory, descriptors─┘                            └──bytes, descriptors──► supervisor
//! ```
//!
//! What can be sent:
//! - [`grammar`]: parts, each a way to ask for much with little, and the steps that they are composed of.
//! - [`requests`]: requests as bytes. [`descriptors`]: what comes with them. [`functions`]: what is called.
//!
//! Who is there:
//! - [`actor`]: a process that abuses, over [`connection`]s. [`honest`]: tenants that do not.
//! - [`supervisor`]: the supervisor, started for the run. [`watch`]: the operator, who also looks at `/proc`.
//!
//! What becomes of it:
//! - [`run`]: one run from start to end. [`judge`]: pure. [`report`]: for people and programs.
//! - [`controls`]: every defence switched off, and the judgement that must notice.

#![forbid(unsafe_code)]

mod actor;
mod connection;
mod controls;
mod descriptors;
mod functions;
mod grammar;
mod honest;
mod judge;
mod options;
mod report;
mod requests;
mod run;
mod supervisor;
mod watch;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use options::{Mode, Options};

/// Whatever fails outside of what is judged.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match options::parse(&arguments) {
        Ok(Mode::Help) => {
            print!("{}", options::USAGE);
            return ExitCode::SUCCESS;
        }
        Ok(Mode::Actor(actor)) => actor::live(&actor).map(|()| true),
        Ok(Mode::Run(options)) => start(&options),
        Err(why) => {
            eprintln!("pappus-abuser: {why}\n\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("pappus-abuser: {why}");
            ExitCode::from(3)
        }
    }
}

/// Waits; a thread that is woken early waits on.
fn rest(time: Duration) {
    let until = Instant::now() + time;
    while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
}

/// Runs, and says whether all was good.
fn start(options: &Options) -> Result<bool> {
    if let Some(wanted) = &options.controls {
        return controls::run(options, wanted);
    }
    let outcome = run::run(options)?;
    report::print(&outcome);
    if let Some(path) = &options.json {
        std::fs::write(path, format!("{:#}\n", report::json(&outcome)))?;
    }
    Ok(outcome.is_good())
}
