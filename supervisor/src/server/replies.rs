//! Answers to one client. Any thread writes straight to the socket; only what a slow client does not
//! take is kept, up to a limit.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pappus_proto::handshake::Greeting;
use pappus_proto::limits::MAX_MESSAGE_BYTES;
use pappus_proto::v1::response::Body;
use pappus_proto::{Code, frame, v1};
use prost::Message;
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};
use tokio::io::Interest;
use tokio::runtime::Handle;

use super::async_fd::watch;
use super::intake::Holder;
use super::peer::{self, PeerProcess};
use super::refusals;
use crate::client_fd::ClientSocket;
use crate::client_io::ClientIo;
use crate::concurrent::OwedAnswers;
use crate::limits::MAX_UNREAD_BYTES;
use crate::metrics;
use crate::quota::{Limit, QuotaError};
use crate::refusal::Refusable;
use crate::sync::{OrderedMutex, rank};
use crate::tenants::Taken;

/// What the client has not taken yet.
#[derive(Debug)]
struct Unread {
    bytes: Vec<u8>,
    /// Of `bytes`, what is gone already.
    sent: usize,
    closed: bool,
    /// Whom `bytes` are charged to.
    holder: Holder,
    /// The memory that they take.
    memory: Option<Taken>,
}

impl Unread {
    /// Keeps more.
    fn keep(&mut self, frames: &[u8]) -> Result<(), QuotaError> {
        self.bytes.extend_from_slice(frames);
        let bytes = self.bytes.capacity() as u64;
        match &mut self.memory {
            Some(memory) => memory.resize(bytes),
            none => self.holder.take(Limit::AnswerBytes, bytes).map(|taken| *none = Some(taken)),
        }
    }

    /// `sent` more bytes are gone; what is gone does not stay in memory.
    fn advance(&mut self, sent: usize) {
        self.sent += sent;
        if self.sent == self.bytes.len() {
            self.forget();
        } else if self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.bytes.shrink_to(2 * self.bytes.len());
            self.sent = 0;
            // Less than before: it always fits.
            let _ = self.keep(&[]);
        }
    }

    fn forget(&mut self) {
        (self.bytes, self.sent, self.memory) = (Vec::new(), 0, None);
    }
}

/// A connection's place, which this keeps and does not look at.
pub type ConnectionPlace = Arc<dyn Any + Send + Sync>;

/// The writing side of a connection.
#[derive(Debug)]
pub struct Replies {
    socket: ClientSocket<ConnectionPlace>,
    runtime: Handle,
    unread: OrderedMutex<Unread, { rank::UNREAD }>,
    owed: OwedAnswers,
}

/// Appends one answer's frame.
pub fn append(frames: &mut Vec<u8>, id: u64, body: Body) {
    let mut response = v1::Response { id, body: Some(body) };
    if response.encoded_len() > MAX_MESSAGE_BYTES {
        let why = "the answer is larger than a message may be";
        response.body = Some(Body::Error(v1::Error::new(Code::ResourceExhausted, why)));
    }
    frame::append(frames, &response, 0);
}

/// What a peer that is not served is told: a greeting, and an answer to no request.
pub fn turned_away(why: &dyn Refusable) -> Vec<u8> {
    let mut frames = Greeting::OURS.encode().to_vec();
    append(&mut frames, 0, refusals::to_body(why));
    frames
}

/// Connections with answers that their clients did not take yet.
static SLOW: AtomicUsize = AtomicUsize::new(0);

/// One of them.
struct Slow;

impl Slow {
    fn count() -> Self {
        SLOW.fetch_add(1, Ordering::AcqRel);
        Self
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        SLOW.fetch_sub(1, Ordering::AcqRel);
    }
}

/// How many connections have answers that their clients did not take yet.
pub fn unread() -> usize {
    SLOW.load(Ordering::Acquire)
}

impl Replies {
    /// Answers on a non-blocking `socket`, which keeps its place until it is closed; what its client does not read is
    /// charged to `holder`.
    pub fn new(socket: OwnedFd, place: ConnectionPlace, holder: Holder, io: ClientIo) -> Arc<Self> {
        let socket = ClientSocket::new(socket, place, holder.account.tenant, io);
        let runtime = Handle::current();
        let unread = Unread { bytes: Vec::new(), sent: 0, closed: false, holder, memory: None };
        Arc::new(Self { socket, runtime, unread: OrderedMutex::new(unread), owed: OwedAnswers::new() })
    }

