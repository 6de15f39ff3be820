//! A virtual worker process: calls in lanes, its turn, and what it says. It follows the rules of `worker/src/serve`: when a
//! turn ends is said there (`turn.rs`, over the wall clock; here over the virtual one), how long it lasts and how long one waits
//! for the next call is decided by the very same [`TurnWait`] and [`Prices`].
//!
//! It is one thread: what it does for one call (installing, a graph, mapping) keeps everything else waiting.

use std::collections::{HashSet, VecDeque};

use pappus_supervisor::ids::FunctionId;
use pappus_supervisor::schedule::CallId;
use pappus_worker::serve::turn_wait::{Prices, TurnWait};

use super::costs::{Costs, Work};
use super::events::Says;

/// What the supervisor tells it.
#[derive(Debug, Clone, Copy)]
pub enum Told {
    /// To run a call in a lane that has so much memory.
    Start {
        /// Which lane.
        lane: u32,
        /// Bytes.
        memory_bytes: u64,
        /// The call's name.
        id: CallId,
        /// Its function.
        function: FunctionId,
        /// What it does.
        work: Work,
    },
    /// It has the device.
    Grant {
        /// Names the turn.
        turn: u64,
        /// How long while others wait.
        quantum_ns: u64,
        /// What a change costs.
        change_ns: u64,
    },
    /// Others wait.
    Revoke {
        /// Names the turn.
        turn: u64,
    },
    /// Its turn is near.
    Soon,
    /// To give memory of these lanes back.
    GiveBack {
        /// One bit for each.
        lanes: u64,
    },
    /// To forget its domain.
    Scrub,
    /// Its settings.
    Configure,
}

/// What it does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Does {
    /// Hands a call to the chip.
    Submit {
        /// Which.
        id: CallId,
        /// What it does.
        work: Work,
    },
    /// Tells the supervisor.
    Says(Says),
}

#[derive(Debug, Clone, Copy)]
struct LaneCall {
    id: CallId,
    function: FunctionId,
    work: Work,
    memory_bytes: u64,
    stage: Stage,
}

/// How far a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It waits until its function is installed.
    Prepared { ready_ns: u64 },
    /// In its turn, its lane's memory and graph are made.
    Making { ready_ns: u64 },
    /// It is on the chip.
    Started,
}

impl LaneCall {
    /// True if the call needs the worker's turn until it is over.
    fn is_begun(&self) -> bool {
        !matches!(self.stage, Stage::Prepared { .. })
    }
}

#[derive(Debug, Clone, Copy)]
struct Held {
    turn: u64,
    since_ns: u64,
    quantum_ns: u64,
    change_ns: u64,
    revoked: bool,
    ending: bool,
    waits: bool,
}

impl Held {
    /// When the turn has no time for another call that takes so long.
    fn over_ns(&self, call_ns: u64) -> u64 {
        self.since_ns + self.prices(call_ns).last_start_ns()
    }

    fn prices(&self, call_ns: u64) -> Prices {
        Prices { change_ns: self.change_ns, quantum_ns: self.quantum_ns, call_ns }
    }
}

/// One process.
#[derive(Debug)]
pub struct Worker {
    costs: Costs,
    takes_turns: bool,
    /// The next turn begins while the last calls of this one run.
    lanes: Vec<Option<LaneCall>>,
    lane_bytes: Vec<u64>,
    installed: HashSet<FunctionId>,
    graphs: HashSet<(FunctionId, u32)>,
    held: Option<Held>,
    wait: TurnWait,
    /// How long calls take lately.
    call_ns: u64,
    busy_since_ns: Option<u64>,
    used_ns: u64,
    /// Until when its thread is busy with something else than frames.
    host_ns: u64,
    scrubs_ns: Option<u64>,
    /// Memory given back that it did not say yet: when it does, and what its lanes have left.
    gives: VecDeque<(u64, u64)>,
}

