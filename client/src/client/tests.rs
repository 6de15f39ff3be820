//! The connection against a peer that answers by hand: order, limits, broken peers.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use pappus_proto::frame::{Decoder, encode};
use pappus_proto::handshake::{GREETING_BYTES, Greeting};
use pappus_proto::v1::{request, response};
use prost::Message;

use crate::{Client, Code, Error, v1};

/// A client connected to `peer`, which runs in a thread after the handshake.
fn connect<T: Send + 'static>(
    peer: impl FnOnce(UnixStream) -> T + Send + 'static,
) -> (Client, JoinHandle<T>) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || {
        let mut greeting = [0; GREETING_BYTES];
        theirs.read_exact(&mut greeting).unwrap();
        theirs.write_all(&Greeting::decode(&greeting).unwrap().answer().encode()).unwrap();
        peer(theirs)
    });
    (Client::handshake(ours).unwrap(), thread)
}

/// Reads `count` requests.
fn requests(socket: &mut UnixStream, count: usize) -> Vec<v1::Request> {
    let mut decoder = Decoder::<OwnedFd>::default();
    let mut out = Vec::new();
    let mut buffer = [0; 4096];
    while out.len() < count {
        let bytes = socket.read(&mut buffer).unwrap();
        decoder.feed(&buffer[..bytes], Vec::new()).unwrap();
        while let Some((frame, _)) = decoder.next_frame().unwrap() {
            out.push(v1::Request::decode(frame).unwrap());
        }
    }
    out
}

fn answer(id: u64, body: response::Body) -> Vec<u8> {
    encode(&v1::Response { id, body: Some(body) }, 0)
}

fn done(id: u64) -> Vec<u8> {
    answer(id, response::Body::Done(v1::Done {}))
}

fn status() -> request::Body {
    request::Body::Status(v1::Empty {})
}

#[test]
fn answers_in_any_order_find_their_requests() {
    let (mut client, peer) = connect(|mut socket| {
        let ids: Vec<u64> = requests(&mut socket, 3).iter().map(|request| request.id).collect();
        let error = v1::Error::new(Code::NotFound, "no such thing");
        let answers = [done(ids[2]), answer(ids[0], response::Body::Error(error)), done(ids[1])];
        socket.write_all(&answers.concat()).unwrap();
    });
    let ids = [(); 3].map(|()| client.send(status(), &[]).unwrap());
    assert!(matches!(client.wait(ids[0]), Err(Error::Refused(error)) if error.code() == Code::NotFound));
    assert_eq!(client.recv().unwrap().id, ids[2]);
    client.wait(ids[1]).unwrap();
    assert_eq!(client.in_flight(), 0);
    // These would never be answered.
    assert!(client.recv().is_err());
    assert!(client.wait(ids[1]).is_err());
    peer.join().unwrap();
}

#[test]
fn a_flood_of_requests_and_large_answers_cannot_lock_up() {
    const COUNT: usize = 2000;
    let (mut client, peer) = connect(|mut socket| {
        // Answers every request before it reads the next, with more than the socket holds in all.
        for _ in 0..COUNT {
            let id = request_alone(&mut socket).id;
            let blob = v1::Invoked { device: "x".repeat(4096), ..v1::Invoked::default() };
            socket.write_all(&answer(id, response::Body::Invoked(blob))).unwrap();
        }
    });
    let body = request::Body::ShowModule(v1::Name { name: "y".repeat(1000) });
    let ids: Vec<u64> = (0..COUNT).map(|_| client.send(body.clone(), &[]).unwrap()).collect();
    for id in ids {
        client.wait(id).unwrap();
    }
    peer.join().unwrap();
}

/// Reads one request by its header, and no byte more.
fn request_alone(socket: &mut UnixStream) -> v1::Request {
    let mut header = [0; 8];
    socket.read_exact(&mut header).unwrap();
    let mut message = vec![0; u32::from_le_bytes(header[..4].try_into().unwrap()) as usize];
    socket.read_exact(&mut message).unwrap();
    v1::Request::decode(&message[..]).unwrap()
}

#[test]
fn patience_ends_and_the_answer_still_counts_later() {
    let (sender, go) = std::sync::mpsc::channel();
    let (mut client, peer) = connect(move |mut socket| {
        let id = requests(&mut socket, 1)[0].id;
        go.recv().unwrap();
        socket.write_all(&done(id)).unwrap();
    });
    let id = client.send(status(), &[]).unwrap();
    assert!(client.recv_within(Duration::from_millis(1)).unwrap().is_none());
    sender.send(()).unwrap();
    assert_eq!(client.recv_within(Duration::from_secs(60)).unwrap().map(|answer| answer.id), Some(id));
    peer.join().unwrap();
}

