//! A virtual device: the scheduler that a real one has, virtual processes, a virtual chip. Carries out what the scheduler
//! decides and tells it what happens, as the threads of `supervisor/src/device` do. How processes come and go is in
//! [`processes`](super::processes).

use pappus_supervisor::ids::{FunctionId, Generation, TenantId, TurnId, WorkerId};
use pappus_supervisor::schedule::events::{
    Event as SchedulerEvent, Finished, GaveBack, Ran, Scrubbed, SetPolicy, SetShare, Submit, Tick, Yielded,
    Yielding,
};
use pappus_supervisor::schedule::{
    self, Action, Address, CallId, CallSpec, Command, Job, Limits, NotNow, Order, Policy, Scheduler, Shape,
    TenantShare, Verdict,
};

use super::chip::{Chip, ContextId, Left};
use super::costs::{Costs, Work};
use super::events::{CallIndex, Event, Events, Maker, OnDevice, Says};
use super::processes::Processes;
use super::worker::{Does, Told, Worker};

/// How many calls may wait; as by default.
const LIMITS: Limits = Limits { calls: 10_000, bytes: u64::MAX, own_calls: u64::MAX, own_bytes: u64::MAX };

impl schedule::Call for Call {
    type Memory = ();
}

/// A call as the scheduler has it.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// Names it in the simulation.
    pub index: CallIndex,
    /// Its function.
    pub function: FunctionId,
    /// What it does.
    pub work: Work,
    /// Whose it is.
    pub tenant: TenantId,
}

/// A process in a slot.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) worker: Worker,
    pub(super) generation: Generation,
    pub(super) context: ContextId,
    /// Whom it served last.
    pub(super) tenant: Option<TenantId>,
    /// When the last frame to it arrives.
    last_frame_ns: u64,
    /// Until when it polls.
    awake_ns: u64,
    /// When it looks at its clock next.
    look_ns: u64,
}

/// What is counted of a device.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Turns granted.
    pub turns: u64,
    /// Processes made.
    pub makes: u64,
    /// Residents that gave way.
    pub evictions: u64,
    /// Processes that were scrubbed for another domain.
    pub scrubs: u64,
    /// Processes killed.
    pub kills: u64,
}

/// One device.
#[derive(Debug)]
pub struct Device {
    pub(super) at: usize,
    pub(super) scheduler: Scheduler<Call>,
    pub(super) shape: Shape,
    pub(super) costs: Costs,
    pub(super) chip: Chip<(WorkerId, Generation, CallId)>,
    pub(super) slots: Vec<Option<Process>>,
    pub(super) processes: Processes,
    pub(super) actions: Vec<Action<Call>>,
    pub(super) counts: Counts,
    /// Chip time of tenants whose process is gone, or serves another one.
    pub(super) had: Vec<(TenantId, u64)>,
    tick_ns: u64,
    chip_ns: u64,
    does: Vec<Does>,
    left: Vec<Left<(WorkerId, Generation, CallId)>>,
}

impl Device {
    /// Without processes; what is to happen first is added to `events`.
    pub fn new(at: usize, shape: Shape, costs: Costs, policy: Policy, events: &mut Events) -> Self {
        let mut device = Self {
            at,
            scheduler: Scheduler::new(shape),
            shape,
            costs,
            chip: Chip::new(costs),
            slots: (0..shape.workers).map(|_| None).collect(),
            processes: Processes::new(shape.workers, shape.standbys),
            actions: Vec::new(),
            counts: Counts::default(),
            had: Vec::new(),
            tick_ns: u64::MAX,
            chip_ns: u64::MAX,
            does: Vec::new(),
            left: Vec::new(),
        };
        device.decide(0, SetPolicy { policy }, events);
        // A scheduler begins by wanting a process in its first slot.
        device.bring(0, WorkerId::new(0), events);
        (0..shape.standbys).for_each(|standby| events.at(0, device.event(OnDevice::Keeper { standby })));
        device
    }

    pub(super) fn event(&self, what: OnDevice) -> Event {
        Event::Device { device: self.at, what }
    }

