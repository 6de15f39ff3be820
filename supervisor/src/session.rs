//! Sessions: calls that run one after the other, in the order in which they came, and share state.
//!
//! The state lies in an arena of its own, or in memory of a device in its place ([`state_room`](crate::state_room)), twice over: a
//! call reads it in one half and writes it to the other, and the halves change places when the call is answered with its outputs. A
//! call that fails, is cancelled, or runs again since its process ended changes nothing, and a session outlives every process that
//! its calls were in.
//!
//! ```text
//! line_up ──no call is there──► Turn ──► in the call: passed on by keep(), or where the call is dropped without
//!    └──────► waits ──────────────► Turn, from the call before it
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pappus_blueprint::{Blueprint, limits::BUFFER_ALIGN};
use pappus_proto::limits::MAX_ARENA_BYTES;
use tokio::sync::oneshot;

use crate::arena::Arena;
use crate::ids::TenantId;
use crate::quota::{Limit, QuotaError};
use crate::refusal::{Reason, Refusable};
use crate::sync::{OrderedMutex, rank};
use crate::tenants::{Account, Taken};

/// What a session keeps besides its state and what the state is called.
const SESSION_OVERHEAD_BYTES: u64 = 1024;
/// So many calls may wait before those that were given up are looked for.
const FEW_WAITING: usize = 64;
/// Each half begins on a page.
const PAGE_BYTES: u64 = 4096;

/// What a function's state is: sessions of one shape may be used with one another's functions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateShape {
    owner: TenantId,
    buffers: Box<[(Box<str>, u64)]>,
}

impl StateShape {
    /// The state of one owner's function; none where the blueprint has no state.
    pub fn of(owner: TenantId, blueprint: &Blueprint) -> Option<Self> {
        let names = blueprint.state().iter().map(|id| blueprint.buffers()[id.index()].name.as_str().into());
        let buffers: Box<[_]> = names.zip(blueprint.state_bytes().iter().copied()).collect();
        (!buffers.is_empty()).then_some(Self { owner, buffers })
    }

    /// Bytes of a half: each buffer is aligned as in a pool; an error where two halves are more than an arena may have.
    fn half_bytes(&self) -> Result<u64, SessionError> {
        let aligned = |bytes: u64| bytes.checked_next_multiple_of(BUFFER_ALIGN);
        let sum = self.buffers.iter().try_fold(0_u64, |sum, (_, bytes)| sum.checked_add(aligned(*bytes)?));
        let half = sum.and_then(|sum| sum.max(1).checked_next_multiple_of(PAGE_BYTES));
        half.filter(|half| *half <= MAX_ARENA_BYTES / 2).ok_or(SessionError::TooLarge)
    }

    /// What a session keeps of it in the supervisor's own memory.
    fn held_bytes(&self) -> u64 {
        let names: usize = self.buffers.iter().map(|(name, _)| name.len()).sum();
        (size_of_val(&*self.buffers) + names) as u64
    }
}

/// Why a session is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WhyOver {
    /// Its client closed it.
    #[error("it was closed")]
    Closed,
    /// No call came for too long.
    #[error("no call of it came for longer than the operator's session-idle")]
    Idle,
}

/// A session that a call cannot be in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// None has that number on this connection.
    #[error(
        "this connection has no session {0}: a session ends with its connection; open another one, whose state is zero"
    )]
    None(u64),
    /// It is over.
    #[error("session {id} is over, and its state is gone: {why}; open another one, whose state is zero")]
    Over {
        /// Its number.
        id: u64,
        /// Why.
        why: WhyOver,
    },
    /// A function with state, called without a session.
    #[error("the function has state: open a session of it, and name the session in the call")]
    Needed,
    /// A function without state, or with another one.
    #[error(
        "the session is of a function with other state: sizes and names of the buffers, and the owner, must be the same"
    )]
    Other,
    /// A session of a function without state.
    #[error("the function has no state: it is called without a session")]
    Stateless,
    /// The state is too large.
    #[error("the state is larger than a session can keep: {} bytes", MAX_ARENA_BYTES / 2)]
    TooLarge,
    /// As many as there may be.
    #[error("this connection has as many sessions as it may have: close one")]
    TooMany,
}

