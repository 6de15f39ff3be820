//! Compositions that are not linked: their steps run as consecutive calls, each as any other call of the caller's, with what they
//! pass on in memory of the supervisor's (`value`; `calls`: one call; `items`: a step that runs for each item, and inputs in pieces). One task runs a composition, whose answer is given once, like that
//! of a single call; whoever gives it earlier (a deadline, a cancellation, a client that leaves) ends the call that runs at that time.
//!
//! ```text
//! inputs ──► step ──prepare, submit──► device ──StepReply──► outputs ──► next step … ──copied──► the caller's regions, the answer
//! ```

mod calls;
mod items;
mod step_reply;
mod value;

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pappus_blueprint::compose::{Source, Step, Steps};
use pappus_proto::limits::{MAX_INLINE_BYTES, MAX_ITEMS};
use pappus_proto::v1::item::Source as ItemSource;
use pappus_proto::v1::response::Body;
use pappus_proto::{Code, v1};
use pappus_protocol::now_ns;
use pappus_shmem::memfd;
use tokio::sync::oneshot;

use self::value::{OwnMemory, Piece, Value, read_parts};
use super::invoke::{self, Arrived};
use super::invoke_error::{InvokeError, ValueError};
use super::reply_handle::ReplyHandle;
use super::seat::Seat;
use super::{refusals, responses};
use crate::arena::Arena;
use crate::call::Completion;
use crate::client_memfd::ClientMemfd;
use crate::function::Loaded;
use crate::quota::Limit;
use crate::refusal::{Refusable, internal};
use crate::session::SessionError;
use crate::tenants::Taken;

pub(super) use self::step_reply::StepReply;

/// Outputs of a step come in its answer up to so many bytes in all: less than a memfd costs.
const IN_ANSWER_BYTES: u64 = 64 << 10;
/// Outputs of a step, by name.
type Outputs = Vec<(String, Value)>;

/// Runs a composition, and answers it.
pub(super) async fn run(
    seat: Arc<Seat>,
    handle: Arc<ReplyHandle>,
    arrived: Arrived,
    function: Arc<Loaded>,
    memory: Taken,
) {
    let Some(steps) = &function.steps else { return };
    let Arrived { message: request, descriptors, arenas, at_ns, turn, .. } = arrived;
    let deadline = invoke::deadline(&request, &seat.ctx.server.settings());
    let body = match turn {
        Some(_) => refusals::to_body(&InvokeError::from(SessionError::Stateless)),
        None => {
            let mut run = Run {
                seat: &seat,
                handle: &handle,
                function: &function,
                steps,
                request: &request,
                at_ns,
                deadline,
                timings: v1::Timings::default(),
                devices: Vec::new(),
                memories: Vec::new(),
                own: HashMap::new(),
            };
            run.all(descriptors, &arenas).await.unwrap_or_else(|error| Body::Error(*error))
        }
    };
    handle.finish(body);
    drop(memory);
}

/// A composition that runs.
struct Run<'a> {
    seat: &'a Arc<Seat>,
    handle: &'a Arc<ReplyHandle>,
    function: &'a Loaded,
    steps: &'a Steps,
    request: &'a v1::Invoke,
    at_ns: u64,
    deadline: Duration,
    /// Sums over all calls.
    timings: v1::Timings,
    /// Where calls ran, each device once.
    devices: Vec<String>,
    /// Memory that was made for it: what nothing holds any more is used again.
    memories: Vec<Arc<OwnMemory>>,
    /// Functions of the composition's owner, by name.
    own: HashMap<&'a str, Arc<Loaded>>,
}

/// An error that the composition is answered with.
type Failed = Box<v1::Error>;

fn refused(why: &dyn Refusable) -> Failed {
    Box::new(refusals::to_error(why))
}

/// An answer that is an error.
fn failed(body: Body) -> Failed {
    match body {
        Body::Error(error) => Box::new(error),
        _ => refused(&internal("a call has an answer of another kind", "no error, nor outputs")),
    }
}

