//! Frames on the socket: an eight-byte header, then the protobuf message.
//!
//! ```text
//! 0         4      5          8
//! | length  | fds  | reserved | message …   length little-endian, reserved = 0
//! ```
//!
//! `fds` descriptors (at most 8) are attached to the header's first byte. [`Decoder`] is fed with what
//! arrives and hands out whole frames; it holds the rules, and no I/O, so that both sides and the tests
//! use the same one.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};
use prost::Message;

use crate::limits::{MAX_MESSAGE_BYTES, MAX_MESSAGE_FDS};

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 8;

/// Why a peer's bytes are no frames. The connection cannot go on: its framing is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The message is too long.
    #[error("a frame announces {0} bytes, at most {MAX_MESSAGE_BYTES} are allowed")]
    TooLong(u32),
    /// Too many descriptors announced or sent.
    #[error("{0} descriptors with one message, at most {MAX_MESSAGE_FDS} are allowed")]
    TooManyFds(usize),
    /// Reserved bytes must be zero.
    #[error("reserved header bytes are not zero")]
    Reserved,
    /// Announced and received descriptors differ.
    #[error("a frame announces {announced} descriptors, its first byte came with {received}")]
    Fds {
        /// What the header says.
        announced: usize,
        /// What came with the first byte.
        received: usize,
    },
}

/// Encodes one message with its header; `fds` is how many descriptors will be attached.
pub fn encode(message: &impl Message, fds: usize) -> Vec<u8> {
    let mut out = Vec::new();
    append(&mut out, message, fds);
    out
}

/// Encodes one message with its header behind what is in `out`, to be sent together.
pub fn append(out: &mut Vec<u8>, message: &impl Message, fds: usize) {
    let length = message.encoded_len();
    debug_assert!(length <= MAX_MESSAGE_BYTES && fds <= MAX_MESSAGE_FDS);
    out.reserve(HEADER_BYTES + length);
    out.extend_from_slice(&(length as u32).to_le_bytes());
    out.extend_from_slice(&[fds as u8, 0, 0, 0]);
    message.encode_raw(out);
}

/// Turns received bytes and descriptors into frames.
#[derive(Debug)]
pub struct Decoder<Fd> {
    bytes: BytesMut,
    /// Stream position of `bytes`' first byte.
    position: u64,
    /// Descriptors by the range of stream positions of the receive that brought them.
    batches: VecDeque<(std::ops::Range<u64>, Vec<Fd>)>,
    /// Bytes still to come of a frame that is given up.
    abandoned: usize,
}

impl<Fd> Default for Decoder<Fd> {
    fn default() -> Self {
        Self { bytes: BytesMut::new(), position: 0, batches: VecDeque::new(), abandoned: 0 }
    }
}

/// Memory for bytes that is kept between frames; that of a larger frame goes with it.
pub const KEPT_BYTES: usize = 64 << 10;

