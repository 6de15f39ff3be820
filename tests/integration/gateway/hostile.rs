//! Requests that break rules, and clients that stall or flood: each is refused or left, and others are served meanwhile.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use pappus_gateway::limits::MAX_CONNECTIONS;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;

use super::{ADD, Connection, Gateway, bearer};
use crate::fixture::until;
use crate::house::house;

/// What a gateway may take more than before, whatever is sent to it.
const MORE_BYTES: u64 = 50 << 20;

fn infer(gateway: &Gateway, headers: &[&str], body: &[u8]) -> super::Answer {
    let token = bearer("alice");
    let headers = [&[&*token], headers].concat();
    gateway.connect().ask("POST", "/v2/models/copy/infer", &headers, body)
}

#[test]
fn bodies_that_are_not_what_they_say_are_refused() {
    let gateway = Gateway::start();
    let header = "Inference-Header-Content-Length: ";
    let input = |size: u64| {
        json!({"inputs": [{"name": "in", "shape": [3], "datatype": "UINT8", "parameters": {"binary_data_size": size}}]})
            .to_string()
    };
    let with = |json: &str, length: usize, rest: &[u8]| {
        infer(&gateway, &[&format!("{header}{length}")], &[json.as_bytes(), rest].concat())
    };
    let json = input(3);
    assert_eq!(with(&json, json.len(), b"xyz").status, 200, "the control");
    with(&json, json.len() + 4, b"xyz").error(400, "INVALID_ARGUMENT", "bytes of JSON");
    with(&json, json.len() - 1, b"xyz").error(400, "INVALID_ARGUMENT", "EOF");
    with(&json, json.len(), b"xy").error(400, "INVALID_ARGUMENT", "2 bytes that are left");
    with(&json, json.len(), b"xyz!").error(400, "INVALID_ARGUMENT", "1 bytes behind the last tensor");
    let huge = input(u64::MAX);
    with(&huge, huge.len(), b"xyz").error(400, "INVALID_ARGUMENT", "bytes that are left");
    let two = input(2);
    with(&two, two.len(), b"xy").error(400, "INVALID_ARGUMENT", "not shape [3]");
    infer(&gateway, &[&format!("{header}many")], b"{}").error(400, "INVALID_ARGUMENT", "no number of bytes");
    for wrong in ["", "[", "[]", "{\"inputs\": 3}", "\u{0}", "{\"inputs\": [{\"name\": \"in\"}]}"] {
        assert_eq!(infer(&gateway, &[], wrong.as_bytes()).status, 400, "{wrong:?}");
    }
    let deep = format!("{{\"inputs\": [{{\"name\": \"in\", \"data\": {}", "[".repeat(100_000));
    infer(&gateway, &[], deep.as_bytes()).error(400, "INVALID_ARGUMENT", "");
    let ignored = format!("{{\"what\": {}", "[".repeat(100_000));
    infer(&gateway, &[], ignored.as_bytes()).error(400, "INVALID_ARGUMENT", "");
    gateway.works();
}

#[test]
fn a_bomb_is_given_up_at_the_limit() {
    let gateway = Gateway::before(house(&[("alice", ""), ("bob", "")]), &["--max-body", "1MiB"]);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    let zeros = vec![b' '; 1 << 20];
    (0..512).for_each(|_| gzip.write_all(&zeros).unwrap());
    let bomb = gzip.finish().unwrap();
    assert!(bomb.len() < 1 << 20);
    let before = gateway.resident_bytes();
    for _ in 0..8 {
        infer(&gateway, &["Content-Encoding: gzip"], &bomb).error(413, "TOO_LARGE", "--max-body");
    }
    infer(&gateway, &["Content-Encoding: gzip"], b"no gzip").error(400, "INVALID_ARGUMENT", "gzip");
    assert!(gateway.resident_bytes() < before + MORE_BYTES);
    gateway.works();
}

