//! Executing a plan's steps: launches in ranges of blocks, copies and fills within the pool in parts, between which the
//! deadline is checked.

use pappus_blueprint::limits::PARAM_BYTES;
use pappus_blueprint::{Placement, Plan, Space, Step};
use pappus_protocol::{Fault, FaultCode, now_ns};
use pappus_shmem::mapping::OutOfRange;

use super::alarm::Ringing;
use super::bounds::{Bounds, Stray};
use super::function::Function;
use super::layout::{ARGS_AT, LAUNCH_AT, LaunchRecord, POOL_AT, SCRATCH_AT};
use super::memory::Pool;
use super::module::mapping;
use super::prints;
use crate::device::broken;

/// How long one range of blocks should take: short beside a deadline, long beside a call (20 ns).
const RANGE_NS: u64 = 750_000;

/// How much is copied or filled between two looks at the deadline: a millisecond or two, where every page is touched first.
const PART_BYTES: u64 = 4 << 20;

/// What was printed before a fault, in its message: a message has [`pappus_protocol::limits::MAX_FAULT_BYTES`].
const FAULT_PRINTS_BYTES: usize = 1024;

/// Slots of the longest parameter list.
const MAX_SLOTS: usize = PARAM_BYTES as usize / 8;

/// One call's execution.
pub(super) struct Execution<'a> {
    pub(super) function: &'a mut Function,
    pub(super) pool: &'a Pool,
    pub(super) plan: &'a Plan,
    pub(super) deadline_ns: u64,
    /// What ends a kernel in the middle of a block, if anything does.
    pub(super) alarm: Option<&'a Ringing<'a>>,
}

