//! `pappus-worker ROLE --device KIND …`: started by the supervisor, with its channels at fixed
//! descriptors. 3 commands, 4 answers, 5 control socket, 6 staging arena (serving role only).

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::process::ExitCode;

use pappus_protocol::from_worker::Survey;
use pappus_protocol::{FromWorker, Kind, near};
use pappus_shmem::memfd;
use pappus_worker::device::cpu::{Cpu, compiler::CpuCompiler};
use pappus_worker::device::cuda::{self, Cuda, compiler::CudaCompiler};
use pappus_worker::{Channels, compile, sandbox, serve};

const USAGE: &str = "usage: pappus-worker serve|compile|survey --device cpu|cuda [--lanes N] [--numa-node=N] \
    (started by pappus-supervisor)";
const COMMANDS: i32 = 3;
const STAGING: i32 = 6;

/// What this process is for.
enum Role {
    Serve,
    Compile,
    Survey,
}

/// What the command line says.
struct Arguments {
    role: Role,
    kind: String,
    lanes: usize,
    numa_node: Option<u32>,
}

fn main() -> ExitCode {
    let arguments = std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned());
    let arguments: Vec<String> = arguments.collect();
    let Some(arguments) = parse(&arguments) else {
        pappus_worker::log(format_args!("{USAGE}"));
        return ExitCode::from(2);
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            pappus_worker::log(format_args!("{error}"));
            ExitCode::FAILURE
        }
    }
}

fn parse(arguments: &[String]) -> Option<Arguments> {
    let [role, flag, kind, rest @ ..] = arguments else {
        return None;
    };
    let role = match (role.as_str(), flag.as_str()) {
        ("serve", "--device") => Role::Serve,
        ("compile", "--device") => Role::Compile,
        ("survey", "--device") => Role::Survey,
        _ => return None,
    };
    let mut parsed = Arguments { role, kind: kind.clone(), lanes: 1, numa_node: None };
    let mut rest = rest.iter();
    while let Some(flag) = rest.next() {
        match flag.split_once('=') {
            Some(("--numa-node", node)) => parsed.numa_node = Some(node.parse().ok()?),
            None if flag == "--lanes" => parsed.lanes = rest.next()?.parse().ok()?,
            _ => return None,
        }
    }
    Some(parsed)
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let kind: Kind = arguments.kind.parse()?;
    match arguments.role {
        Role::Serve => {
            near::stay(arguments.numa_node);
            sandbox::enter(sandbox::serve(kind))?;
            let [commands, answers, control, staging] = adopt()?;
            let staging = memfd::judge_arena(staging, u64::MAX)?;
            let channels = Channels::new(commands, answers, control);
            match kind {
                Kind::Cpu => serve::run(channels, &staging, Cpu::new()?)?,
                Kind::Cuda => serve::run(channels, &staging, Cuda::new(arguments.lanes)?)?,
            }
        }
        Role::Compile => {
            sandbox::enter(sandbox::compile(kind))?;
            let [commands, answers, control] = adopt()?;
            let channels = Channels::new(commands, answers, control);
            match kind {
                Kind::Cpu => compile::run(channels, &CpuCompiler::new()?)?,
                Kind::Cuda => compile::run(channels, &CudaCompiler::new()?)?,
            }
        }
        Role::Survey => {
            sandbox::enter(sandbox::SURVEY)?;
            let [commands, answers, control] = adopt()?;
            let mut channels = Channels::new(commands, answers, control);
            let survey = match kind {
                Kind::Cpu => Ok(Survey::default()),
                Kind::Cuda => cuda::survey::survey(),
            };
            match survey {
                Ok(survey) => channels.send(&FromWorker::Survey(survey))?,
                Err(fault) => channels.send(&FromWorker::Refused { job: 0, fault: fault.as_ref() })?,
            }
        }
    }
    Ok(())
}

/// Takes over the descriptors that the supervisor placed from [`COMMANDS`] on.
fn adopt<const N: usize>() -> Result<[OwnedFd; N], String> {
    const { assert!(COMMANDS + N as i32 <= STAGING + 1) };
    let numbers = std::array::from_fn::<i32, N, _>(|at| COMMANDS + at as i32);
    for number in numbers {
        // SAFETY: only asks whether the descriptor is open; nothing keeps the borrow.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        rustix::io::fcntl_getfd(fd.as_fd()).map_err(|e| format!("descriptor {number}: {e}; {USAGE}"))?;
    }
    // SAFETY: they are open (checked above), and nothing else in this process, which has opened no file
    // yet, knows their numbers.
    Ok(numbers.map(|number| unsafe { OwnedFd::from_raw_fd(number) }))
}
