//! Descriptors of clients: those that they pass, counted while they are open here, and their connections' sockets. Both
//! are closed where a slow close keeps no other tenant waiting: what is closed may be a file of a slow file system, and
//! a socket may hold such files that were never received.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, LazyLock};

use pappus_shmem::ValidatedMemfd;
use pappus_shmem::last_close::LastClose;
use pappus_shmem::memfd::{self, MemfdError, Rejected};
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::net::Shutdown;

use crate::client_io::ClientIo;
use crate::client_memfd::ClientMemfd;
use crate::defences::Defence;
use crate::ids::TenantId;
use crate::tenants::{Account, Taken};

/// A descriptor from a client, of which nothing is known.
#[derive(Debug)]
pub struct ClientFd {
    /// None once it is something better, or closed.
    fd: Option<OwnedFd>,
    account: Arc<Account>,
    io: ClientIo,
    /// Its place among the tenant's descriptors.
    taken: Option<Taken>,
}

impl ClientFd {
    /// Received on a connection of this tenant's.
    pub fn new(fd: OwnedFd, account: Arc<Account>, io: ClientIo, taken: Taken) -> Self {
        Self { fd: Some(fd), account, io, taken: Some(taken) }
    }

    /// Another tenant has it from now on, among whose descriptors it has this place.
    pub fn hand_to(mut self, account: Arc<Account>, taken: Taken) -> Self {
        // What the tenant before was charged is given back only now: one of the two has it at any moment.
        (self.account, self.taken) = (account, Some(taken));
        self
    }

    /// A memfd that can never change, of so many bytes at most.
    pub fn sealed(self, limit: u64) -> Result<ClientMemfd, MemfdError> {
        self.accept(|fd| memfd::take_sealed(fd, limit))
    }

    /// A memfd for an arena, likewise.
    pub fn arena(self, limit: u64) -> Result<ClientMemfd, MemfdError> {
        self.accept(|fd| memfd::take_arena(fd, limit))
    }

    fn accept(
        mut self,
        take: impl FnOnce(OwnedFd) -> Result<ValidatedMemfd, Rejected>,
    ) -> Result<ClientMemfd, MemfdError> {
        let fd = self.fd.take().ok_or(MemfdError::NotMemfd)?;
        match take(fd) {
            Ok(memfd) => {
                let mut memfd = ClientMemfd::new(memfd, self.account.tenant, &self.io);
                self.taken.take().into_iter().for_each(|taken| memfd.charge(taken));
                Ok(memfd)
            }
            Err(Rejected { why, fd }) => {
                self.fd = Some(fd);
                Err(why)
            }
        }
    }
}

impl Drop for ClientFd {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            let taken = self.taken.take();
            self.io.run(self.account.tenant, move || {
                match is_socket(&fd) {
                    true => close(fd),
                    false => drop(fd),
                }
                // Counted until it is closed.
                drop(taken);
            });
        }
    }
}

/// The thread that closes sockets which may linger, or hold lingering sockets in their queues.
static LAST_CLOSE: LazyLock<Option<LastClose>> = LazyLock::new(|| {
    LastClose::start()
        .inspect_err(|error| tracing::warn!("cannot start the thread that closes sockets: {error}"))
        .ok()
});

/// Starts what closes sockets; to be called before there are clients.
pub fn prepare() {
    LazyLock::force(&LAST_CLOSE);
}

fn is_socket(fd: &OwnedFd) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket)
}

fn close(socket: OwnedFd) {
    if Defence::ClientIo.is_off() {
        return drop(socket);
    }
    if let Some(Err(error)) = LAST_CLOSE.as_ref().map(|last| last.close(socket)) {
        tracing::warn!("cannot close a socket by a thread that ends: {error}");
    }
}

/// A connection's socket, and its place among connections: both are there until it is closed.
#[derive(Debug)]
pub struct ClientSocket<P: Send + 'static> {
    /// None only while it is closed.
    fd: Option<(OwnedFd, P)>,
    /// The tenant, or the peer's uid where that is none.
    tenant: TenantId,
    io: ClientIo,
}

impl<P: Send + 'static> ClientSocket<P> {
    /// Of a connection of this tenant's, with its place.
    pub fn new(fd: OwnedFd, place: P, tenant: TenantId, io: ClientIo) -> Self {
        Self { fd: Some((fd, place)), tenant, io }
    }

    /// The socket.
    pub fn fd(&self) -> rustix::io::Result<BorrowedFd<'_>> {
        self.fd.as_ref().map(|(fd, _)| fd.as_fd()).ok_or(Errno::BADF)
    }
}

impl<P: Send + 'static> Drop for ClientSocket<P> {
    fn drop(&mut self) {
        let Some((fd, place)) = self.fd.take() else { return };
        // Nothing more is sent to it from here on. What holds nothing that was not received is closed at once.
        let _ = rustix::net::shutdown(&fd, Shutdown::Both);
        match rustix::io::ioctl_fionread(&fd) {
            Ok(0) => drop((fd, place)),
            // What lies in its queue may linger; a thread that ends is not kept by that.
            _ => self.io.run(self.tenant, move || {
                close(fd);
                drop(place);
            }),
        }
    }
}
