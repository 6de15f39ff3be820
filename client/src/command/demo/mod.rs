//! `pappus demo`: a supervisor of its own, three workloads checked against plain Rust, where their time went, and
//! pictures to look at.

mod expected;
mod layout;
mod pictures;
mod workloads;

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use pappus_client::functions::Package;
use pappus_client::{Client, Error, Invocation, v1};

use super::own_supervisor::Supervisor;
use crate::failure::{Failure, Result};
use crate::progress::Progress;
use crate::stages;
use crate::units::nanoseconds;
use expected::Expected;

/// Calls after the first, of which the median is shown.
const HOT_CALLS: usize = 20;
/// Far more than any call needs; a call that hangs becomes an error instead of a demo that hangs.
const DEADLINE: Duration = Duration::from_secs(60);

/// Follows a line that puts this program into PATH.
const NEXT: &str = "  export PAPPUS_SOCKET=/tmp/pappus.sock
  pappus function check kernels/configs/inference.json   what a function is made of
  pappus function add inference kernels/configs/inference.json
  pappus status                                          what the workers are doing
  pappus invoke --help                                   your own data";

/// A function with inputs and what they must give.
struct Workload {
    function: &'static str,
    title: String,
    inputs: Vec<Input>,
    expected: Vec<Expected>,
}

/// An array that a function is given.
struct Input {
    name: &'static str,
    dtype: &'static str,
    shape: Vec<u64>,
    bytes: Vec<u8>,
}

impl Input {
    fn new(name: &'static str, dtype: &'static str, shape: &[u64], bytes: Vec<u8>) -> Self {
        Self { name, dtype, shape: shape.to_vec(), bytes }
    }
}

/// Runs everything; fails if any result is not what it must be.
pub(crate) fn run(device: &str, folder: &Path, out: &mut dyn Write) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|why| not_there(Error::file(folder)(why).into()))?;
    let progress = Progress::spinner("starting a supervisor");
    let mut supervisor = Supervisor::start(device, "pappus-demo-")?;
    layout::write(supervisor.folder())?;
    let mut client = supervisor.connect()?;
    drop(progress);
    writeln!(out, "Started pappus-supervisor with --device {device}\n")?;

    let mut wrong = Vec::new();
    for workload in workloads::all()? {
        let outcome =
            register(&mut client, &supervisor, &workload).and_then(|()| call(&mut client, &workload));
        // The supervisor's log says why it ended; the broken connection does not.
        let outcome = outcome.map_err(|failure| supervisor.explain(failure))?;
        if !report(&workload, &outcome, out)? {
            wrong.push(workload.function);
        }
        pictures::save(&workload, &outcome.outputs, folder, out).map_err(not_there)?;
        writeln!(out)?;
    }
    drop(client);
    supervisor.stop()?;

    if !wrong.is_empty() {
        return Err(Failure::Failed(format!("wrong results from {}", wrong.join(", "))));
    }
    let program = std::env::current_exe().unwrap_or_default();
    let program = program.parent().unwrap_or(Path::new("")).display();
    writeln!(out, "All results are right.\n\nWhat to try next:\n  export PATH={program}:$PATH")?;
    let start = "pappus-supervisor --socket /tmp/pappus.sock --state-dir ~/.local/state/pappus";
    Ok(writeln!(out, "  {start} --device {device} &\n{NEXT}")?)
}

/// A folder or file that cannot be written.
fn not_there(failure: Failure) -> Failure {
    match failure {
        Failure::Library(why @ Error::File { .. }) => {
            Failure::Refused(format!("{why}; name another folder with --out DIR"))
        }
        other => other,
    }
}

/// The result of a workload.
struct Outcome {
    device: String,
    /// In the order the workload expects them.
    outputs: Vec<Vec<u8>>,
    first: v1::Timings,
    /// The median call of those that followed.
    hot: v1::Timings,
}

fn register(client: &mut Client, supervisor: &Supervisor, workload: &Workload) -> Result<()> {
    let package = Package::read(&layout::config(supervisor.folder(), workload.function), &[])?;
    let mut progress = Progress::spinner("registering");
    package.add(client, workload.function, false, &mut |step| progress.step(step))?;
    Ok(())
}

fn call(client: &mut Client, workload: &Workload) -> Result<Outcome> {
    let sizes = workload.inputs.iter().map(|input| input.bytes.len());
    let sizes = sizes.chain(workload.expected.iter().map(|expected| expected.bytes.len()));
    let bytes = sizes.map(|bytes| pappus_client::arena::aligned(bytes as u64)).sum();
    let mut arena = client.open_arena(bytes)?;
    let mut invocation = Invocation::new(workload.function).deadline(DEADLINE);
    for Input { name, dtype, shape, bytes } in &workload.inputs {
        invocation = invocation.input(name, arena.store(bytes)?).typed(name, dtype, shape);
    }
    let mut regions = Vec::new();
    for expected in &workload.expected {
        let region = arena.alloc(expected.bytes.len() as u64)?;
        invocation = invocation.output_to(expected.output, region);
        regions.push(region);
    }

    let first = client.invoke(&invocation)?;
    let mut hot = Vec::with_capacity(HOT_CALLS);
    for _ in 0..HOT_CALLS {
        hot.push(client.invoke(&invocation)?.timings.unwrap_or_default());
    }
    hot.sort_unstable_by_key(|timings| timings.total_ns);
    let outputs =
        regions.into_iter().map(|region| arena.load(region)).collect::<pappus_client::Result<_>>()?;
    client.close_arena(arena)?;
    Ok(Outcome {
        device: first.device,
        outputs,
        first: first.timings.unwrap_or_default(),
        hot: hot[HOT_CALLS / 2],
    })
}

/// Shows a workload's results and times; whether the results are right.
fn report(workload: &Workload, outcome: &Outcome, out: &mut dyn Write) -> Result<bool> {
    let bold = Style::new().bold();
    writeln!(out, "{bold}{}{bold:#} on {}", workload.title, outcome.device)?;
    let mut right = true;
    for (expected, got) in workload.expected.iter().zip(&outcome.outputs) {
        let verdict = expected.compare(got);
        right &= verdict.right;
        let (mark, colour) = if verdict.right { ("✓", AnsiColor::Green) } else { ("✗", AnsiColor::Red) };
        let style = Style::new().fg_color(Some(colour.into()));
        writeln!(out, "  {style}{mark}{style:#} {}: {}", expected.output, verdict.words)?;
    }
    writeln!(out, "  first call {}, then:", nanoseconds(outcome.first.total_ns))?;
    stages::print(&outcome.hot, stages::OTHER, out)?;
    Ok(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_cannot_be_written_is_refused_with_the_option_for_another() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let why = run("cpu", &file.path().join("pictures"), &mut Vec::new()).unwrap_err().to_string();
        assert!(why.ends_with("; name another folder with --out DIR"), "{why}");
    }
}
