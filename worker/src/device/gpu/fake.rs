//! A driver without a device, for tests: it records what it is told, in order, and fails where it is told to.
//! Events have passed as soon as they are recorded, unless they are held back.

mod error;
mod memory;

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::BorrowedFd;

use pappus_blueprint::TensorMap;
use pappus_protocol::from_worker::Hello;
use pappus_protocol::{Fault, FaultCode};

pub(super) use self::error::FakeError;
pub(super) use self::memory::{DeviceBuffer, HostBuffer, Memory, Pinned};
use super::driver::{
    self, Access, COUNTERS_BYTES, Code, Driver, LoadedKernel, ParamPlace, Properties, ScrubKernel, ScrubRun,
    Section, Shape, TENSOR_MAP_SLOTS, Variable,
};
use crate::device::CodeError;

/// What the driver was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Did {
    CopyIn {
        to: u64,
        bytes: u64,
    },
    CopyOut {
        from: u64,
        bytes: u64,
    },
    Copy {
        to: u64,
        from: u64,
        bytes: u64,
    },
    Fill {
        to: u64,
        byte: u8,
        bytes: u64,
    },
    Launch(&'static str),
    Record(u64),
    /// A graph is made of what follows in the log up to `Captured`, which does not run.
    Capture,
    Captured(u64),
    /// A graph runs; what is in it follows.
    Graph(u64),
    /// The launch in this place of a graph is changed.
    Change(usize),
    DropGraph(u64),
    Synchronize,
    Stacks(u32),
    Reserve {
        base: u64,
        bytes: u64,
    },
    Free {
        base: u64,
        bytes: u64,
    },
    Map {
        at: u64,
        bytes: u64,
        access: Access,
    },
    Unmap {
        at: u64,
        bytes: u64,
    },
    Load,
    Unload,
    Pin {
        bytes: u64,
        read_only: bool,
    },
    Unpin,
}

/// Settings that a test makes, and the driver's log.
#[derive(Debug, Default)]
struct State {
    log: Vec<Did>,
    capture: Option<Vec<Did>>,
    graphs: HashMap<u64, Vec<Did>>,
    /// What captured launches are told, by graph and place in it, and of those that are captured now.
    params: HashMap<(u64, usize), Vec<u8>>,
    capturing: HashMap<usize, Vec<u8>>,
    next: u64,
    /// Fails the next call that looks like this, with this error.
    fails: Option<(Did, FakeError)>,
    /// How often there is no memory.
    full: u32,
    /// Parameters of the launches of the graph that ran last, in order.
    ran: Vec<Vec<u8>>,
    /// The next copy to the device fails.
    copy_fails: bool,
    /// Copies of several variables at once fail with this.
    apart: Option<FakeError>,
    /// The next tensor map is refused.
    map_fails: bool,
    /// What events answer instead of `Ok(true)`.
    events: Option<Result<bool, FakeError>>,
    /// Multiprocessors that a scrub reaches.
    reached: u32,
    /// Shapes and parameters of launches, captured ones too.
    launched: Vec<(Shape, Vec<u8>)>,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

fn with<T>(f: impl FnOnce(&mut State) -> T) -> T {
    STATE.with_borrow_mut(f)
}

impl State {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// Records a call of the driver, or fails it.
fn tell(did: Did) -> Result<(), FakeError> {
    with(|state| {
        if let Some((_, error)) = state.fails.take_if(|(fails, _)| *fails == did) {
            return Err(error);
        }
        match &mut state.capture {
            Some(capture) => capture.push(did),
            None => state.log.push(did),
        }
        Ok(())
    })
}

fn note(did: Did) {
    with(|state| state.log.push(did));
}

/// What was recorded since the last time.
pub(super) fn log() -> Vec<Did> {
    with(|state| std::mem::take(&mut state.log))
}

/// Shapes and parameters of what was launched or captured since the last time.
pub(super) fn launched() -> Vec<(Shape, Vec<u8>)> {
    with(|state| std::mem::take(&mut state.launched))
}

/// Parameters of the launches of the graph that ran last, in order.
pub(super) fn ran() -> Vec<Vec<u8>> {
    with(|state| state.ran.clone())
}

/// The next call like `did` fails.
pub(super) fn fail(did: Did, error: FakeError) {
    with(|state| state.fails = Some((did, error)));
}

/// For so many calls there is no memory.
pub(super) fn out_of_memory(calls: u32) {
    with(|state| state.full = calls);
}

/// The next copy to the device fails.
pub(super) fn fail_next_copy() {
    with(|state| state.copy_fails = true);
}

/// Copies of several variables at once fail with this.
pub(super) fn keep_variables_apart(error: FakeError) {
    with(|state| state.apart = Some(error));
}

/// The next tensor map is refused.
pub(super) fn fail_next_map() {
    with(|state| state.map_fails = true);
}

/// Sets what events answer from here on; `None`: they have passed.
pub(super) fn events(say: Option<Result<bool, FakeError>>) {
    with(|state| state.events = say);
}

/// How many multiprocessors scrubs reach.
pub(super) fn reached(multiprocessors: u32) {
    with(|state| state.reached = multiprocessors);
}

/// The driver.
#[derive(Debug)]
pub(super) struct Fake {
    pub(super) properties: Properties,
    /// As its greeting says.
    pub(super) context_bytes: u64,
}

pub(super) const GRANULE: u64 = 2 << 20;
pub(super) const MULTIPROCESSORS: u32 = 4;

impl Fake {
    /// A driver that was told nothing yet.
    pub(super) fn new() -> Self {
        with(|state| *state = State { reached: MULTIPROCESSORS, ..State::default() });
        let properties = Properties {
            name: "fake".into(),
            memory_bytes: 1 << 30,
            multiprocessors: MULTIPROCESSORS,
            pins_read_only: true,
            host_addresses: false,
            finds_others: false,
            stacks_per_stream: false,
            has_clusters: true,
            has_windows: true,
        };
        Self { properties, context_bytes: 0 }
    }
}

impl Driver for Fake {
    type Error = FakeError;
    type Stream = Stream;
    type Event = Event;
    type Graph = Graph;
    type Launch = usize;
    type Module = Module;
    type Kernel = &'static str;
    type Memory = Memory;
    type Pinned = Pinned;
    type HostBuffer = HostBuffer;
    type DeviceBuffer = DeviceBuffer;