    /// What is counted.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// How often the chip changed processes.
    pub fn changes(&self) -> u64 {
        self.chip.changes()
    }

    /// Processes in slots that serve a domain.
    pub fn residents(&self) -> usize {
        WorkerId::first(self.slots.len())
            .filter(|worker| self.scheduler.resident(*worker).serves.is_some())
            .count()
    }

    /// A tenant is given this.
    pub fn set_share(&mut self, tenant: TenantId, share: TenantShare, events: &mut Events) {
        self.decide(0, SetShare { tenant, share }, events);
    }

    /// A call comes.
    pub fn submit(
        &mut self,
        now_ns: u64,
        call: Call,
        spec: CallSpec,
        events: &mut Events,
    ) -> Result<CallId, NotNow> {
        self.decide(now_ns, Submit { call, spec, limits: LIMITS }, events)
    }

    /// Chip time of tenants since this was asked last.
    pub fn take_had(&mut self, now_ns: u64) -> Vec<(TenantId, u64)> {
        for process in self.slots.iter().flatten() {
            let had_ns = self.chip.take_had_ns(now_ns, process.context);
            self.had.extend(process.tenant.map(|tenant| (tenant, had_ns)));
        }
        std::mem::take(&mut self.had)
    }

    /// Something happens.
    pub fn happen(&mut self, now_ns: u64, what: OnDevice, events: &mut Events) {
        match what {
            OnDevice::Tick => {
                if now_ns >= self.tick_ns {
                    self.tick_ns = u64::MAX;
                    self.decide(now_ns, Tick {}, events);
                }
            }
            OnDevice::Chip => {
                if now_ns >= self.chip_ns {
                    self.chip_ns = u64::MAX;
                    self.settle_chip(now_ns, events);
                }
            }
            OnDevice::Frame { worker, generation, told } => {
                let host_ns = self.process(worker, generation).map(|process| process.worker.host_ns());
                if let Some(host_ns) = host_ns.filter(|host_ns| *host_ns > now_ns) {
                    // Its thread is busy.
                    return events.at(host_ns, self.event(what));
                }
                let mut does = std::mem::take(&mut self.does);
                let Some(process) = self.process(worker, generation) else { return };
                process.worker.hear(now_ns, told, &mut does);
                self.does = does;
                if let Told::Scrub = told {
                    self.scrub_begins(now_ns, events);
                }
                self.act(now_ns, worker, events);
            }
            OnDevice::Look { worker, generation } => {
                let mut does = std::mem::take(&mut self.does);
                if let Some(process) = self.process(worker, generation).filter(|p| now_ns >= p.look_ns) {
                    process.look_ns = u64::MAX;
                    process.worker.look(now_ns, &mut does);
                    self.does = does;
                    self.act(now_ns, worker, events);
                }
            }
            OnDevice::Said { worker, generation, says } => {
                self.hear(now_ns, worker, generation, says, events)
            }
            OnDevice::Reserve { maker } => self.reserve(now_ns, maker, events),
            OnDevice::ContextBegins => self.context_begins(now_ns),
            OnDevice::ContextMade { maker } => self.context_made(now_ns, maker, events),
            OnDevice::ScrubEnds => self.scrub_ends(now_ns),
            OnDevice::Attached { worker } => self.attached(now_ns, worker, events),
            OnDevice::Keeper { standby } => self.keep(now_ns, standby, events),
            OnDevice::Killed { worker, generation } => self.killed(now_ns, worker, generation, events),
            OnDevice::Reaped { worker, generation } => self.reaped(now_ns, worker, generation, events),
        }
        self.schedule_chip(events);
    }

    fn process(&mut self, worker: WorkerId, generation: Generation) -> Option<&mut Process> {
        self.slots[worker.get()].as_mut().filter(|process| process.generation == generation)
    }

