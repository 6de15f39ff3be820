//! What clients send, and what a client reads: greetings, frames in pieces, protobuf messages.

use pappus_proto::frame::{self, Decoder};
use pappus_proto::handshake::{GREETING_BYTES, Greeting, VERSION};
use pappus_proto::limits::{MAX_MESSAGE_BYTES, MAX_MESSAGE_FDS};
use pappus_proto::v1;
use prost::Message;

/// A greeting: what is read is written the same, and the answer is a version that was offered, or none.
pub fn read_greeting(bytes: &[u8]) {
    let Some(first) = bytes.first_chunk::<GREETING_BYTES>() else { return };
    let Some(greeting) = Greeting::decode(first) else { return };
    assert_eq!(greeting.encode(), *first);
    let answer = greeting.answer();
    let offered = (greeting.lowest..=greeting.highest).contains(&VERSION);
    assert_eq!(answer, if offered { Greeting::OURS } else { Greeting::NONE });
}

/// A stream in pieces, with descriptors where the pieces begin: a byte says how long a piece is and how many
/// descriptors it has. In one piece it would give the same messages.
pub fn read_frames(mut bytes: &[u8]) {
    let mut decoder = Decoder::default();
    let (mut stream, mut messages, mut descriptors) = (Vec::new(), Vec::new(), 0u32);
    let mut broken = false;
    while let Some((&head, rest)) = bytes.split_first() {
        let (piece, later) = rest.split_at(rest.len().min(usize::from(head & 0x3f)));
        bytes = later;
        // Descriptors come with bytes only.
        let fds = if piece.is_empty() { 0 } else { [0, 1, 2, 9][usize::from(head >> 6)] };
        let passed = (descriptors..descriptors + fds).collect();
        descriptors += fds;
        stream.extend_from_slice(piece);
        broken = decoder.feed(piece, passed).is_err() || !take(&mut decoder, &mut messages);
        if broken {
            break;
        }
    }
    assert!(decoder.pending() <= frame::HEADER_BYTES + MAX_MESSAGE_BYTES || broken);
    if descriptors == 0 {
        let (mut whole, mut again) = (Decoder::default(), Vec::new());
        let went_on = whole.feed(&stream, Vec::new()).is_ok() && take(&mut whole, &mut again);
        assert_eq!((again, !went_on), (messages, broken));
    }
}

/// Takes out whole frames, and reads them as the supervisor does; true if the stream goes on.
fn take(decoder: &mut Decoder<u32>, messages: &mut Vec<Vec<u8>>) -> bool {
    loop {
        match decoder.next_frame() {
            Ok(Some((message, fds))) => {
                assert!(message.len() <= MAX_MESSAGE_BYTES && fds.len() <= MAX_MESSAGE_FDS);
                read_request(&message);
                messages.push(message.to_vec());
            }
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

/// One message: the first byte says whether a request or an answer.
pub fn read_messages(bytes: &[u8]) {
    let Some((&kind, message)) = bytes.split_first() else { return };
    match kind % 2 {
        0 => read_request(message),
        _ => again(&v1::Response::decode(message)),
    }
}

fn read_request(message: &[u8]) {
    again(&v1::Request::decode(message));
}

/// What was read survives being written and read again.
fn again<T: Message + Default + PartialEq>(message: &Result<T, prost::DecodeError>) {
    if let Ok(message) = message {
        let written = message.encode_to_vec();
        assert_eq!(written.len(), message.encoded_len());
        assert!(T::decode(&written[..]).is_ok_and(|read| read == *message));
    }
}
