//! A connection whose client may not stall: where the client takes none of the bytes that wait for it, or does not send the first ones
//! in time, the connection ends. What is received behind those has limits elsewhere, by request.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// A stream with that rule.
#[derive(Debug)]
pub struct PatientIo<S> {
    stream: S,
    patience: Duration,
    /// When to give up, while bytes wait.
    stalls: Option<Pin<Box<Sleep>>>,
    /// The first bytes, while the client has not sent them.
    first: Option<First>,
}

/// What a client has to send before anything else.
#[derive(Debug)]
struct First {
    /// Bytes of it that did not come yet.
    left: usize,
    until: Pin<Box<Sleep>>,
}

impl<S> PatientIo<S> {
    /// Ends where nothing is taken for so long.
    pub fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience, stalls: None, first: None }
    }

    /// Ends as well where the first bytes, so many, do not come within that patience.
    pub fn beginning_with(self, bytes: usize) -> Self {
        let first = First { left: bytes, until: Box::pin(sleep(self.patience)) };
        Self { first: Some(first), ..self }
    }

    /// Bytes were taken, or there is nothing to be taken.
    fn goes_on<T>(&mut self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.stalls = None;
        }
        polled
    }

    /// Gives up what has been waiting for too long.
    fn judge<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            return polled;
        }
        let patience = self.patience;
        let stalls = self.stalls.get_or_insert_with(|| Box::pin(sleep(patience)));
        match stalls.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => {
                stalls.as_mut().reset(Instant::now() + patience);
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PatientIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        let Some(first) = &mut self.first else { return polled };
        match &polled {
            Poll::Pending => first.until.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into())),
            Poll::Ready(_) => {
                first.left = first.left.saturating_sub(buf.filled().len() - before);
                if first.left == 0 {
                    self.first = None;
                }
                polled
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PatientIo<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        let polled = self.goes_on(polled);
        self.judge(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        let polled = self.goes_on(polled);
        self.judge(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.judge(cx, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.judge(cx, polled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[test]
    fn whoever_takes_nothing_is_left() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (ours, mut theirs) = tokio::io::duplex(16);
            let mut ours = PatientIo::new(ours, Duration::from_millis(20));
            // The control: whoever takes bytes gets all of them, however many.
            let reads = tokio::spawn(async move {
                let mut all = vec![0; 1000];
                theirs.read_exact(&mut all).await.unwrap();
                theirs
            });
            ours.write_all(&[7; 1000]).await.unwrap();
            let _theirs = reads.await.unwrap();
            let stalled = ours.write_all(&[7; 1000]).await.unwrap_err();
            assert_eq!(stalled.kind(), io::ErrorKind::TimedOut);
        });
    }

    #[test]
    fn whoever_does_not_begin_is_left() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let patience = Duration::from_millis(20);
            for (sent, begins) in [(0, false), (3, false), (4, true)] {
                let (ours, mut theirs) = tokio::io::duplex(16);
                let mut ours = PatientIo::new(ours, patience).beginning_with(4);
                theirs.write_all(&vec![7; sent]).await.unwrap();
                let mut byte = [0];
                for _ in 0..sent {
                    ours.read_exact(&mut byte).await.unwrap();
                }
                // Whoever has begun may be silent.
                let silent = tokio::time::timeout(5 * patience, ours.read_exact(&mut byte)).await;
                match silent {
                    Err(_) => assert!(begins, "{sent}"),
                    Ok(read) => {
                        assert!(!begins && read.unwrap_err().kind() == io::ErrorKind::TimedOut, "{sent}");
                    }
                }
            }
        });
    }
}
