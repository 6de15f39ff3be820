//! An `Invoke` becomes a call: names to positions, regions to checked ranges, sizes, words and shapes to a plan.
//! Nothing of the client's memory is mapped; the few words that sizes depend on are read once.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use pappus_blueprint::{Array, Blueprint, BufferId, DType, Misfit, Plan, Sizes};
use pappus_proto::limits::{MAX_ARENA_BYTES, MAX_INLINE_BYTES, MAX_ITEMS};
use pappus_proto::v1;
use pappus_proto::v1::item::Source;
use pappus_protocol::to_worker::{DISCARD, Item, STAGING_ARENA, Target};
use pappus_shmem::MemfdError;
use zerocopy::little_endian::U64;

use super::invoke_error::{InvokeError, ValueError};
use super::state::RequestCtx;
use crate::arena::Arena;
use crate::call::{Call, Completion, Inline};
use crate::client_fd::ClientFd;
use crate::client_memfd::ClientMemfd;
use crate::config::Settings;
use crate::device::Device;
use crate::function::{Loaded, Versions};
use crate::quota::Limit;
use crate::schedule::Domain;
use crate::session::{SessionError, Turn};
use crate::tenants::{CountedPlan, PlanError};

/// Why there is no plan. What a blueprint says is its owner's to know.
fn no_plan(why: pappus_blueprint::Error, granted: bool) -> InvokeError {
    match granted {
        false => InvokeError::Plan(why),
        true => InvokeError::GrantedPlan,
    }
}

/// Up to so many names are compared one by one.
const FEW_NAMES: usize = 16;
/// Plans of blueprints that take so many bytes in memory are made on socket threads: some hundreds of steps, of some
/// hundred nanoseconds each.
const AT_ONCE_BLUEPRINT_BYTES: usize = 64 << 10;
/// Memory that a call takes elsewhere: the answer's handle, places in queues.
const CALL_OVERHEAD_BYTES: usize = 512;

/// A checked call, its device, and the charge for its inline bytes.
pub struct Prepared {
    /// The call.
    pub call: Arc<Call>,
    /// The device for it.
    pub device: Arc<Device>,
    /// Bytes that the call keeps in memory while it waits.
    pub inline_bytes: u64,
}

/// Parts of the call, gathered while the request is read.
#[derive(Default)]
struct Gathered<'a> {
    items: Vec<Item>,
    outputs: Vec<Target>,
    inline: Vec<Inline>,
    staged: u64,
    arenas: &'a [Arc<Arena>],
    descriptors: &'a [ClientMemfd],
}

/// A request as it arrived.
pub struct Arrived {
    /// The request.
    pub message: v1::Invoke,
    /// Memfds that came with it.
    pub descriptors: Vec<ClientMemfd>,
    /// Its connection's arenas that it names.
    pub arenas: Vec<Arc<Arena>>,
    /// When, in `CLOCK_MONOTONIC` nanoseconds.
    pub at_ns: u64,
    /// Bytes of the tenant's request memory that the request and its connection take already.
    pub own_bytes: u64,
    /// The turn in its session, if it is in one.
    pub turn: Option<Turn>,
}

impl Arrived {
    /// A request with the descriptors that came with it.
    pub fn new(
        message: v1::Invoke,
        passed: Vec<ClientFd>,
        arenas: Vec<Arc<Arena>>,
        at_ns: u64,
        own_bytes: u64,
    ) -> Result<Self, MemfdError> {
        let descriptors =
            passed.into_iter().map(|fd| fd.sealed(MAX_ARENA_BYTES)).collect::<Result<_, _>>()?;
        Ok(Self { message, descriptors, arenas, at_ns, own_bytes, turn: None })
    }
}

/// Where a request is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thread {
    /// On a socket thread, which makes small plans only.
    Socket,
    /// On one that may take long.
    Own,
}

