//! How virtual processes come and go: made one after the other at the neighbours' cost, kept as standbys, gone a while
//! after they leave or are killed. The order of things is that of `supervisor/src/device/{thread,bring_up,reaper}.rs`.

use pappus_supervisor::ids::{Generation, WorkerId};
use pappus_supervisor::schedule::events::{
    Buried, ContextChanged, ContextWanted, Gone, Ready, Reaped, StandbysReady,
};
use pappus_supervisor::schedule::{CallId, Loss};

use super::chip::ContextId;
use super::device::{Call, Device};
use super::events::{Event, Events, Maker, OnDevice};

/// How long a standby that was taken has the device before the next is made.
const HEAD_START_NS: u64 = 10_000_000;
/// How often to look whether all slots that want a process have one.
const LOOK_AGAIN_NS: u64 = 20_000_000;

/// What keeps one standby ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeper {
    Resting,
    Making { since_ns: u64 },
    Ready { took_ns: u64 },
}

/// A process that serves no more.
#[derive(Debug)]
struct Dying {
    worker: WorkerId,
    generation: Generation,
    lost: Vec<(CallId, Call, Loss)>,
}

/// Processes of a device that come or go, and do not serve.
#[derive(Debug)]
pub(super) struct Processes {
    generations: Vec<u64>,
    /// Slots that want a process.
    wanted: Vec<bool>,
    keepers: Vec<Keeper>,
    next_context: ContextId,
    /// Processes with memory for a context.
    contexts: u64,
    /// When the last context that is to be made is there.
    made_ns: u64,
    /// Processes that make their context now.
    making: u32,
    /// Processes that end now.
    exiting: u32,
    /// Processes that forget a domain now.
    scrubbing: u32,
    dying: Vec<Dying>,
}

impl Processes {
    /// None.
    pub(super) fn new(workers: usize, standbys: usize) -> Self {
        Self {
            generations: vec![0; workers],
            wanted: vec![false; workers],
            keepers: vec![Keeper::Resting; standbys],
            next_context: 1,
            contexts: 0,
            made_ns: 0,
            making: 0,
            exiting: 0,
            scrubbing: 0,
            dying: Vec::new(),
        }
    }

    fn ready(&self) -> usize {
        self.keepers.iter().filter(|keeper| matches!(keeper, Keeper::Ready { .. })).count()
    }
}

impl Device {
    /// A process is wanted in a slot: a standby, or one that is made.
    pub(super) fn bring(&mut self, now_ns: u64, worker: WorkerId, events: &mut Events) {
        self.processes.wanted[worker.get()] = true;
        let found = self.processes.keepers.iter().position(|keeper| matches!(keeper, Keeper::Ready { .. }));
        let Some(standby) = found else {
            return events.at(now_ns, self.event(OnDevice::Reserve { maker: Maker::Slot(worker) }));
        };
        let keeper = std::mem::replace(&mut self.processes.keepers[standby], Keeper::Resting);
        if let Keeper::Ready { took_ns } = keeper {
            let at_ns = now_ns + HEAD_START_NS.max(took_ns);
            events.at(at_ns, self.event(OnDevice::Keeper { standby }));
        }
        let count = self.processes.ready();
        self.scheduler.handle(now_ns, StandbysReady { count }, &mut self.actions);
        events.at(now_ns + self.costs.attach_ns, self.event(OnDevice::Attached { worker }));
    }

    /// Memory is asked for, for a process to be made.
    pub(super) fn reserve(&mut self, now_ns: u64, maker: Maker, events: &mut Events) {
        let bytes = self.costs.context_bytes;
        let urgent = matches!(maker, Maker::Slot(_));
        if !self.decide(now_ns, ContextWanted { bytes, urgent }, events) {
            return self.reserve_again(now_ns, maker, events);
        }
        self.counts.makes += 1;
        let processes = &mut self.processes;
        let takes_ns = self.costs.context_ns + self.costs.beside_context_ns * processes.contexts;
        processes.contexts += 1;
        let begins_ns = processes.made_ns.max(now_ns + self.costs.start_ns);
        processes.made_ns = begins_ns + takes_ns;
        let made_ns = processes.made_ns;
        events.at(begins_ns, self.event(OnDevice::ContextBegins));
        events.at(made_ns, self.event(OnDevice::ContextMade { maker }));
    }

    pub(super) fn context_begins(&mut self, now_ns: u64) {
        self.processes.making += 1;
        self.change_speed(now_ns);
    }

    pub(super) fn context_made(&mut self, now_ns: u64, maker: Maker, events: &mut Events) {
        self.processes.making -= 1;
        self.change_speed(now_ns);
        match maker {
            Maker::Slot(worker) => {
                events.at(now_ns + self.costs.attach_ns, self.event(OnDevice::Attached { worker }));
            }
            Maker::Standby(standby) => {
                if let Keeper::Making { since_ns } = self.processes.keepers[standby] {
                    self.processes.keepers[standby] = Keeper::Ready { took_ns: now_ns - since_ns };
                }
                let count = self.processes.ready();
                self.decide(now_ns, StandbysReady { count }, events);
            }
        }
    }

