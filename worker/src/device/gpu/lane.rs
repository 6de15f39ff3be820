//! One lane: a stream, and the call on it.
//!
//! ```text
//!  start: copies in ─► steps (a graph, or slices) ─► copies out ─► done ─► fill ─► reset of variables
//!                                │                                │
//!                          poll: next slice                 poll: answer
//! ```
//!
//! Everything is submitted in order on the lane's stream, so what clears a call runs before the next one
//! without a wait in between. A short call with few bytes that comes again is a single graph (`whole_call`), in which kernels
//! copy and clear (`copy_kernels`).

use std::rc::Rc;
use std::time::Instant;

use pappus_protocol::from_worker::Done;
use pappus_protocol::{Fault, FaultCode, LaneId, now_ns};

use super::command_list::Cursor;
use super::copy_kernels::CopyKernel;
use super::driver::{Driver, Event, Stream};
use super::function::Function;
use super::layout::{SLICE_STEPS, TIMED_EVERY, Transfer};
use super::plan_cache::BoundPlan;
use super::whole_call::{Copies, Range, WholeCall};

/// Slices that may be submitted and not over.
const SLICES: usize = 2;

/// A lane and what runs on it.
#[derive(Debug)]
pub(super) struct Lane<D: Driver> {
    pub(super) stream: D::Stream,
    done: D::Event,
    slices: [D::Event; SLICES],
    timing: Timing<D>,
    running: Option<Running<D>>,
    /// What the running call copies, inputs first; kept for its memory.
    copies: Vec<Transfer>,
    /// How many of them are inputs.
    inputs: usize,
    cursor: Cursor,
    /// Bytes from the lane's base on that were cleared behind the last call on it.
    clean_bytes: u64,
    cleared: bool,
    /// Nothing is cleared: the control of tests for leaks.
    uncleared: bool,
}

/// The call on a lane.
#[derive(Debug)]
struct Running<D: Driver> {
    base: u64,
    used_bytes: u64,
    bound: Option<Rc<BoundPlan<D>>>,
    deadline_ns: u64,
    alone: bool,
    timed: bool,
    started: Instant,
    /// Steps are still to be submitted.
    unfinished: bool,
    /// Slices submitted so far.
    submitted: usize,
    last_kernel: Option<u32>,
    failed: Option<Fault>,
    /// True if the call's kernels were told to end.
    stopped: bool,
}

impl<D: Driver> Running<D> {
    /// Steps of a slice, and how many slices are submitted ahead.
    fn slice(&self) -> (u32, usize) {
        if self.alone { (1, 1) } else { (SLICE_STEPS, SLICES) }
    }
}

/// A call that is about to start.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) base: u64,
    /// From there on, what is cleared behind the call.
    pub(super) used_bytes: u64,
    pub(super) deadline_ns: u64,
    pub(super) alone: bool,
}

/// When a timed call did what, and how the last one divided its time.
#[derive(Debug)]
struct Timing<D: Driver> {
    started: D::Event,
    copied_in: D::Event,
    executed: D::Event,
    copied_out: D::Event,
    cleared: D::Event,
    calls: u64,
    /// Shares of copy in, execution and copy out, in 1/65536.
    shares: [u64; 3],
    clear_ns: u64,
    /// The clearing of the last timed call was not read yet.
    clear_pending: bool,
}

/// Shares before any call was timed.
const WITHOUT_COPIES: [u64; 3] = [0, 1 << 16, 0];

impl<D: Driver> Timing<D> {
    fn create(driver: &D) -> Result<Self, D::Error> {
        Ok(Self {
            started: driver.create_event(true)?,
            copied_in: driver.create_event(true)?,
            executed: driver.create_event(true)?,
            copied_out: driver.create_event(true)?,
            cleared: driver.create_event(true)?,
            calls: 0,
            shares: WITHOUT_COPIES,
            clear_ns: 0,
            clear_pending: false,
        })
    }

    /// As before the first call.
    fn forget(&mut self) {
        (self.calls, self.clear_ns, self.clear_pending) = (0, 0, false);
        self.shares = WITHOUT_COPIES;
    }

    /// True if the next call is timed step by step.
    fn next(&mut self) -> bool {
        self.calls += 1;
        self.calls <= 2 || self.calls.is_multiple_of(TIMED_EVERY)
    }

