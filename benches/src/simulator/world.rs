//! A host in virtual time: callers in front of the router, which is the supervisor's own, in front of virtual devices.
//!
//! Callers are of two kinds. Those of a loop keep a number of calls in flight: an answer is followed by the next call. Those
//! of a trace send their calls when the trace says so.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use pappus_supervisor::config::Settings;
use pappus_supervisor::ids::{FunctionId, TenantId};
use pappus_supervisor::routing::{Candidate, Routed, SharedHomes};
use pappus_supervisor::schedule::{CallSpec, Domain, NotNow, Shape, Sharing, TenantShare};

use super::costs::{Costs, Work};
use super::device::{Call, Device};
use super::events::{CallIndex, Event, Events};
use super::outcome::{Outcome, Recorder};
use super::traces::Arrival;
use crate::Result;

/// A caller that was refused tries again after this, unless it is told when.
const AGAIN_NS: u64 = 10_000_000;
/// A host is busy for other tenants that had an answer no longer ago: some turns.
const BUSY_NS: u64 = 100_000_000;
/// How long the deadlines of calls are.
const DEADLINE_NS: u64 = 30_000_000_000;

thread_local! {
    /// What time it is in the simulation that this thread runs; the router asks for it by a plain function.
    static NOW_NS: Cell<u64> = const { Cell::new(0) };
}

fn virtual_now_ns() -> u64 {
    NOW_NS.get()
}

/// Tenants that do the same.
#[derive(Debug, Clone)]
pub struct Group {
    /// What they are called in reports.
    pub name: String,
    /// How many there are.
    pub tenants: usize,
    /// What each is given of a device.
    pub share: TenantShare,
    /// What they do.
    pub load: Load,
    /// How long their calls may take; none: as long as is usual.
    pub deadline_ns: Option<u64>,
}

/// What tenants do.
#[derive(Debug, Clone)]
pub enum Load {
    /// Each keeps so many calls in flight.
    Loop {
        /// How many.
        in_flight: usize,
        /// What they do.
        work: Work,
    },
    /// They send these calls.
    Trace(Arc<Vec<Arrival>>),
}

impl Group {
    /// Tenants that keep so many calls in flight each.
    pub fn looping(name: impl Into<String>, tenants: usize, in_flight: usize, work: Work) -> Self {
        let load = Load::Loop { in_flight, work };
        Self { name: name.into(), tenants, share: TenantShare::default(), load, deadline_ns: None }
    }

    /// Tenants that send the calls of a trace.
    pub fn tracing(name: impl Into<String>, tenants: usize, trace: Vec<Arrival>) -> Self {
        let load = Load::Trace(Arc::new(trace));
        Self { name: name.into(), tenants, share: TenantShare::default(), load, deadline_ns: None }
    }

    /// With this share.
    pub fn weighing(self, weight: u32) -> Self {
        Self { share: TenantShare { weight, ..self.share }, ..self }
    }
}

/// What is simulated, and for how long.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The device, as its scheduler is told.
    pub shape: Shape,
    /// How many of them.
    pub devices: usize,
    /// What things cost.
    pub costs: Costs,
    /// Who calls.
    pub groups: Vec<Group>,
    /// Nothing counts before.
    pub warm_ns: u64,
    /// How long is counted.
    pub measured_ns: u64,
    /// Device time is compared over windows of this length.
    pub window_ns: u64,
}

/// A tenant of the simulation.
#[derive(Debug, Clone, Copy)]
struct Tenant {
    group: usize,
    /// When it did something last.
    active_ns: Option<u64>,
}

#[derive(Debug)]
struct InFlight {
    tenant: usize,
    work: Work,
    sent_ns: u64,
    device: usize,
    routed: Option<Routed>,
    /// Who sends the next one.
    caller: Option<usize>,
}

/// The simulation.
#[derive(Debug)]
pub struct World {
    setup: Setup,
    events: Events,
    devices: Vec<Device>,
    homes: Option<Arc<SharedHomes>>,
    tenants: Vec<Tenant>,
    /// The first tenant of each group.
    first: Vec<usize>,
    /// Tenants of each loop.
    callers: Vec<usize>,
    /// All traces, merged: an arrival's group, time, tenant and function.
    trace: Vec<(usize, Arrival)>,
    next_arrival: usize,
    calls: slab::Slab<InFlight>,
    /// The tenant that had the last answer, and when another one had one before.
    answered: (usize, u64),
    others_ns: Option<u64>,
    recorder: Recorder,
}

