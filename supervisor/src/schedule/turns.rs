//! Who may submit to the device.
//!
//! ```text
//! worker:  idle ──has work──► in line ──granted──► holder ──others wait──► revoked ──yielded──► line, or idle
//!                                                                             │
//!                                                  some quanta over: overrun ─┘ all others are granted, too
//! ```
//!
//! One worker at a time, by the shares of the tenants that they serve (`share_line`). A holder keeps its turn until
//! another worker has work. Turns never interrupt what runs: a revoked worker yields when its lanes are empty. One that
//! does not within a few quanta has overrun its turn: it is not alone any more, all that wait get their grants as well,
//! and the chip slices its time between them. A tenant that overran is charged for what the others left of that time, and gets
//! no grant again before none is left that overran.
//!
//! Who is ended for an overrun is fined (`turn_fines`).
//!
//! Two clocks run while at least two parties want the device: that of contended time ([`Turns::contended_ns`]), and one that
//! is as much slower as there are long calls that share the chip, by which calls are in the way of others
//! ([`Turns::in_the_way_ns`]).

use super::limits::{CREDIT, OVERRUN_QUANTA, SHORT_TURN_NS, YIELD_NS};
use super::share_line::ShareLine;
use super::turn_cost::ChangeCost;
use super::turn_fines::Fines;
use super::types::{Order, TenantShare};
use crate::ids::{TenantId, TurnId, WorkerId};

/// What a worker's tenant is charged for its turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charge {
    /// Whom the worker served.
    pub tenant: TenantId,
    /// Device time that it used.
    pub used_ns: u64,
}

/// A place in the line, and the worker that has it.
type TurnPlace = (u64, WorkerId);

/// A worker with a grant, and what is known of its turn.
#[derive(Debug)]
struct TurnHolder {
    worker: WorkerId,
    tenant: TenantId,
    turn: TurnId,
    granted_ns: u64,
    /// The clock by which calls are in the way of others at that time.
    granted_clock_ns: u64,
    /// The clock of what each holder had at that time.
    granted_part_ns: u64,
    revoked_ns: Option<u64>,
    /// What that clock showed then.
    revoked_part_ns: Option<u64>,
    /// From when on it is still to be charged: since then others want the device, too.
    charged_from_ns: Option<u64>,
    /// How much of its time is accounted for: others waited meanwhile, or it is known to have used it.
    accounted_ns: u64,
    /// Up to when what it used alone was counted.
    counted_ns: u64,
    /// Since when it has no calls, if it has none.
    idle_ns: Option<u64>,
    /// True if the next worker was told to be next.
    announced: bool,
    /// True if the worker did not yield in time.
    overran: bool,
    /// Time since then that it is not charged for yet: what is beyond its equal part, before the others' is subtracted.
    overrun_ns: u64,
    /// [`Turns::beside_ns`] when it overran.
    beside_from_ns: u64,
    /// True if the worker is killed for keeping its turn.
    given_up: bool,
}

/// A clock that runs as much slower as several share what it measures: what each of them had. One that had the device beside
/// seven others for 40 ms had 5 ms of it, however few are left by then.
#[derive(Debug)]
struct SlowedClock {
    /// The time shown when the followed clock showed `at_ns`.
    shown_ns: u64,
    at_ns: u64,
    sharers: u64,
}

impl SlowedClock {
    /// Nobody shares yet: it runs as fast as the clock that it follows.
    fn new() -> Self {
        Self { shown_ns: 0, at_ns: 0, sharers: 1 }
    }

    /// What it shows.
    fn ns(&self, now_ns: u64) -> u64 {
        self.shown_ns + now_ns.saturating_sub(self.at_ns) / self.sharers
    }

    /// When it shows so much, if as many share until then.
    fn shows_at_ns(&self, shown_ns: u64) -> u64 {
        self.at_ns.saturating_add(shown_ns.saturating_sub(self.shown_ns).saturating_mul(self.sharers))
    }

    /// So many share from now on; none is as one.
    fn set_sharers(&mut self, now_ns: u64, sharers: usize) {
        (self.shown_ns, self.at_ns) = (self.ns(now_ns), now_ns.max(self.at_ns));
        self.sharers = (sharers as u64).max(1);
    }
}