impl<Fd> Decoder<Fd> {
    /// Takes what one receive brought.
    ///
    /// A receive ends with the piece of the stream that carries descriptors, so they belong to a frame
    /// that begins within these bytes.
    pub fn feed(&mut self, bytes: &[u8], fds: Vec<Fd>) -> Result<(), FrameError> {
        let (given_up, bytes) = bytes.split_at(bytes.len().min(self.abandoned));
        self.abandoned -= given_up.len();
        self.position += given_up.len() as u64;
        if !fds.is_empty() {
            if fds.len() > MAX_MESSAGE_FDS {
                return Err(FrameError::TooManyFds(fds.len()));
            }
            let start = self.position + self.bytes.len() as u64;
            self.batches.push_back((start..start + bytes.len() as u64, fds));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// The next whole frame, or `None` until more bytes are fed.
    pub fn next_frame(&mut self) -> Result<Option<(Bytes, Vec<Fd>)>, FrameError> {
        // Descriptors whose bytes lie wholly before this frame were never announced.
        if let Some((range, fds)) = self.batches.front()
            && range.end <= self.position
        {
            return Err(FrameError::Fds { announced: 0, received: fds.len() });
        }
        let Some(header) = self.bytes.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        let announced = usize::from(header[4]);
        if header[5..] != [0; 3] {
            return Err(FrameError::Reserved);
        }
        if length as usize > MAX_MESSAGE_BYTES {
            return Err(FrameError::TooLong(length));
        }
        if announced > MAX_MESSAGE_FDS {
            return Err(FrameError::TooManyFds(announced));
        }
        let received = match self.batches.front() {
            Some((range, fds)) if range.contains(&self.position) => fds.len(),
            _ => 0,
        };
        if announced > 0 && announced != received {
            return Err(FrameError::Fds { announced, received });
        }
        let whole = HEADER_BYTES + length as usize;
        // Those that came inside this frame no frame can announce; they must not pile up until it is whole.
        let frame = self.position..self.position + whole as u64;
        let inside = |(range, _): &&(std::ops::Range<u64>, Vec<Fd>)| {
            range.start > frame.start && range.end <= frame.end
        };
        if let Some((_, fds)) = self.batches.iter().find(inside) {
            return Err(FrameError::Fds { announced: 0, received: fds.len() });
        }
        if self.bytes.len() < whole {
            // No reserve for what is merely announced: memory grows with what really arrives.
            return Ok(None);
        }
        self.position += whole as u64;
        let mut frame = self.bytes.split_to(whole).freeze();
        frame.advance(HEADER_BYTES);
        if whole > KEPT_BYTES {
            self.bytes = BytesMut::from(&self.bytes[..]);
        }
        let fds = if announced > 0 {
            self.batches.pop_front().map_or_else(Vec::new, |(_, fds)| fds)
        } else {
            Vec::new()
        };
        Ok(Some((frame, fds)))
    }

    /// Bytes that wait for the rest of their frame.
    pub fn pending(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of memory that are taken for what waits.
    pub fn held_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Gives up the frame that is not complete: what was received of it goes, and what is still to come is dropped when
    /// it comes. Returns the beginning of its message; none if not even its header is there.
    pub fn abandon(&mut self) -> Option<Vec<u8>> {
        const BEGINNING: usize = 16;
        let header = self.bytes.first_chunk::<HEADER_BYTES>()?;
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        self.abandoned = (HEADER_BYTES + length).checked_sub(self.bytes.len())?;
        let message = &self.bytes[HEADER_BYTES..];
        let beginning = message[..message.len().min(BEGINNING)].to_vec();
        self.position += self.bytes.len() as u64;
        self.bytes = BytesMut::new();
        self.batches.clear();
        Some(beginning)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;
    use proptest::prelude::*;

    fn request(id: u64, fds: usize) -> Vec<u8> {
        encode(
            &v1::Request { id, body: Some(v1::request::Body::Status(v1::Empty {})), ..Default::default() },
            fds,
        )
    }

    fn ids(decoder: &mut Decoder<u32>) -> Result<Vec<(u64, Vec<u32>)>, FrameError> {
        let mut out = Vec::new();
        while let Some((frame, fds)) = decoder.next_frame()? {
            out.push((v1::Request::decode(frame).unwrap().id, fds));
        }
        Ok(out)
    }

    fn check_error(chunks: &[(&[u8], &[u32])], expect: FrameError) {
        let mut decoder = Decoder::default();
        let outcome = chunks.iter().try_for_each(|(bytes, fds)| {
            decoder.feed(bytes, fds.to_vec())?;
            ids(&mut decoder).map(drop)
        });
        assert_eq!(outcome, Err(expect));
    }

    #[test]
    fn split_and_coalesced_frames_are_the_same() {
        let stream = [request(1, 0), request(2, 0), request(300, 0)].concat();
        for step in 1..stream.len() {
            let mut decoder = Decoder::default();
            let mut got = Vec::new();
            for chunk in stream.chunks(step) {
                decoder.feed(chunk, vec![]).unwrap();
                got.extend(ids(&mut decoder).unwrap());
            }
            assert_eq!(got, [(1, vec![]), (2, vec![]), (300, vec![])], "step {step}");
            assert_eq!(decoder.pending(), 0);
        }
    }

    #[test]
    fn descriptors_go_to_the_frame_that_announces_them() {
        let mut decoder = Decoder::default();
        decoder.feed(&[request(1, 0), request(2, 2)].concat(), vec![7, 8]).unwrap();
        let (head, tail) = {
            let r = request(3, 1);
            (r[..5].to_vec(), r[5..].to_vec())
        };
        decoder.feed(&head, vec![9]).unwrap();
        assert_eq!(ids(&mut decoder).unwrap(), [(1, vec![]), (2, vec![7, 8])]);
        decoder.feed(&tail, vec![]).unwrap();
        assert_eq!(ids(&mut decoder).unwrap(), [(3, vec![9])]);
    }

    #[test]
    fn everything_else_about_descriptors_ends_the_connection() {
        check_error(&[(&request(1, 2), &[7])], FrameError::Fds { announced: 2, received: 1 });
        check_error(&[(&request(1, 1), &[])], FrameError::Fds { announced: 1, received: 0 });
        check_error(&[(&[0, 0, 0, 0, 9, 0, 0, 0], &[])], FrameError::TooManyFds(9));
        check_error(&[(&request(1, 0), &[1; 9])], FrameError::TooManyFds(9));
        let unannounced = [(&request(1, 0)[..], &[7][..]), (&request(2, 0)[..], &[][..])];
        check_error(&unannounced, FrameError::Fds { announced: 0, received: 1 });
        // At once, not when the frame that they came in is whole.
        let inside = [(&[100, 0, 0, 0, 0, 0, 0, 0][..], &[][..]), (&[1][..], &[7, 8][..])];
        check_error(&inside, FrameError::Fds { announced: 0, received: 2 });
        let before_its_length =
            [(&[100, 0, 0, 0][..], &[][..]), (&[0][..], &[7][..]), (&[0, 0, 0][..], &[8][..])];
        check_error(&before_its_length, FrameError::Fds { announced: 0, received: 1 });
    }

    #[test]
    fn a_frame_that_is_given_up_takes_no_memory_and_the_next_one_is_whole() {
        let body = v1::request::Body::PutBlob(v1::PutBlob { inline: vec![7; 1 << 20].into() });
        let large = encode(&v1::Request { id: 300, body: Some(body), ..Default::default() }, 1);
        for cut in [HEADER_BYTES, HEADER_BYTES + 1, 1000, large.len() - 1] {
            let mut decoder = Decoder::default();
            decoder.feed(&large[..cut], vec![9]).unwrap();
            assert_eq!(decoder.next_frame().unwrap().map(drop), None);
            let beginning = decoder.abandon().unwrap();
            assert!(large[HEADER_BYTES..].starts_with(&beginning));
            assert_eq!(decoder.held_bytes(), 0);
            for piece in large[cut..].chunks(10_000) {
                decoder.feed(piece, vec![]).unwrap();
                assert_eq!(ids(&mut decoder).unwrap(), []);
            }
            decoder.feed(&request(2, 1), vec![8]).unwrap();
            assert_eq!(ids(&mut decoder).unwrap(), [(2, vec![8])]);
        }
    }

    #[test]
    fn memory_of_a_large_frame_goes_with_it() {
        let body = v1::request::Body::PutBlob(v1::PutBlob { inline: vec![7; 3 << 20].into() });
        let mut decoder = Decoder::<u32>::default();
        decoder
            .feed(&encode(&v1::Request { id: 1, body: Some(body), ..Default::default() }, 0), vec![])
            .unwrap();
        assert!(decoder.held_bytes() > 3 << 20);
        assert!(decoder.next_frame().unwrap().is_some());
        assert_eq!(decoder.held_bytes(), 0);
    }

    #[test]
    fn bad_headers_end_the_connection() {
        check_error(&[(&[0, 0, 0, 0, 0, 1, 0, 0], &[])], FrameError::Reserved);
        check_error(&[(&[255, 255, 255, 255, 0, 0, 0, 0], &[])], FrameError::TooLong(u32::MAX));
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(chunks in proptest::collection::vec(
            (proptest::collection::vec(any::<u8>(), 0..64), proptest::collection::vec(any::<u32>(), 0..10)), 0..20)) {
            let mut decoder = Decoder::default();
            for (bytes, fds) in chunks {
                if decoder.feed(&bytes, fds).is_err() { break }
                while let Ok(Some((frame, _))) = decoder.next_frame() {
                    let _ = v1::Request::decode(frame);
                }
            }
        }

        #[test]
        fn random_messages_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = v1::Request::decode(&bytes[..]);
            let _ = v1::Response::decode(&bytes[..]);
        }
    }
}
