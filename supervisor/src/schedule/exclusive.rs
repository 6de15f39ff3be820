//! Calls that need the whole device, and how its memory moves to their worker and back.
//!
//! ```text
//! shared ──first in line, lanes empty──► shrinking: all others give up their lease ──► growing: it gets all
//!   ▲                                                                                      │
//!   └── spreading: all get their own ◄── returning: it gives all up ◄──over── whole ◄──────┘
//! ```
//!
//! Each of the steps with a colon is over when every process confirmed its settings and no process that served is
//! still to be reaped. So nothing is given out before it is free.
//!
//! Where a fault hits the calls of all workers, suspects are such calls, too, but no memory moves for them:
//!
//! ```text
//! shared ──first in line, lanes empty──► alone ──over──► shared
//! ```
//!
//! They stand in a line of their own. Calls that came before the first of them run first; those that came
//! later wait until it is over.

use std::collections::VecDeque;

use super::types::{CallId, Share};
use crate::ids::{Generation, WorkerId};
use crate::limits::SETTLE_NS;

/// Calls that need the whole device, and how far the first one is.
#[derive(Debug)]
pub(super) struct Exclusive {
    /// Those that wait, oldest first; the one that memory moves for is still among them.
    line: VecDeque<CallId>,
    /// Those whose caller spent its budget: other calls do not wait for them.
    aside: Vec<CallId>,
    stage: Stage,
    leases: Vec<Lease>,
    /// Processes that served and are not reaped.
    dying: Vec<(WorkerId, Generation)>,
    /// When processes that did not confirm their settings are killed.
    deadline_ns: Option<u64>,
}

/// What one worker has of the memory.
#[derive(Debug, Clone, Copy)]
struct Lease {
    share: Share,
    /// The process in the worker's slot.
    process: Option<Generation>,
    /// Settings that it was sent and did not confirm.
    unconfirmed: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Every worker has its own lease.
    Shared,
    /// The worker has a call that runs alone, and its own lease.
    Alone(WorkerId),
    /// All but one worker give up their leases, for a call.
    Shrinking(CallId, WorkerId),
    /// It is being given everything.
    Growing(CallId, WorkerId),
    /// It has everything, and the call.
    Whole(WorkerId),
    /// It gives everything up.
    Returning,
    /// Every worker is being given its own lease again.
    Spreading,
}

impl Stage {
    /// What a worker has in this stage.
    fn share(self, worker: WorkerId) -> Share {
        match self {
            Self::Shared | Self::Alone(_) | Self::Spreading => Share::Own,
            Self::Shrinking(_, to) if to == worker => Share::Own,
            Self::Growing(_, to) | Self::Whole(to) if to == worker => Share::All,
            Self::Shrinking(..) | Self::Growing(..) | Self::Whole(_) | Self::Returning => Share::Nothing,
        }
    }

    /// The call that memory moves for.
    fn prepared(self) -> Option<CallId> {
        match self {
            Self::Shrinking(id, _) | Self::Growing(id, _) => Some(id),
            _ => None,
        }
    }

    /// Whether processes are waited for.
    fn is_moving(self) -> bool {
        matches!(self, Self::Shrinking(..) | Self::Growing(..) | Self::Returning | Self::Spreading)
    }
}

/// What a move of memory led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moved {
    /// The worker has everything for this call: [`Exclusive::run`] or [`Exclusive::give_back`] follows.
    Whole(CallId, WorkerId),
    /// Every worker has its own lease again.
    Shared,
}

/// Shares that workers are to be told, in this order.
pub(super) type Shares = Vec<(WorkerId, Share)>;

impl Exclusive {
    /// A device whose slots are all empty.
    pub(super) fn new(workers: usize) -> Self {
        let lease = Lease { share: Share::Own, process: None, unconfirmed: 0 };
        Self {
            line: VecDeque::new(),
            aside: Vec::new(),
            stage: Stage::Shared,
            leases: vec![lease; workers],
            dying: Vec::new(),
            deadline_ns: None,
        }
    }

    /// Queued calls that came later than this one may not start; none says that all may.
    pub(super) fn barrier(&self) -> Option<CallId> {
        match self.stage {
            Stage::Shared => self.line.front().copied(),
            _ => Some(CallId(0)),
        }
    }

    /// The call to begin with, if the device is free for it.
    pub(super) fn next(&self) -> Option<CallId> {
        self.line.front().copied().filter(|_| self.stage == Stage::Shared)
    }

