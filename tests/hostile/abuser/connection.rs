//! One connection of a process that abuses: it sends without waiting for long, and reads only where it is told to.

use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use pappus_client::v1::{Response, response};
use pappus_proto::frame::Decoder;
use pappus_proto::handshake::GREETING_BYTES;
use prost::Message;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::Result;
use super::descriptors::{KERNEL_MAX_FDS, Keeper};
use super::requests::Last;

/// How long it waits for room in the socket.
const ROOM: Duration = Duration::from_millis(20);
/// How long it waits for an answer that it needs.
const ANSWER: Duration = Duration::from_secs(2);

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    decoder: Decoder<OwnedFd>,
    /// Bytes of the supervisor's greeting that did not come yet.
    greeting: usize,
    pub(crate) last: Last,
    /// The arena opened last.
    pub(crate) arena: Option<OwnedFd>,
    /// What keeps inodes of its arenas locked.
    pub(crate) keepers: Vec<Keeper>,
    /// The socket is full, or part of a frame was sent: nothing more can be.
    pub(crate) stuck: bool,
}

impl Connection {
    pub(crate) fn open(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            decoder: Decoder::default(),
            greeting: GREETING_BYTES,
            last: Last::default(),
            arena: None,
            keepers: Vec::new(),
            stuck: false,
        })
    }

    /// The next request's id.
    pub(crate) fn next_id(&mut self) -> u64 {
        // 1 was the token.
        self.last.request = self.last.request.max(1) + 1;
        self.last.request
    }

    /// Sends bytes, descriptors with the first of them; what does not fit within a moment is not sent, nor is anything
    /// after it.
    pub(crate) fn send(&mut self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        self.send_message(bytes, descriptors, SendFlags::empty());
    }

    /// Sends an urgent byte with a descriptor.
    pub(crate) fn send_urgent(&mut self, byte: &[u8], descriptor: BorrowedFd<'_>) {
        self.send_message(byte, &[descriptor], SendFlags::OOB);
    }

    fn send_message(&mut self, mut bytes: &[u8], descriptors: &[BorrowedFd<'_>], flags: SendFlags) {
        let mut descriptors = &descriptors[..descriptors.len().min(KERNEL_MAX_FDS)];
        while !self.stuck && !bytes.is_empty() {
            let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(KERNEL_MAX_FDS))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() {
                ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
            }
            let message = [IoSlice::new(bytes)];
            match rustix::net::sendmsg(&self.stream, &message, &mut ancillary, flags | SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    bytes = &bytes[sent..];
                    descriptors = &[];
                }
                Err(rustix::io::Errno::AGAIN) => self.stuck = !self.wait(PollFlags::OUT, ROOM),
                // Closed, or more descriptors on their way than this user may have.
                Err(_) => self.stuck = true,
            }
        }
    }

    /// Takes what was answered, and forgets it.
    pub(crate) fn read(&mut self) {
        while matches!(self.receive(), Ok(true)) {
            while let Ok(Some(_)) = self.decoder.next_frame() {}
        }
    }

    /// The answer to the request sent last; others are forgotten.
    pub(crate) fn answer(&mut self) -> Option<response::Body> {
        let until = Instant::now() + ANSWER;
        loop {
            while let Ok(Some((message, _))) = self.decoder.next_frame() {
                let response = Response::decode(message).ok()?;
                if response.id == self.last.request {
                    return response.body;
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if !self.receive().ok()? && (left.is_zero() || !self.wait(PollFlags::IN, left)) {
                return None;
            }
        }
    }

    /// True if the socket had something; an error where it was closed.
    fn receive(&mut self) -> Result<bool> {
        let mut buffer = [0; 64 << 10];
        let received = match self.stream.read(&mut buffer) {
            Ok(0) => return Err("closed".into()),
            Ok(received) => received,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let greeting = self.greeting.min(received);
        self.greeting -= greeting;
        self.decoder.feed(&buffer[greeting..received], Vec::new())?;
        Ok(true)
    }

    /// True if the socket is ready within that time.
    fn wait(&self, flags: PollFlags, patience: Duration) -> bool {
        let timeout = Timespec {
            tv_sec: patience.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: patience.subsec_nanos().into(),
        };
        let mut polled = [PollFd::from_borrowed_fd(self.stream.as_fd(), flags)];
        rustix::event::poll(&mut polled, Some(&timeout)).is_ok_and(|ready| ready > 0)
    }
}
