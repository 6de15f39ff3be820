//! What the supervisor tells a worker.
//!
//! [`Invoke`] is the hot one: plain little-endian structs that the worker reads where they lie. The
//! others are rare and travel as postcard.

use serde::{Deserialize, Serialize};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ProtocolError;
use crate::header::{Frame, Tag};
use crate::ids::{ArenaId, FunctionId, LaneId};
use crate::limits::{MAX_FDS, MAX_ITEMS, MAX_OUTPUTS, MAX_SCALARS};

/// One message to a worker, borrowing from the frame it came in.
#[derive(Debug)]
pub enum ToWorker<'a> {
    /// Settings; the first message, and whenever they change. [`FromWorker::Leased`](crate::FromWorker::Leased) follows.
    Configure(Configure),
    /// Install `function`; its descriptors are on the control socket. Its weights come with [`ToWorker::Load`].
    /// [`FromWorker::NotInstalled`](crate::FromWorker::NotInstalled) follows if it does not load.
    Install {
        /// Names the function from now on.
        function: FunctionId,
        /// Its parts.
        install: Install,
    },
    /// Bring the weights of `function`, which is installed, to the device: the descriptor on the control socket.
    /// [`FromWorker::Loaded`](crate::FromWorker::Loaded), [`FromWorker::Exported`](crate::FromWorker::Exported) or
    /// [`FromWorker::NotLoaded`](crate::FromWorker::NotLoaded) follows once they are there, or do not load; calls may
    /// come before.
    Load {
        /// As installed.
        function: FunctionId,
        /// How they come.
        load: Load,
    },
    /// The weights of `function` leave the device behind the calls that came before; the function stays installed.
    /// [`FromWorker::Unloaded`](crate::FromWorker::Unloaded) follows.
    Unload {
        /// As installed.
        function: FunctionId,
    },
    /// Forget `function` with its weights behind the calls that came before, and say so.
    Uninstall {
        /// As installed.
        function: FunctionId,
    },
    /// Map the arena whose descriptor is on the control socket.
    OpenArena {
        /// Names the arena from now on.
        arena: ArenaId,
    },
    /// Unmap the arena behind the calls that came before, and forget everything cached about it. The same arena may be
    /// opened again.
    CloseArena {
        /// As opened.
        arena: ArenaId,
    },
    /// Map the state of a session, whose descriptors are on the control socket, and close it as an arena.
    OpenState {
        /// Names the state's arena from now on.
        arena: ArenaId,
        /// What the descriptors are.
        form: StateForm,
    },
    /// Run a call.
    Invoke {
        /// Names the call in the answer.
        call: u64,
        /// What to run on what.
        invoke: Invoke<'a>,
    },
    /// There is an order on the [turn page](crate::turn_page), and the worker said that it would sleep.
    Order,
    /// A grant follows within milliseconds: the worker should poll until then.
    Soon,
    /// Lanes without calls give all their memory back, cleared. [`FromWorker::Leased`](crate::FromWorker::Leased)
    /// follows.
    GiveBack {
        /// One bit for each of the lanes.
        lanes: u64,
    },
    /// The worker serves another domain from now on: all data of the old one must be cleared. The worker has no calls.
    Scrub {
        /// Names the hand-over in the answer.
        handover: u64,
    },
    /// Check and compile the module on the control socket (compiling workers only).
    Compile {
        /// Names the job.
        job: u64,
    },
    /// As `Compile`, with checks of every access to memory: for functions that are installed as
    /// [`Install::checked`].
    CompileChecked {
        /// Names the job.
        job: u64,
    },
    /// Tell what the module on the control socket declares, for a device that is not here (compiling workers only).
    /// Answered like `Compile`, with the module itself in place of machine code.
    Describe {
        /// Names the job.
        job: u64,
    },
    /// Read what these devices measure of themselves (metering workers only).
    Read {
        /// Their UUIDs.
        devices: Vec<String>,
    },
}

/// A worker's settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configure {
    /// How long an idle worker spins before it blocks, in microseconds.
    pub poll_us: u32,
    /// The worker submits only while it holds a grant.
    pub turns: bool,
    /// On-chip state is cleared between any two calls.
    pub scrub_calls: bool,
    /// The worker will be told to scrub itself for another domain.
    pub scrub_switch: bool,
}

/// What the descriptor of a function's weights is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WeightsForm {
    /// A sealed memfd with the packed weights, which this worker alone loads.
    Host,
    /// The same, and other workers will want them: the device memory that they are copied to is sent
    /// back as [`FromWorker::Exported`](crate::FromWorker::Exported), where it is memory that has no descriptor yet.
    Export,
    /// Device memory of this many bytes that holds the packed weights already.
    Device(u64),
}

