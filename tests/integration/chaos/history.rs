//! What happened in a run, in order: clients note what they sent and got, the injector what it did to which process.
//! Something is noted before it is done and once it is seen, so that causes stand before their effects.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use pappus_client::Code;

/// A connection, by a number that is never used twice in a run.
pub(crate) type Conn = u32;

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Event {
    /// Since the run began.
    pub(crate) at: Duration,
    pub(crate) what: What,
}

/// What can happen.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum What {
    /// A client is about to connect.
    Joined { conn: Conn },
    /// A client is about to send a call, by an id that is never used twice in a run.
    Sent { conn: Conn, id: u64, ask: Ask },
    /// A client is about to give a call up.
    Cancelled { conn: Conn, id: u64 },
    /// A client has an answer.
    Answered { conn: Conn, id: u64, answer: Answer },
    /// A client is about to close its connection, or to break the rules.
    Left { conn: Conn },
    /// A client sees the end of its connection.
    Lost { conn: Conn },
    /// The injector is about to do something.
    Fault(Fault),
    /// Something that lasts is over.
    Over(Fault),
}

/// What a call is and what must come of it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ask {
    pub(crate) function: &'static str,
    pub(crate) end: End,
    pub(crate) deadline: Duration,
    /// By a client whose own deeds may cost it answers: others owe it less.
    pub(crate) hostile: bool,
}

/// How a call ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Well, with outputs of this digest.
    Well(u64),
    /// With a fault of its kernel.
    Fault,
    /// Not at all.
    Never,
}

/// What a client was told.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answer {
    /// Success: the outputs' digest, and how long the supervisor says that it took.
    Done { digest: u64, total: Duration },
    /// An error.
    Refused { code: Code, words: String },
}

/// What is done to the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// A worker is killed.
    WorkerKilled,
    /// A process that serves no tenant yet is killed: a standby, one that starts, one that compiles.
    OtherKilled,
    /// A worker stands still for a while.
    WorkerStopped,
    /// The supervisor stands still for a while.
    SupervisorStopped,
    /// The supervisor is killed, and started again.
    SupervisorKilled,
    /// The supervisor drains, and is started again.
    Drained,
    /// The supervisor gets no further descriptors for a while.
    NoDescriptors,
    /// The state directory's disk is full for a while.
    DiskFull,
    /// A worker gets no further memory for a while.
    NoMemory,
    /// All workers are killed, and none comes up for a while: the device is lost.
    DeviceLost,
}

/// The digest of outputs.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// Where all actors of a run note what they do.
#[derive(Debug)]
pub(crate) struct History {
    start: Instant,
    events: Mutex<Vec<Event>>,
}

impl History {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), events: Mutex::default() }
    }

    fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        self.events.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Notes something that happens now.
    pub(crate) fn note(&self, what: What) {
        let mut events = self.events();
        // Under the lock, so that the order is that of the times.
        let at = self.start.elapsed();
        events.push(Event { at, what });
    }

    /// All of it so far.
    pub(crate) fn so_far(&self) -> Vec<Event> {
        self.events().clone()
    }
}

/// For a file: one event per line.
pub(crate) fn listed(events: &[Event]) -> String {
    let mut text = String::new();
    for Event { at, what } in events {
        // Writing to a string never fails.
        let _ = writeln!(text, "{:>12.6} {what:?}", at.as_secs_f64());
    }
    text
}
