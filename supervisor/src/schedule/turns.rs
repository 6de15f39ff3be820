//! Who may submit to the device: one worker at a time, round robin over those that have calls.
//!
//! ```text
//! worker:  idle ──has work──► in the ring ──granted──► holder ──others wait──► revoked ──yielded──► ring, or idle
//! ```
//!
//! A holder keeps its turn until another worker has work. Turns never interrupt what runs: a revoked
//! worker yields when its lanes are empty.

use std::collections::VecDeque;

use crate::ids::{TurnId, WorkerId};
use crate::limits::YIELD_NS;

/// What a worker is told about turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// It has the device.
    Grant {
        /// Who.
        worker: WorkerId,
        /// Names the turn.
        turn: TurnId,
    },
    /// Others wait.
    Revoke {
        /// Who.
        worker: WorkerId,
        /// Names the turn.
        turn: TurnId,
    },
    /// It is next.
    Soon {
        /// Who.
        worker: WorkerId,
    },
}

#[derive(Debug)]
struct Holder {
    worker: WorkerId,
    turn: TurnId,
    granted_ns: u64,
    revoked_ns: Option<u64>,
    /// Since when it has no calls, if it has none.
    idle_ns: Option<u64>,
    /// The next one was told that it is next.
    announced: bool,
}

/// The turns of one device.
#[derive(Debug)]
pub struct Turns {
    quantum_us: u32,
    holder: Option<Holder>,
    /// Workers that have calls and no grant, the next one first.
    ring: VecDeque<WorkerId>,
    next_turn: u64,
    /// Device time that each worker was charged.
    used_ns: Vec<u64>,
}

impl Turns {
    /// No worker has the device.
    pub fn new(workers: usize, quantum_us: u32) -> Self {
        let ring = VecDeque::with_capacity(workers);
        Self { quantum_us, holder: None, ring, next_turn: 1, used_ns: vec![0; workers] }
    }

    /// How long a worker may keep its turn while others wait.
    pub fn quantum_us(&self) -> u32 {
        self.quantum_us
    }

    /// A call was handed to the worker.
    pub fn has_work(&mut self, now_ns: u64, worker: WorkerId, orders: &mut Vec<Order>) {
        match &mut self.holder {
            Some(holder) if holder.worker == worker => holder.idle_ns = None,
            Some(_) => {
                if !self.ring.contains(&worker) {
                    self.ring.push_back(worker);
                }
                self.revoke(now_ns, orders);
            }
            None => {
                self.ring.push_back(worker);
                self.grant_next(now_ns, orders);
            }
        }
    }

    /// The worker has no calls any more.
    pub fn idle(&mut self, now_ns: u64, worker: WorkerId) {
        match &mut self.holder {
            Some(holder) if holder.worker == worker => holder.idle_ns = Some(now_ns),
            _ => self.ring.retain(|waiting| *waiting != worker),
        }
    }

    fn grant_next(&mut self, now_ns: u64, orders: &mut Vec<Order>) {
        let Some(worker) = self.ring.pop_front() else { return };
        let turn = TurnId::new(self.next_turn);
        self.next_turn += 1;
        self.holder = Some(Holder {
            worker,
            turn,
            granted_ns: now_ns,
            revoked_ns: None,
            idle_ns: None,
            announced: false,
        });
        orders.push(Order::Grant { worker, turn });
        if !self.ring.is_empty() {
            self.revoke(now_ns, orders);
        }
    }

    fn revoke(&mut self, now_ns: u64, orders: &mut Vec<Order>) {
        let Some(holder) = self.holder.as_mut().filter(|holder| holder.revoked_ns.is_none()) else {
            return;
        };
        holder.revoked_ns = Some(now_ns);
        orders.push(Order::Revoke { worker: holder.worker, turn: holder.turn });
        if holder.idle_ns.is_some() {
            self.announce(orders);
        }
    }

    /// Tells the next one that its grant is near.
    fn announce(&mut self, orders: &mut Vec<Order>) {
        let (Some(holder), Some(&worker)) = (&mut self.holder, self.ring.front()) else {
            return;
        };
        if !std::mem::replace(&mut holder.announced, true) {
            orders.push(Order::Soon { worker });
        }
    }

    fn holds(&self, worker: WorkerId, turn: TurnId) -> bool {
        self.holder.as_ref().is_some_and(|holder| (holder.worker, holder.turn) == (worker, turn))
    }

    /// The holder's lanes run empty; false if it is not the holder.
    pub fn yielding(&mut self, worker: WorkerId, turn: TurnId, orders: &mut Vec<Order>) -> bool {
        let holds = self.holds(worker, turn);
        if holds {
            self.announce(orders);
        }
        holds
    }

    /// The holder's lanes are empty, and the next one has the device. Returns what the worker is
    /// charged; `None` if it is not the holder.
    pub fn yielded(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        turn: TurnId,
        used_ns: u64,
        has_calls: bool,
        orders: &mut Vec<Order>,
    ) -> Option<u64> {
        let holder = self.holder.take_if(|holder| (holder.worker, holder.turn) == (worker, turn))?;
        // It cannot have used more than it had.
        let charged = used_ns.min(now_ns.saturating_sub(holder.granted_ns));
        self.used_ns[worker.get()] += charged;
        if has_calls {
            self.ring.push_back(worker);
        }
        self.grant_next(now_ns, orders);
        Some(charged)
    }

    /// The worker's process is gone, and its turn with it. Returns what it is charged: all the time that
    /// it had, since it cannot say any more how much it used.
    pub fn gone(&mut self, now_ns: u64, worker: WorkerId, orders: &mut Vec<Order>) -> u64 {
        self.ring.retain(|waiting| *waiting != worker);
        let Some(holder) = self.holder.take_if(|holder| holder.worker == worker) else {
            return 0;
        };
        let charged = now_ns.saturating_sub(holder.granted_ns);
        self.used_ns[worker.get()] += charged;
        self.grant_next(now_ns, orders);
        charged
    }

    /// When [`Turns::expire`] must be called at the latest.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let holder = self.holder.as_ref()?;
        // While it has calls, their deadlines watch over it.
        Some(holder.revoked_ns?.max(holder.idle_ns?).saturating_add(YIELD_NS))
    }

    /// A holder that has no reason to keep its turn and does not yield it; told once.
    pub fn expire(&mut self, now_ns: u64) -> Option<WorkerId> {
        if self.next_deadline_ns()? > now_ns {
            return None;
        }
        let holder = self.holder.as_mut()?;
        holder.idle_ns = None;
        Some(holder.worker)
    }

    /// Whether the worker could answer for its calls: it has the device, and had it for `patience_ns`. A
    /// call that waits for a turn cannot even fail before.
    pub fn could_act(&self, now_ns: u64, worker: WorkerId, patience_ns: u64) -> bool {
        self.holder.as_ref().is_some_and(|holder| {
            holder.worker == worker && now_ns >= holder.granted_ns.saturating_add(patience_ns)
        })
    }

    /// Device time that a worker was charged.
    pub fn used_ns(&self, worker: WorkerId) -> u64 {
        self.used_ns[worker.get()]
    }
}

#[cfg(test)]
#[path = "turns_tests.rs"]
mod tests;
