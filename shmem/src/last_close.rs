//! Closes descriptors by ending threads. For an exiting thread the kernel does not wait until a socket that lingers has
//! sent what it holds, be it the one that is closed or one that lies in its queue.
//!
//! ```text
//! close ──by a socket──► a thread with a table of its own ──► a thread with a copy of that table, which ends
//! ```
//!
//! Only one descriptor at a time is in that table: a copy of another one would make the other thread's close not the last.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::Pid;

use crate::{fds, table};

/// Between two looks whether a thread has ended.
const SHORTEST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// A thread that has the descriptor that was sent before, and ends with it once the sender is dropped.
type Ending = (Pid, Sender<()>);
type Job = SyncSender<io::Result<Ending>>;

/// The thread that starts closing threads; dropping this value ends the thread.
#[derive(Debug)]
pub struct LastClose(Mutex<ToThread>);

#[derive(Debug)]
struct ToThread {
    jobs: Sender<Job>,
    socket: OwnedFd,
}

impl LastClose {
    /// To be started before there are descriptors of strangers.
    pub fn start() -> io::Result<Self> {
        let (socket, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let (jobs, received) = channel();
        table::spawn_apart("last-close", theirs, move |theirs| run(&theirs, &received))?;
        Ok(Self(Mutex::new(ToThread { jobs, socket })))
    }

    /// Returns once it is closed, which takes as long as files other than sockets may want. Where no thread can be had, the
    /// calling one closes it.
    pub fn close(&self, last: OwnedFd) -> io::Result<()> {
        let (say, said) = sync_channel(1);
        {
            let to_thread = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            fds::send(to_thread.socket.as_fd(), &[0], &[last.as_fd()])?;
            to_thread.jobs.send(say).map_err(io::Error::other)?;
        }
        let (thread, end) = said.recv().map_err(io::Error::other)??;
        // The other thread's is the last one from here on.
        drop(last);
        drop(end);
        // Joining a thread does not wait for what it closes.
        let thread = format!("/proc/self/task/{}", thread.as_raw_nonzero());
        let mut pause = SHORTEST_PAUSE;
        while std::fs::exists(&thread)? {
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Ok(())
    }
}

fn run(socket: &OwnedFd, jobs: &Receiver<Job>) {
    for job in jobs {
        let mut passed = Vec::with_capacity(1);
        let received = fds::recv(socket.as_fd(), &mut [0], &mut passed).map_err(io::Error::from);
        let ending = received.and_then(|_| thread_that_ends());
        // Not the last one: who asked keeps its own until the answer. No stranger keeps this thread.
        drop(passed);
        // Who asked waits for it.
        let _ = job.send(ending);
    }
}

/// A thread with a copy of this one's table, which ends when the sender is dropped.
fn thread_that_ends() -> io::Result<Ending> {
    let (say, said) = sync_channel(1);
    let (end, ends) = channel::<()>();
    std::thread::Builder::new().name("last-close".to_owned()).spawn(move || {
        let copied = table::copy().map(|()| rustix::thread::gettid());
        if say.send(copied).is_ok() {
            let _ = ends.recv();
        }
    })?;
    let thread = said.recv().map_err(io::Error::other)??;
    Ok((thread, end))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// That nothing lingers is shown where strangers send it: tests/integration/abuse/clients_files.rs.
    #[test]
    fn it_is_closed_when_close_returns() {
        let last_close = LastClose::start().unwrap();
        for _ in 0..100 {
            let (ours, theirs) = UnixStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            assert_eq!((&ours).read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock, "the control");
            last_close.close(theirs.into()).unwrap();
            assert_eq!((&ours).read(&mut [0]).unwrap(), 0);
        }
    }
}