impl Refusable for SessionError {
    fn reason(&self) -> Reason {
        match self {
            Self::None(_) | Self::Over { .. } => Reason::SessionLost,
            Self::Needed | Self::Other | Self::Stateless | Self::TooLarge => Reason::InvalidArgument,
            Self::TooMany => Reason::ResourceExhausted,
        }
    }

    fn place(&self) -> std::borrow::Cow<'_, str> {
        "session".into()
    }
}

/// One session.
#[derive(Debug)]
pub struct Session {
    /// Its number, never used twice.
    pub id: u64,
    /// Whose it is.
    pub account: Arc<Account>,
    /// OWNER/NAME of the function that it was opened for.
    pub function: String,
    shape: StateShape,
    half_bytes: u64,
    /// What the session takes of the supervisor's own memory.
    _held: Taken,
    begun: Instant,
    line: OrderedMutex<Line, { rank::SESSION }>,
}

/// The calls of a session, and its state.
#[derive(Debug)]
struct Line {
    /// The memory of the state; none once the session is over and no call has it.
    memory: Option<Arc<Arena>>,
    over: Option<WhyOver>,
    /// True if the state lies in the second half.
    in_second: bool,
    /// True while a call has the turn.
    busy: bool,
    /// Calls that came behind it. Some were given up.
    waiting: VecDeque<oneshot::Sender<Turn>>,
    /// How many there may be before those that were given up are forgotten.
    tidy_at: usize,
    calls: u64,
    used: Instant,
}

/// A session as the operator sees it.
#[derive(Debug)]
pub struct SessionView {
    /// What its state takes.
    pub bytes: u64,
    /// The device whose memory has the state; none if memory of the host has it.
    pub device: Option<String>,
    /// Calls that changed the state.
    pub calls: u64,
    /// Calls that are accepted and not over.
    pub open_calls: u64,
    /// Since it was opened.
    pub age: Duration,
    /// Since a call of it came or was over.
    pub idle: Duration,
}

impl Session {
    /// Bytes of the memory of a session of this shape.
    pub fn memory_bytes(shape: &StateShape) -> Result<u64, SessionError> {
        shape.half_bytes().map(|half| 2 * half)
    }

    /// A session whose state lies in this memory, of as many bytes as it takes, which are zero.
    pub fn new(
        id: u64,
        account: &Arc<Account>,
        function: String,
        shape: StateShape,
        memory: Arc<Arena>,
    ) -> Result<Arc<Self>, QuotaError> {
        let held = account.take(Limit::PlanBytes, SESSION_OVERHEAD_BYTES + shape.held_bytes())?;
        let (half_bytes, now) = (memory.memfd.bytes() / 2, Instant::now());
        let line = Line {
            memory: Some(memory),
            over: None,
            in_second: false,
            busy: false,
            waiting: VecDeque::new(),
            tidy_at: FEW_WAITING,
            calls: 0,
            used: now,
        };
        let (account, line) = (account.clone(), OrderedMutex::new(line));
        Ok(Arc::new(Self { id, account, function, shape, half_bytes, _held: held, begun: now, line }))
    }

    /// A call came: its turn, or what the turn will come from once the calls before are over.
    pub fn line_up(self: &Arc<Self>) -> Result<Place, SessionError> {
        let mut line = self.line.lock();
        if let Some(why) = line.over {
            return Err(SessionError::Over { id: self.id, why });
        }
        line.used = Instant::now();
        if line.busy {
            if line.waiting.len() >= line.tidy_at {
                line.waiting.retain(|call| !call.is_closed());
                line.tidy_at = FEW_WAITING.max(2 * line.waiting.len());
            }
            let (turn, place) = oneshot::channel();
            line.waiting.push_back(turn);
            return Ok(Place::Later(place));
        }
        let turn = line.turn(self);
        turn.map(Place::Now).ok_or(SessionError::None(self.id))
    }

    /// The call that had the turn is over, and `kept` or not: the next one has it.
    fn pass(self: &Arc<Self>, kept: bool) {
        let mut line = self.line.lock();
        line.used = Instant::now();
        line.in_second ^= kept;
        line.calls += u64::from(kept);
        loop {
            line.busy = false;
            let Some(next) = line.waiting.pop_front() else {
                let memory = line.over.and_then(|_| line.memory.take());
                drop(line);
                return drop(memory);
            };
            let Some(turn) = line.turn(self) else { return };
            drop(line);
            match next.send(turn) {
                Ok(()) => return,
                // It was given up.
                Err(turn) => turn.passed.store(true, Ordering::Relaxed),
            }
            line = self.line.lock();
        }
    }

