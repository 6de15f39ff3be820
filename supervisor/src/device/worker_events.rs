//! What happens to a device's workers: they come, yield, get settings, and go with their calls.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pappus_protocol::FaultCode;
use tokio::sync::watch;

use super::commands::{CommandRunner, ProcessEnd};
use super::decisions::{Actions, Decisions};
use super::panics::contained;
use super::reaper::{Lost, Remains};
use super::setup::MadeFor;
use super::unusable::Unusable;
use super::weights::SLACK_BYTES;
use super::worker_channel::{Arrival, Asked, Forget, never_handed};
use super::worker_slots::WorkerSlots;
use crate::function::CodeTarget;
use crate::ids::{FunctionId, TurnId, WorkerId};
use crate::metrics::DeviceMetrics;
use crate::processes::process_table::ProcessTable;
use crate::schedule::Loss;
use crate::schedule::events::{
    Clearing, GaveBack, Gone, LoadFailed, Loaded, NotLoaded, Ready, Reaped, Scrubbed, WeightsLeft, Yielded,
    Yielding,
};
use crate::sync::{OrderedMutex, rank};

/// Takes in what workers report, and what happens to their processes.
#[derive(Debug)]
pub(super) struct WorkerEvents {
    pub(super) metrics: Arc<DeviceMetrics>,
    pub(super) processes: Arc<ProcessTable>,
    pub(super) slots: Arc<WorkerSlots>,
    pub(super) decisions: Arc<Decisions>,
    pub(super) commands: Arc<CommandRunner>,
    /// What processes are made for.
    pub(super) made_for: Arc<OrderedMutex<MadeFor, { rank::MADE_FOR }>>,
    /// What machine code must be made for, as far as workers said so.
    pub(super) targets: watch::Sender<Vec<CodeTarget>>,
}

impl WorkerEvents {
    /// A process is in a worker's slot and ready for calls, unless its epoch is over, or it was made for
    /// settings of before. No such process gets further than here: both change with the scheduler locked. Nor does one that is made
    /// for another slot: what keeps strangers apart in it is not the same.
    pub(super) fn attach(&self, worker: WorkerId, arrival: Arrival) -> Result<(), Unusable> {
        if arrival.shared != self.commands.config.makes_shared(worker.get()) {
            return Err(Unusable::WrongSlot);
        }
        self.targets.send_if_modified(|known| arrival.target.learn(known));
        let (generation, epoch, edition) = (arrival.generation, arrival.epoch, arrival.edition);
        self.slots.channel(worker).attach(arrival);
        let mut actions = Actions::default();
        self.decisions.decide(&mut actions, |deciding| {
            if epoch != self.processes.epoch() {
                return Err(Unusable::EpochOver);
            }
            if edition != self.made_for.lock().edition {
                return Err(Unusable::Outdated);
            }
            deciding.handle(Ready { worker, generation });
            Ok(())
        })?;
        self.commands.carry_out(&mut actions, None);
        Ok(())
    }

    /// A worker's lanes run empty for the next one.
    pub(super) fn yielding(&self, worker: WorkerId, turn: TurnId) -> Result<(), Unusable> {
        if self.commands.handle(Yielding { worker, turn }) { Ok(()) } else { Err(Unusable::NotItsTurn) }
    }

    /// A worker gives its turn back, having answered so many calls of which the scheduler does not know yet. Where others
    /// wait for its lanes, they stand in line with their tenant only once the scheduler knows: false says that this is to
    /// be said again then.
    pub(super) fn yielded(
        &self,
        worker: WorkerId,
        turn: TurnId,
        used_ns: u64,
        answered: u64,
    ) -> Result<bool, Unusable> {
        let mut actions = Actions::default();
        // Before the next turn, which may be this worker's again.
        self.slots.channel(worker).watch(false);
        let had_it = self.decisions.decide(&mut actions, |deciding| {
            if answered > 0 && deciding.has_queued_for(worker) {
                return None;
            }
            Some(deciding.handle(Yielded { worker, turn, used_ns, answered }))
        });
        self.commands.carry_out(&mut actions, None);
        match had_it {
            Some(true) => Ok(true),
            Some(false) => Err(Unusable::NotItsTurn),
            None => {
                self.slots.channel(worker).watch(true);
                Ok(false)
            }
        }
    }

    /// A worker's settings are in force, or it gave memory back; its lanes have so much.
    pub(super) fn leased(&self, worker: WorkerId, left_bytes: u64) -> Result<(), Unusable> {
        let asked = self.slots.channel(worker).answered();
        match asked {
            None => Err(Unusable::SettingsNotSent),
            Some(Asked::Settings) => Ok(()),
            Some(Asked::Memory) => match self.commands.handle(GaveBack { worker, left_bytes }) {
                true => Ok(()),
                false => Err(Unusable::MemoryKept),
            },
        }
    }

