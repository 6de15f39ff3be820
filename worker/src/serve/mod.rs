//! The serving role: one loop over the pipes, generic over the device.
//!
//! Frames are handled as they lie in the inbox, in batches. A call that ended is answered at once, and its lane is
//! cleared after the answer; every call leaves its lane through [`Server::settle`] or [`Server::settle_turn`], so no path
//! skips the clearing. Where others wait for the turn that ends with the call, it is cleared and the turn given back first.

mod behind;
mod forget;
mod installed;
mod lane;
mod lane_memory;
mod open;
mod poll_order;
mod scrub;
mod turn;
pub mod turn_wait;
mod weights;

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use pappus_protocol::from_worker::Done;
use pappus_protocol::pipe::{Got, Outbox};
use pappus_protocol::to_worker::{Configure, Invoke, STAGING_ARENA};
use pappus_protocol::turn_page::{Order, WorkerEnd};
use pappus_protocol::{ArenaId, Fault, FaultCode, FromWorker, LaneId, ToWorker, TurnId};
use pappus_protocol::{control, now_ns};
use pappus_shmem::{Mapping, SharedWords, ValidatedMemfd};

use self::behind::BehindCalls;
use self::installed::{Installation, Installations};
use self::lane::Lane;
use self::poll_order::PollOrder;
use self::turn::{Step, Turn};
use self::weights::OnTheirWay;
use crate::arenas::Arenas;
use crate::device::Device;
use crate::{Channels, Error};

/// Memory that the worker shares with the supervisor and none else.
#[derive(Debug)]
pub struct Memory<'a> {
    /// The arena for inline bytes.
    pub staging: &'a ValidatedMemfd,
    /// The turn page.
    pub turns: SharedWords,
}

/// Serves until the supervisor closes its pipe.
pub fn run<D: Device>(channels: Channels, memory: Memory<'_>, mut device: D) -> Result<(), Error> {
    let Memory { staging, turns } = memory;
    let staging = Mapping::writable(staging).map_err(|e| Error::Staging(e.to_string()))?;
    // Inline bytes go through staging, so a device may want to pin it like any other arena.
    device.map_arena(STAGING_ARENA, &staging)?;
    let greeting = channels.greeting(device.hello());
    let Channels { mut inbox, outbox, control, .. } = channels;
    let mut server = Server {
        lanes: std::iter::repeat_with(Lane::default).take(device.lanes()).collect(),
        outbox,
        control,
        functions: Installations::default(),
        on_their_way: OnTheirWay::default(),
        behind: BehindCalls::default(),
        device,
        arenas: Arenas::new(staging),
        closing: Vec::new(),
        spin: Duration::ZERO,
        turn: Turn::default(),
        page: WorkerEnd::new(turns),
        scrub_calls: false,
        dirty: false,
        foreign: false,
        scrubs: false,
        poll_order: PollOrder::default(),
    };
    server.outbox.push_from_worker(&greeting);
    server.outbox.flush_blocking()?;
    loop {
        let mut granted = false;
        while let Some(frame) = inbox.frame()? {
            granted |= server.look()?;
            server.handle(ToWorker::decode(frame)?)?;
            // With a lost device, the failure of a call is not answered: the loss may be its cause.
            if server.device.lost().is_some() {
                return Err(server.broken());
            }
        }
        if granted | server.look()? {
            // Calls that were handed over before the grant are in the pipe, and part of the turn.
            if inbox.fill()? == Got::Closed {
                return Ok(());
            }
            continue;
        }
        if !server.on_their_way.is_none() {
            server.poll_weights()?;
        }
        let busy = server.settle_turn()?;
        let until = server.expire_prepared();
        // Calls may have ended that something waits for; what follows may be more calls.
        let busy = server.go_on()? | busy;
        server.outbox.flush_blocking()?;
        let got = match busy || !server.on_their_way.is_none() {
            true => inbox.fill()?,
            false => {
                let lingers = server.turn.lingers();
                let rests = server.wants_rest().then_some(Duration::ZERO);
                let until = until.into_iter().chain(lingers).chain(rests).min();
                // Where polling is off, it is off for turns, too.
                let spin = match server.spin.is_zero() {
                    true => Duration::ZERO,
                    false => server.spin.max(server.turn.alert()).max(lingers.unwrap_or_default()),
                };
                let spin = until.map_or(spin, |until| spin.min(until));
                let got = inbox.wait_beside(spin, until, None, &server.page)?;
                if got == Got::Nothing && rests.is_some() {
                    server.device.rest();
                }
                got
            }
        };
        if got == Got::Closed {
            return Ok(());
        }
    }
}

