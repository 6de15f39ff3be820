//! The price of a turn for its tenant: a part of the time for which others waited, and what was used beside that time.

use super::{Charge, Turns};
use crate::ids::{TenantId, WorkerId};

impl Turns {
    /// A holder's tenant is charged. Only time that others waited for counts in the line.
    fn charge(&mut self, at: usize, used_ns: u64, others_waited: bool) {
        let (worker, tenant) = (self.holders[at].worker, self.holders[at].tenant);
        self.used_ns[worker.get()] += used_ns;
        if others_waited {
            self.line.charge(tenant, used_ns);
        }
        match self.charges.iter_mut().find(|charge| charge.tenant == tenant) {
            Some(charge) => charge.used_ns += used_ns,
            None => self.charges.push(Charge { tenant, used_ns }),
        }
    }

    /// Charges a holder's tenant for its part of the time that others waited for. Beside a turn that overran, it is charged for a call
    /// that just ended no more than such calls take at least, `work_ns`; at any other moment its calls run, and it has its part.
    fn settle(&mut self, now_ns: u64, at: usize, work_ns: Option<u64>) {
        let shared = self.is_shared();
        let sharers = match shared {
            true => u64::from(self.active.count_ones().max(1)),
            // Those that joined a turn that was overrun may still have grants.
            false => self.holders.len() as u64,
        };
        let overran = self.overran();
        let holder = &mut self.holders[at];
        let Some(from_ns) = &mut holder.charged_from_ns else { return };
        let from_ns = std::mem::replace(from_ns, now_ns);
        let waited_ns = now_ns.saturating_sub(from_ns);
        let part_ns = waited_ns / sharers;
        let contended_ns = match holder.overran {
            true => {
                // The rest is for what the others did not have, which is known when it is over.
                holder.overrun_ns += (waited_ns / overran).saturating_sub(part_ns);
                part_ns
            }
            false if shared => {
                let beside_ns = part_ns.min(work_ns.unwrap_or(part_ns));
                self.beside_ns += beside_ns / overran;
                beside_ns
            }
            false => part_ns,
        };
        holder.accounted_ns += waited_ns;
        self.charge(at, contended_ns, true);
    }

    /// Holders that overran.
    fn overran(&self) -> u64 {
        self.holders.iter().filter(|holder| holder.overran).count().max(1) as u64
    }

    /// Charges the tenant of a holder that overran for what the others did not have since then, beyond its equal part. Where its
    /// calls did not end by themselves, that is all of the rest.
    fn settle_overrun(&mut self, at: usize, ended: bool) {
        let holder = &mut self.holders[at];
        if !holder.overran {
            return;
        }
        let rest_ns = std::mem::take(&mut holder.overrun_ns);
        let others_ns = self.beside_ns - holder.beside_from_ns;
        let had_ns = if ended { rest_ns.saturating_sub(others_ns) } else { rest_ns };
        self.charge(at, had_ns, true);
    }

    /// Charges all holders' tenants up to now: how many share the device is about to change.
    pub(super) fn settle_all(&mut self, now_ns: u64) {
        for at in 0..self.holders.len() {
            self.settle(now_ns, at, None);
        }
    }

    /// Takes a holder's grant, and charges its tenant: for what it says it used, and at least its part of the time that
    /// others waited for. `None`: the worker is gone and cannot say how much it used. Whose grant it was.
    pub(super) fn take(&mut self, now_ns: u64, at: usize, used_ns: Option<u64>) -> TenantId {
        if self.holders.len() > 1 && (self.holders[at].overran || !self.is_shared()) {
            // From now on others have more of the chip.
            self.settle_all(now_ns);
        }
        self.settle(now_ns, at, None);
        self.settle_overrun(at, used_ns.is_some());
        let had_ns = now_ns.saturating_sub(self.holders[at].granted_ns);
        // Besides, it may have had the device while none waited.
        let alone_ns = used_ns.unwrap_or(had_ns).min(had_ns).saturating_sub(self.holders[at].accounted_ns);
        self.charge(at, alone_ns, false);
        let holder = self.holders.remove(at);
        self.parts.set_sharers(now_ns, self.holders.len());
        self.turn_ns = (self.turn_ns.saturating_mul(7)).saturating_add(had_ns) / 8;
        if holder.overran && !self.barred.contains(&holder.tenant) {
            self.barred.push(holder.tenant);
        }
        if self.holders.is_empty() && self.line.is_empty() {
            // Whoever comes now has a turn of its own.
            self.barred.clear();
        }
        holder.tenant
    }

    /// A call of a worker ended that was on the device for so long, of which `work_ns` is what such calls take at least;
    /// `alone` says that the worker has no other call.
    /// Beside a turn that is overrun, and where none waits, turns do not end: what was used meanwhile is charged.
    pub fn finished(&mut self, now_ns: u64, worker: WorkerId, device_ns: u64, work_ns: u64, alone: bool) {
        // A call that waits for the chip to change is on the device meanwhile: the least that such calls take is its own time.
        let work_ns = work_ns.min(device_ns);
        self.cost.finished(now_ns, worker, alone.then_some(work_ns));
        match self.position(worker) {
            Some(at) if self.is_shared() => self.settle(now_ns, at, Some(work_ns)),
            Some(at) => self.used_alone(now_ns, at, device_ns),
            None => {}
        }
    }

    /// A call of a worker failed that was in it for so long: nobody says how much of that it was on the device. Where none
    /// waits, turns do not end: what was used meanwhile is charged.
    pub fn failed(&mut self, now_ns: u64, worker: WorkerId, had_ns: u64) {
        if let Some(at) = self.position(worker).filter(|_| !self.is_shared()) {
            self.used_alone(now_ns, at, had_ns);
        }
    }

    /// What a call used that was on the device for so long while none waited.
    fn used_alone(&mut self, now_ns: u64, at: usize, device_ns: u64) {
        let holder = &mut self.holders[at];
        if holder.charged_from_ns.is_some() {
            return;
        }
        // Calls in several lanes overlap.
        let passed_ns = now_ns.saturating_sub(std::mem::replace(&mut holder.counted_ns, now_ns));
        let used_ns = device_ns.min(passed_ns);
        holder.accounted_ns += used_ns;
        self.charge(at, used_ns, false);
    }
}
