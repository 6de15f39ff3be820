//! One client: frames, dispatch.
//!
//! ```text
//! entry ──► frames ──► closed        anything that is no frame closes the connection
//! ```

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pappus_proto::frame;
use pappus_proto::limits::{MAX_ARENA_BYTES, MAX_ITEMS};
use pappus_proto::v1::item::Source;
use pappus_proto::v1::{self, request::Body as Request, response::Body as Response};
use pappus_protocol::now_ns;
use pappus_shmem::memfd;
use prost::Message;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::handshake::{Arrival, Incoming, enter};
use super::invoke::{Arrived, Prepared};
use super::reader::{Reader, patience};
use super::replies::Replies;
use super::reply_handle::{Invocations, ReplyHandle};
use super::request_error::RequestError;
use super::slow_work::SlowWorkPermit;
use super::state::{RequestCtx, Server};
use super::violation::Violation;
use super::{half_close, invoke, refusals, requests, responses};
use crate::call::{Arena, Completion};
use crate::device::write_coalescing::Burst;
use crate::function::Loaded;
use crate::limits::{MAX_ARENAS_PER_CONNECTION, MAX_COLD_REQUESTS};
use crate::refusal::{Refusable, Refusal};
use crate::registry::Handed;
use crate::sync::{OrderedGuard, OrderedMutex, rank};

/// Bytes taken from the socket at a time.
const READ_BYTES: usize = 64 << 10;
/// How long the rest of a started frame may take between two pieces.
const STALLED: Duration = Duration::from_secs(30);
/// How long one connection may keep a socket thread while others wait.
const TURN: Duration = Duration::from_micros(200);

/// One client's connection.
#[derive(Debug)]
pub struct Connection {
    /// For whom it acts, and what it may do.
    pub ctx: Arc<RequestCtx>,
    /// Answers to it.
    pub replies: Arc<Replies>,
    invocations: Arc<Invocations>,
    arenas: OrderedMutex<HashMap<u64, Arc<Arena>>, { rank::ARENAS }>,
    cold: Arc<Semaphore>,
    /// Nobody waits for answers any more.
    gone: AtomicBool,
}

/// Serves one client until it leaves or breaks the protocol.
pub async fn serve(server: Arc<Server>, socket: OwnedFd, arrival: Arrival) -> std::io::Result<()> {
    let replies = Replies::new(socket.try_clone()?);
    arrival.slot.answers(&replies);
    // From here on a reload finds it; one that came just before did not.
    if !arrival.is_welcome(&server) {
        return Ok(());
    }
    let mut reader = Reader::new(socket, server.polling.clone())?;
    let mut incoming =
        Incoming { decoder: frame::Decoder::default(), buffer: vec![0; READ_BYTES], first: None };
    let broke = |why: Violation| {
        server.metrics.violations.increment(1);
        tracing::debug!(uid = arrival.uid, "closing a connection: {why}");
    };
    let account = match enter(&server, &mut reader, &replies, &arrival, &mut incoming).await {
        Ok(Some(account)) => account,
        Ok(None) => return Ok(()),
        Err(why) => {
            broke(why);
            return Ok(());
        }
    };
    let itself = arrival.standing.tenant.as_ref().is_some_and(|own| own.tenant == account.tenant);
    let ctx = Arc::new(RequestCtx {
        server: server.clone(),
        account,
        uid: arrival.uid,
        admin: arrival.admin,
        operator: arrival.admin || itself && arrival.uid == rustix::process::geteuid().as_raw(),
        handed: Handed::default(),
    });
    let connection = Arc::new(Connection {
        ctx,
        invocations: Invocations::new(replies.clone()),
        replies,
        arenas: OrderedMutex::default(),
        cold: Arc::new(Semaphore::new(MAX_COLD_REQUESTS)),
        gone: AtomicBool::new(false),
    });
    if let Err(why) = connection.clone().run(reader, incoming).await {
        broke(why);
    }
    connection.clean_up().await;
    Ok(())
}

impl Connection {
    /// Returns when the client is gone; an error says which rule it broke.
    async fn run(self: Arc<Self>, mut reader: Reader, incoming: Incoming) -> Result<(), Violation> {
        let Incoming { mut decoder, mut buffer, first } = incoming;
        let mut burst = Burst::default();
        if let Some((request, passed)) = first {
            burst.more = decoder.pending() > 0;
            self.clone().dispatch(request, passed, &mut burst).await;
        }
        loop {
            let mut since = Instant::now();
            while let Some((message, passed)) = decoder.next_frame()? {
                let request = v1::Request::decode(message)?;
                burst.more = decoder.pending() > 0;
                self.clone().dispatch(request, passed, &mut burst).await;
                // However many requests one read brought, other connections get their turn.
                if since.elapsed() > TURN {
                    burst.release();
                    tokio::task::yield_now().await;
                    since = Instant::now();
                }
            }
            burst.release();
            let received = reader.receive(&mut buffer, patience(self.ctx.server.settings().poll_us));
            // Whoever stops in the middle of a frame does not keep its place for ever.
            let received = match decoder.pending() {
                0 => received.await,
                _ => tokio::time::timeout(STALLED, received).await.map_err(|_| Violation::HalfFrame)?,
            };
            let Some((bytes, passed)) = received? else {
                half_close::see_off(&self.replies, &self.cold).await;
                return Ok(());
            };
            decoder.feed(&buffer[..bytes], passed)?;
        }
    }

