//! The two sockets: binding and accepting.

use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::{UnixListener, UnixStream};

use super::connection;
use super::connection_slots::SlotOwner;
use super::handshake::{self, Arrival};
use super::state::Server;
use crate::client_fd::ClientSocket;
use crate::defences::Defence;
use crate::ids::TenantId;
use crate::quota::Limit;
use crate::tenants::Account;

/// Bytes that the kernel takes as a socket's path, without the zero at its end.
const SOCKET_PATH_BYTES: usize = 107;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;
/// Pause after an accept that failed for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

fn refused(uid: u32, pid: Option<i32>, admin: bool, why: &str) {
    tracing::warn!(uid, pid, admin, "refusing a connection: {why}");
}

/// Binds a socket path. A stale socket is replaced; a file of another kind, or a socket that another process listens
/// on, is not touched.
pub fn bind(path: &Path, mode: u32) -> std::io::Result<UnixListener> {
    let taken =
        |why: &str| std::io::Error::new(std::io::ErrorKind::AddrInUse, format!("{}: {why}", path.display()));
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(taken("is a file, not a socket: give --socket another path"));
        }
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
            return Err(taken("another process listens there: stop it, or give this one another path"));
        }
        Ok(_) => std::fs::remove_file(path)?,
        Err(_) => {}
    }
    let listener = listen_on(path, mode).map_err(|error| {
        let kind = std::io::Error::from(error).kind();
        std::io::Error::new(kind, format!("cannot listen on {}: {}", path.display(), why_not(error)))
    })?;
    UnixListener::from_std(listener)
}

/// A socket that connections are accepted from.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    /// Bound by this process, and gone with it. Otherwise the service manager keeps it for the next supervisor.
    pub is_own: bool,
}

impl Listener {
    /// Bound by this process.
    pub fn own(socket: UnixListener) -> Self {
        Self { socket, is_own: true }
    }

    /// Kept by the service manager.
    pub fn kept(socket: std::os::unix::net::UnixListener) -> std::io::Result<Self> {
        Ok(Self { socket: UnixListener::from_std(socket)?, is_own: false })
    }
}

/// Why a socket cannot be bound, and what to do about it.
fn why_not(error: Errno) -> String {
    match error {
        Errno::NOENT => "the folder does not exist: create it or give --socket another path".to_owned(),
        Errno::NAMETOOLONG => format!("a socket's path may have {SOCKET_PATH_BYTES} bytes"),
        error => std::io::Error::from(error).to_string(),
    }
}

/// A socket whose file has this mode from the moment it is there, under every umask: no other user connects before.
fn listen_on(path: &Path, mode: u32) -> rustix::io::Result<std::os::unix::net::UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The file gets the mode that the socket has, less the umask's bits.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode & 0o600))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    if mode & !0o600 != 0 {
        // By a descriptor: a link that another process puts in its place meanwhile is not followed.
        let file = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let by_descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::chmod(by_descriptor, Mode::from_raw_mode(mode))?;
    }
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Accepts connections until dropped. Where another supervisor will accept from the same socket, only until this one
/// drains: who connects later waits for the other one.
pub async fn accept(server: Arc<Server>, listener: Listener, admin: bool) {
    let leave = async {
        match listener.is_own {
            true => std::future::pending().await,
            false => server.wait_draining().await,
        }
    };
    let mut leave = std::pin::pin!(leave);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut leave => return,
            accepted = listener.socket.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                admit(&server, stream, admin).await;
                // Those who are here already go first: many of a flood leave at once, and with them
                // their places.
                tokio::task::yield_now().await;
            }
            Err(e) => {
                tracing::warn!("cannot accept a connection: {e}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn admit(server: &Arc<Server>, stream: UnixStream, admin: bool) {
    let Ok(peer) = stream.peer_cred() else { return };
    let uid = peer.uid();
    let standing = match server.registry.tenants.judge(uid, admin) {
        Ok(standing) => standing,
        Err(why) => {
            refused(uid, peer.pid(), admin, &why.to_string());
            handshake::turn_away(&stream, &why);
            return close(server, uid, None, stream).await;
        }
    };
    let owner = match &standing.tenant {
        _ if admin => None,
        Some(account) => Some(SlotOwner::Tenant(account.tenant)),
        None => Some(SlotOwner::Gateway(uid)),
    };
    let account = match &standing.tenant {
        Some(account) => account.clone(),
        None => server.registry.tenants.gateway_account(uid),
    };
    let slot = match server.connection_slots.admit(uid, owner, &account) {
        Ok(slot) => Arc::new(slot),
        Err(why) => {
            refused(uid, peer.pid(), admin, &why.to_string());
            handshake::turn_away(&stream, &why);
            return close(server, uid, Some(&account), stream).await;
        }
    };
    if let Err(error) = keep_urgent_bytes(&stream) {
        refused(uid, peer.pid(), admin, &format!("its urgent bytes cannot be kept: {error}"));
        return close(server, uid, Some(&account), stream).await;
    }
    let Ok(socket) = stream.into_std() else { return };
    server.metrics.connections.increment(1);
    let server = server.clone();
    tokio::spawn(async move {
        let arrival = Arrival { uid, standing, account, admin, slot };
        if let Err(e) = connection::serve(server, socket.into(), arrival).await {
            tracing::warn!(uid, "cannot serve a connection: {e}");
        }
    });
}

/// Has urgent bytes (`MSG_OOB`) read in their place, before anything is. The kernel drops one that is passed over together with
/// the descriptors that came with it: it closes them on the thread that reads, for as long as that takes, and nobody counts them.
fn keep_urgent_bytes(stream: &UnixStream) -> rustix::io::Result<()> {
    match Defence::UrgentBytes.is_off() {
        true => Ok(()),
        false => rustix::net::sockopt::set_socket_oobinline(stream, true),
    }
}

/// Closes the socket of a connection that is not served. What was sent to it, descriptors among it, is closed with it on
/// threads of its peer's uid. Until then it counts as a descriptor of its tenant's, whatever that may have; where as many
/// wait as may, the next connection is accepted once one of them is closed.
async fn close(server: &Server, uid: u32, account: Option<&Arc<Account>>, stream: UnixStream) {
    let Ok(socket) = stream.into_std() else { return };
    // Nothing more is sent to it from here on.
    let _ = rustix::net::shutdown(&socket, Shutdown::Both);
    if rustix::io::ioctl_fionread(&socket).is_ok_and(|bytes| bytes == 0) {
        return;
    }
    let counted = account.map(|account| account.charge(Limit::Descriptors, 1));
    let place = (server.refused.clone().acquire_owned().await, counted);
    drop(ClientSocket::new(socket.into(), place, TenantId::new(uid), server.client_io.clone()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_cannot_be_bound_is_refused_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let why = |name: &str| bind(&dir.path().join(name), 0o600).unwrap_err().to_string();
        std::fs::write(dir.path().join("file"), "kept").unwrap();
        for (name, words) in [
            ("file", "is a file, not a socket: give --socket another path"),
            ("absent/socket", "the folder does not exist: create it or give --socket another path"),
            (&"x".repeat(SOCKET_PATH_BYTES), "a socket's path may have 107 bytes"),
        ] {
            assert!(why(name).ends_with(words), "{}", why(name));
        }
        assert_eq!(std::fs::read(dir.path().join("file")).unwrap(), b"kept");
    }
}
