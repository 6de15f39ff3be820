//! Under MPS, a fault of one process ends the work of all, also of those that have none now and would find out later.
//! All processes of a device are of one *epoch*; a fault ends it, and all of them are replaced.

use std::time::{Duration, Instant};

use pappus_protocol::now_ns;

use super::reaper::Dying;
use super::runtime::{Actions, Device};
use crate::ids::{Epoch, WorkerId};
use crate::schedule::events::EpochEnded;

/// Longest pause after processes that do not get ready.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How long the device's daemon may refuse processes after an epoch ended: 0.3 to 0.6 s were seen, once 5.8 s.
const RECOVERY: Duration = Duration::from_secs(10);

/// Longest pause meanwhile: what is waited for is that daemon alone.
const RECOVERING_PAUSE: Duration = Duration::from_millis(100);

impl Device {
    /// How long to wait at most before another process is started after some that did not get ready.
    pub(super) fn longest_pause(&self) -> Duration {
        match self.epoch_ended.lock().is_some_and(|at| at.elapsed() < RECOVERY) {
            true => RECOVERING_PAUSE,
            false => LONGEST_PAUSE,
        }
    }

    /// The epoch that processes started now belong to.
    pub(super) fn epoch(&self) -> Epoch {
        self.ledger.epoch()
    }

    /// Whether the end of a worker's process can have hit others: it said that its context is lost, or had calls.
    pub(super) fn may_spread(&self, worker: WorkerId, broken: bool) -> bool {
        self.config.shared && (broken || self.ask().has_calls(worker))
    }

    /// A process of an epoch failed, and all with it: they are ended, standbys too. The calls in them run again, each
    /// alone on the device, so that no call answers for another's fault.
    pub(super) fn fault_spreads(&self, epoch: Epoch, worker: WorkerId) {
        let is_first = self.decide(|scheduler| {
            let is_first = self.ledger.end_epoch(epoch);
            if is_first {
                // From here on nothing starts in a process that is as good as gone.
                scheduler.handle(now_ns(), EpochEnded {}, &mut Actions::new());
            }
            is_first
        });
        if !is_first || self.is_closing() {
            return;
        }
        *self.epoch_ended.lock() = Some(Instant::now());
        let device = &self.config.name;
        tracing::warn!(
            device,
            worker = worker.get(),
            "a worker failed under MPS: all processes of the device are replaced"
        );
        for worker in WorkerId::first(self.slots.len()) {
            // A process that has a call may be about to say which kernel it was.
            let has_calls = self.ask().has_calls(worker);
            match has_calls {
                true => self.channel(worker).wake(),
                false => self.channel(worker).kill_epoch(epoch),
            }
        }
        while let Some(ready) = self.standbys.take() {
            ready.started.process.kill_now();
            let why = Some("another process failed".to_owned());
            self.reaper.take(self, Dying::unused(ready.started.process, ready.reservation, why));
        }
    }
}
