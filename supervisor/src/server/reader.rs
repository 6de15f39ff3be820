//! The reading side of a connection. A client that just asked often asks again at once, so the task polls the socket
//! for a while before it sleeps: waking it costs more than many small calls take.
//!
//! ```text
//! watched ──found again and again──► bare ──nothing for a while──► watched, asleep
//! ```
//!
//! While it is bare nothing watches the socket: a watched one would wake a thread for every request that is
//! found without it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pappus_shmem::fds;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::async_fd::watch;
use crate::limits::processors;

/// Connections that may be asked again and again at the same time; each keeps a socket thread from sleeping.
const MAX_POLLING: usize = 2;
/// Requests in a row that are found by asking before the socket is not watched any more: to begin watching again
/// costs more than a wake-up for nothing.
const FOUND_BEFORE_BARE: u32 = 8;
/// The fewest cores that leave one to spare for polling.
const MIN_CORES: usize = 4;

/// Bytes taken into the buffer, and the descriptors that came with them.
pub type ReadBytes = (usize, Vec<OwnedFd>);

/// A connection's socket, to be read from.
#[derive(Debug)]
pub struct Reader {
    /// None only while it changes.
    socket: Option<Socket>,
    polling: Arc<BusyPolling>,
    /// Requests in a row that were found by asking.
    found: u32,
}

/// How many connections are asked again and again just now.
#[derive(Debug, Default)]
pub struct BusyPolling(AtomicUsize);

/// The right to be one of them.
struct PollPermit<'a>(&'a BusyPolling);

#[derive(Debug)]
enum Socket {
    Watched(AsyncFd<OwnedFd>),
    Bare(OwnedFd),
}

/// One look at the socket.
enum Look {
    Found(ReadBytes),
    Nothing,
    /// The client closed it.
    Closed,
}

/// How long a connection is polled where the settings say `poll_us`. With few cores, polling would take one from the
/// worker that is to answer.
pub fn patience(poll_us: u32) -> Duration {
    Duration::from_micros(if processors() >= MIN_CORES { poll_us.into() } else { 0 })
}

impl Reader {
    /// Reads from a non-blocking socket; must run inside the runtime.
    pub fn new(socket: OwnedFd, polling: Arc<BusyPolling>) -> std::io::Result<Self> {
        Ok(Self { socket: Some(Socket::Watched(watch(socket, Interest::READABLE)?)), polling, found: 0 })
    }

    /// What the socket has, asking for as long as `patience` before sleeping; `None` when the client closed it.
    pub async fn receive(
        &mut self,
        buffer: &mut [u8],
        patience: Duration,
    ) -> std::io::Result<Option<ReadBytes>> {
        if !patience.is_zero() {
            match self.poll(buffer, patience).await? {
                Look::Found(received) => {
                    self.found += 1;
                    if self.found >= FOUND_BEFORE_BARE {
                        self.bare();
                    }
                    return Ok(Some(received));
                }
                Look::Closed => return Ok(None),
                Look::Nothing => {}
            }
        }
        self.found = 0;
        self.sleep(buffer).await
    }

    /// True if the client is gone altogether, whatever it left unread.
    pub fn is_gone(&self) -> bool {
        let Ok(socket) = self.fd() else { return true };
        let mut asked = [PollFd::new(&socket, PollFlags::empty())];
        rustix::event::poll(&mut asked, Some(&Timespec::default())).is_ok()
            && asked[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }

    /// Polls the socket for `patience`, if there is a free place among the polling connections.
    async fn poll(&self, buffer: &mut [u8], patience: Duration) -> std::io::Result<Look> {
        let Some(_permit) = self.polling.permit() else { return Ok(Look::Nothing) };
        let until = Instant::now() + patience;
        loop {
            match look(self.fd()?, buffer)? {
                Look::Nothing if Instant::now() < until => {
                    // Other tasks of this thread, and the runtime's events, come first.
                    tokio::task::yield_now().await;
                }
                other => return Ok(other),
            }
        }
    }

    /// Writes to the socket, which is still empty; true if everything was taken.
    pub fn answer(&self, bytes: &[u8]) -> bool {
        let flags = rustix::net::SendFlags::NOSIGNAL;
        self.fd().is_ok_and(|socket| rustix::net::send(socket, bytes, flags) == Ok(bytes.len()))
    }

    /// What the socket has, as soon as it has something.
    async fn sleep(&mut self, buffer: &mut [u8]) -> std::io::Result<Option<ReadBytes>> {
        let watched = self.watched()?;
        loop {
            let mut ready = watched.readable().await?;
            match look(watched.as_fd(), buffer)? {
                Look::Found(received) => {
                    // A short read without descriptors took all there was: the next one would find nothing.
                    if received.0 < buffer.len() && received.1.is_empty() {
                        ready.clear_ready();
                    }
                    return Ok(Some(received));
                }
                Look::Closed => return Ok(None),
                Look::Nothing => ready.clear_ready(),
            }
        }
    }

    fn fd(&self) -> std::io::Result<BorrowedFd<'_>> {
        match &self.socket {
            Some(Socket::Watched(socket)) => Ok(socket.as_fd()),
            Some(Socket::Bare(socket)) => Ok(socket.as_fd()),
            None => Err(std::io::ErrorKind::NotConnected.into()),
        }
    }

