//! A device as `status` shows it.

use std::sync::atomic::Ordering;

use super::decisions::Decisions;
use super::worker_slots::WorkerSlots;
use crate::config::DeviceConfig;
use crate::metrics::DeviceMetrics;
use crate::processes::memory_ledger::MemoryLedger;
use pappus_proto::v1;

/// What is shown of a device.
#[derive(Debug)]
pub(super) struct StatusView<'a> {
    pub(super) config: &'a DeviceConfig,
    pub(super) metrics: &'a DeviceMetrics,
    pub(super) ledger: &'a MemoryLedger,
    pub(super) slots: &'a WorkerSlots,
    pub(super) decisions: &'a Decisions,
}

impl StatusView<'_> {
    /// As `status` shows it.
    pub(super) fn status(&self) -> v1::DeviceStatus {
        let (queued, running, busy) = {
            let scheduler = self.decisions.ask();
            let of_worker = |w| (scheduler.busy_lanes(w), scheduler.device_ns(w));
            let busy: Vec<_> = self.slots.workers().map(of_worker).collect();
            (scheduler.queued(), scheduler.running(), busy)
        };
        let workers = self.slots.workers().zip(busy).map(|(worker, (busy, device_ns))| {
            let (slot, link) = (self.slots.slot(worker), self.slots.channel(worker));
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
            completed: self.slots.completed(),
            failed: self.metrics.failed_so_far(),
            workers: workers.collect(),
            // The rest follows from how the device was set up.
            ..Default::default()
        }
    }
}
