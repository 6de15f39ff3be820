//! What is measured, a file each.

mod cold;
mod decisions;
mod fault;
mod gateway;
mod interruption;
mod latency;
mod matmul;
mod memory;
mod modules;
pub mod sandbox;
pub(crate) mod session;
mod throughput;
pub(crate) mod together;
mod turns;
mod wasm;

use crate::Result;
use crate::report::Report;

/// The device of most parts: one worker, so that two cores are enough.
const ONE_WORKER: &str = "cpu:workers=1,memory=64MiB";

/// A part of the measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// An empty call against a round trip through pipes.
    Latency,
    /// A matrix multiplication against the same kernel called in process.
    Matmul,
    /// Kernels as wasm against the same C compiled natively.
    Wasm,
    /// Kernels that can be interrupted, as where tenants share workers, against those that run to their end.
    Interruption,
    /// The supervisor's memory, idle and with 10 000 functions; registering and starting again.
    Memory,
    /// First calls of registered functions against hot ones.
    Cold,
    /// What the sandbox costs when a worker starts.
    Sandbox,
    /// Calls a second.
    Throughput,
    /// What a scheduling decision costs while very many calls wait.
    Decisions,
    /// Judging machine code without its device.
    Modules,
    /// How long a turn takes from one worker to the next.
    Turns,
    /// What the gateway adds to a call, and how many it takes.
    Gateway,
    /// Calls of a session against calls that bring their state and take it back.
    Session,
    /// A chain of steps: linked, as calls of the client's, as consecutive calls of the supervisor's.
    Compose,
    /// Calls of one function side by side, against the same calls one by one.
    Batch,
    /// From a fault, a worker's exit or an endless kernel to the next good answer.
    Fault,
}

impl Part {
    const ALL: [Self; 16] = [
        Self::Latency,
        Self::Matmul,
        Self::Wasm,
        Self::Interruption,
        Self::Memory,
        Self::Cold,
        Self::Sandbox,
        Self::Throughput,
        Self::Decisions,
        Self::Modules,
        Self::Turns,
        Self::Gateway,
        Self::Session,
        Self::Compose,
        Self::Batch,
        Self::Fault,
    ];

    /// Those asked for, or all.
    pub fn chosen(asked: &[Self]) -> Vec<Self> {
        match asked {
            [] => Self::ALL.to_vec(),
            _ => asked.to_vec(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Matmul => "matmul",
            Self::Wasm => "wasm",
            Self::Interruption => "interruption",
            Self::Memory => "memory",
            Self::Cold => "cold",
            Self::Sandbox => "sandbox",
            Self::Throughput => "throughput",
            Self::Decisions => "decisions",
            Self::Modules => "modules",
            Self::Turns => "turns",
            Self::Gateway => "gateway",
            Self::Session => "session",
            Self::Compose => "compose",
            Self::Batch => "batch",
            Self::Fault => "fault",
        }
    }
}

/// Measures one part.
pub fn measure(part: Part, rounds: u32, report: &mut Report) -> Result<()> {
    report.begin(part.name());
    match part {
        Part::Latency => latency::measure(rounds, report),
        Part::Matmul => matmul::measure(rounds, report),
        Part::Wasm => wasm::measure(rounds, report),
        Part::Interruption => interruption::measure(rounds, report),
        Part::Memory => memory::measure(report),
        Part::Cold => cold::measure(report),
        Part::Sandbox => sandbox::measure(report),
        Part::Throughput => throughput::measure(report),
        Part::Decisions => decisions::measure(rounds, report),
        Part::Modules => modules::measure(rounds, report),
        Part::Turns => turns::measure(rounds, report),
        Part::Gateway => gateway::measure(rounds, report),
        Part::Session => session::measure(rounds, report),
        Part::Compose => together::measure_chain(rounds, report),
        Part::Batch => together::measure_batch(rounds, report),
        Part::Fault => fault::measure(report),
    }
    .map_err(|error| format!("{}: {error}", part.name()).into())
}
