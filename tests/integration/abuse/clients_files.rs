//! Descriptors that clients pass. How many is bounded, and how long a system call on one takes concerns its
//! owner: no other tenant waits for it.

use std::io::{ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use pappus_client::v1::{self, item, request};
use pappus_client::{Client, Code, memfd};
use rustix::net::SendFlags;
use rustix::net::sockopt;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};

use super::ending::ends_soon;
use super::restart::hanging;
use super::{keep_busy, raw_of, used};
use crate::fixture::{LATE, Supervisor, signal, until};
use crate::house::{enter, house, own_uid};
use crate::kit;
use crate::programs::program;
use crate::raw::{Raw, status};

/// What is slow to close takes as long, unless its other end goes before, as at each case's end.
const LINGER: Duration = Duration::from_secs(2 * LATE.as_secs());

/// A call of `waits` with eight descriptors.
fn with_eight() -> (request::Body, Vec<pappus_shmem::ValidatedMemfd>) {
    let memfds: Vec<_> = (0..8).map(|_| memfd::sealed("t", b"x").unwrap()).collect();
    let source = item::Source::Descriptor(v1::Descriptor { index: 0, offset: 0, bytes: 1 });
    let input = v1::Input { name: "in".into(), items: vec![v1::Item { source: Some(source) }], r#type: None };
    let invoke = v1::Invoke { function: "copy".into(), inputs: vec![input], ..Default::default() };
    (request::Body::Invoke(invoke), memfds)
}

/// Sends such calls; why one of them does not wait.
fn flood(raw: &mut Raw, calls: u64) -> v1::Error {
    for id in 2..2 + calls {
        let (body, memfds) = with_eight();
        let fds: Vec<_> = memfds.iter().map(AsFd::as_fd).collect();
        raw.request(id, body, &fds);
    }
    raw.error().1
}

#[test]
fn descriptors_of_waiting_calls_count() {
    let supervisor = house(&[("alice", "descriptors = 100"), ("bob", "")]);
    let mut bob = enter(&supervisor, "bob");
    kit::add_copy(&mut bob);
    let spin = keep_busy(&supervisor, &mut bob);
    let mut alice = enter(&supervisor, "alice");
    kit::add_copy(&mut alice);
    let mut raw = raw_of(&supervisor, "alice");
    let error = flood(&mut raw, 20);
    assert_eq!(error.code(), Code::ResourceExhausted);
    assert!(error.message.contains("the quota descriptors of tenant alice is 100"), "{error}");
    until("those that were refused are closed", || used(&mut alice, "descriptors") <= 100);
    bob.cancel(spin).unwrap();
    kit::works(&mut bob);
}

#[test]
fn a_tenant_with_all_descriptors_leaves_room_for_others_and_the_operator() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    // Fewer than the calls below bring.
    let start = dir.path().join("start.sh");
    let text = format!("ulimit -n 800\nexec '{}' \"$@\"\n", program("pappus-supervisor").display());
    std::fs::write(&start, text).unwrap();
    let flags = ["--device", "cpu:workers=1,memory=16MiB"].map(str::to_owned);
    let supervisor = Supervisor::new(start, flags.to_vec(), dir);
    let mut own = supervisor.client();
    kit::add_copy(&mut own);
    keep_busy(&supervisor, &mut own);
    let mut raw = Raw::greeted(&supervisor.socket());
    let error = flood(&mut raw, 120);
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    assert!(error.message.contains("descriptors"), "{error}");
    for _ in 0..3 {
        Client::connect(supervisor.admin_socket()).unwrap().status().unwrap();
        Client::connect(supervisor.socket()).unwrap().status().unwrap();
    }
}

/// Every write to a file waits for its inode's lock, which its owner can keep: here as long as it likes.
#[test]
fn an_inode_that_is_kept_locked_stops_its_owners_calls_only() {
    let Some((mut supervisor, holder, _, _)) = hanging(9482) else { return };
    let mut bob = enter(&supervisor, "bob");
    kit::works(&mut bob);
    kit::works(&mut bob);
    supervisor.admin().status().unwrap();
    drop(holder);
    ends_soon(&mut supervisor);
}