#[test]
fn larger_bodies_than_are_taken_are_refused_before_they_are_sent() {
    let gateway = Gateway::before(house(&[("alice", ""), ("bob", "")]), &["--max-body", "1MiB"]);
    let mut connection = gateway.connect();
    connection.begin("POST", "/v2/models/copy/infer", &[&bearer("alice")], 1 << 40);
    connection.answer().error(413, "TOO_LARGE", "--max-body");
    // In pieces, without a length: as far as the limit.
    let mut connection = gateway.connect();
    let head = format!(
        "POST /v2/models/copy/infer HTTP/1.1\r\nHost: g\r\n{}\r\nTransfer-Encoding: chunked\r\n\r\n",
        bearer("alice")
    );
    connection.send(head.as_bytes());
    let piece = [format!("{:x}\r\n", 64 << 10).into_bytes(), vec![b' '; 64 << 10], b"\r\n".to_vec()].concat();
    for _ in 0..20 {
        if connection.stream.get_mut().write_all(&piece).is_err() {
            break;
        }
    }
    assert!(connection.try_answer().is_none_or(|answer| answer.status == 413));
    gateway.works();
}

/// All bodies together stay within what the gateway may take: whoever comes too late is told to come back.
#[test]
fn bodies_of_many_share_one_memory() {
    let flags = ["--max-body", "4MiB", "--memory", "10MiB"];
    let gateway = Gateway::before(house(&[("alice", ""), ("bob", "")]), &flags);
    let mut slow: Vec<Connection> = (0..3).map(|_| gateway.connect()).collect();
    for connection in &mut slow {
        connection.begin("POST", "/v2/models/copy/infer", &[&bearer("alice")], 4 << 20);
        // The gateway may answer, and close, while the rest still comes.
        let _ = connection.stream.get_mut().write_all(&vec![b' '; (4 << 20) - 1]);
    }
    let mut refused = None;
    until("memory is full", || {
        refused = slow.iter_mut().position(|connection| {
            connection.patience(Duration::from_millis(1));
            let mut byte = [0];
            connection.stream.get_ref().peek(&mut byte).is_ok()
        });
        refused.is_some()
    });
    let mut refused = slow.remove(refused.unwrap());
    refused.patience(crate::fixture::PATIENCE);
    refused.answer().error(503, "BUSY", "no memory left");
    drop(slow);
    until("there is room again", || infer(&gateway, &[], b"{}").status == 400);
    gateway.works();
}

#[test]
fn floods_of_headers_end_their_connection() {
    let gateway = Gateway::start();
    let before = gateway.resident_bytes();
    for header in ["X: y\r\n".repeat(100_000), format!("X: {}\r\n", "y".repeat(1 << 20))] {
        let mut connection = gateway.connect();
        let _ = connection
            .stream
            .get_mut()
            .write_all(format!("GET /v2 HTTP/1.1\r\nHost: g\r\n{header}\r\n").as_bytes());
        assert!(connection.try_answer().is_none_or(|answer| [400, 431].contains(&answer.status)));
    }
    for nonsense in
        [&b"\0\0\0\0\r\n\r\n"[..], b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00"]
    {
        let mut stream = TcpStream::connect(&gateway.http).unwrap();
        stream.write_all(nonsense).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut told = Vec::new();
        let _ = stream.read_to_end(&mut told);
        assert!(told.is_empty() || told.starts_with(b"HTTP/1.1 4"), "{told:?}");
    }
    assert!(gateway.resident_bytes() < before + MORE_BYTES);
    gateway.works();
}

/// Tokens that were never given out, and pieces of requests, many at once.
#[test]
fn many_who_guess_leave_the_others_their_places() {
    let gateway = Gateway::start();
    gateway.works();
    let before = gateway.resident_bytes();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let gateway = &gateway;
            scope.spawn(move || {
                let mut connection = gateway.connect();
                for n in 0..60 {
                    let guess = format!("Authorization: Bearer guess-{thread}-{n}");
                    let answer =
                        connection.ask("POST", "/v2/models/vec_add/infer", &[&guess], ADD.as_bytes());
                    assert!([401, 503].contains(&answer.status), "{answer:?}");
                }
            });
        }
        (0..100).for_each(|_| gateway.works());
    });
    // Requests that stop in the middle.
    for cut in 1..60 {
        let mut stream = TcpStream::connect(&gateway.http).unwrap();
        let head = format!(
            "POST /v2/models/vec_add/infer HTTP/1.1\r\nHost: g\r\n{}\r\nContent-Length: 100\r\n\r\n{{",
            bearer("alice")
        );
        stream.write_all(&head.as_bytes()[..head.len() * cut / 60]).unwrap();
    }
    assert!(gateway.resident_bytes() < before + MORE_BYTES);
    gateway.works();
}

