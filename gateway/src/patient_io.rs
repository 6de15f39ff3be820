//! A connection whose client may not stall: where the client takes none of the bytes that wait for it, the connection ends. What is
//! received has limits elsewhere, by request.

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
}

impl<S> PatientIo<S> {
    /// Ends where nothing is taken for so long.
    pub fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience, stalls: None }
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
        Pin::new(&mut self.stream).poll_read(cx, buf)
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
}
