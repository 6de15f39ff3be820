//! Streams: each has a queue and a thread that does its work in order. Events mark points; a stream that captures
//! collects its work in a graph. Kernels of different streams run beside each other.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use crate::error::{
    self, CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED, Code, INVALID_HANDLE, INVALID_VALUE, NOT_READY,
    OUT_OF_MEMORY,
};
use crate::memory::{self, Registry, locked};
use crate::module::{self, Launch};
use crate::ranges;
use crate::settings::SETTINGS;

/// Something that a stream does.
#[derive(Debug, Clone)]
pub(crate) enum Work {
    /// Copies; both are addresses of this process.
    Copy {
        to: u64,
        from: u64,
        bytes: u64,
    },
    /// Copies what was host memory when it was submitted.
    Bring {
        to: u64,
        bytes: Arc<[u8]>,
    },
    Fill {
        to: u64,
        byte: u8,
        bytes: u64,
    },
    Launch(Arc<Launch>),
    Record(Arc<Event>),
    Graph(Arc<Vec<Work>>),
}

/// A queue of work.
pub(crate) struct Stream {
    queue: Mutex<Sender<Work>>,
    progress: Arc<Progress>,
    capture: Mutex<Option<Capture>>,
}

/// For how long who asks for an event waits until the event has passed.
const PATIENCE: Duration = Duration::from_micros(50);

/// How far a stream's thread is.
#[derive(Default)]
struct Progress {
    submitted: AtomicU64,
    done: Mutex<u64>,
    advanced: Condvar,
}

#[derive(Default)]
struct Capture {
    work: Vec<Work>,
    invalid: bool,
}

/// A point in a stream.
#[derive(Debug, Default)]
pub(crate) struct Event {
    recorded: AtomicU64,
    passed: AtomicU64,
    timed: bool,
    at: Mutex<Option<Instant>>,
    moved: Condvar,
}

/// Collected work.
#[derive(Debug)]
pub(crate) struct Graph(pub(crate) Arc<Vec<Work>>);

pub(crate) static STREAMS: Registry<Stream> = Registry::new();
pub(crate) static EVENTS: Registry<Event> = Registry::new();
pub(crate) static GRAPHS: Registry<Graph> = Registry::new();
pub(crate) static EXECUTABLES: Registry<Graph> = Registry::new();
/// Held for reading by work that runs, for writing by what takes memory away from it.
static RUNNING: RwLock<()> = RwLock::new(());
/// The stream with the handle 0.
static DEFAULT: OnceLock<Arc<Stream>> = OnceLock::new();

/// Does something between two pieces of work.
pub(crate) fn while_nothing_runs<T>(f: impl FnOnce() -> T) -> T {
    let _nothing = RUNNING.write().unwrap_or_else(PoisonError::into_inner);
    f()
}

/// Waits until all streams have done what was submitted.
pub(crate) fn drain_all() {
    STREAMS.all().iter().chain(DEFAULT.get()).for_each(|stream| stream.progress.wait());
}

/// The stream of a handle.
pub(crate) fn find(handle: usize) -> Result<Arc<Stream>, Code> {
    if handle != 0 {
        return STREAMS.get(handle);
    }
    if DEFAULT.get().is_none() {
        let _ = DEFAULT.set(Arc::new(Stream::start()?));
    }
    DEFAULT.get().cloned().ok_or(INVALID_HANDLE)
}