    /// The chip's speed beside what drivers do.
    fn change_speed(&mut self, now_ns: u64) {
        let makes = if self.processes.making > 0 { self.costs.context_rate } else { 1.0 };
        let exits = if self.processes.exiting > 0 { self.costs.exit_rate } else { 1.0 };
        let stands = self.processes.scrubbing > 0;
        self.chip.set_speed(now_ns, if stands { 0.0 } else { makes * exits });
    }

    pub(super) fn scrub_begins(&mut self, now_ns: u64, events: &mut Events) {
        self.processes.scrubbing += 1;
        self.change_speed(now_ns);
        events.at(now_ns + self.costs.scrub_ns, self.event(OnDevice::ScrubEnds));
    }

    pub(super) fn scrub_ends(&mut self, now_ns: u64) {
        self.processes.scrubbing -= 1;
        self.change_speed(now_ns);
    }

    /// A process is ready in a slot.
    pub(super) fn attached(&mut self, now_ns: u64, worker: WorkerId, events: &mut Events) {
        let processes = &mut self.processes;
        processes.wanted[worker.get()] = false;
        processes.generations[worker.get()] += 1;
        let generation = Generation::new(processes.generations[worker.get()]);
        let context = processes.next_context;
        processes.next_context += 1;
        self.occupy(now_ns, worker, generation, context);
        self.decide(now_ns, Ready { worker, generation }, events);
    }

    /// Time to make a standby, unless slots wait for processes or another one is made.
    pub(super) fn keep(&mut self, now_ns: u64, standby: usize, events: &mut Events) {
        let processes = &mut self.processes;
        let making = processes.keepers.iter().any(|keeper| matches!(keeper, Keeper::Making { .. }));
        if making || processes.wanted.contains(&true) {
            return events.at(now_ns + LOOK_AGAIN_NS, self.event(OnDevice::Keeper { standby }));
        }
        processes.keepers[standby] = Keeper::Making { since_ns: now_ns };
        self.reserve(now_ns, Maker::Standby(standby), events);
    }

    /// The process in a slot leaves.
    pub(super) fn leave(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        generation: Generation,
        events: &mut Events,
    ) {
        if self.vacate(now_ns, worker, generation) {
            self.processes.exiting += 1;
            self.change_speed(now_ns);
            events.at(now_ns + self.costs.exit_ns, self.event(OnDevice::Reaped { worker, generation }));
        }
    }

    /// Lets the process in a slot take no more calls; true if the process was there.
    fn vacate(&mut self, now_ns: u64, worker: WorkerId, generation: Generation) -> bool {
        let slot = &mut self.slots[worker.get()];
        let Some(process) = slot.take_if(|process| process.generation == generation) else { return false };
        let had_ns = self.chip.remove(now_ns, process.context);
        self.had.extend(process.tenant.map(|tenant| (tenant, had_ns)));
        let lost = self.scheduler.handle(now_ns, Gone { worker }, &mut self.actions);
        let lost = lost.into_iter().map(|(id, call)| {
            (id, call, if process.worker.has(id) { Loss::InIt } else { Loss::NeverHanded })
        });
        let lost = lost.collect();
        self.processes.dying.push(Dying { worker, generation, lost });
        true
    }

    /// The process in a slot is killed.
    pub(super) fn kill(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        generation: Generation,
        events: &mut Events,
    ) {
        self.counts.kills += 1;
        self.processes.exiting += 1;
        self.change_speed(now_ns);
        events.at(now_ns + self.costs.exit_ns, self.event(OnDevice::Killed { worker, generation }));
    }

    pub(super) fn killed(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        generation: Generation,
        events: &mut Events,
    ) {
        match self.vacate(now_ns, worker, generation) {
            true => self.reaped(now_ns, worker, generation, events),
            false => {
                self.processes.exiting -= 1;
                self.change_speed(now_ns);
            }
        }
    }

    /// A process is reaped: its memory is free, and its calls are decided about.
    pub(super) fn reaped(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        generation: Generation,
        events: &mut Events,
    ) {
        self.processes.exiting -= 1;
        self.processes.contexts -= 1;
        self.change_speed(now_ns);
        self.decide(now_ns, Reaped { worker, generation, from_outside: false }, events);
        self.decide(now_ns, ContextChanged { before: self.costs.context_bytes, now: 0 }, events);
        let is_it = |dying: &Dying| (dying.worker, dying.generation) == (worker, generation);
        let Some(at) = self.processes.dying.iter().position(is_it) else { return };
        for (id, _, loss) in self.processes.dying.swap_remove(at).lost {
            if let Some((call, _)) = self.decide(now_ns, Buried { id, loss }, events) {
                let answer = Event::Answer { call: call.index, ran_ns: None };
                events.at(now_ns + self.costs.hop_ns, answer);
            }
        }
    }
}
