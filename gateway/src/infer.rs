//! One inference, from bytes to bytes, whichever protocol it came by: a call of a function, with what is large in shared memory.
//!
//! ```text
//! tensors ──up to 1 MiB──► inline ──┐            ┌──► outputs in the answer
//!         └──more──► an arena ──────┴─► a call ──┼──► too large for it: refused with the size ──► an arena, and the call again
//!                                                └──► the function was replaced ──► its new form, and the call again
//! ```
//!
//! To drop the future is to cancel the call. Arenas are of one call, and closed with it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pappus_blueprint::DType;
use pappus_client::aio::Client;
use pappus_client::arena::aligned;
use pappus_client::{Arena, Error, Invocation, v1};

use crate::callers::Caller;
use crate::counted::Counted;
use crate::failure::{Failure, Result};
use crate::limits::{MAX_INLINE_BYTES, MAX_RANK, MAX_TENSORS};
use crate::memory::Share;
use crate::model::Model;
use crate::models;
use crate::sequences::InSequence;
use crate::shared_memory::Place;
use crate::traces::Origin;

/// An input of a request.
#[derive(Debug, Clone)]
pub struct Given {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// Elements along each dimension.
    pub shape: Vec<u64>,
    /// Its elements, as the function takes them.
    pub bytes: Bytes,
}

/// An output that is asked for.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Its name.
    pub name: String,
    /// Where in shared memory it goes; none where it comes with the answer.
    pub place: Option<Place>,
}

/// An inference that is asked for.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// The model's name.
    pub model: String,
    /// Its version; empty for the current one.
    pub version: String,
    /// Inputs.
    pub inputs: Vec<Given>,
    /// Outputs; empty for all.
    pub outputs: Vec<Wanted>,
    /// The sequence of requests that it is in, if any.
    pub sequence: Option<InSequence>,
    /// How long the call may take; none for the supervisor's default.
    pub deadline: Option<Duration>,
    /// Where the request comes from.
    pub origin: Origin,
    /// The function whose declared types the inputs have, where the request says none: the call is for no other one.
    pub made_for: Option<Arc<Model>>,
}

/// An output.
#[derive(Debug, Clone)]
pub struct Output {
    /// Its name.
    pub name: String,
    /// Its element type; bytes where the function declares none.
    pub dtype: DType,
    /// Elements along each dimension.
    pub shape: Vec<u64>,
    /// Its elements; none where they are in shared memory.
    pub bytes: Bytes,
    /// True if its elements are in shared memory, where the request wanted them.
    pub placed: bool,
}

/// What an inference gave.
#[derive(Debug)]
pub struct Inferred {
    /// The model.
    pub model: Arc<Model>,
    /// The number of the version that ran.
    pub version: u32,
    /// In the order in which they were asked for.
    pub outputs: Vec<Output>,
}

/// Does one inference, has its answer made, and counts it. What it takes in memory beside the request is taken of the request's share.
pub async fn infer<T>(
    caller: &Caller,
    asked: &Asked,
    share: &Share,
    answer: impl FnOnce(Inferred) -> Result<T>,
) -> Result<T> {
    let began = Instant::now();
    check(asked)?;
    let mut model = match &asked.made_for {
        Some(model) => model.clone(),
        None => models::find(caller, &asked.model, &asked.version).await?,
    };
    let mut counted = Counted::new(caller, &asked.origin, &model, began);
    let ran = within(caller, &mut model, &mut counted, asked, share).await;
    let answered = ran.and_then(|Ran { outputs, timings, version }| {
        let outputs = placed(outputs, asked, share)?;
        Ok((answer(Inferred { model: model.clone(), version, outputs })?, timings))
    });
    counted.ended(answered.as_ref().map(|(_, timings)| timings));
    if let Err(failure) = &answered {
        caller.heed(failure);
        let (request, code) = (&*asked.origin.request_id, failure.row().name);
        tracing::debug!(request, model = model.name, code, "an inference failed");
    }
    answered.map(|(answer, _)| answer)
}

/// The outputs, those in shared memory that the request wants there.
fn placed(mut outputs: Vec<Output>, asked: &Asked, share: &Share) -> Result<Vec<Output>> {
    // Once as received, once in the answer; what came through an arena has its memory already, and little is left beside it.
    let inline: usize = outputs
        .iter()
        .map(|output| output.bytes.len())
        .filter(|bytes| *bytes <= MAX_INLINE_BYTES as usize)
        .sum();
    share.take(2 * inline)?;
    for (output, wanted) in outputs.iter_mut().zip(&asked.outputs) {
        if let Some(place) = &wanted.place {
            place.write(&output.bytes).map_err(|failure| failure.at(format!("output {}", output.name)))?;
            (output.bytes, output.placed) = (Bytes::new(), true);
        }
    }
    Ok(outputs)
}