impl Progress {
    fn wait(&self) {
        let target = self.submitted.load(Ordering::Acquire);
        let mut done = locked(&self.done);
        while *done < target && error::stuck().is_ok() {
            done = self.advanced.wait(done).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Stream {
    pub(crate) fn start() -> Result<Self, Code> {
        let (queue, work) = mpsc::channel::<Work>();
        let progress = Arc::new(Progress::default());
        let own = progress.clone();
        let run = move || {
            for piece in work {
                let running = RUNNING.read().unwrap_or_else(PoisonError::into_inner);
                let _ = error::stuck().and_then(|()| piece.run());
                drop(running);
                // The piece's memory is dropped before anyone hears of its end.
                drop(piece);
                *locked(&own.done) += 1;
                own.advanced.notify_all();
            }
        };
        let thread = std::thread::Builder::new().name("hip stream".to_owned()).spawn(run);
        thread.map_err(|_| OUT_OF_MEMORY)?;
        Ok(Self { queue: Mutex::new(queue), progress, capture: Mutex::new(None) })
    }

    /// Submits work, or collects it.
    pub(crate) fn submit(&self, work: Work) -> Result<(), Code> {
        if let Some(capture) = locked(&self.capture).as_mut() {
            capture.work.push(work);
            return Ok(());
        }
        work.is_submitted();
        self.progress.submitted.fetch_add(1, Ordering::AcqRel);
        locked(&self.queue).send(work).map_err(|_| INVALID_HANDLE)
    }

    pub(crate) fn captures(&self) -> bool {
        locked(&self.capture).is_some()
    }

    /// What may not happen while a stream captures invalidates the capture.
    fn must_not_capture(&self) -> Result<(), Code> {
        match locked(&self.capture).as_mut() {
            None => Ok(()),
            Some(capture) => {
                capture.invalid = true;
                Err(CAPTURE_UNSUPPORTED)
            }
        }
    }

    pub(crate) fn synchronize(&self) -> Result<(), Code> {
        self.must_not_capture()?;
        self.progress.wait();
        error::stuck()
    }

    pub(crate) fn query(&self) -> Result<(), Code> {
        self.must_not_capture()?;
        let submitted = self.progress.submitted.load(Ordering::Acquire);
        let is_done = *locked(&self.progress.done) >= submitted;
        error::stuck()?;
        if is_done { Ok(()) } else { Err(NOT_READY) }
    }

    pub(crate) fn begin_capture(&self) -> Result<(), Code> {
        self.must_not_capture()?;
        *locked(&self.capture) = Some(Capture::default());
        Ok(())
    }

    pub(crate) fn end_capture(&self) -> Result<usize, Code> {
        let capture = locked(&self.capture).take().ok_or(INVALID_VALUE)?;
        if capture.invalid {
            return Err(CAPTURE_INVALIDATED);
        }
        Ok(GRAPHS.add(Graph(Arc::new(capture.work))))
    }
}

impl Work {
    /// Events count from here on.
    fn is_submitted(&self) {
        match self {
            Self::Record(event) => {
                event.recorded.fetch_add(1, Ordering::AcqRel);
            }
            Self::Graph(work) => work.iter().for_each(Self::is_submitted),
            _ => {}
        }
    }

    /// True if the operation clears what a call left.
    fn clears(&self) -> bool {
        match self {
            Self::Fill { to, byte: 0, bytes } => memory::is_part(*to, *bytes),
            Self::Copy { to, .. } => module::has(*to),
            _ => false,
        }
    }

    fn run(&self) -> Result<(), Code> {
        error::stuck()?;
        if !SETTINGS.clears && self.clears() {
            return Ok(());
        }
        match self {
            Self::Copy { to, from, bytes } => copy(*to, *from, *bytes),
            Self::Bring { to, bytes } => {
                copy(*to, bytes.as_ptr().expose_provenance() as u64, bytes.len() as u64)
            }
            Self::Fill { to, byte, bytes } => {
                if reaches(*to, *bytes, true) {
                    let to = std::ptr::with_exposed_provenance_mut::<u8>(*to as usize);
                    // SAFETY: mapped for writing, and not taken away while work runs.
                    unsafe { to.write_bytes(*byte, *bytes as usize) };
                }
            }
            Self::Launch(launch) => {
                if let Err(fault) = launch.run() {
                    error::failed(launch.name(), &fault);
                    STREAMS.all().iter().chain(DEFAULT.get()).for_each(|stream| {
                        let _done = locked(&stream.progress.done);
                        stream.progress.advanced.notify_all();
                    });
                    return error::stuck();
                }
            }
            Self::Record(event) => {
                let mut at = locked(&event.at);
                *at = Some(Instant::now());
                event.passed.fetch_add(1, Ordering::AcqRel);
                event.moved.notify_all();
            }
            Self::Graph(work) => work.iter().try_for_each(Self::run)?,
        }
        Ok(())
    }
}

/// True if these addresses are the device's or pinned.
pub(crate) fn reaches(base: u64, bytes: u64, for_writing: bool) -> bool {
    bytes == 0 || ranges::current().around(base, bytes).is_some_and(|range| range.writable || !for_writing)
}

/// True if the addresses are the device's.
pub(crate) fn is_device(base: u64, bytes: u64, for_writing: bool) -> bool {
    let around = ranges::current().around(base, bytes);
    bytes == 0 || around.is_some_and(|range| !range.host && (range.writable || !for_writing))
}

/// Copies between addresses that were found good when the copy was submitted.
fn copy(to: u64, from: u64, bytes: u64) {
    let from = std::ptr::with_exposed_provenance::<u8>(from as usize);
    let to = std::ptr::with_exposed_provenance_mut::<u8>(to as usize);
    // SAFETY: device memory and pinned memory are not taken away while work is there that was submitted before; other
    // memory is the caller's promise.
    unsafe { to.copy_from(from, bytes as usize) };
}

impl Event {
    pub(crate) fn new(timed: bool) -> Self {
        Self { timed, ..Self::default() }
    }

    /// Fails with "not ready" until everything recorded has passed; an event that was never recorded has.
    pub(crate) fn query(&self) -> Result<(), Code> {
        error::stuck()?;
        let recorded = self.recorded.load(Ordering::Acquire);
        let has_passed = || self.passed.load(Ordering::Acquire) >= recorded;
        if !has_passed() {
            // Whoever asks over and over takes no processor from the streams, which compute on the same ones.
            let at = locked(&self.at);
            drop(self.moved.wait_timeout(at, PATIENCE).unwrap_or_else(PoisonError::into_inner));
        }
        if has_passed() { Ok(()) } else { Err(NOT_READY) }
    }

    /// Milliseconds from another event on.
    pub(crate) fn ms_since(&self, earlier: &Self) -> Result<f32, Code> {
        if !self.timed || !earlier.timed {
            return Err(INVALID_HANDLE);
        }
        self.query()?;
        earlier.query()?;
        let (Some(from), Some(to)) = (*locked(&earlier.at), *locked(&self.at)) else {
            return Err(INVALID_HANDLE);
        };
        Ok(to.saturating_duration_since(from).as_secs_f32() * 1e3)
    }
}
