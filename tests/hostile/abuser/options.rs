//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use super::Result;
use super::grammar::Part;

pub(crate) const USAGE: &str = "\
usage: pappus-abuser --supervisor PROGRAM [OPTION VALUE]...

  --supervisor PROGRAM   the supervisor to abuse; its worker lies beside it
  --seconds N            how long it is abused [300; 20 with --controls, each time]
  --round N              how long until it is judged, each time [60, or a third of --seconds]
  --seed N               decides everything that is decided here [1]
  --workers N            1 to 3 [2]
  --switch HOW           replace or scrub [replace; scrub with --controls]
  --quotas WHICH         tight or default [tight]
  --parts NAME[,NAME]    parts of the grammar [all]
  --judge HOW            all, or steady: without the honest tenants' latency, and with more patience, where the machine is busy [all]
  --without NAME         a defence to switch off; the supervisor must be built with test-hooks
  --controls NAME        all, or a defence: whether the run without it is judged bad, and the one with it good
  --json FILE            where the report goes, for programs

Exit codes: 0 good, 1 bad, 2 usage, 3 failed.
";

/// What this process is to be.
#[derive(Debug)]
pub(crate) enum Mode {
    /// It says how it is used.
    Help,
    /// It starts everything and judges.
    Run(Options),
    /// It abuses.
    Actor(Actor),
}

/// How a run is to be.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) supervisor: PathBuf,
    pub(crate) seconds: u64,
    pub(crate) round: Duration,
    pub(crate) seed: u64,
    pub(crate) workers: u64,
    pub(crate) switch: String,
    /// True if tenants have small quotas.
    pub(crate) tight: bool,
    pub(crate) parts: Vec<Part>,
    /// True if latencies are judged.
    pub(crate) latency: bool,
    /// The defence that is off.
    pub(crate) without: Option<String>,
    pub(crate) controls: Option<String>,
    pub(crate) json: Option<PathBuf>,
}

/// What a process that abuses is told.
#[derive(Debug)]
pub(crate) struct Actor {
    pub(crate) socket: PathBuf,
    /// The tenant by token; none if the actor's uid is the tenant.
    pub(crate) tenant: Option<String>,
    /// The uid that the actor becomes.
    pub(crate) uid: Option<u32>,
    pub(crate) seed: u64,
    pub(crate) workers: u64,
    pub(crate) parts: Vec<Part>,
}

/// Reads the command line: `actor`, or not, then pairs of names and values.
pub(crate) fn parse(arguments: &[String]) -> Result<Mode> {
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        return Ok(Mode::Help);
    }
    let (is_actor, pairs) = match arguments.split_first() {
        Some((first, rest)) if first == "actor" => (true, rest),
        _ => (false, arguments),
    };
    let mut given = std::collections::HashMap::new();
    for pair in pairs.chunks(2) {
        let [name, value] = pair else { return Err(format!("{} has no value", pair[0]).into()) };
        given.insert(name.as_str(), value.as_str());
    }
    let mut take = |name: &str| given.remove(name);
    let parts = parts(take("--parts"))?;
    let seed = number(take("--seed"), 1)?;
    let workers = number(take("--workers"), 2)?;
    let mode = if is_actor {
        Mode::Actor(Actor {
            socket: take("--socket").ok_or("--socket is missing")?.into(),
            tenant: take("--tenant").map(str::to_owned),
            uid: take("--uid").map(str::parse).transpose()?,
            seed,
            workers,
            parts,
        })
    } else {
        let controls = take("--controls").map(str::to_owned);
        // Where no processes are started for honest tenants, their latency is bounded closest.
        let switches = if controls.is_some() { ["scrub", "replace"] } else { ["replace", "scrub"] };
        let seconds = number(take("--seconds"), if controls.is_some() { 20 } else { 300 })?;
        let round = number(take("--round"), (seconds / 3).clamp(1, 60))?;
        Mode::Run(Options {
            // It is started in a folder of its own.
            supervisor: PathBuf::from(take("--supervisor").ok_or("--supervisor is missing")?)
                .canonicalize()?,
            seconds,
            round: Duration::from_secs(round.max(1)),
            seed,
            workers,
            switch: one_of(take("--switch"), switches)?,
            tight: one_of(take("--quotas"), ["tight", "default"])? == "tight",
            parts,
            latency: one_of(take("--judge"), ["all", "steady"])? == "all",
            without: take("--without").map(str::to_owned),
            controls,
            json: take("--json").map(Into::into),
        })
    };
    match given.keys().next() {
        Some(name) => Err(format!("{name} is no option").into()),
        None => Ok(mode),
    }
}

fn number(given: Option<&str>, default: u64) -> Result<u64> {
    match given {
        None => Ok(default),
        Some(text) => text.parse().map_err(|_| format!("{text} is no number").into()),
    }
}

/// One of two words; the first is the default.
fn one_of(given: Option<&str>, words: [&str; 2]) -> Result<String> {
    match given {
        None => Ok(words[0].to_owned()),
        Some(word) if words.contains(&word) => Ok(word.to_owned()),
        Some(word) => Err(format!("{word}: expected {} or {}", words[0], words[1]).into()),
    }
}

fn parts(given: Option<&str>) -> Result<Vec<Part>> {
    let Some(names) = given else { return Ok(Part::ALL.to_vec()) };
    let part = |name: &str| Part::named(name).ok_or_else(|| format!("the grammar has no part {name}").into());
    names.split(',').map(part).collect()
}
