//! Bytes on the socket that are no greeting, no frame or no request, in pieces and in floods (ATTACKS 19 to 21).
//! The control of every case is an honest client on the same supervisor that is served before and after.

use std::io::Read;
use std::path::Path;

use pappus_client::Code;
use pappus_client::v1::response::Body;
use pappus_proto::handshake::Greeting;

use crate::fixture::{Supervisor, until};
use crate::kit;
use crate::raw::{Raw, invoke, request, status};

/// An attack on `socket`, beside a client that is served all along.
fn attack(attack: impl FnOnce(&Path)) {
    let supervisor = Supervisor::start();
    let mut honest = supervisor.client();
    kit::add_copy(&mut honest);
    kit::works(&mut honest);
    attack(&supervisor.socket());
    kit::works(&mut honest);
    // Nothing of the attackers stays behind: this client and the one that asks. They are of the same tenant, which has no place
    // for another connection before.
    until("their connections are gone", || supervisor.status().connections == 2);
    kit::works(&mut supervisor.client());
}

#[test]
fn greetings_that_are_none_are_closed() {
    attack(|socket| {
        let spoilt = |at: usize| {
            let mut bytes = Greeting::OURS.encode();
            bytes[at] ^= 1;
            bytes
        };
        for at in [0, 7, 12, 15] {
            let mut raw = Raw::connect(socket);
            raw.send(&spoilt(at));
            raw.is_closed();
        }
        let mut raw = Raw::connect(socket);
        raw.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        raw.is_closed();
    });
}

#[test]
fn an_unsupported_protocol_version_is_refused_with_the_supported_ones() {
    attack(|socket| {
        for (lowest, highest) in [(2, 9), (1, 0), (0, 0), (u16::MAX, u16::MAX)] {
            let mut raw = Raw::connect(socket);
            raw.send(&Greeting { lowest, highest }.encode());
            assert_eq!(raw.greeting(), Some(Greeting::NONE));
            raw.is_closed();
        }
        // The control: a range with ours in it.
        let mut raw = Raw::connect(socket);
        raw.send(&Greeting { lowest: 0, highest: 9 }.encode());
        assert_eq!(raw.greeting(), Some(Greeting::OURS));
    });
}

#[test]
fn frames_in_any_pieces_are_the_same() {
    attack(|socket| {
        let stream = [
            Greeting::OURS.encode().to_vec(),
            request(1, status(), 0),
            request(2, invoke("copy", Some(b"abc")), 0),
        ];
        for step in [1, 3, 7, 1000] {
            let mut raw = Raw::connect(socket);
            stream.concat().chunks(step).for_each(|piece| raw.send(piece));
            assert_eq!(raw.greeting(), Some(Greeting::OURS));
            let mut ids = [raw.body().0, raw.body().0];
            ids.sort_unstable();
            assert_eq!(ids, [1, 2], "in pieces of {step}");
        }
    });
}

#[test]
fn a_malformed_frame_closes_the_connection() {
    attack(|socket| {
        let headers: [[u8; 8]; 5] = [
            [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0],
            [1, 0, 0x40, 0, 0, 0, 0, 0],
            [0, 0, 0, 0, 9, 0, 0, 0],
            [0, 0, 0, 0, 0, 1, 0, 0],
            // Announces a descriptor that does not come.
            [0, 0, 0, 0, 1, 0, 0, 0],
        ];
        for header in headers {
            let mut raw = Raw::greeted(socket);
            raw.send(&header);
            raw.is_closed();
        }
        // A whole frame, with bytes that are no message.
        let mut raw = Raw::greeted(socket);
        raw.send(&[3, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff]);
        raw.is_closed();
    });
}

#[test]
fn an_unknown_request_is_refused_and_the_connection_stays_open() {
    attack(|socket| {
        let mut raw = Raw::greeted(socket);
        // Field 1 (the id) is 7, field 99 is something of a later version.
        raw.send(&[6, 0, 0, 0, 0, 0, 0, 0, 0x08, 7, 0x9a, 0x06, 1, 0]);
        let (id, error) = raw.error();
        assert_eq!((id, error.code()), (7, Code::InvalidArgument));
        raw.request(8, status(), &[]);
        assert_eq!(raw.body().0, 8);
    });
}

#[test]
fn ten_thousand_connections_of_random_bytes() {
    const THREADS: u64 = 4;
    attack(|socket| {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || random_connections(socket, thread + 1, 10_000 / THREADS));
            }
        });
    });
}

/// Connections one after the other, each with some random bytes, half of them behind a good greeting.
fn random_connections(socket: &Path, seed: u64, count: u64) {
    let mut random = seed;
    // xorshift64: any sequence will do, as long as a failure can be repeated.
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for connection in 0..count {
        let mut raw = Raw::connect(socket);
        if connection % 2 == 0 {
            raw.send(&Greeting::OURS.encode());
        }
        let words = (0..1 + next() % 32).map(|_| next().to_le_bytes());
        let mut bytes = words.collect::<Vec<_>>().concat();
        if connection % 4 == 0 {
            // A header that fits, so that the message is looked at.
            let length = (bytes.len() as u32).to_le_bytes();
            bytes.splice(..0, length.into_iter().chain([0; 4]));
        }
        raw.send(&bytes);
    }
}

#[test]
fn a_half_closed_client_is_gone() {
    attack(|socket| {
        // Before, within and after the greeting; within a frame; with a call on its way.
        for sent in [
            vec![],
            b"PAPP".to_vec(),
            Greeting::OURS.encode().to_vec(),
            [&Greeting::OURS.encode()[..], &request(1, status(), 0)[..5]].concat(),
        ] {
            let mut raw = Raw::connect(socket);
            raw.send(&sent);
            raw.close_sending();
            let mut rest = Vec::new();
            raw.stream.read_to_end(&mut rest).unwrap();
            assert!(rest.is_empty() || rest == Greeting::OURS.encode(), "{rest:?}");
        }
        let mut raw = Raw::greeted(socket);
        raw.request(1, invoke("copy", Some(b"abc")), &[]);
        raw.close_sending();
        // Whether the answer was quicker is not determined; that the connection ends is.
        while raw.answer().is_some() {}
    });
}

#[test]
fn a_client_that_never_reads_delays_no_other_client() {
    attack(|socket| {
        let mut deaf = Raw::greeted(socket);
        deaf.stream.set_nonblocking(true).unwrap();
        // Until the supervisor takes no more of it, or has closed it.
        let flood = request(1, status(), 0).repeat(1000);
        let mut sent = 0;
        loop {
            match std::io::Write::write(&mut deaf.stream, &flood) {
                Ok(bytes) => sent += bytes,
                Err(_) if sent > 0 => break,
                Err(error) => panic!("{error}"),
            }
        }
        let mut other = Raw::greeted(socket);
        other.request(1, status(), &[]);
        assert_eq!(other.body().0, 1);
    });
}

#[test]
fn a_client_that_reads_late_misses_nothing() {
    attack(|socket| {
        const CALLS: u64 = 2000;
        let mut late = Raw::greeted(socket);
        let mut sender = late.twin();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for id in 1..=CALLS {
                    sender.send(&request(id, status(), 0));
                }
            });
            // Answers pile up in the sockets and in the supervisor before the first is read.
            let mut ids: Vec<u64> = (0..CALLS)
                .map(|_| match late.body() {
                    (id, Body::Status(_)) => id,
                    other => panic!("{other:?}"),
                })
                .collect();
            ids.sort_unstable();
            assert!(ids.into_iter().eq(1..=CALLS));
        });
    });
}
