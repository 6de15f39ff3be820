//! Which bare programs there are, and how one is asked for: `pappus-bench bare PROGRAM …` measures and prints
//! JSON. Each is a process of its own, with the environment that Pappus gives its workers.

#![allow(unsafe_code)]

use std::io::Read;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use pappus_kernels::bytes::{from_elements, to_elements};
use pappus_kernels::reference;
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::ancestors;
use super::cuda::{Buffer, Gpu, Pinned, Stream};
use super::loops::{self, Rate, Setup};
use super::turns::{self, Passing, Place};
use super::work::{Lane, Program, Work};
use crate::Result;
use crate::harness::functions::{picture, square};
use crate::harness::sampling::median;

/// How long a program may take; then it hangs.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes of the copies that tell the bandwidth.
const COPY_BYTES: usize = 1 << 30;
const COPIES: usize = 7;
/// Hardware queues by the driver's default: some programs are faster with fewer.
pub const USUAL_CONNECTIONS: u32 = 8;

/// What a program does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// Say which GPU there is.
    Survey,
    /// Keep lanes busy.
    Closed,
    /// One call after the other.
    OneByOne,
    /// Be one of several processes that keep lanes busy by turns.
    Turns,
    /// Copy from pinned memory.
    Copy,
    /// Keep workers of the ancestors' design busy, as many as lanes are asked for.
    Ancestors,
    /// Be a worker of the ancestors' design.
    AncestorWorker,
}

/// Which function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Which {
    /// `inference`.
    Inference,
    /// `matmul`.
    Matmul,
    /// `hello`.
    Empty,
}

/// A program and what it is told.
#[derive(Debug, Clone, Args)]
pub struct Asked {
    /// What to do.
    pub what: What,
    /// The device's position among those that are visible.
    #[arg(long, default_value_t = 0)]
    pub ordinal: u32,
    /// The function.
    #[arg(long, default_value = "inference")]
    pub work: Which,
    /// Its repetitions.
    #[arg(long, default_value_t = 500)]
    pub repetitions: u32,
    /// Threads that submit.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub threads: Vec<usize>,
    /// Lanes of each thread; one measurement for each number.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub lanes: Vec<usize>,
    /// Calls are graphs.
    #[arg(long)]
    pub graph: bool,
    /// What a call used is cleared behind it.
    #[arg(long)]
    pub clearing: bool,
    /// Microseconds from one call to the next; 0: back to back.
    #[arg(long, default_value_t = 0)]
    pub every_us: u64,
    /// Which of the processes that pass turns on it is, from 0.
    #[arg(long, default_value_t = 0)]
    pub nth: u64,
    /// How many of these there are.
    #[arg(long, default_value_t = 1)]
    pub of: u64,
    /// Microseconds of a turn; 0: one call on every lane.
    #[arg(long, default_value_t = 0)]
    pub quantum_us: u64,
    /// A turn is passed on before its last calls are over.
    #[arg(long)]
    pub early: bool,
    /// … and submits the first calls of its next turn while the one before it has the device, behind a gate.
    #[arg(long)]
    pub ahead: bool,
    /// Milliseconds of each measurement.
    #[arg(long, default_value_t = 1500)]
    pub measured_ms: u64,
}

impl Asked {
    fn setup(&self, threads: usize, lanes: usize) -> Setup {
        let measured = Duration::from_millis(self.measured_ms);
        Setup { threads, lanes, graph: self.graph, clearing: self.clearing, measured }
    }
}

/// A GPU that was found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Survey {
    /// Its product name.
    pub name: String,
    /// Such as `sm_90`.
    pub arch: String,
    /// What the driver speaks, in words.
    pub driver: String,
}

/// Runs a program and prints what it measured.
pub fn run(asked: &Asked) -> Result<()> {
    let gpu = Gpu::open(asked.ordinal)?;
    let work = match asked.work {
        Which::Inference => Work::Inference(asked.repetitions),
        Which::Matmul => Work::Matmul,
        Which::Empty => Work::Empty,
    };
    let text = match asked.what {
        What::Survey => {
            let survey = Survey { name: gpu.name()?, arch: gpu.arch()?, driver: gpu.driver()? };
            serde_json::to_string(&survey)?
        }
        What::Closed => serde_json::to_string(&closed(&gpu, work, asked)?)?,
        What::OneByOne => {
            let program = Program::compile(&gpu, work)?;
            check(&program, work)?;
            let every = Some(Duration::from_micros(asked.every_us)).filter(|every| !every.is_zero());
            let measured = Duration::from_millis(asked.measured_ms);
            serde_json::to_string(&loops::one_by_one(&program, asked.graph, every, measured)?)?
        }
        What::Turns => {
            let program = Program::compile(&gpu, work)?;
            check(&program, work)?;
            let setups = asked.lanes.iter().map(|lanes| asked.setup(1, *lanes));
            let place = Place { nth: asked.nth, of: asked.of };
            let passing = Passing {
                quantum: Duration::from_micros(asked.quantum_us),
                early: asked.early,
                ahead: asked.ahead,
            };
            serde_json::to_string(&turns::serve(&gpu, &program, setups, place, passing)?)?
        }
        What::Copy => serde_json::to_string(&bandwidth()?)?,
        What::Ancestors => serde_json::to_string(&of_ancestors(asked)?)?,
        What::AncestorWorker => return ancestors::serve(&gpu, work),
    };
    println!("{text}");
    Ok(())
}

fn closed(gpu: &Gpu, work: Work, asked: &Asked) -> Result<Vec<Rate>> {
    let program = Program::compile(gpu, work)?;
    check(&program, work)?;
    let mut rates = Vec::new();
    for &threads in &asked.threads {
        for &lanes in &asked.lanes {
            rates.push(loops::closed(gpu, &program, asked.setup(threads, lanes))?);
        }
    }
    Ok(rates)
}

