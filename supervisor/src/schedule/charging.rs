//! What sharing a device takes from the events of calls: who is charged, what calls take, and whether a new call can end in
//! time.

use super::asks::{Ask, QueueKey};
use super::device_time::Kind;
use super::scheduler::Scheduler;
use super::turns::Charge;
use super::types::{Call, CallId, CallSpec, NotNow, TenantShare};
use crate::ids::{TenantId, WorkerId};

impl<C: Call> Scheduler<C> {
    pub(super) fn allow(&mut self, tenant: TenantId, most_bytes: Option<u64>) {
        self.book.allow(tenant, most_bytes);
    }

    /// A tenant is given this of the device from now on.
    pub(super) fn set_share(&mut self, tenant: TenantId, share: TenantShare) {
        if self.queues.asks.line().share_of(tenant) == share {
            return;
        }
        let limited = self.queues.limits_lanes();
        self.queues.asks.set_share(tenant, share);
        if let Some(turns) = &mut self.turns {
            turns.set_share(tenant, share);
        }
        if limited || self.queues.asks.has_any() {
            // Others may come first now.
            self.serve_line();
            self.resume();
        }
    }

    /// A worker has no calls any more: where lanes are shared by weights, others may use more of them.
    pub(super) fn lanes_are_free(&mut self) {
        if self.queues.limits_lanes() && self.calls.queued() > 0 {
            self.resume();
        }
    }

    /// A tenant had a turn, or a part of one.
    pub(super) fn charge(&mut self, Charge { tenant, used_ns }: Charge) {
        if tenant != TenantId::EVERYBODY {
            return self.charge_tenant(tenant, used_ns);
        }
        for (payer, used_ns) in self.shared_charges.took(used_ns) {
            self.charge_tenant(payer, used_ns);
        }
    }

    fn charge_tenant(&mut self, tenant: TenantId, used_ns: u64) {
        self.device_time.add(tenant, used_ns);
        // Who has the whole device is charged for that when it is over.
        if self.queues.exclusive.caller() != Some(tenant) {
            self.queues.asks.charge(tenant, used_ns);
        }
    }

    /// What shared workers are given where turns go around: as much as the payers together that have calls there, or wait for a lane,
    /// in the highest class of these.
    pub(super) fn weigh_everybody(&mut self) {
        let Some(turns) = &mut self.turns else { return };
        let inside = self.workers.shared().flat_map(|worker| self.workers[worker].calls());
        let mut payers = std::mem::take(&mut self.payers);
        payers.clear();
        payers.extend(inside.filter_map(|id| Some(self.calls.get(id)?.domain.caller)));
        payers.sort_unstable();
        payers.dedup();
        let mut everybody = TenantShare { weight: self.queues.asks.lanes_weight(), ..TenantShare::default() };
        if let Some(class) = payers.iter().map(|payer| self.queues.asks.line().share_of(*payer).class).min() {
            everybody.class = class;
            let not_waiting =
                payers.iter().filter(|payer| !self.queues.asks.has(Ask::Worker(QueueKey::Shared(**payer))));
            everybody.weight +=
                not_waiting.map(|payer| self.queues.asks.line().share_of(*payer).weight).sum::<u32>();
            turns.set_share(TenantId::EVERYBODY, everybody);
        }
        self.payers = payers;
    }

    /// A payer's job is out of its lane in a worker. Where there are no turns, the payer is charged for the time that the job was there;
    /// so much counts of one that failed in any case. Of one that `ended_well`, the worker says how much it was on the device.
    pub(super) fn charge_job(
        &mut self,
        worker: WorkerId,
        payer: TenantId,
        started_ns: u64,
        ended_well: bool,
    ) {
        let now_ns = self.now_ns;
        let had_ns = now_ns.saturating_sub(started_ns);
        if self.turns.is_none() {
            self.charge(Charge { tenant: payer, used_ns: had_ns });
        }
        if !ended_well {
            self.ran_beside_others(worker, payer, had_ns);
        }
    }

    /// A job that a worker answered well was on the device for so long, as the worker says.
    pub(super) fn ran(&mut self, worker: WorkerId, id: CallId, device_ns: u64) {
        let now_ns = self.now_ns;
        if self.running_call(worker, id).is_none() {
            return;
        }
        let Some(entry) = self.calls.get(id) else { return };
        let tenant = entry.domain.caller;
        let kind = Kind::of(entry.function, tenant, entry.memory_bytes);
        let device_ns = device_ns.min(now_ns.saturating_sub(entry.started_ns));
        let work_ns = self.run_times.ended(kind, device_ns);
        self.ran_beside_others(worker, tenant, device_ns);
        let alone = self.workers[worker].busy_lanes() == 1;
        self.turn(|turns| turns.finished(now_ns, worker, device_ns, work_ns, alone));
    }

    /// A payer's call was on the device for so long, in a worker whose turns others pay for, too.
    fn ran_beside_others(&mut self, worker: WorkerId, payer: TenantId, device_ns: u64) {
        if self.turns.is_some() && self.workers.is_for_shared(worker) {
            self.shared_charges.ran(payer, device_ns);
        }
    }

    /// Why a call that would have to wait cannot end before its deadline, if that is sure: by the least that the calls
    /// before it take, and it itself.
    pub(super) fn too_late(&self, queue: QueueKey, spec: &CallSpec) -> Option<NotNow> {
        // Calls that run together take as long as one does.
        if spec.batch.is_some() {
            return None;
        }
        let kind = Kind::of(spec.function, spec.domain.caller, spec.memory_bytes);
        let call_ns = self.run_times.at_least_ns(kind)?;
        let queue_ns = self.queues.before_ns(queue, spec.deadline_ns).filter(|ns| *ns > 0)?;
        let ends_ns = self.now_ns.saturating_add(queue_ns).saturating_add(call_ns);
        let [queue_ms, call_ms] = [queue_ns, call_ns].map(|ns| ns.div_ceil(1_000_000));
        (ends_ns > spec.deadline_ns).then_some(NotNow::TooLate { queue_ms, call_ms })
    }
}
