//! The socket's two directions. Whoever sends a request tries the socket at once; what it does not take, a task sends later. Another
//! task reads answers and wakes who waits for them.
//!
//! Memory is bounded: requests in flight by [`MAX_IN_FLIGHT`], bytes that the socket did not take by [`MAX_UNSENT_BYTES`]; who would
//! exceed that waits, before the frame is made.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use pappus_proto::frame::{self, Decoder, HEADER_BYTES};
use pappus_proto::limits::{MAX_MESSAGE_BYTES, MAX_MESSAGE_FDS};
use pappus_proto::v1::{self, request, response};
use pappus_shmem::{ValidatedMemfd, fds};
use prost::Message;
use tokio::io::Interest;
use tokio::net;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::AbortHandle;

use super::outgoing::{Frame, Outgoing};
use super::waiting::{End, Then, Waiting, undo};
use crate::error::{Error, Result};

/// Requests of one connection without answers; the supervisor takes as many calls of one tenant.
pub(super) const MAX_IN_FLIGHT: usize = 4096;
/// Bytes that may wait for the socket: one frame of the largest, or more of others.
const MAX_UNSENT_BYTES: usize = MAX_MESSAGE_BYTES + HEADER_BYTES;
/// Bytes taken from the socket at once.
const RECEIVE_BYTES: usize = 64 << 10;

/// A connection and its two tasks, which end with it.
#[derive(Debug)]
pub(super) struct Connection {
    shared: Arc<Shared>,
    tasks: [AbortHandle; 2],
}

#[derive(Debug)]
struct Shared {
    socket: net::UnixStream,
    next_id: AtomicU64,
    outgoing: Mutex<Outgoing>,
    /// Something is left to be sent.
    unsent: Notify,
    /// There is room again for what is to be sent.
    room: Notify,
    /// The connection is over.
    over: Notify,
    waiting: Mutex<Waiting>,
    places: Arc<Semaphore>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is locked is changed in steps that do not panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    /// Over a socket that is connected, has greeted and does not block.
    pub(super) fn start(socket: UnixStream) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            socket: net::UnixStream::from_std(socket)?,
            next_id: AtomicU64::new(1),
            outgoing: Mutex::default(),
            unsent: Notify::new(),
            room: Notify::new(),
            over: Notify::new(),
            waiting: Mutex::default(),
            places: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
        });
        let reads = tokio::spawn(shared.clone().read()).abort_handle();
        let writes = tokio::spawn(shared.clone().write_rest()).abort_handle();
        Ok(Self { shared, tasks: [reads, writes] })
    }

    pub(super) fn is_over(&self) -> bool {
        lock(&self.shared.waiting).is_over()
    }

    /// Returns once it is over.
    pub(super) async fn ended(&self) {
        // Made before the look: an end that comes in between is noticed.
        let over = self.shared.over.notified();
        if !self.is_over() {
            over.await;
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        lock(&self.shared.waiting).in_flight()
    }

    /// Sends a request and waits for its answer. Dropped before that, a call is cancelled, and an arena closed once it is open.
    pub(super) async fn exchange(
        &self,
        body: request::Body,
        memfds: Vec<Arc<ValidatedMemfd>>,
        token: &Bytes,
    ) -> Result<response::Body> {
        let shared = &self.shared;
        let is_call = matches!(body, request::Body::Invoke(_));
        let id = shared.next_id.fetch_add(1, Ordering::Relaxed);
        let request = v1::Request { id, body: Some(body), tenant_token: token.clone() };
        let bytes = request.encoded_len();
        if bytes > MAX_MESSAGE_BYTES || memfds.len() > MAX_MESSAGE_FDS {
            return Err(Error::Invalid(format!(
                "a request of {bytes} bytes with {} descriptors: at most {MAX_MESSAGE_BYTES} bytes and {MAX_MESSAGE_FDS} descriptors \
                 fit; put data into an arena",
                memfds.len()
            )));
        }
        // Closed never: the semaphore lives as long as the connection.
        let place = shared.places.clone().acquire_owned().await.map_err(|_| Error::Lost)?;
        shared.reserve(HEADER_BYTES + bytes).await;
        let (caller, answer) = oneshot::channel();
        shared.send(request, memfds, Some(caller), Some(place))?;
        // From here on the request is on its way; nothing above leaves anything behind.
        let mut unanswered = Unanswered { shared, id, is_call, token, answer, over: false };
        let answer = (&mut unanswered.answer).await;
        unanswered.over = true;
        answer.unwrap_or(Err(Error::Lost))
    }

    /// Closes an arena; nobody waits for the answer.
    pub(super) fn close_arena(&self, arena: u64, token: &Bytes) {
        self.shared.close_arena(arena, token.clone());
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// A request that is sent, and whose answer nobody has taken yet.
struct Unanswered<'a> {
    shared: &'a Arc<Shared>,
    id: u64,
    is_call: bool,
    token: &'a Bytes,
    answer: oneshot::Receiver<Result<response::Body>>,
    over: bool,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let unanswered = lock(&self.shared.waiting).give_up(self.id);
        if unanswered && self.is_call {
            let body = request::Body::Cancel(v1::Cancel { request: self.id });
            self.shared.tell(body, self.token.clone());
        }
        // The answer was there before whoever waits for it looked.
        if !unanswered
            && let Ok(Ok(answer)) = self.answer.try_recv()
            && let Some(body) = undo(&answer)
        {
            self.shared.tell(body, self.token.clone());
        }
    }
}