fn of_ancestors(asked: &Asked) -> Result<Vec<Rate>> {
    let chosen = Chosen { ordinal: asked.ordinal, visible: None };
    let work = asked.work.to_possible_value().ok_or("a function without a name")?;
    let args = [format!("--work={}", work.get_name()), format!("--repetitions={}", asked.repetitions)];
    let measured = Duration::from_millis(asked.measured_ms);
    let rates = asked.lanes.iter().map(|&workers| {
        ancestors::measure(workers, measured, || chosen.command("ancestor-worker", &args, USUAL_CONNECTIONS))
    });
    rates.collect()
}

/// A fast program that computes something else proves nothing.
fn check(program: &Program, work: Work) -> Result<()> {
    let mut lane = Lane::new(program)?;
    lane.capture()?;
    lane.submit(false)?;
    let start = Instant::now();
    while !lane.passed()? {
        if start.elapsed() > PATIENCE {
            return Err("a bare call does not end".into());
        }
    }
    if lane.result() != expected(work) {
        return Err(format!("the bare program of {work:?} computes something else than the reference").into());
    }
    Ok(())
}

/// What a function must compute.
pub fn expected(work: Work) -> Vec<u8> {
    match work {
        Work::Inference(_) => {
            let (image, filter) = picture();
            let (image, filter) = (to_elements::<f32>(&image), to_elements::<f32>(&filter));
            from_elements(&reference::mlops::inference(&image, &filter))
        }
        Work::Matmul => from_elements(&reference::mlops::matmul(&square())),
        Work::Empty => Vec::new(),
    }
}

/// Bytes a second from pinned memory to the device.
fn bandwidth() -> Result<f64> {
    let (from, to) = (Pinned::new(COPY_BYTES)?, Buffer::new(COPY_BYTES)?);
    let stream = Stream::new()?;
    let mut rates = Vec::new();
    for _ in 0..COPIES {
        let start = Instant::now();
        // SAFETY: all of both memories, which stay until the copy is over.
        unsafe { stream.copy_in(&from, 0, to.address(), COPY_BYTES) }?;
        stream.wait()?;
        rates.push(COPY_BYTES as f64 / start.elapsed().as_secs_f64());
    }
    Ok(median(&rates))
}

/// A device as `--device` names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    ordinal: u32,
    /// What the processes may see, where it is named by a UUID.
    visible: Option<String>,
}

impl Chosen {
    /// Of `cuda:0`, `cuda:GPU-…` or `cuda:MIG-…`.
    pub fn parse(device: &str) -> Result<Self> {
        let which = device.strip_prefix("cuda:").ok_or_else(|| {
            format!(
                "{device:?}: expected an NVIDIA GPU such as cuda:0, cuda:GPU-… or cuda:MIG-…, without settings"
            )
        })?;
        if which.starts_with("GPU-") || which.starts_with("MIG-") {
            return Ok(Self { ordinal: 0, visible: Some(which.to_owned()) });
        }
        let ordinal = which
            .parse()
            .map_err(|_| format!("{device:?}: expected a position after the colon, such as cuda:0"))?;
        Ok(Self { ordinal, visible: None })
    }

    /// A command that runs a bare program there, with as many hardware queues as `connections`.
    pub fn command(&self, what: &str, args: &[String], connections: u32) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["bare", what, "--ordinal", &self.ordinal.to_string()])
            .args(args)
            .env("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
            .env("CUDA_MODULE_LOADING", "EAGER")
            .env("CUDA_CACHE_DISABLE", "1")
            .env("CUDA_DEVICE_MAX_CONNECTIONS", connections.to_string());
        if let Some(visible) = &self.visible {
            command.env("CUDA_VISIBLE_DEVICES", visible);
        }
        Ok(command)
    }

    /// Runs a bare program and reads what it measured.
    pub fn ask<T: DeserializeOwned>(&self, what: &str, args: &[String], connections: u32) -> Result<T> {
        let mut command = self.command(what, args, connections)?;
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let text = output(&mut child);
        if text.is_err() {
            // It fails only where it has ended already.
            let _ = child.kill();
        }
        let ended = child.wait()?;
        if !ended.success() {
            return Err(format!("the bare program {what} ended ({ended}); its error is above").into());
        }
        Ok(serde_json::from_str(&text?)?)
    }
}

/// Everything that a child prints, if it ends in time.
pub(super) fn output(child: &mut Child) -> Result<String> {
    let end = Instant::now() + PATIENCE;
    let mut pipe = child.stdout.take().ok_or("a child without its pipe")?;
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut fds = [PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN)];
        if rustix::event::poll(&mut fds, Some(&timeout))? == 0 {
            return Err(format!("a bare program took longer than {} s", PATIENCE.as_secs()).into());
        }
        match pipe.read(&mut part)? {
            0 => return Ok(String::from_utf8(bytes)?),
            count => bytes.extend_from_slice(&part[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_by_position_or_uuid() {
        assert_eq!(Chosen::parse("cuda:3").unwrap(), Chosen { ordinal: 3, visible: None });
        for uuid in ["GPU-8f01", "MIG-8f01"] {
            assert_eq!(Chosen::parse(&format!("cuda:{uuid}")).unwrap().visible.as_deref(), Some(uuid));
        }
        for wrong in ["cpu", "cuda:", "cuda:all", "cuda:0:lanes=8", "hip:0"] {
            assert!(Chosen::parse(wrong).is_err(), "{wrong}");
        }
    }
}