    fn hello(&self) -> Hello {
        Hello { context_bytes: self.context_bytes, ..Hello::new("fake", "fake") }
    }

    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn synchronize(&self) -> Result<(), FakeError> {
        tell(Did::Synchronize)
    }

    fn make_stacks(&self, bytes: u32) -> Result<(), FakeError> {
        tell(Did::Stacks(bytes))
    }

    fn create_stream(&self) -> Result<Stream, FakeError> {
        Ok(Stream)
    }

    fn create_event(&self, _: bool) -> Result<Event, FakeError> {
        Ok(Event(with(State::number)))
    }

    /// A module has fenced code if a line says so; that takes the lines as they are, but for variables.
    fn open(image: Vec<u8>, fenced: bool) -> Result<Code, CodeError> {
        let parsed = Module::parse(&image).ok_or("no fake module")?;
        if !fenced {
            return Ok(Code { machine: image, variables_bytes: 0, initial: Vec::new() });
        }
        let (variables_bytes, initial) = parsed.fenced.ok_or("it is not fenced")?;
        Ok(Code { machine: image, variables_bytes, initial: vec![1; initial] })
    }

    fn writable_sections(image: &[u8]) -> Result<Vec<Section>, CodeError> {
        let parsed = Module::parse(image).ok_or("no fake module")?;
        let variables = parsed.variables.iter().chain(&parsed.hidden).enumerate();
        let variables = variables.map(|(at, name)| Variable { name: name.clone(), offset: at as u64 * 64 });
        let variables: Vec<_> = variables.collect();
        Ok(if variables.is_empty() { Vec::new() } else { vec![Section { variables }] })
    }

    fn load_module(&self, image: &[u8]) -> Result<Module, FakeError> {
        note(Did::Load);
        Module::parse(image).ok_or(FakeError::Refused)
    }

    fn encode_tensor_map(&self, map: &TensorMap, address: u64) -> Result<[u64; TENSOR_MAP_SLOTS], Fault> {
        if with(|state| std::mem::take(&mut state.map_fails)) {
            return Err(Fault::new(FaultCode::BadInvoke, "no such map"));
        }
        let mut slots = [0; TENSOR_MAP_SLOTS];
        (slots[0], slots[1], slots[TENSOR_MAP_SLOTS - 1]) = (address, map.shape[0], map.box_shape[0].into());
        Ok(slots)
    }

    fn copy_kernel(&self) -> Result<(Module, &'static str), Fault> {
        Ok((Module::default(), "copy"))
    }

    fn scrub_kernels(&self) -> Result<Vec<ScrubKernel<Module, &'static str>>, Fault> {
        let run = ScrubRun { shared_bytes: 1024, blocks_each: 1, least: 1 };
        Ok(vec![ScrubKernel { kernel: "chip", runs: vec![run, run], threads: 64, module: Module::default() }])
    }