/// What does not depend on the function.
fn check(asked: &Asked) -> Result<()> {
    if asked.inputs.len() > MAX_TENSORS || asked.outputs.len() > MAX_TENSORS {
        return Err(Failure::invalid(format!("more than {MAX_TENSORS} inputs or outputs")));
    }
    let mut names = HashSet::new();
    for input in &asked.inputs {
        let wrong = |why: String| Failure::invalid(why).at(format!("input {}", input.name));
        if !names.insert(&*input.name) {
            return Err(wrong("it is given twice".to_owned()));
        }
        if input.shape.len() > MAX_RANK {
            return Err(wrong(format!("more than {MAX_RANK} dimensions")));
        }
        let elements = input.shape.iter().try_fold(1u64, |product, n| product.checked_mul(*n));
        let bytes = elements.and_then(|elements| elements.checked_mul(input.dtype.bytes()));
        if bytes != Some(input.bytes.len() as u64) {
            return Err(wrong(format!(
                "it has {} bytes, which are not shape {:?} of {}",
                input.bytes.len(),
                input.shape,
                crate::data_type::name_of(input.dtype)
            )));
        }
    }
    Ok(())
}

/// An arena of one call, closed when it is dropped.
struct CallArena<'a> {
    client: &'a Client,
    arena: Option<Arena>,
}

impl CallArena<'_> {
    async fn open(client: &Client, bytes: u64) -> Result<CallArena<'_>> {
        Ok(CallArena { client, arena: Some(client.open_arena(bytes.max(1)).await?) })
    }

    fn get(&mut self) -> Result<&mut Arena> {
        // It is there until it is dropped.
        self.arena.as_mut().ok_or_else(|| Error::Lost.into())
    }
}

impl Drop for CallArena<'_> {
    fn drop(&mut self) {
        if let Some(arena) = self.arena.take() {
            self.client.close_arena(arena);
        }
    }
}

/// What a call gave.
struct Ran {
    outputs: Vec<Output>,
    timings: v1::Timings,
    version: u32,
}

/// Calls the function, in the request's sequence where it is in one.
async fn within(
    caller: &Caller,
    model: &mut Arc<Model>,
    counted: &mut Counted,
    asked: &Asked,
    share: &Share,
) -> Result<Ran> {
    let Some(named) = &asked.sequence else {
        if model.has_state {
            let why =
                "this model keeps state: name a sequence (sequence_id), and begin it with sequence_start";
            return Err(Failure::invalid(why).at("sequence_id"));
        }
        return call_current(caller, (&caller.client, 0), model, counted, asked, share).await;
    };
    let function = model.function.clone();
    let sequence = caller.sequences().of(&caller.client, &function, named).await?;
    let place = (&sequence.client, sequence.session);
    let answer = call_current(caller, place, model, counted, asked, share).await;
    let is_over = match &answer {
        Ok(_) => named.end,
        // Any other error leaves it as it was, so that the request can be sent again.
        Err(failure) => failure.is_session_lost() || sequence.client.is_over(),
    };
    if is_over {
        sequence.end().await;
    }
    answer
}

/// Calls the function as it is now: once more where it was replaced since the gateway learnt of it.
async fn call_current(
    caller: &Caller,
    (client, session): (&Client, u64),
    model: &mut Arc<Model>,
    counted: &mut Counted,
    asked: &Asked,
    share: &Share,
) -> Result<Ran> {
    let answer = call(client, session, model, asked, share).await;
    // Inputs that have the types of one function may be none of another's: the failure says that the function was replaced.
    if asked.made_for.is_some() || !answer.as_ref().is_err_and(Failure::is_replaced) {
        return answer;
    }
    *model = models::look(caller, &asked.model, &asked.version).await?;
    counted.counts_for(caller, model);
    call(client, session, model, asked, share).await
}