/// Fields are dropped in this order: functions before the device that loaded them, arenas after the device that pinned
/// them.
struct Server<D: Device> {
    outbox: Outbox,
    control: OwnedFd,
    lanes: Vec<Lane>,
    functions: Installations<D>,
    on_their_way: OnTheirWay,
    behind: BehindCalls,
    device: D,
    arenas: Arenas,
    /// Arenas that are closed behind the calls that have regions in them.
    closing: Vec<ArenaId>,
    spin: Duration,
    turn: Turn,
    page: WorkerEnd<SharedWords>,
    /// On-chip state is cleared before a call if it is `dirty`: a call ran since it was cleared.
    scrub_calls: bool,
    dirty: bool,
    /// It is cleared before a call, too, if the call's is the first of a turn and could find what others left.
    foreign: bool,
    /// The device's scrubbing kernels are loaded.
    scrubs: bool,
    poll_order: PollOrder,
}

impl<D: Device> Server<D> {
    /// True if the device makes something ready while there is no call, neither in a turn, which others wait for, nor where one
    /// is about to begin.
    fn wants_rest(&self) -> bool {
        self.device.wants_rest()
            && self.turn.held().is_none()
            && self.turn.alert().is_zero()
            && !self.lanes.iter().any(Lane::is_prepared)
    }

    fn handle(&mut self, message: ToWorker<'_>) -> Result<(), Error> {
        let cold = (!matches!(message, ToWorker::Invoke { .. })).then(Instant::now);
        let handled = match message {
            ToWorker::Invoke { call, invoke } => self.invoke(call, &invoke),
            ToWorker::Configure(configure) => self.configure(&configure),
            ToWorker::Install { function, install } => self.install(function, &install),
            ToWorker::Load { function, load } => self.load_weights(function, load),
            ToWorker::Unload { function } => self.unload_weights(function),
            ToWorker::Uninstall { function } => self.uninstall(function),
            ToWorker::GiveBack { lanes } => self.give_back_memory(lanes),
            ToWorker::Scrub { handover } => self.scrub(handover),
            ToWorker::OpenArena { arena } => self.open_arena(arena),
            ToWorker::CloseArena { arena } => self.close_arena(arena),
            ToWorker::OpenState { arena, form } => self.open_state(arena, form),
            // The page was looked at before.
            ToWorker::Order => Ok(()),
            ToWorker::Soon => {
                self.turn.soon();
                Ok(())
            }
            ToWorker::Compile { .. }
            | ToWorker::CompileChecked { .. }
            | ToWorker::Describe { .. }
            | ToWorker::Read { .. } => Err(Error::Unexpected("a serving worker only serves")),
        };
        if let Some(begin) = cold {
            // A turn that waits for calls does not wait for what the worker did itself.
            self.turn.worked(begin.elapsed());
        }
        handled
    }

    /// Takes in what the turn page says; whether a turn begins.
    fn look(&mut self) -> Result<bool, Error> {
        let Some(Order { turn, granted, revoked, prices }) = self.page.look() else { return Ok(false) };
        if granted {
            let us = |us: u32| Duration::from_micros(us.into());
            self.turn.grant(turn, us(prices.quantum_us), us(prices.change_us));
            self.foreign = self.device.finds_others();
        }
        if revoked {
            // Not about the turn held now where that was given back meanwhile.
            self.turn.revoke(turn);
        }
        if granted {
            self.start_prepared()?;
        }
        Ok(granted)
    }

    /// Applies settings.
    fn configure(&mut self, configure: &Configure) -> Result<(), Error> {
        self.spin = Duration::from_micros(configure.poll_us.into());
        self.turn.require(configure.turns);
        let scrubs = configure.scrub_calls || configure.scrub_switch;
        if scrubs && !self.scrubs {
            // Scrubbing kernels are loaded now, not when the first call waits for them.
            self.device.scrub()?;
        }
        (self.scrubs, self.scrub_calls) = (scrubs, configure.scrub_calls);
        self.say_memory();
        Ok(())
    }

    fn invoke(&mut self, call: u64, invoke: &Invoke<'_>) -> Result<(), Error> {
        let descriptors = control::recv(&self.control, call, invoke.descriptors as usize)?;
        let (id, index) = (invoke.lane, invoke.lane.index());
        if index >= self.lanes.len() {
            return Err(Error::Unexpected("a lane that this device does not have"));
        }
        while self.lanes[index].is_running() {
            self.settle()?;
        }
        if self.lanes[index].is_prepared() {
            return Err(Error::Unexpected("two calls for a lane that waits for its turn"));
        }
        self.lanes[index].begin(call, invoke, descriptors);
        self.turn.feed();
        let mapped = match self.arenas.has_postponed() {
            true => self.map_postponed(invoke),
            false => Ok(()),
        };
        let lane = &mut self.lanes[index];
        let (function, installed) = self.functions.called(invoke.function);
        (lane.function, lane.told) = (function, self.behind.told());
        // Also where an arena is missing: regions in the call's other arenas are zeroed.
        let accepted = lane.regions(invoke, &self.arenas).and_then(|()| lane.plan(invoke, installed?));
        match mapped.and(accepted) {
            Ok(()) => self.start_if_ready(id),
            Err(fault) => {
                self.answer(id, Err(fault));
                Ok(())
            }
        }
    }

