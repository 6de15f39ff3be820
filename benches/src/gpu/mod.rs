//! Measurements on a GPU, a file each, always beside the bare programs of the same run.
//!
//! - [`bed`]: the device, bare programs on it, supervisors on it.
//! - [`load`]: calls through the client library, as many at a time as asked for.

pub mod bed;
mod clearing;
mod cold;
mod endless;
mod fair;
mod fault;
mod few;
mod inference;
mod latency;
pub mod load;
mod many;
mod matmul;
mod models;
mod mps;
mod newcomers;
mod shared;
mod sparse;
mod spread;
mod tenants;
mod weights;

use std::path::Path;
use std::time::Duration;

use pappus_client::Client;

use crate::Result;
use crate::harness::functions::Form;
use crate::machine::Machine;
use crate::report::{Report, Unit};
use bed::Bed;

/// Sessions in turn: some that fit, and twice as many as fit.
const SESSIONS: [usize; 2] = [64, 170];
/// Rounds of the measurements of sessions and of functions that work together.
const SESSION_ROUNDS: u32 = 3;

/// A part of the measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// `inference` of 500 repetitions: one tenant against bare programs and the ancestors' design.
    Inference,
    /// Small calls: a matrix multiplication with 128 KiB in and out.
    Matmul,
    /// What a hot call costs beyond the device's work.
    Latency,
    /// Eight tenants by turns; turns off; bare programs by turns.
    Tenants,
    /// Nine tenants on eight workers, and nine and 32 by default settings, against eight.
    Nine,
    /// Eight tenants with few calls in flight each: turns on, off, and as the supervisor finds best.
    Few,
    /// 32 tenants that call now and then, with default settings.
    Sparse,
    /// Workers that tenants share: many tenants that call now and then, neighbours of faults, what fences cost.
    Shared,
    /// Tenants on shared workers with few calls in flight each, beside one tenant with as many.
    Crowds,
    /// Tenants that come while others are busy: their first calls, and what making processes costs the others.
    Newcomers,
    /// 256 tenants by Zipf's law, with default settings and with `tenant-switch=scrub`.
    Many,
    /// How tenants share: device time, weights, idle neighbours.
    Fair,
    /// A neighbour of kernels that never end.
    Endless,
    /// The same tenants on two GPUs and on one.
    Spread,
    /// `inference` of ten repetitions, against bare programs.
    Short,
    /// First calls of registered functions.
    Cold,
    /// Weights: of 1 GiB for a second worker and loaded again, working sets around what they may take, first calls.
    Weights,
    /// What clearing costs.
    Clearing,
    /// Calls of a session against calls that bring their state and take it back.
    Session,
    /// A chain of steps: linked, as calls of the client's, as consecutive calls of the supervisor's.
    Compose,
    /// Calls of one function side by side, against the same calls one by one.
    Batch,
    /// From a fault, and from a killed worker, to the next good answer.
    Fault,
    /// The same under MPS, with a neighbour; needs an MPS daemon.
    Mps,
    /// Packaged models beside PyTorch, on lanes and as tenants; by name only: `scripts/gpu-check models` prepares them.
    Models,
}

impl Part {
    /// Those that run where none is named.
    const ALL: [Self; 23] = [
        Self::Inference,
        Self::Matmul,
        Self::Latency,
        Self::Tenants,
        Self::Nine,
        Self::Few,
        Self::Sparse,
        Self::Shared,
        Self::Crowds,
        Self::Newcomers,
        Self::Many,
        Self::Fair,
        Self::Endless,
        Self::Spread,
        Self::Short,
        Self::Cold,
        Self::Weights,
        Self::Clearing,
        Self::Session,
        Self::Compose,
        Self::Batch,
        Self::Fault,
        Self::Mps,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Inference => "gpu-inference",
            Self::Matmul => "gpu-matmul",
            Self::Latency => "gpu-latency",
            Self::Tenants => "gpu-tenants",
            Self::Nine => "gpu-nine",
            Self::Few => "gpu-few",
            Self::Sparse => "gpu-sparse",
            Self::Shared => "gpu-shared",
            Self::Crowds => "gpu-crowds",
            Self::Newcomers => "gpu-newcomers",
            Self::Many => "gpu-many",
            Self::Fair => "gpu-fair",
            Self::Endless => "gpu-endless",
            Self::Spread => "gpu-spread",
            Self::Short => "gpu-short",
            Self::Cold => "gpu-cold",
            Self::Weights => "gpu-weights",
            Self::Clearing => "gpu-clearing",
            Self::Session => "gpu-session",
            Self::Compose => "gpu-compose",
            Self::Batch => "gpu-batch",
            Self::Fault => "gpu-fault",
            Self::Mps => "gpu-mps",
            Self::Models => "gpu-models",
        }
    }

    fn measure(self, bed: &Bed, report: &mut Report) -> Result<()> {
        match self {
            Self::Inference => inference::measure(bed, report),
            Self::Matmul => matmul::measure(bed, report),
            Self::Latency => latency::measure(bed, report),
            Self::Tenants => tenants::measure(bed, report),
            Self::Nine => tenants::nine(bed, report),
            Self::Few => few::measure(bed, report),
            Self::Sparse => sparse::measure(bed, report),
            Self::Shared => shared::measure(bed, report),
            Self::Crowds => shared::crowds::measure(bed, report),
            Self::Newcomers => newcomers::measure(bed, report),
            Self::Many => many::measure(bed, report),
            Self::Fair => fair::measure(bed, report),
            Self::Endless => endless::measure(bed, report),
            Self::Spread => spread::measure(bed, report),
            Self::Short => inference::short(bed, report),
            Self::Cold => cold::measure(bed, report),
            Self::Weights => weights::measure(bed, report),
            Self::Clearing => clearing::measure(bed, report),
            Self::Session => session(bed, report),
            Self::Compose => together(bed, report, crate::parts::together::chain),
            Self::Batch => together(bed, report, crate::parts::together::batch),
            Self::Fault => fault::measure(bed, report),
            Self::Mps => mps::measure(bed, report),
            Self::Models => models::measure(bed, report),
        }
    }
}

