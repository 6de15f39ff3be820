//! What a worker tells the supervisor. [`Done`] is the hot one.

use serde::{Deserialize, Serialize};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use pappus_blueprint::kernel_info::{CodeInfo, KernelInfo, ParamClass, ParamInfo};

use crate::ProtocolError;
use crate::header::{Frame, Tag, VERSION};
use crate::ids::{ArenaId, FunctionId};
use crate::layers::Layers;
use crate::limits::MAX_FAULT_BYTES;

/// One message from a worker, borrowing from the frame it came in.
#[derive(Debug)]
pub enum FromWorker<'a> {
    /// Ready for work; the first message.
    Hello(Hello),
    /// A call succeeded and its outputs lie where they were asked for.
    Done {
        /// As invoked.
        call: u64,
        /// Where the time went.
        timings: Done,
    },
    /// A call failed; its output regions are zeroed.
    Failed {
        /// As invoked.
        call: u64,
        /// Why.
        fault: FaultRef<'a>,
    },
    /// There is something on the [turn page](crate::turn_page), and the supervisor said that it would sleep.
    Yield,
    /// A module was compiled; the machine code is a sealed memfd on the control socket.
    Compiled {
        /// As asked.
        job: u64,
        /// What is in it.
        module: CodeInfo,
    },
    /// A module was refused.
    Refused {
        /// As asked.
        job: u64,
        /// Why.
        fault: FaultRef<'a>,
    },
    /// The settings sent are in force, or lanes gave their memory back and nothing of it is mapped any more.
    Leased {
        /// Device memory that all lanes of the worker still have.
        bytes: u64,
    },
    /// The device context is lost: every call in the worker is a suspect, and the worker ends.
    Broken {
        /// The driver's error.
        fault: FaultRef<'a>,
    },
    /// A function's weights are on the device; other workers are not to share them, or can by what they have of the
    /// memory already.
    Loaded {
        /// As told.
        function: FunctionId,
        /// Bytes of device memory.
        bytes: u64,
    },
    /// A function's weights do not load: calls of it fail until they are told to load again.
    NotLoaded {
        /// As told.
        function: FunctionId,
    },
    /// A function does not load: each call of it says why, until it is installed again.
    NotInstalled {
        /// As told.
        function: FunctionId,
    },
    /// A function's weights left the device, and their memory is free.
    Unloaded {
        /// As told.
        function: FunctionId,
    },
    /// A function's weights are on the device: a descriptor of its memory is on the control socket.
    Exported {
        /// As installed.
        function: FunctionId,
        /// Bytes of device memory.
        bytes: u64,
    },
    /// The state of a session is in memory of the device, of which a descriptor is on the control socket; or it stays in its arena.
    State {
        /// As told.
        arena: ArenaId,
        /// Its bytes, two states side by side; 0: it stays in its arena, and no descriptor comes.
        bytes: u64,
    },
    /// A function is forgotten, and its memory free.
    Uninstalled {
        /// As installed.
        function: FunctionId,
    },
    /// Nothing is left of the domain that the worker served: no function, no arena, no byte.
    Scrubbed {
        /// As asked.
        handover: u64,
    },
    /// The devices there are.
    Survey(Survey),
    /// What devices measure of themselves.
    Readings(Readings),
}

/// A worker's first message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Must be the supervisor's own.
    pub version: u16,
    /// The device's kind, such as `cpu`.
    pub device: String,
    /// The architecture that code is compiled for, such as `sm_90`; empty where there is only one.
    pub arch: String,
    /// Everything that compiled code depends on besides the module; part of the cache key of compiled code.
    pub fingerprint: String,
    /// Bytes of device memory that this process takes for itself, before any lease.
    pub context_bytes: u64,
    /// Layers of its sandbox that are in force.
    pub layers: Layers,
}

impl Hello {
    /// A greeting of this build, of a device without architectures and contexts.
    pub fn new(device: impl Into<String>, fingerprint: impl Into<String>) -> Self {
        Self {
            version: VERSION,
            device: device.into(),
            arch: String::new(),
            fingerprint: fingerprint.into(),
            context_bytes: 0,
            layers: Layers::default(),
        }
    }
}

