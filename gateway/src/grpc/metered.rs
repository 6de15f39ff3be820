//! Bodies of requests over gRPC: each piece is counted before it is kept, and a message that has begun comes whole in time.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming};
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tonic::Status;

use super::sent::{self, Held, Queue, Sent, Way};
use super::status;
use crate::failure::{Failure, Kind};
use crate::limits::{BODY_TIME, CONTENTS_FACTOR, MAX_CONTENTS_BYTES, MAX_HEAD_BYTES};
use crate::memory::{Memory, Owned, Share};

/// What a request has of the memory for all requests. Of a stream, what one message of it has.
#[derive(Debug, Clone)]
pub(super) struct Meter {
    memory: Arc<Memory>,
    owned: Owned,
    now: Arc<Mutex<Counted>>,
    way: Arc<Way>,
    /// Answers whose bytes are made next.
    queue: Queue,
}

#[derive(Debug)]
struct Counted {
    share: Arc<Share>,
    bytes: usize,
    /// When the client was first waited for in the middle of the message, of a stream.
    began: Option<Instant>,
}

impl Meter {
    /// Of the requests of a token that have so much.
    pub(super) fn new(memory: Arc<Memory>, owned: Owned, way: Arc<Way>) -> Self {
        let now = Counted { share: Arc::new(memory.share_of(&owned)), bytes: 0, began: None };
        Self { memory, owned, now: Arc::new(Mutex::new(now)), way, queue: Queue::default() }
    }

    /// The share of the message that was received last.
    pub(super) fn share(&self) -> Arc<Share> {
        self.lock().share.clone()
    }

    /// The answer to that message is there: it keeps the share until the client has taken it.
    pub(super) fn hold(&self) -> Held {
        self.way.hold(self.share())
    }

    /// The bytes of an answer are made next.
    pub(super) fn queue(&self, held: Held) {
        sent::queue(&self.queue, held);
    }

    /// The only answer is there, and its bytes are made next.
    pub(super) fn sends(&self) {
        self.queue(self.hold());
    }

    /// The body of the answers.
    pub(super) fn sent(&self, body: tonic::body::Body) -> Sent {
        Sent::new(body, self.way.clone(), self.queue.clone())
    }

    /// A message is over: the next one begins with nothing.
    pub(super) fn renew(&self) {
        *self.lock() = Counted { share: Arc::new(self.memory.share_of(&self.owned)), bytes: 0, began: None };
    }

