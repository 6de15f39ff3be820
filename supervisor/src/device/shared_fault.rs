//! Under MPS, a fault of one process ends the work of all, also of those that have none now and would find out later.
//! All processes of a device are of one *epoch*; a fault ends it, and all of them are replaced.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::decisions::{Actions, Decisions};
use super::worker_slots::WorkerSlots;
use crate::config::DeviceConfig;
use crate::ids::{Epoch, WorkerId};
use crate::processes::process_table::ProcessTable;
use crate::schedule::events::EpochEnded;
use crate::sync::{OrderedMutex, rank};

/// Longest pause after processes that do not get ready.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How long the device's daemon may refuse processes after an epoch ended: 0.3 to 0.6 s were seen, once 5.8 s.
const RECOVERY: Duration = Duration::from_secs(10);

/// Longest pause meanwhile: what is waited for is that daemon alone.
const RECOVERING_PAUSE: Duration = Duration::from_millis(100);

/// The epochs of one device.
#[derive(Debug)]
pub(super) struct EpochGuard {
    config: Arc<DeviceConfig>,
    decisions: Arc<Decisions>,
    slots: Arc<WorkerSlots>,
    processes: Arc<ProcessTable>,
    /// When a fault ended all processes last.
    ended: OrderedMutex<Option<Instant>, { rank::EPOCH }>,
}

impl EpochGuard {
    /// Of the device that these belong to.
    pub(super) fn new(
        config: Arc<DeviceConfig>,
        decisions: Arc<Decisions>,
        slots: Arc<WorkerSlots>,
        processes: Arc<ProcessTable>,
    ) -> Self {
        Self { config, decisions, slots, processes, ended: OrderedMutex::new(None) }
    }

    /// How long to wait at most before another process is started after some that did not get ready.
    pub(super) fn longest_pause(&self) -> Duration {
        match self.ended.lock().is_some_and(|at| at.elapsed() < RECOVERY) {
            true => RECOVERING_PAUSE,
            false => LONGEST_PAUSE,
        }
    }

    /// The epoch that processes started now belong to.
    pub(super) fn current(&self) -> Epoch {
        self.processes.epoch()
    }

    /// True if the end of a worker's process can have hit others: it said that its context is lost, or had calls.
    pub(super) fn may_spread(&self, worker: WorkerId, broken: bool) -> bool {
        self.config.under_mps && (broken || self.decisions.ask().has_calls(worker))
    }

    /// A process of an epoch failed, and all with it: those in workers' slots are ended. The calls in them run again,
    /// each alone on the device, so that no call answers for another's fault. True if this was the first to fail: the
    /// caller then ends the standbys as well, and carries out `actions`.
    pub(super) fn end(
        &self,
        epoch: Epoch,
        worker: WorkerId,
        is_closing: bool,
        actions: &mut Actions,
    ) -> bool {
        let is_first = self.decisions.decide(actions, |deciding| {
            let is_first = self.processes.end_epoch(epoch);
            if is_first {
                // From here on nothing starts in a process that is as good as gone.
                deciding.handle(EpochEnded {});
            }
            is_first
        });
        if !is_first || is_closing {
            return false;
        }
        *self.ended.lock() = Some(Instant::now());
        let device = &self.config.name;
        tracing::warn!(
            device,
            worker = worker.get(),
            "a worker failed under MPS: all processes of the device are replaced"
        );
        for worker in self.slots.workers() {
            // A process that has a call may be about to say which kernel it was.
            let has_calls = self.decisions.ask().has_calls(worker);
            match has_calls {
                true => self.slots.channel(worker).wake(),
                false => self.slots.channel(worker).kill_epoch(epoch),
            }
        }
        true
    }
}