    /// A call waits, for the first time or again.
    pub(super) fn push(&mut self, id: CallId) {
        let at = self.line.partition_point(|first| *first < id);
        self.line.insert(at, id);
    }

    /// A call waits until its caller may start something again.
    pub(super) fn put_aside(&mut self, id: CallId) {
        self.line.retain(|waiting| *waiting != id);
        self.aside.push(id);
    }

    /// Puts calls aside of which this is true, unless memory moves for them already; whether there were any.
    pub(super) fn put_all_aside(&mut self, is_one: impl Fn(CallId) -> bool) -> bool {
        let prepared = self.stage.prepared();
        let before = self.aside.len();
        let aside = &mut self.aside;
        self.line.retain(|id| {
            let stays = prepared == Some(*id) || !is_one(*id);
            if !stays {
                aside.push(*id);
            }
            stays
        });
        self.aside.len() > before
    }

    /// Calls that were put aside and of which this is true wait in line again; whether there were any.
    pub(super) fn come_back(&mut self, is_one: impl Fn(CallId) -> bool) -> bool {
        let (back, aside): (Vec<_>, _) = self.aside.drain(..).partition(|id| is_one(*id));
        self.aside = aside;
        back.iter().for_each(|id| self.push(*id));
        !back.is_empty()
    }

    /// A call does not wait any more; whether memory was moved for it in vain.
    pub(super) fn remove(&mut self, id: CallId) -> bool {
        self.line.retain(|waiting| *waiting != id);
        self.aside.retain(|waiting| *waiting != id);
        self.stage.prepared() == Some(id)
    }

    /// Takes out the calls of which this is true; whether memory was moved for one of them in vain.
    pub(super) fn take(&mut self, is_one: impl Fn(CallId) -> bool) -> (Vec<CallId>, bool) {
        let mut taken = Vec::new();
        let mut keep = |id: &CallId| {
            let stays = !is_one(*id);
            if !stays {
                taken.push(*id);
            }
            stays
        };
        self.line.retain(&mut keep);
        self.aside.retain(&mut keep);
        let in_vain = self.stage.prepared().is_some_and(|prepared| taken.contains(&prepared));
        (taken, in_vain)
    }

    /// Whether calls wait in line.
    pub(super) fn has_line(&self) -> bool {
        !self.line.is_empty()
    }

    /// Whether the device is that worker's, or is about to be.
    pub(super) fn is_for(&self, worker: WorkerId) -> bool {
        match self.stage {
            Stage::Alone(w) | Stage::Shrinking(_, w) | Stage::Growing(_, w) | Stage::Whole(w) => w == worker,
            Stage::Shared | Stage::Returning | Stage::Spreading => false,
        }
    }

    /// The first call in line runs alone in a worker, with no memory moved.
    pub(super) fn run_alone(&mut self, worker: WorkerId) {
        self.stage = Stage::Alone(worker);
        self.line.pop_front();
    }

    /// The call that ran alone in that worker is over; false if none did.
    pub(super) fn end_alone(&mut self, worker: WorkerId) -> bool {
        let alone = self.stage == Stage::Alone(worker);
        if alone {
            self.stage = Stage::Shared;
        }
        alone
    }

    /// Memory moves to a worker for the first call in line.
    pub(super) fn begin(&mut self, now_ns: u64, id: CallId, to: WorkerId, shares: &mut Shares) {
        self.enter(now_ns, Stage::Shrinking(id, to), shares);
    }

    /// After [`Moved::Whole`]: the call is in the worker.
    pub(super) fn run(&mut self, worker: WorkerId) {
        self.stage = Stage::Whole(worker);
        self.line.pop_front();
        self.deadline_ns = None;
    }

    /// The call is over, its worker is, or it gave up: every worker is to have its own lease again.
    pub(super) fn give_back(&mut self, now_ns: u64, shares: &mut Shares) {
        self.enter(now_ns, Stage::Returning, shares);
    }

    fn enter(&mut self, now_ns: u64, stage: Stage, shares: &mut Shares) {
        self.stage = stage;
        for (worker, lease) in self.each() {
            let share = stage.share(worker);
            if std::mem::replace(&mut lease.share, share) != share && lease.process.is_some() {
                lease.unconfirmed += 1;
                shares.push((worker, share));
            }
        }
        self.deadline_ns = stage.is_moving().then(|| now_ns.saturating_add(SETTLE_NS));
    }

    /// Every worker, with what it has.
    fn each(&mut self) -> impl Iterator<Item = (WorkerId, &mut Lease)> {
        WorkerId::first(self.leases.len()).zip(&mut self.leases)
    }

