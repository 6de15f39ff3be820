//! Which of several devices a domain's calls go to. Pure: moments and measurements in, devices out.
//!
//! A domain has a *home*: the device where its code, graphs and weights are. Its calls go there, whatever else runs, with
//! two exceptions, both weighed in time:
//!
//! ```text
//! own queue at home costs more than a call elsewhere, the move included,
//! and fewer other domains have had calls there lately than at home       ──► this call goes elsewhere   (spread)
//! waiting for others at home has cost more than a few moves, and another
//! device has fewer domains with calls                                   ──► the home moves             (move)
//! ```
//!
//! A spread ends by itself: once the queue at home is short again, calls go there. A home moves only when what was lost
//! by staying has paid for it, so that domains do not wander: the rule of the ski rental problem (Karlin, Manasse,
//! Rudolph and Sleator, "Competitive snoopy caching", Algorithmica 3, 1988).
//!
//! What a call costs on a device is measured there, so that devices of different speeds are compared by time. A measurement
//! decides for the caller whose calls were measured; for others only [`Speeds`] tell something, where several callers agree.

use super::load::{Busy, Presence};
use super::speeds::{RunTime, Speeds};
use crate::ids::{FunctionId, IdMap, TenantId};
use crate::schedule::Domain;

/// What the first call of a domain on a device costs more than others. It is not measured: most of what is seen of a first call
/// may be a wait of its caller's own.
const COLD_NS: f64 = 20e6;
/// Until it is measured, how long a call takes.
const CALL_NS: f64 = 1e6;
/// Devices are of one speed unless one takes so many times as long as the other.
const SLOWER: f64 = 1.25;
/// So many fewer have to be elsewhere, of numbers that are averages.
const FEWER: f64 = 0.5;
/// What was lost by staying counts half after so long.
const HALF_LIFE_NS: f64 = 10e9;
/// A home moves when staying has cost so many moves.
const MOVES: f64 = 4.0;
/// A home stays so long at least.
const STAY_NS: u64 = 1_000_000_000;
/// Domains without calls that are remembered.
const MAX_IDLE: usize = 4096;
/// Functions that are remembered. Beyond, all are forgotten: what their calls take is soon learned again.
const MAX_FUNCTIONS: usize = 65_536;

/// A device that can run a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Which.
    pub device: usize,
    /// How many calls of one domain it runs at the same time.
    pub lanes: u32,
    /// How many domains can have a process there at the same time.
    pub workers: usize,
    /// What it takes to bring the function's weights there, in nanoseconds.
    pub weights_ns: u64,
}

/// Looks up the device at a position for one call; none if that device cannot run the call.
pub type Able<'a> = &'a dyn Fn(usize) -> Option<Candidate>;

/// A call on its way to a device and there. It changes if that device is lost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Visit {
    pub(super) device: usize,
    domain: Domain,
    function: FunctionId,
    /// When it was routed there.
    at_ns: u64,
    /// The domain's calls there, with this one.
    in_flight: u32,
    is_cold: bool,
    /// What it takes to bring its function's weights to a device.
    weights_ns: u64,
}

/// The homes of all domains.
#[derive(Debug)]
pub(super) struct Homes {
    domains: IdMap<Domain, DomainHome>,
    devices: Vec<DeviceState>,
    /// How long calls of functions take, of functions that calls were routed of and that are not gone: a call that ends
    /// later adds nothing.
    functions: IdMap<FunctionId, Speeds>,
}

#[derive(Debug, Clone, Default)]
struct DeviceState {
    /// Domains with calls there.
    busy: Busy,
    /// Domains whose home it is.
    homes: u32,
}

#[derive(Debug)]
struct DomainHome {
    home: usize,
    home_since_ns: u64,
    /// What staying has cost, as much of it as still counted at `lost_at_ns`.
    lost_ns: f64,
    lost_at_ns: u64,
    there: Vec<Presence>,
}

impl Homes {
    /// For so many devices.
    pub(super) fn new(devices: usize) -> Self {
        let devices = vec![DeviceState::default(); devices];
        Self { domains: IdMap::default(), devices, functions: IdMap::default() }
    }

    /// The device for a call, chosen among those that are able; none if no device is.
    pub(super) fn route(
        &mut self,
        now_ns: u64,
        domain: Domain,
        function: FunctionId,
        able: Able<'_>,
    ) -> Option<Visit> {
        let home = self.domains.get(&domain).map(|state| state.home);
        let to = match home.and_then(able) {
            Some(at_home) => self.stay_or_spread(now_ns, domain, function, at_home, able),
            None => {
                let to = self.freest(now_ns, domain.caller, function, able)?;
                self.settle(now_ns, domain, to.device);
                to
            }
        };
        let state = self.domains.get_mut(&domain)?;
        let here = &mut state.there[to.device];
        let is_cold = here.is_cold(now_ns);
        if self.functions.len() >= MAX_FUNCTIONS && !self.functions.contains_key(&function) {
            self.functions.clear();
        }
        self.functions.entry(function).or_default();
        here.in_flight += 1;
        if here.in_flight == 1 {
            let busy = &mut self.devices[to.device].busy;
            busy.set(now_ns, busy.now + 1);
        }
        let (in_flight, Candidate { device, weights_ns, .. }) = (here.in_flight, to);
        Some(Visit { device, domain, function, at_ns: now_ns, in_flight, is_cold, weights_ns })
    }

