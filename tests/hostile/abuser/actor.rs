//! A process that abuses: it composes parts of the grammar by its seed and does their steps, until it is killed. Its
//! processor time comes last: it is the supervisor that is tried, not the kernel's scheduler.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use fastrand::Rng;
use pappus_client::Client;
use pappus_client::v1::{self, response};
use rustix::fs::SealFlags;

use super::Result;
use super::connection::Connection;
use super::descriptors::Keeper;
use super::functions;
use super::grammar::{self, Ask, Door, Kind, MAX_CONNECTIONS, Step};
use super::options::Actor as Options;
use super::requests::{self, Known};
use super::supervisor::token;

/// How long it tries to reach the supervisor.
const PATIENCE: Duration = Duration::from_secs(20);
/// The lowest priority, as `nice` says it.
const LOWEST: i32 = 19;

struct Actor<'a> {
    options: &'a Options,
    known: Known,
    /// A module that is slow to compile.
    slow: Vec<u8>,
    /// The oldest first.
    connections: VecDeque<Connection>,
    /// The connection that steps go on with.
    at: usize,
    /// What makes descriptors that were sent slow; the oldest first.
    keepers: VecDeque<Keeper>,
}

/// Keepers that stay, the newest.
const KEEPERS: usize = 32;
/// Requests before an urgent byte.
const BEFORE_URGENT: usize = 100;

/// Abuses until killed; each part that the process plays is a line of its output.
pub(crate) fn live(options: &Options) -> Result<()> {
    come_last()?;
    if let Some(uid) = options.uid {
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(uid))?;
    }
    // No abuser outlives the process that judges; a change of the user forgets this.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let mut actor = Actor::new(options)?;
    let mut rng = Rng::with_seed(options.seed);
    loop {
        let part = options.parts[rng.usize(..options.parts.len())];
        println!("{}", part.name());
        for step in grammar::compose(part, &mut rng) {
            // What fails is refused to an abuser: it goes on.
            let _ = actor.play(step);
        }
        // Now and then everything is left at once.
        if rng.u8(..4) == 0 {
            actor.connections.clear();
        }
    }
}

/// Takes processor time that nobody else wants. Where the kernel divides it among sessions first (autogroups), that takes
/// a session of its own, whose priority is low as well: within one session with the supervisor, abusers would compete with
/// workers, which are in control groups, as much as the supervisor does.
fn come_last() -> Result<()> {
    rustix::process::setsid()?;
    rustix::process::nice(LOWEST)?;
    let autogroup = Path::new("/proc/self/autogroup");
    while autogroup.exists() {
        match std::fs::write(autogroup, LOWEST.to_string()) {
            // Ten times a second at the most, all users together.
            Err(again) if again.kind() == ErrorKind::WouldBlock => super::rest(Duration::from_millis(100)),
            done => return Ok(done?),
        }
    }
    Ok(())
}

impl<'a> Actor<'a> {
    /// Registers what it calls.
    fn new(options: &'a Options) -> Result<Self> {
        let known = Known { functions: functions::abused(options.workers), module: functions::probes()? };
        let mut client = Client::connect_within(&options.socket, PATIENCE)?;
        if let Some(tenant) = &options.tenant {
            client.act_for(token(tenant).as_bytes())?;
        }
        for function in &known.functions {
            // A quota may be too small for one of them.
            if let Err(why) = function.add(&mut client, &known.module) {
                eprintln!("{}: {why}", function.name);
            }
        }
        let slow = functions::slow_module()?;
        Ok(Self { options, known, slow, connections: VecDeque::new(), at: 0, keepers: VecDeque::new() })
    }