    /// A process is in a worker's slot: what it has.
    pub(super) fn arrived(&mut self, worker: WorkerId, generation: Generation) -> Share {
        let share = self.stage.share(worker);
        self.leases[worker.get()] = Lease { share, process: Some(generation), unconfirmed: 1 };
        share
    }

    /// It serves no more, and holds its memory until it is reaped.
    pub(super) fn gone(&mut self, worker: WorkerId) {
        let lease = &mut self.leases[worker.get()];
        lease.unconfirmed = 0;
        self.dying.extend(lease.process.take().map(|generation| (worker, generation)));
    }

    /// It is reaped.
    pub(super) fn reaped(&mut self, worker: WorkerId, generation: Generation) {
        self.dying.retain(|dying| *dying != (worker, generation));
    }

    /// Settings of a worker are in force; false if all that it was sent were already.
    pub(super) fn confirmed(&mut self, worker: WorkerId) -> bool {
        let lease = &mut self.leases[worker.get()];
        let asked = lease.unconfirmed > 0;
        lease.unconfirmed -= u32::from(asked);
        asked
    }

    /// Other settings changed: all workers are to be told theirs.
    pub(super) fn tell_all(&mut self, shares: &mut Shares) {
        for (worker, lease) in self.each().filter(|(_, lease)| lease.process.is_some()) {
            lease.unconfirmed += 1;
            shares.push((worker, lease.share));
        }
    }

    /// Goes on with what was waited for, if it is there.
    pub(super) fn advance(&mut self, now_ns: u64, shares: &mut Shares) -> Option<Moved> {
        while self.stage.is_moving()
            && self.dying.is_empty()
            && self.leases.iter().all(|lease| lease.unconfirmed == 0)
        {
            match self.stage {
                Stage::Shrinking(id, to) => self.enter(now_ns, Stage::Growing(id, to), shares),
                Stage::Growing(id, to) => return Some(Moved::Whole(id, to)),
                Stage::Returning => self.enter(now_ns, Stage::Spreading, shares),
                _ => {
                    self.enter(now_ns, Stage::Shared, shares);
                    return Some(Moved::Shared);
                }
            }
        }
        None
    }

