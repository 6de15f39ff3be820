//! The OS thread of one worker's slot: when a process is wanted there, puts one in it, a standby if one is ready, and
//! reads its answers until it ends.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pappus_protocol::pipe::{Got, Inbox};
use pappus_protocol::turn_page::Orders;
use pappus_protocol::{Fault, FromWorker};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::bring_up;
use super::ending::{Answer, Batch};
use super::panics::contained;
use super::reaper::Dying;
use super::runtime::Device;
use super::standby::Ready;
use super::turns_heard::TurnsHeard;
use super::unusable::{BringUpError, Unusable};
use super::worker_channel::{Arrival, Forget};
use crate::ids::{Epoch, Generation, WorkerId};
use crate::processes::launcher::{Launcher, Started};
use crate::schedule::CallId;

/// How long a process with calls has to say why it ends, when all end with it.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// A worker that lived shorter than this is replaced after a pause, the longer the more often.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// How long a thread does not sleep whose worker was told that its turn is near.
const SOON: Duration = Duration::from_millis(5);
/// How long the thread of a worker does not sleep that has the device while others wait for it; after that the worker is
/// about to overrun its turn, and a wake-up costs little beside that.
const WATCH: Duration = Duration::from_millis(5);
/// How long a worker that is about to leave by itself may take.
const LEAVE: Duration = Duration::from_millis(200);

/// A thread of a device.
type Spawned = std::io::Result<JoinHandle<()>>;

/// Starts the thread of a worker.
pub(super) fn spawn_worker(device: &Arc<Device>, launcher: &Arc<Launcher>, worker: usize) -> Spawned {
    let body = |device: &Arc<Device>, launcher: &Launcher, nth| run(device, WorkerId::new(nth), launcher);
    spawn(device, launcher, &worker.to_string(), worker, body)
}

/// Starts the thread of a standby.
pub(super) fn spawn_standby(device: &Arc<Device>, launcher: &Arc<Launcher>, slot: usize) -> Spawned {
    let body = |device: &Arc<Device>, launcher: &Launcher, nth| bring_up::keep(device, nth, launcher);
    spawn(device, launcher, &format!("standby{slot}"), slot, body)
}

/// Starts the thread for processes that end.
pub(super) fn spawn_reaper(device: &Arc<Device>, launcher: &Arc<Launcher>) -> Spawned {
    spawn(device, launcher, "reaper", 0, |device, _, _| device.reaper.run(&**device))
}

fn spawn(
    device: &Arc<Device>,
    launcher: &Arc<Launcher>,
    name: &str,
    nth: usize,
    body: fn(&Arc<Device>, &Launcher, usize),
) -> Spawned {
    let name = format!("{}/{name}", device.config.name);
    let (device, launcher) = (device.clone(), launcher.clone());
    std::thread::Builder::new().name(name).spawn(move || body(&device, &launcher, nth))
}

/// Puts a process in a worker's slot whenever one is wanted there, until the device closes.
fn run(device: &Arc<Device>, worker: WorkerId, launcher: &Launcher) {
    let mut pause = Duration::ZERO;
    let mut generations = (1..).map(Generation::new);
    pappus_protocol::cpu_affinity::pin_to_numa_node(device.config.numa_node);
    while until_wanted(device, worker) {
        let mut there = false;
        while !there && !device.is_closing() {
            let Some(generation) = generations.next() else { return };
            if generation > Generation::new(1) {
                device.slots.slot(worker).restarts.fetch_add(1, Ordering::Relaxed);
                device.metrics.restarts.increment(1);
            }
            let born = Instant::now();
            let ready = match device.take_standby(worker) {
                Some(ready) => Ok(ready),
                None => {
                    let made = contained(|| {
                        let shared = device.config.makes_shared(worker.get());
                        bring_up::bring_up(device, launcher, shared, true)
                    });
                    made.map_err(BringUpError::from).flatten()
                }
            };
            let served_well = match ready {
                Ok(ready) => {
                    there = true;
                    device.slots.arrived();
                    device.set_lost(false);
                    serve(device, worker, generation, ready)
                }
                Err(_) if device.is_closing() => return,
                Err(why) => {
                    tracing::warn!(worker = worker.get(), "a worker did not get ready: {why}");
                    if device.slots.have_no_process() {
                        device.set_lost(true);
                    }
                    false
                }
            };
            if device.is_closing() {
                return;
            }
            // A process that never served would fail again at once; others are replaced at once.
            pause = match !served_well && born.elapsed() < SHORT_LIFE {
                true => (pause * 2).clamp(Duration::from_millis(10), device.epochs.longest_pause()),
                false => Duration::ZERO,
            };
            rest(device, worker, pause);
        }
    }
}

