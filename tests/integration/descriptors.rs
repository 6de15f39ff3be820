//! Descriptors that are not what they should be, too many of them, or not where they belong (ATTACKS 22).

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use pappus_client::v1::response::Body;
use pappus_client::v1::{self, request};
use pappus_client::{Client, Code, Invocation, Item, memfd};
use rustix::fs::{MemfdFlags, OFlags, SealFlags};

use crate::fixture::Supervisor;
use crate::kit::{self, refused};
use crate::raw::{KERNEL_MAX_FDS, Raw, request as framed, status};

const SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// A memfd of one page with these seals.
fn memfd_with(seals: SealFlags) -> OwnedFd {
    let fd = rustix::fs::memfd_create("t", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, 4096).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

/// The same file, opened with other rights.
fn reopened(fd: &OwnedFd, flags: OFlags) -> OwnedFd {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::open(path, flags, rustix::fs::Mode::empty()).unwrap()
}

fn open_arena(client: &mut Client, fds: &[&OwnedFd]) -> pappus_client::Result<Body> {
    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    let id = client.send(request::Body::OpenArena(v1::OpenArena {}), &fds).unwrap();
    client.wait(id)
}

fn supervisor() -> (Supervisor, Client) {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    (supervisor, client)
}

#[test]
fn each_bad_arena_is_told_what_is_wrong() {
    let (_supervisor, mut client) = supervisor();
    let socket: OwnedFd = UnixStream::pair().unwrap().0.into();
    let folder: OwnedFd = File::open("/").unwrap().into();
    let file: OwnedFd = tempfile::tempfile().unwrap().into();
    let null: OwnedFd = File::options().read(true).write(true).open("/dev/null").unwrap().into();
    let pipe: OwnedFd = std::io::pipe().unwrap().0.into();
    let read_only = reopened(&memfd_with(SIZE), OFlags::RDONLY);
    let write_only = reopened(&memfd_with(SIZE), OFlags::WRONLY);
    let empty = rustix::fs::memfd_create("t", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::fcntl_add_seals(&empty, SIZE).unwrap();
    let cases = [
        (socket, "no memfd"),
        (folder, "no memfd"),
        (file, ""),
        (null, "no memfd"),
        (pipe, "no memfd"),
        (memfd_with(SealFlags::empty()), "F_SEAL_SHRINK"),
        (memfd_with(SealFlags::GROW), "F_SEAL_SHRINK"),
        (memfd_with(SealFlags::SHRINK), "F_SEAL_GROW"),
        (memfd_with(SIZE | SealFlags::WRITE), "sealed against writing"),
        (memfd_with(SIZE | SealFlags::FUTURE_WRITE), "sealed against writing"),
        (read_only, "reading and writing"),
        (write_only, "reading and writing"),
        (empty, "1 to"),
    ];
    for (fd, words) in &cases {
        refused(open_arena(&mut client, &[fd]), Code::InvalidArgument, words);
    }
    // Memory of huge pages, where the kernel has such memfds: it cannot be mapped at any offset.
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    if let Ok(huge) = rustix::fs::memfd_create("t", flags) {
        rustix::fs::ftruncate(&huge, 2 << 20).unwrap();
        rustix::fs::fcntl_add_seals(&huge, SIZE).unwrap();
        refused(open_arena(&mut client, &[&huge]), Code::InvalidArgument, "huge");
    }
    let good = memfd_with(SIZE);
    refused(open_arena(&mut client, &[]), Code::InvalidArgument, "did not come");
    refused(open_arena(&mut client, &[&good, &good]), Code::InvalidArgument, "no such descriptors");
    // The control.
    assert!(matches!(open_arena(&mut client, &[&good]), Ok(Body::Arena(_))));
    kit::works(&mut client);
}

#[test]
fn one_off_inputs_must_be_sealed_against_every_change() {
    let (_supervisor, mut client) = supervisor();
    let input = |bytes| {
        let item = v1::Item {
            source: Some(v1::item::Source::Descriptor(v1::Descriptor { index: 0, offset: 0, bytes })),
        };
        request::Body::Invoke(v1::Invoke {
            function: "copy".into(),
            inputs: vec![v1::Input { name: "in".into(), items: vec![item], r#type: None }],
            outputs: vec![crate::raw::output(None)],
            ..v1::Invoke::default()
        })
    };
    let mut call = |fd: Option<&OwnedFd>, bytes| {
        let fds: Vec<_> = fd.into_iter().map(|fd| fd.as_fd()).collect();
        let id = client.send(input(bytes), &fds).unwrap();
        client.wait(id)
    };
    let sealed = memfd_with(SIZE | SealFlags::WRITE);
    let folder: OwnedFd = File::open("/").unwrap().into();
    let write_only = reopened(&memfd_with(SealFlags::empty()), OFlags::WRONLY);
    rustix::fs::fcntl_add_seals(&write_only, SIZE).unwrap();
    for (fd, bytes, words) in [
        (Some(&memfd_with(SealFlags::empty())), 4096, "F_SEAL"),
        (Some(&memfd_with(SIZE)), 4096, "F_SEAL_WRITE"),
        (Some(&write_only), 4096, "F_SEAL_WRITE"),
        (Some(&folder), 4096, "no memfd"),
        (Some(&sealed), 4097, "lies outside"),
        (Some(&sealed), u64::MAX, "lies outside"),
        (None, 4096, "did not come"),
    ] {
        refused(call(fd, bytes), Code::InvalidArgument, words);
    }
    // The control.
    assert!(matches!(call(Some(&sealed), 4096), Ok(Body::Invoked(_))));
}

#[test]
fn one_descriptor_may_serve_two_calls_and_many_items() {
    let (_supervisor, mut client) = supervisor();
    let sealed = Arc::new(memfd::sealed("t", b"abc").unwrap());
    let call = Invocation::new("copy")
        .input("in", Item::Sealed(sealed.clone()))
        .input("in", b"-".to_vec())
        .input("in", Item::Sealed(sealed))
        .output("out");
    let ids = [(); 2].map(|()| client.send_invocation(&call).unwrap());
    for id in ids {
        let answer = client.wait_invoked(id).unwrap();
        assert_eq!(&answer.outputs[0].inline[..], b"abc-abc");
    }
}

#[test]
fn unexpected_descriptors_close_the_connection_or_refuse_the_request() {
    let (supervisor, mut client) = supervisor();
    let socket = supervisor.socket();
    let fd = memfd_with(SIZE);
    let request = framed(1, status(), 0);
    // Unannounced, with the greeting, more or fewer than announced.
    let mut raw = Raw::greeted(&socket);
    raw.send_fds(&request, &[fd.as_fd()]);
    while raw.answer().is_some() {}
    let mut raw = Raw::connect(&socket);
    raw.send_fds(&pappus_proto::handshake::Greeting::OURS.encode(), &[fd.as_fd()]);
    raw.is_closed();
    let announced = framed(1, request::Body::OpenArena(v1::OpenArena {}), 1);
    for count in [0, 2, 9] {
        let mut raw = Raw::greeted(&socket);
        match count {
            0 => raw.send(&announced),
            _ => raw.send_fds(&announced, &vec![fd.as_fd(); count]),
        }
        raw.is_closed();
    }
    // Announced, to a request that takes none.
    let mut raw = Raw::greeted(&socket);
    raw.request(1, status(), &[fd.as_fd()]);
    assert_eq!(raw.error().1.code(), Code::InvalidArgument);
    kit::works(&mut client);
}

#[test]
fn a_flood_of_descriptors_leaves_none_open_on_either_side() {
    let (supervisor, mut client) = supervisor();
    let open = || {
        let folder = format!("/proc/{}/fd", supervisor.pid());
        std::fs::read_dir(folder).unwrap().count()
    };
    kit::works(&mut client);
    let before = open();
    let fd = memfd_with(SIZE);
    for _ in 0..20 {
        let mut raw = Raw::greeted(&supervisor.socket());
        raw.send_fds(&framed(1, status(), 0), &[fd.as_fd(); KERNEL_MAX_FDS]);
        raw.is_closed();
    }
    // Those of 20 floods would be 5060.
    crate::fixture::until("the supervisor has closed them", || open() <= before + 2);
    kit::works(&mut client);
}

#[test]
fn arenas_of_a_connection_are_counted_and_go_with_it() {
    let (supervisor, mut client) = supervisor();
    let mut greedy = supervisor.client();
    let arenas: Vec<_> = (0..64).map(|_| greedy.open_arena(4096).unwrap()).collect();
    refused(greedy.open_arena(4096), Code::ResourceExhausted, "64 arenas");
    drop(greedy);
    drop(arenas);
    // The control: others, and the next connection, have their own.
    client.open_arena(4096).unwrap();
    supervisor.client().open_arena(4096).unwrap();
}
