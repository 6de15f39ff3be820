//! What the sandbox costs when a worker starts: this very program in the place of a worker, once in the sandbox and
//! once outside of it, in turns.
//!
//! ```text
//! Launcher::start ──► confined(): sandbox, or nothing ──► greeting ──► killed and reaped
//! ```

use std::time::Duration;

use pappus_protocol::from_worker::Hello;
use pappus_protocol::launch::Arguments;
use pappus_protocol::pipe::Got;
use pappus_protocol::{FromWorker, Kind, Layers};
use pappus_supervisor::config::SandboxSettings;
use pappus_supervisor::processes::confinement::Confinement;
use pappus_supervisor::processes::launcher::{Launcher, Role, Started};
use pappus_supervisor::processes::target::DeviceTarget;
use pappus_worker::Channels;
use pappus_worker::{backends, launch};

use crate::Result;
use crate::harness::sampling::Samples;
use crate::report::{Report, Unit};

const STARTS: usize = 300;
const TARGET_NS: f64 = 2e6;
/// What a process is told: the number of lanes says whether it goes into the sandbox.
const INSIDE: u32 = 1;
const OUTSIDE: u32 = 2;

/// Times of some processes.
struct Lives {
    greeted: Samples,
    ended: Samples,
    layers: Layers,
}

impl Lives {
    fn new() -> Result<Self> {
        Ok(Self { greeted: Samples::new()?, ended: Samples::new()?, layers: Layers::default() })
    }

    fn one_more(&mut self, launcher: &Launcher, how: u32) -> Result<()> {
        let target = DeviceTarget { lanes: how, ..DeviceTarget::any(Kind::Cpu) };
        let mut started = None;
        self.greeted.round(1, || {
            let process = started.insert(launcher.start(Role::Survey, &target, None)?);
            self.layers = greeting(process)?;
            Ok(())
        })?;
        self.ended.round(1, || {
            if let Some(mut process) = started.take() {
                process.process.end()?;
            }
            Ok(())
        })
    }
}

pub(super) fn measure(report: &mut Report) -> Result<()> {
    let confinement = Confinement::decide(SandboxSettings::default());
    let launcher = Launcher::new(std::env::current_exe()?, confinement)?;
    let (mut outside, mut inside) = (Lives::new()?, Lives::new()?);
    for _ in 0..STARTS {
        outside.one_more(&launcher, OUTSIDE)?;
        inside.one_more(&launcher, INSIDE)?;
    }
    let (bare, confined) = (&outside.greeted, &inside.greeted);
    let ns = Unit::Nanoseconds;
    report.info("a process started until it greets, without sandbox, p50", bare.p50(), ns);
    report.info(format!("… in it ({})", inside.layers), confined.p50(), ns);
    report.at_most(TARGET_NS, "added by the sandbox, p50", confined.p50() - bare.p50(), ns);
    report.info("… p99", confined.p99() - bare.p99(), ns);
    let added = inside.ended.p50() - outside.ended.p50();
    report.info("added to its end, from the kill until it is reaped, p50", added, ns);
    Ok(())
}

fn greeting(started: &mut Started) -> Result<Layers> {
    loop {
        if let Some(frame) = started.inbox.frame()? {
            return match FromWorker::decode(frame)? {
                FromWorker::Hello(hello) => Ok(hello.layers),
                other => Err(format!("a greeting was due: {other:?}").into()),
            };
        }
        if started.inbox.wait(Duration::ZERO, None, None)? == Got::Closed {
            return Err("a process ended before it greeted".into());
        }
    }
}

/// True if the command line is that of a worker.
pub fn is_asked_for(arguments: &[String]) -> bool {
    arguments.first().is_some_and(|first| first == "survey")
}

/// Is the process that is measured: goes into the sandbox or not, greets, and waits for its end.
pub fn confined(arguments: &[String]) -> Result<()> {
    let arguments = Arguments::parse(arguments)?;
    let kind = arguments.kind;
    let (channels, layers) = if arguments.lanes == OUTSIDE {
        let [commands, answers, control] = launch::take()?;
        (Channels::new(commands, answers, control), Layers::default())
    } else {
        let ([commands, answers, control], sandbox) =
            launch::adopt(launch::confinement(&arguments, backends::of(arguments.kind).policy))?;
        (Channels::new(commands, answers, control), sandbox.close()?)
    };
    let mut channels = Channels { layers, ..channels };
    let greeting = channels.greeting(Hello::new(kind.name(), "measured"));
    channels.send(&greeting)?;
    while channels.inbox.wait(Duration::ZERO, None, None)? != Got::Closed {}
    Ok(())
}