/// Checks a request against its function. `arrived` is whole still where the request has to be checked
/// [elsewhere](InvokeError::PlanTakesLong).
pub fn prepare(
    ctx: &RequestCtx,
    reply: Arc<dyn Completion>,
    arrived: &mut Arrived,
    function: &Arc<Loaded>,
    thread: Thread,
) -> Result<Prepared, InvokeError> {
    let Arrived { message: request, descriptors, arenas, at_ns: arrived_ns, own_bytes, turn } = arrived;
    let (arrived_ns, own_bytes) = (*arrived_ns, *own_bytes);
    let granted = function.owner != ctx.account.tenant;
    check_version(request, function.versions, granted)?;
    check_session(function, turn.as_ref())?;
    let plans = |sizes: &Sizes<'_>| plan(ctx, function, sizes, thread);
    let (blueprint, weight_bytes) = (&function.blueprint, &function.weight_bytes);
    let of = CallContext { blueprint, weight_bytes, granted, turn: turn.as_ref() };
    let (gathered, plan, scalars) = gather(request, descriptors, arenas, of, plans)?;
    let state = turn.as_ref().map(|turn| &turn.memory);
    gathered.arenas.iter().chain(state).try_for_each(|arena| arena.pin(&ctx.account))?;

    let deadline = deadline(request, &ctx.server.settings());
    let domain = Domain { owner: function.owner, caller: ctx.account.tenant };
    let state = turn.as_ref().and_then(|turn| turn.memory.device_memory());
    let (device, routed) = ctx.server.router.route(domain, function, plan.pool_bytes, state)?;
    let device = device.clone();
    let inline_bytes = gathered.inline.iter().map(|i| i.bytes.len() as u64).sum();
    let memory = ctx.take(Limit::RequestBytes, gathered.held_bytes() + inline_bytes);
    let memory = memory.map_err(|why| why.with_own(own_bytes))?;
    let Gathered { items, outputs, inline, staged: staged_bytes, .. } = gathered;
    let mut arenas = std::mem::take(arenas);
    arenas.extend(turn.as_ref().map(|turn| turn.memory.clone()));
    let call = Call {
        domain,
        plan,
        items,
        outputs,
        scalars: scalars.into_iter().map(U64::new).collect(),
        inline,
        staged_bytes,
        descriptors: std::mem::take(descriptors),
        memory: Some(memory),
        arenas,
        turn: turn.take(),
        deadline_ns: arrived_ns.saturating_add(deadline.as_nanos() as u64),
        arrived_ns,
        started_ns: AtomicU64::new(0),
        sent_at: AtomicU64::new(0),
        routed,
        reply,
        function: function.clone(),
    };
    Ok(Prepared { call: Arc::new(call), device, inline_bytes })
}

/// The plan of a call of these sizes, known or made now.
fn plan(
    ctx: &RequestCtx,
    function: &Loaded,
    sizes: &Sizes<'_>,
    thread: Thread,
) -> Result<Arc<CountedPlan>, InvokeError> {
    let granted = function.owner != ctx.account.tenant;
    let (id, blueprint) = (function.id, &function.blueprint);
    match ctx.account.find_plan(id, blueprint, sizes).map_err(|why| no_plan(why, granted))? {
        Some(plan) => Ok(plan),
        None if thread == Thread::Socket && blueprint.approx_bytes() > AT_ONCE_BLUEPRINT_BYTES => {
            Err(InvokeError::PlanTakesLong)
        }
        None => ctx.account.make_plan(id, blueprint, sizes).map_err(|why| match why {
            PlanError::Sizes(why) => no_plan(why, granted),
            PlanError::Quota(why) => why.into(),
        }),
    }
}

/// Bytes of each output of a call with these inputs, in the function's order. The request names no outputs yet.
pub fn output_bytes(
    ctx: &RequestCtx,
    arrived: &Arrived,
    function: &Loaded,
    thread: Thread,
) -> Result<Vec<u64>, InvokeError> {
    let (blueprint, granted) = (&function.blueprint, function.owner != ctx.account.tenant);
    let of = CallContext { blueprint, weight_bytes: &function.weight_bytes, granted, turn: None };
    let plans = |sizes: &Sizes<'_>| plan(ctx, function, sizes, thread);
    let (_, plan, _) = gather(&arrived.message, &arrived.descriptors, &arrived.arenas, of, plans)?;
    Ok(blueprint.returned().iter().map(|id| plan.buffers[id.index()].bytes).collect())
}