/// A TCP connection to this process whose last close takes `linger`: what was written is not read. The other end comes
/// with it, and must outlive it.
fn slow_to_close(linger: Duration) -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // The other end has room for less than this one keeps.
    sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (reader, _) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    sockopt::set_socket_send_buffer_size(&socket, 64 << 10).unwrap();
    let error = loop {
        if let Err(error) = socket.write(&[0; 64 << 10]) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    sockopt::set_socket_linger(&socket, Some(linger)).unwrap();
    // The other end behind: programs that other tests start meanwhile have copies of both until they run, and Linux lets go of them
    // from the last to the first. Were it another order, such a program would linger while itself keeps the other end open.
    let reader = rustix::io::fcntl_dupfd_cloexec(&reader, socket.as_raw_fd() + 1).unwrap();
    (socket.into(), reader.into())
}

/// Stops it, and waits until all of its threads are stopped.
pub(super) fn stop(supervisor: &Supervisor) {
    let pid = supervisor.pid();
    signal(pid, Signal::STOP);
    let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(Pid::from_raw(pid.try_into().unwrap()).unwrap()), stopped).unwrap();
}

#[test]
fn a_descriptor_that_is_slow_to_close_delays_its_owner_only() {
    let supervisor = house(&[("alice", ""), ("bob", "")]);
    let mut bob = enter(&supervisor, "bob");
    kit::add_copy(&mut bob);
    kit::works(&mut bob);
    let mut admin = supervisor.admin();
    let (slow, readers): (Vec<_>, Vec<_>) = (0..6).map(|_| slow_to_close(LINGER)).unzip();
    let mut connections: Vec<_> = (0..6).map(|_| raw_of(&supervisor, "alice")).collect();
    // It receives them once they are closed here: the last close is the supervisor's.
    stop(&supervisor);
    // More than there are threads for sockets, with a request that takes none, one that is refused, and one that is not
    // even a frame.
    for (nth, (raw, slow)) in connections.iter_mut().zip(slow).enumerate() {
        match nth % 3 {
            0 => raw.request(2, status(), &[slow.as_fd()]),
            1 => raw.request(2, request::Body::OpenArena(v1::OpenArena {}), &[slow.as_fd()]),
            _ => raw.send_fds(&[0xff; 16], &[slow.as_fd()]),
        }
    }
    drop(connections);
    signal(supervisor.pid(), Signal::CONT);
    let began = Instant::now();
    for _ in 0..3 {
        kit::works(&mut bob);
        admin.status().unwrap();
        supervisor.client().status().unwrap();
    }
    // Before anything of alice was closed.
    assert!(began.elapsed() < LATE, "{:?}", began.elapsed());
    drop(readers);
}

/// The kernel drops an urgent byte that a reader passes over, and closes its descriptors there.
#[test]
fn a_descriptor_with_an_urgent_byte_delays_its_owner_only() {
    let supervisor = house(&[("alice", ""), ("bob", "")]);
    let mut bob = enter(&supervisor, "bob");
    kit::add_copy(&mut bob);
    kit::works(&mut bob);
    let mut admin = supervisor.admin();
    let (slow, readers): (Vec<_>, Vec<_>) = (0..6).map(|_| slow_to_close(LINGER)).unzip();
    let mut connections: Vec<_> = (0..6).map(|_| raw_of(&supervisor, "alice")).collect();
    // One that waits to be accepted, with its urgent byte before anything else.
    stop(&supervisor);
    connections.push(Raw::connect(&supervisor.socket()));
    let mut kept = Vec::new();
    for (raw, slow) in connections.iter_mut().rev().zip(slow) {
        if !raw.offer(&[0xff], &[slow.as_fd()], SendFlags::OOB) {
            kept.push(slow);
        }
    }
    signal(supervisor.pid(), Signal::CONT);
    let began = Instant::now();
    for _ in 0..3 {
        kit::works(&mut bob);
        admin.status().unwrap();
        supervisor.client().status().unwrap();
    }
    // They are read like any, and counted until they are closed.
    let mut alice = enter(&supervisor, "alice");
    until("they are counted", || used(&mut alice, "descriptors") >= 5);
    drop(connections);
    for _ in 0..3 {
        kit::works(&mut bob);
        admin.status().unwrap();
    }
    assert!(began.elapsed() < LATE, "{:?}", began.elapsed());
    // What nobody took lingers here, for as long as there is somebody to read.
    drop(readers);
    drop(kept);
}

