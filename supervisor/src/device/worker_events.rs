//! What happens to a device's workers: they come, yield, get settings, and go with their calls.

use std::sync::atomic::Ordering;

use pappus_protocol::to_worker::Configure;
use pappus_protocol::{Fault, now_ns};

use super::reaper::{Home, Lost, Remains};
use super::runtime::{Actions, Device, takes_turns};
use super::worker_channel::{Arrival, never_handed};
use crate::call::Outcome;
use crate::ids::{FunctionId, TurnId, WorkerId};
use crate::schedule::Loss;
use crate::schedule::events::{
    Buried, Confirmed, Gone, Ready, Reaped, Scrubbed, SetPolicy, SettingsChanged, Yielded, Yielding,
};
use crate::schedule::weights::ZombieId;

/// Why a process is not used any more whose epoch is over.
pub(super) const ANOTHER_FAILED: &str = "another process failed, and all with it";
const NOT_ITS_TURN: &str = "it yielded a turn that it does not have";

impl Device {
    /// A worker's settings.
    pub(super) fn configure(&self, worker: WorkerId) -> Configure {
        Configure {
            lease_bytes: self.slot(worker).lease_bytes.load(Ordering::Relaxed),
            poll_us: self.settings.borrow().poll_us,
            turns: takes_turns(&self.config),
            scrub_calls: self.config.scrub_calls,
            scrub_switch: self.config.scrub_switch,
        }
    }

    /// Settings changed: workers are told.
    pub fn reconfigure(&self) {
        let policy = self.settings.borrow().policy();
        self.handle(SetPolicy { policy });
        self.handle(SettingsChanged {});
    }

    /// A process is in a worker's slot and ready for calls, unless its epoch is over. No process of an epoch that is
    /// over gets further than here: epochs end with the scheduler locked.
    pub fn attach(&self, worker: WorkerId, arrival: Arrival, lease_bytes: u64) -> Result<(), &'static str> {
        self.targets.send_if_modified(|known| arrival.target.learn(known));
        self.slot(worker).own_bytes.store(lease_bytes, Ordering::Relaxed);
        let (generation, epoch) = (arrival.generation, arrival.epoch);
        self.channel(worker).attach(arrival);
        let mut actions = Actions::new();
        self.decide(|scheduler| {
            if epoch != self.epoch() {
                return Err(ANOTHER_FAILED);
            }
            scheduler.handle(now_ns(), Ready { worker, generation }, &mut actions);
            Ok(())
        })?;
        self.carry_out(&mut actions, None);
        Ok(())
    }

    /// A worker's lanes run empty for the next one.
    pub fn yielding(&self, worker: WorkerId, turn: TurnId) -> Result<(), &'static str> {
        if self.handle(Yielding { worker, turn }) { Ok(()) } else { Err(NOT_ITS_TURN) }
    }

    /// A worker gives its turn back.
    pub fn yielded(&self, worker: WorkerId, turn: TurnId, used_ns: u64) -> Result<(), &'static str> {
        if self.handle(Yielded { worker, turn, used_ns }) { Ok(()) } else { Err(NOT_ITS_TURN) }
    }

    /// A worker's settings are in force.
    pub fn leased(&self, worker: WorkerId, bytes: u64) -> Result<(), &'static str> {
        self.slot(worker).leased_bytes.store(bytes, Ordering::Relaxed);
        if !self.channel(worker).configured() {
            return Err("it confirmed settings that it was not sent");
        }
        self.handle(Confirmed { worker });
        Ok(())
    }

    /// A worker sends what names a function's weights in device memory.
    pub fn exported(&self, worker: WorkerId, function: FunctionId, bytes: u64) -> Result<(), String> {
        let fd = self.channel(worker).receive(function.get()).map_err(|e| e.to_string())?;
        let weights = self.weights.as_ref().ok_or("it sent weights that it was not asked for")?;
        Ok(weights.exported(function, worker, fd, bytes)?)
    }

    /// A worker forgot the domain that it served.
    pub fn scrubbed(&self, worker: WorkerId, handover: u64) -> Result<(), &'static str> {
        const NOT_ASKED: &str = "it confirmed a scrub that it was not asked for";
        if !self.channel(worker).scrubbed(handover) {
            return Err(NOT_ASKED);
        }
        if let Some(weights) = &self.weights {
            weights.scrubbed(worker);
        }
        self.slot(worker).scrubs.fetch_add(1, Ordering::Relaxed);
        self.metrics.scrubs.increment(1);
        // One that took too long is about to be killed.
        if !self.handle(Scrubbed { worker }) {
            tracing::debug!(worker = worker.get(), "a worker was scrubbed too late");
        }
        Ok(())
    }

    /// A worker forgot a function: its memory there is free.
    pub fn uninstalled(&self, worker: WorkerId, function: FunctionId) -> Result<(), &'static str> {
        if !self.channel(worker).uninstalled(function) {
            return Err("it forgot a function that it was not told to");
        }
        if let Some(weights) = &self.weights {
            weights.uninstalled(function, worker);
        }
        Ok(())
    }

    /// A process takes no more calls: those in it are lost. [`Device::bury`] must follow once nothing
    /// of the process is left that could write to their regions.
    ///
    /// Also what names its weights until it is reaped, for [`WeightStore::reaped`].
    ///
    /// [`WeightStore::reaped`]: super::weights::WeightStore::reaped
    pub fn worker_gone(&self, worker: WorkerId) -> (Vec<Lost>, ZombieId) {
        self.slot(worker).leased_bytes.store(0, Ordering::Relaxed);
        let zombie = self.weights.as_ref().map_or(ZombieId::default(), |weights| weights.worker_gone(worker));
        (self.handle(Gone { worker }), zombie)
    }

    /// Lost calls whose frame lies behind what their process took do not count as handed over: it ended
    /// before it knew of them.
    pub fn never_read(&self, lost: &[Lost], taken: u64) {
        let unread = lost.iter().filter(|(_, call)| call.sent_at.load(Ordering::Relaxed) > taken);
        unread.for_each(|(_, call)| never_handed(call, self.weights.as_ref()));
    }

    /// Lost calls run again, or are answered: how their process ended, and what it said before.
    pub fn bury(&self, lost: Vec<Lost>, ended: &str, broken: Option<&Fault>, from_outside: bool) {
        for (id, call) in lost {
            let handed = call.started_ns.swap(0, Ordering::Relaxed) != 0;
            if handed {
                call.zero_outputs();
                if let Some(weights) = &self.weights {
                    weights.end(&call.function);
                }
            }
            let loss = match (handed, from_outside) {
                (false, _) => Loss::NeverHanded,
                (true, true) => Loss::EndedFromOutside,
                (true, false) => Loss::InIt,
            };
            if let Some((call, why)) = self.handle(Buried { id, loss }) {
                self.metrics.failed.increment(1);
                let (process, broken) = (ended.to_owned(), broken.cloned());
                self.complete(&call, Outcome::Lost { why, process, broken });
            }
        }
    }
}

impl Home for Device {
    fn is_closing(&self) -> bool {
        Device::is_closing(self)
    }

    fn reaped(&self, remains: Remains) {
        let Remains { served, lost, zombie, ended, broken, from_outside } = remains;
        if let Some(weights) = &self.weights {
            weights.reaped(zombie);
        }
        if let Some((worker, generation)) = served {
            self.handle(Reaped { worker, generation, from_outside });
        }
        self.bury(lost, &ended, broken.as_ref(), from_outside);
    }
}