/// Refuses a call that was made for an earlier function of the same name.
pub(super) fn check_version(
    request: &v1::Invoke,
    versions: Versions,
    granted: bool,
) -> Result<(), InvokeError> {
    match request.function_version {
        0 => Ok(()),
        told if told == versions.for_caller(granted) => Ok(()),
        _ => Err(InvokeError::Replaced),
    }
}

/// Refuses a call that lacks a session, or has one that is not for its function.
fn check_session(function: &Loaded, turn: Option<&Turn>) -> Result<(), SessionError> {
    match (turn, function.blueprint.state().is_empty()) {
        (None, true) => Ok(()),
        (None, false) => Err(SessionError::Needed),
        (Some(_), true) => Err(SessionError::Stateless),
        (Some(turn), false) if turn.session().suits(function.owner, &function.blueprint) => Ok(()),
        (Some(_), false) => Err(SessionError::Other),
    }
}

/// How long a call may take in all.
pub fn deadline(request: &v1::Invoke, settings: &Settings) -> Duration {
    match request.deadline_ns {
        0 => settings.default_deadline,
        ns => Duration::from_nanos(ns).min(settings.max_deadline),
    }
}

/// What a request is checked against.
#[derive(Clone, Copy)]
struct CallContext<'a> {
    blueprint: &'a Blueprint,
    weight_bytes: &'a [u64],
    /// The caller is not the owner, and is told nothing of the blueprint.
    granted: bool,
    /// The turn in the call's session: where its state is.
    turn: Option<&'a Turn>,
}

/// Gathers all parts of a call that depend only on the request and its function.
fn gather<'a, P: Borrow<Plan>>(
    request: &v1::Invoke,
    descriptors: &'a [ClientMemfd],
    arenas: &'a [Arc<Arena>],
    CallContext { blueprint, weight_bytes, granted, turn }: CallContext<'_>,
    plan: impl FnOnce(&Sizes<'_>) -> Result<Arc<P>, InvokeError>,
) -> Result<(Gathered<'a>, Arc<P>, Vec<u64>), InvokeError> {
    let mut gathered = Gathered { descriptors, arenas, ..Gathered::default() };
    let name_of = |id: &BufferId| blueprint.buffers()[id.index()].name.as_str();
    let given = match_names("input", &request.inputs, |i| &i.name, blueprint, blueprint.brought())?;
    let wanted = match_names("output", &request.outputs, |o| &o.name, blueprint, blueprint.returned())?;

    let mut input_bytes = Vec::with_capacity(blueprint.inputs().len());
    for (position, (input, id)) in given.iter().zip(blueprint.brought()).enumerate() {
        let name = name_of(id);
        let input = input.ok_or_else(|| InvokeError::Missing(name.to_owned()))?;
        let bytes = gathered.input(position, input);
        input_bytes.push(bytes.map_err(|why| InvokeError::Input { name: name.to_owned(), why })?);
    }
    input_bytes.extend_from_slice(blueprint.state_bytes());
    let arrays = Arrays::of(&given)?;
    let misfit = |(at, why): (usize, Misfit)| {
        let name = name_of(&blueprint.inputs()[at]).to_owned();
        InvokeError::Misfit { name, why }
    };
    let free = blueprint.bind(&input_bytes, |at| arrays.get(at)).map_err(misfit)?;
    let mut scalars = gathered.read_words(blueprint, &input_bytes, granted)?;
    let sizes = Sizes { inputs: &input_bytes, weights: weight_bytes, words: &scalars, free: &free };
    let plan = match plan(&sizes) {
        // Of another shape, an input has other bytes than it needs: the shape is the better reason.
        Err(why @ (InvokeError::Plan(_) | InvokeError::GrantedPlan)) => {
            arrays.check(|at, array| blueprint.check_computed(&sizes, at, array)).map_err(misfit)?;
            return Err(why);
        }
        other => other?,
    };
    arrays.check(|at, array| blueprint.check_planned((*plan).borrow(), at, array)).map_err(misfit)?;
    scalars.extend_from_slice(&free);
    let buffers = &(*plan).borrow().buffers;
    for (output, id) in wanted.into_iter().zip(blueprint.returned()) {
        let target = gathered.output(output, buffers[id.index()].bytes);
        target.map_err(|why| InvokeError::Output { name: name_of(id).to_owned(), why })?;
    }
    gathered.check_overlaps()?;
    if let Some(turn) = turn {
        gathered.state(turn, given.len())?;
    }
    Ok((gathered, plan, scalars))
}