/// Less than any answer takes that never comes.
const SOON: Duration = Duration::from_millis(10);
/// More than anything here takes.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn connecting_to_who_does_not_answer_ends() {
    let silent = |result: crate::Result<Client>| {
        let why = result.unwrap_err();
        assert!(matches!(why, Error::Silent { patience } if patience == SOON), "{why}");
        assert!(why.to_string().contains("does not answer: nothing came for 10ms"), "{why}");
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    silent(Client::connect_once(&path, SOON));
    silent(Client::connect_within(&path, SOON));
    // No connection more is taken than waits already.
    rustix::net::listen(&listener, 0).unwrap();
    silent(Client::connect_once(&path, SOON));
    // One that answers in time is connected to.
    let peer = std::thread::spawn(move || {
        while let Ok((mut socket, _)) = listener.accept() {
            let mut greeting = [0; GREETING_BYTES];
            if socket.read_exact(&mut greeting).is_ok() && socket.write_all(&Greeting::OURS.encode()).is_ok()
            {
                return socket;
            }
        }
        unreachable!("a listener accepts for ever");
    });
    Client::connect_once(&path, LONG).unwrap();
    peer.join().unwrap();
}

#[test]
fn a_request_that_is_not_answered_ends_and_its_late_answer_is_nobody_elses() {
    let (sender, go) = std::sync::mpsc::channel();
    let (mut client, peer) = connect(move |mut socket| {
        let first = request_alone(&mut socket).id;
        go.recv().unwrap();
        socket
            .write_all(&answer(first, response::Body::Arena(v1::ArenaOpened { arena: 7, bytes: 4096 })))
            .unwrap();
        let close = request_alone(&mut socket);
        let Some(request::Body::CloseArena(v1::CloseArena { arena })) = close.body else {
            panic!("{close:?}")
        };
        socket.write_all(&done(close.id)).unwrap();
        let open = request_alone(&mut socket).id;
        socket
            .write_all(&answer(open, response::Body::Arena(v1::ArenaOpened { arena: 8, bytes: 4096 })))
            .unwrap();
        arena
    });
    client.set_patience(SOON);
    assert!(matches!(client.open_arena(4096), Err(Error::Silent { .. })));
    sender.send(()).unwrap();
    client.set_patience(LONG);
    // The answer that comes late is taken by who waits next; the arena that it brings is closed before another is opened.
    while client.strays.is_empty() {
        client.receive().unwrap();
    }
    assert_eq!((client.in_flight(), client.answers.len()), (0, 0));
    assert_eq!(client.open_arena(4096).unwrap().id(), 8);
    assert_eq!(peer.join().unwrap(), 7);
}

#[test]
fn a_call_with_a_deadline_ends_behind_it() {
    let (mut client, peer) = connect(|mut socket| drop(socket.read_to_end(&mut Vec::new())));
    client.set_patience(SOON);
    let call = crate::Invocation::new("f").deadline(SOON);
    assert!(matches!(client.invoke(&call), Err(Error::Silent { patience }) if patience == 2 * SOON));
    drop(client);
    peer.join().unwrap();
}

#[test]
fn the_rest_of_a_frame_goes_before_the_next_one() {
    let (sender, go) = std::sync::mpsc::channel();
    let (mut client, peer) = connect(move |mut socket| {
        go.recv().unwrap();
        let ids = [request_alone(&mut socket).id, request_alone(&mut socket).id];
        socket.write_all(&[done(ids[0]), done(ids[1])].concat()).unwrap();
        ids
    });
    client.set_patience(SOON);
    let large = "x".repeat(1 << 20);
    // The second finds that the first was sent in part.
    for _ in 0..2 {
        assert!(matches!(client.remove_function(&large), Err(Error::Silent { .. })));
    }
    sender.send(()).unwrap();
    client.set_patience(LONG);
    client.remove_function("small").unwrap();
    assert_eq!(peer.join().unwrap(), [1, 2]);
}

#[test]
fn a_peer_that_misbehaves_is_an_error() {
    let check = |bytes: Vec<u8>, words: &str| {
        let (mut client, peer) = connect(move |mut socket| {
            requests(&mut socket, 1);
            socket.write_all(&bytes).unwrap();
        });
        let id = client.send(status(), &[]).unwrap();
        let why = client.wait(id).unwrap_err().to_string();
        assert!(why.contains(words), "{why}");
        peer.join().unwrap();
    };
    check(Vec::new(), "closed the connection");
    check(done(99), "answered request 99");
    check(vec![0, 0, 0, 0, 0, 1, 0, 0], "broken frame");
    check(answer(0, response::Body::Error(v1::Error::new(Code::PermissionDenied, "go away"))), "go away");
}

#[test]
fn a_missing_supervisor_is_reported_with_the_command_to_start_one() {
    let why = Client::connect("/nonexistent/pappus.sock").unwrap_err();
    assert!(matches!(why, Error::Unreachable { .. }));
    assert!(why.to_string().contains("at /nonexistent/pappus.sock"), "{why}");
}

#[test]
fn a_supervisor_of_another_version_is_told_apart_from_another_program() {
    for (answer, words) in [(Greeting::NONE.encode(), "another version"), ([b'x'; 16], "does not belong")] {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&answer).unwrap();
        let why = Client::handshake(ours).unwrap_err().to_string();
        assert!(why.contains(words), "{why}");
    }
}

#[test]
fn a_request_too_large_to_send_is_refused_here() {
    let (mut client, peer) = connect(drop);
    let body = request::Body::ShowModule(v1::Name { name: "x".repeat(5 << 20) });
    assert!(matches!(client.send(body, &[]), Err(Error::Invalid(_))));
    peer.join().unwrap();
}