/// As many silent connections as there are places, and one that was served before.
#[test]
fn silence_keeps_no_place_that_somebody_else_wants() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let gateway = Gateway::start();
    let mut served = gateway.connect();
    let mut ask =
        || served.ask("POST", "/v2/models/vec_add/infer", &[&bearer("alice")], ADD.as_bytes()).status;
    assert_eq!(ask(), 200);
    let mut silent: Vec<TcpStream> =
        (0..MAX_CONNECTIONS).map(|_| TcpStream::connect(&gateway.http).unwrap()).collect();
    let before = Instant::now();
    (0..10).for_each(|_| gateway.works());
    assert_eq!(ask(), 200, "whose token is known keeps its place");
    // The oldest one went first.
    let mut nothing = [0; 1];
    assert_eq!(silent[0].read(&mut nothing).unwrap_or(0), 0);
    assert!(before.elapsed() < Duration::from_secs(30), "not by their time, which is 60 s");
}

/// Nothing of a body is waited for whose token is no tenant's.
#[test]
fn tokens_are_judged_before_bodies() {
    let gateway = Gateway::start();
    let mut connection = gateway.connect();
    connection.begin("POST", "/v2/models/copy/infer", &["Authorization: Bearer guessed"], 1 << 20);
    connection.send(b"{");
    connection.answer().error(401, "UNAUTHENTICATED", "token");
    gateway.works();
}

/// HTTP/2: streams that are reset as soon as they are opened, and headers that never end.
#[test]
fn floods_of_http2_end_their_connection() {
    let gateway = Gateway::start();
    let before = gateway.resident_bytes();
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    };
    let preface = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(4, 0, 0, &[])].concat();
    // `:method: POST`, `:scheme: http`, `:path: /`, by the static table.
    let head = [0x83, 0x86, 0x84];
    let mut resets = preface.clone();
    for stream in (1..40_000u32).step_by(2) {
        resets.extend(frame(1, 4, stream, &head));
        resets.extend(frame(3, 0, stream, &8u32.to_be_bytes()));
    }
    let mut continuations = [preface.clone(), frame(1, 0, 1, &head)].concat();
    for _ in 0..2_000 {
        // A header that is never indexed: `x: y…`.
        let long = [&[0x10, 1, b'x', 0x7f, 0x81, 0x07][..], &[b'y'; 1024]].concat();
        continuations.extend(frame(9, 0, 1, &long));
    }
    let nonsense = [preface, vec![0xff; 100_000]].concat();
    for flood in [resets, continuations, nonsense] {
        let mut stream = TcpStream::connect(&gateway.grpc).unwrap();
        stream.set_read_timeout(Some(crate::fixture::PATIENCE)).unwrap();
        let mut reads = stream.try_clone().unwrap();
        let writes = std::thread::spawn(move || {
            let _ = stream.write_all(&flood);
            let _ = stream.shutdown(std::net::Shutdown::Write);
        });
        // The gateway closes; until then it says what it says.
        let _ = std::io::copy(&mut reads, &mut std::io::sink());
        writes.join().unwrap();
    }
    assert!(gateway.resident_bytes() < before + MORE_BYTES);
    gateway.works();
}