/// The arrays that inputs are said to hold; of most calls none.
struct Arrays<'a>(Vec<(usize, Array<'a>)>);

impl<'a> Arrays<'a> {
    fn of(given: &[Option<&'a v1::Input>]) -> Result<Self, InvokeError> {
        let typed = given.iter().enumerate().filter_map(|(at, input)| {
            let input = (*input)?;
            Some((at, &input.name, input.r#type.as_ref()?))
        });
        let arrays = typed.map(|(at, name, said)| match DType::named(&said.dtype) {
            Some(dtype) => Ok((at, Array { dtype, shape: &said.shape })),
            None => Err(InvokeError::Input { name: name.clone(), why: ValueError::ElementType }),
        });
        arrays.collect::<Result<_, _>>().map(Self)
    }

    /// The array of the input at this position.
    fn get(&self, at: usize) -> Option<Array<'a>> {
        let found = self.0.binary_search_by_key(&at, |(at, _)| *at).ok()?;
        Some(self.0[found].1)
    }

    fn check(&self, check: impl Fn(usize, &Array<'a>) -> Result<(), Misfit>) -> Result<(), (usize, Misfit)> {
        self.0.iter().try_for_each(|(at, array)| check(*at, array).map_err(|why| (*at, why)))
    }
}

/// Checks a request by itself, with these descriptors, on a connection with these arenas, as far as that is possible before a
/// worker sees it. Returns the ranges of inputs and outputs.
pub fn check(
    request: &v1::Invoke,
    descriptors: &[ClientMemfd],
    arenas: &[Arc<Arena>],
    blueprint: &Blueprint,
    weight_bytes: &[u64],
) -> Result<(Vec<Item>, Vec<Target>), InvokeError> {
    let plan = |sizes: &Sizes<'_>| blueprint.plan(sizes).map(Arc::new).map_err(InvokeError::Plan);
    let (gathered, ..) = gather(
        request,
        descriptors,
        arenas,
        CallContext { blueprint, weight_bytes, granted: false, turn: None },
        plan,
    )?;
    Ok((gathered.items, gathered.outputs))
}

/// Finds what was given for each of the function's inputs or outputs; strangers and doubles are refused.
fn match_names<'a, T>(
    what: &'static str,
    given: &'a [T],
    name_of: impl Fn(&T) -> &str,
    blueprint: &Blueprint,
    wanted: &[BufferId],
) -> Result<Vec<Option<&'a T>>, InvokeError> {
    let name_at = |position: usize| blueprint.buffers()[wanted[position].index()].name.as_str();
    let mut found = vec![None; wanted.len()];
    // Made for the first name out of order, where there are more than a few: one look at each name for each.
    let mut by_name: Option<HashMap<&str, usize>> = None;
    let mut find = |name: &str| match wanted.len() <= FEW_NAMES {
        true => (0..wanted.len()).find(|&position| name_at(position) == name),
        false => {
            let names = by_name.get_or_insert_with(|| (0..wanted.len()).map(|p| (name_at(p), p)).collect());
            names.get(name).copied()
        }
    };
    // More than there can be are not even compared.
    for (nth, one) in given.iter().take(wanted.len() + 1).enumerate() {
        let name = name_of(one);
        // Most clients keep the function's order.
        let position = match nth < wanted.len() && name_at(nth) == name {
            true => Some(nth),
            false => find(name),
        };
        let slot = position.map(|position| &mut found[position]);
        match slot {
            Some(slot @ None) => *slot = Some(one),
            Some(Some(_)) => return Err(InvokeError::Twice { what, name: name.to_owned() }),
            None => {
                let names: Vec<_> = (0..wanted.len()).map(|p| format!("`{}`", name_at(p))).collect();
                let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                return Err(InvokeError::NoSuch { what, name: name.to_owned(), there });
            }
        }
    }
    Ok(found)
}

impl Gathered<'_> {
    /// Memory of a call with all this, besides its inline bytes.
    fn held_bytes(&self) -> u64 {
        let lists = self.items.capacity() * size_of::<Item>()
            + self.outputs.capacity() * size_of::<Target>()
            + self.inline.capacity() * size_of::<Inline>()
            + size_of_val(self.arenas)
            + size_of_val(self.descriptors);
        (size_of::<Call>() + CALL_OVERHEAD_BYTES + lists) as u64
    }

