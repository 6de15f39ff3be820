//! The price of a turn for its tenant: a part of the time for which others waited, and what was used beside that time.

use super::Turns;
use crate::ids::{TenantId, WorkerId};

/// What a worker's tenant is charged for a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charge {
    /// Whom the worker served.
    pub tenant: TenantId,
    /// Device time that it used.
    pub used_ns: u64,
}

impl Turns {
    /// Charges a holder's tenant for its part of the time that others waited for. Beside a turn that overran, it is charged for a call
    /// that just ended no more than such calls take at least, `work_ns`; at any other moment its calls run, and it has its part.
    fn settle(&mut self, now_ns: u64, at: usize, work_ns: Option<u64>) -> u64 {
        let shared = self.is_shared();
        let sharers = match shared {
            true => u64::from(self.active.count_ones().max(1)),
            // Those that joined a turn that was overrun may still have grants.
            false => self.holders.len() as u64,
        };
        let overran = self.overran();
        let holder = &mut self.holders[at];
        let unsaid_ns = std::mem::take(&mut holder.unsaid_ns);
        let Some(from_ns) = holder.charged_from_ns.replace(now_ns) else {
            holder.charged_from_ns = None;
            return unsaid_ns;
        };
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
        self.used_ns[holder.worker.get()] += contended_ns;
        self.line.charge(holder.tenant, contended_ns);
        unsaid_ns + contended_ns
    }

    /// Holders that overran.
    fn overran(&self) -> u64 {
        self.holders.iter().filter(|holder| holder.overran).count().max(1) as u64
    }

    /// Charges the tenant of a holder that overran for what the others did not have since then, beyond its equal part. Where its
    /// calls did not end by themselves, that is all of the rest.
    pub(super) fn settle_overrun(&mut self, at: usize, ended: bool) -> u64 {
        let holder = &mut self.holders[at];
        if !holder.overran {
            return 0;
        }
        let rest_ns = std::mem::take(&mut holder.overrun_ns);
        let others_ns = self.beside_ns - holder.beside_from_ns;
        let had_ns = if ended { rest_ns.saturating_sub(others_ns) } else { rest_ns };
        self.used_ns[holder.worker.get()] += had_ns;
        self.line.charge(holder.tenant, had_ns);
        had_ns
    }

    /// Charges all holders' tenants up to now: how many share the device is about to change.
    pub(super) fn settle_all(&mut self, now_ns: u64) {
        for at in 0..self.holders.len() {
            self.holders[at].unsaid_ns = self.settle(now_ns, at, None);
        }
    }

    /// Takes a holder's grant, and charges its tenant: for what it says it used, and at least its part of the time that
    /// others waited for. `None`: the worker is gone and cannot say how much it used.
    pub(super) fn take(&mut self, now_ns: u64, at: usize, used_ns: Option<u64>) -> Charge {
        if self.holders.len() > 1 && (self.holders[at].overran || !self.is_shared()) {
            // From now on others have more of the chip.
            self.settle_all(now_ns);
        }
        let contended_ns = self.settle(now_ns, at, None) + self.settle_overrun(at, used_ns.is_some());
        let holder = self.holders.remove(at);
        self.parts.set_sharers(now_ns, self.holders.len());
        let had_ns = now_ns.saturating_sub(holder.granted_ns);
        self.turn_ns = (self.turn_ns.saturating_mul(7)).saturating_add(had_ns) / 8;
        // Besides, it may have had the device while none waited.
        let alone_ns = used_ns.unwrap_or(had_ns).min(had_ns).saturating_sub(holder.accounted_ns);
        self.used_ns[holder.worker.get()] += alone_ns;
        if holder.overran && !self.barred.contains(&holder.tenant) {
            self.barred.push(holder.tenant);
        }
        if self.holders.is_empty() && self.line.is_empty() {
            // Whoever comes now has a turn of its own.
            self.barred.clear();
        }
        Charge { tenant: holder.tenant, used_ns: contended_ns + alone_ns }
    }

    /// A call of a worker ended that was on the device for so long, of which `work_ns` is what such calls take at least;
    /// `alone` says that the worker has no other call.
    /// Beside a turn that is overrun, and where none waits, turns do not end: what was used meanwhile is returned.
    pub fn finished(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        device_ns: u64,
        work_ns: u64,
        alone: bool,
    ) -> Option<Charge> {
        // A call that waits for the chip to change is on the device meanwhile: the least that such calls take is its own time.
        self.cost.finished(now_ns, worker, alone.then(|| work_ns.min(device_ns)));
        let at = self.position(worker)?;
        if self.is_shared() {
            let contended_ns = self.settle(now_ns, at, Some(work_ns.min(device_ns)));
            return Some(Charge { tenant: self.holders[at].tenant, used_ns: contended_ns });
        }
        self.used_alone(now_ns, at, device_ns)
    }

    /// A call of a worker failed that was in it for so long: nobody says how much of that it was on the device. Where none
    /// waits, turns do not end: what was used meanwhile is returned.
    pub fn failed(&mut self, now_ns: u64, worker: WorkerId, had_ns: u64) -> Option<Charge> {
        let at = self.position(worker).filter(|_| !self.is_shared())?;
        self.used_alone(now_ns, at, had_ns)
    }

    /// What a call used that was on the device for so long while none waited.
    fn used_alone(&mut self, now_ns: u64, at: usize, device_ns: u64) -> Option<Charge> {
        let holder = &mut self.holders[at];
        if holder.charged_from_ns.is_some() {
            return None;
        }
        // Calls in several lanes overlap.
        let passed_ns = now_ns.saturating_sub(std::mem::replace(&mut holder.counted_ns, now_ns));
        let used_ns = device_ns.min(passed_ns);
        holder.accounted_ns += used_ns;
        self.used_ns[holder.worker.get()] += used_ns;
        Some(Charge { tenant: holder.tenant, used_ns })
    }
}