    fn stack_scrub_kernel(&self, bytes: u32) -> Result<ScrubKernel<Module, &'static str>, Fault> {
        let run = ScrubRun { shared_bytes: 0, blocks_each: 2, least: 2 };
        let kernel = match bytes {
            1024 => "stack of 1024",
            4096 => "stack of 4096",
            _ => return Err(Fault::new(FaultCode::Internal, format!("{bytes} bytes of stack"))),
        };
        Ok(ScrubKernel { kernel, runs: vec![run], threads: 64, module: Module::default() })
    }

    fn granularity(&self) -> Result<u64, FakeError> {
        Ok(GRANULE)
    }

    fn create_memory(&self, bytes: u64, _: bool) -> Result<Memory, FakeError> {
        if let Some(left) = with(|state| state.full.checked_sub(1)) {
            with(|state| state.full = left);
            return Err(FakeError::OutOfMemory);
        }
        Ok(Memory { bytes })
    }

    fn import_memory(&self, _: BorrowedFd<'_>, bytes: u64) -> Result<Memory, FakeError> {
        Ok(Memory { bytes })
    }

    fn reserve(&self, bytes: u64) -> Result<u64, FakeError> {
        let base = with(State::number) << 36;
        tell(Did::Reserve { base, bytes }).map(|()| base)
    }

    fn free(base: u64, bytes: u64) {
        note(Did::Free { base, bytes });
    }

    fn map(&self, at: u64, memory: &Memory, access: Access) -> Result<(), FakeError> {
        tell(Did::Map { at, bytes: memory.bytes, access })
    }

    fn unmap(at: u64, bytes: u64) {
        note(Did::Unmap { at, bytes });
    }

    unsafe fn pin(&self, _: *mut u8, bytes: u64, read_only: bool) -> Result<Pinned, FakeError> {
        tell(Did::Pin { bytes, read_only }).map(|()| Pinned)
    }

    fn allocate_host(&self, bytes: usize) -> Result<HostBuffer, FakeError> {
        Ok(HostBuffer(Box::into_raw(vec![0; bytes].into())))
    }

    fn allocate_device(&self, _: u64) -> Result<DeviceBuffer, FakeError> {
        Ok(DeviceBuffer(with(State::number) << 36))
    }
}

#[derive(Debug)]
pub(super) struct Stream;

impl driver::Stream for Stream {
    type Error = FakeError;
    type Event = Event;
    type Graph = Graph;
    type Kernel = &'static str;
    type Launch = usize;

    unsafe fn copy_in(&self, to: u64, _: *const u8, bytes: u64) -> Result<(), FakeError> {
        if with(|state| std::mem::take(&mut state.copy_fails)) {
            return Err(FakeError::Refused);
        }
        tell(Did::CopyIn { to, bytes })
    }

    unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: u64) -> Result<(), FakeError> {
        if bytes == COUNTERS_BYTES {
            let reached = 1..=with(|state| state.reached) as usize;
            for counter in 0..bytes as usize / 4 {
                let blocks: u32 = if reached.contains(&counter) { 2 } else { 0 };
                // SAFETY: the counters are this long, as the scrubber promises.
                unsafe { to.cast::<u32>().add(counter).write_unaligned(blocks) };
            }
        }
        tell(Did::CopyOut { from, bytes })
    }

    fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), FakeError> {
        if from == VARIABLES_AT && bytes > VARIABLE_BYTES {
            with(|state| state.apart.map_or(Ok(()), Err))?;
        }
        tell(Did::Copy { to, from, bytes })
    }

    fn fill(&self, to: u64, byte: u8, bytes: u64) -> Result<(), FakeError> {
        tell(Did::Fill { to, byte, bytes })
    }

    fn launch(&self, kernel: &'static str, shape: &Shape, params: &[u8]) -> Result<(), FakeError> {
        with(|state| {
            state.launched.push((*shape, params.to_vec()));
            if let Some(at) = state.capture.as_ref().map(Vec::len) {
                state.capturing.insert(at, params.to_vec());
            }
        });
        tell(Did::Launch(kernel))
    }

    fn record(&self, event: &Event) -> Result<(), FakeError> {
        tell(Did::Record(event.0))
    }

    fn record_in_graph(&self, event: &Event) -> Result<(), FakeError> {
        tell(Did::Record(event.0))
    }

    fn synchronize(&self) -> Result<(), FakeError> {
        tell(Did::Synchronize)
    }

    fn has_ended(&self) -> Result<bool, FakeError> {
        with(|state| state.events).unwrap_or(Ok(true))
    }

    fn launch_graph(&self, graph: &Graph) -> Result<(), FakeError> {
        tell(Did::Graph(graph.number))?;
        with(|state| {
            state.log.extend_from_slice(&state.graphs[&graph.number]);
            let told = (0..state.graphs[&graph.number].len())
                .filter_map(|at| Some(state.params.get(&(graph.number, at))?.clone()));
            state.ran = told.collect();
        });
        Ok(())
    }

    fn begin_capture(&self) -> Result<(), FakeError> {
        tell(Did::Capture)?;
        with(|state| state.capture = Some(Vec::new()));
        Ok(())
    }

    fn collected(&self) -> Result<usize, FakeError> {
        with(|state| state.capture.as_ref()?.len().checked_sub(1)).ok_or(FakeError::Refused)
    }

    fn end_capture(&self, keeps_template: bool) -> Result<Graph, FakeError> {
        let captured = with(|state| state.capture.take()).ok_or(FakeError::Refused)?;
        let number = with(State::number);
        tell(Did::Captured(number))?;
        with(|state| {
            state.graphs.insert(number, captured);
            let params = std::mem::take(&mut state.capturing);
            state.params.extend(params.into_iter().map(|(at, params)| ((number, at), params)));
        });
        Ok(Graph { number, changes: keeps_template })
    }
}