    fn play(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Open(door) => self.open(door),
            Step::Switch(nth) => {
                self.at = nth % self.connections.len().max(1);
                Ok(())
            }
            Step::Send(ask) => self.send(&ask, &[]),
            Step::Burst(asks) => {
                let frames = self.frames(&asks)?;
                self.connection()?.send(&frames, &[]);
                Ok(())
            }
            Step::Volley(ask, count) => {
                let frames = self.frames(&vec![ask; count])?;
                self.connections.iter_mut().for_each(|connection| connection.send(&frames, &[]));
                Ok(())
            }
            Step::SendWith(ask, kinds) => self.send(&ask, &kinds),
            Step::SendUrgent(ask, kind) => self.send_urgent(&ask, kind),
            Step::Arena(kind) => self.open_arena(kind),
            Step::Seal => {
                let arena = self.connection()?.arena.as_ref().ok_or("no arena")?;
                Ok(rustix::fs::fcntl_add_seals(arena, SealFlags::FUTURE_WRITE)?)
            }
            Step::Compile(salt) => self.compile(salt),
            Step::Begin(ask, thousandths) => {
                let (connection, known) = self.both()?;
                let id = connection.next_id();
                let frame = requests::frame(&ask, id, 0, connection.last, known);
                connection.send(&frame[..frame.len() * thousandths / 1000], &[]);
                connection.stuck = true;
                Ok(())
            }
            Step::Read => {
                self.connection()?.read();
                Ok(())
            }
            Step::Rest(time) => {
                super::rest(time);
                Ok(())
            }
            Step::Close => {
                self.connections.remove(self.at);
                self.at = self.connections.len().saturating_sub(1);
                Ok(())
            }
        }
    }

    fn connection(&mut self) -> Result<&mut Connection> {
        Ok(self.both()?.0)
    }

    fn both(&mut self) -> Result<(&mut Connection, &Known)> {
        let connection = self.connections.get_mut(self.at).ok_or("no connection")?;
        Ok((connection, &self.known))
    }

    fn open(&mut self, door: Door) -> Result<()> {
        if self.connections.len() >= MAX_CONNECTIONS {
            self.connections.pop_front();
        }
        let mut connection = Connection::open(&self.options.socket)?;
        let own = self.options.tenant.as_deref().map(token);
        match door {
            Door::Silent => {}
            Door::Greeted => connection.send(&requests::greeting(None), &[]),
            Door::Tenant => connection.send(&requests::greeting(own.as_deref().map(str::as_bytes)), &[]),
            Door::WrongToken => connection.send(&requests::greeting(Some(b"no token at all")), &[]),
            Door::Laden => {
                let (fd, keeper) = super::descriptors::make(Kind::Lingering(Duration::from_secs(5)))?;
                connection.send(&requests::greeting(None), &[fd.as_fd()]);
                connection.keepers.extend(keeper);
            }
        }
        self.connections.push_back(connection);
        self.at = self.connections.len() - 1;
        Ok(())
    }

    /// Requests, one behind the other.
    fn frames(&mut self, asks: &[Ask]) -> Result<Vec<u8>> {
        let (connection, known) = self.both()?;
        let mut frames = Vec::new();
        for ask in asks {
            let id = connection.next_id();
            frames.extend(requests::frame(ask, id, 0, connection.last, known));
        }
        Ok(frames)
    }

    fn send(&mut self, ask: &Ask, kinds: &[Kind]) -> Result<()> {
        let made = kinds.iter().map(|kind| super::descriptors::make(*kind)).collect::<Result<Vec<_>>>()?;
        let descriptors: Vec<_> = made.iter().map(|(fd, _)| fd.as_fd()).collect();
        let (connection, known) = self.both()?;
        // A cancellation is about the request before it.
        let last = connection.last;
        let id = connection.next_id();
        let frame = requests::frame(ask, id, descriptors.len(), last, known);
        // The supervisor has a request's descriptors with its first byte and keeps them until its last one: the last close of those
        // that are slow to close is its own.
        let first = if kinds.iter().any(|kind| kind.is_slow_to_close()) { 1 } else { frame.len() };
        connection.send(&frame[..first], &descriptors);
        let (fds, keepers): (Vec<_>, Vec<_>) = made.into_iter().unzip();
        match connection.stuck {
            true => super::descriptors::close_aside(fds),
            false => drop(fds),
        }
        connection.send(&frame[first..], &[]);
        self.keepers.extend(keepers.into_iter().flatten());
        let beyond = self.keepers.len().saturating_sub(KEEPERS);
        self.keepers.drain(..beyond);
        Ok(())
    }

    /// Behind so many others that it is closed here before it is received: the last close is the supervisor's.
    fn send_urgent(&mut self, ask: &Ask, kind: Kind) -> Result<()> {
        let (fd, keeper) = super::descriptors::make(kind)?;
        let before = self.frames(&vec![Ask::Status; BEFORE_URGENT])?;
        let (connection, known) = self.both()?;
        connection.send(&before, &[]);
        let id = connection.next_id();
        let frame = requests::frame(ask, id, 1, connection.last, known);
        connection.send_urgent(&frame[..1], fd.as_fd());
        match connection.stuck {
            true => super::descriptors::close_aside(vec![fd]),
            false => drop(fd),
        }
        connection.send(&frame[1..], &[]);
        self.keepers.extend(keeper);
        Ok(())
    }

    /// Sends a request, and waits for its answer.
    fn ask(&mut self, ask: &Ask, descriptors: &[std::os::fd::BorrowedFd<'_>]) -> Result<response::Body> {
        let (connection, known) = self.both()?;
        let id = connection.next_id();
        connection.send(&requests::frame(ask, id, descriptors.len(), connection.last, known), descriptors);
        connection.answer().ok_or_else(|| "no answer".into())
    }

    fn open_arena(&mut self, kind: Kind) -> Result<()> {
        let (fd, keeper) = super::descriptors::make(kind)?;
        let response::Body::Arena(v1::ArenaOpened { arena, .. }) =
            self.ask(&Ask::OpenArena, &[fd.as_fd()])?
        else {
            return Err("refused".into());
        };
        let connection = self.connection()?;
        connection.last.arena = arena;
        connection.arena = Some(fd);
        connection.keepers.extend(keeper);
        Ok(())
    }

    fn compile(&mut self, salt: u64) -> Result<()> {
        let module = functions::salted(&self.slow, salt);
        let sha256 = functions::sha256(&module);
        let put = v1::request::Body::PutBlob(v1::PutBlob { inline: module.into() });
        let variant = v1::Variant { format: "wasm".into(), arch: String::new(), sha256: sha256.into() };
        let add = v1::AddModule { name: format!("slow-{}", salt % 8), variants: vec![variant] };
        let connection = self.connection()?;
        let id = connection.next_id();
        connection.send(&requests::encoded(id, put, 0), &[]);
        connection.answer().ok_or("no answer")?;
        let id = connection.next_id();
        connection.send(&requests::encoded(id, v1::request::Body::AddModule(add), 0), &[]);
        Ok(())
    }
}
