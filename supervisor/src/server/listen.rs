//! Accepting connections from the two sockets. Where a service manager bound the clients' socket, it stays when this
//! process ends; while this process drains it accepts none there, and who connects waits for the next one.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pappus_shmem::fds;
use rustix::net::Shutdown;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Interval, MissedTickBehavior};

use super::connection;
use super::connection_pace::ConnectionPace;
use super::connection_slots::SlotOwner;
use super::handshake::{self, ConnectedPeer};
use super::socket_file::SocketFile;
use super::state::Server;
use crate::client_fd::ClientSocket;
use crate::defences::Defence;
use crate::ids::TenantId;
use crate::quota::Limit;
use crate::store::StateDir;
use crate::tenants::Account;

/// How often it is looked whether a socket's file is still there.
const LOOK: Duration = Duration::from_secs(1);
/// Pause after an accept that failed for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

fn refused(uid: u32, pid: Option<i32>, admin: bool, why: &str) {
    tracing::warn!(uid, pid, admin, "refusing a connection: {why}");
}

/// A socket that connections are accepted from.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    file: Arc<SocketFile>,
    /// Its file is looked at that often.
    looks: Interval,
    /// Why it could not be bound anew when that was last tried.
    failed: Option<String>,
}

impl Listener {
    /// Bound by this process, and gone with it.
    pub fn own(path: &Path, mode: u32, state: &Arc<StateDir>) -> std::io::Result<Self> {
        let (socket, file) = SocketFile::bind(path, mode, state.clone())?;
        Ok(Self::new(socket, file))
    }

    /// Kept by the service manager for the next supervisor.
    pub fn kept(socket: std::os::unix::net::UnixListener, path: &Path) -> std::io::Result<Self> {
        Ok(Self::new(UnixListener::from_std(socket)?, SocketFile::kept(path)))
    }

    fn new(socket: UnixListener, file: SocketFile) -> Self {
        refuse_descriptors(&socket);
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { socket, file: Arc::new(file), looks, failed: None }
    }

    /// Its file.
    pub fn file(&self) -> Arc<SocketFile> {
        self.file.clone()
    }

    /// The next connection. Meanwhile a file that somebody removed is made anew.
    async fn accept(&mut self) -> std::io::Result<UnixStream> {
        loop {
            tokio::select! {
                accepted = self.socket.accept() => return accepted.map(|(stream, _)| stream),
                _ = self.looks.tick() => self.look(),
            }
        }
    }

    fn look(&mut self) {
        match self.file.bind_again() {
            None => {}
            Some(Ok(socket)) => {
                tracing::warn!(
                    "the file of a socket was gone, and is made anew: {}",
                    self.file.path().display()
                );
                refuse_descriptors(&socket);
                (self.socket, self.failed) = (socket, None);
            }
            Some(Err(error)) => {
                let why = error.to_string();
                if self.failed.as_ref() != Some(&why) {
                    tracing::error!("nobody can connect, since the file of a socket is gone: {why}");
                    self.failed = Some(why);
                }
            }
        }
    }
}

/// Accepts connections until dropped. Where another supervisor will accept from the same socket, only until this one
/// drains: who connects later waits for the other one.
pub async fn accept(server: Arc<Server>, mut listener: Listener, admin: bool) {
    let is_own = listener.file.is_own();
    let leave = async {
        match is_own {
            true => std::future::pending().await,
            false => server.wait_draining().await,
        }
    };
    let mut leave = std::pin::pin!(leave);
    let mut pace = ConnectionPace::default();
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut leave => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok(stream) => {
                if admit(&server, stream, &mut pace, admin).await {
                    // Those who are here already go first: many of a flood leave at once, and with them
                    // their places.
                    tokio::task::yield_now().await;
                }
            }
            Err(e) => {
                tracing::warn!("cannot accept a connection: {e}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// True if the connection is served from now on.
async fn admit(server: &Arc<Server>, stream: UnixStream, pace: &mut ConnectionPace, admin: bool) -> bool {
    let Ok(peer) = stream.peer_cred() else { return false };
    let uid = peer.uid();
    if let Err(why) = pace.opened(uid, Instant::now()) {
        refused(uid, peer.pid(), admin, &why.to_string());
        handshake::turn_away(&stream, &why);
        close(server, uid, None, stream).await;
        return false;
    }
    let rights = match server.registry.tenants.judge(uid, admin) {
        Ok(rights) => rights,
        Err(why) => {
            refused(uid, peer.pid(), admin, &why.to_string());
            handshake::turn_away(&stream, &why);
            close(server, uid, None, stream).await;
            return false;
        }
    };
    let owner = match &rights.tenant {
        _ if admin => None,
        Some(account) => Some(SlotOwner::Tenant(account.tenant)),
        None => Some(SlotOwner::Gateway(uid)),
    };
    let account = match &rights.tenant {
        Some(account) => account.clone(),
        None => server.registry.tenants.gateway_account(uid),
    };
    let slot = match server.connection_slots.admit(uid, owner, &account) {
        Ok(slot) => Arc::new(slot),
        Err(why) => {
            refused(uid, peer.pid(), admin, &why.to_string());
            handshake::turn_away(&stream, &why);
            close(server, uid, Some(&account), stream).await;
            return false;
        }
    };
    if let Err(error) = keep_urgent_bytes(&stream) {
        refused(uid, peer.pid(), admin, &format!("its urgent bytes cannot be kept: {error}"));
        close(server, uid, Some(&account), stream).await;
        return false;
    }
    fds::take_descriptors(stream.as_fd(), true);
    let Ok(socket) = stream.into_std() else { return false };
    server.metrics.connections.increment(1);
    let server = server.clone();
    tokio::spawn(async move {
        let arrival = ConnectedPeer { uid, rights, account, admin, slot };
        if let Err(e) = connection::serve(server, socket.into(), arrival).await {
            tracing::warn!(uid, "cannot serve a connection: {e}");
        }
    });
    true
}

/// Whoever is not served cannot leave descriptors behind that are closed with the connection, here, for as long as that takes;
/// where the kernel is older, [`close`] has them closed elsewhere.
fn refuse_descriptors(socket: &UnixListener) {
    fds::take_descriptors(socket.as_fd(), false);
}

/// Has urgent bytes (`MSG_OOB`) read in their place, before anything is. The kernel drops one that is passed over together with
/// the descriptors that came with it: it closes them on the thread that reads, for as long as that takes, and nobody counts them.
fn keep_urgent_bytes(stream: &UnixStream) -> rustix::io::Result<()> {
    match Defence::UrgentBytes.is_off() {
        true => Ok(()),
        false => rustix::net::sockopt::set_socket_oobinline(stream, true),
    }
}

/// Closes the socket of a connection that is not served. Descriptors that were sent to the socket are closed with it, on threads
/// of the peer's uid. Until then the socket counts as a descriptor of the tenant, even beyond its quota. When the most sockets
/// wait to be closed, the next connection is accepted once one of them is.
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
