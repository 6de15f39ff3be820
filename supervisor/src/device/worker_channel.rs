//! The channel to the process in one worker's slot. The thread that caused a decision writes the frame, one thread at a
//! time and in the order of decisions; nothing here ever blocks on the worker.

mod installing;

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pappus_protocol::pipe::{Flushed, Outbox};
use pappus_protocol::to_worker::{Configure, Invoke, StateForm};
use pappus_protocol::turn_page::{Orders, Prices};
use pappus_protocol::{ArenaId, Layers, ProtocolError, ToWorker, control, now_ns};
use pappus_shmem::{SharedWords, ValidatedMemfd, memfd};

pub(super) use self::installing::Forget;
use self::installing::{Forgetting, Installed};
use super::command_order::{CommandOrder, Stalled};
use super::job::{Job, Lists, staged};
use super::weights::Memory;
use crate::arena::Arena;
use crate::call::Call;
use crate::function::CodeTarget;
use crate::ids::{Epoch, FunctionId, Generation, TurnId, WorkerId};
use crate::limits::STAGING_BYTES;
use crate::processes::confinement::Reached;
use crate::processes::process::Killer;
use crate::refusal::{Refusal, failed, internal};
use crate::schedule::weights::Supply;
use crate::schedule::{Address, Command};
use crate::state_room::{StateRoom, TakenRoom};
use crate::store::StateDir;
use crate::sync::Waker;

/// A fresh process and how to talk to it.
#[derive(Debug)]
pub(super) struct Arrival {
    /// Which process in this slot it is.
    pub(super) generation: Generation,
    /// Its process id, for people.
    pub(super) pid: u32,
    /// Commands to it.
    pub(super) outbox: Outbox,
    /// Descriptors to it.
    pub(super) control: OwnedFd,
    /// The arena for inline bytes, shared with the supervisor only.
    pub(super) staging: ValidatedMemfd,
    /// Tells the process that it has the device, and that other workers wait.
    pub(super) turns: Orders<Arc<SharedWords>>,
    /// Kills the process.
    pub(super) killer: Killer,
    /// The target of its machine code.
    pub(super) target: CodeTarget,
    /// What its device has for states of sessions.
    pub(super) states: Arc<StateRoom>,
    /// True if it is made to be shared.
    pub(super) shared: bool,
    /// A fault ends all processes of an epoch.
    pub(super) epoch: Epoch,
    /// The edition of the device's settings that the process was made for.
    pub(super) edition: u64,
    /// Layers of its sandbox.
    pub(super) reached: Reached,
}

/// The connected process: its functions, arenas and unsent frames.
#[derive(Debug)]
struct Connected {
    arrival: Arrival,
    installed: HashMap<FunctionId, Installed>,
    arenas: HashSet<u64>,
    /// Arenas with states of sessions that the process was asked to take to the device, and room for them there.
    settling: HashMap<u64, (Arc<Arena>, TakenRoom)>,
    clock: u64,
    /// Settings and requests for memory that the process did not answer yet, oldest first.
    unanswered: VecDeque<Asked>,
    /// Functions, or their weights, that the process was told to forget and did not confirm yet.
    forgetting: Vec<Forgetting>,
    /// The hand-over to another domain that it did not confirm.
    handover: Option<u64>,
    /// Commands that the process was told early.
    commands: CommandOrder<Command<Arc<Call>>>,
    /// True if the process was told that its turn is near, and the worker's thread was not yet.
    soon: bool,
    /// True if the process has the device while other workers wait.
    revoked: bool,
    /// Calls whose frames wait to be written.
    unwritten: Vec<Arc<Call>>,
    /// Scratch for one frame.
    lists: Lists,
}

/// What a process answers with what its lanes have of the device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// That settings are in force.
    Settings,
    /// That it gave memory back.
    Memory,
}

/// The channel to the process in one worker's slot.
#[derive(Debug)]
pub(super) struct WorkerChannel {
    process: Option<Connected>,
    waker: Waker,
}

/// An arena for inline bytes, for a process of so many lanes.
pub(super) fn staging(lanes: u32) -> std::io::Result<ValidatedMemfd> {
    memfd::arena("pappus-staging", STAGING_BYTES * u64::from(lanes)).map_err(std::io::Error::other)
}