    fn bare(&mut self) {
        self.socket = match self.socket.take() {
            Some(Socket::Watched(socket)) => Some(Socket::Bare(socket.into_inner())),
            other => other,
        };
    }

    fn watched(&mut self) -> std::io::Result<&AsyncFd<OwnedFd>> {
        if let Some(Socket::Bare(_)) = &self.socket
            && let Some(Socket::Bare(socket)) = self.socket.take()
        {
            // What arrived before shows at once.
            self.socket = Some(Socket::Watched(watch(socket, Interest::READABLE)?));
        }
        match &self.socket {
            Some(Socket::Watched(socket)) => Ok(socket),
            _ => Err(std::io::ErrorKind::NotConnected.into()),
        }
    }
}

fn look(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> std::io::Result<Look> {
    let mut passed = Vec::new();
    loop {
        return match fds::recv(socket, buffer, &mut passed) {
            Ok(fds::Received { bytes: 0, .. }) | Err(Errno::CONNRESET) => Ok(Look::Closed),
            Ok(received) => Ok(Look::Found((received.bytes, passed))),
            Err(Errno::AGAIN) => Ok(Look::Nothing),
            Err(Errno::INTR) => continue,
            Err(e) => Err(e.into()),
        };
    }
}

impl BusyPolling {
    fn permit(&self) -> Option<PollPermit<'_>> {
        let more = |polling| (polling < MAX_POLLING).then_some(polling + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| PollPermit(self))
    }
}

impl Drop for PollPermit<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    const LONG: Duration = Duration::from_secs(3600);

    fn pair() -> (UnixStream, Reader) {
        let (client, socket) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        (client, Reader::new(socket.into(), Arc::default()).unwrap())
    }

    async fn read(reader: &mut Reader, patience: Duration) -> Option<Vec<u8>> {
        let mut buffer = [0; 16];
        let received = reader.receive(&mut buffer, patience).await.unwrap();
        received.map(|(bytes, _)| buffer[..bytes].to_vec())
    }

    #[tokio::test]
    async fn what_is_found_by_asking_needs_no_watching_and_sleep_finds_the_rest() {
        let (mut client, mut reader) = pair();
        for round in 0..3 {
            for _ in 0..FOUND_BEFORE_BARE {
                client.write_all(b"asked").unwrap();
                assert_eq!(read(&mut reader, LONG).await.unwrap(), b"asked");
            }
            assert!(matches!(reader.socket, Some(Socket::Bare(_))), "round {round}");
            // Written while the socket is not watched.
            client.write_all(b"slept").unwrap();
            assert_eq!(read(&mut reader, Duration::ZERO).await.unwrap(), b"slept");
            assert!(matches!(reader.socket, Some(Socket::Watched(_))), "round {round}");
        }
        drop(client);
        assert_eq!(read(&mut reader, LONG).await, None);
    }

    #[tokio::test]
    async fn a_polling_reader_lets_other_tasks_of_its_thread_run() {
        let (client, mut reader) = pair();
        let (mut other_client, mut other) = pair();
        let asking = tokio::spawn(async move { read(&mut reader, LONG).await });
        let answered = tokio::spawn(async move { read(&mut other, Duration::ZERO).await });
        // Both tasks run on this thread only, so the first asks already when the second has to wake.
        tokio::task::yield_now().await;
        other_client.write_all(b"here").unwrap();
        assert_eq!(answered.await.unwrap().unwrap(), b"here");
        assert!(!asking.is_finished());
        drop(client);
        assert_eq!(asking.await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_client_is_gone_once_it_closed_both_sides_whatever_it_left() {
        let (mut client, reader) = pair();
        client.write_all(b"unread").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(!reader.is_gone());
        drop(client);
        assert!(reader.is_gone());
    }

    #[tokio::test]
    async fn patience_ends() {
        let (mut client, mut reader) = pair();
        let reading = tokio::spawn(async move { read(&mut reader, Duration::from_nanos(1)).await });
        tokio::task::yield_now().await;
        client.write_all(b"late").unwrap();
        assert_eq!(reading.await.unwrap().unwrap(), b"late");
    }
}
