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

/// Says which thread ends with the descriptor that was sent before.
type Job = SyncSender<io::Result<Pid>>;

/// The thread that starts such threads; it ends when this is dropped.
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

    /// Returns once it is closed, which takes as long as files other than sockets may want.
    pub fn close(&self, last: OwnedFd) -> io::Result<()> {
        let (say, said) = sync_channel(1);
        {
            let to_thread = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            fds::send(to_thread.socket.as_fd(), &[0], &[last.as_fd()])?;
            // It is on its way: this is not the last one, and must not become it.
            drop(last);
            to_thread.jobs.send(say).map_err(io::Error::other)?;
        }
        let thread = said.recv().map_err(io::Error::other)??;
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
        let ends = received.and_then(|_| thread_that_ends());
        // In the other thread's table it is still open.
        drop(passed);
        let thread = ends.map(|(thread, end)| {
            drop(end);
            thread
        });
        // Who asked may not wait any more.
        let _ = job.send(thread);
    }
}

/// A thread with a copy of this one's table, which ends when the sender is dropped.
fn thread_that_ends() -> io::Result<(Pid, Sender<()>)> {
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
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use rustix::net::sockopt;

    use super::*;

    const LINGER: Duration = Duration::from_secs(5);

    /// A socket that lingers, and its other end.
    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (reader, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        sockopt::set_socket_send_buffer_size(&socket, 64 << 10).unwrap();
        while socket.write(&[0; 64 << 10]).is_ok() {}
        sockopt::set_socket_linger(&socket, Some(LINGER)).unwrap();
        (socket, reader)
    }

    #[test]
    fn what_lingers_in_a_queue_is_closed_at_once() {
        let last_close = LastClose::start().unwrap();
        let began = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..4 {
                        let (slow, reader) = lingering();
                        let (ours, theirs) = UnixStream::pair().unwrap();
                        fds::send(ours.as_fd(), b"x", &[slow.as_fd()]).unwrap();
                        drop(slow);
                        last_close.close(theirs.into()).unwrap();
                        assert_eq!(
                            (&ours).read(&mut [0]).map_err(|e| e.kind()),
                            Err(io::ErrorKind::ConnectionReset)
                        );
                        drop(reader);
                    }
                });
            }
        });
        assert!(began.elapsed() < LINGER / 2, "{:?}", began.elapsed());
    }
}