/// Waits until a process is wanted in a worker's slot; false if the device closes.
fn until_wanted(device: &Device, worker: WorkerId) -> bool {
    let Ok(waker) = device.slots.channel(worker).waker() else { return false };
    loop {
        if device.is_closing() {
            return false;
        }
        if device.slots.take_wanted(worker) {
            return true;
        }
        let _ = rustix::event::poll(&mut [PollFd::new(&waker, PollFlags::IN)], None);
        waker.clear();
    }
}

/// Lets time pass, unless the device closes.
fn rest(device: &Device, worker: WorkerId, pause: Duration) {
    let Ok(waker) = device.slots.channel(worker).waker() else { return };
    let until = Instant::now() + pause;
    loop {
        waker.clear();
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || device.is_closing() {
            return;
        }
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let _ = rustix::event::poll(&mut [PollFd::new(&waker, PollFlags::IN)], Some(&timeout));
    }
}

/// Why a process is not read from any more.
#[derive(Debug)]
pub(super) enum End {
    /// The process closed its answers.
    Closed,
    /// The process was told to leave.
    Dismissed,
    /// The process said that it cannot run anything any more.
    Broken(Fault),
    /// The supervisor cannot use the process any more.
    Bad(Unusable),
}

/// Lets one process serve to its end, and hands it to the reaper. True if it did anything, or left because it
/// was told to.
fn serve(device: &Arc<Device>, worker: WorkerId, generation: Generation, ready: Ready) -> bool {
    let Ready { started, staging, turns, target, reservation, shared, epoch, edition, reached } = ready;
    let Started { process, mut inbox, outbox, control } = started;
    let completed = || device.slots.slot(worker).completed.load(Ordering::Relaxed);
    let before = completed();
    let mut heard = TurnsHeard::new(turns.clone());
    let attached = contained(|| {
        let (pid, killer) = (process.pid(), process.killer()?);
        let turns = Orders::new(turns);
        let arrival = Arrival {
            generation,
            pid,
            outbox,
            control,
            staging,
            turns,
            killer,
            target,
            states: device.states.clone(),
            shared,
            epoch,
            edition,
            reached,
        };
        device.events.attach(worker, arrival)
    });
    let end = match attached.map_err(Unusable::from).flatten() {
        // The device may have been closed before this process was there to be killed.
        Ok(()) if device.is_closing() => End::Bad(Unusable::TooLate),
        Ok(()) => {
            tracing::debug!(worker = worker.get(), pid = process.pid(), "worker ready");
            listen(device, worker, (generation, epoch), &mut inbox, &mut heard)
        }
        Err(why) => End::Bad(why),
    };
    let broken = matches!(end, End::Broken(_));
    let dismissed = matches!(end, End::Dismissed);
    if !dismissed && !process.ends_alone() && device.epochs.may_spread(worker, broken) {
        device.end_epoch(epoch, worker);
    }
    if epoch != device.epochs.current() {
        process.kill_now();
    }
    let taken = device.slots.channel(worker).detach();
    let lost = device.events.worker_gone(worker);
    if matches!(end, End::Closed) {
        // The process ended: nobody will read the rest of its pipe.
        device.events.never_read(&lost, taken);
    }
    let well = completed() > before || !lost.is_empty() || matches!(end, End::Dismissed);
    let (grace, why, broken) = match end {
        End::Closed | End::Dismissed => (LEAVE, None, None),
        // The process has said everything; killed at once, it frees its memory sooner.
        End::Broken(fault) => {
            (Duration::ZERO, Some(format!("its device context is lost: {fault}")), Some(fault))
        }
        End::Bad(why) => (Duration::ZERO, Some(why.to_string()), None),
    };
    let kill_at = Instant::now() + grace;
    let served = Some((worker, generation));
    let dying = Dying { process, kill_at, reservation, served, lost, broken, why };
    device.reaper.take(&**device, dying);
    well
}

/// Reads answers until there are no more. A panic is the end of this process only.
pub(super) fn listen(
    device: &Arc<Device>,
    worker: WorkerId,
    process: (Generation, Epoch),
    inbox: &mut Inbox,
    turns: &mut TurnsHeard,
) -> End {
    let end = contained(|| read_answers(device, worker, process, inbox, turns));
    end.map_err(Unusable::from).flatten().unwrap_or_else(End::Bad)
}

