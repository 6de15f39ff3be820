//! A prisoner: a program in the place of a worker that goes into the very same sandbox and then tries to get
//! out of it (ATTACKS 33), one attempt per process. The number of lanes that it is started with says how much of
//! the sandbox is left off, for the controls.
//!
//! It greets with the layers that are in force, takes the number of an attempt as a job, and answers
//! `Refused` with `did it` or with the error; one that the filter of system calls ends does not answer.

#![deny(unsafe_code)]

mod attempts;

use std::time::Duration;

use pappus_protocol::from_worker::{Fault, FaultCode, Hello};
use pappus_protocol::launch::Arguments;
use pappus_protocol::pipe::Got;
use pappus_protocol::{FromWorker, Layer, ToWorker};
use pappus_worker::{Channels, backends, launch};

use attempts::{Fence, attempt};

/// Everything on; without the filter; also without Landlock; nothing on.
const NO_SECCOMP: u32 = 2;
const NO_LANDLOCK: u32 = 3;
const NOTHING: u32 = 4;

fn main() {
    if let Err(why) = run() {
        eprintln!("prisoner: {why}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments = Arguments::parse(&arguments)?;
    let kind = arguments.kind;
    let mut confinement = launch::confinement(&arguments, backends::of(arguments.kind).policy);
    let off = arguments.lanes;
    if off >= NO_SECCOMP {
        confinement.without.add(Layer::Seccomp);
    }
    if off >= NO_LANDLOCK {
        confinement.without.add(Layer::Landlock);
    }
    let (channels, layers) = if off == NOTHING {
        let [commands, answers, control] = launch::take()?;
        (Channels::new(commands, answers, control), Default::default())
    } else {
        let ([commands, answers, control], sandbox) = launch::adopt(confinement)?;
        (Channels::new(commands, answers, control), sandbox.close()?)
    };
    let fence = (off == NOTHING).then(Fence::build);
    let mut channels = Channels { layers, ..channels };
    let greeting = channels.greeting(Hello::new(kind.name(), "prisoner"));
    channels.send(&greeting)?;
    loop {
        while let Some(frame) = channels.inbox.frame()? {
            let outcome = match ToWorker::decode(frame)? {
                ToWorker::Compile { job } => {
                    let (number, other) = (job as u32 as usize, (job >> 32) as i32);
                    match &fence {
                        Some(fence) => fence.attempt(number, other),
                        None => attempt(number, other),
                    }
                }
                // A supervisor that takes it for a worker.
                _ => attempt(0, 0),
            };
            let message = outcome.map_or_else(|why| why, |()| "did it".to_owned());
            let fault = Fault::new(FaultCode::Internal, message);
            channels.send(&FromWorker::Refused { job: 1, fault: fault.as_ref() })?;
        }
        if channels.inbox.wait(Duration::ZERO, None, None)? == Got::Closed {
            return Ok(());
        }
    }
}