/// The turns of one device.
#[derive(Debug)]
pub struct Turns {
    quantum_us: u32,
    cost: ChangeCost,
    /// One, unless a turn is overrun, or those that joined it did not yield yet.
    holders: Vec<TurnHolder>,
    /// Workers that have calls and no grant.
    line: ShareLine<TurnPlace>,
    /// Where each worker stands in it.
    places: Vec<Option<(TenantId, TurnPlace)>>,
    next_turn: u64,
    next_place: u64,
    /// Device time that each worker was charged.
    used_ns: Vec<u64>,
    /// Workers with calls, one bit for each.
    active: u64,
    /// True if tenants without a worker wait, too.
    outside: bool,
    /// The contended clock, and since when it runs.
    contended_ns: u64,
    contended_since_ns: Option<u64>,
    /// The clock by which calls are in the way of others follows the contended one.
    in_the_way: SlowedClock,
    /// What each holder had of the device.
    parts: SlowedClock,
    /// How long turns last lately.
    turn_ns: u64,
    /// True if workers and the supervisor's threads poll.
    polls: bool,
    /// What holders were charged for time beside a turn that overran; of several such turns, for each its part.
    beside_ns: u64,
    /// Tenants that overran and did not have a turn of their own since then.
    barred: Vec<TenantId>,
    fines: Fines,
    /// What workers are to be told.
    orders: Vec<(WorkerId, Order)>,
    /// What tenants were charged and nobody heard of yet.
    charges: Vec<Charge>,
}

impl Turns {
    /// No worker has the device. A change of turns costs `change_ns` until it was measured.
    pub fn new(workers: usize, quantum_us: u32, change_ns: u64) -> Self {
        Self {
            cost: ChangeCost::new(change_ns),
            holders: Vec::new(),
            line: ShareLine::new(u64::from(quantum_us) * 1000, u64::from(quantum_us) * 1000 / CREDIT),
            places: vec![None; workers],
            next_turn: 1,
            next_place: 0,
            used_ns: vec![0; workers],
            active: 0,
            outside: false,
            contended_ns: 0,
            contended_since_ns: None,
            in_the_way: SlowedClock::new(),
            parts: SlowedClock::new(),
            turn_ns: u64::from(quantum_us) * 1000,
            polls: false,
            beside_ns: 0,
            barred: Vec::new(),
            fines: Fines::default(),
            orders: Vec::new(),
            charges: Vec::new(),
            quantum_us,
        }
    }

    /// There are so many workers from now on, and turns that begin last so long.
    pub fn resize(&mut self, workers: usize, quantum_us: u32) {
        self.places.resize(workers, None);
        self.used_ns.resize(workers, 0);
        if self.quantum_us != quantum_us {
            self.quantum_us = quantum_us;
            self.turn_ns = self.quantum_ns();
            self.line.set_quantum(self.quantum_ns(), self.quantum_ns() / CREDIT);
        }
    }

    /// Takes what workers are to be told.
    pub fn take_orders(&mut self) -> impl Iterator<Item = (WorkerId, Order)> {
        self.orders.drain(..)
    }

    /// Takes one charge that nobody heard of yet.
    pub fn take_charge(&mut self) -> Option<Charge> {
        self.charges.pop()
    }

    fn quantum_ns(&self) -> u64 {
        u64::from(self.quantum_us) * 1000
    }

    /// What a change of turns costs.
    fn change_us(&self) -> u32 {
        u32::try_from(self.cost.ns().div_ceil(1000)).unwrap_or(u32::MAX)
    }

    /// Whether workers and the supervisor's threads poll while they wait for each other: then the next worker is woken
    /// early.
    pub fn set_polls(&mut self, polls: bool) {
        self.polls = polls;
    }

    /// A tenant is given this from now on.
    pub fn set_share(&mut self, tenant: TenantId, share: TenantShare) {
        self.line.set_share(tenant, share);
    }

    fn position(&self, worker: WorkerId) -> Option<usize> {
        self.holders.iter().position(|holder| holder.worker == worker)
    }

    fn position_of(&self, worker: WorkerId, turn: TurnId) -> Option<usize> {
        self.position(worker).filter(|at| self.holders[*at].turn == turn)
    }

    /// True if a turn is overrun: all that want the device have it.
    fn is_shared(&self) -> bool {
        self.holders.iter().any(|holder| holder.overran)
    }