impl Worker {
    /// A fresh process.
    pub fn new(costs: Costs, lanes: u32, takes_turns: bool) -> Self {
        Self {
            costs,
            takes_turns,
            lanes: vec![None; lanes as usize],
            lane_bytes: vec![0; lanes as usize],
            installed: HashSet::new(),
            graphs: HashSet::new(),
            held: None,
            wait: TurnWait::default(),
            call_ns: 0,
            busy_since_ns: None,
            used_ns: 0,
            host_ns: 0,
            scrubs_ns: None,
            gives: VecDeque::new(),
        }
    }

    /// Until when it reads no frames.
    pub fn host_ns(&self) -> u64 {
        self.host_ns
    }

    /// True if the worker polls: it has calls, or waits for one in its turn.
    pub fn is_awake(&self) -> bool {
        self.lanes.iter().any(Option::is_some) || self.held.is_some_and(|held| held.waits)
    }

    /// True if the worker was handed the call.
    pub fn has(&self, id: CallId) -> bool {
        self.lanes.iter().flatten().any(|call| call.id == id)
    }

    /// A frame arrived.
    pub fn hear(&mut self, now_ns: u64, told: Told, does: &mut Vec<Does>) {
        match told {
            Told::Start { lane, memory_bytes, id, function, work } => {
                if self.installed.insert(function) {
                    self.host_ns = self.host_ns.max(now_ns) + self.costs.install_ns;
                }
                let stage = Stage::Prepared { ready_ns: self.host_ns };
                self.lanes[lane as usize] = Some(LaneCall { id, function, work, memory_bytes, stage });
                let in_turn = self.held.is_some_and(|held| !held.ending);
                self.wait.arrived(now_ns, in_turn);
            }
            Told::Grant { turn, quantum_ns, change_ns } => {
                self.wait.begin();
                let (revoked, ending, waits) = (false, false, false);
                self.held =
                    Some(Held { turn, since_ns: now_ns, quantum_ns, change_ns, revoked, ending, waits });
            }
            Told::Revoke { turn } => {
                if let Some(held) = self.held.as_mut().filter(|held| held.turn == turn) {
                    held.revoked = true;
                }
            }
            Told::Soon | Told::Configure => {}
            Told::GiveBack { lanes } => {
                let given = self.lane_bytes.iter_mut().enumerate().filter(|(lane, _)| lanes >> lane & 1 == 1);
                let bytes: u64 = given.map(|(_, bytes)| std::mem::take(bytes)).sum();
                self.host_ns = self.host_ns.max(now_ns) + self.costs.mapping_ns(bytes);
                self.gives.push_back((self.host_ns, self.lane_bytes.iter().sum()));
            }
            Told::Scrub => {
                self.installed.clear();
                self.graphs.clear();
                (self.wait, self.call_ns) = (TurnWait::default(), 0);
                self.host_ns = self.host_ns.max(now_ns) + self.costs.scrub_ns;
                self.scrubs_ns = Some(self.host_ns);
                // The old domain is charged for it.
                if let Some(held) = self.held {
                    self.give_back(now_ns, held.turn, does);
                }
            }
        }
        self.look(now_ns, does);
    }

    /// A call of it left the chip, on which it was for so long.
    pub fn ended(&mut self, now_ns: u64, id: CallId, device_ns: u64, does: &mut Vec<Does>) {
        let is_it = |call: &Option<LaneCall>| call.is_some_and(|call| call.id == id);
        let Some(lane) = self.lanes.iter().position(is_it) else { return };
        self.lanes[lane] = None;
        self.call_ns = if self.call_ns == 0 { device_ns } else { (self.call_ns * 3 + device_ns) / 4 };
        self.wait.call_over();
        does.push(Does::Says(Says::Done { id, device_ns }));
        self.look(now_ns, does);
    }

    /// Does what time has come for.
    pub fn look(&mut self, now_ns: u64, does: &mut Vec<Does>) {
        if self.scrubs_ns.take_if(|at_ns| *at_ns <= now_ns).is_some() {
            does.push(Does::Says(Says::Scrubbed));
        }
        while let Some((_, left_bytes)) = self.gives.pop_front_if(|(at_ns, _)| *at_ns <= now_ns) {
            does.push(Does::Says(Says::GaveBack { left_bytes }));
        }
        self.submit(now_ns, does);
        let busy = self.lanes.iter().flatten().any(LaneCall::is_begun);
        match (busy, self.busy_since_ns) {
            (true, None) => self.busy_since_ns = Some(now_ns),
            (false, Some(since_ns)) => {
                self.used_ns += now_ns - since_ns;
                self.busy_since_ns = None;
            }
            _ => {}
        }
        self.step(now_ns, busy, does);
    }