    /// A function is gone.
    pub(super) fn forget(&mut self, function: FunctionId) {
        self.functions.remove(&function);
    }

    /// Gives a home to a domain without one. A domain whose home cannot run this call keeps that home, unless it has
    /// nothing there: the call may be a single large one.
    fn settle(&mut self, now_ns: u64, domain: Domain, device: usize) {
        let devices = self.devices.len();
        if self.domains.len() >= MAX_IDLE {
            self.forget_idle();
        }
        let homes = &mut self.devices;
        let state = self.domains.entry(domain).or_insert_with(|| {
            homes[device].homes += 1;
            DomainHome {
                home: device,
                home_since_ns: now_ns,
                lost_ns: 0.0,
                lost_at_ns: now_ns,
                there: vec![Presence::default(); devices],
            }
        });
        if state.home != device && state.there[state.home].is_cold(now_ns) {
            homes[state.home].homes -= 1;
            homes[device].homes += 1;
            (state.home, state.home_since_ns, state.lost_ns) = (device, now_ns, 0.0);
        }
    }

    fn forget_idle(&mut self) {
        let devices = &mut self.devices;
        self.domains.retain(|_, state| {
            let stays = state.there.iter().any(|there| there.in_flight > 0);
            devices[state.home].homes -= u32::from(!stays);
            stays
        });
    }

    /// How long a caller's calls of a function take on a device: as it measured there; as it measured elsewhere, as many times
    /// longer as they take there usually; as they take usually, there or elsewhere.
    fn run_ns(&self, now_ns: u64, caller: TenantId, function: FunctionId, device: usize) -> f64 {
        let Some(speeds) = self.functions.get(&function) else { return CALL_NS };
        let own = |at: usize| speeds.own(at, caller, now_ns).map(|time| time.mean_ns);
        let usual = |at: usize| speeds.usual(at, now_ns).map(|time| time.mean_ns);
        let devices = || 0..self.devices.len();
        let moved = |at: usize| Some(own(at)? * self.slower(now_ns, caller, function, device, at));
        own(device)
            .or_else(|| devices().filter_map(moved).reduce(f64::min))
            .or_else(|| usual(device))
            .or_else(|| devices().filter_map(usual).reduce(f64::min))
            .unwrap_or(CALL_NS)
    }

    /// How many times as long a function's calls take on one device as on another, where each has a device for itself: as the
    /// caller measured on both, or as is usual on both; once if that was not measured, or is little.
    fn slower(&self, now_ns: u64, caller: TenantId, function: FunctionId, on: usize, than: usize) -> f64 {
        let Some(speeds) = self.functions.get(&function) else { return 1.0 };
        let both = |of: &dyn Fn(usize) -> Option<RunTime>| of(on).zip(of(than));
        let times =
            both(&|at| speeds.own(at, caller, now_ns)).or_else(|| both(&|at| speeds.usual(at, now_ns)));
        let times = times.map_or(1.0, |(on, than)| on.least_ns / than.least_ns.max(1.0));
        if (1.0 / SLOWER..=SLOWER).contains(&times) { 1.0 } else { times }
    }

    /// Where a call of a new domain ends first, if the calls that are there go on and its weights have to be brought. Where as many
    /// domains live as can have a process, it waits for one. Of equals, the device that has the fewest homes for each process.
    fn freest(
        &self,
        now_ns: u64,
        caller: TenantId,
        function: FunctionId,
        able: Able<'_>,
    ) -> Option<Candidate> {
        let ends_ns = |one: &Candidate| {
            let device = &self.devices[one.device];
            let waits_ns = if (device.homes as usize) < one.workers { 0.0 } else { COLD_NS };
            let run_ns = self.run_ns(now_ns, caller, function, one.device);
            waits_ns + one.weights_ns as f64 + run_ns * f64::from(1 + device.busy.now)
        };
        let order = |a: &Candidate, b: &Candidate| {
            let taken =
                |one: &Candidate| f64::from(self.devices[one.device].homes) / one.workers.max(1) as f64;
            ends_ns(a)
                .total_cmp(&ends_ns(b))
                .then(taken(a).total_cmp(&taken(b)))
                .then(a.device.cmp(&b.device))
        };
        (0..self.devices.len()).filter_map(able).min_by(order)
    }