/// What the descriptors of a session's state are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateForm {
    /// The memfd of an arena, all zero. The worker makes as much memory of its device, zeroed, and uses that in its place; where it
    /// cannot, the arena. [`FromWorker::State`](crate::FromWorker::State) says which, before the answer to any call with that state.
    Make,
    /// The memfd, which is not used, and device memory with the state.
    Device,
}

impl StateForm {
    /// How many descriptors belong to the message.
    pub fn descriptors(self) -> usize {
        match self {
            Self::Make => 1,
            Self::Device => 2,
        }
    }
}

/// How a function's weights come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// What the descriptor is.
    pub weights: WeightsForm,
    /// A function whose weights go: the new ones take their memory, if it suits. No
    /// [`FromWorker::Unloaded`](crate::FromWorker::Unloaded) follows for that function.
    pub instead_of: Option<u64>,
}

/// A function's parts. Descriptors on the control socket, in this order: the configuration (sealed
/// memfd), then one loadable module file for every module of the blueprint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Install {
    /// Modules, in the blueprint's order; also how many descriptors there are for them.
    pub modules: u32,
    /// Bytes of every weights buffer, in the blueprint's order.
    pub weight_bytes: Vec<u64>,
    /// True if calls are checked: they run the configuration's checked blueprint, with modules that have checks.
    pub checked: bool,
}

impl Install {
    /// How many descriptors belong to this message.
    pub fn descriptors(&self) -> usize {
        1 + self.modules as usize
    }
}

/// Where an item of an input lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Item {
    /// Position of the input in the blueprint.
    pub input: U32,
    /// [`Item::ARENA`] or [`Item::DESCRIPTOR`].
    pub kind: U32,
    /// The arena; or which of the call's descriptors.
    pub source: U64,
    /// First byte.
    pub offset: U64,
    /// Bytes.
    pub bytes: U64,
}

impl Item {
    /// `source` is an arena ([`STAGING_ARENA`] included).
    pub const ARENA: u32 = 0;
    /// `source` is an index into the call's descriptors, read once with `pread`.
    pub const DESCRIPTOR: u32 = 1;
}

/// Where an output goes: an arena ([`STAGING_ARENA`] included), or nowhere ([`DISCARD`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Target {
    /// The arena.
    pub arena: U64,
    /// First byte.
    pub offset: U64,
    /// Room for the output; it must be exactly what the plan says or more.
    pub bytes: U64,
}

/// The arena shared by the supervisor and one worker, for bytes that came inline.
pub const STAGING_ARENA: ArenaId = ArenaId::new(0);
/// The arena of an output that the caller did not ask for: it is computed and not copied.
pub const DISCARD: ArenaId = ArenaId::new(u64::MAX);

/// The fixed part of an invocation.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct InvokeHead {
    function: U64,
    deadline_ns: U64,
    memory_bytes: U64,
    lane: U32,
    items: U32,
    outputs: U32,
    scalars: U32,
    descriptors: U32,
    flags: U32,
    calls: U32,
}

const _: () = assert!(size_of::<InvokeHead>() == 52 && size_of::<Item>() == 32 && size_of::<Target>() == 24);

/// What a lane is to run, read in place: one call, or several side by side along their function's batch.
#[derive(Debug, Clone, Copy)]
pub struct Invoke<'a> {
    /// Which installed function.
    pub function: FunctionId,
    /// `CLOCK_MONOTONIC` nanoseconds after which the call has failed.
    pub deadline_ns: u64,
    /// Device memory that the lane may have from now on.
    pub memory_bytes: u64,
    /// Which lane runs it.
    pub lane: LaneId,
    /// How many descriptors on the control socket belong to it.
    pub descriptors: u32,
    /// [`Invoke::ALONE`], or nothing.
    pub flags: u32,
    /// How many calls: the answer is about all of them.
    pub calls: u32,
    /// Items of all inputs, grouped by input in the blueprint's order; those of an input in the order of the calls.
    pub items: &'a [Item],
    /// One per output, in the blueprint's order, for each call after the other. Where there are several calls, each takes exactly its
    /// bytes of the output, which lie in the order of the calls.
    pub outputs: &'a [Target],
    /// The scalars: numbers in inputs that `FromInput` reads, in the blueprint's order, then its free dimensions, of which the batch is
    /// that of all calls together.
    pub scalars: &'a [U64],
}

impl<'a> Invoke<'a> {
    /// The call is a suspect: no other call runs beside it, and its kernels run one by one, so that a fault
    /// names the guilty kernel.
    pub const ALONE: u32 = 1;