    /// Counts who wants the device, after that changed.
    fn count(&mut self, now_ns: u64) {
        match (self.parties() >= 2, self.contended_since_ns) {
            (true, None) => self.contended_since_ns = Some(now_ns),
            (false, Some(since_ns)) => {
                self.contended_ns += now_ns.saturating_sub(since_ns);
                self.contended_since_ns = None;
            }
            _ => {}
        }
    }

    fn set_active(&mut self, now_ns: u64, worker: WorkerId, active: bool) {
        let bit = 1 << worker.get();
        let before = self.active;
        self.active = if active { self.active | bit } else { self.active & !bit };
        if self.active != before {
            self.count(now_ns);
        }
    }

    /// Whether tenants without a worker wait for the device.
    pub fn set_outside(&mut self, now_ns: u64, waits: bool) {
        if std::mem::replace(&mut self.outside, waits) != waits {
            self.count(now_ns);
        }
    }

    /// The contended clock: for how long at least two parties wanted the device.
    pub fn contended_ns(&self, now_ns: u64) -> u64 {
        self.contended_ns + self.contended_since_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns))
    }

    /// The clock by which calls are in the way of others: contended time, divided among the long calls that shared the chip
    /// then. Each of them had no more than its part of it.
    pub fn in_the_way_ns(&self, now_ns: u64) -> u64 {
        self.in_the_way.ns(self.contended_ns(now_ns))
    }

    /// So many workers with a grant have calls from now on that take long.
    pub fn set_long_calls(&mut self, now_ns: u64, workers: usize) {
        self.in_the_way.set_sharers(self.contended_ns(now_ns), workers);
    }

    /// True if at least two parties want the device.
    pub fn is_contended(&self) -> bool {
        self.contended_since_ns.is_some()
    }

    /// How many parties want the device.
    pub fn parties(&self) -> u32 {
        self.active.count_ones() + u32::from(self.outside)
    }

    /// For how long at most a worker waits for its turn from now on, where all others that want the device overrun theirs before it.
    pub fn waits_at_most_ns(&self, worker: WorkerId) -> u64 {
        let others = self.parties() - u32::from(self.active >> worker.get() & 1 == 1);
        u64::from(others) * OVERRUN_QUANTA * self.quantum_ns()
    }

    /// Workers with a grant, and the in-the-way clock at that grant.
    pub fn granted(&self) -> impl Iterator<Item = (WorkerId, u64)> {
        self.holders.iter().map(|holder| (holder.worker, holder.granted_clock_ns))
    }

    /// A call was handed to the worker, which serves this tenant.
    pub fn has_work(&mut self, now_ns: u64, worker: WorkerId, tenant: TenantId) {
        self.set_active(now_ns, worker, true);
        if let Some(at) = self.position(worker) {
            let shared = self.is_shared();
            let holder = &mut self.holders[at];
            if holder.idle_ns.take().is_some() && shared {
                holder.charged_from_ns = Some(now_ns);
            }
            return;
        }
        if self.places[worker.get()].is_some() {
            return;
        }
        self.line_up(worker, tenant);
        self.proceed(now_ns);
    }

    fn line_up(&mut self, worker: WorkerId, tenant: TenantId) {
        let place = (self.next_place, worker);
        self.next_place += 1;
        self.places[worker.get()] = Some((tenant, place));
        self.line.push(tenant, place);
    }

    /// A worker waits no more; whom it serves, if it did.
    fn leave_line(&mut self, worker: WorkerId) -> Option<TenantId> {
        let (tenant, place) = self.places[worker.get()].take()?;
        self.line.remove(tenant, place);
        Some(tenant)
    }

    /// The worker has no calls any more. If others wait, the next one is told that its turn is near: the holder waits for
    /// no longer than a change costs.
    pub fn idle(&mut self, now_ns: u64, worker: WorkerId) {
        self.set_active(now_ns, worker, false);
        let shared = self.is_shared();
        let Some(at) = self.position(worker) else {
            self.leave_line(worker);
            return;
        };
        let holder = &mut self.holders[at];
        holder.idle_ns = Some(now_ns);
        self.fines.idled(now_ns, holder.tenant);
        if shared {
            holder.charged_from_ns = None;
        } else if self.polls && holder.revoked_ns.is_some() {
            self.announce();
        }
    }

    /// Grants and revokes what is due.
    fn proceed(&mut self, now_ns: u64) {
        self.fines.forget_paid(&self.line);
        if self.is_shared() {
            let stays = |tenant: &TenantId| self.fines.has(*tenant) || self.barred.contains(tenant);
            let joins = self.line.iter().filter(|(tenant, _)| !stays(tenant));
            let joins: Vec<WorkerId> = joins.map(|(_, (_, worker))| worker).collect();
            joins.into_iter().for_each(|worker| self.grant(now_ns, worker));
        } else {
            if self.holders.is_empty()
                && let Some((tenant, (_, worker))) = self.line.first()
                && self.waits_until_ns(tenant).is_none_or(|at_ns| at_ns <= now_ns)
            {
                self.barred.retain(|barred| *barred != tenant);
                self.line.serve(tenant);
                self.grant(now_ns, worker);
            }
            if !self.line.is_empty() || self.holders.len() > 1 {
                self.revoke(now_ns);
            }
            if self.polls && self.turn_ns < SHORT_TURN_NS && self.holders.len() == 1 {
                self.announce();
            }
        }
        if self.holders.len() + self.line.len() > 1 {
            let shared = self.is_shared();
            // Beside a turn that is overrun, idle workers are in no other's way.
            for holder in self.holders.iter_mut().filter(|holder| !shared || holder.idle_ns.is_none()) {
                holder.charged_from_ns.get_or_insert(now_ns);
            }
        }
    }

    fn grant(&mut self, now_ns: u64, worker: WorkerId) {
        let Some(tenant) = self.leave_line(worker) else { return };
        let turn = TurnId::new(self.next_turn);
        self.next_turn += 1;
        self.holders.push(TurnHolder {
            worker,
            tenant,
            turn,
            granted_ns: now_ns,
            granted_clock_ns: self.in_the_way_ns(now_ns),
            granted_part_ns: self.parts.ns(now_ns),
            revoked_ns: None,
            revoked_part_ns: None,
            charged_from_ns: None,
            accounted_ns: 0,
            counted_ns: now_ns,
            idle_ns: None,
            announced: false,
            overran: false,
            overrun_ns: 0,
            beside_from_ns: 0,
            given_up: false,
        });
        self.parts.set_sharers(now_ns, self.holders.len());
        let (quantum_us, change_us) = (self.quantum_us, self.change_us());
        self.orders.push((worker, Order::Grant { turn, quantum_us, change_us }));
    }

    fn revoke(&mut self, now_ns: u64) {
        let mut announce = false;
        for holder in self.holders.iter_mut().filter(|holder| holder.revoked_ns.is_none()) {
            (holder.revoked_ns, holder.revoked_part_ns) = (Some(now_ns), Some(self.parts.ns(now_ns)));
            self.orders.push((holder.worker, Order::Revoke { turn: holder.turn }));
            announce |= holder.idle_ns.is_some();
        }
        if announce {
            self.announce();
        }
    }

    /// Tells the next one that its grant is near.
    fn announce(&mut self) {
        let (Some(holder), Some((_, (_, worker)))) = (self.holders.last_mut(), self.line.first()) else {
            return;
        };
        if !std::mem::replace(&mut holder.announced, true) {
            self.orders.push((worker, Order::Soon));
        }
    }

    /// The holder's lanes run empty; false if it is not the holder.
    pub fn yielding(&mut self, worker: WorkerId, turn: TurnId) -> bool {
        if self.position_of(worker, turn).is_none() {
            return false;
        }
        if self.holders.len() == 1 {
            self.announce();
        }
        true
    }

    /// The holder's lanes are empty, and the next one has the device; false if it is not the holder.
    pub fn yielded(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        turn: TurnId,
        used_ns: u64,
        has_calls: bool,
    ) -> bool {
        let Some(at) = self.position_of(worker, turn) else { return false };
        let tenant = self.take(now_ns, at, Some(used_ns));
        match has_calls {
            true => self.line_up(worker, tenant),
            // Its answers are on their way, and its next calls not here yet.
            false => self.fines.idled(now_ns, tenant),
        }
        let alone = self.holders.is_empty();
        self.proceed(now_ns);
        match self.holders.as_slice() {
            [next] if alone && next.worker != worker => self.cost.changed(now_ns, next.worker),
            _ => self.cost.disturbed(),
        }
        true
    }

    /// The worker's process is gone, and its turn with it, all of which is charged: nobody can say any more how much of it was used.
    pub fn gone(&mut self, now_ns: u64, worker: WorkerId) {
        if self.position(worker).is_some_and(|at| self.holders[at].overran) {
            // Up to now it was one of those that shared the chip.
            self.settle_all(now_ns);
        }
        self.set_active(now_ns, worker, false);
        self.leave_line(worker);
        let Some(at) = self.position(worker) else { return };
        self.cost.disturbed();
        self.take(now_ns, at, None);
        self.proceed(now_ns);
    }

    /// A tenant's call is ended for being in the way of others: the tenant is charged so much besides its turns.
    pub fn fine(&mut self, tenant: TenantId, ns: u64) {
        self.line.charge(tenant, ns);
        self.fines.add(tenant);
    }

    /// Until when the first in line is not granted, if it was fined.
    fn waits_until_ns(&self, tenant: TenantId) -> Option<u64> {
        self.fines.waits_until_ns(tenant, &self.line, self.quantum_ns())
    }

    /// When a holder with calls has overrun its turn, if others wait for it.
    fn overruns_ns(&self, holder: &TurnHolder) -> Option<u64> {
        if holder.overran || holder.idle_ns.is_some() || self.line.is_empty() {
            return None;
        }
        let by_turn_ns = holder.granted_part_ns.saturating_add(OVERRUN_QUANTA * self.quantum_ns());
        let part_ns = by_turn_ns.max(holder.revoked_part_ns?.saturating_add(self.quantum_ns()));
        Some(self.parts.shows_at_ns(part_ns))
    }

    /// When a holder that has no reason to keep its turn is to be killed.
    fn patience_ends_ns(&self, holder: &TurnHolder) -> Option<u64> {
        if holder.given_up {
            return None;
        }
        // While it has calls, their deadlines watch over it.
        Some(holder.revoked_ns?.max(holder.idle_ns?).saturating_add(YIELD_NS))
    }

    /// When [`Turns::expire`] or [`Turns::overrun`] must be called at the latest.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let of =
            |holder| [self.patience_ends_ns(holder), self.overruns_ns(holder)].into_iter().flatten().min();
        let fined = match self.line.first() {
            // A tenant whose share changed may have to stand behind nobody any more: it is next at once.
            Some((tenant, _)) if self.holders.is_empty() => self.waits_until_ns(tenant).or(Some(0)),
            _ => None,
        };
        self.holders.iter().filter_map(of).chain(fined).min()
    }

    /// A holder that has no reason to keep its turn and does not yield it; told once.
    pub fn expire(&mut self, now_ns: u64) -> Option<WorkerId> {
        let is_late =
            |holder: &TurnHolder| self.patience_ends_ns(holder).is_some_and(|at_ns| at_ns <= now_ns);
        let at = self.holders.iter().position(is_late)?;
        self.holders[at].given_up = true;
        Some(self.holders[at].worker)
    }

    /// A holder that does not yield is not alone any more.
    pub fn overrun(&mut self, now_ns: u64) {
        let is_late = |holder: &TurnHolder| self.overruns_ns(holder).is_some_and(|at_ns| at_ns <= now_ns);
        if let Some(at) = self.holders.iter().position(is_late) {
            // Up to now it had the device for itself, or a part of it beside another.
            self.settle_all(now_ns);
            (self.holders[at].overran, self.holders[at].beside_from_ns) = (true, self.beside_ns);
            self.cost.disturbed();
            self.proceed(now_ns);
        } else if self.holders.is_empty() && !self.line.is_empty() {
            // Nobody came before one that was fined.
            self.proceed(now_ns);
        }
    }

    /// Since when a worker has the device, if it does.
    pub fn granted_ns(&self, worker: WorkerId) -> Option<u64> {
        self.position(worker).map(|at| self.holders[at].granted_ns)
    }

    /// True if the worker could answer for its calls: it has the device, and had it for `patience_ns`. A call that waits
    /// for a turn cannot even fail before. A worker that yielded and reported no calls has no
    /// excuse either.
    pub fn could_act(&self, now_ns: u64, worker: WorkerId, patience_ns: u64) -> bool {
        match self.position(worker) {
            Some(at) => now_ns >= self.holders[at].granted_ns.saturating_add(patience_ns),
            None => self.places[worker.get()].is_none(),
        }
    }

    /// Device time that a worker was charged.
    pub fn used_ns(&self, worker: WorkerId) -> u64 {
        self.used_ns[worker.get()]
    }
}

#[path = "turn_charges.rs"]
mod charges;
#[cfg(test)]
#[path = "turns_tests.rs"]
mod tests;