    /// Cost of a domain's next call on a device other than its home: the move, and the run beside the other domains,
    /// which share the device equally.
    fn elsewhere_ns(
        &self,
        now_ns: u64,
        caller: TenantId,
        function: FunctionId,
        state: &DomainHome,
        to: &Candidate,
    ) -> f64 {
        let (device, there) = (&self.devices[to.device], &state.there[to.device]);
        let moves_ns = match there.is_cold(now_ns) {
            true => COLD_NS + to.weights_ns as f64,
            false => 0.0,
        };
        let run_ns = self.run_ns(now_ns, caller, function, to.device);
        let others = device.busy.now - u32::from(there.in_flight > 0);
        let others_ns = run_ns * f64::from(1 + others);
        // Where that was not measured, its calls are beside each other as at home.
        let per_call = there.per_call.or(state.there[state.home].per_call.or(run_ns));
        let queue_ns = per_call * f64::from(there.in_flight);
        moves_ns + others_ns.max(queue_ns)
    }

    fn stay_or_spread(
        &mut self,
        now_ns: u64,
        domain: Domain,
        function: FunctionId,
        home: Candidate,
        able: Able<'_>,
    ) -> Candidate {
        let Some(state) = self.domains.get(&domain) else { return home };
        let here = &state.there[home.device];
        // Calls that fit the home's lanes do not wait for each other.
        if here.in_flight < home.lanes {
            return home;
        }
        let queue_ns = here.per_call.or(0.0) * f64::from(here.in_flight);
        // Spread only to a device with fewer active domains: otherwise other domains lose what this one
        // gains.
        let at_home = self.devices[home.device].busy.most(now_ns);
        let has_less = |device: &usize| {
            let others = self.devices[*device].busy.most(now_ns) - state.there[*device].lately(now_ns);
            others.max(0.0) + FEWER < at_home
        };
        let others = (0..self.devices.len()).filter(|device| *device != home.device).filter(has_less);
        let others = others.filter_map(able);
        let costs = others.map(|one| (self.elsewhere_ns(now_ns, domain.caller, function, state, &one), one));
        match costs.min_by(|a, b| a.0.total_cmp(&b.0)) {
            Some((cost_ns, other)) if cost_ns < queue_ns => other,
            _ => home,
        }
    }

    /// A call ended, which ran for so long, or for no time if nothing is to be learned of that.
    pub(super) fn ended(&mut self, call: Visit, ran_ns: f64, now_ns: u64) {
        let device = call.device;
        let Some(state) = self.domains.get_mut(&call.domain) else { return };
        let here = &mut state.there[device];
        here.in_flight -= 1;
        here.used_ns = Some(now_ns);
        let busy = self.devices[device].busy.now;
        if here.in_flight == 0 {
            self.devices[device].busy.set(now_ns, busy - 1);
        }
        if ran_ns == 0.0 {
            return;
        }
        if call.is_cold {
            here.warm_ns = now_ns;
            return;
        }
        let turnaround_ns = now_ns.saturating_sub(call.at_ns.max(here.warm_ns)) as f64;
        here.per_call.add(turnaround_ns / f64::from(call.in_flight.max(1)));
        if let Some(speeds) = self.functions.get_mut(&call.function) {
            speeds.add(device, call.domain.caller, now_ns, ran_ns);
        }
        if state.home == device {
            self.consider_moving(call, now_ns, busy, turnaround_ns);
        }
    }

    /// Adds up what a domain lost at its home, which may be slower than others and has calls of `busy` domains, itself among them.
    /// Moves it once that has paid for the move, with its weights.
    fn consider_moving(&mut self, call: Visit, now_ns: u64, busy: u32, turnaround_ns: f64) {
        let slower = |to: usize| self.slower(now_ns, call.domain.caller, call.function, to, call.device);
        // Load of another device after the move, in units of the home's call time.
        let there = |to: usize| f64::from(self.devices[to].busy.now + 1) * slower(to);
        let homes = |to: usize| f64::from(self.devices[to].homes + 1) * slower(to);
        let others = (0..self.devices.len()).filter(|device| *device != call.device);
        let order = |a: &usize, b: &usize| {
            there(*a).total_cmp(&there(*b)).then(homes(*a).total_cmp(&homes(*b))).then(a.cmp(b))
        };
        let Some(to) = others.min_by(order) else { return };
        // After the move it must be better off there than it is here now.
        if there(to) >= f64::from(busy) || homes(to) >= f64::from(self.devices[call.device].homes) {
            return;
        }
        let saved = 1.0 - there(to) / f64::from(busy);
        let move_ns = COLD_NS + call.weights_ns as f64;
        let Some(state) = self.domains.get_mut(&call.domain) else { return };
        let age_ns = now_ns.saturating_sub(state.lost_at_ns) as f64;
        // Calls that run side by side lose the same time once.
        let lost_ns = (turnaround_ns * saved / f64::from(call.in_flight.max(1))).max(0.0);
        state.lost_ns = state.lost_ns * (-age_ns / HALF_LIFE_NS).exp2() + lost_ns;
        state.lost_at_ns = now_ns;
        if state.lost_ns > MOVES * move_ns && now_ns.saturating_sub(state.home_since_ns) >= STAY_NS {
            self.devices[state.home].homes -= 1;
            self.devices[to].homes += 1;
            (state.home, state.home_since_ns, state.lost_ns) = (to, now_ns, 0.0);
        }
    }
}

#[cfg(test)]
#[path = "homes_tests.rs"]
mod tests;