/// Where a job goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Start {
    /// The worker.
    pub(super) worker: WorkerId,
    /// The lane.
    pub(super) lane: u32,
    /// True if its call is a suspect.
    pub(super) alone: bool,
    /// Device memory that the lane has.
    pub(super) memory_bytes: u64,
    /// When the worker ends the job.
    pub(super) until_ns: u64,
}

/// Why a call could not be handed over.
#[derive(Debug)]
pub(super) enum StartError {
    /// The call itself is at fault, or something it needs is missing.
    Refused(Refusal),
    /// The worker does not take what it must: it has to be replaced.
    Broken(ProtocolError),
}

impl WorkerChannel {
    /// Of an empty slot.
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self { process: None, waker: Waker::new()? })
    }

    /// Readable when the worker's thread should flush what is queued here.
    pub(super) fn waker(&self) -> std::io::Result<Waker> {
        self.waker.try_clone()
    }

    /// A fresh process is in the slot.
    pub(super) fn attach(&mut self, arrival: Arrival) {
        self.process = Some(Connected {
            arrival,
            installed: HashMap::new(),
            arenas: HashSet::new(),
            settling: HashMap::new(),
            clock: 0,
            unanswered: VecDeque::new(),
            forgetting: Vec::new(),
            handover: None,
            commands: CommandOrder::new(),
            soon: false,
            revoked: false,
            unwritten: Vec::new(),
            lists: Lists::default(),
        });
    }

    /// A command arrives: it is to be carried out now, and then those that [`WorkerChannel::next_command`] returns. None
    /// if its turn has not come, or if it is for a process that is gone.
    pub(super) fn admit(&mut self, to: Address, command: Command<Arc<Call>>) -> Option<Command<Arc<Call>>> {
        let process = self.process.as_mut().filter(|process| process.arrival.generation == to.generation)?;
        process.commands.admit(to.nth, command).unwrap_or_else(|Stalled| {
            tracing::error!(
                worker = to.worker.get(),
                pid = process.arrival.pid,
                "a worker's channel stalls: killing it"
            );
            process.arrival.killer.kill();
            None
        })
    }

    /// The next command, if it came early.
    pub(super) fn next_command(&mut self) -> Option<Command<Arc<Call>>> {
        self.process.as_mut()?.commands.take_next()
    }

    /// The process is gone, together with its staging, which is not cleared. Calls that were never written do
    /// not count as handed over. Returns how many of the sent bytes the process took.
    pub(super) fn detach(&mut self) -> u64 {
        let Some(process) = self.process.take() else { return u64::MAX };
        process.unwritten.iter().for_each(|call| never_handed(call));
        process.arrival.outbox.taken().unwrap_or(u64::MAX)
    }

    /// The process id, while there is a process.
    pub(super) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(|p| p.arrival.pid)
    }

    /// Layers of the process's sandbox; none while there is no process.
    pub(super) fn layers(&self) -> Layers {
        self.process.as_ref().map_or(Layers::default(), |p| p.arrival.reached.layers())
    }

    /// Kills the process, if it is still the one of this generation.
    pub(super) fn kill(&self, generation: Generation) {
        if let Some(process) = self.process.as_ref().filter(|p| p.arrival.generation == generation) {
            process.arrival.killer.kill();
        }
    }

    /// Kills the connected process, if any.
    pub(super) fn kill_any(&self) {
        if let Some(process) = &self.process {
            process.arrival.killer.kill();
        }
    }

    /// Kills the process if it is of that epoch or older: nothing of its work runs any more.
    pub(super) fn kill_epoch(&self, epoch: Epoch) {
        if let Some(process) = self.process.as_ref().filter(|p| p.arrival.epoch <= epoch) {
            process.arrival.killer.kill_now();
        }
    }

    /// Makes its thread look.
    pub(super) fn wake(&self) {
        self.waker.wake();
    }

    /// Closes the command pipe of an idle process, which then exits by itself; the worker's thread is told,
    /// and ends a process that lingers.
    pub(super) fn hang_up(&mut self) {
        if self.process.take().is_some() {
            self.waker.wake();
        }
    }

    /// True if the process that attached as `generation` was hung up on.
    pub(super) fn is_hung_up(&self, generation: Generation) -> bool {
        self.process.as_ref().is_none_or(|process| process.arrival.generation != generation)
    }

    /// Tells an idle process to forget everything of the domain that it served. It is treated as empty from here on.
    pub(super) fn scrub(&mut self, handover: u64) {
        let Some(process) = &mut self.process else { return };
        process.installed.clear();
        process.arenas.clear();
        process.handover = Some(handover);
        process.arrival.outbox.push_to_worker(&ToWorker::Scrub { handover });
        flush(process, &self.waker);
    }

    /// The process forgot its domain; false if nobody told it to.
    pub(super) fn scrubbed(&mut self, handover: u64) -> bool {
        let Some(process) = &mut self.process else { return true };
        // What it did not answer by now is of the domain that it was to forget.
        process.settling.clear();
        process.handover.take() == Some(handover)
    }

    /// New settings for the process.
    pub(super) fn configure(&mut self, configure: Configure) {
        if let Some(process) = &mut self.process {
            process.unanswered.push_back(Asked::Settings);
            process.arrival.outbox.push_to_worker(&ToWorker::Configure(configure));
            flush(process, &self.waker);
        }
    }

    /// Has lanes of the process give their memory back.
    pub(super) fn give_back(&mut self, lanes: u64) {
        if let Some(process) = &mut self.process {
            process.unanswered.push_back(Asked::Memory);
            process.arrival.outbox.push_to_worker(&ToWorker::GiveBack { lanes });
            flush(process, &self.waker);
        }
    }

    /// The process reports its lanes' memory: returns what it was asked, none if nothing. A process that is
    /// gone counts as asked for settings.
    pub(super) fn answered(&mut self) -> Option<Asked> {
        match &mut self.process {
            Some(process) => process.unanswered.pop_front(),
            None => Some(Asked::Settings),
        }
    }

    /// Tells the process that it has the device, with a limit while others wait.
    pub(super) fn grant(&mut self, turn: TurnId, prices: Prices) {
        self.watch(false);
        self.order(|turns| turns.grant(turn, prices));
    }

    /// Tells the process that others wait for the device.
    pub(super) fn revoke(&mut self, turn: TurnId) {
        self.watch(true);
        self.order(|turns| turns.revoke(turn));
    }

    /// Changes the turn page, behind what was decided before: calls that were handed over are in the pipe when the
    /// process sees its grant.
    fn order(&mut self, change: impl FnOnce(&mut Orders<Arc<SharedWords>>) -> bool) {
        if let Some(process) = &mut self.process {
            flush(process, &self.waker);
            if change(&mut process.arrival.turns) {
                process.arrival.outbox.push_to_worker(&ToWorker::Order);
                flush(process, &self.waker);
            }
        }
    }

    /// Others wait for the process to give its turn back, or not any more.
    pub(super) fn watch(&mut self, revoked: bool) {
        if let Some(process) = &mut self.process {
            process.revoked = revoked;
        }
    }

    /// True if others wait for the process to give its turn back.
    pub(super) fn is_watched(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.revoked)
    }

    /// Tells the process that its turn is next.
    pub(super) fn soon(&mut self) {
        if let Some(process) = &mut self.process {
            // The first answers must not wait for a sleeping thread.
            process.soon = true;
            self.waker.wake();
            process.arrival.outbox.push_to_worker(&ToWorker::Soon);
            flush(process, &self.waker);
        }
    }

    /// True if the process was told that its turn is near since this was asked last.
    pub(super) fn take_soon(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| std::mem::take(&mut process.soon))
    }

    /// Hands a job over, behind the functions, weights and arenas that the process lacks; [`WorkerChannel::write`] must
    /// follow. [`Call::started_ns`] tells afterwards whether it did.
    pub(super) fn start(
        &mut self,
        state: &StateDir,
        start: Start,
        job: &Job,
        load: Option<&Supply<Memory>>,
    ) -> Result<(), StartError> {
        let Some(process) = &mut self.process else { return Ok(()) };
        process.install(state, &job.call, load)?;
        process.send(start, job)
    }

    /// Has the process load the weights of a function whose call is about to start.
    pub(super) fn load(
        &mut self,
        state: &StateDir,
        call: &Call,
        load: &Supply<Memory>,
    ) -> Result<(), StartError> {
        let Some(process) = &mut self.process else { return Ok(()) };
        let done = process.install(state, call, Some(load));
        flush(process, &self.waker);
        done
    }

    /// True if the process has a function's weights or was told to load them.
    pub(super) fn has_weights(&self, function: FunctionId) -> bool {
        self.installed().any(|(installed, weights)| installed == function && weights)
    }

    /// What the weights take that the process has or is about to have.
    pub(super) fn weight_bytes(&self) -> u64 {
        self.process.iter().map(Connected::weight_bytes).sum()
    }

    /// The functions that the process has or is about to have, and whether their weights are among that.
    pub(super) fn installed(&self) -> impl Iterator<Item = (FunctionId, bool)> {
        self.process.iter().flat_map(Connected::installed)
    }

    /// Writes what waits, as far as it fits; the worker's thread writes the rest.
    pub(super) fn write(&mut self) {
        if let Some(process) = &mut self.process {
            flush(process, &self.waker);
        }
    }

    /// Writes what did not fit before; false if something is still left.
    pub(super) fn flush(&mut self) -> bool {
        match &mut self.process {
            None => true,
            // A broken pipe shows as the end of the answers as well.
            Some(process) => flushed(process) != Some(Flushed::Pending),
        }
    }

    /// Tells the process to forget an arena, after the calls it already has.
    pub(super) fn close_arena(&mut self, arena: u64) {
        if let Some(process) = &mut self.process
            && process.arenas.remove(&arena)
        {
            process.arrival.outbox.push_to_worker(&ToWorker::CloseArena { arena: ArenaId::new(arena) });
            flush(process, &self.waker);
        }
    }

    /// Tells the process to forget a function, after the calls it already has.
    pub(super) fn uninstall(&mut self, function: FunctionId) {
        if let Some(process) = &mut self.process {
            process.uninstall(function);
            flush(process, &self.waker);
        }
    }

    /// Tells the process to let the weights of a function go, which no call of it uses.
    pub(super) fn unload(&mut self, function: FunctionId) {
        if let Some(process) = &mut self.process {
            process.unload(function);
            flush(process, &self.waker);
        }
    }

    /// The descriptor that the process sent with a message about `id`.
    pub(super) fn receive(&self, id: u64) -> Result<OwnedFd, ProtocolError> {
        let missing = ProtocolError::Descriptors("none came");
        let process = self.process.as_ref().ok_or(ProtocolError::Descriptors("the process is gone"))?;
        control::recv(&process.arrival.control, id, 1)?.pop().ok_or(missing)
    }

    /// The process says whether a session's state is in memory of the device, whose descriptor it sent then.
    pub(super) fn state_opened(&mut self, arena: u64, bytes: u64) -> Result<(), ProtocolError> {
        let settling = self.process.as_mut().and_then(|process| process.settling.remove(&arena));
        let (state, taken) = settling.ok_or(ProtocolError::Header("a state that nobody asked for"))?;
        match bytes {
            0 => return Ok(()),
            bytes if bytes != state.memfd.bytes() => {
                return Err(ProtocolError::Header("a state of another size"));
            }
            _ => {}
        }
        let descriptor = self.receive(arena)?;
        state.settle(descriptor, taken);
        Ok(())
    }

    /// Takes inline output that begins at `offset` out of staging and clears it there.
    pub(super) fn take_staged(&self, offset: u64, bytes: u64) -> std::io::Result<Vec<u8>> {
        let staging = self.process.as_ref().map(|process| &process.arrival.staging);
        let staging = staging.ok_or(std::io::ErrorKind::NotConnected)?;
        let mut out = vec![0; bytes as usize];
        staging.read_at(offset, &mut out)?;
        const ZEROS: [u8; 4096] = [0; 4096];
        for start in (0..bytes).step_by(ZEROS.len()) {
            let left = (bytes - start).min(ZEROS.len() as u64) as usize;
            memfd::write_all_at(staging.as_fd(), offset + start, &ZEROS[..left])?;
        }
        Ok(out)
    }
}