impl Run<'_> {
    async fn all(&mut self, descriptors: Vec<ClientMemfd>, arenas: &[Arc<Arena>]) -> Result<Body, Failed> {
        let check = invoke::check_version(self.request, self.function.versions, !self.is_own())
            .and_then(|()| invoke::check(self.request, &descriptors, arenas, &self.function.blueprint, &[]));
        check.map_err(|why| refused(&why))?;
        // What is named, places of outputs and functions: as much again as the steps that name them.
        let named = self.seat.ctx.take(Limit::RequestBytes, self.steps.approx_bytes as u64);
        let _named = named.map_err(|why| refused(&why))?;
        let mut inputs = self.inputs(descriptors, arenas).await?;
        let constants = self.steps.constants.iter().map(|constant| {
            let array = v1::ArrayType { dtype: constant.dtype.name().into(), shape: constant.shape.clone() };
            Ok(Value { pieces: vec![self.keep(&constant.bytes)?], array: Some(array) })
        });
        let constants = constants.collect::<Result<Vec<_>, Failed>>()?;
        // Those of the composition's owner are as they are now for the whole call; grants of others are looked at again.
        for step in self.steps.steps.iter().filter(|step| !step.function.contains('/')) {
            if !self.own.contains_key(&*step.function) {
                let function = self.function_of(step).await.map_err(|error| self.told(step, error))?;
                self.own.insert(&step.function, function);
            }
        }
        let mut made: Vec<Outputs> = Vec::with_capacity(self.steps.steps.len());
        let (uses, checked) = (Uses::of(self.steps), self.request.checked);
        for (at, step) in self.steps.steps.iter().enumerate() {
            let pieces = |source: &Source| match source {
                Source::Input(at) => inputs.get(*at).map_or(0, |value| value.pieces.len()),
                // Of these each is one.
                Source::Constant(_) | Source::Output { .. } => 1,
            };
            if step.inputs.iter().map(|(_, source)| pieces(source)).sum::<usize>() > MAX_ITEMS {
                self.join(&mut inputs).await?;
            }
            let of = |source: &Source| find(source, &inputs, &constants, &made);
            let given = step.inputs.iter().map(|(name, source)| Some((name.clone(), of(source)?)));
            let given = given.collect::<Option<Vec<_>>>().ok_or_else(|| self.gone(step));
            let outputs = match given {
                Ok(given) => self.step(step, given, |outputs| uses.kept(at, outputs, checked)).await,
                Err(why) => Err(why),
            };
            made.push(outputs.map_err(|error| self.told(step, error))?);
            let over = made.iter_mut().zip(&uses.last).filter(|(_, last)| **last <= at);
            over.for_each(|(outputs, _)| *outputs = Outputs::new());
        }
        let results = self.steps.outputs.iter().map(|(name, source)| {
            let value = find(source, &inputs, &constants, &made);
            let value = value.ok_or_else(|| match source {
                Source::Output { step, .. } => {
                    let step = &self.steps.steps[*step];
                    self.told(step, self.gone(step))
                }
                Source::Input(_) | Source::Constant(_) => self.no_value(name),
            })?;
            Ok((name.as_str(), value))
        });
        let results = results.collect::<Result<Vec<_>, Failed>>()?;
        self.answer(results, arenas).await
    }

    /// What the call brings, by the composition's inputs. What came in descriptors is copied: each of them is good for one call.
    async fn inputs(
        &mut self,
        descriptors: Vec<ClientMemfd>,
        arenas: &[Arc<Arena>],
    ) -> Result<Vec<Value>, Failed> {
        let descriptors = Arc::new(descriptors);
        let mut values = Vec::with_capacity(self.steps.inputs.len());
        for name in &self.steps.inputs {
            let Some(input) = self.request.inputs.iter().find(|input| input.name == *name) else {
                return Err(refused(&InvokeError::Missing(name.clone())));
            };
            let mut pieces = Vec::with_capacity(input.items.len());
            for item in &input.items {
                pieces.push(match &item.source {
                    Some(ItemSource::Inline(bytes)) => Piece::Inline(bytes.clone(), None),
                    Some(ItemSource::Region(region)) => {
                        let arena = arenas.iter().find(|arena| arena.id == region.arena);
                        let arena = arena.cloned().ok_or_else(|| self.no_value(name))?;
                        Piece::Caller { arena, offset: region.offset, bytes: region.bytes }
                    }
                    Some(ItemSource::Descriptor(passed)) => self.copy(&descriptors, *passed).await?,
                    None => return Err(self.no_value(name)),
                });
            }
            values.push(Value { pieces, array: input.r#type.clone() });
        }
        Ok(values)
    }

    fn no_value(&self, name: &str) -> Failed {
        refused(&InvokeError::Input { name: name.to_owned(), why: ValueError::NoSource })
    }

    /// Copies bytes of a descriptor, on a thread of the caller's.
    async fn copy(&mut self, from: &Arc<Vec<ClientMemfd>>, passed: v1::Descriptor) -> Result<Piece, Failed> {
        let memory = self.memory(passed.bytes)?;
        let (from, to) = (from.clone(), memory.clone());
        self.on_thread(move || {
            let mut end = 0;
            read_parts(&from[passed.index as usize], passed.offset, passed.bytes, &mut |part| {
                to.write(end, part)?;
                end += part.len() as u64;
                Ok(())
            })
        })
        .await?;
        Ok(Piece::Own { memory, offset: 0, bytes: passed.bytes })
    }

    /// Reads or writes memory of the caller's, which may take as long as the caller likes, until the deadline.
    async fn on_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, Failed> {
        let (done, outcome) = oneshot::channel();
        let ctx = &self.seat.ctx;
        ctx.server.client_io.run(ctx.account.tenant, move || drop(done.send(work())));
        match tokio::time::timeout(self.left(), outcome).await {
            Ok(Ok(Ok(done))) => Ok(done),
            Ok(Ok(Err(why))) => Err(refused(&InvokeError::Unreadable(why))),
            Ok(Err(_)) => Err(refused(&internal("cannot copy what the caller brings or gets", "a panic"))),
            Err(_) => Err(failed(responses::never_copied(self.deadline))),
        }
    }

    /// The time until the deadline; none once that has passed.
    fn left(&self) -> Duration {
        let end_ns = self.at_ns.saturating_add(self.deadline.as_nanos() as u64);
        Duration::from_nanos(end_ns.saturating_sub(now_ns()))
    }

    /// Memory of at least so many bytes: its pages, and what workers map, are there where it was used before.
    fn memory(&mut self, bytes: u64) -> Result<Arc<OwnMemory>, Failed> {
        // An arena has a byte at least.
        let bytes = bytes.max(1);
        let is_free = |memory: &&Arc<OwnMemory>| Arc::strong_count(memory) == 1 && memory.bytes() >= bytes;
        if let Some(memory) = self.memories.iter().filter(is_free).min_by_key(|memory| memory.bytes()) {
            return Ok(memory.clone());
        }
        // What is free is too little.
        self.memories.retain(|memory| Arc::strong_count(memory) > 1);
        let ctx = &self.seat.ctx;
        let memory = OwnMemory::new(&ctx.server, &ctx.account, bytes).map_err(|why| refused(&*why))?;
        self.memories.push(memory.clone());
        Ok(memory)
    }

    /// Bytes for calls to come.
    fn keep(&mut self, bytes: &[u8]) -> Result<Piece, Failed> {
        if bytes.len() as u64 <= IN_ANSWER_BYTES {
            return self.inline(Bytes::copy_from_slice(bytes));
        }
        let memory = self.memory(bytes.len() as u64)?;
        memory.write(0, bytes).map_err(|why| self.not_written(why))?;
        Ok(Piece::Own { memory, offset: 0, bytes: bytes.len() as u64 })
    }

    /// Bytes that go in messages, which the caller is charged for.
    fn inline(&self, bytes: Bytes) -> Result<Piece, Failed> {
        let taken = self.taken(bytes.len() as u64)?;
        Ok(Piece::Inline(bytes, Some(Arc::new(taken))))
    }

    /// What the caller is charged for bytes that go in messages.
    fn taken(&self, bytes: u64) -> Result<Taken, Failed> {
        self.seat.ctx.take(Limit::RequestBytes, bytes).map_err(|why| refused(&why))
    }

    /// Has so many bytes copied between memory of the supervisor's: where that takes a while, other tasks go on meanwhile.
    async fn copying<T>(&self, bytes: u64, copy: impl FnOnce() -> T) -> T {
        let ctx = &self.seat.ctx;
        match bytes > IN_ANSWER_BYTES {
            true => ctx.server.registry.threads.run_here(ctx.whose(), copy).await,
            false => copy(),
        }
    }

    fn not_written(&self, why: std::io::Error) -> Failed {
        refused(&internal("cannot write a composition's memory", why))
    }

    /// Calls a function as often as its step says, each time with outputs of the time before.
    async fn times(
        &mut self,
        step: &Step,
        function: &Arc<Loaded>,
        mut given: Outputs,
    ) -> Result<Outputs, Failed> {
        let mut outputs = self.call(function, &given).await?;
        for _ in 1..step.times {
            for (from, to) in &step.feed {
                let value = outputs.iter().find(|(name, _)| name == from).map(|(_, value)| value.clone());
                let place = given.iter_mut().find(|(name, _)| name == to);
                let (Some(value), Some(place)) = (value, place) else { return Err(self.gone(step)) };
                place.1 = value;
            }
            // What is over gives its memory back first.
            outputs.clear();
            outputs = self.call(function, &given).await?;
        }
        Ok(outputs)
    }

    /// A step cannot run as it was registered.
    fn gone(&self, step: &Step) -> Failed {
        let message = format!(
            "function `{}` is another one than when this composition was registered: register the composition again",
            step.function
        );
        Box::new(v1::Error::new(Code::InvalidArgument, message))
    }

    /// What the caller is told of an error of a step: its owner, which step it was.
    fn told(&self, step: &Step, mut error: Failed) -> Failed {
        if self.is_own() {
            let place = if error.place.is_empty() { String::new() } else { format!(", {}", error.place) };
            error.place = format!("step {}{place}", step.name);
            return error;
        }
        // Of others only what speaks of the call and the caller alone: no name, no size and no place.
        let hidden = "this function does not run with these inputs, or not any more; its owner can see why";
        let code = match error.code() {
            Code::NotFound | Code::PermissionDenied | Code::Unsupported => Code::InvalidArgument,
            code => code,
        };
        let message = match code {
            Code::DeadlineExceeded
            | Code::Cancelled
            | Code::ResourceExhausted
            | Code::WorkerLost
            | Code::Overrun => std::mem::take(&mut error.message),
            Code::KernelFault => "the function failed where it ran; only its owner is told more".to_owned(),
            Code::OutOfMemory => {
                "this function needs more memory than a device has; its owner can see how much".to_owned()
            }
            Code::Quarantined => {
                "a step of this function failed too often in a row for this caller, and is in quarantine"
                    .to_owned()
            }
            _ => hidden.to_owned(),
        };
        let told = v1::Error::new(code, message);
        Box::new(if error.retryable { told.retry(error.retry_after_ms) } else { told })
    }

    /// Why the owner of the composition cannot have a function now, which others are not told.
    fn of_owner(&self, mut error: Failed) -> Failed {
        if !self.is_own() {
            error.message = "a step of this function cannot be had now; its owner can see why".to_owned();
            error.place.clear();
        }
        error
    }

    /// True if the caller is the composition's owner.
    fn is_own(&self) -> bool {
        self.function.owner == self.seat.ctx.account.tenant
    }

    /// Copies the results to where the caller wants them, and says so.
    async fn answer(&mut self, results: Vec<(&str, Value)>, arenas: &[Arc<Arena>]) -> Result<Body, Failed> {
        if self.handle.is_over() {
            return Err(failed(responses::cancelled()));
        }
        let (mut copies, mut outputs, mut in_answer) = (Vec::new(), Vec::new(), 0);
        for (name, value) in results {
            let bytes = value.bytes();
            let wanted = self.request.outputs.iter().find(|output| output.name == name);
            let refuse = |why| refused(&InvokeError::Output { name: name.to_owned(), why });
            let place = match wanted.map(|output| &output.region) {
                None => None,
                Some(None) => {
                    in_answer += bytes;
                    if in_answer > MAX_INLINE_BYTES {
                        return Err(refuse(ValueError::InlineOutput { bytes }));
                    }
                    Some(Place::Answer)
                }
                Some(Some(region)) if region.bytes < bytes => {
                    return Err(refuse(ValueError::RegionTooSmall { bytes, region: region.bytes }));
                }
                Some(Some(region)) => {
                    let arena = arenas.iter().find(|arena| arena.id == region.arena).cloned();
                    let arena = arena.ok_or_else(|| refuse(ValueError::NoArena(region.arena)))?;
                    Some(Place::Region(arena, region.offset))
                }
            };
            let v1::ArrayType { dtype, shape } = value.array.clone().unwrap_or_default();
            outputs.push(v1::OutputValue {
                name: name.to_owned(),
                bytes,
                dtype,
                shape,
                ..Default::default()
            });
            copies.push((value, place));
        }
        let copied =
            self.on_thread(move || copies.into_iter().map(|(value, place)| copy(&value, place)).collect());
        let copied: Vec<Vec<u8>> = copied.await?;
        for (output, inline) in outputs.iter_mut().zip(copied) {
            output.inline = inline.into();
        }
        let v1::Timings { copy_in_ns, execute_ns, copy_out_ns, clear_ns, .. } = self.timings;
        let total_ns = now_ns().saturating_sub(self.at_ns);
        let at_work = copy_in_ns + execute_ns + copy_out_ns + clear_ns;
        let timings = v1::Timings { queued_ns: total_ns.saturating_sub(at_work), total_ns, ..self.timings };
        Ok(Body::Invoked(v1::Invoked {
            outputs,
            timings: Some(timings),
            device: self.devices.join(", "),
            deadline_ns: self.deadline.as_nanos() as u64,
            number: self.function.record.number,
        }))
    }
}

/// Where the caller wants a result.
enum Place {
    /// In the answer.
    Answer,
    /// In an arena of its own, at this offset.
    Region(Arc<Arena>, u64),
}

/// Copies a result; returns the bytes that go into the answer.
fn copy(value: &Value, place: Option<Place>) -> std::io::Result<Vec<u8>> {
    let mut inline = Vec::new();
    match place {
        None => {}
        Some(Place::Answer) => value.read(|bytes| {
            inline.extend_from_slice(bytes);
            Ok(())
        })?,
        Some(Place::Region(arena, mut offset)) => value.read(|bytes| {
            memfd::write_all_at(arena.memfd.as_fd(), offset, bytes)?;
            offset += bytes.len() as u64;
            Ok(())
        })?,
    }
    Ok(inline)
}

/// The value of a source; none where a function has other outputs than when the composition was registered.
fn find(source: &Source, inputs: &[Value], constants: &[Value], made: &[Outputs]) -> Option<Value> {
    match source {
        Source::Input(at) => inputs.get(*at).cloned(),
        Source::Constant(at) => constants.get(*at).cloned(),
        Source::Output { step, output } => {
            let outputs = made.get(*step)?;
            let found = match output {
                Some(name) => outputs.iter().find(|(known, _)| known == name),
                None => outputs.first(),
            };
            found.map(|(_, value)| value.clone())
        }
    }
}

/// Which outputs of steps are used, and how long.
struct Uses<'a> {
    /// Of each step: the last one that uses an output of it, which may be the step itself; the largest number where a result does.
    last: Vec<usize>,
    /// Outputs by step and name; without a name, the only one.
    named: HashSet<(usize, Option<&'a str>)>,
}

impl<'a> Uses<'a> {
    fn of(steps: &'a Steps) -> Self {
        let (mut last, mut named): (Vec<usize>, _) = ((0..steps.steps.len()).collect(), HashSet::new());
        let users = steps.steps.iter().enumerate();
        let used = users.flat_map(|(at, step)| step.inputs.iter().map(move |(_, source)| (at, source)));
        for (at, source) in used.chain(steps.outputs.iter().map(|(_, source)| (usize::MAX, source))) {
            if let Source::Output { step, output } = source {
                last[*step] = last[*step].max(at);
                named.insert((*step, output.as_deref()));
            }
        }
        Self { last, named }
    }

    /// The outputs of a step that are used: a function may give many that the composition does not name. None where the
    /// composition uses the only output of a step that gives several by now.
    fn kept(&self, step: usize, mut outputs: Outputs, checked: bool) -> Option<Outputs> {
        match self.named.contains(&(step, None)) {
            false => outputs.retain(|(name, _)| self.named.contains(&(step, Some(name)))),
            // A checked call gives all its buffers behind the outputs.
            true if checked => outputs.truncate(1),
            true if outputs.len() != 1 => return None,
            true => {}
        }
        Some(outputs)
    }
}

#[cfg(test)]
mod tests {
    use pappus_blueprint::compose;

    use super::*;

    #[test]
    fn outputs_are_kept_that_are_used_and_as_long_as_that() {
        let text = r#"{"inputs": ["p"], "steps": [
            {"name": "a", "function": "f", "inputs": {"x": "p"}},
            {"name": "b", "function": "f", "inputs": {"x": {"step": "a", "output": "y"}}},
            {"name": "c", "function": "f", "inputs": {"x": {"step": "b"}}},
            {"name": "d", "function": "f", "inputs": {"x": "p"}}],
            "outputs": {"r": {"step": "a", "output": "z"}, "s": {"step": "c"}}}"#;
        let steps = compose::steps(text.as_bytes()).unwrap();
        let uses = Uses::of(&steps);
        assert_eq!(uses.last, [usize::MAX, 2, usize::MAX, 3]);
        let kept = |step: usize, names: &[&str], checked: bool| {
            let outputs = names.iter().map(|name| ((*name).to_owned(), Value::default())).collect();
            let kept = uses.kept(step, outputs, checked)?;
            Some(kept.into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(kept(0, &["w", "y", "z"], false).unwrap(), "y z");
        assert_eq!(kept(3, &["y"], false).unwrap(), "", "nobody uses it");
        assert_eq!(kept(1, &["y"], false).unwrap(), "y");
        assert_eq!((kept(1, &["y", "z"], false), kept(1, &[], false)), (None, None));
        assert_eq!(kept(1, &["y", "x"], true).unwrap(), "y");
    }
}