/// The devices of one kind on this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survey {
    /// The driver's version, for people.
    pub driver: String,
    /// True if a daemon lets processes share a device at the same time (MPS).
    pub shared: bool,
    /// The devices.
    pub devices: Vec<FoundDevice>,
    /// Layers of the sandbox that this was found in.
    pub layers: Layers,
}

/// A device that a survey found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundDevice {
    /// Its position, in the order of the bus.
    pub index: u32,
    /// Its name, for people.
    pub name: String,
    /// A name that never changes, such as `GPU-…`.
    pub uuid: String,
    /// Such as `sm_90`.
    pub arch: String,
    /// All of its memory.
    pub memory_bytes: u64,
    /// Bytes that are free now.
    pub free_bytes: u64,
    /// The node of the host's memory that it is attached to, if the host says so.
    pub numa_node: Option<u32>,
}

/// What devices measure of themselves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readings {
    /// One for each device, in the order of the question.
    pub devices: Vec<Reading>,
    /// Layers of the sandbox that the process is in.
    pub layers: Layers,
}

/// What one device measures of itself. A value that the device does not know is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// Energy since its driver was loaded, in millijoules.
    pub energy_mj: Option<u64>,
    /// Power that it draws now, in milliwatts.
    pub power_mw: Option<u32>,
    /// Of the last moments, the part in which a kernel ran.
    pub busy_percent: Option<u32>,
    /// Of the last moments, the part in which its memory was read or written.
    pub memory_busy_percent: Option<u32>,
}

/// Timings of a successful call, in nanoseconds.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Done {
    /// Copying inputs to the device.
    pub copy_in_ns: U64,
    /// Running the steps.
    pub execute_ns: U64,
    /// Copying outputs back.
    pub copy_out_ns: U64,
    /// Clearing what the lane's previous call left.
    pub clear_ns: U64,
}

impl Done {
    /// From the first copy to the last.
    pub fn on_device(&self) -> std::time::Duration {
        let parts = [self.copy_in_ns, self.execute_ns, self.copy_out_ns];
        std::time::Duration::from_nanos(parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.get())))
    }
}

const _: () = assert!(size_of::<Done>() == 32 && size_of::<FaultHead>() == 8);

/// Why a call or a module failed. Numbers are wire tags; retired ones stay reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum FaultCode {
    /// A kernel did something illegal.
    KernelTrap = 1,
    /// The deadline passed.
    Deadline = 2,
    /// The plan does not fit into what the lane was lent.
    OutOfMemory = 3,
    /// The function or its modules could not be loaded.
    Load = 4,
    /// The invocation contradicts the function or names what is not there.
    BadInvoke = 5,
    /// A module breaks the rules for modules.
    BadModule = 6,
    /// The worker's own fault.
    Internal = 7,
    /// The device or its driver failed, no kernel is known to be guilty.
    Device = 8,
    /// The host ran out of something; the same call may run later.
    Exhausted = 9,
}

impl FaultCode {
    fn from_wire(number: u16) -> Option<Self> {
        use FaultCode::*;
        [KernelTrap, Deadline, OutOfMemory, Load, BadInvoke, BadModule, Internal, Device, Exhausted]
            .into_iter()
            .find(|code| *code as u16 == number)
    }
}

/// Why something failed, owned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// The kind of failure.
    pub code: FaultCode,
    /// The guilty kernel's index in the blueprint, if one is.
    pub kernel: Option<u32>,
    /// What happened and what to do.
    pub message: String,
}

impl Fault {
    /// A fault without a guilty kernel.
    pub fn new(code: FaultCode, message: impl Into<String>) -> Self {
        Self { code, kernel: None, message: message.into() }
    }

    /// The fault as it is written to a frame.
    pub fn as_ref(&self) -> FaultRef<'_> {
        FaultRef { code: self.code, kernel: self.kernel, message: &self.message }
    }
}

/// Why something failed, read in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultRef<'a> {
    /// The kind of failure.
    pub code: FaultCode,
    /// The guilty kernel's index in the blueprint, if one is.
    pub kernel: Option<u32>,
    /// What happened and what to do.
    pub message: &'a str,
}