    /// What clearing took, once it is known.
    fn read_clear(&mut self) {
        if self.clear_pending && matches!(self.cleared.has_passed(), Ok(true)) {
            self.clear_ns = self.cleared.ns_since(&self.copied_out);
            self.clear_pending = false;
        }
    }

    /// A call's timings from how long it took in all.
    fn done(&mut self, timed: bool, total_ns: u64) -> Done {
        if timed {
            let spans = [
                self.copied_in.ns_since(&self.started),
                self.executed.ns_since(&self.copied_in),
                self.copied_out.ns_since(&self.executed),
            ];
            let sum = spans.iter().sum::<u64>().max(1);
            self.shares = spans.map(|span| ((u128::from(span) << 16) / u128::from(sum)) as u64);
        }
        let part = |share: u64| ((u128::from(total_ns) * u128::from(share)) >> 16) as u64;
        let [copy_in, _, copy_out] = self.shares.map(part);
        Done {
            copy_in_ns: copy_in.into(),
            execute_ns: total_ns.saturating_sub(copy_in + copy_out).into(),
            copy_out_ns: copy_out.into(),
            clear_ns: self.clear_ns.into(),
        }
    }
}

impl<D: Driver> Lane<D> {
    pub(super) fn create(driver: &D) -> Result<Self, D::Error> {
        Ok(Self {
            stream: driver.create_stream()?,
            done: driver.create_event(false)?,
            slices: [driver.create_event(false)?, driver.create_event(false)?],
            timing: Timing::create(driver)?,
            running: None,
            copies: Vec::new(),
            inputs: 0,
            cursor: Cursor::default(),
            clean_bytes: 0,
            cleared: true,
            uncleared: cfg!(feature = "test-hooks") && std::env::var_os("PAPPUS_TEST_UNCLEARED").is_some(),
        })
    }

    /// Its memory is gone: nothing of it is known to be clean by an earlier call.
    pub(super) fn forget_memory(&mut self) {
        self.clean_bytes = 0;
    }