    /// Adds the state, which is read at one place and written at another; its buffers come behind the inputs that a call brings.
    fn state(&mut self, turn: &Turn, first: usize) -> Result<(), InvokeError> {
        let arena = turn.memory.id;
        for (input, (from, to, bytes)) in (first as u32..).zip(turn.buffers()) {
            if self.items.len() >= MAX_ITEMS {
                return Err(InvokeError::StateItems);
            }
            self.items.push(Item {
                input: input.into(),
                kind: Item::ARENA.into(),
                source: arena.into(),
                offset: from.into(),
                bytes: bytes.into(),
            });
            self.outputs.push(Target { arena: arena.into(), offset: to.into(), bytes: bytes.into() });
        }
        Ok(())
    }

    /// Takes an input's items; returns its bytes.
    fn input(&mut self, position: usize, input: &v1::Input) -> Result<u64, ValueError> {
        let mut total = 0u64;
        for item in &input.items {
            if self.items.len() >= MAX_ITEMS {
                return Err(ValueError::Items);
            }
            let (kind, source, offset, bytes) = match &item.source {
                Some(Source::Inline(bytes)) => {
                    let offset = self.stage(bytes.len() as u64)?;
                    // A copy: a slice of it would keep the whole frame while the call waits.
                    self.inline.push(Inline { offset, bytes: Bytes::copy_from_slice(bytes) });
                    (Item::ARENA, STAGING_ARENA.get(), offset, bytes.len() as u64)
                }
                Some(Source::Region(region)) => {
                    self.arena(region)?;
                    (Item::ARENA, region.arena, region.offset, region.bytes)
                }
                Some(Source::Descriptor(d)) => {
                    let held = self.descriptors.get(d.index as usize);
                    let held = held.ok_or(ValueError::NoDescriptor(d.index))?;
                    check_range(d.offset, d.bytes, held.bytes())?;
                    (Item::DESCRIPTOR, u64::from(d.index), d.offset, d.bytes)
                }
                None => return Err(ValueError::NoSource),
            };
            total = total.checked_add(bytes).ok_or(ValueError::TooLarge)?;
            self.items.push(Item {
                input: (position as u32).into(),
                kind: kind.into(),
                source: source.into(),
                offset: offset.into(),
                bytes: bytes.into(),
            });
        }
        Ok(total)
    }

    /// Takes an output's target; an output that the request does not ask for is dropped.
    fn output(&mut self, output: Option<&v1::Output>, bytes: u64) -> Result<(), ValueError> {
        let (arena, offset) = match output {
            None => (DISCARD.get(), 0),
            Some(v1::Output { region: None, .. }) => {
                let offset = self.stage(bytes).map_err(|_| ValueError::InlineOutput { bytes })?;
                (STAGING_ARENA.get(), offset)
            }
            Some(v1::Output { region: Some(region), .. }) => {
                self.arena(region)?;
                if region.bytes < bytes {
                    return Err(ValueError::RegionTooSmall { bytes, region: region.bytes });
                }
                (region.arena, region.offset)
            }
        };
        self.outputs.push(Target { arena: arena.into(), offset: offset.into(), bytes: bytes.into() });
        Ok(())
    }

    /// Room in the lane's staging range.
    fn stage(&mut self, bytes: u64) -> Result<u64, ValueError> {
        let offset = self.staged;
        let end = offset.checked_add(bytes).filter(|end| *end <= MAX_INLINE_BYTES);
        let end = end.ok_or(ValueError::Inline)?;
        self.staged = end.next_multiple_of(8);
        Ok(offset)
    }