    /// Tells the scheduler of an event and carries out what follows.
    pub(super) fn decide<E: SchedulerEvent<Call>>(
        &mut self,
        now_ns: u64,
        event: E,
        events: &mut Events,
    ) -> E::Reply {
        let reply = self.scheduler.handle(now_ns, event, &mut self.actions);
        while !self.actions.is_empty() {
            let mut batch = std::mem::take(&mut self.actions);
            for action in batch.drain(..) {
                self.carry_out(now_ns, action, events);
            }
            if self.actions.is_empty() {
                // Kept for its capacity.
                self.actions = batch;
            }
        }
        if let Some(next_ns) = self.scheduler.next_deadline_ns()
            && next_ns < self.tick_ns
        {
            self.tick_ns = next_ns.max(now_ns + 1);
            events.at(self.tick_ns, self.event(OnDevice::Tick));
        }
        reply
    }

    fn carry_out(&mut self, now_ns: u64, action: Action<Call>, events: &mut Events) {
        let fail = |call: Call, events: &mut Events| {
            events.at(now_ns + self.costs.hop_ns, Event::Answer { call: call.index, ran_ns: None });
        };
        match action {
            Action::Tell { to, command } => self.tell(now_ns, to, command, events),
            Action::Expired { call, .. } | Action::Refused { call, .. } | Action::NotCleared { call } => {
                fail(call, events);
            }
            Action::Bring { worker } => self.bring(now_ns, worker, events),
            // No function has weights.
            Action::OverQuota { .. } | Action::Release { .. } => {}
            Action::Kill { worker, generation, .. } => self.kill(now_ns, worker, generation, events),
        }
    }

    fn tell(&mut self, now_ns: u64, to: Address, command: Command<Call>, events: &mut Events) {
        let told = match command {
            Command::Start { lane, memory_bytes, job: Job { id, call, .. }, .. } => {
                Told::Start { lane, memory_bytes, id, function: call.function, work: call.work }
            }
            Command::Turn(Order::Grant { turn, quantum_us, change_us }) => {
                self.counts.turns += 1;
                let [quantum_ns, change_ns] = [quantum_us, change_us].map(|us| u64::from(us) * 1000);
                Told::Grant { turn: turn.get(), quantum_ns, change_ns }
            }
            Command::Turn(Order::Revoke { turn }) => Told::Revoke { turn: turn.get() },
            Command::Turn(Order::Soon) => Told::Soon,
            Command::GiveBack { lanes } => Told::GiveBack { lanes },
            Command::Scrub => {
                self.counts.scrubs += 1;
                Told::Scrub
            }
            Command::Configure => Told::Configure,
            // No function has weights.
            Command::Load { .. } | Command::Unload { .. } | Command::Uninstall { .. } => return,
            Command::Leave => {
                self.counts.evictions += 1;
                return self.leave(now_ns, to.worker, to.generation, events);
            }
        };
        if let Command::Start { job: Job { call, .. }, .. } = command {
            self.serves(now_ns, to.worker, call.tenant);
        }
        let costs = self.costs;
        let Some(process) = self.process(to.worker, to.generation) else { return };
        let asleep = !process.worker.is_awake() && process.awake_ns + costs.poll_ns < now_ns;
        let wake_ns = if asleep { costs.wake_ns } else { 0 };
        let at_ns = (now_ns + costs.hop_ns + wake_ns).max(process.last_frame_ns);
        (process.last_frame_ns, process.awake_ns) = (at_ns, at_ns.max(process.awake_ns));
        if let Told::Soon = told {
            process.awake_ns = at_ns + SOON_NS;
        }
        let (worker, generation) = (to.worker, to.generation);
        events.at(at_ns, self.event(OnDevice::Frame { worker, generation, told }));
    }

    /// Chip time of a process is its tenant's, from now on this one's.
    fn serves(&mut self, now_ns: u64, worker: WorkerId, tenant: TenantId) {
        let Some(process) = &mut self.slots[worker.get()] else { return };
        if let Some(before) = process.tenant.replace(tenant).filter(|before| *before != tenant) {
            self.had.push((before, self.chip.take_had_ns(now_ns, process.context)));
        }
    }