impl Shared {
    /// Returns once there is room for so many bytes, which are reserved then.
    async fn reserve(&self, bytes: usize) {
        loop {
            // Made before the look: room that comes in between is noticed.
            let room = self.room.notified();
            // Where the connection is over, whoever sends is told.
            let most = if lock(&self.waiting).is_over() { usize::MAX } else { MAX_UNSENT_BYTES };
            if lock(&self.outgoing).reserve(bytes, most) {
                return;
            }
            room.await;
        }
    }

    /// Sends a request for whose frame there is a reservation, or has it sent.
    fn send(
        &self,
        request: v1::Request,
        memfds: Vec<Arc<ValidatedMemfd>>,
        caller: Option<oneshot::Sender<Result<response::Body>>>,
        place: Option<OwnedSemaphorePermit>,
    ) -> Result<()> {
        let bytes = frame::encode(&request, memfds.len());
        // Before it is sent: the answer may come at once.
        let expected = lock(&self.waiting).expect(request.id, caller, request.tenant_token, place);
        let mut outgoing = lock(&self.outgoing);
        if let Err(over) = expected {
            outgoing.release(bytes.len());
            return Err(over);
        }
        let waits = !outgoing.is_empty();
        outgoing.push(Frame { bytes, memfds });
        // Where it fails, the reading side finds out why, and tells who waits.
        if !waits && outgoing.send(self.socket.as_fd()) == Ok(false) {
            self.unsent.notify_one();
        }
        Ok(())
    }

    /// Sends a request whose answer nobody waits for. It waits for no room: there are not more of these than requests in flight.
    fn tell(&self, body: request::Body, token: Bytes) {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let request = v1::Request { id, body: Some(body), tenant_token: token };
        lock(&self.outgoing).reserve(HEADER_BYTES + request.encoded_len(), usize::MAX);
        // It fails where the connection is over, and nothing is left to be told.
        let _ = self.send(request, Vec::new(), None, None);
    }

    fn close_arena(&self, arena: u64, token: Bytes) {
        self.tell(request::Body::CloseArena(v1::CloseArena { arena }), token);
    }

    /// Sends what the socket did not take at once.
    async fn write_rest(self: Arc<Self>) {
        loop {
            self.unsent.notified().await;
            let send = || -> std::io::Result<()> {
                let sent = lock(&self.outgoing).send(self.socket.as_fd())?;
                self.room.notify_waiters();
                match sent {
                    true => Ok(()),
                    false => Err(std::io::ErrorKind::WouldBlock.into()),
                }
            };
            if self.socket.async_io(Interest::WRITABLE, send).await.is_err() {
                // The reading side finds out why.
                return;
            }
        }
    }

    /// Reads answers until the connection is over.
    async fn read(self: Arc<Self>) {
        let end = self.read_all().await;
        lock(&self.waiting).end(end);
        self.over.notify_waiters();
        // Who waits for room finds that the connection is over.
        lock(&self.outgoing).clear();
        self.room.notify_waiters();
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    async fn read_all(&self) -> End {
        let mut decoder = Decoder::<OwnedFd>::default();
        let mut buffer = vec![0; RECEIVE_BYTES];
        loop {
            let mut passed = Vec::new();
            let receive = || -> std::io::Result<usize> {
                Ok(fds::recv(self.socket.as_fd(), &mut buffer, &mut passed)?.bytes)
            };
            let received = match self.socket.async_io(Interest::READABLE, receive).await {
                Ok(0) => return End::Lost,
                Ok(received) => received,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(_) => return End::Lost,
            };
            if let Err(end) = self.take(&mut decoder, &buffer[..received], passed) {
                return end;
            }
        }
    }

    /// Takes bytes, and tells who waits for the answers in them.
    fn take(
        &self,
        decoder: &mut Decoder<OwnedFd>,
        bytes: &[u8],
        passed: Vec<OwnedFd>,
    ) -> std::result::Result<(), End> {
        let broken = |error| End::Protocol(format!("the supervisor sent a broken frame: {error}"));
        decoder.feed(bytes, passed).map_err(broken)?;
        while let Some((message, _)) = decoder.next_frame().map_err(broken)? {
            let answer = v1::Response::decode(message).map_err(|error| {
                End::Protocol(format!("the supervisor sent an unreadable answer: {error}"))
            })?;
            let then = lock(&self.waiting).answered(answer)?;
            if let Then::Tell(body, token) = then {
                self.tell(body, token);
            }
        }
        Ok(())
    }
}