impl Connected {
    /// Sends a job, behind the arenas that the process lacks.
    fn send(&mut self, start: Start, job: &Job) -> Result<(), StartError> {
        let Start { lane, alone, memory_bytes, until_ns, .. } = start;
        for (offset, call) in staged(job, lane) {
            self.bring(call, offset)?;
        }
        let descriptors = &job.call.descriptors;
        if !descriptors.is_empty() {
            let fds: Vec<_> = descriptors.iter().map(|memfd| memfd.as_fd()).collect();
            self.pass(job.id.0, &fds)?;
        }
        let flags = if alone { Invoke::ALONE } else { 0 };
        let invoke = self.lists.invoke(job, lane, memory_bytes, until_ns, flags);
        self.arrival.outbox.push_to_worker(&ToWorker::Invoke { call: job.id.0, invoke });
        let sent_at = self.arrival.outbox.pushed();
        let started_ns = now_ns();
        for (_, call) in job.calls() {
            call.sent_at.store(sent_at, Ordering::Relaxed);
            self.close_arenas(call);
            // Before the answer can come, and undone before the process counts as gone.
            call.started_ns.store(started_ns, Ordering::Relaxed);
            self.unwritten.push(call.clone());
        }
        Ok(())
    }

    /// Stages the inline inputs of a call from `offset` on, and opens the arenas that the process lacks. Nothing may fail behind that
    /// but the process: what it is to make for a session's state would be heard of when another call has the state.
    fn bring(&mut self, call: &Call, offset: u64) -> Result<(), StartError> {
        for inline in &call.inline {
            memfd::write_all_at(self.arrival.staging.as_fd(), offset + inline.offset, &inline.bytes)
                .map_err(|e| StartError::Refused(failed("cannot stage inline inputs", &e).into()))?;
        }
        if let Some(memory) =
            call.arenas.iter().find_map(|arena| arena.memory_elsewhere(&self.arrival.states))
        {
            let why = format!("{} has it", memory.device());
            return Err(StartError::Refused(
                internal("cannot find a session's state on this device", why).into(),
            ));
        }
        for arena in &call.arenas {
            if self.arenas.insert(arena.id) {
                self.open(arena)?;
            }
        }
        Ok(())
    }