    /// A process is in a slot.
    pub(super) fn occupy(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        generation: Generation,
        context: ContextId,
    ) {
        let takes_turns = self.shape.quantum_us.is_some();
        self.slots[worker.get()] = Some(Process {
            worker: Worker::new(self.costs, self.shape.lanes, takes_turns),
            generation,
            context,
            tenant: None,
            last_frame_ns: now_ns,
            awake_ns: now_ns,
            look_ns: u64::MAX,
        });
    }

    /// Carries out what a process does.
    fn act(&mut self, now_ns: u64, worker: WorkerId, events: &mut Events) {
        let hop_ns = self.costs.hop_ns;
        let Some(process) = &mut self.slots[worker.get()] else { return };
        let generation = process.generation;
        for does in self.does.drain(..) {
            let says = match does {
                Does::Submit { id, work } => {
                    self.chip.submit(now_ns, process.context, (worker, generation, id), work);
                    continue;
                }
                Does::Says(says) => says,
            };
            let what = OnDevice::Said { worker, generation, says };
            events.at(now_ns + hop_ns, Event::Device { device: self.at, what });
        }
        process.awake_ns = process.awake_ns.max(now_ns);
        if let Some(look_ns) = process.worker.next_look_ns(now_ns)
            && look_ns < process.look_ns
        {
            process.look_ns = look_ns.max(now_ns + 1);
            let what = OnDevice::Look { worker, generation };
            events.at(process.look_ns, Event::Device { device: self.at, what });
        }
    }

    /// What a process says comes to the supervisor.
    fn hear(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        generation: Generation,
        says: Says,
        events: &mut Events,
    ) {
        if self.process(worker, generation).is_none() {
            return;
        }
        match says {
            Says::Done { id, device_ns } => {
                self.decide(now_ns, Ran { worker, id, device_ns }, events);
                let finished = Finished { worker, id, verdict: Verdict::Well };
                if let Some(call) = self.decide(now_ns, finished, events) {
                    let answer = Event::Answer { call: call.index, ran_ns: Some(device_ns) };
                    events.at(now_ns + self.costs.hop_ns, answer);
                }
            }
            Says::Yielding { turn } => {
                self.decide(now_ns, Yielding { worker, turn: TurnId::new(turn) }, events);
            }
            Says::Yielded { turn, used_ns } => {
                // What it answered before was heard before.
                let yielded = Yielded { worker, turn: TurnId::new(turn), used_ns, answered: 0 };
                self.decide(now_ns, yielded, events);
            }
            Says::GaveBack { left_bytes } => {
                self.decide(now_ns, GaveBack { worker, left_bytes }, events);
            }
            Says::Scrubbed => {
                self.decide(now_ns, Scrubbed { worker }, events);
            }
        }
    }

    fn settle_chip(&mut self, now_ns: u64, events: &mut Events) {
        let mut all = std::mem::take(&mut self.left);
        self.chip.settle(now_ns, &mut all);
        for left in all.drain(..) {
            let (worker, generation, id) = left.token;
            let mut does = std::mem::take(&mut self.does);
            let Some(process) = self.process(worker, generation) else { continue };
            process.worker.ended(now_ns, id, now_ns.saturating_sub(left.submitted_ns), &mut does);
            self.does = does;
            self.act(now_ns, worker, events);
        }
        self.left = all;
    }

    pub(super) fn schedule_chip(&mut self, events: &mut Events) {
        if let Some(next_ns) = self.chip.next_ns()
            && next_ns < self.chip_ns
        {
            self.chip_ns = next_ns;
            events.at(next_ns, self.event(OnDevice::Chip));
        }
    }

    /// Retries, when memory may have come.
    pub(super) fn reserve_again(&self, now_ns: u64, maker: Maker, events: &mut Events) {
        events.at(now_ns + AGAIN_NS, self.event(OnDevice::Reserve { maker }));
    }
}

/// How long a worker does not sleep whose turn is near; as in `worker/src/serve/turn.rs`.
const SOON_NS: u64 = 20_000_000;
/// How often memory for a process is asked for that was not there.
const AGAIN_NS: u64 = 10_000_000;
