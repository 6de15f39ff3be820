//! What processes have of a device's memory, as they were told and confirmed.

use std::collections::VecDeque;

use super::{LIMITED, OTHERS, World};
use crate::ids::{Generation, TenantId, WorkerId};
use crate::schedule::events::{ContextChanged, ContextWanted, GaveBack, Reaped};
use crate::schedule::{Batch, Sharing, WhyGone};

/// What a process has of the device's memory.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// By lane, once it did all that it was told.
    pub(super) lanes: Vec<u64>,
    /// What it was told to give back and did not confirm: how much, and what its lanes have left then.
    pub(super) returning: VecDeque<(u64, u64)>,
}

/// True if the function of a call has weights.
pub(super) fn has_weights(call: u64) -> bool {
    call % 5 == 2
}

/// True if a call may be in a worker beside those of others.
pub(super) fn may_share(call: u64) -> bool {
    !call.is_multiple_of(3)
}

/// The same, as the scheduler is told.
pub(super) fn sharing(call: u64) -> Sharing {
    if may_share(call) { Sharing::May } else { Sharing::Never }
}

/// What a call brings into a job with others, if it may run with them.
pub(super) fn batch(call: u64) -> Option<Batch> {
    let part = Batch {
        items: 1 + call % 3,
        most: 5,
        delay_ns: if call.is_multiple_of(4) { 2_000_000 } else { 0 },
        regions: 1,
        staged_bytes: 8,
    };
    call.is_multiple_of(2).then_some(part)
}

impl Memory {
    /// Of a fresh process.
    pub(super) fn new(lanes: u32) -> Self {
        Self { lanes: vec![0; lanes as usize], returning: VecDeque::new() }
    }

    /// A call starts in a lane that has so much from now on.
    pub(super) fn lent(&mut self, lane: u32, bytes: u64) {
        let has = &mut self.lanes[lane as usize];
        assert!(bytes >= *has, "a lane has {has} and is lent {bytes}");
        *has = bytes;
    }

    /// It is told to give back.
    pub(super) fn gives(&mut self, lanes: u64) {
        let told = self.lanes.iter_mut().enumerate().filter(|(lane, _)| lanes >> lane & 1 == 1);
        let bytes: u64 = told.map(|(_, has)| std::mem::take(has)).sum();
        assert!(bytes > 0, "asked for nothing");
        self.returning.push_back((bytes, self.lanes.iter().sum()));
    }

    /// The most that it may have at this moment.
    pub(super) fn at_most(&self) -> u64 {
        self.lanes.iter().sum::<u64>() + self.returning.iter().map(|(bytes, _)| bytes).sum::<u64>()
    }
}

/// A process that is gone and not reaped.
pub(super) struct Dying {
    pub(super) worker: WorkerId,
    pub(super) generation: u64,
    pub(super) memory: Memory,
    pub(super) from_outside: bool,
    /// Whose budget is drawn on, unless the process was ended from outside.
    pub(super) drawn: Option<TenantId>,
}

impl World {
    /// Each process gives back what it was told first, loads weights or lets them go, and processes that are gone are
    /// reaped.
    pub(super) fn moved(&mut self) {
        for worker in WorkerId::first(self.slots) {
            let told = self.processes.get_mut(&worker).and_then(|(.., memory)| memory.returning.pop_front());
            if let Some((_, left_bytes)) = told {
                assert!(self.scheduler.handle(self.now, GaveBack { worker, left_bytes }, &mut self.actions));
                self.apply();
            }
        }
        self.do_duties();
        for Dying { worker, generation, from_outside, drawn, .. } in std::mem::take(&mut self.dying) {
            drawn
                .filter(|_| !from_outside)
                .into_iter()
                .for_each(|caller| self.trouble.draw(self.now, caller));
            let reaped = Reaped { worker, generation: Generation::new(generation), from_outside };
            self.scheduler.handle(self.now, reaped, &mut self.actions);
            self.apply();
        }
    }

    /// Processes take so much for themselves from now on.
    pub(super) fn set_contexts(&mut self, now: u64) {
        let before = std::mem::replace(&mut self.contexts, now);
        self.scheduler.handle(self.now, ContextChanged { before, now }, &mut self.actions);
        self.apply();
    }

    /// A process asks for memory of its own; that of a worker asks until there is some.
    pub(super) fn context(&mut self, urgent: bool) {
        let wanted = ContextWanted { bytes: OTHERS, urgent };
        let is_there = self.scheduler.handle(self.now, wanted, &mut self.actions);
        if is_there {
            self.contexts += OTHERS;
        }
        if urgent {
            self.context_awaited = !is_there;
        }
    }

    /// A worker's process that waits for its memory asks again.
    pub(super) fn context_again(&mut self) {
        if self.context_awaited {
            self.context(true);
        }
    }

    /// True if a worker leaves for the memory that its process takes, whether it served a domain or none.
    pub(super) fn left_for_memory(&self, worker: WorkerId) -> bool {
        let gone = self.scheduler.resident(worker).last_gone;
        gone == Some(WhyGone::MemoryWanted) || self.scheduler.workers[worker].dismissed
    }

    /// Nothing is lent twice, nothing more where the device was given less memory than is had, and no caller has more than
    /// it may.
    pub(super) fn check_memory(&mut self) {
        let there = self.processes.values().map(|(.., memory)| memory);
        let all = there.chain(self.dying.iter().map(|dying| &dying.memory)).map(Memory::at_most).sum::<u64>();
        // Beside what is about to leave, for which other weights may come.
        let weights = self.scheduler.weights().used_bytes();
        let had = all + self.contexts + weights;
        assert!(had <= self.at_most, "{all} lent beside {} and {weights}", self.contexts);
        let memory = self.shape.memory_bytes;
        self.at_most = self.at_most.min(had).max(memory);
        assert!(self.scheduler.workers.sets_are_right());
        let (total, lent, counted) = self.scheduler.book.account();
        assert_eq!((total, lent), (memory, counted));
        let serves = |worker: &WorkerId| {
            self.scheduler.workers[*worker].served().is_some_and(|domain| domain.caller == LIMITED.0)
        };
        let own = self.processes.iter().filter(|(worker, _)| serves(worker));
        let own: u64 = own.map(|(_, (.., memory))| memory.lanes.iter().sum::<u64>()).sum();
        let shared = self.calls.values().filter(|known| known.domain == LIMITED.0);
        let shared = shared.filter(|known| known.running.is_some_and(|(worker, _)| self.is_shared(worker)));
        let own = own + shared.map(|known| known.memory).sum::<u64>();
        let weights = self.scheduler.weights().used_by(LIMITED.0);
        assert!(own + weights <= LIMITED.1, "{own} and {weights} of one that may have {}", LIMITED.1);
    }
}