    /// Counts bytes as they come. The first of a message may be numbers that take more once they are decoded.
    fn count(&self, bytes: usize) -> Result<(), Failure> {
        let mut now = self.lock();
        let first = bytes.min(MAX_CONTENTS_BYTES.saturating_sub(now.bytes));
        now.bytes += bytes;
        // Once as received, once as decoded.
        now.share.take(first * CONTENTS_FACTOR + (bytes - first) * 2)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Counted> {
        // What is counted is whole after every step.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a body comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comes {
    /// All of it in time.
    Once,
    /// All of it in time, and small: of a method that needs no token.
    FromAnyone,
    /// One message after the other, each in time once it has begun.
    InMessages,
}

/// Where in the messages of a body the bytes are that came last.
#[derive(Debug, Default)]
struct Framing {
    head: [u8; HEAD_BYTES],
    /// Bytes of the head that came.
    of_head: usize,
    /// Bytes of the message that did not come yet.
    left: usize,
}

/// Bytes in front of a message: whether it is compressed, and its length.
const HEAD_BYTES: usize = 5;

impl Framing {
    /// True if a message ended in these bytes.
    fn advance(&mut self, mut bytes: &[u8]) -> bool {
        let mut ended = false;
        while !bytes.is_empty() {
            if self.of_head < HEAD_BYTES {
                let taken = bytes.len().min(HEAD_BYTES - self.of_head);
                self.head[self.of_head..self.of_head + taken].copy_from_slice(&bytes[..taken]);
                self.of_head += taken;
                bytes = &bytes[taken..];
                if self.of_head < HEAD_BYTES {
                    break;
                }
                let [_, a, b, c, d] = self.head;
                self.left = u32::from_be_bytes([a, b, c, d]) as usize;
            } else {
                let taken = bytes.len().min(self.left);
                self.left -= taken;
                bytes = &bytes[taken..];
            }
            if self.left == 0 {
                self.of_head = 0;
                ended = true;
            }
        }
        ended
    }

    /// True if a message has begun and is not complete.
    fn is_within(&self) -> bool {
        self.of_head > 0
    }
}

/// A body with a meter.
#[derive(Debug)]
pub(super) struct Metered {
    body: Incoming,
    meter: Meter,
    comes: Comes,
    framing: Framing,
    /// When what has begun has to be complete, while something has.
    until: Option<Pin<Box<Sleep>>>,
}

impl Metered {
    pub(super) fn new(body: Incoming, meter: Meter, comes: Comes) -> Self {
        let until = (comes != Comes::InMessages).then(|| Box::pin(sleep(BODY_TIME)));
        Self { body, meter, comes, framing: Framing::default(), until }
    }

    fn count(&mut self, data: &[u8]) -> Result<(), Failure> {
        self.meter.count(data.len())?;
        match self.comes {
            Comes::Once => {}
            Comes::FromAnyone if self.meter.lock().bytes > MAX_HEAD_BYTES => {
                let told =
                    format!("the message is larger than {MAX_HEAD_BYTES} bytes, the most for this method");
                return Err(Failure::new(Kind::TooLarge, told));
            }
            Comes::FromAnyone => {}
            Comes::InMessages => {
                if self.framing.advance(data) {
                    self.meter.lock().began = None;
                    self.until = None;
                }
            }
        }
        Ok(())
    }

    /// Nothing is there: of a stream, the client's time runs in the middle of a message alone, and while nothing is done for it.
    fn waits(&mut self) {
        if self.comes == Comes::InMessages {
            if self.framing.is_within() {
                let until = *self.meter.lock().began.get_or_insert_with(Instant::now) + BODY_TIME;
                match &mut self.until {
                    Some(timer) if timer.deadline() == until => {}
                    Some(timer) => timer.as_mut().reset(until),
                    None => self.until = Some(Box::pin(sleep_until(until))),
                }
            } else {
                self.until = None;
            }
        }
    }
}

impl Body for Metered {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Ready(Some(Err(error))) => {
                Poll::Ready(Some(Err(Status::cancelled(format!("the request ended early: {error}")))))
            }
            Poll::Ready(Some(Ok(frame))) => {
                let counted = match frame.data_ref() {
                    Some(data) => self.count(data),
                    None => Ok(()),
                };
                Poll::Ready(Some(counted.map(|()| frame).map_err(|failure| status(&failure))))
            }
            Poll::Pending => {
                self.waits();
                match self.until.as_mut().map(|until| until.as_mut().poll(cx)) {
                    Some(Poll::Ready(())) => {
                        self.until = None;
                        let told = format!("the request did not come within {BODY_TIME:?}");
                        Poll::Ready(Some(Err(status(&Failure::new(Kind::SlowClient, told)))))
                    }
                    _ => Poll::Pending,
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_begins_with_its_head_and_ends_with_its_last_byte() {
        let message = |bytes: u8| [&[0, 0, 0, 0, bytes][..], &vec![7; bytes.into()]].concat();
        let all = [message(3), message(0), message(200)].concat();
        for piece in [1, 2, 4, 7, 300] {
            let mut framing = Framing::default();
            let (mut at, mut ends) = (0, Vec::new());
            for bytes in all.chunks(piece) {
                at += bytes.len();
                if framing.advance(bytes) {
                    ends.push(at);
                }
                assert_eq!(framing.is_within(), ![8, 13, 218].contains(&at), "{piece} {at}");
            }
            assert!(piece > 1 || ends == [8, 13, 218], "{ends:?}");
            assert_eq!(at, 218);
        }
    }
}
