//! Frames over a pipe, read and written in batches.
//!
//! Neither end allocates after its first frames: [`Inbox`] hands out bodies where they lie in its
//! buffer, [`Outbox`] appends to one that keeps its capacity.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::ProtocolError;
use crate::from_worker::FromWorker;
use crate::header::{Frame, HEADER_BYTES, Header, Tag};
use crate::limits::{MAX_BODY_BYTES, PIPE_BYTES};
use crate::to_worker::ToWorker;
use crate::turn_page::{Words, WorkerEnd, Yields};

/// A pipe with both ends non-blocking and as much buffer as the kernel grants.
pub fn pipe() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK)?;
    // More buffer only spares waits; unprivileged users may have used up theirs.
    let _ = rustix::pipe::fcntl_setpipe_size(&write, PIPE_BYTES);
    Ok((read, write))
}

/// What a wait or a read ended with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Got {
    /// There is something to look at.
    Bytes,
    /// Nothing (yet).
    Nothing,
    /// The other end is closed.
    Closed,
    /// The nudge is readable; the waiting thread must read it.
    Nudged,
    /// There is something [`Beside`] the pipe.
    Beside,
}

/// What the other side changes without writing to the pipe, which a waiting thread looks at as well.
pub trait Beside {
    /// True if there is something to look at.
    fn has_news(&self) -> bool;
    /// The thread is about to block: from here on, the other side writes to the pipe, too. False if there is something
    /// to look at first.
    fn may_sleep(&self) -> bool;
    /// The thread does not block any more.
    fn awake(&self);
}

/// Nothing.
impl Beside for () {
    fn has_news(&self) -> bool {
        false
    }

    fn may_sleep(&self) -> bool {
        true
    }

    fn awake(&self) {}
}

impl<W: Words> Beside for Yields<W> {
    fn has_news(&self) -> bool {
        self.has_news()
    }

    fn may_sleep(&self) -> bool {
        self.may_sleep()
    }

    fn awake(&self) {
        self.awake();
    }
}

impl<W: Words> Beside for WorkerEnd<W> {
    fn has_news(&self) -> bool {
        self.has_news()
    }

    fn may_sleep(&self) -> bool {
        self.may_sleep()
    }

    fn awake(&self) {
        self.awake();
    }
}

/// The reading end.
#[derive(Debug)]
pub struct Inbox {
    fd: OwnedFd,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Inbox {
    /// Reads frames from a non-blocking descriptor.
    pub fn new(fd: OwnedFd) -> Self {
        let room = 2 * (HEADER_BYTES + MAX_BODY_BYTES);
        Self { fd, buffer: vec![0; room].into_boxed_slice(), start: 0, end: 0 }
    }

    /// The next whole frame in the buffer. The body is valid until the next call.
    pub fn frame(&mut self) -> Result<Option<Frame<'_>>, ProtocolError> {
        let waiting = &self.buffer[self.start..self.end];
        let Some(header) = waiting.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let (tag, id, length) = Header::decode(header)?;
        if waiting.len() < HEADER_BYTES + length {
            return Ok(None);
        }
        let body = self.start + HEADER_BYTES;
        self.start = body + length;
        Ok(Some(Frame { tag, id, body: &self.buffer[body..body + length] }))
    }

