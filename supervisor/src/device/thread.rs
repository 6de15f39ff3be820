//! The OS thread of one worker: starts its process, reads the answers, and puts a fresh process in its
//! place when it ends. The thread lives as long as the supervisor: the kernel ends a worker together
//! with the thread that started it.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pappus_protocol::FromWorker;
use pappus_protocol::pipe::{Got, Inbox};

use super::Device;
use super::link::Arrival;
use super::process::{self, Role, Started, Target};
use super::runtime::Outcome;
use crate::limits::WORKER_START_S;
use crate::registry::CodeTarget;
use crate::schedule::{CallId, WorkerId};

/// A worker that lived shorter than this is replaced after a pause, the longer the more often.
const SHORT_LIFE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long an idle worker that was told to leave may take.
const LEAVE: Duration = Duration::from_millis(200);

/// Runs a worker's place until the device closes.
pub fn run(device: &Arc<Device>, worker: WorkerId, program: &Path) {
    let mut pause = Duration::ZERO;
    for generation in 1.. {
        if device.is_closing() {
            return;
        }
        let born = Instant::now();
        let (why, ended) = serve_one(device, worker, generation, program);
        let well = ended.as_ref().is_ok_and(|status| status.success());
        let ended = process::describe_exit(ended);
        let lost = device.worker_gone(worker, &ended);
        if device.is_closing() {
            return;
        }
        match &why {
            Some(why) => tracing::warn!(worker, lost, "worker {ended}: {why}; replacing it"),
            None if lost > 0 => tracing::warn!(worker, lost, "worker {ended}; replacing it"),
            None => tracing::debug!(worker, "worker {ended}; replacing it"),
        }
        device.place(worker).restarts.fetch_add(1, Ordering::Relaxed);
        device.metrics.restarts.increment(1);
        // A process that never served would fail again at once; others are replaced at once.
        pause = match !well && lost == 0 && born.elapsed() < SHORT_LIFE {
            true => (pause * 2).clamp(Duration::from_millis(10), LONGEST_PAUSE),
            false => Duration::ZERO,
        };
        std::thread::park_timeout(pause);
    }
}

/// One process from start to end; says what was wrong with it, if anything was, and how it ended.
fn serve_one(
    device: &Arc<Device>,
    worker: WorkerId,
    generation: u64,
    program: &Path,
) -> (Option<String>, std::io::Result<ExitStatus>) {
    let started = {
        let link = device.link(worker);
        process::start(program, Role::Serve, &Target::of(&device.config), Some(link.staging()))
    };
    let Started { mut process, mut inbox, outbox, control } = match started {
        Ok(started) => started,
        Err(e) => return (Some(format!("it cannot be started: {e}")), Err(e)),
    };
    let outcome = await_hello(&mut inbox).and_then(|target| {
        let attached = process.killer().and_then(|killer| {
            let target = target.clone();
            let arrival = Arrival { generation, pid: process.pid(), outbox, control, killer, target };
            device.link(worker).attach(arrival, device.configure())
        });
        attached.map_err(|e| e.to_string())?;
        if device.is_closing() {
            // Whoever closed the device may have looked before this process was there.
            return Err("it came too late".to_owned());
        }
        tracing::debug!(worker, pid = process.pid(), "worker ready");
        device.worker_ready(worker, generation, &target);
        read_answers(device, worker, generation, &mut inbox)
    });
    let ended = match outcome {
        // It closed its answers, so it is about to be gone; one that lingers is ended.
        Ok(()) => process.end_after(LEAVE),
        Err(_) => process.end(),
    };
    if let Err(e) = device.link(worker).detach() {
        tracing::error!(worker, "cannot renew a worker's staging: {e}");
    }
    (outcome.err(), ended)
}

fn await_hello(inbox: &mut Inbox) -> Result<CodeTarget, String> {
    let until = Instant::now() + Duration::from_secs(WORKER_START_S);
    loop {
        if let Some(frame) = inbox.frame().map_err(|e| e.to_string())? {
            return match FromWorker::decode(frame).map_err(|e| e.to_string())? {
                FromWorker::Hello(hello) => CodeTarget::greeted(&hello),
                other => Err(format!("it sent {other:?} before its greeting")),
            };
        }
        let left = until.saturating_duration_since(Instant::now());
        match inbox.wait(Duration::ZERO, Some(left), None).map_err(|e| e.to_string())? {
            Got::Closed => return Err("it ended before its greeting".to_owned()),
            Got::Nothing if left.is_zero() => return Err("it did not get ready in time".to_owned()),
            _ => {}
        }
    }
}

/// Reads answers until the process closes them; an error means that it broke the protocol.
fn read_answers(
    device: &Arc<Device>,
    worker: WorkerId,
    generation: u64,
    inbox: &mut Inbox,
) -> Result<(), String> {
    let nudge = device.link(worker).nudge().map_err(|e| e.to_string())?;
    // While something is queued that did not fit, look again soon.
    let retry = Duration::from_millis(1);
    let mut flushed = true;
    loop {
        while let Some(frame) = inbox.frame().map_err(|e| e.to_string())? {
            match FromWorker::decode(frame).map_err(|e| e.to_string())? {
                FromWorker::Done { call, timings } => {
                    device.finish(worker, CallId(call), Outcome::Done(&timings))?;
                }
                FromWorker::Failed { call, fault } => {
                    device.finish(worker, CallId(call), Outcome::Failed(&fault))?;
                }
                // Turns are not in use on devices with one worker at a time per core.
                FromWorker::Yielded { .. } | FromWorker::Leased { .. } => {}
                other => return Err(format!("it sent {other:?}")),
            }
        }
        let got = inbox.wait(device.spin(), (!flushed).then_some(retry), Some(nudge.as_fd()));
        match got.map_err(|e| e.to_string())? {
            Got::Closed => return Ok(()),
            Got::Nudged => {
                // Only that it is readable counts; what it counts does not.
                let _ = rustix::io::read(&nudge, &mut [0; 8]);
                let mut link = device.link(worker);
                if link.is_hung_up(generation) {
                    // It is about to leave, or does not want to.
                    return Ok(());
                }
                flushed = link.flush();
            }
            Got::Bytes | Got::Nothing if !flushed => flushed = device.link(worker).flush(),
            Got::Bytes | Got::Nothing => {}
        }
    }
}
