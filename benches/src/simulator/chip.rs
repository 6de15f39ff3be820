//! The chip: runs the calls that processes submitted, one process at a time, and charges for changes.
//!
//! ```text
//!        work comes                 changed                  nothing left, none waits
//! idle ─────────────► changing ─────────────► running ───────────────────────────────► idle
//!                         ▲                      │ nothing left, or its slice is over, and others wait
//!                         └──────────────────────┘
//! ```
//!
//! Calls of one process share the chip: as many as fit run as fast as alone, more share that speed. Processes with work
//! take slices in turn. A change to the process that had the chip last costs nothing.

use std::collections::{HashMap, VecDeque};

use super::costs::{Costs, Work};

/// Names a process on the chip.
pub type ContextId = u64;

/// A call on the chip.
#[derive(Debug, Clone, Copy)]
struct Running<T> {
    token: T,
    work: Work,
    left_ns: f64,
    submitted_ns: u64,
}

/// A call that left the chip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left<T> {
    /// Whose it was.
    pub context: ContextId,
    /// The call.
    pub token: T,
    /// When it was handed over: from then on its worker measures how long it is on the device.
    pub submitted_ns: u64,
}

#[derive(Debug)]
struct Context<T> {
    calls: Vec<Running<T>>,
    /// How long it had the chip with work.
    had_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Changing { until_ns: u64 },
    Running { since_ns: u64 },
}

/// One chip.
#[derive(Debug)]
pub struct Chip<T> {
    costs: Costs,
    contexts: HashMap<ContextId, Context<T>>,
    /// Processes with work that wait for the chip, the next one first.
    waiting: VecDeque<ContextId>,
    /// The process that has the chip, or had it last.
    on: Option<ContextId>,
    state: State,
    /// Up to when work is accounted.
    at_ns: u64,
    /// Part of its speed that is left beside what drivers do.
    speed: f64,
    changes: u64,
}

impl<T: Copy + PartialEq> Chip<T> {
    /// Without work.
    pub fn new(costs: Costs) -> Self {
        Self {
            costs,
            contexts: HashMap::new(),
            waiting: VecDeque::new(),
            on: None,
            state: State::Idle,
            at_ns: 0,
            speed: 1.0,
            changes: 0,
        }
    }

    /// How often it changed from one process to another.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// From now on it has this part of its speed.
    pub fn set_speed(&mut self, now_ns: u64, speed: f64) {
        self.advance(now_ns);
        self.speed = speed;
    }

    /// A process hands a call over.
    pub fn submit(&mut self, now_ns: u64, context: ContextId, token: T, work: Work) {
        self.advance(now_ns);
        let left_ns = work.alone_ns.map_or(f64::INFINITY, |ns| ns as f64);
        let entry = self.contexts.entry(context).or_insert(Context { calls: Vec::new(), had_ns: 0 });
        entry.calls.push(Running { token, work, left_ns, submitted_ns: now_ns });
        if self.state == State::Idle {
            self.change_to(now_ns, context, self.costs.change_ns);
        } else if self.on != Some(context) && !self.waiting.contains(&context) {
            self.waiting.push_back(context);
        }
    }

    /// True if a process has a call on the chip.
    pub fn has_work(&self, context: ContextId) -> bool {
        self.contexts.get(&context).is_some_and(|context| !context.calls.is_empty())
    }

    /// A process is gone with its work; how long it had the chip since it was asked last.
    pub fn remove(&mut self, now_ns: u64, context: ContextId) -> u64 {
        self.advance(now_ns);
        self.waiting.retain(|waiting| *waiting != context);
        let had_ns = self.contexts.remove(&context).map_or(0, |context| context.had_ns);
        if self.on == Some(context) && self.state != State::Idle {
            self.next(now_ns, 0);
        }
        had_ns
    }

    /// How long a process had the chip since this was asked last.
    pub fn take_had_ns(&mut self, now_ns: u64, context: ContextId) -> u64 {
        self.advance(now_ns);
        self.contexts.get_mut(&context).map_or(0, |context| std::mem::take(&mut context.had_ns))
    }

    /// When [`Chip::settle`] has something to do.
    pub fn next_ns(&self) -> Option<u64> {
        match self.state {
            State::Idle => None,
            State::Changing { until_ns } => Some(until_ns),
            State::Running { since_ns } => {
                let ends = self.first_end_ns();
                let slice = (!self.waiting.is_empty()).then_some(since_ns + self.costs.slice_ns);
                ends.into_iter().chain(slice).min().map(|at_ns| at_ns.max(self.at_ns))
            }
        }
    }