    /// Opens an arena; of a session's state, what the device has in its place.
    fn open(&mut self, arena: &Arc<Arena>) -> Result<(), StartError> {
        let id = ArenaId::new(arena.id);
        let form = if let Some(memory) = arena.device_memory() {
            self.pass(arena.id, &[arena.memfd.as_fd(), memory.descriptor()])?;
            Some(StateForm::Device)
        } else {
            let taken = arena.ask_for_room(&self.arrival.states);
            self.pass(arena.id, &[arena.memfd.as_fd()])?;
            taken.map(|taken| {
                self.settling.insert(arena.id, (arena.clone(), taken));
                StateForm::Make
            })
        };
        self.arrival.outbox.push_to_worker(&match form {
            Some(form) => ToWorker::OpenState { arena: id, form },
            None => ToWorker::OpenArena { arena: id },
        });
        Ok(())
    }

    /// Closes arenas of a call that were closed while the call waited: the closer does not come back. Closed after this look, the
    /// closer finds them among the process's arenas.
    fn close_arenas(&mut self, call: &Call) {
        for arena in call.arenas.iter().filter(|arena| arena.is_closed()) {
            if self.arenas.remove(&arena.id) {
                let closed = ToWorker::CloseArena { arena: ArenaId::new(arena.id) };
                self.arrival.outbox.push_to_worker(&closed);
            }
        }
    }