    /// Hands calls to the chip, which it may in its turn: the first call of a lane once its memory and graph are made.
    fn submit(&mut self, now_ns: u64, does: &mut Vec<Does>) {
        let may_submit = self.may_submit();
        for (lane, call) in (0..).zip(&mut self.lanes) {
            let Some(call) = call else { continue };
            if may_submit && matches!(call.stage, Stage::Prepared { ready_ns } if ready_ns <= now_ns) {
                let has = &mut self.lane_bytes[lane as usize];
                let mut takes_ns = self.costs.mapping_ns(call.memory_bytes.saturating_sub(*has));
                *has = call.memory_bytes.max(*has);
                if self.graphs.insert((call.function, lane)) {
                    takes_ns += call.work.graph_ns;
                }
                if takes_ns > 0 {
                    self.host_ns = self.host_ns.max(now_ns) + takes_ns;
                }
                call.stage = Stage::Making { ready_ns: self.host_ns };
            }
            if matches!(call.stage, Stage::Making { ready_ns } if ready_ns <= now_ns) {
                call.stage = Stage::Started;
                does.push(Does::Submit { id: call.id, work: call.work });
            }
        }
    }

    fn may_submit(&self) -> bool {
        !self.takes_turns || self.held.is_some_and(|held| !held.ending)
    }

    /// Gives the turn back when it is time.
    fn step(&mut self, now_ns: u64, busy: bool, does: &mut Vec<Does>) {
        let waiting = self.lanes.iter().flatten().any(|call| !call.is_begun());
        if !busy && !waiting {
            self.wait.idle(now_ns);
        }
        let call_ns = self.call_ns;
        let Some(held) = &mut self.held else { return };
        held.waits = false;
        if !held.revoked {
            return;
        }
        let is_over = held.over_ns(call_ns) <= now_ns;
        let turn = held.turn;
        if !busy && (held.ending || !waiting) {
            held.waits = !held.ending && !is_over && self.wait.left_ns(now_ns, held.prices(call_ns)) > 0;
            if !held.waits {
                self.give_back(now_ns, turn, does);
            }
            return;
        }
        if !held.ending && is_over {
            held.ending = true;
            match busy {
                true => does.push(Does::Says(Says::Yielding { turn })),
                false => self.give_back(now_ns, turn, does),
            }
        }
    }

    fn give_back(&mut self, now_ns: u64, turn: u64, does: &mut Vec<Does>) {
        self.held = None;
        self.wait.over();
        let since_ns = self.busy_since_ns.take().unwrap_or(now_ns);
        let used_ns = std::mem::take(&mut self.used_ns) + (now_ns - since_ns);
        does.push(Does::Says(Says::Yielded { turn, used_ns }));
    }