impl Execution<'_> {
    /// Executes all steps. What kernels of a checked call print becomes text in the buffer for it, or a part of the fault.
    pub(super) fn run_and_print(&mut self) -> Result<(), Fault> {
        let plan = self.plan;
        let ran = self.steps(&plan.steps);
        let Some(buffer) = self.printed() else { return ran };
        let mut records = vec![0; buffer.bytes as usize];
        self.pool.mapping.read(buffer.offset, &mut records).map_err(|_| broken())?;
        match ran {
            Ok(()) => {
                let text = prints::text(&records, records.len());
                records.fill(0);
                records[..text.len()].copy_from_slice(text.as_bytes());
                self.pool.mapping.write(buffer.offset, &records).map_err(|_| broken())
            }
            Err(mut fault) => {
                let text = prints::text(&records, FAULT_PRINTS_BYTES);
                if !text.is_empty() {
                    fault.message += &format!("\nbefore that it printed:\n{}", text.trim_end());
                }
                Err(fault)
            }
        }
    }

    /// Where kernels print to; none if nothing is printed.
    fn printed(&self) -> Option<Placement> {
        let nth = self.function.checked.as_ref()?.printed()?;
        self.plan.buffers.get(nth).copied()
    }

    /// Executes steps; repeats nest, no deeper than the blueprint's limit.
    fn steps(&mut self, steps: &[Step]) -> Result<(), Fault> {
        let mut rest = steps;
        while let [step, after @ ..] = rest {
            rest = after;
            match *step {
                Step::Repeat { count, body } => {
                    let (body, behind) = after.split_at_checked(body as usize).ok_or_else(broken)?;
                    rest = behind;
                    for _ in 0..count {
                        self.steps(body)?;
                    }
                }
                Step::Launch { .. } => self.launch(step)?,
                Step::Copy { from, to, bytes } => {
                    let source = match from.space {
                        Space::Pool => &self.pool.mapping,
                        Space::Weights => &self.function.weights.as_ref().ok_or_else(broken)?.mapping,
                    };
                    let pool = &self.pool.mapping;
                    self.in_parts(bytes, |at, bytes| {
                        pool.copy_from(to + at, source, from.offset + at, bytes)
                    })?;
                }
                Step::Fill { offset, bytes, byte } => {
                    self.in_parts(bytes, |at, bytes| self.pool.mapping.fill(offset + at, bytes, byte))?;
                }
            }
        }
        Ok(())
    }

    /// Does something to so many bytes, a part after the other: where it begins, and how long it is.
    fn in_parts(&self, bytes: u64, part: impl Fn(u64, u64) -> Result<(), OutOfRange>) -> Result<(), Fault> {
        let mut at = 0;
        // Also of none: a step takes time, and may be repeated for ever.
        loop {
            let next = PART_BYTES.min(bytes - at);
            part(at, next).map_err(|_| broken())?;
            self.check_deadline(None)?;
            at += next;
            if at == bytes {
                return Ok(());
            }
        }
    }

    fn launch(&mut self, step: &Step) -> Result<(), Fault> {
        let &Step::Launch { kernel, grid, block, shared_bytes, ref params, .. } = step else {
            return Err(broken());
        };
        let mut slots = [0; MAX_SLOTS];
        let prints = self.printed().map_or((0, 0), |at| ((POOL_AT + at.offset) as u32, at.bytes as u32));
        let slots = self.write_params(params.start as usize..params.end as usize, &mut slots)?;
        let function = &mut *self.function;
        let entry = function.kernels.get(kernel as usize).ok_or_else(broken)?;
        let module = function.modules.get_mut(entry.module).ok_or_else(broken)?;
        module.used = true;
        module.memory.expose_pool(self.plan.pool_bytes).map_err(mapping)?;
        module.memory.provide_scratch(shared_bytes).map_err(mapping)?;
        let (prints_at, prints_bytes) = prints;
        let record =
            LaunchRecord { grid, block, shared_bytes, shared_at: SCRATCH_AT, prints_at, prints_bytes };
        module.memory.write_call(&record, slots);
        if let Some(buffers) = &function.checked {
            let bounds = Bounds::new(buffers, self.plan, function.weights_at, &module.low, shared_bytes);
            let (count, entries) = bounds.to_bytes();
            module.memory.write_bounds(count, &entries).map_err(mapping)?;
        }

        let blocks: u64 = grid.iter().copied().map(u64::from).product();
        // The kernel's speed on these sizes is not known: start with one block and increase the range.
        let (mut first, mut count) = (0, 1);
        let mut before = now_ns();
        while first < blocks {
            count = count.min(blocks - first);
            let function = &mut *self.function;
            let entry = &function.kernels[kernel as usize];
            let ran = entry.code.call(&mut function.store, (ARGS_AT, LAUNCH_AT, first, count));
            if let Err(error) = ran {
                return Err(match self.alarm.is_some_and(Ringing::rang) {
                    true => too_late(Some(kernel)),
                    false => self.trap(kernel, shared_bytes, &error),
                });
            }
            first += count;
            let now = self.check_deadline(Some(kernel))?;
            count = next_range(count, now - before);
            before = now;
        }
        Ok(())
    }

    /// A kernel's trap in words: the reason that is known, or the trap's own text (wasmtime adds host addresses to some).
    #[cold]
    fn trap(&self, kernel: u32, shared_bytes: u32, error: &wasmtime::Error) -> Fault {
        let entry = &self.function.kernels[kernel as usize];
        let trap = error.downcast_ref::<wasmtime::Trap>();
        let left = trap.filter(|trap| **trap == wasmtime::Trap::UnreachableCodeReached);
        let left = left.and_then(|_| self.reason(entry.module, shared_bytes));
        let why = match (left, trap) {
            (Some(reason), _) => reason,
            (None, Some(trap)) => {
                let cause = trap.to_string();
                format!("trapped: {}", cause.strip_prefix("wasm trap: ").unwrap_or(&cause))
            }
            (None, None) => "trapped: it cannot be called".to_owned(),
        };
        let message = format!("kernel `{}` {why}", entry.name);
        Fault { code: FaultCode::KernelTrap, kernel: Some(kernel), message }
    }

    /// Why a kernel of a module gave up, where that is known: a check of it failed, or it says so itself.
    fn reason(&self, module: usize, shared_bytes: u32) -> Option<String> {
        let function = &*self.function;
        let module = &function.modules[module];
        let stray = module.memory.stray().and_then(|written| Stray::read(&written));
        let Some((stray, buffers)) = stray.zip(function.checked.as_ref()) else {
            return module.memory.reason().map(|reason| format!("at {reason}"));
        };
        let bounds = Bounds::new(buffers, self.plan, function.weights_at, &module.low, shared_bytes);
        let place = module.lines.of(stray.place);
        let place = place.unwrap_or_else(|| {
            format!("byte {} of the code (its line is known once it is built with --debug)", stray.place)
        });
        Some(format!("{}, at {place}", bounds.describe(&stray)))
    }

    /// Collects the slots of a parameter list, with addresses filled in.
    fn write_params<'s>(
        &self,
        params: std::ops::Range<usize>,
        slots: &'s mut [u64; MAX_SLOTS],
    ) -> Result<&'s [u64], Fault> {
        let table = &self.plan.params;
        let list = table.params.get(params).ok_or_else(broken)?;
        let (Some(first), Some(last)) = (list.first(), list.last()) else {
            return Ok(&[]);
        };
        let (start, end) = (first.slot as usize, last.slot as usize + last.bytes.div_ceil(8) as usize);
        let from = table.slots.get(start..end).ok_or_else(broken)?;
        let slots = slots.get_mut(..from.len()).ok_or_else(broken)?;
        slots.copy_from_slice(from);
        // Relocations lie in the order of their slots.
        let behind = table.relocations.partition_point(|r| (r.slot as usize) < start);
        for relocation in table.relocations[behind..].iter().take_while(|r| (r.slot as usize) < end) {
            let base = match relocation.space {
                Space::Pool => POOL_AT,
                Space::Weights => self.function.weights.as_ref().map_or(0, |weights| weights.at),
            };
            slots[relocation.slot as usize - start] = base + relocation.addend;
        }
        Ok(slots)
    }

    /// The current time, or the fault that the deadline has passed.
    fn check_deadline(&self, kernel: Option<u32>) -> Result<u64, Fault> {
        let now = now_ns();
        if now <= self.deadline_ns { Ok(now) } else { Err(too_late(kernel)) }
    }
}

#[cold]
fn too_late(kernel: Option<u32>) -> Fault {
    Fault { code: FaultCode::Deadline, kernel, message: "the deadline passed while it ran".to_owned() }
}

/// The next number of blocks after `count` took `took_ns`.
fn next_range(count: u64, took_ns: u64) -> u64 {
    let fitting = u128::from(count) * u128::from(RANGE_NS) / u128::from(took_ns.max(1));
    u64::try_from(fitting).unwrap_or(u64::MAX).clamp(1, count.saturating_mul(8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_grow_fast_and_settle_at_the_aim() {
        assert_eq!(next_range(1, 0), 8);
        assert_eq!(next_range(1000, 1_500_000), 500);
        assert_eq!(next_range(1, u64::MAX), 1);
        assert_eq!(next_range(u64::MAX, 1), u64::MAX);
    }
}