impl World {
    /// Before anything happened.
    pub fn new(setup: Setup) -> Result<Self> {
        let mut events = Events::default();
        let mut tenants = Vec::new();
        let (mut first, mut callers, mut trace) = (Vec::new(), Vec::new(), Vec::new());
        for (at, group) in setup.groups.iter().enumerate() {
            first.push(tenants.len());
            let loops = match &group.load {
                Load::Loop { in_flight, .. } => *in_flight,
                Load::Trace(arrivals) => {
                    trace.extend(arrivals.iter().map(|arrival| (at, *arrival)));
                    0
                }
            };
            for _ in 0..group.tenants {
                callers.extend(std::iter::repeat_n(tenants.len(), loops));
                tenants.push(Tenant { group: at, active_ns: None });
            }
        }
        trace.sort_by_key(|(_, arrival)| arrival.at_ns);
        // Callers come one after the other.
        (0..callers.len()).for_each(|caller| events.at(caller as u64 * 1000, Event::Send { caller }));
        if let Some((_, arrival)) = trace.first() {
            events.at(arrival.at_ns, Event::Trace);
        }
        events.at(setup.window_ns, Event::Window);
        let policy = Settings::default().policy();
        let policy = pappus_supervisor::schedule::Policy { polls: true, ..policy };
        let mut devices: Vec<Device> = (0..setup.devices)
            .map(|at| Device::new(at, setup.shape, setup.costs, policy, &mut events))
            .collect();
        for (at, tenant) in tenants.iter().enumerate() {
            let share = setup.groups[tenant.group].share;
            devices.iter_mut().for_each(|device| device.set_share(id(at), share, &mut events));
        }
        let recorder = Recorder::new(&setup)?;
        let homes = (setup.devices > 1).then(|| SharedHomes::new(setup.devices));
        let (next_arrival, calls) = (0, slab::Slab::new());
        Ok(Self {
            setup,
            events,
            devices,
            homes,
            tenants,
            first,
            callers,
            trace,
            next_arrival,
            calls,
            answered: (usize::MAX, 0),
            others_ns: None,
            recorder,
        })
    }

    /// Lets the time pass that is to be counted; what came of it.
    pub fn run(mut self) -> Outcome {
        let until_ns = self.setup.warm_ns + self.setup.measured_ns;
        while let Some((now_ns, event)) = self.events.pop().filter(|(at_ns, _)| *at_ns <= until_ns) {
            NOW_NS.set(now_ns);
            self.happen(now_ns, event);
        }
        self.recorder.outcome(&self.devices)
    }

    fn happen(&mut self, now_ns: u64, event: Event) {
        match event {
            Event::Send { caller } => {
                let tenant = self.callers[caller];
                if let Load::Loop { work, .. } = self.setup.groups[self.tenants[tenant].group].load {
                    self.send(now_ns, tenant, work, Some(caller));
                }
            }
            Event::Trace => self.replay(now_ns),
            Event::Submit { call } => self.submit(now_ns, call),
            Event::Answer { call, ran_ns } => self.answered(now_ns, call, ran_ns),
            Event::Device { device, what } => self.devices[device].happen(now_ns, what, &mut self.events),
            Event::Window => {
                for device in &mut self.devices {
                    let had = device.take_had(now_ns);
                    let had =
                        had.into_iter().map(|(tenant, ns)| (self.tenants[index(tenant)].group, tenant, ns));
                    self.recorder.device(now_ns, had, device.residents());
                }
                self.recorder.window_ends(now_ns, &self.devices);
                self.events.at(now_ns + self.setup.window_ns, Event::Window);
            }
        }
    }

    /// Sends the calls of the trace whose moment has come.
    fn replay(&mut self, now_ns: u64) {
        while let Some((group, arrival)) =
            self.trace.get(self.next_arrival).filter(|(_, arrival)| arrival.at_ns <= now_ns).copied()
        {
            self.next_arrival += 1;
            self.send(now_ns, self.first[group] + arrival.tenant, arrival.work, None);
        }
        if let Some((_, arrival)) = self.trace.get(self.next_arrival) {
            self.events.at(arrival.at_ns, Event::Trace);
        }
    }

