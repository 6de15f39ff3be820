//! A device that is set up otherwise at any moment, and calls that wait and are taken to another device.

use super::memory::{batch, has_weights, sharing};
use super::{Admits, Known, OTHERS, World};
use crate::schedule::events::{Adopt, Resize, Withdraw};
use crate::schedule::{CallSpec, Domain, NotNow, Shape};

impl Known {
    /// It waits again after it ran: on a device that has less memory by now, maybe for all of it.
    pub(super) fn waits_again(&mut self, shape: &Shape) {
        self.whole |= self.memory > shape.memory_bytes / 2;
    }
}

impl World {
    /// The device is set up otherwise. No call that is there needs more memory than is left for one.
    pub(super) fn resize(&mut self, to: Shape, remakes: bool) {
        let largest = self.calls.values().map(|known| known.memory).max().unwrap_or(0);
        let to = Shape {
            workers: to.workers.max(self.shape.shared_workers + 1),
            lanes: to.lanes,
            residency_ns: to.residency_ns,
            memory_bytes: to.memory_bytes.max(largest + 2 * OTHERS),
            quantum_us: self.shape.quantum_us.and(to.quantum_us),
            ..self.shape
        };
        self.shape = to;
        self.slots = self.slots.max(to.workers);
        self.quantum_us = self.quantum_us.min(to.quantum_us.unwrap_or(u32::MAX));
        self.at_most = self.at_most.max(to.memory_bytes);
        // Workers leave for it at any time.
        self.whole_wanted = true;
        self.scheduler.handle(self.now, Resize { to, remakes }, &mut self.actions);
    }

    /// A call that waits is taken to another device, or comes back from there.
    pub(super) fn withdraw(&mut self, pick: usize, elsewhere: bool) {
        let mut waiting: Vec<_> =
            self.scheduler.waiting().into_iter().map(|(id, call)| (id, *call)).collect();
        assert!(waiting.is_sorted(), "oldest first");
        let mut known: Vec<_> = self.calls.iter().filter(|(_, k)| k.running.is_none() && !k.lost).collect();
        known.sort_unstable_by_key(|(_, k)| k.id);
        assert!(waiting.iter().map(|(_, call)| call).eq(known.iter().map(|(call, _)| *call)));
        if waiting.is_empty() {
            return;
        }
        let (id, call) = waiting.swap_remove(pick % waiting.len());
        let withdrawn = self.scheduler.handle(self.now, Withdraw { id }, &mut self.actions).unwrap();
        assert_eq!(withdrawn.call, call);
        let mut known = self.calls.remove(&call).unwrap();
        self.trouble.ended(call);
        self.apply();
        if elsewhere {
            return;
        }
        let is_probe = match self.trouble.admits(self.now, (known.function, known.domain)) {
            Admits::Never | Admits::All => false,
            Admits::Probe => true,
        };
        assert_eq!(withdrawn.attempts.is_suspect(), known.suspect);
        // Its caller may have left something open meanwhile.
        let is_suspect = is_probe || self.trouble.is_unproven(self.now, known.domain);
        known.suspect |= is_suspect;
        (known.came_back, known.moved_out, known.apart) = (true, false, false);
        known.runs = if is_suspect { 0 } else { known.runs };
        known.whole = known.memory > self.shape.memory_bytes / 2;
        self.whole_wanted |= known.whole || known.suspect && self.shape.shared_faults;
        let spec = CallSpec {
            domain: Domain { owner: known.domain, caller: known.domain },
            function: known.function,
            bytes: withdrawn.bytes,
            deadline_ns: known.deadline_ns,
            memory_bytes: known.memory,
            stack_bytes: 0,
            weight_bytes: if has_weights(call) { OTHERS } else { 0 },
            sharing: sharing(call),
            batch: batch(call),
        };
        let function = (known.function, known.domain);
        self.calls.insert(call, known);
        let adopt = Adopt { call, spec, attempts: withdrawn.attempts };
        match self.scheduler.handle(self.now, adopt, &mut self.actions) {
            Ok(id) => {
                if is_probe {
                    self.trouble.case(function).probe = Some(call);
                }
                self.calls.get_mut(&call).unwrap().id = Some(id);
            }
            Err(why) => {
                assert!(matches!(why, NotNow::Quarantined(_)), "{why}");
                assert_eq!(self.trouble.admits(self.now, function), Admits::Never, "{call}");
                self.calls.remove(&call);
            }
        }
    }
}
