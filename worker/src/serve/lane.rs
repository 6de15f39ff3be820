//! One lane: its call, with regions and descriptors. The lists keep their capacity from call to call, so that
//! a hot call allocates nothing.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use pappus_blueprint::{Blueprint, BufferId, Plan, Sizes};
use pappus_protocol::to_worker::{DISCARD, Invoke, Item, STAGING_ARENA};
use pappus_protocol::{ArenaId, Fault, FaultCode};

use super::installed::{Installation, Installed};
use crate::arenas::Arenas;
use crate::device::{Call, CopyIn, CopyOut, Source};

/// A lane and the call in it.
#[derive(Debug, Default)]
pub(super) struct Lane {
    /// The call that waits for its answer.
    id: Option<u64>,
    /// The function it is a call of.
    pub(super) function: Installation,
    /// How much the worker was told to do to functions before the call came.
    pub(super) told: u64,
    /// The plan of a call that waits for its turn.
    plan: Option<Arc<Plan>>,
    /// The device is running the call.
    pub(super) started: bool,
    /// The call ended and its memory is not cleared yet.
    pub(super) uncleared: bool,
    /// The call runs alone, kernel by kernel.
    pub(super) alone: bool,
    pub(super) deadline_ns: u64,
    /// Device memory that the lane may have.
    pub(super) memory_bytes: u64,
    pub(super) inputs: Vec<CopyIn>,
    pub(super) outputs: Vec<CopyOut>,
    pub(super) descriptors: Vec<OwnedFd>,
    /// Regions of all outputs, zeroed if the call fails.
    targets: Vec<CopyOut>,
    input_bytes: Vec<u64>,
    scalars: Vec<u64>,
}

impl Lane {
    /// True if a call is running in the lane.
    pub(super) fn is_running(&self) -> bool {
        self.started
    }

    /// True if the lane has a call that was not answered.
    pub(super) fn has_call(&self) -> bool {
        self.id.is_some()
    }

    /// True if a call waits in the lane for the worker's turn.
    pub(super) fn is_prepared(&self) -> bool {
        self.plan.is_some()
    }

    /// True if a call is here, or was and its memory is not cleared, that uses that function.
    pub(super) fn uses(&self, function: Installation) -> bool {
        (self.has_call() || self.uncleared) && self.function == function
    }

    /// True if a call is here that has regions in that arena.
    pub(super) fn has_regions_in(&self, arena: ArenaId) -> bool {
        let is_read = || self.inputs.iter().any(|input| input.from == Source::Arena(arena));
        self.has_call() && (is_read() || self.targets.iter().any(|target| target.arena == arena))
    }

    /// The call that waits for its turn, as the device takes it.
    pub(super) fn prepared<'a>(&'a self, arenas: &'a Arenas) -> Option<Call<'a>> {
        self.plan.as_ref().map(|plan| self.call(plan, arenas))
    }

