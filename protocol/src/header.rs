//! The header before every message.
//!
//! ```text
//! 0        4      6         8         16
//! | length | tag  | version | id       | body …   little-endian; length is the body's
//! ```
//!
//! `id` is the call, function or arena that the message is about.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ProtocolError;
use crate::limits::MAX_BODY_BYTES;

/// Version of everything in this crate; both binaries are built together, so there is exactly one.
pub const VERSION: u16 = 1;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 16;

/// The header as it lies in memory and on the wire.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Bytes of the body.
    pub length: U32,
    /// Which message ([`Tag`]).
    pub tag: U16,
    /// [`VERSION`].
    pub version: U16,
    /// What the message is about.
    pub id: U64,
}

const _: () = assert!(size_of::<Header>() == HEADER_BYTES && align_of::<Header>() == 1);

/// Message tags. Retired numbers stay reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Tag {
    /// Supervisor → worker: settings, first message.
    Configure = 1,
    /// Supervisor → worker: a function's parts.
    Install = 2,
    /// Supervisor → worker: forget a function.
    Uninstall = 3,
    /// Supervisor → worker: map an arena.
    OpenArena = 4,
    /// Supervisor → worker: forget an arena.
    CloseArena = 5,
    /// Supervisor → worker: run a call.
    Invoke = 6,
    // 7 and 8 granted and revoked turns.
    /// Supervisor → compiling worker: compile a module.
    Compile = 9,
    /// Supervisor → worker: a grant is about to come.
    Soon = 10,
    /// Supervisor → worker: forget the domain served so far.
    Scrub = 11,
    /// Supervisor → compiling worker: tell what a module declares.
    Describe = 12,
    /// Supervisor → compiling worker: compile a module with checks.
    CompileChecked = 13,
    /// Supervisor → metering worker: read what devices measure.
    Read = 14,
    /// Supervisor → worker: lanes without calls give their memory back.
    GiveBack = 16,
    /// Supervisor → worker: look at the turn page.
    Order = 17,
    /// Supervisor → worker: bring a function's weights to the device.
    Load = 20,
    /// Supervisor → worker: a function's weights leave the device, the function stays.
    Unload = 21,
    /// Supervisor → worker: map the state of a session.
    OpenState = 22,

    /// Worker → supervisor: ready, first message.
    Hello = 64,
    /// Worker → supervisor: a call succeeded.
    Done = 65,
    /// Worker → supervisor: a call failed.
    Failed = 66,
    // 67 and 74 gave turns back.
    /// Compiling worker → supervisor: machine code.
    Compiled = 68,
    /// Compiling worker → supervisor: the module is refused.
    Refused = 69,
    /// Worker → supervisor: settings are in force, or memory was given back.
    Leased = 70,
    /// Worker → supervisor: its device context is lost, with every call in it.
    Broken = 71,
    /// Worker → supervisor: weights as device memory, for other workers.
    Exported = 72,
    /// Surveying worker → supervisor: the devices there are.
    Survey = 73,
    /// Worker → supervisor: nothing is left of the domain served so far.
    Scrubbed = 75,
    /// Worker → supervisor: a function is forgotten.
    Uninstalled = 76,
    /// Worker → supervisor: look at the turn page.
    Yield = 77,
    /// Worker → supervisor: a function's weights are on the device.
    Loaded = 80,
    /// Worker → supervisor: a function's weights do not load.
    NotLoaded = 81,
    /// Worker → supervisor: a function's weights left the device.
    Unloaded = 82,
    /// Worker → supervisor: a function does not load.
    NotInstalled = 83,
    /// Metering worker → supervisor: what devices measure.
    Readings = 84,
    /// Worker → supervisor: where the state of a session is.
    State = 85,
}

impl Tag {
    /// The tag with this number, if any.
    pub fn from_wire(number: u16) -> Option<Self> {
        use Tag::*;
        [
            Configure,
            Install,
            Uninstall,
            OpenArena,
            CloseArena,
            OpenState,
            Invoke,
            Compile,
            Soon,
            Scrub,
            Describe,
            CompileChecked,
            Read,
            GiveBack,
            Order,
            Load,
            Unload,
            Hello,
            Done,
            Failed,
            Compiled,
            Refused,
            Leased,
            Broken,
            Exported,
            Survey,
            Yield,
            Scrubbed,
            Uninstalled,
            Loaded,
            NotLoaded,
            Unloaded,
            NotInstalled,
            Readings,
            State,
        ]
        .into_iter()
        .find(|tag| *tag as u16 == number)
    }
}

impl Header {
    /// A header for a body of `length` bytes.
    pub fn new(tag: Tag, id: u64, length: usize) -> Self {
        Self {
            length: U32::new(length as u32),
            tag: U16::new(tag as u16),
            version: U16::new(VERSION),
            id: U64::new(id),
        }
    }

    /// Reads and judges a header.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<(Tag, u64, usize), ProtocolError> {
        let header = Header::read_from_bytes(bytes).map_err(|_| ProtocolError::Header("wrong size"))?;
        if header.version.get() != VERSION {
            return Err(ProtocolError::Header(
                "wrong version: supervisor and worker are of different builds",
            ));
        }
        let tag = Tag::from_wire(header.tag.get()).ok_or(ProtocolError::Header("unknown tag"))?;
        let length = header.length.get() as usize;
        if length > MAX_BODY_BYTES {
            return Err(ProtocolError::Header("body too long"));
        }
        Ok((tag, header.id.get(), length))
    }
}

/// A whole message, borrowing its body from the buffer it arrived in.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// Which message.
    pub tag: Tag,
    /// What it is about.
    pub id: u64,
    /// Its body, not yet decoded.
    pub body: &'a [u8],
}
