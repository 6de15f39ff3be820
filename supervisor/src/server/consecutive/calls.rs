//! One call of a composition: as any other call of its caller's, but of a function that the composition's owner may call.

use std::sync::Arc;

use pappus_blueprint::compose::Step;
use pappus_proto::limits::MAX_INLINE_BYTES;
use pappus_proto::v1;
use pappus_proto::v1::response::Body;
use tokio::time::Instant;

use super::step_reply::StepReply;
use super::value::{OwnMemory, Piece, Value};
use super::{Failed, IN_ANSWER_BYTES, Outputs, Run, failed, refused};
use crate::arena::Arena;
use crate::call::Completion;
use crate::function::Loaded;
use crate::limits::{CONNECTION_BYTES, MAX_ARENAS_PER_CONNECTION};
use crate::server::invoke::{self, Arrived, Prepared, Thread};
use crate::server::invoke_error::InvokeError;
use crate::server::responses;

/// Outputs in one arena begin at multiples of this.
const ALIGN: u64 = 64;

impl Run<'_> {
    /// The function of a step: the composition's owner calls it.
    pub(super) async fn function_of(&self, step: &Step) -> Result<Arc<Loaded>, Failed> {
        let (ctx, owner, name) = (&self.seat.ctx, &self.function.account, step.function.as_str());
        let registry = &ctx.server.registry;
        let late = || self.handle.answer_late(Instant::now() + self.left(), self.deadline);
        let function = match registry.find(owner, name) {
            Some(function) => function,
            None => {
                let _late = late();
                let permit = self.seat.slow_work_permit().await;
                let _permit = permit.ok_or_else(|| failed(responses::cancelled()))?;
                let loaded = registry.load(ctx.whose(), owner, name).await;
                loaded.map_err(|why| self.of_owner(refused(&why)))?
            }
        };
        // Others' functions are checked by their owners alone.
        let is_own = function.owner == self.function.owner;
        let function = match self.request.checked && is_own {
            false => function,
            true => match function.checked() {
                Some(checked) => checked,
                None => {
                    let _late = late();
                    let made = registry.load_checked(ctx.whose(), owner, name).await;
                    made.map_err(|why| self.of_owner(refused(&why)))?
                }
            },
        };
        match function.steps {
            None => Ok(function),
            // It was another function when the composition was registered.
            Some(_) => Err(self.gone(step)),
        }
    }

    /// Calls a function, and waits for what it gives.
    pub(super) async fn call(&mut self, function: &Arc<Loaded>, given: &Outputs) -> Result<Outputs, Failed> {
        let mut arrived = self.arrived(given).await?;
        let sizes = self.output_bytes(&arrived, function).await?;
        let places = sizes.iter().scan(0u64, |end, bytes| {
            let start = *end;
            *end = end.saturating_add(*bytes).checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX);
            Some((start, *end))
        });
        let places: Vec<(u64, u64)> = places.collect();
        let memory = match places.last() {
            Some((_, total)) if *total > IN_ANSWER_BYTES => Some(self.memory(*total)?),
            _ => None,
        };
        arrived.arenas.extend(memory.iter().map(|memory| memory.arena.clone()));
        let outputs = function.blueprint.returned().iter().zip(sizes).zip(&places);
        let outputs = outputs.map(|((id, bytes), (offset, _))| {
            let name = function.blueprint.buffers()[id.index()].name.clone();
            let region =
                |memory: &Arc<OwnMemory>| v1::Region { arena: memory.arena.id, offset: *offset, bytes };
            v1::Output { name, region: memory.as_ref().map(region) }
        });
        arrived.message.outputs = outputs.collect();
        let done = self.submit(function, arrived).await?;
        let outputs = done.outputs.into_iter().zip(places).map(|(output, (offset, _))| {
            let v1::OutputValue { name, bytes, inline, dtype, shape } = output;
            let piece = match &memory {
                None => self.inline(inline)?,
                Some(memory) => Piece::Own { memory: memory.clone(), offset, bytes },
            };
            let array = (!dtype.is_empty()).then_some(v1::ArrayType { dtype, shape });
            Ok((name, Value { pieces: vec![piece], array }))
        });
        outputs.collect()
    }

    /// A request of these inputs and no outputs yet.
    async fn arrived(&mut self, given: &Outputs) -> Result<Arrived, Failed> {
        let mut inputs = given.clone();
        let pieces = given.iter().flat_map(|(_, value)| &value.pieces);
        let in_message: u64 = pieces.filter(|piece| piece.arena().is_none()).map(Piece::bytes).sum();
        let mut arenas = named(&inputs);
        // No more than a call of a client's own can name: a worker takes each as a descriptor.
        if in_message > MAX_INLINE_BYTES - IN_ANSWER_BYTES || arenas.len() >= MAX_ARENAS_PER_CONNECTION {
            self.put_together(&mut inputs).await?;
            arenas = named(&inputs);
        }
        let message = v1::Invoke {
            inputs: inputs.iter().map(|(name, value)| value.input(name)).collect(),
            deadline_ns: self.deadline.as_nanos() as u64,
            ..v1::Invoke::default()
        };
        let arrived = Arrived::new(message, Vec::new(), arenas, self.at_ns, CONNECTION_BYTES);
        arrived.map_err(|why| refused(&InvokeError::from(why)))
    }

    /// Copies all that is not in the caller's own arenas into one arena.
    async fn put_together(&mut self, inputs: &mut Outputs) -> Result<(), Failed> {
        let is_moved = |piece: &&mut Piece| !piece.is_callers();
        let pieces = inputs.iter_mut().flat_map(|(_, value)| &mut value.pieces);
        let total = pieces.filter(is_moved).map(|piece| piece.bytes()).sum();
        let memory = self.memory(total)?;
        let move_all = || -> std::io::Result<()> {
            let mut end = 0;
            for piece in inputs.iter_mut().flat_map(|(_, value)| &mut value.pieces).filter(is_moved) {
                let (offset, bytes) = (end, piece.bytes());
                piece.read(&mut |part| {
                    memory.write(end, part)?;
                    end += part.len() as u64;
                    Ok(())
                })?;
                *piece = Piece::Own { memory: memory.clone(), offset, bytes };
            }
            Ok(())
        };
        self.copying(total, move_all).await.map_err(|why| self.not_written(why))
    }

    /// Bytes of each output of a request.
    async fn output_bytes(&self, arrived: &Arrived, function: &Loaded) -> Result<Vec<u64>, Failed> {
        let ctx = &self.seat.ctx;
        let ask = |thread| invoke::output_bytes(ctx, arrived, function, thread);
        let sizes = match ask(Thread::Socket) {
            Err(InvokeError::PlanTakesLong) => {
                let _turn = ctx.server.plan_turns.begin(ctx.sharer()).await;
                ctx.server.registry.threads.run_here(ctx.whose(), || ask(Thread::Own)).await
            }
            sizes => sizes,
        };
        sizes.map_err(|why| refused(&why))
    }

    /// Hands a call to a device, and waits for its answer.
    async fn submit(&mut self, function: &Arc<Loaded>, mut arrived: Arrived) -> Result<v1::Invoked, Failed> {
        let ctx = &self.seat.ctx;
        if self.handle.is_over() {
            return Err(failed(responses::cancelled()));
        }
        if self.left().is_zero() {
            return Err(failed(responses::between_steps(self.deadline)));
        }
        let (reply, mut answered) = StepReply::new(self.handle.clone());
        let mut prepare = |thread| invoke::prepare(ctx, reply.clone(), &mut arrived, function, thread);
        let prepared = match prepare(Thread::Socket) {
            // It was made before, and has gone since.
            Err(InvokeError::PlanTakesLong) => {
                ctx.server.registry.threads.run_here(ctx.whose(), || prepare(Thread::Own)).await
            }
            prepared => prepared,
        };
        let Prepared { call, device, inline_bytes } = prepared.map_err(|why| refused(&why))?;
        let accepted = device.submit(call, inline_bytes, None);
        let id = accepted.map_err(|why| {
            failed(responses::not_accepted(&ctx.account, function, &device.config.name, why))
        })?;
        if let Some((device, id)) = reply.placed((device, id)) {
            device.cancel(id);
        }
        drop(reply);
        // Without an answer, the composition was ended meanwhile.
        match answered.recv().await {
            Some(Body::Invoked(done)) => {
                let timings = done.timings.unwrap_or_default();
                self.timings.copy_in_ns += timings.copy_in_ns;
                self.timings.execute_ns += timings.execute_ns;
                self.timings.copy_out_ns += timings.copy_out_ns;
                self.timings.clear_ns += timings.clear_ns;
                if !self.devices.contains(&done.device) {
                    self.devices.push(done.device.clone());
                }
                Ok(done)
            }
            Some(body) => Err(failed(body)),
            None => Err(failed(responses::cancelled())),
        }
    }
}

/// The arenas of these values, each once.
fn named(values: &Outputs) -> Vec<Arc<Arena>> {
    let mut arenas: Vec<Arc<Arena>> = Vec::new();
    for arena in values.iter().flat_map(|(_, value)| &value.pieces).filter_map(Piece::arena) {
        if arenas.iter().all(|known| known.id != arena.id) {
            arenas.push(arena.clone());
        }
    }
    arenas
}