    /// Starts work on one request. Invocations of functions in memory are handed on at once; what is
    /// slow goes to a task of its own, a few at a time.
    async fn dispatch(self: Arc<Self>, request: v1::Request, passed: Vec<OwnedFd>, burst: &mut Burst) {
        let id = request.id;
        let takes = match &request.body {
            Some(Request::OpenArena(_) | Request::PutBlob(_)) => passed.len() <= 1,
            Some(Request::Invoke(_)) => true,
            _ => passed.is_empty(),
        };
        if !takes {
            return self.replies.send(id, refusals::to_body(&RequestError::Descriptors));
        }
        match request.body {
            Some(Request::Invoke(message)) => self.invoke(id, message, passed, burst).await,
            Some(Request::Cancel(cancel)) => {
                self.cancel(cancel.request);
                self.replies.send(id, Response::Done(v1::Done {}));
            }
            Some(Request::OpenArena(_)) => self.answer(id, self.open_arena(passed)),
            Some(Request::CloseArena(close)) => self.answer(id, self.close_arena(close.arena)),
            Some(body) => {
                burst.release();
                // Closed never: the semaphore lives as long as the connection.
                let Ok(permit) = self.cold.clone().acquire_owned().await else {
                    return;
                };
                tokio::spawn(async move {
                    let drains = matches!(body, Request::Drain(_));
                    let Some(_permit) = self.slow_work_permit().await else { return };
                    let outcome = requests::handle(&self.ctx, body, passed).await;
                    let ends = drains && outcome.is_ok();
                    self.answer(id, outcome);
                    if ends {
                        // Only now: the answer must be on its way before the process ends.
                        self.ctx.server.end();
                    }
                    drop(permit);
                });
            }
            None => self.replies.send(id, refusals::to_body(&RequestError::Unknown)),
        }
    }

    fn answer(&self, id: u64, outcome: Result<Response, Refusal>) {
        self.replies.send(id, outcome.unwrap_or_else(|error| refusals::to_body(&*error)));
    }