/// A request whose first byte is urgent is a request like any other.
#[test]
fn an_urgent_byte_is_read_in_its_place() {
    let supervisor = house(&[("alice", "")]);
    let mut raw = raw_of(&supervisor, "alice");
    let frame = crate::raw::request(2, status(), 0);
    raw.send_urgent(frame[0], &[]);
    raw.send(&frame[1..]);
    assert_eq!(raw.body().0, 2);
}

/// Descriptors with a greeting are not taken, and closed like any.
#[test]
fn a_greeting_with_descriptors_that_are_slow_to_close_delays_nobody() {
    let supervisor = house(&[("bob", "")]);
    let mut bob = enter(&supervisor, "bob");
    kit::add_copy(&mut bob);
    kit::works(&mut bob);
    let mut admin = supervisor.admin();
    let (slow, readers): (Vec<_>, Vec<_>) = (0..6).map(|_| slow_to_close(LINGER)).unzip();
    stop(&supervisor);
    let mut kept = Vec::new();
    for slow in slow {
        if !Raw::connect(&supervisor.socket()).offer(b"PAPPUS", &[slow.as_fd()], SendFlags::empty()) {
            kept.push(slow);
        }
    }
    // Where the kernel can refuse descriptors, the supervisor has it do so until a connection is served.
    let (own, _peer) = UnixStream::pair().unwrap();
    let all_kept = pappus_shmem::fds::take_descriptors(own.as_fd(), true);
    assert_eq!(kept.len(), if all_kept { 6 } else { 0 });
    signal(supervisor.pid(), Signal::CONT);
    let began = Instant::now();
    for _ in 0..3 {
        kit::works(&mut bob);
        admin.status().unwrap();
        supervisor.client().status().unwrap();
    }
    assert!(began.elapsed() < LATE, "{:?}", began.elapsed());
    // What nobody took lingers here, for as long as there is somebody to read.
    drop(readers);
    drop(kept);
}

#[test]
fn refused_connections_that_are_slow_to_close_delay_nobody() {
    let text = format!("[tenants.acme]\nuid = {}\nconnections = 0", own_uid());
    let supervisor = Supervisor::configured(&text, &[]);
    let turned_away = || {
        let mut raw = Raw::connect(&supervisor.socket());
        assert!(raw.greeting().is_some());
        assert_eq!(raw.error().0, 0);
    };
    turned_away();
    let mut admin = supervisor.admin();
    admin.status().unwrap();
    let open = || std::fs::read_dir(format!("/proc/{}/fd", supervisor.pid())).unwrap().count();
    let idle = open();
    let (slow, readers): (Vec<_>, Vec<_>) = (0..100).map(|_| slow_to_close(LINGER)).unzip();
    // It accepts them once the descriptors are closed here: the last close is the supervisor's.
    stop(&supervisor);
    let mut kept = Vec::new();
    for (nth, slow) in slow.into_iter().enumerate() {
        let raw = Raw::connect(&supervisor.socket());
        let is_taken = match nth % 2 {
            0 => raw.offer(&[0xff; 16], &[slow.as_fd()], SendFlags::empty()),
            _ => raw.offer(&[0xff], &[slow.as_fd()], SendFlags::OOB),
        };
        if !is_taken {
            kept.push(slow);
        }
    }
    signal(supervisor.pid(), Signal::CONT);
    let began = Instant::now();
    for _ in 0..3 {
        turned_away();
        admin.status().unwrap();
        supervisor.admin().status().unwrap();
    }
    // All of them are closed, though they linger; a worker that started meanwhile has descriptors, too.
    until("they are closed", || open() <= idle + 20);
    assert!(began.elapsed() < LATE, "{:?}", began.elapsed());
    // What nobody took lingers here, for as long as there is somebody to read.
    drop(readers);
    drop(kept);
}