impl FaultRef<'_> {
    /// Keeps it beyond the frame.
    pub fn to_fault(&self) -> Fault {
        Fault { code: self.code, kernel: self.kernel, message: self.message.to_owned() }
    }
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct FaultHead {
    code: U16,
    has_kernel: U16,
    kernel: U32,
}

impl FaultRef<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        let head = FaultHead {
            code: U16::new(self.code as u16),
            has_kernel: U16::new(u16::from(self.kernel.is_some())),
            kernel: U32::new(self.kernel.unwrap_or(0)),
        };
        out.extend_from_slice(head.as_bytes());
        let mut end = self.message.len().min(MAX_FAULT_BYTES);
        while !self.message.is_char_boundary(end) {
            end -= 1;
        }
        out.extend_from_slice(&self.message.as_bytes()[..end]);
    }
}

impl<'a> FaultRef<'a> {
    fn decode(body: &'a [u8]) -> Option<Self> {
        let (head, message) = FaultHead::ref_from_prefix(body).ok()?;
        if message.len() > MAX_FAULT_BYTES || head.has_kernel.get() > 1 {
            return None;
        }
        Some(Self {
            code: FaultCode::from_wire(head.code.get())?,
            kernel: (head.has_kernel.get() == 1).then_some(head.kernel.get()),
            message: std::str::from_utf8(message).ok()?,
        })
    }
}

impl<'a> FromWorker<'a> {
    /// The message's tag and what it is about.
    pub fn head(&self) -> (Tag, u64) {
        match *self {
            Self::Hello(_) => (Tag::Hello, 0),
            Self::Done { call, .. } => (Tag::Done, call),
            Self::Failed { call, .. } => (Tag::Failed, call),
            Self::Yield => (Tag::Yield, 0),
            Self::Compiled { job, .. } => (Tag::Compiled, job),
            Self::Refused { job, .. } => (Tag::Refused, job),
            Self::Leased { .. } => (Tag::Leased, 0),
            Self::Broken { .. } => (Tag::Broken, 0),
            Self::Exported { function, .. } => (Tag::Exported, function.get()),
            Self::Loaded { function, .. } => (Tag::Loaded, function.get()),
            Self::State { arena, .. } => (Tag::State, arena.get()),
            Self::NotLoaded { function } => (Tag::NotLoaded, function.get()),
            Self::NotInstalled { function } => (Tag::NotInstalled, function.get()),
            Self::Unloaded { function } => (Tag::Unloaded, function.get()),
            Self::Survey(_) => (Tag::Survey, 0),
            Self::Readings(_) => (Tag::Readings, 0),
            Self::Uninstalled { function } => (Tag::Uninstalled, function.get()),
            Self::Scrubbed { handover } => (Tag::Scrubbed, handover),
        }
    }

