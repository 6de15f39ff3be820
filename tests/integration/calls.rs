//! Requests that are well-formed and wrong: ids used twice, ids and arenas of other clients, sizes beyond a limit
//! (ATTACKS 21, 23, 24).

use std::time::Duration;

use pappus_client::v1::response::Body;
use pappus_client::v1::{self, request};
use pappus_client::{Code, Invocation};

use crate::fixture::until;
use crate::kit::{self, refused};
use crate::raw::{Raw, invoke, output, status};

fn cancel(request: u64) -> request::Body {
    request::Body::Cancel(v1::Cancel { request })
}

#[test]
fn answers_come_as_they_are_ready() {
    let (supervisor, _client) = kit::copy_and_spin();
    let mut raw = Raw::greeted(&supervisor.socket());
    raw.request(1, invoke("spin", None), &[]);
    supervisor.until_running();
    raw.request(2, status(), &[]);
    assert_eq!(raw.body().0, 2, "the later request is answered first");
    raw.request(3, cancel(1), &[]);
    let (id, error) = raw.error();
    assert_eq!((id, error.code()), (1, Code::Cancelled));
    assert_eq!(raw.body().0, 3);
}

#[test]
fn an_id_in_flight_is_not_taken_twice() {
    let (supervisor, _client) = kit::copy_and_spin();
    let mut raw = Raw::greeted(&supervisor.socket());
    raw.request(1, invoke("spin", None), &[]);
    supervisor.until_running();
    raw.request(1, invoke("copy", Some(b"abc")), &[]);
    let (id, error) = raw.error();
    assert_eq!((id, error.code()), (1, Code::InvalidArgument));
    assert!(error.message.contains("request id"), "{error}");
    // The first call is still there, under its id.
    raw.request(2, cancel(1), &[]);
    assert_eq!(raw.error().1.code(), Code::Cancelled);
}

#[test]
fn an_answered_id_can_be_used_again() {
    let (supervisor, _client) = kit::copy_and_spin();
    let mut raw = Raw::greeted(&supervisor.socket());
    for input in [b"abc", b"def"] {
        raw.request(1, invoke("copy", Some(input)), &[]);
        match raw.body() {
            (1, Body::Invoked(answer)) => assert_eq!(&answer.outputs[0].inline[..], input),
            other => panic!("{other:?}"),
        }
    }
}

/// A cancelled call leaves its id free at once; its late end must not answer the next call of that id.
#[test]
fn an_id_cancelled_while_its_function_loads_can_be_used_again() {
    let (mut supervisor, _) = kit::copy_and_spin();
    // The first function is quickly there, the second is not.
    supervisor.update();
    kit::add_library(&mut supervisor.client(), "hello");
    let mut raw = Raw::greeted(&supervisor.socket());
    let frames = [
        crate::raw::request(1, invoke("hello", None), 0),
        crate::raw::request(2, cancel(1), 0),
        crate::raw::request(1, invoke("copy", Some(b"abc")), 0),
    ];
    raw.send(&frames.concat());
    let ends = [raw.body(), raw.body(), raw.body()];
    let of_one: Vec<_> = ends.iter().filter(|(id, _)| *id == 1).map(|(_, body)| body).collect();
    let [first, Body::Invoked(copied)] = of_one[..] else { panic!("{ends:?}") };
    // The first was cancelled, or ended just before; it has no outputs. The second is what `copy` answers.
    match first {
        Body::Error(error) => assert_eq!(error.code(), Code::Cancelled),
        Body::Invoked(nothing) => assert_eq!(nothing.outputs, []),
        other => panic!("{other:?}"),
    }
    assert_eq!(copied.outputs.len(), 1, "the cancelled call's answer came for the second call");
    assert_eq!(&copied.outputs[0].inline[..], b"abc");
}

#[test]
fn a_client_cannot_cancel_the_calls_of_another() {
    let (supervisor, mut client) = kit::copy_and_spin();
    let id = client.send_invocation(&Invocation::new("spin")).unwrap();
    supervisor.until_running();
    // To cancel what one does not have is no error: it may just have been answered.
    let mut thief = Raw::greeted(&supervisor.socket());
    for request in [id, 0, u64::MAX] {
        thief.request(1, cancel(request), &[]);
        assert!(matches!(thief.body(), (1, Body::Done(_))));
    }
    assert_eq!(supervisor.device().running, 1);
    // The control: its owner can.
    client.cancel(id).unwrap();
    kit::fails(&mut client, id, Code::Cancelled);
}

#[test]
fn an_arena_belongs_to_its_connection() {
    let (supervisor, mut client) = kit::copy_and_spin();
    let mut arena = client.open_arena(4096).unwrap();
    let secret = arena.store(b"secret").unwrap();
    let mut thief = supervisor.client();
    let mut stolen = thief.open_arena(4096).unwrap();
    let out = stolen.alloc(6).unwrap();
    let call = |from, to| Invocation::new("copy").input("in", from).output_to("out", to);
    let words = "this connection has no arena";
    refused(thief.invoke(&call(secret, out)), Code::InvalidArgument, words);
    refused(thief.invoke(&call(out, secret)), Code::InvalidArgument, words);
    let close = request::Body::CloseArena(v1::CloseArena { arena: arena.id() });
    let id = thief.send(close, &[]).unwrap();
    refused(thief.wait(id), Code::NotFound, words);
    // The control: the owner's function is there, unchanged.
    let own = arena.alloc(6).unwrap();
    client.invoke(&call(secret, own)).unwrap();
    assert_eq!(arena.load(own).unwrap(), b"secret");
}

