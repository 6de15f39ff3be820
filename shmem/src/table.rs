//! Threads with a table of descriptors of their own. Descriptors of other threads are not in the table, and a process
//! that the thread forks inherits none of them: a fork copies the table of its own thread.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::mpsc;
use std::thread::JoinHandle;

/// Descriptors that every process has: input, output, errors.
const FIRST_OWN: RawFd = 3;

/// Starts a thread whose table has the three standard descriptors and this one, and returns when that is so. It takes no
/// signals. The thread must not use descriptors of other threads: their numbers mean nothing to it, or something else.
pub fn spawn_apart(
    name: &str,
    kept: OwnedFd,
    body: impl FnOnce(OwnedFd) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let (say, said) = mpsc::sync_channel(1);
    let number = kept.as_raw_fd();
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let apart = part(number);
        let is_apart = apart.is_ok();
        if say.send(apart).is_ok() && is_apart {
            // SAFETY: the number is open in this thread's table, which is a copy, and nothing else in it closes it.
            body(unsafe { OwnedFd::from_raw_fd(number) });
        }
    })?;
    let apart = said.recv().map_err(io::Error::other)?;
    // The thread has a copy.
    drop(kept);
    apart.map(|()| thread)
}

/// Gives the calling thread a table of its own, with this descriptor and the standard ones.
fn part(kept: RawFd) -> io::Result<()> {
    block_signals()?;
    // Copies what lies below only: nothing above is held, not even for a moment.
    close_range(kept + 1, RawFd::MAX, libc::CLOSE_RANGE_UNSHARE)?;
    if kept > FIRST_OWN { close_range(FIRST_OWN, kept - 1, 0) } else { Ok(()) }
}

/// Signals go to other threads: a handler may write to a descriptor, which is another one here, or none.
fn block_signals() -> io::Result<()> {
    let mut all = MaybeUninit::uninit();
    // SAFETY: sigfillset fills in the set that pthread_sigmask then reads; the old mask is not asked for.
    let error = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut())
    };
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// Gives the calling thread a copy of its table.
pub(crate) fn copy() -> io::Result<()> {
    close_range(RawFd::MAX, RawFd::MAX, libc::CLOSE_RANGE_UNSHARE)
}

fn close_range(first: RawFd, last: RawFd, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: takes three integers. With the first call the thread has a table of its own, in which it owns nothing.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::fd::{AsFd, AsRawFd};

    use super::*;

    fn open(folder: &str) -> BTreeSet<RawFd> {
        let entries = std::fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect()
    }

    #[test]
    fn what_other_threads_open_is_not_in_its_table() {
        let before = std::fs::File::open("/dev/null").unwrap();
        let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let kept = theirs.as_raw_fd();
        let (say, said) = mpsc::channel();
        let (go, goes) = mpsc::channel::<()>();
        let thread = spawn_apart("apart", theirs.into(), move |socket| {
            goes.recv().unwrap();
            // The folder itself is open while it is listed.
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap().to_owned();
            say.send((open("/proc/thread-self/fd"), socket.as_raw_fd(), blocked)).unwrap();
        })
        .unwrap();
        let after = std::fs::File::open("/dev/null").unwrap();
        go.send(()).unwrap();
        thread.join().unwrap();
        let (table, socket, blocked) = said.recv().unwrap();
        let terminate = 1 << (libc::SIGTERM - 1);
        assert!(u64::from_str_radix(&blocked, 16).unwrap() & terminate != 0, "{blocked}");
        assert_eq!(socket, kept);
        assert!(table.len() <= 5 && table.contains(&kept), "{table:?}");
        assert!(!table.contains(&ours.as_raw_fd()) || ours.as_raw_fd() < FIRST_OWN);
        // The control: this thread's table has them all.
        let own = open("/proc/thread-self/fd");
        let numbers = [before.as_fd(), after.as_fd(), ours.as_fd()].map(|fd| fd.as_raw_fd());
        assert!(numbers.iter().all(|number| own.contains(number)));
    }
}