    /// When [`Worker::look`] has something to do.
    pub fn next_look_ns(&mut self, now_ns: u64) -> Option<u64> {
        let may_submit = self.may_submit();
        let ready = self.lanes.iter().flatten().filter_map(|call| match call.stage {
            Stage::Prepared { ready_ns } => may_submit.then_some(ready_ns),
            Stage::Making { ready_ns } => Some(ready_ns),
            Stage::Started => None,
        });
        let mut next = ready.min();
        next =
            next.into_iter().chain(self.scrubs_ns).chain(self.gives.front().map(|(at_ns, _)| *at_ns)).min();
        if let Some(held) = self.held.filter(|held| held.revoked && !held.ending) {
            let mut at_ns = held.over_ns(self.call_ns);
            if held.waits {
                at_ns = at_ns.min(now_ns + self.wait.left_ns(now_ns, held.prices(self.call_ns)));
            }
            next = next.into_iter().chain([at_ns]).min();
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;

    fn start(lane: u32, id: u64) -> Told {
        let (function, work) = (FunctionId::new(1), Work::MATMUL);
        Told::Start { lane, memory_bytes: 0, id: CallId(id), function, work }
    }

    /// A process whose function is installed, with graphs in two lanes.
    fn warm() -> (Worker, u64) {
        let (mut worker, mut does) = (Worker::new(Costs::H200, 2, true), Vec::new());
        worker.hear(0, Told::Grant { turn: 1, quantum_ns: 5_000 * US, change_ns: 140 * US }, &mut does);
        worker.hear(0, start(0, 1), &mut does);
        worker.hear(0, start(1, 2), &mut does);
        let mut at = 0;
        while does.len() < 2 {
            at = worker.next_look_ns(at).unwrap();
            worker.look(at, &mut does);
        }
        worker.ended(at, CallId(1), 35 * US, &mut does);
        worker.ended(at, CallId(2), 35 * US, &mut does);
        (worker, at)
    }

    #[test]
    fn a_first_call_waits_until_its_function_is_there() {
        let (mut worker, mut does) = (Worker::new(Costs::H200, 1, false), Vec::new());
        worker.hear(0, start(0, 1), &mut does);
        assert!(does.is_empty());
        let installed = worker.next_look_ns(0).unwrap();
        worker.look(installed, &mut does);
        assert_eq!((installed, does.len()), (Costs::H200.install_ns, 0));
        let at = worker.next_look_ns(installed).unwrap();
        assert_eq!(at, installed + Work::MATMUL.graph_ns);
        worker.look(at, &mut does);
        assert_eq!(does, [Does::Submit { id: CallId(1), work: Work::MATMUL }]);
        worker.ended(at + 50 * US, CallId(1), 35 * US, &mut does);
        does.clear();
        worker.hear(at + 60 * US, start(0, 2), &mut does);
        assert_eq!(does.len(), 1, "hot");
    }

    #[test]
    fn calls_wait_for_the_turn_which_ends_when_none_comes() {
        let (mut worker, at) = warm();
        let mut does = Vec::new();
        worker.hear(at, Told::Revoke { turn: 1 }, &mut does);
        assert!(does.is_empty() && worker.is_awake(), "it waits for the next call");
        let until = worker.next_look_ns(at).unwrap();
        worker.look(until, &mut does);
        assert!(matches!(does[..], [Does::Says(Says::Yielded { turn: 1, .. })]), "{does:?}");
        does.clear();
        worker.hear(until, start(0, 3), &mut does);
        assert!(does.is_empty(), "no turn");
        worker.hear(until, Told::Grant { turn: 2, quantum_ns: 5_000 * US, change_ns: 140 * US }, &mut does);
        assert_eq!(does, [Does::Submit { id: CallId(3), work: Work::MATMUL }]);
    }

    #[test]
    fn a_turn_ends_with_its_quantum_once_the_lanes_are_empty() {
        let (mut worker, at) = warm();
        let mut does = Vec::new();
        worker.hear(at, start(0, 3), &mut does);
        worker.hear(at, Told::Revoke { turn: 1 }, &mut does);
        does.clear();
        let over = worker.next_look_ns(at).unwrap();
        worker.look(over, &mut does);
        assert_eq!(does, [Does::Says(Says::Yielding { turn: 1 })]);
        worker.hear(over, start(1, 4), &mut does);
        worker.ended(over + US, CallId(3), 35 * US, &mut does);
        assert!(
            matches!(does[1..], [Does::Says(Says::Done { .. }), Does::Says(Says::Yielded { turn: 1, .. })]),
            "{does:?}"
        );
    }

    #[test]
    fn what_was_scrubbed_is_installed_again() {
        let (mut worker, at) = warm();
        let mut does = Vec::new();
        worker.hear(at, Told::Scrub, &mut does);
        let over = worker.next_look_ns(at).unwrap();
        worker.look(over, &mut does);
        assert!(
            matches!(does[..], [Does::Says(Says::Yielded { turn: 1, .. }), Does::Says(Says::Scrubbed)]),
            "{does:?}"
        );
        worker.hear(over, start(0, 3), &mut does);
        assert!(worker.host_ns() >= over + Costs::H200.install_ns);
    }
}