    /// Passes a frame's descriptors, to be written next. The socket holds few that were not taken, so
    /// calls that wait are written first.
    fn pass(&mut self, id: u64, descriptors: &[BorrowedFd<'_>]) -> Result<(), StartError> {
        if !self.unwritten.is_empty() {
            flushed(self);
        }
        control::send(self.arrival.control.as_fd(), id, descriptors).map_err(StartError::Broken)
    }
}

/// A call does not count as handed over after all.
pub(super) fn never_handed(call: &Call) {
    call.started_ns.store(0, Ordering::Relaxed);
}

/// Writes now what fits; the worker's thread writes the rest. That the process reads no more shows as the end
/// of the answers as well, where the worker's thread handles it.
fn flush(process: &mut Connected, waker: &Waker) {
    if flushed(process) == Some(Flushed::Pending) {
        waker.wake();
    }
}

/// Writes now what fits; none if the process reads no more.
fn flushed(process: &mut Connected) -> Option<Flushed> {
    match process.arrival.outbox.flush() {
        Ok(flushed) => {
            process.unwritten.clear();
            Some(flushed)
        }
        Err(e) => {
            // A process that reads no more ends by itself; one that goes on without its commands must be killed.
            if e.kind() != std::io::ErrorKind::BrokenPipe {
                let pid = process.arrival.pid;
                tracing::warn!(pid, "a worker cannot be told its commands and is replaced: {e}");
                process.arrival.killer.kill();
            }
            None
        }
    }
}