    /// The call with its plan, as the device takes it.
    pub(super) fn call<'a>(&'a self, plan: &'a Arc<Plan>, arenas: &'a Arenas) -> Call<'a> {
        Call {
            plan,
            inputs: &self.inputs,
            outputs: &self.outputs,
            arenas,
            descriptors: &self.descriptors,
            deadline_ns: self.deadline_ns,
            alone: self.alone,
        }
    }

    /// The plan of the call that is about to start.
    pub(super) fn take_plan(&mut self) -> Option<Arc<Plan>> {
        self.plan.take()
    }

    /// A call moves in.
    pub(super) fn begin(&mut self, call: u64, invoke: &Invoke<'_>, descriptors: Vec<OwnedFd>) {
        self.id = Some(call);
        (self.deadline_ns, self.memory_bytes) = (invoke.deadline_ns, invoke.memory_bytes);
        self.alone = invoke.flags & Invoke::ALONE != 0;
        self.descriptors = descriptors;
    }

    /// Checks and keeps the regions of a call, targets first: they are zeroed where a later step fails.
    pub(super) fn regions(&mut self, invoke: &Invoke<'_>, arenas: &Arenas) -> Result<(), Fault> {
        self.targets.clear();
        self.inputs.clear();
        self.outputs.clear();
        let mut refused = None;
        for target in invoke.outputs {
            let (arena, offset, bytes) =
                (ArenaId::new(target.arena.get()), target.offset.get(), target.bytes.get());
            let known = match arena {
                DISCARD => Ok(()),
                _ => arenas.range(arena, offset, bytes).map(drop),
            };
            match known {
                Ok(()) => self.targets.push(CopyOut { from: 0, arena, offset, bytes }),
                Err(fault) => refused = refused.or(Some(fault)),
            }
        }
        for item in invoke.items {
            match self.input(item, arenas) {
                Ok(input) => self.inputs.push(input),
                Err(fault) => refused = refused.or(Some(fault)),
            }
        }
        refused.map_or(Ok(()), Err)
    }

    fn input(&self, item: &Item, arenas: &Arenas) -> Result<CopyIn, Fault> {
        let (source, offset, bytes) = (item.source.get(), item.offset.get(), item.bytes.get());
        let from = match item.kind.get() {
            Item::ARENA => {
                let arena = ArenaId::new(source);
                arenas.range(arena, offset, bytes)?;
                Source::Arena(arena)
            }
            Item::DESCRIPTOR => match usize::try_from(source) {
                Ok(index) if index < self.descriptors.len() => Source::Descriptor(index),
                _ => return Err(bad(format!("descriptor {source} does not belong to the call"))),
            },
            other => return Err(bad(format!("an input item of unknown kind {other}"))),
        };
        Ok(CopyIn { from, offset, bytes, to: 0, reached: true })
    }

    /// Plans the call, gives its regions their places in the pool, and keeps the plan.
    pub(super) fn plan<F>(&mut self, invoke: &Invoke<'_>, installed: &mut Installed<F>) -> Result<(), Fault> {
        let blueprint = &installed.blueprint;
        self.input_bytes.clear();
        self.input_bytes.resize(blueprint.inputs().len(), 0);
        let mut current = 0;
        for item in invoke.items {
            let input = item.input.get() as usize;
            let sum = self.input_bytes.get_mut(input).filter(|_| input >= current);
            let sum = sum.ok_or_else(|| bad(format!("an item of input {input} out of its place")))?;
            current = input;
            *sum = sum
                .checked_add(item.bytes.get())
                .ok_or_else(|| bad(format!("input {input} is longer than memory can be")))?;
        }
        self.scalars.clear();
        self.scalars.extend(invoke.scalars.iter().map(|scalar| scalar.get()));
        let (words, free) = self
            .scalars
            .split_at_checked(blueprint.words().len())
            .ok_or_else(|| bad("fewer scalars than its sizes depend on".into()))?;
        let sizes = Sizes { inputs: &self.input_bytes, weights: &installed.weight_bytes, words, free };
        // The cache is per function, so the function's key is a constant.
        let plan = installed.plans.get_or_plan(0, blueprint, &sizes);
        let plan = plan.map_err(|e| bad(e.to_string()))?;
        if plan.pool_bytes > self.memory_bytes {
            let (needed, lent) = (plan.pool_bytes, self.memory_bytes);
            let message = format!("the call needs {needed} bytes of device memory, its lane was lent {lent}");
            return Err(Fault::new(FaultCode::OutOfMemory, message));
        }
        self.place(invoke, installed, &plan)?;
        self.plan = Some(plan);
        Ok(())
    }

    fn place<F>(&mut self, invoke: &Invoke<'_>, installed: &Installed<F>, plan: &Plan) -> Result<(), Fault> {
        let blueprint = &installed.blueprint;
        // From here on `input_bytes` counts what has been placed.
        self.input_bytes.fill(0);
        for (copy, item) in self.inputs.iter_mut().zip(invoke.items) {
            let input = item.input.get() as usize;
            let buffer = blueprint.inputs()[input];
            copy.to = plan.buffers[buffer.index()].offset + self.input_bytes[input];
            copy.reached = blueprint.buffers()[buffer.index()].reached;
            self.input_bytes[input] += copy.bytes;
        }
        // The plan knows how long the state is, whatever came.
        let came = &self.input_bytes[blueprint.brought().len()..];
        if came != blueprint.state_bytes() {
            return Err(bad(format!("{came:?} bytes of state, expected {:?}", blueprint.state_bytes())));
        }
        self.hand_out(invoke.calls.max(1) as usize, blueprint, plan)
    }

    /// Has each call's part of every output brought to its region: the parts lie in the order of the calls.
    fn hand_out(&mut self, calls: usize, blueprint: &Blueprint, plan: &Plan) -> Result<(), Fault> {
        if calls > 1 && blueprint.batch().is_none() {
            return Err(bad("several calls of a function that has no batch".into()));
        }
        let wanted = blueprint.outputs().len();
        if Some(self.targets.len()) != wanted.checked_mul(calls) {
            return Err(bad(format!(
                "{} output regions, expected {wanted} for each call",
                self.targets.len()
            )));
        }
        for (at, &buffer) in blueprint.outputs().iter().enumerate() {
            let placement = plan.buffers[buffer.index()];
            let mut from = 0;
            for target in self.targets[at..].iter().step_by(wanted) {
                // A call by itself may have more room than it needs.
                let bytes = if calls > 1 { target.bytes } else { target.bytes.min(placement.bytes) };
                if bytes > placement.bytes - from {
                    return Err(misfit(blueprint, buffer, placement.bytes, u64::saturating_add(from, bytes)));
                }
                if target.arena != DISCARD {
                    self.outputs.push(CopyOut { from: placement.offset + from, bytes, ..*target });
                }
                from += bytes;
            }
            if from < placement.bytes {
                return Err(misfit(blueprint, buffer, placement.bytes, from));
            }
        }
        Ok(())
    }

    /// The call leaves: its inputs are zeroed in staging, and the outputs of a failure in their arenas. Returns the
    /// call, once.
    pub(super) fn end(&mut self, arenas: &Arenas, success: bool) -> Option<u64> {
        for input in &self.inputs {
            if input.from == Source::Arena(STAGING_ARENA) {
                arenas.zero(STAGING_ARENA, input.offset, input.bytes);
            }
        }
        if !success {
            for target in &self.targets {
                arenas.zero(target.arena, target.offset, target.bytes);
            }
        }
        self.descriptors.clear();
        self.id.take()
    }
}

fn misfit(blueprint: &Blueprint, output: BufferId, bytes: u64, room: u64) -> Fault {
    let name = &blueprint.buffers()[output.index()].name;
    bad(format!("output {name:?} has {bytes} bytes, its region has room for {room}"))
}

fn bad(message: String) -> Fault {
    Fault::new(FaultCode::BadInvoke, message)
}
