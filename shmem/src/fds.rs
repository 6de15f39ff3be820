//! Bytes and descriptors over a Unix socket (`SCM_RIGHTS`). Received descriptors are owned at once, so
//! a refused message closes them.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// Descriptors one message may carry.
pub const MAX_FDS: usize = 8;

/// The kernel's own limit on descriptors in one message (`SCM_MAX_FD`). The receive buffer has room for
/// that many, so that an attack is seen whole and refused instead of silently cut.
const KERNEL_MAX_FDS: usize = 253;

/// What one receive brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Bytes written to the buffer; zero means that the peer closed.
    pub bytes: usize,
    /// Descriptors appended to the list.
    pub fds: usize,
    /// More descriptors came than this process may have open; those are gone.
    pub lost: bool,
}

/// Sets whether the other end of a Unix socket can send descriptors with bytes; connections of a listening socket begin as it
/// does. True if the kernel knows the option (Linux 6.16), so that the setting is in force.
pub fn take_descriptors(socket: BorrowedFd<'_>, takes: bool) -> bool {
    /// `include/uapi/asm-generic/socket.h`.
    const SO_PASSRIGHTS: libc::c_int = 83;
    let value = libc::c_int::from(takes);
    // SAFETY: the option reads one `int`, of which it is told address and size.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    done == 0
}

/// Sends bytes with at most [`MAX_FDS`] descriptors on their first byte; returns the bytes taken.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if fds.len() > MAX_FDS || !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(rustix::io::Errno::TOOBIG);
    }
    // NOSIGNAL: a peer that went away is an error value, not SIGPIPE.
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)
}

/// Receives what is there into `buffer` and appends descriptors to `fds`.
pub fn recv(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> rustix::io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(KERNEL_MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(buffer)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let before = fds.len();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            fds.extend(passed);
        }
    }
    // The buffer has room for all that the kernel passes.
    let lost = received.flags.contains(ReturnFlags::CTRUNC);
    Ok(Received { bytes: received.bytes, fds: fds.len() - before, lost })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_listening_socket_takes_no_descriptors_before_it_is_told_to() {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listening = std::os::unix::net::UnixListener::bind(&path).unwrap();
        if !take_descriptors(listening.as_fd(), false) {
            return eprintln!("SKIPPED: this kernel is older than 6.16");
        }
        let flags = SocketFlags::CLOEXEC;
        let peer = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        rustix::net::connect(&peer, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        let sent = |fds: &[BorrowedFd<'_>]| send(peer.as_fd(), b"x", fds);
        assert_eq!(sent(&[listening.as_fd()]), Err(rustix::io::Errno::PERM), "it waits to be accepted");
        let (served, _) = listening.accept().unwrap();
        assert_eq!(sent(&[listening.as_fd()]), Err(rustix::io::Errno::PERM));
        assert_eq!(sent(&[]), Ok(1));
        assert!(take_descriptors(served.as_fd(), true));
        assert_eq!(sent(&[listening.as_fd()]), Ok(1));
    }

    #[test]
    fn descriptors_arrive_owned_and_usable() {
        let (a, b) = UnixStream::pair().unwrap();
        let sealed = memfd::sealed("s", b"over").unwrap();
        assert_eq!(send(a.as_fd(), b"hello", &[sealed.as_fd(), sealed.as_fd()]).unwrap(), 5);
        let (mut buffer, mut fds) = ([0; 16], Vec::new());
        let got = recv(b.as_fd(), &mut buffer, &mut fds).unwrap();
        assert_eq!(got, Received { bytes: 5, fds: 2, lost: false });
        let again = memfd::judge_sealed(fds.remove(1), 16).unwrap();
        let mut out = [0; 4];
        again.read_at(0, &mut out).unwrap();
        assert_eq!(&out, b"over");
    }

    #[test]
    fn too_many_to_send_is_an_error_and_too_many_received_are_all_seen() {
        let (a, b) = UnixStream::pair().unwrap();
        let own = a.as_fd();
        assert!(send(a.as_fd(), b"x", &[own; MAX_FDS + 1]).is_err());
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let flood = [own; 253];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&flood)));
        rustix::net::sendmsg(&a, &[IoSlice::new(b"x")], &mut ancillary, SendFlags::empty()).unwrap();
        let mut fds = Vec::new();
        assert_eq!(recv(b.as_fd(), &mut [0; 4], &mut fds).unwrap().fds, 253);
    }

    #[test]
    fn a_closed_peer_reads_as_zero_bytes_and_writes_as_an_error() {
        let (a, b) = UnixStream::pair().unwrap();
        drop(b);
        assert_eq!(recv(a.as_fd(), &mut [0; 4], &mut Vec::new()).unwrap().bytes, 0);
        assert_eq!(send(a.as_fd(), b"x", &[]), Err(rustix::io::Errno::PIPE));
    }
}
