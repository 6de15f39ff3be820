//! A client that breaks rules: it sends any bytes and descriptors over a plain socket.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use pappus_client::v1::{self, request, response};
use pappus_proto::frame::{self, Decoder};
use pappus_proto::handshake::{GREETING_BYTES, Greeting};
use pappus_proto::limits::MAX_MESSAGE_FDS;
use prost::Message;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use crate::fixture::{PATIENCE, until};

/// The most descriptors that Linux lets one message carry.
pub(crate) const KERNEL_MAX_FDS: usize = 253;

/// A connection without manners.
pub(crate) struct Raw {
    pub(crate) stream: UnixStream,
    decoder: Decoder<OwnedFd>,
}

impl Raw {
    /// Connects and says nothing.
    pub(crate) fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        // A case that waits for an answer which never comes fails instead of hanging.
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream, decoder: Decoder::default() }
    }

    /// Connects and greets.
    pub(crate) fn greeted(socket: &Path) -> Self {
        let mut raw = Self::connect(socket);
        raw.send(&Greeting::OURS.encode());
        assert_eq!(raw.greeting(), Some(Greeting::OURS));
        raw
    }

    /// Connects and greets, where the supervisor listens.
    pub(crate) fn try_greeted(socket: &Path) -> Option<Self> {
        let stream = UnixStream::connect(socket).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let mut raw = Self { stream, decoder: Decoder::default() };
        raw.stream.write_all(&Greeting::OURS.encode()).ok()?;
        (raw.greeting() == Some(Greeting::OURS)).then_some(raw)
    }

    /// The same connection once more, for another thread.
    pub(crate) fn twin(&self) -> Self {
        Self { stream: self.stream.try_clone().unwrap(), decoder: Decoder::default() }
    }

    /// The supervisor's greeting; `None` where it closes instead.
    pub(crate) fn greeting(&mut self) -> Option<Greeting> {
        let mut answer = [0; GREETING_BYTES];
        self.stream.read_exact(&mut answer).ok()?;
        Greeting::decode(&answer)
    }

    /// Sends bytes; that the supervisor may have closed already is no failure.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        match self.stream.write_all(bytes) {
            Err(error) if !matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                panic!("{error}")
            }
            _ => {}
        }
    }

    /// Sends bytes with any number of descriptors.
    pub(crate) fn send_fds(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        self.send_message(bytes, fds, SendFlags::empty());
    }

    /// Sends one urgent byte with descriptors.
    pub(crate) fn send_urgent(&mut self, byte: u8, fds: &[BorrowedFd<'_>]) {
        self.send_message(&[byte], fds, SendFlags::OOB);
    }

    fn send_message(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>], flags: SendFlags) {
        until("the connection is served, and takes descriptors", || self.offer(bytes, fds, flags));
    }

    /// Sends bytes with descriptors; false if the connection takes no descriptors, as one that is not served yet from
    /// Linux 6.16 on.
    pub(crate) fn offer(&self, bytes: &[u8], fds: &[BorrowedFd<'_>], flags: SendFlags) -> bool {
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(KERNEL_MAX_FDS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
        let (message, flags) = ([IoSlice::new(bytes)], flags | SendFlags::NOSIGNAL);
        match rustix::net::sendmsg(&self.stream, &message, &mut ancillary, flags) {
            Err(Errno::PERM) => false,
            sent => sent == Ok(bytes.len()) || panic!("{sent:?}"),
        }
    }

    /// Sends a request; a frame says how many descriptors come with it.
    pub(crate) fn request(&mut self, id: u64, body: request::Body, fds: &[BorrowedFd<'_>]) {
        let frame = request(id, body, fds.len());
        match fds {
            [] => self.send(&frame),
            _ => self.send_fds(&frame, fds),
        }
    }

    /// As [`Raw::request`]; true if the supervisor still listens.
    pub(crate) fn try_request(&mut self, id: u64, body: request::Body, fds: &[BorrowedFd<'_>]) -> bool {
        let frame = request(id, body, fds.len());
        if fds.is_empty() {
            return self.stream.write_all(&frame).is_ok();
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_MESSAGE_FDS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
        let message = [IoSlice::new(&frame)];
        rustix::net::sendmsg(&self.stream, &message, &mut ancillary, SendFlags::NOSIGNAL) == Ok(frame.len())
    }

    /// The next answer; `None` once the supervisor has closed.
    pub(crate) fn answer(&mut self) -> Option<v1::Response> {
        self.try_answer().unwrap()
    }

    /// The same; an error if it takes too long.
    pub(crate) fn try_answer(&mut self) -> std::io::Result<Option<v1::Response>> {
        let mut buffer = [0; 4096];
        loop {
            if let Some((message, _)) = self.decoder.next_frame().unwrap() {
                return Ok(Some(v1::Response::decode(message).unwrap()));
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(None),
                Ok(bytes) => self.decoder.feed(&buffer[..bytes], Vec::new()).unwrap(),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(None),
                // A read with a time limit is not begun again by itself.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The next answer's id and body.
    pub(crate) fn body(&mut self) -> (u64, response::Body) {
        let answer = self.answer().expect("the supervisor closed instead of answering");
        (answer.id, answer.body.unwrap())
    }

    /// The next answer's id and error.
    pub(crate) fn error(&mut self) -> (u64, v1::Error) {
        match self.body() {
            (id, response::Body::Error(error)) => (id, error),
            (id, other) => panic!("expected an error to request {id}, got {other:?}"),
        }
    }

    /// Says that nothing more will be sent.
    pub(crate) fn close_sending(&self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// The supervisor closes this connection without another answer.
    pub(crate) fn is_closed(&mut self) {
        assert_eq!(self.answer(), None);
    }
}

/// A request's frame that announces `fds` descriptors.
pub(crate) fn request(id: u64, body: request::Body, fds: usize) -> Vec<u8> {
    frame::encode(&v1::Request { id, body: Some(body), ..Default::default() }, fds)
}

/// The cheapest request.
pub(crate) fn status() -> request::Body {
    request::Body::Status(v1::Empty {})
}

/// A call of `function` with one inline input and one inline output, if any.
pub(crate) fn invoke(function: &str, input: Option<&[u8]>) -> request::Body {
    let item = |bytes: &[u8]| v1::Item { source: Some(v1::item::Source::Inline(bytes.to_vec().into())) };
    let given = input.into_iter().map(|bytes| v1::Input {
        name: "in".into(),
        items: vec![item(bytes)],
        r#type: None,
    });
    request::Body::Invoke(v1::Invoke {
        function: function.into(),
        inputs: given.collect(),
        outputs: input.map(|_| output(None)).into_iter().collect(),
        ..v1::Invoke::default()
    })
}

/// The output of `copy`.
pub(crate) fn output(region: Option<v1::Region>) -> v1::Output {
    v1::Output { name: "out".into(), region }
}