    /// A worker has a function's weights; `exports` says that it sent a descriptor of their memory.
    pub(super) fn loaded(
        &self,
        worker: WorkerId,
        function: FunctionId,
        bytes: u64,
        exports: bool,
    ) -> Result<(), Unusable> {
        let (fd, is_outdated, asked_bytes) = {
            let channel = self.slots.channel(worker);
            let fd = exports.then(|| channel.receive(function.get())).transpose()?;
            (fd, channel.is_forgetting(function), channel.asked_bytes(function))
        };
        // The worker said so before it heard that the weights must go: by now it may have been told to load
        // them again.
        let Some(asked_bytes) = asked_bytes.filter(|_| !is_outdated) else { return Ok(()) };
        let has_own_memory = self.commands.config.kind.traits().has_own_memory;
        if !has_own_memory && fd.is_some() {
            return Err(Unusable::WeightsNotAsked);
        }
        // Memory that other weights left may be an eighth larger.
        let slack_bytes = if has_own_memory { asked_bytes / 8 + SLACK_BYTES } else { 0 };
        if bytes > asked_bytes.saturating_add(slack_bytes) {
            return Err(Unusable::WeightsTooLarge);
        }
        let mut actions = Actions::default();
        let as_told = self.decisions.decide(&mut actions, |deciding| {
            let memory = match fd {
                Some(fd) => Some(Some(Arc::new(fd))),
                // There is nothing to name.
                None if !has_own_memory && deciding.weights().is_loader(function, worker) => Some(None),
                None => None,
            };
            deciding.handle(Loaded { worker, function, memory, bytes })
        });
        self.commands.carry_out(&mut actions, None);
        if as_told { Ok(()) } else { Err(Unusable::WeightsOfAnother) }
    }

    /// A function's weights do not load in a worker.
    pub(super) fn not_loaded(&self, worker: WorkerId, function: FunctionId) {
        if !self.slots.channel(worker).is_forgetting(function) {
            self.commands.handle(NotLoaded { worker, function });
        }
    }

    /// A function does not load in a worker, which forgets it, so that the next call has it loaded afresh.
    pub(super) fn not_installed(&self, worker: WorkerId, function: FunctionId) {
        if !self.slots.channel(worker).is_forgetting(function) {
            self.commands.handle(LoadFailed { worker, function });
        }
    }

    /// A worker forgot its domain.
    pub(super) fn scrubbed(&self, worker: WorkerId, handover: u64) -> Result<(), Unusable> {
        if !self.slots.channel(worker).scrubbed(handover) {
            return Err(Unusable::ScrubNotAsked);
        }
        self.slots.slot(worker).scrubs.fetch_add(1, Ordering::Relaxed);
        self.metrics.scrubs.increment(1);
        // One that took too long is about to be killed.
        if !self.commands.handle(Scrubbed { worker }) {
            tracing::debug!(worker = worker.get(), "a worker was scrubbed too late");
        }
        Ok(())
    }

    /// A worker forgot a function, or its weights: their memory there is free.
    pub(super) fn forgot(
        &self,
        worker: WorkerId,
        function: FunctionId,
        what: Forget,
    ) -> Result<(), Unusable> {
        let had_weights = self.slots.channel(worker).forgot(function, what);
        let had_weights = had_weights.ok_or(Unusable::UninstallNotAsked)?;
        // It may have been told to load them again since: then they do not go.
        if had_weights {
            self.commands.handle(WeightsLeft { worker, function });
        }
        Ok(())
    }

    /// A process takes no more calls: those in it are lost. [`WorkerEvents::bury`] must follow once nothing
    /// of the process is left that could write to their regions.
    pub(super) fn worker_gone(&self, worker: WorkerId) -> Vec<Lost> {
        self.commands.handle(Gone { worker })
    }

    /// Lost calls whose frames the process did not take do not count as handed over: the process ended
    /// without knowing them.
    pub(super) fn never_read(&self, lost: &[Lost], taken: u64) {
        let unread = lost.iter().filter(|(_, call)| call.sent_at.load(Ordering::Relaxed) > taken);
        unread.for_each(|(_, call)| never_handed(call));
    }

    /// Lost calls run again, or are answered, once what they wrote is cleared: how their process ended. After a panic
    /// about one call, the others are decided about all the same.
    pub(super) fn bury(&self, lost: Vec<Lost>, end: &ProcessEnd, from_outside: bool) {
        for call in lost {
            if let Err(why) = contained(|| self.bury_one(call, end, from_outside)) {
                tracing::error!("it is not decided about a call whose process is gone: {why}");
            }
        }
    }

    /// True if a process may have failed for another's sake. Under MPS, that of a process which was killed in the middle of a kernel
    /// hits others up to 0.2 s later.
    fn is_unexplained(&self, end: &ProcessEnd) -> bool {
        self.commands.config.under_mps
            && end.broken.as_ref().is_some_and(|fault| fault.code == FaultCode::Device)
    }

    fn bury_one(&self, (id, call): Lost, end: &ProcessEnd, from_outside: bool) {
        let handed = call.started_ns.swap(0, Ordering::Relaxed) != 0;
        let loss = match (handed, from_outside) {
            (false, _) => Loss::NeverHanded,
            (true, true) => Loss::EndedFromOutside,
            (true, false) if self.is_unexplained(end) => Loss::Unexplained,
            (true, false) => Loss::InIt,
        };
        let outputs = call.written_regions().filter(|_| handed);
        // A client that keeps the memory from being written must not keep the call, for which draining waits.
        drop(call);
        let Some(outputs) = outputs else { return self.commands.bury(id, loss, end.clone()) };
        let Some(until_ns) = self.commands.handle(Clearing { id }) else { return };
        let (commands, end) = (self.commands.clone(), end.clone());
        outputs.clear(until_ns, move || commands.bury(id, loss, end));
    }

    /// A process is reaped: its memory is free, and nothing writes to the regions of its calls.
    pub(super) fn reaped(&self, remains: Remains) {
        let Remains { served, lost, ended, broken, from_outside } = remains;
        if let Some((worker, generation)) = served {
            self.commands.handle(Reaped { worker, generation, from_outside });
        }
        self.bury(lost, &ProcessEnd { ended, broken }, from_outside);
    }
}
