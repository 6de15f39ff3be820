//! The listening socket, in no table of descriptors that a thread has which a tenant can keep (`store/keeper.rs`): the address
//! is free for the next supervisor as soon as this process is told to end.
//!
//! ```text
//! clients ──► a thread with a table of its own accepts ──by a socket──► the runtime
//! ```

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as Pair;
use std::time::Duration;

use pappus_shmem::{fds, table};
use tokio::io::Interest;
use tokio::net::{TcpSocket, TcpStream, UnixStream};

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;
/// Pause after an accept that failed for lack of memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Connections that were accepted.
#[derive(Debug)]
pub(super) struct Acceptor {
    accepted: UnixStream,
    #[cfg(test)]
    address: SocketAddr,
}

impl Acceptor {
    /// To be called inside the runtime, and before there are clients.
    pub(super) fn listen(address: SocketAddr) -> io::Result<Self> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let listener = socket.listen(BACKLOG)?.into_std()?;
        // The thread that accepts waits there.
        listener.set_nonblocking(false)?;
        #[cfg(test)]
        let address = listener.local_addr()?;
        let (ours, theirs) = Pair::pair()?;
        ours.set_nonblocking(true)?;
        fds::send(ours.as_fd(), &[0], &[listener.as_fd()])?;
        drop(listener);
        table::spawn_apart("endpoint", theirs.into(), |to_runtime| drop(pass_on(&to_runtime)))?;
        Ok(Self {
            accepted: UnixStream::from_std(ours)?,
            #[cfg(test)]
            address,
        })
    }

    /// Where it listens.
    #[cfg(test)]
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection, and its peer.
    pub(super) async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        loop {
            let mut passed = Vec::with_capacity(1);
            let received = self
                .accepted
                .async_io(Interest::READABLE, || Ok(fds::recv(self.accepted.as_fd(), &mut [0], &mut passed)?))
                .await?;
            let stream = match passed.pop() {
                Some(stream) => std::net::TcpStream::from(stream),
                None if received.lost => return Err(rustix::io::Errno::MFILE.into()),
                None => return Err(io::ErrorKind::BrokenPipe.into()),
            };
            // A stream whose peer already left has no address.
            if let Ok(peer) = stream.peer_addr() {
                stream.set_nonblocking(true)?;
                return Ok((TcpStream::from_std(stream)?, peer));
            }
        }
    }
}

/// Accepts until the other end is closed.
fn pass_on(to_runtime: &OwnedFd) -> io::Result<()> {
    let mut passed = Vec::with_capacity(1);
    fds::recv(to_runtime.as_fd(), &mut [0], &mut passed)?;
    let listener = TcpListener::from(passed.pop().ok_or(io::ErrorKind::BrokenPipe)?);
    loop {
        match listener.accept() {
            // A byte for each stream: streams arrive one by one.
            Ok((stream, _)) => drop(fds::send(to_runtime.as_fd(), &[0], &[stream.as_fd()])?),
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(_) => std::thread::park_timeout(ACCEPT_PAUSE),
        }
    }
}
