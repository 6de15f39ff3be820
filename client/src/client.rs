//! The connection: requests out, answers in, in any order. The socket never blocks: a client that fills it with
//! requests keeps taking answers meanwhile, so that neither side can wait for the other for ever.
//!
//! - `opening`: from a path to a connection.
//! - `until`: how long something may take.

mod opening;
mod until;

use std::collections::{HashSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use pappus_proto::frame::{self, Decoder, FrameError};
use pappus_proto::limits::{MAX_MESSAGE_BYTES, MAX_MESSAGE_FDS};
use pappus_proto::v1::{self, request, response};
use pappus_shmem::fds;
use prost::Message;
use rustix::event::{PollFd, PollFlags, Timespec};

use self::until::Until;
use crate::error::{Error, Result};

/// Bytes taken from the socket at once.
const RECEIVE_BYTES: usize = 64 << 10;
/// How long a supervisor may take to answer what it does at once, where nothing else is said.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection to a supervisor. Arenas, and blobs nothing refers to, end with it. To drop it closes this process's own
/// descriptor only: in a child of `fork`, the connection of the parent goes on.
#[derive(Debug)]
pub struct Client {
    socket: UnixStream,
    decoder: Decoder<OwnedFd>,
    buffer: Box<[u8]>,
    next_id: u64,
    /// How long a supervisor that is well takes at most to answer what it does at once.
    patience: Duration,
    /// What is left of a frame whose sender gave up.
    unsent: Vec<u8>,
    /// Requests that no answer has been received for.
    unanswered: HashSet<u64>,
    /// Answers that were received and not yet asked for, oldest first.
    answers: VecDeque<v1::Response>,
    /// Requests that were sent and whose answers nobody waits for any more.
    forgotten: HashSet<u64>,
    /// Arenas of such answers.
    strays: Vec<u64>,
}

impl Client {
    /// Connects and agrees on a protocol version. Who listens and does not answer for 30 s is an error.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self> {
        Self::connect_once(path, PATIENCE)
    }

    /// Connects to a supervisor that listens, which may take so long to answer: now, and to each later request that it does
    /// at once.
    pub fn connect_once(path: impl AsRef<Path>, patience: Duration) -> Result<Self> {
        let socket = opening::open(path.as_ref(), Until::within(patience), false)?;
        Ok(Self::over(socket, patience))
    }

    /// As [`Client::connect_once`], and tries again meanwhile if nobody listens.
    pub fn connect_within(path: impl AsRef<Path>, patience: Duration) -> Result<Self> {
        let socket = opening::open(path.as_ref(), Until::within(patience), true)?;
        Ok(Self::over(socket, patience))
    }

    /// Greets over a connected socket.
    pub fn handshake(socket: UnixStream) -> Result<Self> {
        Ok(Self::over(opening::greet(socket, Until::within(PATIENCE))?, PATIENCE))
    }

    /// The socket of a connection on which nothing was sent yet; it does not block.
    pub(crate) fn into_socket(self) -> UnixStream {
        self.socket
    }

    fn over(socket: UnixStream, patience: Duration) -> Self {
        Self {
            socket,
            decoder: Decoder::default(),
            buffer: vec![0; RECEIVE_BYTES].into(),
            next_id: 1,
            patience,
            unsent: Vec::new(),
            unanswered: HashSet::new(),
            forgotten: HashSet::new(),
            answers: VecDeque::new(),
            strays: Vec::new(),
        }
    }

    /// How long the supervisor may take from now on to answer a request without slow work. Requests that compile, read
    /// files or wait for calls have no such limit.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Sends a request with its descriptors and returns its id without waiting for the answer.
    pub fn send(&mut self, body: request::Body, fds: &[BorrowedFd<'_>]) -> Result<u64> {
        self.send_until(body, fds, Until::NEVER)
    }

    fn send_until(&mut self, body: request::Body, fds: &[BorrowedFd<'_>], until: Until) -> Result<u64> {
        let request = v1::Request { id: self.next_id, body: Some(body), ..Default::default() };
        let bytes = request.encoded_len();
        if bytes > MAX_MESSAGE_BYTES || fds.len() > MAX_MESSAGE_FDS {
            return Err(Error::Invalid(format!(
                "a request of {bytes} bytes with {} descriptors: at most {MAX_MESSAGE_BYTES} bytes and \
                 {MAX_MESSAGE_FDS} descriptors fit; put data into an arena",
                fds.len()
            )));
        }
        self.finish_frame(until)?;
        let frame = frame::encode(&request, fds.len());
        let sent = self.write(&frame, fds, until)?;
        if sent > 0 {
            self.next_id += 1;
            self.unanswered.insert(request.id);
        }
        if sent < frame.len() {
            // Where some of it is on its way, the rest goes before the next request.
            if sent > 0 {
                self.unsent = frame[sent..].to_vec();
                self.forget(request.id);
            }
            until.check()?;
        }
        Ok(request.id)
    }

    /// The next answer, of any request.
    pub fn recv(&mut self) -> Result<v1::Response> {
        loop {
            if let Some(answer) = self.answers.pop_front() {
                return Ok(answer);
            }
            self.expect_answers()?;
            if !self.receive()? {
                self.wait_for(PollFlags::IN, Until::NEVER)?;
            }
        }
    }

    /// As [`Client::recv`], but gives up after `patience`.
    pub fn recv_within(&mut self, patience: Duration) -> Result<Option<v1::Response>> {
        let until = Until::within(patience);
        loop {
            if let Some(answer) = self.answers.pop_front() {
                return Ok(Some(answer));
            }
            self.expect_answers()?;
            if !self.receive()? {
                if until.is_over() {
                    return Ok(None);
                }
                self.wait_for(PollFlags::IN, until)?;
            }
        }
    }

    /// The answer to one request; others that arrive meanwhile are kept for later.
    pub fn wait(&mut self, id: u64) -> Result<response::Body> {
        self.wait_until(id, Until::NEVER)
    }

    fn wait_until(&mut self, id: u64, until: Until) -> Result<response::Body> {
        loop {
            if let Some(at) = self.answers.iter().position(|answer| answer.id == id) {
                return match self.answers.remove(at).and_then(|answer| answer.body) {
                    Some(response::Body::Error(error)) => Err(Error::Refused(error)),
                    Some(body) => Ok(body),
                    None => Err(Error::Protocol("the supervisor sent an empty answer".into())),
                };
            }
            if !self.unanswered.contains(&id) {
                return Err(Error::Invalid(format!("request {id} waits for no answer")));
            }
            if !self.receive()? {
                until.check().inspect_err(|_| self.forget(id))?;
                self.wait_for(PollFlags::IN, until)?;
            }
        }
    }

    /// Waits until the supervisor ends the connection or sends something, for so long at most.
    pub(crate) fn watch_end(&self, patience: Duration) -> Result<()> {
        self.wait_for(PollFlags::IN, Until::within(patience))
    }

    /// Requests whose answers have not arrived yet. Answers that arrived and were not taken yet count no more: whoever waits
    /// for all of them counts those that it takes.
    pub fn in_flight(&self) -> usize {
        self.unanswered.len()
    }

    /// Sends a request and waits for its answer.
    pub(crate) fn call(&mut self, body: request::Body, fds: &[BorrowedFd<'_>]) -> Result<response::Body> {
        let until = if is_slow(&body) { Until::NEVER } else { Until::within(self.patience) };
        self.exchange(body, fds, until)
    }

    /// Makes a call, which ends with its deadline, if it has one, or the supervisor is silent.
    pub(crate) fn call_function(
        &mut self,
        call: v1::Invoke,
        fds: &[BorrowedFd<'_>],
    ) -> Result<response::Body> {
        let until = match call.deadline_ns {
            0 => Until::NEVER,
            ns => Until::within(Duration::from_nanos(ns).saturating_add(self.patience)),
        };
        self.exchange(request::Body::Invoke(call), fds, until)
    }

    fn exchange(
        &mut self,
        body: request::Body,
        fds: &[BorrowedFd<'_>],
        until: Until,
    ) -> Result<response::Body> {
        let id = self.send_until(body, fds, until)?;
        self.wait_until(id, until)
    }

    /// Arenas that were opened when nobody waited for them any more: they are to be closed.
    pub(crate) fn take_stray(&mut self) -> Option<u64> {
        self.strays.pop()
    }

    /// Nobody waits for the answer to a request any more.
    fn forget(&mut self, id: u64) {
        self.unanswered.remove(&id);
        self.forgotten.insert(id);
    }

    fn expect_answers(&self) -> Result<()> {
        if self.unanswered.is_empty() {
            return Err(Error::Invalid("no request waits for an answer".into()));
        }
        Ok(())
    }

    /// Sends what is left of a frame whose sender gave up.
    fn finish_frame(&mut self, until: Until) -> Result<()> {
        let rest = std::mem::take(&mut self.unsent);
        let sent = self.write(&rest, &[], until)?;
        self.unsent = rest[sent..].to_vec();
        if self.unsent.is_empty() { Ok(()) } else { until.check() }
    }

    /// Writes bytes, with descriptors on the first of them; how many the socket took in time.
    fn write(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>], until: Until) -> Result<usize> {
        let mut sent = 0;
        while sent < bytes.len() {
            let fds = if sent == 0 { fds } else { &[] };
            match fds::send(self.socket.as_fd(), &bytes[sent..], fds) {
                Ok(taken) => sent += taken,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) if until.is_over() => break,
                Err(rustix::io::Errno::AGAIN) => {
                    if !self.receive()? {
                        self.wait_for(PollFlags::IN | PollFlags::OUT, until)?;
                    }
                }
                Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => return Err(self.last_words()),
                Err(error) => return Err(Error::io("sendmsg")(error)),
            }
        }
        Ok(sent)
    }

    /// Why the supervisor closed the connection, if it said so before it did.
    fn last_words(&mut self) -> Error {
        loop {
            if let Err(error) = self.receive() {
                return error;
            }
        }
    }

    /// Takes what the socket holds; false where that is nothing.
    fn receive(&mut self) -> Result<bool> {
        let mut fds = Vec::new();
        let received = match fds::recv(self.socket.as_fd(), &mut self.buffer, &mut fds) {
            Ok(received) => received.bytes,
            Err(rustix::io::Errno::INTR) => return Ok(true),
            Err(rustix::io::Errno::AGAIN) => return Ok(false),
            Err(rustix::io::Errno::CONNRESET) => 0,
            Err(error) => return Err(Error::io("recvmsg")(error)),
        };
        if received == 0 {
            return Err(Error::Lost);
        }
        let broken =
            |error: FrameError| Error::Protocol(format!("the supervisor sent a broken frame: {error}"));
        self.decoder.feed(&self.buffer[..received], fds).map_err(broken)?;
        while let Some((message, _)) = self.decoder.next_frame().map_err(broken)? {
            let answer = v1::Response::decode(message).map_err(|error| {
                Error::Protocol(format!("the supervisor sent an unreadable answer: {error}"))
            })?;
            self.take(answer)?;
        }
        Ok(true)
    }

    fn take(&mut self, answer: v1::Response) -> Result<()> {
        match answer {
            // An error of the connection, not of one request.
            v1::Response { id: 0, body: Some(response::Body::Error(error)) } => Err(Error::Refused(error)),
            answer if self.unanswered.remove(&answer.id) => {
                self.answers.push_back(answer);
                Ok(())
            }
            answer if self.forgotten.remove(&answer.id) => {
                if let Some(response::Body::Arena(opened)) = answer.body {
                    self.strays.push(opened.arena);
                }
                Ok(())
            }
            answer => Err(Error::Protocol(format!(
                "the supervisor answered request {}, which was not sent or is answered already",
                answer.id
            ))),
        }
    }

    fn wait_for(&self, flags: PollFlags, until: Until) -> Result<()> {
        wait_for(&self.socket, flags, until)
    }
}

/// Waits until a socket is ready for something of this, or the time is over.
fn wait_for(socket: &UnixStream, flags: PollFlags, until: Until) -> Result<()> {
    let timeout = until.left().map(|left| Timespec {
        tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: left.subsec_nanos().into(),
    });
    match rustix::event::poll(&mut [PollFd::new(socket, flags)], timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(Error::io("poll")(error)),
    }
}

/// True if a supervisor compiles for it, reads files or waits for calls, however well it is.
pub(crate) fn is_slow(body: &request::Body) -> bool {
    use request::Body;
    matches!(
        body,
        Body::PutBlob(_)
            | Body::AddModule(_)
            | Body::AddFunction(_)
            | Body::UseVersion(_)
            | Body::Reload(_)
            | Body::SetDevice(_)
            | Body::Drain(_)
    )
}

#[cfg(test)]
mod tests;