    /// Ends it: its memory is to be forgotten by all workers. None if it was over. Calls that came go on.
    pub fn end(&self, why: WhyOver) -> Option<Arc<Arena>> {
        self.line.lock().end(why)
    }

    /// Ends it where it was without a call for so long: its memory is to be forgotten by all workers.
    pub fn look(&self, most: Duration) -> Option<Arc<Arena>> {
        let mut line = self.line.lock();
        match line.busy || line.used.elapsed() < most {
            true => None,
            false => line.end(WhyOver::Idle),
        }
    }

    /// True if it is over.
    pub fn is_over(&self) -> bool {
        self.line.lock().over.is_some()
    }

    /// What the operator sees; none if it is over.
    pub fn view(&self) -> Option<SessionView> {
        let line = self.line.lock();
        let memory = line.memory.as_ref().filter(|_| line.over.is_none())?;
        let waiting = line.waiting.iter().filter(|call| !call.is_closed()).count() as u64;
        Some(SessionView {
            bytes: memory.memfd.bytes(),
            device: memory.device_memory().map(|memory| memory.device().to_owned()),
            calls: line.calls,
            open_calls: u64::from(line.busy) + waiting,
            age: self.begun.elapsed(),
            idle: line.used.elapsed(),
        })
    }

    /// Bytes of the state.
    pub fn state_bytes(&self) -> u64 {
        self.shape.buffers.iter().map(|(_, bytes)| bytes).sum()
    }

    /// True if calls of a function with this state may be in the session.
    pub fn suits(&self, owner: TenantId, blueprint: &Blueprint) -> bool {
        let names = || blueprint.state().iter().map(|id| &*blueprint.buffers()[id.index()].name);
        let mine = || self.shape.buffers.iter().map(|(name, bytes)| (&**name, *bytes));
        owner == self.shape.owner && names().zip(blueprint.state_bytes().iter().copied()).eq(mine())
    }
}

impl Line {
    /// A call has the turn from now on.
    fn turn(&mut self, session: &Arc<Session>) -> Option<Turn> {
        let (memory, in_second) = (self.memory.clone()?, self.in_second);
        self.busy = true;
        Some(Turn { session: session.clone(), memory, in_second, passed: AtomicBool::new(false) })
    }

    fn end(&mut self, why: WhyOver) -> Option<Arc<Arena>> {
        if self.over.is_some() {
            return None;
        }
        self.over = Some(why);
        if self.busy { self.memory.clone() } else { self.memory.take() }
    }
}

/// A call's place in the line of its session.
#[derive(Debug)]
pub enum Place {
    /// No other call is there.
    Now(Turn),
    /// The turn comes once those before are over. Whoever drops this gives it up.
    Later(oneshot::Receiver<Turn>),
}

/// A call's right to its session's state, until it is kept or dropped.
#[derive(Debug)]
pub struct Turn {
    session: Arc<Session>,
    /// The memory of the state.
    pub memory: Arc<Arena>,
    /// True if the state lies in the second half.
    in_second: bool,
    /// True if the next call has the turn.
    passed: AtomicBool,
}

impl Turn {
    /// The session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Of each buffer of the state: where it is read, where it is written, and its bytes.
    pub fn buffers(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let half = self.session.half_bytes;
        let (mut from, mut to) = if self.in_second { (half, 0) } else { (0, half) };
        self.session.shape.buffers.iter().map(move |(_, bytes)| {
            let aligned = bytes.next_multiple_of(BUFFER_ALIGN);
            let place = (from, to, *bytes);
            (from, to) = (from + aligned, to + aligned);
            place
        })
    }

    /// The call is about to be answered with its outputs: what it wrote is the state from now on, and the next call has the turn, so
    /// that one which follows the answer need not wait.
    pub fn keep(&self) {
        self.pass(true);
    }

    fn pass(&self, kept: bool) {
        if !self.passed.swap(true, Ordering::Relaxed) {
            self.session.pass(kept);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.pass(false);
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