#[test]
fn an_arena_may_be_closed_while_its_call_runs_or_waits() {
    let (supervisor, mut client) = kit::copy_and_spin();
    kit::works(&mut client);
    let mut arena = client.open_arena(4096).unwrap();
    let input = arena.store(b"abc").unwrap();
    let output = arena.alloc(3).unwrap();
    let spin = client.send_invocation(&Invocation::new("spin")).unwrap();
    supervisor.until_running();
    let copy = Invocation::new("copy").input("in", input).output_to("out", output);
    let id = client.send_invocation(&copy).unwrap();
    let (copy_again, close) = (copy.clone(), v1::CloseArena { arena: arena.id() });
    let closed = client.send(request::Body::CloseArena(close), &[]).unwrap();
    assert!(matches!(client.wait(closed).unwrap(), Body::Done(_)));
    refused(client.invoke(&copy_again), Code::InvalidArgument, "no arena");
    // An accepted call keeps its memory and descriptors.
    supervisor.kill_call();
    kit::fails(&mut client, spin, Code::WorkerLost);
    client.wait_invoked(id).unwrap();
    assert_eq!(arena.load(output).unwrap(), b"abc");
}

#[test]
fn clients_that_vanish_take_their_calls_along() {
    let (supervisor, mut client) = kit::copy_and_spin();
    kit::works(&mut client);
    // During execution, and before it: the second waits behind the first.
    let mut running = supervisor.client();
    running
        .send_invocation(&Invocation::new("spin").deadline(std::time::Duration::from_millis(300)))
        .unwrap();
    supervisor.until_running();
    let mut waiting = supervisor.client();
    waiting.send_invocation(&Invocation::new("spin")).unwrap();
    until("the second call waits", || supervisor.device().queued == 1);
    drop(waiting);
    until("it is gone", || supervisor.device().queued == 0);
    drop(running);
    // After execution: no client takes the answer.
    let mut raw = Raw::greeted(&supervisor.socket());
    raw.request(1, invoke("copy", Some(b"abc")), &[]);
    drop(raw);
    kit::works(&mut client);
    until("nothing runs", || supervisor.device().running == 0);
    until("they are gone", || supervisor.status().connections == 2);
}

#[test]
fn inline_bytes_have_a_limit_for_inputs_and_outputs_together() {
    let (supervisor, mut client) = kit::copy_and_spin();
    let half = vec![7; 512 << 10];
    assert_eq!(kit::copied(&mut client, &half).unwrap(), half);
    let more = vec![7; half.len() + 1];
    refused(kit::copied(&mut client, &more), Code::InvalidArgument, "use an arena");
    let items = (0..1025).fold(Invocation::new("copy"), |call, _| call.input("in", vec![]));
    refused(client.invoke(&items), Code::InvalidArgument, "1024 items");
    kit::works(&mut supervisor.client());
}

#[test]
fn inputs_and_outputs_must_be_those_of_the_function() {
    let (_supervisor, mut client) = kit::copy_and_spin();
    let copy = || Invocation::new("copy");
    let cases = [
        (copy(), "input `in`"),
        (copy().input("out", vec![1]), "`out` is no input"),
        (copy().input("in", vec![1]).output("in"), "`in` is no output"),
        (copy().input("in", vec![1]).output("out").output("out"), "given twice"),
    ];
    for (call, words) in cases {
        refused(client.invoke(&call), Code::InvalidArgument, words);
    }
    refused(client.invoke(&Invocation::new("nobody")), Code::NotFound, "function list");
    // The control; an output that the call does not name is dropped.
    assert!(client.invoke(&copy().input("in", vec![1])).is_ok());
}

#[test]
fn regions_must_lie_inside_their_arena_and_be_large_enough() {
    let (_supervisor, mut client) = kit::copy_and_spin();
    let mut arena = client.open_arena(4096).unwrap();
    let id = arena.id();
    let region = |offset, bytes| v1::Region { arena: id, offset, bytes };
    let good = arena.store(&[1; 64]).unwrap();
    let mut check = |input, output, words: &str| {
        let call = Invocation::new("copy").input("in", input).output_to("out", output);
        refused(client.invoke(&call), Code::InvalidArgument, words);
    };
    for bad in [region(4096, 64), region(4033, 64), region(u64::MAX, 64), region(1, u64::MAX)] {
        check(bad, region(64, 64), "lies outside");
        check(good, bad, "lies outside");
    }
    check(good, region(64, 63), "its region only 63");
    let mut raw_output = output(None);
    raw_output.name.clear();
    let nameless = v1::Invoke { function: "copy".into(), outputs: vec![raw_output], ..v1::Invoke::default() };
    let sent = client.send(request::Body::Invoke(nameless), &[]).unwrap();
    refused(client.wait(sent), Code::InvalidArgument, "is no output");
}

/// An accepted call is answered, also if its function is removed meanwhile.
#[test]
fn a_call_that_waits_outlives_its_function() {
    let (supervisor, registrar) = kit::copy_and_spin();
    // What a connection handed over stays as long as the connection.
    drop(registrar);
    let mut client = supervisor.client();
    kit::works(&mut client);
    let spin = Invocation::new("spin").deadline(Duration::from_millis(200));
    let spin = client.send_invocation(&spin).unwrap();
    supervisor.until_running();
    let waiting =
        client.send_invocation(&Invocation::new("copy").input("in", b"abc".to_vec()).output("out")).unwrap();
    // Both: they share a module.
    client.remove_function("copy").unwrap();
    client.remove_function("spin").unwrap();
    refused(client.wait_invoked(spin), Code::DeadlineExceeded, "deadline");
    // The endless call cost its worker: the fresh one must be given what was removed.
    assert_eq!(&client.wait_invoked(waiting).unwrap().outputs[0].inline[..], b"abc");
    refused(kit::copied(&mut client, b"abc"), Code::NotFound, "no function");
}
