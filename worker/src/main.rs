//! `pappus-worker ROLE --device KIND …`: started by the supervisor, with its channels at fixed descriptors.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use pappus_protocol::from_worker::Survey;
use pappus_protocol::launch::Arguments;
use pappus_protocol::pipe::Got;
use pappus_protocol::{Fault, FromWorker, Kind, cpu_affinity};
use pappus_shmem::{SharedWords, memfd};
use pappus_worker::device::cpu::{Cpu, compiler::CpuCompiler};
use pappus_worker::device::cuda::{self, Cuda, compiler::CudaCompiler};
use pappus_worker::device::hip::{self, Hip, compiler::HipCompiler};
use pappus_worker::device::{Compiler, Device};
use pappus_worker::launch;
use pappus_worker::sandbox::Sandbox;
use pappus_worker::serve::Memory;
use pappus_worker::{Channels, Role, compile, serve};

/// How much less of busy processors a process that compiles gets than one that serves: a tenth.
const COMPILER_NICE: i32 = 10;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    pappus_worker::end_on_panic();
    launch::take_signals();
    // It may have been started by a number of its file, which would be shown as its name.
    let _ = rustix::thread::set_name(c"pappus-worker");
    let arguments = std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned());
    let arguments: Vec<_> = arguments.collect();
    if let Some(answer) = asked(&arguments) {
        // A reader that has gone asks no more.
        let _ = writeln!(std::io::stdout(), "{answer}");
        return ExitCode::SUCCESS;
    }
    let arguments = match Arguments::parse(&arguments) {
        Ok(arguments) => arguments,
        Err(bad) => {
            pappus_worker::log(format_args!("{bad}"));
            return ExitCode::from(2);
        }
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            pappus_worker::log(format_args!("{error}"));
            ExitCode::FAILURE
        }
    }
}

/// The answer to somebody who is no supervisor.
fn asked(arguments: &[String]) -> Option<String> {
    match arguments {
        [only] if only == "--version" || only == "-V" => {
            Some(format!("pappus-worker {}", pappus_version::VERSION))
        }
        [only] if only == "--help" || only == "-h" => Some(format!(
            "The sandboxed process that runs calls on one device, compiles one module, or looks for devices.\n\
             pappus-supervisor starts it and must lie in the same folder; it is of no use by itself.\n\n{}",
            Arguments::USAGE
        )),
        _ => None,
    }
}

fn run(arguments: &Arguments) -> Outcome {
    let kind = arguments.kind;
    cpu_affinity::pin_to_numa_node(arguments.numa_node);
    if arguments.role == Role::Serve {
        let ([commands, answers, control, staging, turns], sandbox) =
            launch::adopt(launch::confinement(arguments))?;
        let staging = memfd::judge_arena(staging, u64::MAX)?;
        let turns = SharedWords::open(&memfd::judge_arena(turns, u64::MAX)?)?;
        let memory = Memory { staging: &staging, turns };
        let channels = Channels::new(commands, answers, control);
        return match kind {
            Kind::Cpu => serve(channels, memory, Cpu::new()?, sandbox),
            Kind::Cuda => serve(channels, memory, Cuda::start(arguments.lanes as usize)?, sandbox),
            Kind::Hip => serve(channels, memory, Hip::start(arguments.lanes as usize)?, sandbox),
        };
    }
    if arguments.role == Role::Compile {
        // Calls that are served meanwhile go first where processors are short.
        rustix::process::nice(COMPILER_NICE)?;
    }
    let ([commands, answers, control], sandbox) = launch::adopt(launch::confinement(arguments))?;
    let channels = Channels::new(commands, answers, control);
    match (arguments.role, kind) {
        (Role::Survey, kind) => survey(channels, kind, sandbox),
        (_, Kind::Cpu) => compile(channels, CpuCompiler::new(), sandbox),
        (_, Kind::Cuda) => compile(channels, CudaCompiler::new(), sandbox),
        (_, Kind::Hip) => compile(channels, HipCompiler::new(), sandbox),
    }
}

/// The device has started; nothing of a tenant is read before the sandbox is closed.
fn serve<D: Device>(mut channels: Channels, memory: Memory<'_>, device: D, sandbox: Sandbox) -> Outcome {
    channels.layers = sandbox.close()?;
    Ok(serve::run(channels, memory, device)?)
}

/// A device that does not start may start a moment later, so the supervisor is told, not only the log.
fn compile(mut channels: Channels, compiler: Result<impl Compiler, Fault>, sandbox: Sandbox) -> Outcome {
    channels.layers = sandbox.close()?;
    match compiler {
        Ok(compiler) => Ok(compile::run(channels, &compiler)?),
        Err(fault) => {
            channels.send(&FromWorker::Refused { job: 0, fault: fault.as_ref() })?;
            Err(fault.into())
        }
    }
}

fn survey(mut channels: Channels, kind: Kind, sandbox: Sandbox) -> Outcome {
    let found = match kind {
        Kind::Cpu => Ok(Survey::default()),
        Kind::Cuda => cuda::survey::survey(),
        Kind::Hip => hip::survey::survey(),
    };
    let layers = sandbox.close()?;
    match found {
        Ok(found) => channels.send(&FromWorker::Survey(Survey { layers, ..found }))?,
        Err(fault) => channels.send(&FromWorker::Refused { job: 0, fault: fault.as_ref() })?,
    }
    // The supervisor may still look at this process to see which layers it reached.
    while channels.inbox.wait(Duration::ZERO, None, None)? != Got::Closed {}
    Ok(())
}