    /// Lets time pass: calls that ended are appended.
    pub fn settle(&mut self, now_ns: u64, ended: &mut Vec<Left<T>>) {
        self.advance(now_ns);
        match self.state {
            State::Idle => {}
            State::Changing { until_ns } if until_ns <= now_ns => {
                self.state = State::Running { since_ns: now_ns };
            }
            State::Changing { .. } => {}
            State::Running { since_ns } => {
                let Some(on) = self.on else { return };
                let Some(context) = self.contexts.get_mut(&on) else { return };
                context.calls.retain(|call| {
                    let over = call.left_ns < 1.0;
                    if over {
                        ended.push(Left { context: on, token: call.token, submitted_ns: call.submitted_ns });
                    }
                    !over
                });
                if context.calls.is_empty() {
                    self.next(now_ns, 0);
                } else if !self.waiting.is_empty() && since_ns + self.costs.slice_ns <= now_ns {
                    let cut_ns = context.calls.iter().map(|call| call.work.cut_ns).max().unwrap_or(0);
                    self.waiting.push_back(on);
                    self.next(now_ns, cut_ns);
                }
            }
        }
    }

    /// The next process that waits gets the chip.
    fn next(&mut self, now_ns: u64, lost_ns: u64) {
        match self.waiting.pop_front() {
            Some(next) => self.change_to(now_ns, next, self.costs.sliced_change_ns + lost_ns),
            None => self.state = State::Idle,
        }
    }

    fn change_to(&mut self, now_ns: u64, context: ContextId, cost_ns: u64) {
        if self.on == Some(context) {
            self.state = State::Running { since_ns: now_ns };
            return;
        }
        self.on = Some(context);
        self.changes += 1;
        self.state = State::Changing { until_ns: now_ns + cost_ns };
    }

    /// How fast each call of a process runs.
    fn rate(&self, context: &Context<T>) -> f64 {
        let load: f64 = context.calls.iter().map(|call| 1.0 / call.work.width).sum();
        self.speed * (1.0 / load).min(1.0)
    }

    fn first_end_ns(&self) -> Option<u64> {
        let context = self.contexts.get(&self.on?)?;
        let least = context.calls.iter().map(|call| call.left_ns).min_by(f64::total_cmp)?;
        let left_ns = least / self.rate(context);
        left_ns.is_finite().then(|| self.at_ns + left_ns.ceil() as u64)
    }

    fn advance(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.at_ns);
        self.at_ns += passed_ns;
        let (State::Running { .. }, Some(on)) = (self.state, self.on) else { return };
        let Some(rate) = self.contexts.get(&on).map(|context| self.rate(context)) else { return };
        let Some(context) = self.contexts.get_mut(&on) else { return };
        context.had_ns += passed_ns;
        for call in &mut context.calls {
            call.left_ns -= passed_ns as f64 * rate;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;
    const LONE: Work = Work::lasting("lone", 100 * US, 1.0);
    const WIDE: Work = Work::lasting("wide", 100 * US, 4.0);

    /// Runs until nothing is left, or for so long; when each call ended.
    fn run(chip: &mut Chip<u32>, most_ns: u64) -> Vec<(u64, u32)> {
        let (mut ended, mut log) = (Vec::new(), Vec::new());
        while let Some(at_ns) = chip.next_ns().filter(|at_ns| *at_ns <= most_ns) {
            chip.settle(at_ns, &mut ended);
            log.extend(ended.drain(..).map(|left: Left<u32>| (at_ns / US, left.token)));
        }
        log
    }

    #[test]
    fn calls_of_one_process_run_side_by_side_as_far_as_they_fit() {
        let mut chip = Chip::new(Costs::H200);
        (0..8).for_each(|token| chip.submit(0, 1, token, WIDE));
        let ended = run(&mut chip, u64::MAX);
        // Twice as many as fit take twice as long.
        assert_eq!(ended.len(), 8);
        assert!(ended.iter().all(|(at_us, _)| (340..342).contains(at_us)), "{ended:?}");
        chip.submit(1_000 * US, 1, 9, LONE);
        assert_eq!(run(&mut chip, u64::MAX), [(1_100, 9)], "no change");
        assert_eq!((chip.changes(), chip.take_had_ns(2_000 * US, 1)), (1, 300 * US));
    }

    #[test]
    fn processes_take_slices_in_turn() {
        let mut chip = Chip::new(Costs::H200);
        chip.submit(0, 1, 1, LONE);
        chip.submit(0, 2, 2, LONE);
        chip.submit(0, 3, 3, LONE);
        assert_eq!(run(&mut chip, u64::MAX), [(240, 1), (462, 2), (684, 3)]);
        assert_eq!(chip.changes(), 3);
    }

    #[test]
    fn beside_an_endless_call_others_wait_for_slices() {
        let mut chip = Chip::new(Costs::H200);
        chip.submit(0, 1, 1, Work::ENDLESS);
        chip.submit(10 * US, 2, 2, LONE);
        assert_eq!(run(&mut chip, 20_000 * US), [(140 + 4_500 + 122 + 100, 2)]);
        assert!(chip.has_work(1) && !chip.has_work(2));
        assert!(chip.remove(30_000 * US, 1) > 20_000 * US);
        assert_eq!(chip.next_ns(), None);
    }

    #[test]
    fn what_drivers_do_slows_it_down() {
        let mut chip = Chip::new(Costs::H200);
        chip.set_speed(0, 0.5);
        chip.submit(0, 1, 1, LONE);
        assert_eq!(run(&mut chip, u64::MAX), [(340, 1)]);
    }
}
