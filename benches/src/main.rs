//! `pappus-bench`: parses, measures part by part, prints.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use pappus_benches::harness::pipes;
use pappus_benches::machine::Machine;
use pappus_benches::parts::{self, Part};
use pappus_benches::report::Report;

/// Measures what Pappus promises, each as a ratio to a bare floor of the same run.
#[derive(Debug, Parser)]
#[command(
    name = "pappus-bench",
    version,
    after_help = "Examples:\n  \
        scripts/bench                            everything, after building it\n  \
        pappus-bench latency cold                two parts\n  \
        pappus-bench wasm --json wasm.json       figures for a program\n\n\
        It starts supervisors of its own in temporary directories; pappus-supervisor and pappus-worker\n\
        must lie beside it (cargo build --release --bins). Close other programs first: a second busy\n\
        process is measured along.\n\
        Exit codes: 0 measured, whether or not targets were met; 1 failed; 2 usage."
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
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    match run(&flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(flags: &Flags) -> pappus_benches::Result<()> {
    if let Some(waiting) = flags.echo {
        return pipes::echo(waiting);
    }
    let machine = Machine::describe();
    println!("{machine}\n");
    let mut report = Report::new(machine);
    for part in Part::chosen(&flags.parts) {
        let before = report.len();
        parts::measure(part, flags.rounds, &mut report)?;
        report.print_from(before, &mut std::io::stdout().lock())?;
    }
    if let Some(path) = &flags.json {
        std::fs::write(path, report.to_json()?).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(())
}