async fn call(client: &Client, session: u64, model: &Model, asked: &Asked, share: &Share) -> Result<Ran> {
    // As the supervisor counts them: each begins at a multiple of eight.
    let bytes: u64 = asked.inputs.iter().map(|input| (input.bytes.len() as u64).next_multiple_of(8)).sum();
    let mut invocation = Invocation::new(&model.function).made_for(model.number).session(session);
    // It is declared before the call: closed only behind what cancels the call.
    let mut inputs = None;
    if bytes <= MAX_INLINE_BYTES {
        for input in &asked.inputs {
            invocation = invocation.input(&input.name, input.bytes.clone());
        }
    } else {
        let room = asked.inputs.iter().map(|input| aligned(input.bytes.len() as u64)).sum();
        take(share, room)?;
        let arena = inputs.insert(CallArena::open(client, room).await?);
        for input in &asked.inputs {
            let region = arena.get()?.store(&input.bytes)?;
            invocation = invocation.input(&input.name, region);
        }
    }
    for input in &asked.inputs {
        invocation = invocation.typed(&input.name, input.dtype.name(), &input.shape);
    }
    if let Some(deadline) = asked.deadline {
        invocation = invocation.deadline(deadline);
    }
    if !asked.origin.request_id.is_empty() {
        invocation = invocation.request_id(&asked.origin.request_id);
    }
    let names: Vec<&str> = match asked.outputs.is_empty() {
        true => model.outputs.iter().map(|port| &*port.name).collect(),
        false => asked.outputs.iter().map(|wanted| &*wanted.name).collect(),
    };
    // Bytes of the outputs that an answer has no room for.
    let mut large: HashMap<&str, u64> = HashMap::new();
    // Memory that was taken for them: each round's arena is gone before the next one's is there.
    let mut taken = 0;
    loop {
        let mut outputs = None;
        let mut wanted = invocation.clone();
        let mut regions = HashMap::new();
        if large.is_empty() {
            wanted = names.iter().fold(wanted, |wanted, name| wanted.output(name));
        } else {
            let room = large.values().map(|bytes| aligned(*bytes)).fold(0, u64::saturating_add);
            // Once in the arena, once in the answer.
            let needed = room.saturating_mul(2);
            take(share, needed.saturating_sub(taken))?;
            taken = taken.max(needed);
            let arena = outputs.insert(CallArena::open(client, room).await?);
            for name in &names {
                wanted = match large.get(name) {
                    None => wanted.output(name),
                    Some(bytes) => {
                        let region = arena.get()?.alloc(*bytes)?;
                        regions.insert(*name, region);
                        wanted.output_to(name, region)
                    }
                };
            }
        }
        match client.invoke(wanted).await {
            Ok(invoked) => {
                let (timings, version) = (invoked.timings.unwrap_or_default(), invoked.number);
                let outputs = collect(&names, model, invoked.outputs, &regions, outputs.as_mut())?;
                return Ok(Ran { outputs, timings, version });
            }
            Err(Error::Refused(error)) if error.output_bytes > 0 => {
                let place = error.place.strip_prefix("output ").unwrap_or_default();
                match names.iter().find(|name| **name == place) {
                    // Each refusal tells of one output, and of each once, unless its size changes: that is the caller's doing.
                    Some(name) if large.get(name).is_none_or(|known| *known < error.output_bytes) => {
                        large.insert(*name, error.output_bytes);
                    }
                    _ => return Err(error.into()),
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Takes memory for an arena.
fn take(share: &Share, bytes: u64) -> Result<()> {
    share.take(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// The outputs of an answer, in the order in which they were asked for.
fn collect(
    names: &[&str],
    model: &Model,
    values: Vec<v1::OutputValue>,
    regions: &HashMap<&str, v1::Region>,
    mut arena: Option<&mut CallArena<'_>>,
) -> Result<Vec<Output>> {
    let mut by_name: HashMap<String, v1::OutputValue> =
        values.into_iter().map(|value| (value.name.clone(), value)).collect();
    let mut outputs = Vec::with_capacity(names.len());
    for name in names {
        let missing = || Error::Protocol(format!("the supervisor's answer lacks output {name}"));
        let value = by_name.remove(*name).ok_or_else(missing)?;
        let bytes = match (regions.get(name), arena.as_mut()) {
            (Some(region), Some(arena)) => {
                let region = v1::Region { bytes: value.bytes.min(region.bytes), ..*region };
                arena.get()?.load(region)?.into()
            }
            _ => value.inline,
        };
        let declared = model.outputs.iter().find(|port| port.name == *name);
        let dtype = DType::named(&value.dtype).or_else(|| declared.and_then(|port| port.dtype));
        let dtype =
            dtype.filter(|dtype| (bytes.len() as u64).is_multiple_of(dtype.bytes())).unwrap_or(DType::U8);
        let elements = bytes.len() as u64 / dtype.bytes();
        // A shape that the bytes do not have is none.
        let has_shape = !value.dtype.is_empty()
            && value.shape.iter().try_fold(1u64, |product, n| product.checked_mul(*n)) == Some(elements);
        let shape = if has_shape { value.shape } else { vec![elements] };
        outputs.push(Output { name: (*name).to_owned(), dtype, shape, bytes, placed: false });
    }
    Ok(outputs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(shape: &[u64], bytes: usize) -> Asked {
        let input =
            Given { name: "A".into(), dtype: DType::F32, shape: shape.into(), bytes: vec![0; bytes].into() };
        Asked { inputs: vec![input], ..Asked::default() }
    }

    #[test]
    fn a_tensor_has_the_bytes_of_its_shape() {
        assert!(check(&asked(&[2, 3], 24)).is_ok() && check(&asked(&[], 4)).is_ok());
        assert!(check(&asked(&[0, u64::MAX], 0)).is_ok());
        for (shape, bytes) in
            [(&[2, 3][..], 23), (&[2, 3], 6), (&[u64::MAX, 2], 0), (&[1; MAX_RANK + 1], 4), (&[], 0)]
        {
            let why = check(&asked(shape, bytes)).unwrap_err();
            assert_eq!((why.row().http, &*why.place), (400, "input A"), "{shape:?} {bytes}");
        }
        let mut twice = asked(&[2, 3], 24);
        twice.inputs.extend(asked(&[1], 4).inputs);
        assert!(check(&twice).unwrap_err().message.contains("given twice"));
    }
}