    /// True if a prepared call of that function is in a lane.
    fn waits(&self, id: LaneId, function: Installation) -> bool {
        let lane = &self.lanes[id.index()];
        lane.is_prepared() && lane.function == function
    }

    /// True if the weights of a call's function let the call start; the error says why they never will.
    fn is_ready(&self, lane: &Lane) -> Result<bool, Fault> {
        if self.behind.holds(lane) { Ok(false) } else { self.functions.is_ready(lane.function) }
    }

    /// Starts a prepared call, if the worker has the turn and the weights of its function are there.
    fn start_if_ready(&mut self, id: LaneId) -> Result<(), Error> {
        match self.is_ready(&self.lanes[id.index()]) {
            Ok(true) if self.turn.may_submit() => self.start(id),
            Ok(true) => {
                self.prepare(id);
                Ok(())
            }
            Ok(false) => Ok(()),
            Err(fault) => {
                self.lanes[id.index()].take_plan();
                self.answer(id, Err(fault));
                Ok(())
            }
        }
    }

    /// Has the device make ready what a call needs that waits for its turn, while the device does nothing for this worker.
    fn prepare(&mut self, id: LaneId) {
        let lane = &self.lanes[id.index()];
        let Some(call) = lane.prepared(&self.arenas).filter(|call| !call.alone && self.poll_order.is_empty())
        else {
            return;
        };
        if let Ok(installed) = self.functions.get(lane.function) {
            self.device.prepare(id, &mut installed.function, &call, lane.memory_bytes);
        }
    }

    /// Hands a prepared call to the device.
    fn start(&mut self, id: LaneId) -> Result<(), Error> {
        let index = id.index();
        let Some(plan) = self.lanes[index].take_plan() else {
            return Ok(());
        };
        if self.lanes[index].memory_bytes > self.device.lane_bytes(id) {
            self.grow(id, plan.pool_bytes)?;
            if !self.lanes[index].has_call() {
                return Ok(());
            }
        }
        let foreign = std::mem::take(&mut self.foreign);
        if self.lanes[index].alone || self.scrub_calls || foreign {
            self.drain()?;
        }
        if foreign || self.scrub_calls && self.dirty {
            self.device.scrub()?;
            self.dirty = false;
        }
        let lane = &mut self.lanes[index];
        match self.functions.get(lane.function) {
            Ok(installed) => {
                self.dirty = true;
                self.turn.note(true);
                self.device.start(id, &mut installed.function, &lane.call(&plan, &self.arenas));
                lane.started = true;
                self.poll_order.push(id);
            }
            Err(fault) => self.answer(id, Err(fault)),
        }
        Ok(())
    }

    /// Starts every call that waited for the turn.
    fn start_prepared(&mut self) -> Result<(), Error> {
        for id in LaneId::first(self.lanes.len()) {
            if self.lanes[id.index()].is_prepared() {
                self.start_if_ready(id)?;
            }
        }
        Ok(())
    }

    /// Answers calls whose deadline passed while they waited for the turn or for weights; says when to look again.
    fn expire_prepared(&mut self) -> Option<Duration> {
        let mut next: Option<u64> = None;
        for id in LaneId::first(self.lanes.len()) {
            let lane = &self.lanes[id.index()];
            if !lane.is_prepared() {
                continue;
            }
            let left = lane.deadline_ns.saturating_sub(now_ns());
            if left == 0 {
                let message = match self.is_ready(lane) {
                    Ok(false) => "the deadline passed while the weights of the function were on their way",
                    _ => "the deadline passed while the call waited for its turn on the device",
                };
                self.lanes[id.index()].take_plan();
                self.answer(id, Err(Fault::new(FaultCode::Deadline, message)));
            } else {
                next = Some(next.map_or(left, |next| next.min(left)));
            }
        }
        next.map(Duration::from_nanos)
    }

    /// Answers and clears every lane whose call is over; says whether one is still running.
    fn settle(&mut self) -> Result<bool, Error> {
        let (busy, over) = self.collect()?;
        if over {
            self.answer_and_clear()?;
        }
        Ok(busy)
    }

    /// As [`Server::settle`], and gives the turn back when it is time: before anything is written, since the next worker
    /// waits for it.
    fn settle_turn(&mut self) -> Result<bool, Error> {
        let (busy, over) = self.collect()?;
        self.step(busy)?;
        if over {
            self.answer_and_clear()?;
        }
        Ok(busy)
    }

