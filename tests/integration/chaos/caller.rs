//! One client's connection in a run: what it sends and gets is noted, its answers' bytes are compared.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use pappus_client::v1::{self, item, request, response};
use pappus_shmem::{Mapping, memfd};

use super::functions::{Kind, bytes_of};
use super::history::{Answer, Ask, Conn, End, History, What, digest};
use crate::fixture::until;
use crate::raw::Raw;

/// The name of clients' memory: nothing of it may be left anywhere once they are gone.
pub(crate) const ARENA_NAME: &str = "chaos-arena";
/// Room of one region.
pub(crate) const REGION_BYTES: usize = 16 << 10;
/// Calls at once through one arena.
pub(crate) const SLOTS: usize = 8;

/// What all actors of a run share.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) history: History,
    pub(crate) socket: PathBuf,
    /// The injector is done: each client finishes what it began.
    pub(crate) over: AtomicBool,
    ids: AtomicU64,
    conns: AtomicU32,
}

impl Run {
    pub(crate) fn new(socket: PathBuf) -> Self {
        let history = History::new();
        Self {
            history,
            socket,
            over: AtomicBool::new(false),
            ids: AtomicU64::new(1),
            conns: AtomicU32::new(1),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// A call's name.
    pub(crate) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// A connection's name.
    pub(crate) fn next_conn(&self) -> Conn {
        self.conns.fetch_add(1, Ordering::Relaxed)
    }
}

/// How the bytes of a call travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Inline,
    /// Through the arena's regions of that number; the answer must have come before it is used again.
    Arena(usize),
    Sealed,
}

/// A call as an actor decides it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    pub(crate) kind: Kind,
    pub(crate) way: Way,
    pub(crate) bytes: usize,
    pub(crate) deadline: Duration,
    pub(crate) hostile: bool,
}

/// The connection is gone.
#[derive(Debug)]
pub(crate) struct Gone;

/// A connection.
pub(crate) struct Caller<'r> {
    run: &'r Run,
    conn: Conn,
    raw: Raw,
    arena: Option<(u64, Mapping)>,
    /// Calls without an answer: what was sent, where the output goes.
    open: HashMap<u64, (Vec<u8>, Option<v1::Region>)>,
    left: bool,
}

impl<'r> Caller<'r> {
    /// Connects, as soon as the supervisor listens; none once the run is over.
    pub(crate) fn connect(run: &'r Run, with_arena: bool) -> Option<Self> {
        let mut found = None;
        until("the supervisor listens", || {
            found = Self::try_connect(run, with_arena);
            found.is_some() || run.is_over()
        });
        found
    }

    fn try_connect(run: &'r Run, with_arena: bool) -> Option<Self> {
        let conn = run.next_conn();
        run.history.note(What::Joined { conn });
        let raw = Raw::try_greeted(&run.socket)?;
        let mut caller = Self { run, conn, raw, arena: None, open: HashMap::new(), left: false };
        if with_arena {
            caller.open_arena().ok()?;
        }
        Some(caller)
    }

    fn open_arena(&mut self) -> Result<(), Gone> {
        let memfd = memfd::arena(ARENA_NAME, (2 * SLOTS * REGION_BYTES) as u64).unwrap();
        let mapping = Mapping::writable(&memfd).unwrap();
        let id = self.run.next_id();
        self.raw
            .try_request(id, request::Body::OpenArena(v1::OpenArena {}), &[memfd.as_fd()])
            .then_some(())
            .ok_or(Gone)?;
        match self.raw.try_answer().ok().flatten().and_then(|answer| answer.body) {
            Some(response::Body::Arena(opened)) => self.arena = Some((opened.arena, mapping)),
            _ => return Err(Gone),
        }
        Ok(())
    }