    fn send(&mut self, now_ns: u64, tenant: usize, work: Work, caller: Option<usize>) {
        let costs = &self.setup.costs;
        let who = &mut self.tenants[tenant];
        // The thread that reads its socket sleeps, unless the tenant did something just now. That of a loop was woken
        // by the answer before.
        let awake = caller.is_some() || who.active_ns.is_some_and(|at_ns| at_ns + costs.poll_ns >= now_ns);
        let wake_ns = if awake { 0 } else { costs.wake_ns };
        who.active_ns = Some(now_ns);
        let call = InFlight { tenant, work, sent_ns: now_ns, device: 0, routed: None, caller };
        let call = self.calls.insert(call);
        self.events.at(now_ns + costs.hop_ns + wake_ns, Event::Submit { call });
    }

    fn submit(&mut self, now_ns: u64, index: CallIndex) {
        let Some(call) = self.calls.get_mut(index) else { return };
        let tenant = id(call.tenant);
        let function = FunctionId::new(call.tenant as u64 + 1);
        let domain = Domain { owner: tenant, caller: tenant };
        let (lanes, workers) = (self.setup.shape.lanes, self.setup.shape.workers);
        let able = |device| Some(Candidate { device, lanes, workers, weights_ns: 0 });
        let route = |homes: &Arc<SharedHomes>| homes.route(virtual_now_ns, domain, function, &able);
        call.routed = self.homes.as_ref().and_then(route);
        call.device = call.routed.as_ref().map_or(0, Routed::device);
        let deadline_ns = self.setup.groups[self.tenants[call.tenant].group].deadline_ns;
        let spec = CallSpec {
            domain,
            function,
            bytes: 0,
            deadline_ns: now_ns + deadline_ns.unwrap_or(DEADLINE_NS),
            memory_bytes: call.work.memory_bytes,
            stack_bytes: 0,
            weight_bytes: 0,
            sharing: Sharing::Never,
            batch: None,
        };
        let (device, work) = (call.device, call.work);
        let submitted = Call { index, function, work, tenant };
        if let Err(why) = self.devices[device].submit(now_ns, submitted, spec, &mut self.events) {
            let again_ns = match why {
                NotNow::Quarantined(refusal) => refusal.retry_ns.max(AGAIN_NS),
                _ => AGAIN_NS,
            };
            self.over(now_ns, index, None, again_ns);
        }
    }

    fn answered(&mut self, now_ns: u64, call: CallIndex, ran_ns: Option<u64>) {
        let Some(tenant) = self.calls.get(call).map(|call| call.tenant) else { return };
        let (last, at_ns) = std::mem::replace(&mut self.answered, (tenant, now_ns));
        if last != tenant && last != usize::MAX {
            self.others_ns = Some(at_ns);
        }
        // Others keep the host's threads busy, or nobody does.
        let busy = self.others_ns.is_some_and(|at_ns| at_ns + BUSY_NS >= now_ns);
        let costs = &self.setup.costs;
        let gap_ns = if busy { costs.busy_gap_ns.saturating_sub(2 * costs.hop_ns) } else { 0 };
        self.over(now_ns, call, ran_ns, gap_ns);
    }

    /// A call is over, and its caller sends the next one after a while.
    fn over(&mut self, now_ns: u64, call: CallIndex, ran_ns: Option<u64>, gap_ns: u64) {
        let Some(call) = self.calls.try_remove(call) else { return };
        if let (Some(routed), Some(ran_ns)) = (&call.routed, ran_ns) {
            routed.ran(Duration::from_nanos(ran_ns));
        }
        let tenant = &mut self.tenants[call.tenant];
        tenant.active_ns = Some(now_ns);
        self.recorder.call(now_ns, tenant.group, call.sent_ns, ran_ns.is_some());
        if let Some(caller) = call.caller {
            self.events.at(now_ns + gap_ns, Event::Send { caller });
        }
    }
}

fn id(tenant: usize) -> TenantId {
    TenantId::new(tenant as u32 + 1)
}

fn index(tenant: TenantId) -> usize {
    tenant.get() as usize - 1
}
