//! The connection: requests out, answers in, in any order. The socket never blocks: a client that fills it with
//! requests keeps taking answers meanwhile, so that neither side can wait for the other for ever.

use std::collections::{HashSet, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use pappus_proto::frame::{self, Decoder, FrameError};
use pappus_proto::handshake::{GREETING_BYTES, Greeting};
use pappus_proto::limits::{MAX_MESSAGE_BYTES, MAX_MESSAGE_FDS};
use pappus_proto::v1::{self, request, response};
use pappus_shmem::fds;
use prost::Message;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::error::{Error, Result};

/// Bytes taken from the socket at once.
const RECEIVE_BYTES: usize = 64 << 10;
/// How long [`Client::connect_within`] waits between attempts.
const RETRY_EVERY: Duration = Duration::from_millis(10);

/// A connection to a supervisor. Arenas, and blobs nothing refers to, end with it.
#[derive(Debug)]
pub struct Client {
    socket: UnixStream,
    decoder: Decoder<OwnedFd>,
    buffer: Box<[u8]>,
    next_id: u64,
    /// Requests that no answer has been received for.
    unanswered: HashSet<u64>,
    /// Answers that were received and not yet asked for, oldest first.
    answers: VecDeque<v1::Response>,
}

impl Client {
    /// Connects and agrees on a protocol version.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let unreachable = |source| Error::Unreachable { path: path.to_owned(), source };
        let socket = UnixStream::connect(path).map_err(unreachable)?;
        Self::handshake(socket)
    }

    /// Connects, trying again until a supervisor listens or `patience` is over.
    pub fn connect_within(path: impl AsRef<Path>, patience: Duration) -> Result<Self> {
        let end = Instant::now() + patience;
        loop {
            match Self::connect(path.as_ref()) {
                Err(Error::Unreachable { source, .. })
                    if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
                        && Instant::now() < end =>
                {
                    std::thread::sleep(RETRY_EVERY);
                }
                other => return other,
            }
        }
    }

    /// Greets over a connected socket.
    pub fn handshake(mut socket: UnixStream) -> Result<Self> {
        // A refused connection may be closed already, with the reason still to be read from it.
        let _ = socket.write_all(&Greeting::OURS.encode());
        let mut answer = [0; GREETING_BYTES];
        socket.read_exact(&mut answer).map_err(|_| Error::Lost)?;
        match Greeting::decode(&answer) {
            Some(Greeting::OURS) => {}
            Some(Greeting::NONE) => {
                return Err(Error::Protocol(
                    "the supervisor speaks another version of the protocol: use the `pappus` it came with"
                        .into(),
                ));
            }
            _ => {
                return Err(Error::Protocol("this socket does not belong to a Pappus supervisor".into()));
            }
        }
        socket.set_nonblocking(true).map_err(Error::io("fcntl(O_NONBLOCK)"))?;
        Ok(Self {
            socket,
            decoder: Decoder::default(),
            buffer: vec![0; RECEIVE_BYTES].into(),
            next_id: 1,
            unanswered: HashSet::new(),
            answers: VecDeque::new(),
        })
    }

    /// Sends a request with its descriptors and returns its id without waiting for the answer.
    pub fn send(&mut self, body: request::Body, fds: &[BorrowedFd<'_>]) -> Result<u64> {
        let request = v1::Request { id: self.next_id, body: Some(body) };
        let bytes = request.encoded_len();
        if bytes > MAX_MESSAGE_BYTES || fds.len() > MAX_MESSAGE_FDS {
            return Err(Error::Invalid(format!(
                "a request of {bytes} bytes with {} descriptors: at most {MAX_MESSAGE_BYTES} bytes and \
                 {MAX_MESSAGE_FDS} descriptors fit; put data into an arena",
                fds.len()
            )));
        }
        self.write(&frame::encode(&request, fds.len()), fds)?;
        self.next_id += 1;
        self.unanswered.insert(request.id);
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
                self.poll(PollFlags::IN, None)?;
            }
        }
    }

    /// As [`Client::recv`], but gives up after `patience`.
    pub fn recv_within(&mut self, patience: Duration) -> Result<Option<v1::Response>> {
        let end = Instant::now() + patience;
        loop {
            if let Some(answer) = self.answers.pop_front() {
                return Ok(Some(answer));
            }
            self.expect_answers()?;
            if !self.receive()? {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(None);
                }
                self.poll(PollFlags::IN, Some(left))?;
            }
        }
    }

    /// The answer to one request; others that arrive meanwhile are kept for later.
    pub fn wait(&mut self, id: u64) -> Result<response::Body> {
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
                self.poll(PollFlags::IN, None)?;
            }
        }
    }

    /// Requests whose answers have not arrived yet. Answers that arrived and were not taken yet count no more: whoever waits
    /// for all of them counts those that it takes.
    pub fn in_flight(&self) -> usize {
        self.unanswered.len()
    }

    /// Sends a request and waits for its answer.
    pub(crate) fn call(&mut self, body: request::Body, fds: &[BorrowedFd<'_>]) -> Result<response::Body> {
        let id = self.send(body, fds)?;
        self.wait(id)
    }

    fn expect_answers(&self) -> Result<()> {
        if self.unanswered.is_empty() {
            return Err(Error::Invalid("no request waits for an answer".into()));
        }
        Ok(())
    }

    fn write(&mut self, mut bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        // Descriptors go with the first byte, and only once.
        let mut fds = fds;
        while !bytes.is_empty() {
            match fds::send(self.socket.as_fd(), bytes, fds) {
                Ok(taken) => {
                    bytes = &bytes[taken..];
                    fds = &[];
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => {
                    if !self.receive()? {
                        self.poll(PollFlags::IN | PollFlags::OUT, None)?;
                    }
                }
                Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => return Err(self.last_words()),
                Err(error) => return Err(Error::io("sendmsg")(error)),
            }
        }
        Ok(())
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
            answer => Err(Error::Protocol(format!(
                "the supervisor answered request {}, which was not sent or is answered already",
                answer.id
            ))),
        }
    }

    fn poll(&self, flags: PollFlags, patience: Option<Duration>) -> Result<()> {
        let timeout = patience.map(|patience| Timespec {
            tv_sec: patience.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: patience.subsec_nanos().into(),
        });
        match rustix::event::poll(&mut [PollFd::new(&self.socket, flags)], timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(Error::io("poll")(error)),
        }
    }
}

#[cfg(test)]
mod tests;
