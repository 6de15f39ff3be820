//! A client that says it will send nothing more: it still gets the answers that it waits for, unless it is
//! gone altogether. Calls of a client that closed its socket are cancelled.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Semaphore;

use super::async_fd::watch;
use super::replies::Replies;
use crate::limits::MAX_COLD_REQUESTS;

/// Returns when nothing is owed to the client any more, or the client is gone. Each of `cold` has a permit for each slow request
/// of a tenant at the connection that is worked on.
pub(super) async fn see_off(replies: &Replies, cold: &[Arc<Semaphore>]) {
    let Ok(socket) = replies.socket().and_then(|socket| watch(socket, Interest::WRITABLE)) else {
        return;
    };
    let all_answered = async {
        for places in cold {
            // Closed never: the semaphore lives as long as the seat.
            let _none_at_work = places.acquire_many(MAX_COLD_REQUESTS as u32).await;
        }
        replies.settled().await;
    };
    tokio::select! {
        () = gone(&socket) => {}
        () = all_answered => {}
    }
}

/// Returns when the other end closed its socket, not only its sending side.
async fn gone(socket: &AsyncFd<OwnedFd>) {
    while let Ok(mut room) = socket.writable().await {
        if room.ready().is_write_closed() {
            return;
        }
        room.clear_ready();
    }
}
