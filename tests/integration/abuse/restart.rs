//! A supervisor that was told to end is started again at once, though a tenant keeps one of its threads in the kernel, and so
//! its process in the process table with everything in its table of descriptors.

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pappus_client::Invocation;
use pappus_client::v1::{self, request, response};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::process::Signal;

use super::raw_of;
use crate::fixture::{Supervisor, signal, until};
use crate::house::{config, enter};
use crate::kit::{self, Function, absolute, launch};
use crate::metrics::{address, request};
use crate::raw::Raw;

const OUTPUT: u64 = 4096;

/// What keeps the inode of a tenant's arena locked until it is dropped.
pub(super) struct Holder(Child);

impl Holder {
    fn of(arena: impl AsFd) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_pappus-holder"))
            .stdin(arena.as_fd().try_clone_to_owned().unwrap())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "held\n");
        Self(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Names and states of a process's threads.
fn threads(pid: u32) -> Vec<(String, char)> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let stats = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("stat")).ok());
    // TID (NAME) STATE …
    let parse = |stat: String| {
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
        Some((name.to_owned(), rest.chars().next()?))
    };
    stats.filter_map(parse).collect()
}

/// A supervisor one of whose threads is in the kernel until the holder is dropped, and a connection of another tenant. None
/// where this user may not have pages that the kernel waits for.
pub(super) fn hanging(port: u16) -> Option<(Supervisor, Holder, Raw, String)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let address = address(port);
    let text = config(&[("alice", ""), ("bob", "")]);
    let supervisor = Supervisor::configured(&text, &["--metrics", &address]);
    kit::add_copy(&mut enter(&supervisor, "bob"));
    let bob = raw_of(&supervisor, "bob");
    let mut alice = enter(&supervisor, "alice");
    let spin = [launch("spin", &[])];
    let buffers = [("out", absolute(OUTPUT))];
    Function { buffers: &buffers, outputs: &["out"], steps: &spin, ..Function::default() }
        .add(&mut alice, "spin-out");
    let fd = rustix::fs::memfd_create("t", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, OUTPUT).unwrap();
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    let sent = alice.send(request::Body::OpenArena(v1::OpenArena {}), &[fd.as_fd()]).unwrap();
    let response::Body::Arena(opened) = alice.wait(sent).unwrap() else { panic!("no arena") };
    let holder = Holder::of(&fd);
    // Its worker ends with the deadline, and the supervisor zeroes what it may have written.
    let region = v1::Region { arena: opened.arena, offset: 0, bytes: OUTPUT };
    let call = Invocation::new("spin-out").output_to("out", region).deadline(Duration::from_millis(300));
    alice.send_invocation(&call).unwrap();
    until("a thread hangs", || threads(supervisor.pid()).contains(&("client-io".to_owned(), 'D')));
    Some((supervisor, holder, bob, address))
}

/// All that is left of a process are threads that hang.
fn until_only_hanging(pid: u32) {
    until("all other threads ended", || {
        threads(pid).iter().all(|(name, state)| *state == 'Z' || name == "client-io" && *state == 'D')
    });
}

/// The next supervisor serves on the same paths; the process before is gone once the tenant lets go of it.
fn serves_again(supervisor: &mut Supervisor, holder: Holder, address: &str) {
    let mut before = supervisor.restart_over();
    kit::works(&mut enter(supervisor, "bob"));
    assert!(!supervisor.worker_pids().is_empty());
    until("it is ready", || request(address, "GET /readyz HTTP/1.1").starts_with("HTTP/1.1 200"));
    assert!(before.try_wait().unwrap().is_none(), "the control: the process before still hangs");
    drop(holder);
    before.wait().unwrap();
    kit::works(&mut enter(supervisor, "bob"));
}

#[test]
fn a_killed_supervisor_that_a_tenant_keeps_is_started_again() {
    let Some((mut supervisor, holder, mut bob, address)) = hanging(9480) else { return };
    signal(supervisor.pid(), Signal::KILL);
    until_only_hanging(supervisor.pid());
    // The control: what lies in the table of the thread that hangs is not closed. A lock there would be held.
    bob.stream.set_nonblocking(true).unwrap();
    assert_eq!(bob.stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    serves_again(&mut supervisor, holder, &address);
}

#[test]
fn a_supervisor_that_was_told_to_end_closes_its_connections_though_a_tenant_keeps_it() {
    let Some((mut supervisor, holder, mut bob, address)) = hanging(9481) else { return };
    supervisor.terminate();
    until("it ends", || threads(supervisor.pid()).iter().any(|(_, state)| *state == 'Z'));
    until_only_hanging(supervisor.pid());
    bob.is_closed();
    serves_again(&mut supervisor, holder, &address);
}
