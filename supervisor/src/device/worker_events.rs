//! What happens to a device's workers: they come, yield, get settings, and go with their calls.

use std::sync::atomic::Ordering;

use pappus_protocol::to_worker::Configure;
use pappus_protocol::{Fault, now_ns};

use super::runtime::{Actions, Device, Lost, lock, takes_turns};
use super::worker_channel::{Arrival, never_handed};
use crate::call::Outcome;
use crate::function::CodeTarget;
use crate::schedule::WorkerId;
use crate::schedule::weights::ZombieId;

const NOT_ITS_TURN: &str = "it yielded a turn that it does not have";

impl Device {
    /// A worker's settings.
    pub(super) fn configure(&self, worker: WorkerId) -> Configure {
        Configure {
            lease_bytes: self.slots[worker].lease_bytes.load(Ordering::Relaxed),
            poll_us: self.settings.borrow().poll_us,
            turns: takes_turns(&self.config),
            scrub_calls: self.config.scrub_calls,
            scrub_switch: self.config.scrub_switch,
        }
    }

    /// Settings changed: workers are told.
    pub fn reconfigure(&self) {
        let policy = self.settings.borrow().policy();
        let mut actions = Actions::new();
        self.decide(|scheduler| scheduler.set_policy(now_ns(), policy, &mut actions));
        self.perform(actions);
        let _whole = lock(&self.whole);
        for worker in 0..self.slots.len() {
            self.link(worker).configure(self.configure(worker));
        }
    }

    /// A process takes a worker's place; it is told its settings.
    pub fn attach(&self, worker: WorkerId, arrival: Arrival, lease_bytes: u64) -> std::io::Result<()> {
        {
            let whole = lock(&self.whole);
            let slot = &self.slots[worker];
            slot.own_bytes.store(lease_bytes, Ordering::Relaxed);
            slot.lease_bytes.store(whole.lease_of(self, worker), Ordering::Relaxed);
            self.link(worker).attach(arrival, self.configure(worker))?;
        }
        self.advance();
        Ok(())
    }

    /// A fresh process is ready for calls.
    pub fn worker_ready(&self, worker: WorkerId, generation: u64, target: &CodeTarget, epoch: u64) {
        self.targets.send_if_modified(|known| target.learn(known));
        let mut actions = Actions::new();
        self.decide(|scheduler| {
            // One of an earlier epoch is as good as gone.
            if epoch == self.epoch() {
                scheduler.worker_ready(now_ns(), worker, generation, &mut actions);
            }
        });
        self.perform(actions);
    }

    /// A worker's lanes run empty for the next one.
    pub fn yielding(&self, worker: WorkerId, turn: u64) -> Result<(), &'static str> {
        let mut actions = Actions::new();
        let holds = self.decide(|scheduler| scheduler.yielding(worker, turn, &mut actions));
        self.perform(actions);
        if holds { Ok(()) } else { Err(NOT_ITS_TURN) }
    }

    /// A worker gives its turn back.
    pub fn yielded(&self, worker: WorkerId, turn: u64, used_ns: u64) -> Result<(), &'static str> {
        let mut actions = Actions::new();
        let held = self.decide(|scheduler| scheduler.yielded(now_ns(), worker, turn, used_ns, &mut actions));
        self.perform(actions);
        if held { Ok(()) } else { Err(NOT_ITS_TURN) }
    }

    /// A worker's settings are in force.
    pub fn leased(&self, worker: WorkerId, bytes: u64) -> Result<(), &'static str> {
        self.slots[worker].leased_bytes.store(bytes, Ordering::Relaxed);
        if !self.link(worker).configured() {
            return Err("it confirmed settings that it was not sent");
        }
        self.advance();
        Ok(())
    }

    /// A worker sends what names a function's weights in device memory.
    pub fn exported(&self, worker: WorkerId, function: u64, bytes: u64) -> Result<(), String> {
        let fd = self.link(worker).receive(function).map_err(|e| e.to_string())?;
        let weights = self.weights.as_ref().ok_or("it sent weights that nobody asked for")?;
        Ok(weights.exported(function, worker, fd, bytes)?)
    }

    /// A worker is idle and told to forget the domain that it served, to serve another one.
    pub(super) fn scrub(&self, worker: WorkerId, generation: u64) {
        let handover = self.handovers.fetch_add(1, Ordering::Relaxed);
        self.link(worker).scrub(generation, handover);
    }

    /// A worker forgot the domain that it served.
    pub fn scrubbed(&self, worker: WorkerId, handover: u64) -> Result<(), &'static str> {
        const NOT_ASKED: &str = "it confirmed a scrub that nobody asked for";
        if !self.link(worker).scrubbed(handover) {
            return Err(NOT_ASKED);
        }
        if let Some(weights) = &self.weights {
            weights.scrubbed(worker);
        }
        self.slot(worker).scrubs.fetch_add(1, Ordering::Relaxed);
        self.metrics.scrubs.increment(1);
        let mut actions = Actions::new();
        let asked = self.decide(|scheduler| scheduler.scrubbed(now_ns(), worker, &mut actions));
        self.perform(actions);
        // One that took too long is about to be killed.
        if !asked {
            tracing::debug!(worker, "a worker was scrubbed too late");
        }
        Ok(())
    }

    /// A worker forgot a function: its memory there is free.
    pub fn uninstalled(&self, worker: WorkerId, function: u64) -> Result<(), &'static str> {
        if !self.link(worker).uninstalled(function) {
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
        self.slots[worker].leased_bytes.store(0, Ordering::Relaxed);
        let zombie = self.weights.as_ref().map_or(ZombieId::default(), |weights| weights.worker_gone(worker));
        let mut actions = Actions::new();
        let lost = self.decide(|scheduler| scheduler.worker_gone(now_ns(), worker, &mut actions));
        self.perform(actions);
        (lost, zombie)
    }

    /// Lost calls whose frame lies behind what their process took do not count as handed over: it ended
    /// before it knew of them.
    pub fn never_read(&self, lost: &[Lost], taken: u64) {
        let unread = lost.iter().filter(|(_, call)| call.sent_at.load(Ordering::Relaxed) > taken);
        unread.for_each(|(_, call)| never_handed(call, self.weights.as_ref()));
    }

    /// Lost calls run again, or are answered: how their process ended, and what it said before.
    pub fn bury(&self, lost: Vec<Lost>, ended: &str, broken: Option<&Fault>) {
        for (id, call) in lost {
            let handed = call.started_ns.swap(0, Ordering::Relaxed) != 0;
            if handed {
                call.zero_outputs();
                if let Some(weights) = &self.weights {
                    weights.end(&call.function);
                }
            }
            let mut actions = Actions::new();
            let over = self.decide(|scheduler| scheduler.buried(now_ns(), id, handed, &mut actions));
            self.perform(actions);
            if let Some((call, why)) = over {
                self.metrics.failed.increment(1);
                let (process, broken) = (ended.to_owned(), broken.cloned());
                self.complete(&call, Outcome::Lost { why, process, broken });
            }
        }
    }
}
