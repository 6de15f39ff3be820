//! The two sockets: binding and accepting.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::{UnixListener, UnixStream};

use super::connection;
use super::connection_slots::SlotOwner;
use super::handshake::{self, Arrival};
use super::state::Server;
use crate::sync::{OrderedMutex, rank};

/// Pause after an accept that failed for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Logs that a connection was refused, at most once a second: whoever is refused may come again at once.
fn refused(uid: u32, pid: Option<i32>, admin: bool, why: &str) {
    static SAID: OrderedMutex<(Option<Instant>, u64), { rank::REFUSED_CONNECTIONS }> =
        OrderedMutex::new((None, 0));
    let mut said = SAID.lock();
    said.1 += 1;
    if said.0.is_none_or(|at| at.elapsed() >= Duration::from_secs(1)) {
        let refused = std::mem::take(&mut said.1);
        tracing::warn!(uid, pid, admin, refused, "refusing a connection: {why}");
        said.0 = Some(Instant::now());
    }
}

/// Binds a socket path for whoever may reach its directory. A stale socket is replaced; a path that is
/// something else, or that somebody listens on, is not touched.
pub fn bind(path: &Path, mode: u32) -> std::io::Result<UnixListener> {
    let taken =
        |why: &str| std::io::Error::new(std::io::ErrorKind::AddrInUse, format!("{}: {why}", path.display()));
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => return Err(taken("is there and is no socket")),
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
            return Err(taken("another process listens there: stop it, or give this one another path"));
        }
        Ok(_) => std::fs::remove_file(path)?,
        Err(_) => {}
    }
    let listener = UnixListener::bind(path)
        .map_err(|e| std::io::Error::new(e.kind(), format!("cannot listen on {}: {e}", path.display())))?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode))?;
    Ok(listener)
}

/// Accepts connections until dropped.
pub async fn accept(server: Arc<Server>, listener: UnixListener, admin: bool) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                admit(server.clone(), stream, admin);
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

fn admit(server: Arc<Server>, stream: UnixStream, admin: bool) {
    let Ok(peer) = stream.peer_cred() else { return };
    let uid = peer.uid();
    let standing = match server.registry.tenants.judge(uid, admin) {
        Ok(standing) => standing,
        Err(why) => {
            refused(uid, peer.pid(), admin, &why.to_string());
            return handshake::turn_away(&stream, &why);
        }
    };
    let owner = match &standing.tenant {
        _ if admin => None,
        Some(account) => Some(SlotOwner::Tenant(account.tenant)),
        None => Some(SlotOwner::Gateway(uid)),
    };
    let Some(slot) = server.connection_slots.admit(uid, owner) else {
        refused(uid, peer.pid(), admin, "there are too many");
        return;
    };
    let Ok(socket) = stream.into_std() else { return };
    server.metrics.connections.increment(1);
    tokio::spawn(async move {
        let arrival = Arrival { uid, standing, admin, slot };
        if let Err(e) = connection::serve(server, socket.into(), arrival).await {
            tracing::warn!(uid, "cannot serve a connection: {e}");
        }
    });
}
