//! `pappus-bench`: parses, measures part by part, prints.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use pappus_benches::bare::program;
use pappus_benches::gpu::{self, Ended};
use pappus_benches::harness::pipes;
use pappus_benches::machine::Machine;
use pappus_benches::parts::{self, Part, sandbox};
use pappus_benches::report::Report;
use pappus_benches::simulator::cli as simulator;

/// Measures what Pappus promises, each as a ratio to a bare floor of the same run.
#[derive(Debug, Parser)]
#[command(
    name = "pappus-bench",
    version,
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  \
        scripts/bench                            everything, after building it\n  \
        pappus-bench latency cold                two parts\n  \
        pappus-bench wasm --json wasm.json       figures for a program\n  \
        pappus-bench simulate nine               the scheduler on virtual GPUs, in virtual time\n  \
        pappus-bench gpu inference --json g.json on a GPU; scripts/gpu-check does all of it\n\n\
        It starts supervisors of its own in temporary directories; pappus-supervisor and pappus-worker\n\
        must lie beside it (cargo build --release --bins). Close other programs first: a second busy\n\
        process is measured along.\n\
        Exit codes: 0 measured, whether or not targets were met; 1 failed; 2 usage; 3 no GPU."
)]
struct Flags {
    /// What to measure [default: everything].
    #[arg(value_name = "PART")]
    parts: Vec<Part>,
    /// Also write the figures to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Rounds in which both sides of a comparison take turns.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Be the other end of a pipe; for this program itself.
    #[arg(long, value_name = "HOW", hide = true)]
    echo: Option<pipes::Waiting>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measures on a GPU, beside bare programs of the same run.
    #[command(after_help = "Examples:\n  \
        pappus-bench gpu                                   everything on cuda:0\n  \
        pappus-bench gpu matmul latency --json out.json    two parts, joined to what the file has\n  \
        pappus-bench gpu matmul --device cpu               a rehearsal without a GPU and without bare programs\n\n\
        Run it as root: tenants are told apart by their uids.\n\
        Exit codes: 0 measured, whether or not targets were met; 1 a part failed; 2 usage; 3 no such GPU.")]
    Gpu {
        /// What to measure [default: everything].
        #[arg(value_name = "PART")]
        parts: Vec<gpu::Part>,
        /// The GPU, without settings: cuda:0, cuda:GPU-UUID or cuda:MIG-UUID.
        #[arg(long, value_name = "DEVICE", default_value = "cuda:0")]
        device: String,
        /// Also join the figures to this file.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        /// How long each rate is measured, in milliseconds.
        #[arg(long, value_name = "MS", default_value_t = 1500, value_parser = clap::value_parser!(u64).range(50..=60_000))]
        measured_ms: u64,
    },
    /// Simulates tenants on virtual GPUs: the real scheduler and router, in virtual time.
    #[command(after_help = simulator::EXAMPLES)]
    Simulate(simulator::Asked),
    /// Join a test suite's verdict to a file of figures; for scripts/gpu-check.
    #[command(hide = true)]
    Record {
        /// The suite.
        suite: gpu::Suite,
        /// The GPU.
        #[arg(long)]
        device: String,
        /// The file.
        #[arg(long)]
        json: PathBuf,
        /// Tests that passed.
        #[arg(long)]
        passed: u32,
        /// Tests that did not, by name.
        #[arg(long)]
        failed: Vec<String>,
    },
    /// Be a bare program; for this program itself.
    #[command(hide = true)]
    Bare(program::Asked),
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let ended = match sandbox::is_asked_for(&arguments) {
        true => sandbox::confined(&arguments).map(|()| Ended::Measured),
        false => measure(&Flags::parse()),
    };
    match ended {
        Ok(Ended::Measured) => ExitCode::SUCCESS,
        Ok(Ended::Failed) => ExitCode::FAILURE,
        Ok(Ended::NoGpu) => ExitCode::from(3),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(flags: &Flags) -> pappus_benches::Result<Ended> {
    match &flags.command {
        None => run(flags).map(|()| Ended::Measured),
        Some(Command::Bare(asked)) => program::run(asked).map(|()| Ended::Measured),
        Some(Command::Simulate(asked)) => {
            simulator::run(asked, &mut std::io::stdout().lock()).map(|()| Ended::Measured)
        }
        Some(Command::Record { suite, device, json, passed, failed }) => {
            gpu::record(*suite, device, *passed, failed, json).map(|()| Ended::Measured)
        }
        Some(Command::Gpu { parts, device, json, measured_ms }) => {
            gpu::run(device, parts, Duration::from_millis(*measured_ms), json.as_deref())
        }
    }
}

fn run(flags: &Flags) -> pappus_benches::Result<()> {
    if let Some(waiting) = flags.echo {
        return pipes::echo(waiting);
    }
    let machine = Machine::describe();
    println!("{machine}\n");
    let mut report = Report::live(machine);
    for part in Part::chosen(&flags.parts) {
        parts::measure(part, flags.rounds, &mut report)?;
        report.end(&mut std::io::stdout().lock())?;
    }
    if let Some(path) = &flags.json {
        std::fs::write(path, report.to_json()?).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(())
}
