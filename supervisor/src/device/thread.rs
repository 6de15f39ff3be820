//! The OS thread of one worker: starts its process, reads the answers, and puts a fresh process in its
//! place when it ends. The thread lives as long as the supervisor: the kernel ends a worker together
//! with the thread that started it.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pappus_protocol::pipe::{Got, Inbox};
use pappus_protocol::{Fault, FromWorker};

use super::Device;
use super::link::{Arrival, staging};
use super::process::{self, Role, Started, Target};
use super::runtime::Outcome;
use crate::limits::WORKER_START_S;
use crate::registry::loaded::checked_fingerprint;
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
        let (end, ended) = serve_one(device, worker, generation, program);
        let well = ended.as_ref().is_ok_and(|status| status.success());
        let ended = process::describe_exit(ended);
        let (why, broken) = match end {
            End::Closed => (None, None),
            End::Broken(fault) => (Some(format!("its device context is lost: {fault}")), Some(fault)),
            End::Bad(why) => (Some(why), None),
        };
        let calls = device.worker_gone(worker);
        let lost = calls.len();
        device.bury(calls, &ended, broken.as_ref());
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

/// Why a process is not read from any more.
enum End {
    /// It closed its answers, or was told to leave.
    Closed,
    /// It cannot run anything any more and said so.
    Broken(Fault),
    /// It broke the protocol, or never got ready.
    Bad(String),
}

/// One process from start to end; what its last words were, and how it ended.
fn serve_one(
    device: &Arc<Device>,
    worker: WorkerId,
    generation: u64,
    program: &Path,
) -> (End, std::io::Result<ExitStatus>) {
    let started = staging(device.config.lanes).and_then(|staging| {
        Ok((process::start(program, Role::Serve, &Target::of(&device.config), Some(&staging))?, staging))
    });
    let (Started { mut process, mut inbox, outbox, control }, staging) = match started {
        Ok(started) => started,
        Err(e) => return (End::Bad(format!("it cannot be started: {e}")), Err(e)),
    };
    let outcome = await_hello(&mut inbox).and_then(|fingerprint| {
        let attached = process.killer().and_then(|killer| {
            let (fingerprint, pid) = (fingerprint.clone(), process.pid());
            let arrival = Arrival { generation, pid, outbox, control, staging, killer, fingerprint };
            device.link(worker).attach(arrival, device.configure())
        });
        attached.map_err(|e| e.to_string())?;
        if device.is_closing() {
            // Whoever closed the device may have looked before this process was there.
            return Err("it came too late".to_owned());
        }
        tracing::debug!(worker, pid = process.pid(), "worker ready");
        device.worker_ready(worker, generation, &fingerprint);
        read_answers(device, worker, generation, &mut inbox)
    });
    let end = outcome.unwrap_or_else(End::Bad);
    let ended = match end {
        // It is about to be gone; one that lingers is ended.
        End::Closed | End::Broken(_) => process.end_after(LEAVE),
        End::Bad(_) => process.end(),
    };
    device.link(worker).detach();
    (end, ended)
}

fn await_hello(inbox: &mut Inbox) -> Result<String, String> {
    let until = Instant::now() + Duration::from_secs(WORKER_START_S);
    loop {
        if let Some(frame) = inbox.frame().map_err(|e| e.to_string())? {
            return match FromWorker::decode(frame).map_err(|e| e.to_string())? {
                FromWorker::Hello(hello) => checked_fingerprint(hello),
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

/// Reads answers until there are no more; an error means that the process broke the protocol.
fn read_answers(
    device: &Arc<Device>,
    worker: WorkerId,
    generation: u64,
    inbox: &mut Inbox,
) -> Result<End, String> {
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
                FromWorker::Yielding { turn } => device.yielding(worker, turn)?,
                FromWorker::Yielded { turn, used_ns } => device.yielded(worker, turn, used_ns)?,
                FromWorker::Leased { bytes } => device.leased(worker, bytes),
                FromWorker::Broken { fault } => return Ok(End::Broken(fault.to_fault())),
                other => return Err(format!("it sent {other:?}")),
            }
        }
        let got = inbox.wait(device.spin(), (!flushed).then_some(retry), Some(nudge.as_fd()));
        match got.map_err(|e| e.to_string())? {
            Got::Closed => return Ok(End::Closed),
            Got::Nudged => {
                // Only that it is readable counts; what it counts does not.
                let _ = rustix::io::read(&nudge, &mut [0; 8]);
                let mut link = device.link(worker);
                if link.is_hung_up(generation) {
                    // It is about to leave, or does not want to.
                    return Ok(End::Closed);
                }
                flushed = link.flush();
            }
            Got::Bytes | Got::Nothing if !flushed => flushed = device.link(worker).flush(),
            Got::Bytes | Got::Nothing => {}
        }
    }
}
