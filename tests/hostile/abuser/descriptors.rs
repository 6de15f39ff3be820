//! Descriptors of every kind, and threads that keep an inode locked.

use std::fs::File;
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::Result;
use super::grammar::Kind;

/// Seals of an arena.
const SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
/// The most that Linux lets one message carry.
pub(crate) const KERNEL_MAX_FDS: usize = 253;
/// Threads that wait for a close.
const MAX_CLOSING: usize = 64;

/// What keeps system calls on a descriptor slow while it exists.
#[derive(Debug)]
pub(crate) enum Keeper {
    /// A thread that keeps its inode locked.
    Thread(Arc<AtomicBool>),
    /// The other end, which does not read.
    Peer { _stream: TcpStream },
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Self::Thread(over) = self {
            over.store(true, Ordering::Release);
        }
    }
}

/// Closes descriptors that were not sent on a thread of their own: this is the close that waits. The actor does not stand still for
/// it; beyond so many threads its own copies stay open.
pub(crate) fn close_aside(fds: Vec<OwnedFd>) {
    static CLOSING: AtomicUsize = AtomicUsize::new(0);
    if CLOSING.fetch_add(1, Ordering::AcqRel) >= MAX_CLOSING {
        CLOSING.fetch_sub(1, Ordering::AcqRel);
        return std::mem::forget(fds);
    }
    std::thread::spawn(move || {
        drop(fds);
        CLOSING.fetch_sub(1, Ordering::AcqRel);
    });
}

/// A descriptor, and what must exist for it to be of its kind.
pub(crate) fn make(kind: Kind) -> Result<(OwnedFd, Option<Keeper>)> {
    let fd = match kind {
        Kind::Sealed(bytes) => {
            let fd = memfd(bytes as u64)?;
            rustix::fs::fcntl_add_seals(&fd, SIZE | SealFlags::WRITE)?;
            fd
        }
        Kind::Unsealed(bytes) => memfd(bytes as u64)?,
        Kind::Arena(bytes) => arena(bytes)?,
        Kind::Filled(bytes) => {
            let fd = arena(bytes)?;
            rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, bytes)?;
            fd
        }
        Kind::Busy(bytes) => {
            let fd = arena(bytes)?;
            let keeper = keep_locked(fd.try_clone()?, bytes);
            return Ok((fd, Some(keeper)));
        }
        Kind::Lingering(time) => {
            let (fd, peer) = lingering(time)?;
            return Ok((fd, Some(peer)));
        }
        Kind::Pipe => std::io::pipe()?.0.into(),
        Kind::Socket => UnixStream::pair()?.0.into(),
        Kind::Laden(count) => {
            let null = File::open("/dev/null")?;
            let load = vec![null.as_fd(); count.min(KERNEL_MAX_FDS)];
            laden(&load)?
        }
        Kind::Nested(depth) => {
            let mut inner: OwnedFd = File::open("/dev/null")?.into();
            for _ in 0..depth {
                inner = laden(&[inner.as_fd()])?;
            }
            inner
        }
        Kind::Folder => File::open("/")?.into(),
        Kind::Null => File::options().read(true).write(true).open("/dev/null")?.into(),
        Kind::EventFd => rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?,
        Kind::Deleted => tempfile::tempfile()?.into(),
    };
    Ok((fd, None))
}

fn memfd(bytes: u64) -> Result<OwnedFd> {
    let fd = rustix::fs::memfd_create("abuse", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&fd, bytes)?;
    Ok(fd)
}

fn arena(bytes: u64) -> Result<OwnedFd> {
    let fd = memfd(bytes)?;
    rustix::fs::fcntl_add_seals(&fd, SIZE)?;
    Ok(fd)
}

/// One end of a pair of sockets, with descriptors on their way to it.
fn laden(load: &[std::os::fd::BorrowedFd<'_>]) -> Result<OwnedFd> {
    let (from, to) = UnixStream::pair()?;
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(KERNEL_MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(load)) {
        return Err("too many descriptors for one message".into());
    }
    rustix::net::sendmsg(&from, &[IoSlice::new(b"x")], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(to.into())
}

/// A TCP connection whose last close waits for its other end to read, so long at the most.
fn lingering(time: Duration) -> Result<(OwnedFd, Keeper)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut socket = TcpStream::connect(listener.local_addr()?)?;
    let (peer, _) = listener.accept()?;
    socket.set_nonblocking(true)?;
    while socket.write(&[0; 64 << 10]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&socket, Some(time))?;
    Ok((socket.into(), Keeper::Peer { _stream: peer }))
}

/// Gives all pages of a file back and takes them again, for as long as the result exists. The kernel locks the inode
/// meanwhile, and every write to the file waits for it.
fn keep_locked(fd: OwnedFd, bytes: u64) -> Keeper {
    let over = Arc::new(AtomicBool::new(false));
    let stop = over.clone();
    std::thread::spawn(move || {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        while !stop.load(Ordering::Acquire) {
            for flags in [FallocateFlags::empty(), punch] {
                // Out of memory, it is no abuser; the others go on.
                if rustix::fs::fallocate(&fd, flags, 0, bytes).is_err() {
                    return;
                }
            }
        }
    });
    Keeper::Thread(over)
}