    /// Charges answers that are kept from now on to this holder.
    pub fn charge(&self, holder: Holder) {
        self.unread.lock().holder = holder;
    }

    /// Tells the peer why it is not served, before anything was read from it.
    pub fn turn_away(self: &Arc<Self>, why: &dyn Refusable) {
        self.send_frames(&turned_away(why));
    }

    /// Sends one answer.
    pub fn send(self: &Arc<Self>, id: u64, body: Body) {
        let mut frames = Vec::new();
        append(&mut frames, id, body);
        self.send_frames(&frames);
    }

    /// Sends answers, whole frames, at once.
    pub fn send_frames(self: &Arc<Self>, frames: &[u8]) {
        if frames.is_empty() {
            return;
        }
        let mut unread = self.unread.lock();
        if unread.closed {
            return;
        }
        if !unread.bytes.is_empty() {
            if unread.keep(frames).is_err() || unread.bytes.len() - unread.sent > MAX_UNREAD_BYTES {
                self.cut_off(&mut unread);
            }
            return;
        }
        match self.write(frames) {
            Ok(sent) if sent == frames.len() => {}
            Ok(sent) => {
                if unread.keep(&frames[sent..]).is_err() {
                    return self.cut_off(&mut unread);
                }
                self.runtime.spawn(self.clone().write_rest(Slow::count()));
            }
            Err(_) => self.close_locked(&mut unread),
        }
    }

    /// Writes what the socket takes now.
    fn write(&self, bytes: &[u8]) -> rustix::io::Result<usize> {
        let (socket, mut sent) = (self.socket.fd()?, 0);
        while sent < bytes.len() {
            match rustix::net::send(socket, &bytes[sent..], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(n) => sent += n,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(sent)
    }

    /// Writes what is kept, as the client takes it. Only then the socket is watched for room: watched
    /// always, every answer that is read would wake a thread for nothing.
    async fn write_rest(self: Arc<Self>, _slow: Slow) {
        let watched = self.socket().and_then(|socket| watch(socket, Interest::WRITABLE));
        let Ok(watched) = watched else { return self.close_locked(&mut self.unread.lock()) };
        loop {
            let Ok(mut room) = watched.writable().await else { return };
            let mut unread = self.unread.lock();
            if unread.closed {
                return;
            }
            match self.write(&unread.bytes[unread.sent..]) {
                Ok(0) => room.clear_ready(),
                Ok(sent) => unread.advance(sent),
                Err(_) => return self.close_locked(&mut unread),
            }
            if unread.bytes.is_empty() {
                self.owed.delivered();
                return;
            }
        }
    }

    /// Ends the connection; what waits is not sent any more.
    pub fn close(&self) {
        self.close_locked(&mut self.unread.lock());
    }

    /// The process at the other end, while it lives.
    pub fn peer(&self) -> Option<PeerProcess> {
        peer::process(self.socket.fd().ok()?)
    }

    /// Ends the connection of a client that does not read its answers.
    fn cut_off(&self, unread: &mut Unread) {
        tracing::debug!("a client does not read its answers: closing its connection");
        metrics::quota_refusal(Limit::AnswerBytes);
        self.close_locked(unread);
    }

    fn close_locked(&self, unread: &mut Unread) {
        unread.forget();
        unread.closed = true;
        // The reading side sees the end and cleans up.
        let _ = self.socket.fd().and_then(|socket| rustix::net::shutdown(socket, Shutdown::Both));
    }

    /// One answer more is owed.
    pub fn owe(&self) {
        self.owed.owe();
    }

    /// One answer less is owed: it was given, or will never be.
    pub fn paid(&self) {
        self.owed.settle();
    }

    /// Returns once no answer is owed and the client has taken all of them. One task waits at most.
    pub async fn settled(&self) {
        self.owed.all_settled(|| self.unread.lock().bytes.is_empty()).await;
    }

    /// The socket once more.
    pub fn socket(&self) -> std::io::Result<OwnedFd> {
        self.socket.fd()?.try_clone_to_owned()
    }
}