/// Reads answers until there are no more; an error means that the process broke the protocol.
fn read_answers(
    device: &Arc<Device>,
    worker: WorkerId,
    (generation, epoch): (Generation, Epoch),
    inbox: &mut Inbox,
    turns: &mut TurnsHeard,
) -> Result<End, Unusable> {
    let waker = device.slots.channel(worker).waker()?;
    // While something is queued that did not fit, look again soon.
    let retry = Duration::from_millis(1);
    let mut flushed = true;
    let mut batch = Batch::new(&device.completer);
    let mut alert = Duration::ZERO;
    loop {
        let heard = hear(device, worker, inbox, turns, &mut batch);
        // Calls before the worker's last answer are over.
        batch.settle();
        if let Some(end) = heard? {
            return Ok(end);
        }
        let spin = device.spin();
        let spin = match spin.is_zero() {
            true => spin,
            false if device.slots.channel(worker).is_watched() => WATCH,
            false => spin.max(std::mem::take(&mut alert)),
        };
        let timeout = (!flushed).then_some(retry);
        let got = inbox.wait_beside(spin, timeout, Some(waker.as_fd()), turns.page());
        match got? {
            Got::Closed => {
                return Ok(match device.slots.channel(worker).is_hung_up(generation) {
                    true => End::Dismissed,
                    false => End::Closed,
                });
            }
            Got::Nudged => {
                waker.clear();
                if epoch != device.epochs.current() {
                    return last_words(device, worker, inbox, turns);
                }
                let mut channel = device.slots.channel(worker);
                if channel.is_hung_up(generation) {
                    // It is about to leave, or does not want to.
                    return Ok(End::Dismissed);
                }
                flushed = channel.flush();
                if channel.take_soon() {
                    alert = SOON;
                }
            }
            Got::Bytes | Got::Nothing | Got::Beside if !flushed => {
                flushed = device.slots.channel(worker).flush();
            }
            Got::Bytes | Got::Nothing | Got::Beside => {}
        }
    }
}

/// Hears the last frames of a process whose epoch is over: if its call ran alone, they may name the guilty
/// kernel.
fn last_words(
    device: &Arc<Device>,
    worker: WorkerId,
    inbox: &mut Inbox,
    turns: &mut TurnsHeard,
) -> Result<End, Unusable> {
    let until = Instant::now() + LAST_WORDS;
    let mut batch = Batch::new(&device.completer);
    loop {
        let heard = hear(device, worker, inbox, turns, &mut batch);
        batch.settle();
        if let Some(end) = heard? {
            return Ok(end);
        }
        let left = until.saturating_duration_since(Instant::now());
        let got = inbox.wait(Duration::ZERO, Some(left), None)?;
        if got == Got::Closed || left.is_zero() {
            return Err(Unusable::EpochOver);
        }
    }
}

/// Takes in what was read; why to read no more, if so.
fn hear(
    device: &Arc<Device>,
    worker: WorkerId,
    inbox: &mut Inbox,
    turns: &mut TurnsHeard,
    batch: &mut Batch,
) -> Result<Option<End>, Unusable> {
    // What a worker wrote on the page before a frame is seen before that frame.
    turns.look(&device.events, worker)?;
    while let Some(frame) = inbox.frame()? {
        turns.look(&device.events, worker)?;
        match FromWorker::decode(frame)? {
            FromWorker::Done { call, timings } => {
                batch.finish(worker, CallId(call), Answer::Done(&timings))?;
                turns.answered();
            }
            FromWorker::Failed { call, fault } => {
                batch.finish(worker, CallId(call), Answer::Failed(&fault))?;
                turns.answered();
            }
            FromWorker::Yield => turns.woken()?,
            FromWorker::Leased { bytes } => device.events.leased(worker, bytes)?,
            FromWorker::Uninstalled { function } => {
                device.events.forgot(worker, function, Forget::Function)?;
            }
            FromWorker::Unloaded { function } => device.events.forgot(worker, function, Forget::Weights)?,
            FromWorker::Loaded { function, bytes } => device.events.loaded(worker, function, bytes, false)?,
            FromWorker::NotLoaded { function } => device.events.not_loaded(worker, function),
            FromWorker::NotInstalled { function } => device.events.not_installed(worker, function),
            FromWorker::Scrubbed { handover } => {
                // Before the first turn of the next domain.
                turns.forget();
                device.events.scrubbed(worker, handover)?;
            }
            FromWorker::Exported { function, bytes } => {
                device.events.loaded(worker, function, bytes, true)?;
            }
            FromWorker::State { arena, bytes } => {
                device.slots.channel(worker).state_opened(arena.get(), bytes)?;
            }
            FromWorker::Broken { fault } => return Ok(Some(End::Broken(fault.to_fault()))),
            other => return Err(Unusable::Unexpected(format!("{other:?}"))),
        }
    }
    turns.look(&device.events, worker)?;
    Ok(None)
}
