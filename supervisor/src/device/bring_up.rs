//! How a process gets ready to serve: it is started, greets, and is checked. Standbys are kept ready here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pappus_protocol::FromWorker;
use pappus_protocol::from_worker::Hello;
use pappus_protocol::pipe::{Got, Inbox};
use pappus_shmem::{SharedWords, ValidatedMemfd};

use super::panics::contained;
use super::runtime::Device;
use super::setup::MadeFor;
use super::standby::Ready;
use super::unusable::BringUpError;
use super::worker_channel::staging;
use crate::function::CodeTarget;
use crate::limits::WORKER_START_S;
use crate::processes::launcher::{Launcher, Role, SharedMemory, Started};
use crate::processes::process_table::ProcessReservation;
use crate::processes::target::DeviceTarget;

/// How long a standby that was taken has the processors before the next one starts: to start a process takes more of
/// them than to answer the call that it was taken for.
const HEAD_START: Duration = Duration::from_millis(10);

/// How long a process whose epoch ended while it started has to leave by itself, as its driver makes it. An MPS server
/// that recovers may never answer any process again where one that it is about to take is killed.
const LEAVE: Duration = Duration::from_millis(300);

/// How often to look whether all slots that want a process have one.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Starts a process, one that is made to be `shared` or not, and waits for its greeting. It is `urgent` if a slot waits for it.
pub(super) fn bring_up(
    device: &Device,
    launcher: &Launcher,
    shared: bool,
    urgent: bool,
) -> Result<Ready, BringUpError> {
    let mut reservation = device.processes.reserve_process(urgent).ok_or(BringUpError::Closing)?;
    let epoch = reservation.epoch();
    let _first = device.processes.until_measured();
    let MadeFor { edition, lanes, memory_bytes } = device.made_for();
    let shared_limit = shared.then_some(device.config.shared_limit);
    let target = DeviceTarget { shared_limit, ..DeviceTarget::with(&device.config, lanes, memory_bytes) };
    let (mut started, staging, turns) = start(launcher, &target, lanes).map_err(BringUpError::Start)?;
    if let Some(mps_terminator) = &device.mps {
        started.process.end_through(mps_terminator);
    }
    let greeted = await_hello(&reservation, &mut started.inbox);
    if reservation.is_over() {
        return Err(BringUpError::EpochOver);
    }
    let hello = greeted?;
    // What greeted then is a successor that was never handed over: it could not be killed.
    if started.process.has_ended() {
        return Err(BringUpError::EndedGreeting);
    }
    let target = CodeTarget::greeted(&hello)?;
    let config = &device.config;
    if (target.kind, &target.arch) != (config.kind, &config.arch) {
        return Err(BringUpError::WrongDevice { kind: target.kind, arch: target.arch });
    }
    let reached = started.process.reached(hello.layers);
    launcher.confinement().check(&reached)?;
    reservation.measured(hello.context_bytes);
    Ok(Ready { started, staging, turns, target, reservation, shared, epoch, edition, reached })
}

/// Starts a process for so many lanes, with memory of its own to share.
fn start(
    launcher: &Launcher,
    target: &DeviceTarget,
    lanes: u32,
) -> std::io::Result<(Started, ValidatedMemfd, Arc<SharedWords>)> {
    let staging = staging(lanes)?;
    let (turns, page) = SharedWords::create("pappus-turns")?;
    let memory = SharedMemory { staging: &staging, turns: &page };
    let started = launcher.start(Role::Serve, target, Some(memory))?;
    Ok((started, staging, Arc::new(turns)))
}

fn await_hello(reservation: &ProcessReservation, inbox: &mut Inbox) -> Result<Hello, BringUpError> {
    let mut until = Instant::now() + Duration::from_secs(WORKER_START_S);
    let mut over = false;
    loop {
        if reservation.is_over() && !std::mem::replace(&mut over, true) {
            until = until.min(Instant::now() + LEAVE);
        }
        if let Some(frame) = inbox.frame()? {
            return match FromWorker::decode(frame)? {
                FromWorker::Hello(hello) => Ok(hello),
                other => Err(BringUpError::Unexpected(format!("{other:?}"))),
            };
        }
        let left = until.saturating_duration_since(Instant::now());
        let look = reservation.looks_every().map_or(left, |every| left.min(every));
        match inbox.wait(Duration::ZERO, Some(look), None)? {
            Got::Closed => return Err(BringUpError::Ended),
            Got::Nothing if left.is_zero() => return Err(BringUpError::Late),
            _ => {}
        }
    }
}

/// Keeps one standby ready in a slot, as long as one is wanted there, until the device closes.
pub(super) fn keep(device: &Arc<Device>, slot: usize, launcher: &Launcher) {
    let standbys = &device.standbys;
    let mut pause = Duration::ZERO;
    while !device.is_closing() {
        // Workers come first, who may have calls already: processes that start together slow each other down.
        while device.slots.lacks_process() && !device.is_closing() {
            standbys.wait(slot, None, Some(LOOK_AGAIN));
        }
        if !standbys.wants(slot) {
            standbys.wait(slot, None, None);
            continue;
        }
        let begun = Instant::now();
        let brought_up = {
            // One at a time: to make a process costs all who use the device.
            let _making = standbys.making();
            let shared = device.config.stands_by_shared(slot);
            contained(|| bring_up(device, launcher, shared, false)).map_err(BringUpError::from).flatten()
        };
        let took = begun.elapsed();
        let watched = brought_up.and_then(|ready| standbys.offer(slot, ready, || device.epochs.current()));
        device.standbys_changed();
        let ended = match watched {
            Ok(pidfd) => loop {
                let ended = standbys.wait(slot, Some(&pidfd), None);
                if ended || device.is_closing() || !standbys.stays(slot, device.made_for().edition) {
                    break ended;
                }
            },
            Err(_) if device.is_closing() => break,
            Err(why) => {
                tracing::warn!(device = device.config.name, "a standby did not get ready: {why}");
                true
            }
        };
        // One that ended without serving, or is not wanted any more, is dropped and reaped. The next after one that ended
        // would hardly do better at once.
        drop(standbys.withdraw(slot));
        device.standbys_changed();
        pause = match ended {
            true => (pause * 2).clamp(Duration::from_millis(10), device.epochs.longest_pause()),
            // At most half of the time is spent on making them.
            false => HEAD_START.max(took),
        };
        if !device.is_closing() {
            standbys.wait(slot, None, Some(pause));
        }
    }
    drop(standbys.withdraw(slot));
}
