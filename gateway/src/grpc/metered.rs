//! Bodies of requests over gRPC: each piece is counted before it is kept, and a request with one message comes whole in time.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming};
use tokio::time::{Sleep, sleep};
use tonic::Status;

use super::status;
use crate::failure::{Failure, Kind};
use crate::limits::{BODY_TIME, CONTENTS_FACTOR, MAX_CONTENTS_BYTES};
use crate::memory::{Memory, Share};

/// What a request has of the memory for all requests. Of a stream, what one message of it has.
#[derive(Debug, Clone)]
pub(super) struct Meter {
    memory: Arc<Memory>,
    now: Arc<Mutex<Counted>>,
}

#[derive(Debug)]
struct Counted {
    share: Arc<Share>,
    bytes: usize,
}

impl Meter {
    pub(super) fn new(memory: Arc<Memory>) -> Self {
        let now = Counted { share: Arc::new(memory.share()), bytes: 0 };
        Self { memory, now: Arc::new(Mutex::new(now)) }
    }

    /// The share of the message that was received last.
    pub(super) fn share(&self) -> Arc<Share> {
        self.lock().share.clone()
    }

    /// A message is over: the next one begins with nothing.
    pub(super) fn renew(&self) {
        *self.lock() = Counted { share: Arc::new(self.memory.share()), bytes: 0 };
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

/// A body with a meter.
#[derive(Debug)]
pub(super) struct Metered {
    body: Incoming,
    meter: Meter,
    /// When the body has to be complete, if there is such a moment.
    until: Option<Pin<Box<Sleep>>>,
}

impl Metered {
    pub(super) fn new(body: Incoming, meter: Meter, in_time: bool) -> Self {
        Self { body, meter, until: in_time.then(|| Box::pin(sleep(BODY_TIME))) }
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
                let counted = frame.data_ref().map_or(Ok(()), |data| self.meter.count(data.len()));
                Poll::Ready(Some(counted.map(|()| frame).map_err(|failure| status(&failure))))
            }
            Poll::Pending => match self.until.as_mut().map(|until| until.as_mut().poll(cx)) {
                Some(Poll::Ready(())) => {
                    self.until = None;
                    let told = format!("the request did not come within {BODY_TIME:?}");
                    Poll::Ready(Some(Err(status(&Failure::new(Kind::SlowClient, told)))))
                }
                _ => Poll::Pending,
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