    /// Appends the body's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let head = InvokeHead {
            function: U64::new(self.function.get()),
            deadline_ns: U64::new(self.deadline_ns),
            memory_bytes: U64::new(self.memory_bytes),
            lane: U32::new(self.lane.get()),
            items: U32::new(self.items.len() as u32),
            outputs: U32::new(self.outputs.len() as u32),
            scalars: U32::new(self.scalars.len() as u32),
            descriptors: U32::new(self.descriptors),
            flags: U32::new(self.flags),
            calls: U32::new(self.calls),
        };
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(self.items.as_bytes());
        out.extend_from_slice(self.outputs.as_bytes());
        out.extend_from_slice(self.scalars.as_bytes());
    }

    fn decode(body: &'a [u8]) -> Option<Self> {
        let (head, rest) = InvokeHead::ref_from_prefix(body).ok()?;
        let (items, outputs, scalars) =
            (head.items.get() as usize, head.outputs.get() as usize, head.scalars.get() as usize);
        let descriptors = head.descriptors.get();
        if items > MAX_ITEMS
            || outputs > MAX_OUTPUTS
            || scalars > MAX_SCALARS
            || descriptors as usize > MAX_FDS
        {
            return None;
        }
        let (items, rest) = <[Item]>::ref_from_prefix_with_elems(rest, items).ok()?;
        let (outputs, rest) = <[Target]>::ref_from_prefix_with_elems(rest, outputs).ok()?;
        let scalars = <[U64]>::ref_from_bytes_with_elems(rest, scalars).ok()?;
        Some(Self {
            function: FunctionId::new(head.function.get()),
            deadline_ns: head.deadline_ns.get(),
            memory_bytes: head.memory_bytes.get(),
            lane: LaneId::new(head.lane.get()),
            descriptors,
            flags: head.flags.get(),
            calls: head.calls.get(),
            items,
            outputs,
            scalars,
        })
    }
}

impl<'a> ToWorker<'a> {
    /// The message's tag and what it is about.
    pub fn head(&self) -> (Tag, u64) {
        match *self {
            Self::Configure(_) => (Tag::Configure, 0),
            Self::Install { function, .. } => (Tag::Install, function.get()),
            Self::Uninstall { function } => (Tag::Uninstall, function.get()),
            Self::Load { function, .. } => (Tag::Load, function.get()),
            Self::Unload { function } => (Tag::Unload, function.get()),
            Self::OpenArena { arena } => (Tag::OpenArena, arena.get()),
            Self::CloseArena { arena } => (Tag::CloseArena, arena.get()),
            Self::OpenState { arena, .. } => (Tag::OpenState, arena.get()),
            Self::Invoke { call, .. } => (Tag::Invoke, call),
            Self::Order => (Tag::Order, 0),
            Self::Compile { job } => (Tag::Compile, job),
            Self::Describe { job } => (Tag::Describe, job),
            Self::CompileChecked { job } => (Tag::CompileChecked, job),
            Self::Soon => (Tag::Soon, 0),
            Self::Scrub { handover } => (Tag::Scrub, handover),
            Self::GiveBack { lanes } => (Tag::GiveBack, lanes),
            Self::Read { .. } => (Tag::Read, 0),
        }
    }

    /// Appends the body's bytes.
    pub fn encode_body(&self, out: &mut Vec<u8>) {
        match self {
            Self::Configure(configure) => crate::cold::append(out, configure),
            Self::Install { install, .. } => crate::cold::append(out, install),
            Self::Load { load, .. } => crate::cold::append(out, load),
            Self::Invoke { invoke, .. } => invoke.encode(out),
            Self::Read { devices } => crate::cold::append(out, devices),
            Self::OpenState { form, .. } => crate::cold::append(out, form),
            Self::Uninstall { .. }
            | Self::Unload { .. }
            | Self::OpenArena { .. }
            | Self::CloseArena { .. }
            | Self::Order
            | Self::Soon
            | Self::Scrub { .. }
            | Self::GiveBack { .. }
            | Self::Compile { .. }
            | Self::CompileChecked { .. }
            | Self::Describe { .. } => {}
        }
    }