    async fn invoke(self: Arc<Self>, id: u64, message: v1::Invoke, passed: Vec<OwnedFd>, burst: &mut Burst) {
        let at_ns = now_ns();
        // Counted before the look at draining: whoever drains afterwards sees it.
        let refuse = |error: &dyn Refusable| self.replies.send(id, refusals::to_body(error));
        let accepted = match self.ctx.account.accept() {
            Ok(accepted) => accepted,
            Err(error) => return refuse(&error),
        };
        let handle = match self.invocations.open(id, accepted) {
            Ok(handle) => handle,
            Err(error) => return refuse(&error),
        };
        if self.ctx.server.is_draining() {
            return handle.refuse(refusals::to_body(&RequestError::Draining));
        }
        // Found now: what the client closes next must not be missing once the function is loaded.
        let arenas = self.arenas_named(&message);
        if let Some(function) = self.ctx.server.registry.find(&self.ctx.account, &message.function) {
            let arrived = Arrived { message, passed, arenas, at_ns };
            return self.submit(id, &handle, arrived, function, burst);
        }
        burst.release();
        let deadline = invoke::deadline(&message, &self.ctx.server.settings());
        let until = tokio::time::Instant::now() + deadline;
        let permit = match tokio::time::timeout_at(until, self.cold.clone().acquire_owned()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) => return,
            Err(_) => return handle.answer(responses::never_loaded()),
        };
        tokio::spawn(async move {
            // Loading keeps this thread busy, so another task watches the deadline.
            let mut late = JoinSet::new();
            let watched = handle.clone();
            late.spawn(async move {
                tokio::time::sleep_until(until).await;
                watched.answer(responses::never_loaded());
            });
            let Some(_permit) = self.slow_work_permit().await else { return };
            // Cancelled meanwhile, or overdue.
            if handle.is_over() {
                return;
            }
            let loaded =
                requests::in_place(|| self.ctx.server.registry.load(&self.ctx.account, &message.function));
            drop(late);
            match loaded {
                // The same, or the client is gone.
                _ if handle.is_over() => {}
                Ok(function) => {
                    let arrived = Arrived { message, passed, arenas, at_ns };
                    self.submit(id, &handle, arrived, function, &mut Burst::default());
                }
                Err(error) => handle.refuse(refusals::to_body(&error)),
            }
            drop(permit);
        });
    }

    /// The worker may be told when `burst` is released.
    fn submit(
        &self,
        id: u64,
        handle: &Arc<ReplyHandle>,
        arrived: Arrived,
        function: Arc<Loaded>,
        burst: &mut Burst,
    ) {
        let record = function.record.clone();
        let prepared = match invoke::prepare(&self.ctx, handle, arrived, function) {
            Ok(prepared) => prepared,
            Err(error) => return handle.refuse(refusals::to_body(&error)),
        };
        let Prepared { call, device, inline_bytes } = prepared;
        handle.placed(&device.metrics.seconds);
        let held = burst.to(&device.slots);
        match device.submit(call, inline_bytes, held) {
            Ok(accepted) => {
                let place = (device.clone(), accepted);
                if let Some((device, call)) = self.invocations.placed(id, handle, place) {
                    // Cancelled, or its client gone, just before the device had it.
                    device.cancel(call);
                }
            }
            Err(why) => handle.refuse(responses::not_accepted(&record.name, &device.config.name, why)),
        }
    }

    /// Detaches the client from one of its calls at once; a waiting call never runs.
    fn cancel(&self, request: u64) {
        let Some(open) = self.invocations.take(request) else { return };
        if let Some((device, id)) = open.place {
            device.cancel(id);
        }
        open.handle.answer(responses::cancelled());
    }

    /// Waits until this tenant may do one more thing that takes long; none once the client is gone. The
    /// operator never waits behind tenants.
    async fn slow_work_permit(&self) -> Option<SlowWorkPermit> {
        let permit = match self.ctx.admin {
            true => SlowWorkPermit::default(),
            false => self.ctx.server.slow_work.acquire(self.ctx.account.tenant).await,
        };
        (!self.gone.load(Ordering::Acquire)).then_some(permit)
    }

    /// This connection's arenas that a request names.
    fn arenas_named(&self, message: &v1::Invoke) -> Vec<Arc<Arena>> {
        let items = message.inputs.iter().flat_map(|input| &input.items);
        let inputs = items.filter_map(|item| match &item.source {
            Some(Source::Region(region)) => Some(region.arena),
            _ => None,
        });
        let outputs = message.outputs.iter().filter_map(|output| output.region.as_ref().map(|r| r.arena));
        let arenas = self.arenas();
        let mut named: Vec<Arc<Arena>> = Vec::new();
        // More than a call may have are refused later.
        for id in inputs.take(MAX_ITEMS).chain(outputs.take(MAX_ITEMS)) {
            if named.iter().all(|arena| arena.id != id)
                && let Some(arena) = arenas.get(&id)
            {
                named.push(arena.clone());
            }
        }
        named
    }

    fn arenas(&self) -> OrderedGuard<'_, HashMap<u64, Arc<Arena>>, { rank::ARENAS }> {
        self.arenas.lock()
    }

    fn open_arena(&self, mut passed: Vec<OwnedFd>) -> Result<Response, Refusal> {
        let fd = passed.pop().ok_or(RequestError::NoMemfd)?;
        let memfd = memfd::judge_arena(fd, MAX_ARENA_BYTES).map_err(RequestError::Memfd)?;
        let mut arenas = self.arenas();
        if arenas.len() >= MAX_ARENAS_PER_CONNECTION {
            return Err(RequestError::TooManyArenas.into());
        }
        let arena = Arc::new(Arena::new(self.ctx.server.next_arena(), memfd, &self.ctx.account)?);
        let opened = v1::ArenaOpened { arena: arena.id, bytes: arena.memfd.bytes() };
        arenas.insert(arena.id, arena);
        Ok(Response::Arena(opened))
    }

    fn close_arena(&self, id: u64) -> Result<Response, Refusal> {
        let arena = self.arenas().remove(&id);
        let arena = arena.ok_or(RequestError::NoArena(id))?;
        self.forget_arena(&arena);
        Ok(Response::Done(v1::Done {}))
    }

    fn forget_arena(&self, arena: &Arena) {
        arena.close();
        self.ctx.server.devices.iter().for_each(|device| device.close_arena(arena.id));
    }

    /// The client is gone: its waiting calls, arenas and bytes go too.
    async fn clean_up(self: Arc<Self>) {
        self.gone.store(true, Ordering::Release);
        for open in self.invocations.take_all() {
            open.handle.give_up();
            if let Some((device, id)) = open.place {
                device.cancel(id);
            }
        }
        let arenas = std::mem::take(&mut *self.arenas());
        arenas.values().for_each(|arena| self.forget_arena(arena));
        if self.ctx.handed.is_empty() {
            return;
        }
        let this = self.clone();
        let released = requests::off_thread(move || {
            this.ctx.server.registry.release_handed(this.ctx.account.tenant, &this.ctx.handed);
            Ok::<_, Refusal>(())
        });
        if let Err(error) = released.await {
            tracing::error!("cannot release a connection's bytes: {error}");
        }
    }
}