    /// One read, without blocking.
    pub fn fill(&mut self) -> std::io::Result<Got> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 && self.buffer.len() - self.end < HEADER_BYTES + MAX_BODY_BYTES {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        loop {
            match rustix::io::read(&self.fd, &mut self.buffer[self.end..]) {
                Ok(0) => return Ok(Got::Closed),
                Ok(n) => {
                    self.end += n;
                    return Ok(Got::Bytes);
                }
                Err(Errno::AGAIN) => return Ok(Got::Nothing),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Reads, trying again for `spin` while nothing is there, then blocks until `timeout` (none: for
    /// ever) or until `nudge` becomes readable. To be called once the frames already read are handled.
    pub fn wait(
        &mut self,
        spin: Duration,
        timeout: Option<Duration>,
        nudge: Option<BorrowedFd<'_>>,
    ) -> std::io::Result<Got> {
        self.wait_beside(spin, timeout, nudge, &())
    }

    /// As [`Inbox::wait`], and ends as soon as there is something beside the pipe.
    pub fn wait_beside(
        &mut self,
        spin: Duration,
        timeout: Option<Duration>,
        nudge: Option<BorrowedFd<'_>>,
        beside: &impl Beside,
    ) -> std::io::Result<Got> {
        if !spin.is_zero() {
            let until = Instant::now() + spin;
            loop {
                if beside.has_news() {
                    return Ok(Got::Beside);
                }
                match self.fill()? {
                    Got::Nothing if Instant::now() < until => std::hint::spin_loop(),
                    Got::Nothing => break,
                    other => return Ok(other),
                }
            }
        }
        let timeout =
            timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
        if !beside.may_sleep() {
            return Ok(Got::Beside);
        }
        // No read before: it would mostly find nothing, right where the next wake-up is being waited for.
        let (mut alone, mut both);
        let polled: &mut [PollFd<'_>] = match &nudge {
            None => {
                alone = [PollFd::new(&self.fd, PollFlags::IN)];
                &mut alone
            }
            Some(nudge) => {
                both = [PollFd::new(&self.fd, PollFlags::IN), PollFd::new(nudge, PollFlags::IN)];
                &mut both
            }
        };
        let ready = rustix::event::poll(polled, timeout.as_ref());
        beside.awake();
        match ready {
            Ok(0) | Err(Errno::INTR) => return Ok(Got::Nothing),
            Ok(_) if polled[0].revents().is_empty() => return Ok(Got::Nudged),
            Ok(_) => {}
            Err(e) => return Err(e.into()),
        }
        self.fill()
    }
}

/// What became of a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flushed {
    /// Everything is written.
    All,
    /// The pipe is full; call again once the reader caught up.
    Pending,
}

/// The writing end.
#[derive(Debug)]
pub struct Outbox {
    fd: OwnedFd,
    buffer: Vec<u8>,
    written: usize,
    /// Bytes that went through `buffer` before.
    before: u64,
}

impl Outbox {
    /// Writes frames to a non-blocking descriptor.
    pub fn new(fd: OwnedFd) -> Self {
        Self { fd, buffer: Vec::with_capacity(4096), written: 0, before: 0 }
    }

    /// Queues a message to a worker.
    pub fn push_to_worker(&mut self, message: &ToWorker<'_>) {
        let (tag, id) = message.head();
        self.push(tag, id, |out| message.encode_body(out));
    }

    /// Queues a message to the supervisor.
    pub fn push_from_worker(&mut self, message: &FromWorker<'_>) {
        let (tag, id) = message.head();
        self.push(tag, id, |out| message.encode_body(out));
    }

    fn push(&mut self, tag: Tag, id: u64, body: impl FnOnce(&mut Vec<u8>)) {
        let header = self.buffer.len();
        self.buffer.resize(header + HEADER_BYTES, 0);
        body(&mut self.buffer);
        let length = self.buffer.len() - header - HEADER_BYTES;
        debug_assert!(length <= MAX_BODY_BYTES);
        self.buffer[header..header + HEADER_BYTES].copy_from_slice(Header::new(tag, id, length).as_bytes());
    }

    /// Writes what is queued, without blocking.
    pub fn flush(&mut self) -> std::io::Result<Flushed> {
        while self.written < self.buffer.len() {
            match rustix::io::write(&self.fd, &self.buffer[self.written..]) {
                Ok(n) => self.written += n,
                Err(Errno::AGAIN) => return Ok(Flushed::Pending),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        self.before += self.buffer.len() as u64;
        self.buffer.clear();
        self.written = 0;
        Ok(Flushed::All)
    }

    /// Writes what is queued, waiting for the reader.
    pub fn flush_blocking(&mut self) -> std::io::Result<()> {
        while self.flush()? == Flushed::Pending {
            match rustix::event::poll(&mut [PollFd::new(&self.fd, PollFlags::OUT)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Bytes pushed since the beginning: where the last frame ends.
    pub fn pushed(&self) -> u64 {
        self.before + self.buffer.len() as u64
    }

    /// Bytes that the reader has taken. Unread bytes stay there after the reader's end.
    pub fn taken(&self) -> std::io::Result<u64> {
        let left = rustix::io::ioctl_fionread(&self.fd)?;
        Ok((self.before + self.written as u64).saturating_sub(left))
    }

    /// The descriptor, to poll for writability.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ArenaId;
    use proptest::prelude::*;

    fn pair() -> (Inbox, Outbox) {
        let (read, write) = pipe().unwrap();
        (Inbox::new(read), Outbox::new(write))
    }

    /// A short message that names an arena.
    fn closes(arena: u64) -> ToWorker<'static> {
        ToWorker::CloseArena { arena: ArenaId::new(arena) }
    }

    #[test]
    fn many_frames_arrive_in_one_read() {
        let (mut inbox, mut outbox) = pair();
        for arena in 0..100 {
            outbox.push_to_worker(&closes(arena));
        }
        assert_eq!(outbox.flush().unwrap(), Flushed::All);
        assert_eq!(inbox.fill().unwrap(), Got::Bytes);
        for arena in 0..100 {
            let frame = inbox.frame().unwrap().unwrap();
            let ToWorker::CloseArena { arena: got } = ToWorker::decode(frame).unwrap() else {
                panic!("another message")
            };
            assert_eq!(got, ArenaId::new(arena));
        }
        assert!(inbox.frame().unwrap().is_none());
        assert_eq!(inbox.fill().unwrap(), Got::Nothing);
    }

    #[test]
    fn what_the_reader_took_is_known_even_after_its_end() {
        let (mut inbox, mut outbox) = pair();
        let mut ends = Vec::new();
        for arena in 0..3 {
            outbox.push_to_worker(&closes(arena));
            ends.push(outbox.pushed());
            assert_eq!(outbox.flush().unwrap(), Flushed::All);
            if arena == 1 {
                assert_eq!(inbox.fill().unwrap(), Got::Bytes);
            }
        }
        assert_eq!(outbox.taken().unwrap(), ends[1]);
        drop(inbox);
        assert_eq!(outbox.taken().unwrap(), ends[1]);
        outbox.push_to_worker(&closes(3));
        assert!(outbox.flush().is_err());
        assert_eq!((outbox.taken().unwrap(), outbox.pushed() > ends[2]), (ends[1], true));
    }

    #[test]
    fn a_full_pipe_is_pending_and_loses_nothing() {
        let (mut inbox, mut outbox) = pair();
        const FRAMES: u64 = 100_000;
        for arena in 0..FRAMES {
            outbox.push_to_worker(&closes(arena));
        }
        assert_eq!(outbox.flush().unwrap(), Flushed::Pending);
        let mut next = 0;
        while next < FRAMES {
            outbox.flush().unwrap();
            inbox.fill().unwrap();
            while let Some(frame) = inbox.frame().unwrap() {
                assert_eq!(frame.id, next);
                next += 1;
            }
        }
        assert_eq!(outbox.flush().unwrap(), Flushed::All);
    }

    #[test]
    fn a_closed_pipe_and_a_timeout_are_told_apart() {
        let (mut inbox, outbox) = pair();
        let short = Some(Duration::from_millis(1));
        assert_eq!(inbox.wait(Duration::ZERO, short, None).unwrap(), Got::Nothing);
        drop(outbox);
        assert_eq!(inbox.wait(Duration::from_micros(50), None, None).unwrap(), Got::Closed);
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
            let (read, write) = pipe().unwrap();
            rustix::io::write(&write, &bytes).unwrap();
            let mut inbox = Inbox::new(read);
            inbox.fill().unwrap();
            while let Ok(Some(frame)) = inbox.frame() {
                let _ = ToWorker::decode(frame);
                let _ = FromWorker::decode(frame);
            }
        }
    }
}
