//! Processes that are ready to take a worker's place. Each is kept by a thread of its own, which started
//! it and lives as long as the supervisor: the kernel ends a process together with the thread that
//! started it, also when the process serves elsewhere by then.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pappus_protocol::FromWorker;
use pappus_protocol::from_worker::Hello;
use pappus_protocol::pipe::{Got, Inbox};
use pappus_shmem::ValidatedMemfd;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::Device;
use super::panics::contained;
use super::worker_channel::staging;
use crate::function::CodeTarget;
use crate::limits::WORKER_START_S;
use crate::processes::confinement::{self, Reached};
use crate::processes::memory_ledger::ProcessReservation;
use crate::processes::process::{self, Role, Started, Target};
use crate::sync::{OrderedMutex, Waker, rank};

/// How long a standby that was taken has the processors before the next one starts: to start a process takes more of
/// them than to answer the call that it was taken for.
const HEAD_START: Duration = Duration::from_millis(10);

/// How long a process whose epoch ended while it started has to leave by itself, as its driver makes it. An MPS server
/// that recovers may never answer anybody again where one that it is about to take is killed.
const LEAVE: Duration = Duration::from_millis(300);

/// How often to look whether all workers have a process.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

const ANOTHER_FAILED: &str = "another process failed meanwhile, and all with it";

/// A process that said its greeting and serves nobody yet.
#[derive(Debug)]
pub struct Ready {
    /// The process and its channels.
    pub started: Started,
    /// The arena for inline bytes that it shares with the supervisor.
    pub staging: ValidatedMemfd,
    /// What its machine code must be made for.
    pub target: CodeTarget,
    /// Its place in the account.
    pub reservation: ProcessReservation,
    /// See [`Device::epoch`].
    pub epoch: u64,
    /// Layers of its sandbox.
    pub reached: Reached,
}

/// Starts a process and waits for its greeting. The calling thread must outlive it.
pub fn bring_up(device: &Device, program: &Path) -> Result<Ready, String> {
    let mut reservation = device.ledger.reserve_process().ok_or("the device closes")?;
    let epoch = reservation.epoch();
    let _first = device.ledger.until_measured();
    let started = staging(device.config.lanes).and_then(|staging| {
        Ok((process::start(program, Role::Serve, &Target::of(&device.config), Some(&staging))?, staging))
    });
    let (mut started, staging) = started.map_err(|e| format!("it cannot be started: {e}"))?;
    if let Some(mps_terminator) = &device.mps {
        started.process.end_through(mps_terminator);
    }
    let greeted = await_hello(&reservation, &mut started.inbox);
    if reservation.is_over() {
        return Err(ANOTHER_FAILED.to_owned());
    }
    let hello = greeted?;
    // Whoever greeted then is a successor that was never handed over: it could not be killed.
    if started.process.has_ended() {
        return Err("it ended when it greeted".to_owned());
    }
    let target = CodeTarget::greeted(&hello)?;
    let config = &device.config;
    if (target.kind, &target.arch) != (config.kind, &config.arch) {
        return Err(format!("it is for {} {}", target.kind, target.arch));
    }
    let reached = started.process.reached(hello.layers);
    confinement::get().check(&reached)?;
    reservation.measured(hello.context_bytes);
    Ok(Ready { started, staging, target, reservation, epoch, reached })
}

fn await_hello(reservation: &ProcessReservation, inbox: &mut Inbox) -> Result<Hello, String> {
    let mut until = Instant::now() + Duration::from_secs(WORKER_START_S);
    let mut over = false;
    loop {
        if reservation.is_over() && !std::mem::replace(&mut over, true) {
            until = until.min(Instant::now() + LEAVE);
        }
        if let Some(frame) = inbox.frame().map_err(|e| e.to_string())? {
            return match FromWorker::decode(frame).map_err(|e| e.to_string())? {
                FromWorker::Hello(hello) => Ok(hello),
                other => Err(format!("it sent {other:?} before its greeting")),
            };
        }
        let left = until.saturating_duration_since(Instant::now());
        let look = reservation.looks_every().map_or(left, |every| left.min(every));
        match inbox.wait(Duration::ZERO, Some(look), None).map_err(|e| e.to_string())? {
            Got::Closed => return Err("it ended before its greeting".to_owned()),
            Got::Nothing if left.is_zero() => return Err("it did not get ready in time".to_owned()),
            _ => {}
        }
    }
}