/// Calls of sessions on one worker, whose device has room for fewer than the most.
fn session(bed: &Bed, report: &mut Report) -> Result<()> {
    let running = bed.start("workers=1,lanes=8,memory=16GiB,states=2GiB")?;
    let mut client = running.connect()?;
    crate::parts::session::compare(&mut client, bed.form(), SESSION_ROUNDS, report)?;
    let pinned = bed.bandwidth()?;
    let many = |sessions| crate::parts::session::many(&mut client, sessions, pinned, report);
    SESSIONS.into_iter().try_for_each(many)
}

/// Functions that work together, on one worker.
fn together(
    bed: &Bed,
    report: &mut Report,
    measure: impl Fn(&mut Client, Form, u32, &mut Report) -> Result<()>,
) -> Result<()> {
    let running = bed.start("workers=1,lanes=8,memory=4GiB")?;
    measure(&mut running.connect()?, bed.form(), SESSION_ROUNDS, report)
}

/// What is tested rather than measured on a GPU; `scripts/gpu-check` runs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Suite {
    /// What every device must do.
    Conformance,
    /// No byte of a call is found by another.
    Leaks,
    /// Supervisor, workers and clients: results, faults, hangs and leaks between tenants.
    System,
    /// `pappus demo`.
    Demo,
    /// Faults of the system suite under an MPS daemon.
    MpsFaults,
    /// Several GPUs.
    Multi,
    /// Fenced kernels that reach for every address.
    Fence,
}

impl Suite {
    fn name(self) -> &'static str {
        match self {
            Self::Conformance => "gpu-conformance",
            Self::Leaks => "gpu-leaks",
            Self::System => "gpu-system",
            Self::Demo => "gpu-demo",
            Self::Fence => "gpu-fence",
            Self::MpsFaults => "gpu-mps-faults",
            Self::Multi => "gpu-multi",
        }
    }
}

/// Prints a suite's verdict and joins it to the report in `json`.
pub fn record(suite: Suite, device: &str, passed: u32, failed: &[String], json: &Path) -> Result<()> {
    let machine = Machine::describe();
    let gpu = match Bed::new(device, Duration::ZERO) {
        Ok(bed) => bed.describe(),
        // The suite says why by itself; of AMD's GPUs nothing is asked here.
        Err(_) => device.to_owned(),
    };
    let mut report = Report::new(Machine { gpu: Some(gpu), ..machine });
    report.begin(suite.name());
    report.info("tests passed", passed.into(), Unit::Count);
    report.at_most(0.0, "tests failed", failed.len() as f64, Unit::Count);
    failed.iter().for_each(|name| report.fail(name));
    report.print_from(0, &mut std::io::stdout().lock())?;
    save(&report, json)
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Everything asked for was measured, whether or not targets were met.
    Measured,
    /// A part failed; the others were measured.
    Failed,
    /// There is no such GPU here.
    NoGpu,
}

/// Measures the parts asked for (none: all) on `device`, prints them and joins them to the report in `json`.
pub fn run(device: &str, parts: &[Part], measured: Duration, json: Option<&Path>) -> Result<Ended> {
    let bed = match Bed::new(device, measured) {
        Ok(bed) => bed,
        Err(error) => {
            eprintln!("pappus-bench gpu: {error}\nNothing was measured: these parts need a GPU.");
            return Ok(Ended::NoGpu);
        }
    };
    let machine = Machine { gpu: Some(bed.describe()), ..Machine::describe() };
    println!("{machine}\n");
    let mut failed = false;
    for part in if parts.is_empty() { &Part::ALL } else { parts } {
        // A report for each part, so that what was measured is kept whatever happens to the next.
        let mut report = Report::live(machine.clone());
        report.begin(part.name());
        if let Err(error) = part.measure(&bed, &mut report) {
            let error = error.to_string();
            // A supervisor that did not start has shown its log already.
            let log = if error.contains("its log") { String::new() } else { bed.last_words() };
            report.fail(format!("{error}{log}"));
        }
        failed |= report.has_failed();
        report.end(&mut std::io::stdout().lock())?;
        if let Some(path) = json {
            save(&report, path)?;
        }
    }
    Ok(if failed { Ended::Failed } else { Ended::Measured })
}

fn save(report: &Report, path: &Path) -> Result<()> {
    let text = match std::fs::read_to_string(path) {
        Ok(earlier) => report.joined_to(&earlier),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => report.to_json(),
        Err(error) => return Err(format!("{}: {error}", path.display()).into()),
    };
    let text = text.map_err(|e| format!("{}: no earlier result of this program: {e}", path.display()))?;
    std::fs::write(path, text + "\n").map_err(|e| format!("{}: {e}", path.display()).into())
}