    /// Reads a message.
    pub fn decode(Frame { tag, id, body }: Frame<'a>) -> Result<Self, ProtocolError> {
        let bad = |message| ProtocolError::Body { message, why: "malformed" };
        let message = match tag {
            Tag::Configure => Self::Configure(postcard::from_bytes(body).map_err(|_| bad("Configure"))?),
            Tag::Install => {
                let install: Install = postcard::from_bytes(body).map_err(|_| bad("Install"))?;
                if install.modules as usize > MAX_FDS {
                    return Err(ProtocolError::Body { message: "Install", why: "too many modules" });
                }
                Self::Install { function: FunctionId::new(id), install }
            }
            Tag::Invoke => Self::Invoke { call: id, invoke: Invoke::decode(body).ok_or(bad("Invoke"))? },
            Tag::Uninstall => Self::Uninstall { function: FunctionId::new(id) },
            Tag::Load => {
                let load = postcard::from_bytes(body).map_err(|_| bad("Load"))?;
                Self::Load { function: FunctionId::new(id), load }
            }
            Tag::Unload => Self::Unload { function: FunctionId::new(id) },
            Tag::OpenArena => Self::OpenArena { arena: ArenaId::new(id) },
            Tag::CloseArena => Self::CloseArena { arena: ArenaId::new(id) },
            Tag::OpenState => {
                let form = postcard::from_bytes(body).map_err(|_| bad("OpenState"))?;
                Self::OpenState { arena: ArenaId::new(id), form }
            }
            Tag::Order => Self::Order,
            Tag::Compile => Self::Compile { job: id },
            Tag::Describe => Self::Describe { job: id },
            Tag::CompileChecked => Self::CompileChecked { job: id },
            Tag::Soon => Self::Soon,
            Tag::Scrub => Self::Scrub { handover: id },
            Tag::GiveBack => Self::GiveBack { lanes: id },
            Tag::Read => Self::Read { devices: postcard::from_bytes(body).map_err(|_| bad("Read"))? },
            _ => return Err(ProtocolError::Header("a worker's message sent to a worker")),
        };
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(message: &ToWorker<'_>, check: impl FnOnce(ToWorker<'_>)) {
        let mut body = Vec::new();
        message.encode_body(&mut body);
        let (tag, id) = message.head();
        check(ToWorker::decode(Frame { tag, id, body: &body }).unwrap());
    }

    #[test]
    fn invocations_survive_the_wire() {
        let items = [Item {
            input: 0.into(),
            kind: Item::ARENA.into(),
            source: 3.into(),
            offset: 8.into(),
            bytes: 24.into(),
        }];
        let outputs = [Target { arena: 3.into(), offset: 64.into(), bytes: 24.into() }];
        let scalars = [U64::new(2), U64::new(u64::MAX)];
        let invoke = Invoke {
            function: FunctionId::new(9),
            deadline_ns: 10,
            memory_bytes: 4096,
            lane: LaneId::new(1),
            descriptors: 0,
            flags: Invoke::ALONE,
            calls: 2,
            items: &items,
            outputs: &outputs,
            scalars: &scalars,
        };
        round_trip(&ToWorker::Invoke { call: 5, invoke }, |message| {
            let ToWorker::Invoke { call: 5, invoke: got } = message else { panic!("{message:?}") };
            assert_eq!((got.function, got.lane), (invoke.function, invoke.lane));
            assert_eq!(
                (got.deadline_ns, got.memory_bytes, got.flags, got.calls),
                (10, 4096, Invoke::ALONE, 2)
            );
            assert_eq!((got.items, got.outputs, got.scalars), (&items[..], &outputs[..], &scalars[..]));
        });
    }

    #[test]
    fn cold_messages_survive_the_wire() {
        let install = Install { modules: 2, weight_bytes: vec![4, 8], checked: true };
        assert_eq!(install.descriptors(), 3);
        let id = FunctionId::new(7);
        round_trip(&ToWorker::Install { function: id, install: install.clone() }, |message| {
            let ToWorker::Install { function, install: got } = message else { panic!("{message:?}") };
            assert_eq!((function, got), (id, install));
        });
        let load = Load { weights: WeightsForm::Device(512), instead_of: Some(3) };
        round_trip(&ToWorker::Load { function: FunctionId::new(7), load }, |message| {
            let ToWorker::Load { function, load: got } = message else { panic!("{message:?}") };
            assert_eq!((function, got), (FunctionId::new(7), load));
        });
        round_trip(&ToWorker::Scrub { handover: 3 }, |message| {
            assert!(matches!(message, ToWorker::Scrub { handover: 3 }));
        });
        for form in [StateForm::Make, StateForm::Device] {
            round_trip(&ToWorker::OpenState { arena: ArenaId::new(9), form }, |message| {
                let ToWorker::OpenState { arena, form: got } = message else { panic!("{message:?}") };
                assert_eq!((arena, got), (ArenaId::new(9), form));
            });
        }
        round_trip(&ToWorker::Read { devices: vec!["GPU-1".into()] }, |message| {
            let ToWorker::Read { devices } = message else { panic!("{message:?}") };
            assert_eq!(devices, ["GPU-1"]);
        });
    }

    proptest! {
        #[test]
        fn random_bodies_never_panic(tag in 0u16..96, id: u64, body in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some(tag) = Tag::from_wire(tag) {
                let _ = ToWorker::decode(Frame { tag, id, body: &body });
                let _ = crate::FromWorker::decode(Frame { tag, id, body: &body });
            }
        }
    }
}