/// The standbys of a device.
#[derive(Debug)]
pub struct Standbys(Vec<Slot>);

#[derive(Debug)]
struct Slot {
    ready: OrderedMutex<Option<Ready>, { rank::STANDBY }>,
    /// Wakes the keeper: its standby was taken, or the device closes.
    waker: Waker,
}

impl Standbys {
    /// Room for `count`.
    pub fn new(count: usize) -> std::io::Result<Self> {
        let slot =
            || -> std::io::Result<Slot> { Ok(Slot { ready: OrderedMutex::new(None), waker: Waker::new()? }) };
        Ok(Self((0..count).map(|_| slot()).collect::<Result<_, _>>()?))
    }

    /// One that is ready, for good.
    pub fn take(&self) -> Option<Ready> {
        self.0.iter().find_map(|slot| {
            let ready = slot.ready.lock().take()?;
            slot.waker.wake();
            Some(ready)
        })
    }

    /// How many are ready.
    pub fn ready(&self) -> usize {
        self.0.iter().filter(|slot| slot.ready.lock().is_some()).count()
    }

    /// Wakes the keepers of a device that closes.
    pub fn close(&self) {
        self.0.iter().for_each(|slot| slot.waker.wake());
    }
}

/// Keeps one standby ready until the device closes.
pub fn keep(device: &Arc<Device>, slot: usize, program: &Path) {
    let slot = &device.standbys.0[slot];
    let mut pause = Duration::ZERO;
    while !device.is_closing() {
        // Workers come first, who may have calls already: processes that start together slow each other down.
        while device.lacks_workers() && !device.is_closing() {
            wait(slot, None, Some(LOOK_AGAIN));
        }
        let brought_up = contained(|| bring_up(device, program)).flatten();
        let watched = brought_up.and_then(|ready| {
            let pidfd = ready.started.process.pidfd().map_err(|e| e.to_string())?;
            let epoch = ready.epoch;
            *slot.ready.lock() = Some(ready);
            // Whoever ended the epoch may have looked before it was there.
            match slot.ready.lock().take_if(|_| epoch != device.epoch()) {
                None => Ok(pidfd),
                Some(_) => Err(ANOTHER_FAILED.to_owned()),
            }
        });
        let ended = match watched {
            Ok(pidfd) => wait(slot, Some(&pidfd), None),
            Err(_) if device.is_closing() => break,
            Err(why) => {
                tracing::warn!(device = device.config.name, "a standby did not get ready: {why}");
                true
            }
        };
        // One that ended without serving is dropped and reaped; the next would hardly do better at once.
        let unused = if ended { slot.ready.lock().take() } else { None };
        pause = match ended {
            true => (pause * 2).clamp(Duration::from_millis(10), device.longest_pause()),
            false => HEAD_START,
        };
        drop(unused);
        if !device.is_closing() {
            wait(slot, None, Some(pause));
        }
    }
    let unused = slot.ready.lock().take();
    drop(unused);
}

/// Waits until the keeper is woken, the process ends, or the time is over; whether the process ended.
fn wait(slot: &Slot, pidfd: Option<&OwnedFd>, timeout: Option<Duration>) -> bool {
    let timeout =
        timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
    let mut polled = vec![PollFd::new(&slot.waker, PollFlags::IN)];
    polled.extend(pidfd.map(|pidfd| PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)));
    let _ = rustix::event::poll(&mut polled, timeout.as_ref());
    let ended = polled.get(1).is_some_and(|pidfd| !pidfd.revents().is_empty());
    // Only that it was readable counts.
    let _ = rustix::io::read(&slot.waker, &mut [0; 8]);
    ended
}