    /// Appends the body's bytes.
    pub fn encode_body(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello(hello) => crate::cold::append(out, hello),
            Self::Done { timings, .. } => out.extend_from_slice(timings.as_bytes()),
            Self::Failed { fault, .. } | Self::Refused { fault, .. } | Self::Broken { fault } => {
                fault.encode(out);
            }
            Self::Leased { bytes: number }
            | Self::Loaded { bytes: number, .. }
            | Self::State { bytes: number, .. }
            | Self::Exported { bytes: number, .. } => out.extend_from_slice(&number.to_le_bytes()),
            Self::Compiled { module, .. } => crate::cold::append(out, module),
            Self::Survey(survey) => crate::cold::append(out, survey),
            Self::Readings(readings) => crate::cold::append(out, readings),
            Self::Yield
            | Self::Uninstalled { .. }
            | Self::NotLoaded { .. }
            | Self::NotInstalled { .. }
            | Self::Unloaded { .. }
            | Self::Scrubbed { .. } => {}
        }
    }

    /// Reads a message.
    pub fn decode(Frame { tag, id, body }: Frame<'a>) -> Result<Self, ProtocolError> {
        let bad = |message| ProtocolError::Body { message, why: "malformed" };
        let message = match tag {
            Tag::Hello => Self::Hello(postcard::from_bytes(body).map_err(|_| bad("Hello"))?),
            Tag::Done => {
                Self::Done { call: id, timings: Done::read_from_bytes(body).map_err(|_| bad("Done"))? }
            }
            Tag::Failed => Self::Failed { call: id, fault: FaultRef::decode(body).ok_or(bad("Failed"))? },
            Tag::Yield => Self::Yield,
            Tag::Leased => Self::Leased { bytes: number(body).ok_or(bad("Leased"))? },
            Tag::Exported => {
                Self::Exported { function: FunctionId::new(id), bytes: number(body).ok_or(bad("Exported"))? }
            }
            Tag::Loaded => {
                Self::Loaded { function: FunctionId::new(id), bytes: number(body).ok_or(bad("Loaded"))? }
            }
            Tag::State => Self::State { arena: ArenaId::new(id), bytes: number(body).ok_or(bad("State"))? },
            Tag::NotLoaded => Self::NotLoaded { function: FunctionId::new(id) },
            Tag::NotInstalled => Self::NotInstalled { function: FunctionId::new(id) },
            Tag::Unloaded => Self::Unloaded { function: FunctionId::new(id) },
            Tag::Broken => Self::Broken { fault: FaultRef::decode(body).ok_or(bad("Broken"))? },
            Tag::Survey => Self::Survey(postcard::from_bytes(body).map_err(|_| bad("Survey"))?),
            Tag::Readings => Self::Readings(postcard::from_bytes(body).map_err(|_| bad("Readings"))?),
            Tag::Uninstalled => Self::Uninstalled { function: FunctionId::new(id) },
            Tag::Scrubbed => Self::Scrubbed { handover: id },
            Tag::Compiled => {
                Self::Compiled { job: id, module: postcard::from_bytes(body).map_err(|_| bad("Compiled"))? }
            }
            Tag::Refused => Self::Refused { job: id, fault: FaultRef::decode(body).ok_or(bad("Refused"))? },
            _ => {
                return Err(ProtocolError::Header("a supervisor's message sent to the supervisor"));
            }
        };
        Ok(message)
    }
}

/// A body that is one number.
fn number(body: &[u8]) -> Option<u64> {
    body.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_survive_the_wire() {
        let fault = Fault {
            code: FaultCode::KernelTrap,
            kernel: Some(3),
            message: format!("{}é", "x".repeat(MAX_FAULT_BYTES - 1)),
        };
        let mut body = Vec::new();
        FromWorker::Failed { call: 1, fault: fault.as_ref() }.encode_body(&mut body);
        let FromWorker::Failed { call: 1, fault: got } =
            FromWorker::decode(Frame { tag: Tag::Failed, id: 1, body: &body }).unwrap()
        else {
            panic!("another message");
        };
        assert_eq!((got.code, got.kernel), (fault.code, fault.kernel));
        assert_eq!(got.message.len(), MAX_FAULT_BYTES - 1, "cut before the character that does not fit");

        let reading = Reading { energy_mj: Some(u64::MAX), busy_percent: Some(7), ..Reading::default() };
        let readings = Readings { devices: vec![reading, Reading::default()], layers: Layers::default() };
        body.clear();
        FromWorker::Readings(readings.clone()).encode_body(&mut body);
        let read = FromWorker::decode(Frame { tag: Tag::Readings, id: 0, body: &body }).unwrap();
        assert!(matches!(read, FromWorker::Readings(got) if got == readings));
    }

    #[test]
    fn lies_are_refused() {
        for (tag, body) in [
            (Tag::Done, &[0; 31][..]),
            (Tag::Failed, &[0; 8]),
            (Tag::Failed, &[1, 0, 2, 0, 0, 0, 0, 0]),
            (Tag::Failed, &[1, 0, 0, 0, 0, 0, 0, 0, 0xff]),
            (Tag::Readings, &[1, 0, 0, 0]),
            (Tag::Readings, &[0xff; 9]),
            (Tag::Invoke, &[]),
        ] {
            assert!(FromWorker::decode(Frame { tag, id: 1, body }).is_err(), "{tag:?} {body:?}");
        }
    }
}
