//! Descriptors that belong to a frame, over a `SOCK_SEQPACKET` socket beside the pipes.
//!
//! The sender passes a frame's descriptors before it writes the frame; the receiver fetches them when
//! it meets the frame. Every packet repeats the frame's id and says how many descriptors are still to
//! come, so the two channels cannot drift apart unnoticed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use pappus_shmem::fds::{self, MAX_FDS as FDS_PER_PACKET, Received};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ProtocolError;
use crate::limits::MAX_FDS;

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Packet {
    id: U64,
    /// Descriptors of this frame from this packet on.
    left: U32,
    reserved: U32,
}

const _: () = assert!(size_of::<Packet>() == 16);

/// A connected pair of control sockets: the supervisor's never blocks, the worker's does.
pub fn pair() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::fs::fcntl_setfl(&ours, rustix::fs::OFlags::NONBLOCK)?;
    Ok((ours, theirs))
}

/// Passes the descriptors of frame `id`, to be written next.
pub fn send(socket: BorrowedFd<'_>, id: u64, descriptors: &[BorrowedFd<'_>]) -> Result<(), ProtocolError> {
    debug_assert!(descriptors.len() <= MAX_FDS);
    let mut left = descriptors.len();
    for chunk in descriptors.chunks(FDS_PER_PACKET) {
        let packet = Packet { id: U64::new(id), left: U32::new(left as u32), reserved: U32::new(0) };
        fds::send(socket, packet.as_bytes(), chunk).map_err(std::io::Error::from)?;
        left -= chunk.len();
    }
    Ok(())
}

/// One packet; an error where this process may not open what came with it.
fn packet(socket: &impl AsFd, bytes: &mut [u8], got: &mut Vec<OwnedFd>) -> Result<Received, ProtocolError> {
    let received = fds::recv(socket.as_fd(), bytes, got).map_err(std::io::Error::from)?;
    match received.lost {
        true => Err(std::io::Error::from(rustix::io::Errno::MFILE).into()),
        false => Ok(received),
    }
}

/// Fetches the `count` descriptors of frame `id`, which has arrived.
pub fn recv(socket: &impl AsFd, id: u64, count: usize) -> Result<Vec<OwnedFd>, ProtocolError> {
    let bad = ProtocolError::Descriptors;
    if count > MAX_FDS {
        return Err(bad("too many announced"));
    }
    let mut got = Vec::with_capacity(count);
    while got.len() < count {
        let mut bytes = [0; size_of::<Packet>()];
        let received = packet(socket, &mut bytes, &mut got)?;
        if received.bytes != bytes.len() || received.fds == 0 {
            return Err(bad("no packet where one was announced"));
        }
        let packet = Packet::read_from_bytes(&bytes).map_err(|_| bad("malformed packet"))?;
        let before = got.len() - received.fds;
        if packet.id.get() != id || packet.left.get() as usize != count - before || got.len() > count {
            return Err(bad("a packet of another message"));
        }
    }
    Ok(got)
}

/// True if a packet is there to be fetched; the end of the connection is none.
pub fn waits(socket: &impl AsFd) -> bool {
    use rustix::net::RecvFlags;
    let mut first = [0; 1];
    matches!(rustix::net::recv(socket, &mut first, RecvFlags::PEEK | RecvFlags::DONTWAIT), Ok((1.., _)))
}

/// Fetches a descriptor that was not announced, and the id that came with it.
pub fn recv_one(socket: &impl AsFd) -> Result<(u64, OwnedFd), ProtocolError> {
    let bad = ProtocolError::Descriptors;
    let (mut bytes, mut got) = ([0; size_of::<Packet>()], Vec::with_capacity(1));
    let received = packet(socket, &mut bytes, &mut got)?;
    let packet = Packet::read_from_bytes(&bytes).map_err(|_| bad("malformed packet"))?;
    match (received.bytes == bytes.len(), packet.left.get(), got.pop(), got.is_empty()) {
        (true, 1, Some(descriptor), true) => Ok((packet.id.get(), descriptor)),
        _ => Err(bad("more or less than one descriptor")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_arrives_in_order() {
        for count in [0, 1, 8, 9, 20] {
            let (ours, theirs) = pair().unwrap();
            let memfds: Vec<_> =
                (0..count).map(|i| pappus_shmem::memfd::sealed("t", &[i as u8 + 1]).unwrap()).collect();
            let borrowed: Vec<_> = memfds.iter().map(AsFd::as_fd).collect();
            send(ours.as_fd(), 7, &borrowed).unwrap();
            let got = recv(&theirs, 7, count).unwrap();
            for (i, fd) in got.into_iter().enumerate() {
                let mut byte = [0];
                pappus_shmem::memfd::judge_sealed(fd, 1).unwrap().read_at(0, &mut byte).unwrap();
                assert_eq!(byte, [i as u8 + 1]);
            }
        }
    }

    #[test]
    fn as_many_as_a_message_may_have_fit_into_the_socket() {
        let (ours, theirs) = pair().unwrap();
        let memfd = pappus_shmem::memfd::sealed("t", b"x").unwrap();
        // Nobody receives meanwhile, and the sender never waits.
        send(ours.as_fd(), 7, &[memfd.as_fd(); MAX_FDS]).unwrap();
        assert_eq!(recv(&theirs, 7, MAX_FDS).unwrap().len(), MAX_FDS);
    }

    #[test]
    fn descriptors_of_another_frame_or_none_are_refused() {
        let (ours, theirs) = pair().unwrap();
        let memfd = pappus_shmem::memfd::sealed("t", b"x").unwrap();
        send(ours.as_fd(), 7, &[memfd.as_fd()]).unwrap();
        assert!(recv(&theirs, 8, 1).is_err(), "another id");
        send(ours.as_fd(), 7, &[memfd.as_fd(), memfd.as_fd()]).unwrap();
        assert!(recv(&theirs, 7, 1).is_err(), "more than announced");
        rustix::net::send(&ours, &[0; 16], rustix::net::SendFlags::empty()).unwrap();
        assert!(recv(&theirs, 0, 1).is_err(), "bytes without descriptors");
        send(ours.as_fd(), 7, &[memfd.as_fd(), memfd.as_fd()]).unwrap();
        assert!(recv_one(&theirs).is_err(), "two where one is meant");
        send(ours.as_fd(), 7, &[memfd.as_fd()]).unwrap();
        assert!(waits(&theirs));
        assert_eq!(recv_one(&theirs).unwrap().0, 7);
        drop(ours);
        assert!(!waits(&theirs), "closed");
        assert!(recv(&theirs, 7, 1).is_err(), "closed");
    }
}