    /// Waits until everything submitted to it is over.
    pub(super) fn until_idle(&self) -> Result<(), D::Error> {
        while !self.stream.has_ended()? {
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// Forgets everything about the calls so far, their timings included: another domain's calls follow.
    pub(super) fn forget(&mut self) {
        self.running = None;
        (self.copies, self.inputs) = (Vec::new(), 0);
        self.cursor = Cursor::default();
        (self.clean_bytes, self.cleared) = (0, true);
        self.timing.forget();
    }

    /// Begins a call. Kernels of earlier calls may have written behind their own range, so the bytes that this call
    /// uses and the last one did not are cleared first.
    pub(super) fn begin(&mut self, start: &Start) -> Result<(), D::Error> {
        self.timing.read_clear();
        let timed = self.timing.next() && !self.timing.clear_pending;
        self.cleared = false;
        self.copies.clear();
        self.inputs = 0;
        self.running = Some(Running {
            base: start.base,
            used_bytes: start.used_bytes,
            bound: None,
            deadline_ns: start.deadline_ns,
            alone: start.alone,
            timed,
            started: Instant::now(),
            unfinished: false,
            submitted: 0,
            last_kernel: None,
            failed: None,
            stopped: false,
        });
        self.cleared |= self.uncleared;
        if !self.uncleared && start.used_bytes > self.clean_bytes {
            self.stream.fill(start.base + self.clean_bytes, 0, start.used_bytes - self.clean_bytes)?;
        }
        if timed {
            self.stream.record(&self.timing.started)?;
        }
        Ok(())
    }

    /// Adds an input of the call that began; all of them come before the outputs.
    pub(super) fn bring(&mut self, input: Transfer) {
        self.copy(0, input);
        self.inputs = self.copies.len();
    }

    /// Adds an output.
    pub(super) fn expect(&mut self, output: Transfer) {
        self.copy(self.inputs, output);
    }

    /// Adds a copy, to the last one of those from `first` on where one can do both.
    fn copy(&mut self, first: usize, next: Transfer) {
        if !self.copies[first..].last_mut().is_some_and(|last| last.joins(&next)) {
            self.copies.push(next);
        }
    }

    /// Submits the call as one graph, if it can be one; says whether it was.
    pub(super) fn run_whole(
        &mut self,
        bound: &Rc<BoundPlan<D>>,
        copy_kernel: Option<&CopyKernel<D>>,
    ) -> Result<bool, D::Error> {
        let Some(running) = &mut self.running else { return Ok(false) };
        let Some(kernel) = copy_kernel.filter(|_| !running.timed && !running.alone && bound.takes_whole())
        else {
            return Ok(false);
        };
        let range = Range { base: running.base, bytes: if self.uncleared { 0 } else { running.used_bytes } };
        let copies = Copies { all: &self.copies, inputs: self.inputs, range };
        let (inputs, outputs) = self.copies.split_at(self.inputs);
        let steps = |stream: &D::Stream| {
            bound.commands.submit(stream, &mut Cursor::default(), u32::MAX, &mut None).map(drop)
        };
        let cleared = bound.run_whole(
            &self.stream,
            copies,
            || kernel.plan(inputs, outputs, range.base, range.bytes),
            |small| WholeCall::capture(&self.stream, small, copies, &self.done, steps),
        )?;
        let Some(cleared) = cleared else { return Ok(false) };
        // Also where the fill fails: the graph runs.
        running.bound = Some(bound.clone());
        if !cleared {
            self.stream.fill(range.base, 0, range.bytes)?;
        }
        self.cleared = true;
        Ok(true)
    }

    /// Submits the inputs, the steps, then the outputs.
    pub(super) fn run(&mut self, bound: Rc<BoundPlan<D>>) -> Result<(), D::Error> {
        copy_all_in::<D>(&self.stream, &self.copies[..self.inputs])?;
        let Some(running) = &mut self.running else { return Ok(()) };
        if running.timed {
            self.stream.record(&self.timing.copied_in)?;
        }
        if let Some(graph) = bound.graph.get().filter(|_| !running.alone) {
            self.stream.launch_graph(graph)?;
            running.bound = Some(bound);
            return self.finish();
        }
        bound.ran();
        running.bound = Some(bound);
        running.unfinished = true;
        self.cursor.rewind();
        self.advance()
    }

    /// Submits the next slices; behind the last one, the outputs.
    fn advance(&mut self) -> Result<(), D::Error> {
        let Some(running) = &mut self.running else { return Ok(()) };
        let Some(bound) = running.bound.clone() else { return Ok(()) };
        let (steps, slices) = running.slice();
        for _ in 0..slices {
            // The slice that used this event before.
            if running.submitted >= slices && !self.slices[running.submitted % slices].has_passed()? {
                return Ok(());
            }
            if running.submitted > 0 && now_ns() > running.deadline_ns {
                running.unfinished = false;
                running.failed =
                    Some(Fault::new(FaultCode::Deadline, "the deadline passed between two kernels"));
                return self.stream.record(&self.done);
            }
            let kernel = &mut running.last_kernel;
            if bound.commands.submit(&self.stream, &mut self.cursor, steps, kernel)? {
                running.unfinished = false;
                return self.finish();
            }
            self.stream.record(&self.slices[running.submitted % slices])?;
            running.submitted += 1;
        }
        Ok(())
    }

    /// The outputs, the event that answers the call, and the fill that clears its range.
    fn finish(&mut self) -> Result<(), D::Error> {
        let Some(running) = &mut self.running else { return Ok(()) };
        if running.timed {
            self.stream.record(&self.timing.executed)?;
        }
        copy_all_out::<D>(&self.stream, &self.copies[self.inputs..])?;
        if running.timed {
            self.stream.record(&self.timing.copied_out)?;
        }
        self.stream.record(&self.done)?;
        if !running.alone && !self.cleared {
            // An alone call waits for its answer anyway, and its range must not hide a late fault.
            self.stream.fill(running.base, 0, running.used_bytes)?;
            self.cleared = true;
            if running.timed {
                self.stream.record(&self.timing.cleared)?;
                self.timing.clear_pending = true;
            }
        }
        Ok(())
    }

    /// Ends the call with a fault that leaves the context intact: submitted work runs to its end.
    pub(super) fn fail(&mut self, fault: Fault) {
        if let Some(running) = &mut self.running {
            running.unfinished = false;
            running.failed = running.failed.take().or(Some(fault));
            // If even this fails, the next query of the event says why.
            let _ = self.stream.record(&self.done);
        }
    }

    /// True once the deadline of the call has passed.
    pub(super) fn is_late(&self, now_ns: u64) -> bool {
        self.running.as_ref().is_some_and(|running| now_ns > running.deadline_ns)
    }

    /// Steps of the call that were submitted one by one, but for those of the last slice.
    pub(super) fn steps(&self) -> u64 {
        let steps = |running: &Running<D>| running.submitted as u64 * u64::from(running.slice().0);
        self.running.as_ref().map_or(0, steps)
    }

    /// True if a call goes on whose kernels were not told to end.
    pub(super) fn goes_on(&self) -> Result<bool, D::Error> {
        match self.running.as_ref().filter(|running| !running.stopped) {
            Some(running) => Ok(running.unfinished || !self.done.has_passed()?),
            None => Ok(false),
        }
    }

    /// Nothing more of the call is submitted, and its kernels were told to end.
    pub(super) fn stopped(&mut self) {
        if let Some(running) = &mut self.running {
            running.stopped = true;
        }
        self.fail(Fault::new(FaultCode::Deadline, "the deadline passed while it ran"));
    }

    /// Index and name of the kernel that was submitted last.
    pub(super) fn last_kernel(&self) -> Option<(u32, String)> {
        let running = self.running.as_ref()?;
        let index = running.last_kernel?;
        Some((index, running.bound.as_ref()?.commands.name(index).to_owned()))
    }

    /// True if memory is cleared behind the lane's calls.
    pub(super) fn clears(&self) -> bool {
        !self.uncleared
    }

    /// Clears the range of a call that is over, unless that was done.
    pub(super) fn clear_range(&mut self) -> Result<(), D::Error> {
        let Some(running) = &self.running else { return Ok(()) };
        if !self.cleared {
            self.stream.fill(running.base, 0, running.used_bytes)?;
            self.cleared = true;
        }
        Ok(())
    }

    /// True if the call is timed step by step.
    pub(super) fn is_timed(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.timed)
    }

    /// True if the call runs alone, kernel by kernel.
    pub(super) fn is_alone(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.alone)
    }