    /// Ends the calls that are over; whether one is still running, and whether one ended.
    fn collect(&mut self) -> Result<(bool, bool), Error> {
        let mut over = false;
        let mut round = self.poll_order.round();
        while let Some(id) = round.next(&self.poll_order) {
            let Some(result) = self.device.poll(id) else {
                continue;
            };
            if self.device.lost().is_some() {
                return Err(self.broken());
            }
            round.ended(&mut self.poll_order);
            let lane = &mut self.lanes[id.index()];
            lane.started = false;
            lane.uncleared = true;
            over = true;
            if let Ok(done) = &result {
                self.turn.took(done.on_device());
            }
            self.answer(id, result);
        }
        let busy = !self.poll_order.is_empty();
        if !busy {
            self.turn.note(false);
        }
        Ok((busy, over))
    }

    /// Answers go out before anything is cleared.
    fn answer_and_clear(&mut self) -> Result<(), Error> {
        self.outbox.flush_blocking()?;
        self.clear()
    }

    /// Clears behind calls that ended.
    fn clear(&mut self) -> Result<(), Error> {
        for id in LaneId::first(self.lanes.len()) {
            let lane = &mut self.lanes[id.index()];
            if std::mem::take(&mut lane.uncleared) {
                let installed = self.functions.get(lane.function)?;
                self.device.clear(id, &mut installed.function)?;
            }
        }
        Ok(())
    }

    /// Reports that the device is lost, with every call that was not answered. Where one call ran alone, the fault
    /// is that call's and names its kernel; otherwise the guilty call is not known.
    fn broken(&mut self) -> Error {
        for lane in self.lanes.iter_mut().filter(|lane| lane.is_running()) {
            lane.end(&self.arenas, false);
        }
        let lost = self.device.lost().cloned();
        let fault = lost.unwrap_or_else(|| Fault::new(FaultCode::Internal, "the device is lost"));
        self.outbox.push_from_worker(&FromWorker::Broken { fault: fault.as_ref() });
        match self.outbox.flush_blocking() {
            Ok(()) => fault.into(),
            Err(e) => e.into(),
        }
    }

    /// Gives the turn back when it is time.
    fn step(&mut self, busy: bool) -> Result<(), Error> {
        // One that waits for weights does not need the turn yet.
        let ready = |lane: &Lane| lane.is_prepared() && !matches!(self.is_ready(lane), Ok(false));
        let waiting = self.lanes.iter().any(ready);
        match self.turn.step(busy, waiting) {
            Step::Stay => {}
            Step::Ending(turn) => {
                let sleeps = self.page.ending(turn);
                self.wake(sleeps);
            }
            Step::Over(turn) => self.give_back(turn)?,
        }
        Ok(())
    }

    /// The turn is over.
    fn give_back(&mut self, turn: TurnId) -> Result<(), Error> {
        // Clearing belongs to the turn: the next worker must find the device idle.
        let cleared = self.clear().and_then(|()| Ok(self.device.settle()?));
        if cleared.is_err() {
            // Calls that ended are answered all the same.
            self.outbox.flush_blocking()?;
        }
        cleared?;
        let used_ns = self.turn.give_back().as_nanos() as u64;
        let sleeps = self.page.give_back(turn, used_ns);
        self.wake(sleeps);
        Ok(())
    }

    /// Has the supervisor look at the turn page, if it sleeps: with what is written next.
    fn wake(&mut self, sleeps: bool) {
        if sleeps {
            self.outbox.push_from_worker(&FromWorker::Yield);
        }
    }

    /// Waits until no lane is running where strangers share them. Drivers load and unload code, and unpin memory, behind all
    /// kernels of the process (docs/cuda.md); who waits in the driver ends no kernel whose time is over.
    fn pause(&mut self) -> Result<(), Error> {
        if self.device.are_shared() { self.drain() } else { Ok(()) }
    }

    /// Waits until no lane is running.
    fn drain(&mut self) -> Result<(), Error> {
        while self.settle()? {
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// Ends a call, good or bad: its inputs are zeroed in staging, outputs of a failure are zeroed, and only then the
    /// answer is sent.
    fn answer(&mut self, id: LaneId, result: Result<Done, Fault>) {
        let lane = &mut self.lanes[id.index()];
        let Some(call) = lane.end(&self.arenas, result.is_ok()) else {
            return;
        };
        self.page.answered();
        match result {
            Ok(timings) => self.outbox.push_from_worker(&FromWorker::Done { call, timings }),
            Err(fault) => self.outbox.push_from_worker(&FromWorker::Failed { call, fault: fault.as_ref() }),
        }
    }
}
