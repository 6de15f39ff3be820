//! A socket watched for one kind of event only. Tokio's own socket type watches for both, and every
//! answer that a client reads would wake a thread to say that there is room again.

#![allow(unsafe_code)]

use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Watches a non-blocking descriptor; must run inside the runtime.
pub(super) fn watch(socket: OwnedFd, interest: Interest) -> std::io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` keeps its descriptor open, and the same, for as long as it lives, and the
    // `AsyncFd` owns it.
    unsafe { AsyncFd::register_with_interest(socket, interest) }.map_err(|refused| refused.into_parts().1)
}
