//! The lines that one tenant can have written into the log are limited.

use std::os::fd::AsFd;

use pappus_client::Code;
use pappus_client::v1::{self, request, response};
use rustix::fs::{MemfdFlags, SealFlags};

use crate::fixture::Supervisor;
use crate::house::house;
use crate::kit::{self, refused};
use crate::raw::output;

/// Attempts, and the lines that may come of them: twenty in ten seconds, and those of the next ten.
const ATTEMPTS: usize = 200;
const LINES: usize = 60;

fn lines(supervisor: &Supervisor, before: usize) -> usize {
    supervisor.log().lines().count() - before
}

#[test]
fn wrong_tokens_fill_no_log() {
    let supervisor = house(&[("alice", "")]);
    let before = supervisor.log().lines().count();
    for _ in 0..ATTEMPTS {
        refused(supervisor.client().act_for(b"wrong"), Code::PermissionDenied, "no tenant's");
    }
    let lines = lines(&supervisor, before);
    assert!((1..=LINES).contains(&lines), "{lines} lines");
}

#[test]
fn calls_that_cannot_be_handed_to_a_worker_fill_no_log() {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    kit::works(&mut client);
    let fd = rustix::fs::memfd_create("t", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, 1 << 16).unwrap();
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    let sent = client.send(request::Body::OpenArena(v1::OpenArena {}), &[fd.as_fd()]).unwrap();
    let response::Body::Arena(opened) = client.wait(sent).unwrap() else { panic!("no arena") };
    // Now no worker can map it.
    rustix::fs::fcntl_add_seals(&fd, SealFlags::FUTURE_WRITE).unwrap();
    let region = v1::Region { arena: opened.arena, offset: 0, bytes: 1 };
    let item = v1::Item { source: Some(v1::item::Source::Inline(vec![1].into())) };
    let call = v1::Invoke {
        function: "copy".into(),
        inputs: vec![v1::Input { name: "in".into(), items: vec![item], r#type: None }],
        outputs: vec![output(Some(region))],
        ..v1::Invoke::default()
    };
    let before = supervisor.log().lines().count();
    for _ in 0..ATTEMPTS {
        let sent = client.send(request::Body::Invoke(call.clone()), &[]).unwrap();
        assert!(client.wait(sent).is_err());
    }
    let lines = lines(&supervisor, before);
    assert!(lines <= LINES, "{lines} lines");
}