    /// When [`Exclusive::expire`] has something to say.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.deadline_ns
    }

    /// Workers that hold a move up since they do not confirm their settings; told again and again.
    pub(super) fn expire(&mut self, now_ns: u64) -> Vec<WorkerId> {
        if self.deadline_ns.is_none_or(|at_ns| at_ns > now_ns) {
            return Vec::new();
        }
        self.deadline_ns = Some(now_ns.saturating_add(SETTLE_NS));
        let late = self.each().filter(|(_, lease)| lease.unconfirmed > 0);
        late.map(|(worker, _)| worker).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: CallId = CallId(7);
    const WORKER: WorkerId = WorkerId::new(1);

    fn generation(nth: u64) -> Generation {
        Generation::new(nth)
    }

    /// Three workers whose settings are in force, and a call that memory moves to [`WORKER`] for.
    fn shrinking() -> (Exclusive, Shares) {
        let (mut exclusive, mut shares) = (Exclusive::new(3), Shares::new());
        for worker in WorkerId::first(3) {
            assert_eq!(exclusive.arrived(worker, generation(1)), Share::Own);
            assert!(exclusive.confirmed(worker) && !exclusive.confirmed(worker));
        }
        exclusive.push(CALL);
        exclusive.begin(0, CALL, WORKER, &mut shares);
        (exclusive, shares)
    }

    fn all_confirm(exclusive: &mut Exclusive, shares: &mut Shares) {
        shares.drain(..).for_each(|(worker, _)| assert!(exclusive.confirmed(worker)));
    }

    #[test]
    fn at_no_moment_more_is_given_than_there_is() {
        let (mut exclusive, mut shares) = shrinking();
        let units = |share| match share {
            Share::Nothing => 0,
            Share::Own => 1,
            Share::All => 3,
        };
        let mut has = [Share::Own; 3];
        let mut whole = 0;
        loop {
            // Each worker has what it had, or already what it gets.
            let mut most = has.map(units);
            for (worker, share) in &shares {
                most[worker.get()] = most[worker.get()].max(units(*share));
                has[worker.get()] = *share;
            }
            assert!(most.iter().sum::<u32>() <= 3, "{most:?}");
            all_confirm(&mut exclusive, &mut shares);
            match exclusive.advance(0, &mut shares) {
                Some(Moved::Whole(CALL, WORKER)) => {
                    assert_eq!(has, [Share::Nothing, Share::All, Share::Nothing]);
                    exclusive.run(WORKER);
                    exclusive.give_back(0, &mut shares);
                    whole += 1;
                }
                Some(Moved::Shared) => break,
                other => assert_eq!(other, None),
            }
        }
        assert_eq!((has, whole, exclusive.barrier()), ([Share::Own; 3], 1, None));
    }

    #[test]
    fn nothing_is_given_out_before_every_process_confirmed() {
        let (mut exclusive, mut shares) = shrinking();
        assert_eq!(shares, [(WorkerId::new(0), Share::Nothing), (WorkerId::new(2), Share::Nothing)]);
        shares.clear();
        assert!(exclusive.confirmed(WorkerId::new(0)));
        assert_eq!((exclusive.advance(0, &mut shares), shares.len()), (None, 0));
        assert!(exclusive.confirmed(WorkerId::new(2)));
        assert_eq!(exclusive.advance(0, &mut shares), None);
        assert_eq!(shares, [(WORKER, Share::All)]);
    }

    #[test]
    fn nothing_is_given_out_before_a_process_that_ended_is_reaped() {
        let (mut exclusive, mut shares) = shrinking();
        shares.clear();
        assert!(exclusive.confirmed(WorkerId::new(0)));
        exclusive.gone(WorkerId::new(2));
        exclusive.advance(0, &mut shares);
        assert_eq!(shares, []);
        // Its successor has nothing either, while memory moves.
        assert_eq!(exclusive.arrived(WorkerId::new(2), generation(2)), Share::Nothing);
        exclusive.reaped(WorkerId::new(2), generation(2));
        assert!(exclusive.confirmed(WorkerId::new(2)));
        exclusive.advance(0, &mut shares);
        assert_eq!(shares, [], "another process was reaped");
        exclusive.reaped(WorkerId::new(2), generation(1));
        exclusive.advance(0, &mut shares);
        assert_eq!(shares, [(WORKER, Share::All)]);
    }

    #[test]
    fn who_does_not_confirm_holds_a_move_up_only_so_long() {
        let (mut exclusive, mut shares) = shrinking();
        assert_eq!(exclusive.next_ns(), Some(SETTLE_NS));
        assert!(exclusive.expire(SETTLE_NS - 1).is_empty());
        assert_eq!(exclusive.expire(SETTLE_NS), [0, 2].map(WorkerId::new));
        assert!(exclusive.confirmed(WorkerId::new(0)));
        assert_eq!(exclusive.expire(2 * SETTLE_NS), [WorkerId::new(2)]);
        exclusive.gone(WorkerId::new(2));
        exclusive.reaped(WorkerId::new(2), generation(1));
        exclusive.advance(0, &mut shares);
        all_confirm(&mut exclusive, &mut vec![(WORKER, Share::All)]);
        assert_eq!(exclusive.advance(0, &mut shares), Some(Moved::Whole(CALL, WORKER)));
        exclusive.run(WORKER);
        assert_eq!(exclusive.next_ns(), None);
    }

    #[test]
    fn other_settings_must_be_confirmed_too() {
        let (mut exclusive, mut shares) = shrinking();
        all_confirm(&mut exclusive, &mut shares);
        exclusive.tell_all(&mut shares);
        assert_eq!(
            shares,
            [(WorkerId::new(0), Share::Nothing), (WORKER, Share::Own), (WorkerId::new(2), Share::Nothing)]
        );
        exclusive.advance(0, &mut Shares::new());
        assert_eq!(exclusive.stage, Stage::Shrinking(CALL, WORKER));
        all_confirm(&mut exclusive, &mut shares);
        exclusive.advance(0, &mut shares);
        assert_eq!(shares, [(WORKER, Share::All)]);
    }

    #[test]
    fn calls_that_are_put_aside_come_back_in_order() {
        let (mut exclusive, _) = shrinking();
        exclusive.push(CallId(9));
        exclusive.push(CallId(8));
        assert!(exclusive.put_all_aside(|_| true) && !exclusive.put_all_aside(|_| true));
        assert_eq!(exclusive.line, [CALL], "memory moves for it already");
        assert!(exclusive.come_back(|id| id == CallId(8)) && !exclusive.come_back(|id| id == CallId(8)));
        exclusive.push(CallId(1));
        assert_eq!(exclusive.line, [1, 7, 8].map(CallId));
        assert!(exclusive.remove(CALL) && !exclusive.remove(CallId(9)));
    }
}