    /// Checks a region against its arena.
    fn arena(&self, region: &v1::Region) -> Result<(), ValueError> {
        let arena = self.arenas.iter().find(|a| a.id == region.arena);
        let arena = arena.ok_or(ValueError::NoArena(region.arena))?;
        check_range(region.offset, region.bytes, arena.memfd.bytes())
    }

    /// Reads the words that sizes depend on, each once.
    fn read_words(
        &self,
        blueprint: &Blueprint,
        input_bytes: &[u64],
        granted: bool,
    ) -> Result<Vec<u64>, InvokeError> {
        let mut words = Vec::with_capacity(blueprint.words().len());
        for word in blueprint.words() {
            let offset = blueprint
                .word_offset(word, input_bytes[word.input as usize])
                .map_err(|e| no_plan(e, granted))?;
            let mut bytes = [0; 8];
            self.read_input(word.input, offset, &mut bytes)?;
            words.push(u64::from_le_bytes(bytes));
        }
        Ok(words)
    }

    /// Reads bytes of an input, which may lie across items.
    fn read_input(&self, input: u32, mut offset: u64, mut out: &mut [u8]) -> Result<(), InvokeError> {
        for item in self.items.iter().filter(|item| item.input.get() == input) {
            let bytes = item.bytes.get();
            if offset >= bytes {
                offset -= bytes;
                continue;
            }
            let (part, rest) = out.split_at_mut(out.len().min((bytes - offset) as usize));
            self.read_item(item, offset, part)?;
            out = rest;
            offset = 0;
            if out.is_empty() {
                return Ok(());
            }
        }
        Err(InvokeError::Short)
    }

    fn read_item(&self, item: &Item, offset: u64, out: &mut [u8]) -> Result<(), InvokeError> {
        let at = item.offset.get() + offset;
        let source = item.source.get();
        let read = if item.kind.get() == Item::DESCRIPTOR {
            self.descriptors[source as usize].read_at(at, out)
        } else if source == STAGING_ARENA.get() {
            let held = self.inline.iter().find(|i| i.offset == item.offset.get() && !i.bytes.is_empty());
            if let Some(inline) = held {
                let start = offset as usize;
                out.copy_from_slice(&inline.bytes[start..start + out.len()]);
            }
            Ok(())
        } else {
            match self.arenas.iter().find(|a| a.id == source) {
                Some(arena) => arena.memfd.read_at(at, out),
                None => Err(std::io::ErrorKind::NotFound.into()),
            }
        };
        read.map_err(InvokeError::Unreadable)
    }

    /// Inputs and outputs of a call may not overlap, nor outputs among themselves.
    fn check_overlaps(&self) -> Result<(), InvokeError> {
        let shared = |arena: u64| arena != STAGING_ARENA.get() && arena != DISCARD.get();
        let mut outputs: Vec<(u64, u64, u64)> = self
            .outputs
            .iter()
            .filter(|t| shared(t.arena.get()) && t.bytes.get() > 0)
            .map(|t| (t.arena.get(), t.offset.get(), t.offset.get() + t.bytes.get()))
            .collect();
        outputs.sort_unstable();
        if outputs.windows(2).any(|pair| pair[0].0 == pair[1].0 && pair[1].1 < pair[0].2) {
            return Err(InvokeError::OutputsOverlap);
        }
        let inputs = self
            .items
            .iter()
            .filter(|i| i.kind.get() == Item::ARENA && shared(i.source.get()) && i.bytes.get() > 0);
        for item in inputs {
            let (arena, start, end) =
                (item.source.get(), item.offset.get(), item.offset.get() + item.bytes.get());
            // The last output that begins before this item ends is the only one that can reach into it.
            let before = outputs.partition_point(|output| (output.0, output.1) < (arena, end));
            if before > 0 && outputs[before - 1].0 == arena && outputs[before - 1].2 > start {
                return Err(InvokeError::InputOverlaps);
            }
        }
        Ok(())
    }
}

fn check_range(offset: u64, bytes: u64, size: u64) -> Result<(), ValueError> {
    match offset.checked_add(bytes) {
        Some(end) if end <= size => Ok(()),
        _ => Err(ValueError::Outside { offset, bytes, size }),
    }
}
