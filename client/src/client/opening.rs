//! Connecting: until a supervisor accepts and greets, or the caller's patience is over. Nothing here blocks for longer.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use pappus_proto::handshake::{GREETING_BYTES, Greeting};
use rustix::event::PollFlags;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::{Until, wait_for};
use crate::again::{RETRY_EVERY, nobody_listens};
use crate::error::{Error, Result};

/// Connects and greets. With `again`, it tries again while nobody listens.
pub(super) fn open(path: &Path, until: Until, again: bool) -> Result<UnixStream> {
    loop {
        match connect(path) {
            Ok(socket) => return greet(socket, until),
            // More connections wait to be accepted than there is room for.
            Err(error) if error.kind() == ErrorKind::WouldBlock => until.check()?,
            Err(source) => {
                if !(again && nobody_listens(&source)) || until.is_over() {
                    return Err(Error::Unreachable { path: path.to_owned(), source });
                }
            }
        }
        std::thread::sleep(RETRY_EVERY);
    }
}

/// A socket that never blocks, connected.
fn connect(path: &Path) -> std::io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket.into())
}

/// Agrees on a protocol version over a connected socket, which never blocks from then on.
pub(super) fn greet(mut socket: UnixStream, until: Until) -> Result<UnixStream> {
    socket.set_nonblocking(true).map_err(Error::io("fcntl(O_NONBLOCK)"))?;
    // A refused connection may be closed already, with the reason still to be read from it.
    let _ = socket.write_all(&Greeting::OURS.encode());
    let mut answer = [0; GREETING_BYTES];
    let mut received = 0;
    while received < GREETING_BYTES {
        match socket.read(&mut answer[received..]) {
            Ok(0) => return Err(Error::Lost),
            Ok(bytes) => received += bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                until.check()?;
                wait_for(&socket, PollFlags::IN, until)?;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return Err(Error::Lost),
        }
    }
    match Greeting::decode(&answer) {
        Some(Greeting::OURS) => Ok(socket),
        Some(Greeting::NONE) => Err(Error::Protocol(
            "the supervisor speaks another version of the protocol: use the `pappus` it came with".into(),
        )),
        _ => Err(Error::Protocol("this socket does not belong to a Pappus supervisor".into())),
    }
}