    /// Sends a call.
    pub(crate) fn call(&mut self, wish: Wish) -> Result<u64, Gone> {
        let id = self.run.next_id();
        let takes = wish.kind.takes_input();
        let sent = if takes { bytes_of(id, wish.bytes) } else { Vec::new() };
        let end = match wish.kind.end() {
            End::Well(_) => End::Well(digest(&sent)),
            other => other,
        };
        let ask = Ask { function: wish.kind.name(), end, deadline: wish.deadline, hostile: wish.hostile };
        let mut memfds = Vec::new();
        let (source, target) = match (wish.way, &self.arena) {
            (Way::Arena(slot), Some((arena, mapping))) => {
                let region = |half: usize| {
                    let offset = ((2 * slot + half) * REGION_BYTES) as u64;
                    v1::Region { arena: *arena, offset, bytes: sent.len() as u64 }
                };
                mapping.write(region(0).offset, &sent).unwrap();
                // Whatever the last call left there is no answer to this one.
                mapping.write(region(1).offset, &vec![0xa5; sent.len()]).unwrap();
                (item::Source::Region(region(0)), Some(region(1)))
            }
            (Way::Sealed, _) if takes => {
                let bytes = sent.len() as u64;
                memfds.push(memfd::sealed(ARENA_NAME, &sent).unwrap());
                (item::Source::Descriptor(v1::Descriptor { index: 0, offset: 0, bytes }), None)
            }
            _ => (item::Source::Inline(sent.clone().into()), None),
        };
        let items = vec![v1::Item { source: Some(source) }];
        let invoke = v1::Invoke {
            function: wish.kind.name().into(),
            inputs: takes.then(|| v1::Input { name: "in".into(), items, r#type: None }).into_iter().collect(),
            outputs: takes.then(|| v1::Output { name: "out".into(), region: target }).into_iter().collect(),
            deadline_ns: wish.deadline.as_nanos() as u64,
            function_version: 0,
            checked: false,
            request_id: String::new(),
            session: 0,
        };
        self.run.history.note(What::Sent { conn: self.conn, id, ask });
        self.open.insert(id, (sent, target));
        let fds: Vec<_> = memfds.iter().map(AsFd::as_fd).collect();
        match self.raw.try_request(id, request::Body::Invoke(invoke), &fds) {
            true => Ok(id),
            false => Err(self.lost()),
        }
    }

    /// Gives a call up.
    pub(crate) fn cancel(&mut self, id: u64) -> Result<(), Gone> {
        self.run.history.note(What::Cancelled { conn: self.conn, id });
        match self.raw.try_request(self.run.next_id(), request::Body::Cancel(v1::Cancel { request: id }), &[])
        {
            true => Ok(()),
            false => Err(self.lost()),
        }
    }

    /// Takes answers until `left` calls have none.
    pub(crate) fn settle(&mut self, left: usize) -> Result<(), Gone> {
        while self.open.len() > left {
            let Ok(answer) = self.raw.try_answer() else {
                // The checker finds what is missing.
                self.left = true;
                return Err(Gone);
            };
            let Some(answer) = answer else { return Err(self.lost()) };
            self.take(answer);
        }
        Ok(())
    }

    fn take(&mut self, response: v1::Response) {
        let (id, conn) = (response.id, self.conn);
        let answer = match response.body.unwrap() {
            response::Body::Invoked(invoked) => {
                let total = Duration::from_nanos(invoked.timings.unwrap().total_ns);
                let known = self.open.get(&id);
                let output = match known.and_then(|(sent, region)| Some((sent.len(), (*region)?))) {
                    Some((bytes, region)) => self.read(region, bytes),
                    None => invoked.outputs.first().map(|o| o.inline.to_vec()).unwrap_or_default(),
                };
                // Byte by byte; the digest is for the checker.
                let same = known.is_some_and(|(sent, _)| *sent == output);
                let digest = if same { digest(&output) } else { !digest(&output) };
                Answer::Done { digest, total }
            }
            response::Body::Error(error) => Answer::Refused { code: error.code(), words: error.message },
            // To a cancellation.
            response::Body::Done(_) => return,
            other => panic!("an answer to something else: {other:?}"),
        };
        self.open.remove(&id);
        self.run.history.note(What::Answered { conn, id, answer });
    }

    fn read(&self, region: v1::Region, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        if let Some((_, mapping)) = &self.arena {
            mapping.read(region.offset, &mut out).unwrap();
        }
        out
    }

    /// True if calls have no answer.
    pub(crate) fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Leaves, whatever is still to come.
    pub(crate) fn leave(mut self) {
        self.leaving();
    }

    /// Says that nothing more will be sent, and takes what still comes.
    pub(crate) fn half_close(mut self) {
        self.leaving();
        self.raw.close_sending();
        while let Ok(Some(answer)) = self.raw.try_answer() {
            self.take(answer);
        }
    }

    /// Sends bytes that are no frame.
    pub(crate) fn break_rules(mut self, bytes: &[u8]) {
        self.leaving();
        self.raw.send(bytes);
        while let Ok(Some(answer)) = self.raw.try_answer() {
            self.take(answer);
        }
    }

    fn leaving(&mut self) {
        self.left = true;
        self.run.history.note(What::Left { conn: self.conn });
    }

    fn lost(&mut self) -> Gone {
        self.left = true;
        self.run.history.note(What::Lost { conn: self.conn });
        Gone
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        if !self.left {
            // In order: nothing is open any more, or the run is over.
            assert!(self.open.is_empty() || std::thread::panicking(), "calls are still open");
            self.leaving();
        }
    }
}
