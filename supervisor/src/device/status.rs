//! A device as `status` shows it.

use std::sync::atomic::Ordering;

use pappus_proto::v1;
use pappus_protocol::now_ns;

use super::runtime::Device;
use crate::ids::WorkerId;
use crate::processes::memory_ledger::MemorySnapshot;
use crate::schedule::budget::Budget;
use crate::schedule::quarantine::Quarantined;

impl Device {
    /// What is taken of its memory.
    pub fn memory(&self) -> MemorySnapshot {
        self.ledger.snapshot()
    }

    /// Standbys that are ready.
    pub fn standbys_ready(&self) -> usize {
        self.standbys.ready()
    }

    /// Functions that are refused here, and budgets that are not whole.
    pub fn refusals(&self) -> (Vec<Quarantined>, Vec<Budget>) {
        let scheduler = self.ask();
        let now_ns = now_ns();
        (scheduler.quarantined(now_ns), scheduler.budgets(now_ns))
    }

    /// As `status` shows it.
    pub fn status(&self) -> v1::DeviceStatus {
        let (queued, running, busy) = {
            let scheduler = self.ask();
            let of_worker = |w| (scheduler.busy_lanes(w), scheduler.device_ns(w));
            let busy: Vec<_> = WorkerId::first(self.slots.len()).map(of_worker).collect();
            (scheduler.queued(), scheduler.running(), busy)
        };
        let workers = WorkerId::first(self.slots.len()).zip(busy).map(|(worker, (busy, device_ns))| {
            let (slot, link) = (self.slot(worker), self.channel(worker));
            // Another process may be in its slot meanwhile.
            let busy = busy.filter(|(generation, _)| !link.is_hung_up(*generation)).map(|(_, lanes)| lanes);
            v1::WorkerStatus {
                pid: link.pid().unwrap_or(0),
                state: match busy {
                    None => "starting",
                    Some(0) => "idle",
                    Some(_) => "busy",
                }
                .to_owned(),
                completed: slot.completed.load(Ordering::Relaxed),
                restarts: slot.restarts.load(Ordering::Relaxed),
                scrubs: slot.scrubs.load(Ordering::Relaxed),
                busy_lanes: busy.unwrap_or(0),
                device_ns,
                sandbox: link.layers().iter().map(|layer| layer.name().to_owned()).collect(),
            }
        });
        v1::DeviceStatus {
            name: self.config.name.clone(),
            kind: self.config.kind.name().to_owned(),
            memory_bytes: self.config.memory_bytes,
            lease_bytes: self.ledger.lease_bytes(),
            queued,
            running,
            completed: self.slots.iter().map(|p| p.completed.load(Ordering::Relaxed)).sum(),
            failed: self.metrics.failed_so_far(),
            workers: workers.collect(),
            // The rest follows from how the device was set up.
            ..Default::default()
        }
    }
}