    /// The end of the call, once it is there; errors are the context's.
    pub(super) fn poll(&mut self) -> Result<Option<Result<Done, Fault>>, D::Error> {
        let Some(running) = &mut self.running else { return Ok(None) };
        if running.unfinished {
            self.advance()?;
            return Ok(None);
        }
        if !self.done.has_passed()? {
            return Ok(None);
        }
        let (timed, total) = (running.timed, running.started.elapsed().as_nanos() as u64);
        let Some(running) = self.running.as_mut() else { return Ok(None) };
        Ok(Some(match running.failed.take() {
            Some(fault) => Err(fault),
            None => Ok(self.timing.done(timed, total)),
        }))
    }

    /// Clears the call's range, unless its graph did, and resets the function's variables.
    pub(super) fn clear(&mut self, function: &mut Function<D>, lane: LaneId) -> Result<(), D::Error> {
        self.clear_range()?;
        let Some(running) = self.running.take() else { return Ok(()) };
        self.clean_bytes = running.used_bytes;
        drop(running);
        match function.has_variables && !self.uncleared {
            true => function.reset(&self.stream, lane),
            false => Ok(()),
        }
    }
}

fn copy_all_in<D: Driver>(stream: &D::Stream, inputs: &[Transfer]) -> Result<(), D::Error> {
    for input in inputs {
        match input.is_state {
            true => stream.copy(input.device, input.host.addr() as u64, input.bytes)?,
            // SAFETY: the region was checked and stays mapped while the lane is busy; this is never captured.
            false => unsafe { stream.copy_in(input.device, input.host, input.bytes) }?,
        }
    }
    Ok(())
}

fn copy_all_out<D: Driver>(stream: &D::Stream, outputs: &[Transfer]) -> Result<(), D::Error> {
    for output in outputs {
        match output.is_state {
            true => stream.copy(output.host.addr() as u64, output.device, output.bytes)?,
            // SAFETY: the region was checked and stays mapped while the lane is busy; this is never captured.
            false => unsafe { stream.copy_out(output.host, output.device, output.bytes) }?,
        }
    }
    Ok(())
}