#[derive(Debug)]
pub(super) struct Event(u64);

impl driver::Event for Event {
    type Error = FakeError;

    fn has_passed(&self) -> Result<bool, FakeError> {
        with(|state| state.events).unwrap_or(Ok(true))
    }

    fn ns_since(&self, _: &Self) -> u64 {
        1
    }
}

#[derive(Debug)]
pub(super) struct Graph {
    number: u64,
    /// Launches of it are known.
    changes: bool,
}

impl driver::Graph for Graph {
    type Error = FakeError;
    type Kernel = &'static str;
    type Launch = usize;

    fn change(&self, launch: usize, kernel: &'static str, _: &Shape, params: &[u8]) -> Result<(), FakeError> {
        let was = with(|state| state.graphs[&self.number].get(launch).cloned());
        if !self.changes || was != Some(Did::Launch(kernel)) {
            return Err(FakeError::Refused);
        }
        tell(Did::Change(launch))?;
        with(|state| state.params.insert((self.number, launch), params.to_vec()));
        Ok(())
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        note(Did::DropGraph(self.number));
    }
}

/// A module is a text of lines: `kernel NAME BYTES…` (of its parameters), `stack BYTES` (of all kernels),
/// `variable NAME`, `hidden NAME` for a variable that the driver does not know by name, and `fenced BYTES INITIAL` for code with so
/// many bytes of variables in its window, of which some are not zero.
#[derive(Debug, Default)]
pub(super) struct Module {
    kernels: Vec<(String, Vec<u32>)>,
    variables: Vec<String>,
    hidden: Vec<String>,
    stack: u32,
    fenced: Option<(u64, usize)>,
}

impl Module {
    fn parse(image: &[u8]) -> Option<Self> {
        let mut module = Self::default();
        for line in std::str::from_utf8(image).ok()?.lines() {
            let mut parts = line.split(' ');
            let (what, name) = (parts.next()?, parts.next()?.to_owned());
            match what {
                "kernel" => module.kernels.push((name, parts.flat_map(str::parse).collect())),
                "variable" => module.variables.push(name),
                "hidden" => module.hidden.push(name),
                "stack" => module.stack = name.parse().ok()?,
                "fenced" => module.fenced = Some((name.parse().ok()?, parts.next()?.parse().ok()?)),
                _ => return None,
            }
        }
        Some(module)
    }
}

/// The largest alignment of a parameter; each has that of its size.
const PARAM_ALIGN: u32 = 64;

/// Bytes of each variable, and where variables lie.
pub(super) const VARIABLE_BYTES: u64 = 64;
pub(super) const VARIABLES_AT: u64 = 1 << 50;

impl driver::Module for Module {
    type Error = FakeError;
    type Kernel = &'static str;

    fn kernel(&self, name: &str) -> Result<Option<LoadedKernel<&'static str>>, FakeError> {
        let Some((name, sizes)) = self.kernels.iter().find(|(other, _)| other == name) else {
            return Ok(None);
        };
        let mut end = 0u32;
        let params = sizes.iter().map(|&bytes| {
            let offset = end.next_multiple_of(bytes.clamp(1, PARAM_ALIGN));
            end = offset + bytes;
            ParamPlace { offset, bytes }
        });
        let params = params.collect();
        let kernel: &'static str = name.clone().leak();
        Ok(Some(LoadedKernel { kernel, params, local_bytes: self.stack, window: None }))
    }

    fn variable(&self, name: &str) -> Option<(u64, u64)> {
        let at = self.variables.iter().position(|other| other == name)?;
        Some((VARIABLES_AT + at as u64 * VARIABLE_BYTES, VARIABLE_BYTES))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if !self.kernels.is_empty() {
            note(Did::Unload);
        }
    }
}
