//! Answers on their way: each keeps its share of the memory until the client has taken all of it, or the connection is over. A client
//! that takes nothing of one for too long loses its connection: on HTTP/2 an answer may wait while the socket takes bytes.
//!
//! ```text
//! answer ──► held ──► pieces ──the client takes them──► the share comes back
//!                       └── none is taken for too long ──► the connection ends
//! ```

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame};
use tokio::time::{Instant, sleep};
use tonic::Status;

use crate::memory::Share;

/// Bytes of an answer that are handed on at once; to take so many is to go on.
const PIECE_BYTES: usize = 64 << 10;
/// Answers of one connection that are remembered before those are forgotten that are over.
const TIDY_FROM: usize = 512;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is locked is whole after every step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The answers of one connection.
#[derive(Debug, Clone, Default)]
pub struct Answers(Arc<Mutex<Vec<Weak<Way>>>>);

impl Answers {
    /// The way of the answers to one request.
    pub(super) fn way(&self) -> Arc<Way> {
        let way = Arc::new(Way { state: Mutex::new(State { held: 0, moved: Instant::now() }) });
        let mut all = lock(&self.0);
        if all.len() >= TIDY_FROM {
            all.retain(|way| way.strong_count() > 0);
        }
        all.push(Arc::downgrade(&way));
        way
    }

    /// Returns once the client has taken nothing of one of the answers for so long.
    pub async fn stalled(&self, patience: Duration) {
        loop {
            sleep(patience / 4).await;
            let stalls = |way: &Weak<Way>| way.upgrade().is_some_and(|way| way.stalls(patience));
            if lock(&self.0).iter().any(stalls) {
                return;
            }
        }
    }
}

/// How far the answers to one request are.
#[derive(Debug)]
pub(super) struct Way {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Answers that the client has not taken yet.
    held: usize,
    /// When it took something last, or could have begun to.
    moved: Instant,
}

impl Way {
    /// An answer is there, which has this share of the memory.
    pub(super) fn hold(self: &Arc<Self>, share: Arc<Share>) -> Held {
        let mut state = lock(&self.state);
        if state.held == 0 {
            state.moved = Instant::now();
        }
        state.held += 1;
        Held { way: self.clone(), _share: share }
    }

    fn moved(&self) {
        lock(&self.state).moved = Instant::now();
    }

    fn stalls(&self, patience: Duration) -> bool {
        let state = lock(&self.state);
        state.held > 0 && state.moved.elapsed() > patience
    }
}

/// An answer that the client has not taken yet, or not all of it.
#[derive(Debug)]
pub(super) struct Held {
    way: Arc<Way>,
    _share: Arc<Share>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = lock(&self.way.state);
        state.held = state.held.saturating_sub(1);
        state.moved = Instant::now();
    }
}

/// Answers whose bytes are about to be made.
pub(super) type Queue = Arc<Mutex<Vec<Held>>>;

/// Puts an answer among those whose bytes are made next.
pub(super) fn queue(queue: &Queue, held: Held) {
    lock(queue).push(held);
}

/// Bytes of one or more answers.
struct Piece {
    bytes: Bytes,
    way: Arc<Way>,
    _held: Arc<Vec<Held>>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.way.moved();
    }
}

/// The body of an answer.
#[derive(Debug)]
pub(super) struct Sent {
    body: tonic::body::Body,
    way: Arc<Way>,
    queue: Queue,
    /// What is made and not handed on yet, and the answers that it is of.
    rest: Bytes,
    held: Arc<Vec<Held>>,
}

impl Sent {
    pub(super) fn new(body: tonic::body::Body, way: Arc<Way>, queue: Queue) -> Self {
        Self { body, way, queue, rest: Bytes::new(), held: Arc::default() }
    }

    fn piece(&mut self) -> Frame<Bytes> {
        let bytes = self.rest.split_to(self.rest.len().min(PIECE_BYTES));
        let held = match self.rest.is_empty() {
            true => std::mem::take(&mut self.held),
            false => self.held.clone(),
        };
        Frame::data(Bytes::from_owner(Piece { bytes, way: self.way.clone(), _held: held }))
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.rest.is_empty() {
            let frame = match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => frame,
                other => return other,
            };
            match frame.into_data() {
                Ok(data) if !data.is_empty() => self.rest = data,
                Ok(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Err(frame) => return Poll::Ready(Some(Ok(frame))),
            }
            let held = std::mem::take(&mut *lock(&self.queue));
            self.held = Arc::new(held);
        }
        Poll::Ready(Some(Ok(self.piece())))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    #[test]
    fn an_answer_has_its_memory_until_it_is_taken_and_stalls_where_it_is_not() {
        const PATIENCE: Duration = Duration::from_millis(20);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let memory = Memory::new(1000);
            let (answers, waiting) = (Answers::default(), Queue::default());
            let way = answers.way();
            let share = memory.share();
            share.take(100).unwrap();
            queue(&waiting, way.hold(Arc::new(share)));
            let bytes = vec![7; 2 * PIECE_BYTES + 1];
            let body = tonic::body::Body::new(http_body_util::Full::new(Bytes::from(bytes)));
            let mut body = Sent::new(body, way, waiting);
            let mut next = async || http_body_util::BodyExt::frame(&mut body).await;
            let mut pieces = Vec::new();
            while let Some(frame) = next().await {
                pieces.push(frame.unwrap().into_data().unwrap());
            }
            drop(body);
            assert_eq!(pieces.iter().map(Bytes::len).collect::<Vec<_>>(), [PIECE_BYTES, PIECE_BYTES, 1]);
            answers.stalled(PATIENCE).await;
            assert_eq!(memory.used(), 100);
            let last = pieces.pop().unwrap();
            drop(pieces);
            assert_eq!(memory.used(), 100);
            drop(last);
            assert_eq!(memory.used(), 0);
            // The control: nothing is left that could stall.
            assert!(tokio::time::timeout(3 * PATIENCE, answers.stalled(PATIENCE)).await.is_err());
        });
    }
}
